"""Tests of discovery: a new metric or logger is one file, and configs, help and reference find it."""

import gc
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import learner.loggers
import learner.metrics
import learner.optimizers
import learner.schedules
from learner import LearnerBuilder
from learner.cli.configs.config import RunConfig
from learner.cli.main import main
from learner.config.mappings import read_mapping
from learner.errors import OTHER_NAMES
from learner.events import Listener
from learner.metrics import MetricBase
from learner.runs import RunReader
from learner.util.discovery import export_classes, import_lazily
from tests.support.runs import batches, build_line

ROOT = Path(__file__).parents[2]

METRIC = '''
from learner.metrics.means import MeanMetric


class MeanBias(MeanMetric):
    """The mean of prediction - target."""

    name, fields = "Mean Bias", ("predictions", "targets")

    def update(self, state, output, info):
        return state.add(output.predictions - output.targets)
'''

LOGGER = '''
from learner.loggers.base import RunLogger


class LineWriter(RunLogger):
    """A line for each split in `lines.txt` of the run."""

    def __init__(self, mark: str = ":"):
        super().__init__()
        self.mark = mark

    def started(self, event):
        self.path = event.directory / "lines.txt"

    def split(self, event):
        with self.path.open("a") as file:
            file.write(f"{event.split}{self.mark}{event.values['Mean Bias']:.3f}\\n")
'''

CONFIG = """
model: tests.support.runs.line
optimizer: SGD
lr: 0.05
train: tests.support.runs.batches
train_step: tests.support.runs.line_step
renderer: null
metric_train: {metric}
metric_loggers:
- class_path: {logger}
  init_args: {{mark: "="}}
"""


@pytest.fixture
def new_files(tmp_path, monkeypatch):
    """Add one file to `learner/metrics` and one to `learner/loggers`, and import them as if they were part of the
    package.
    """
    bases = {learner.metrics: MetricBase, learner.loggers: Listener}
    files = {learner.metrics: ("bias", METRIC), learner.loggers: ("line_writer", LOGGER)}
    before = {package: (dict(vars(package)), list(package.__all__)) for package in bases}
    for package, (name, text) in files.items():
        folder = tmp_path / package.__name__
        folder.mkdir()
        (folder / f"{name}.py").write_text(text)
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
        importlib.invalidate_caches()
        export_classes(package.__name__, bases[package], package.__all__)
    yield
    for package, (attributes, names) in before.items():
        for name in set(vars(package)) - set(attributes):
            delattr(package, name)
        package.__all__ = names
        sys.modules.pop(f"{package.__name__}.{files[package][0]}", None)
    gc.collect()


def check_lines(directory, mark):
    """Check that the logger wrote the value of the metric that the journal has."""
    (point,) = RunReader(directory).points("train/Mean Bias")
    assert (directory / "lines.txt").read_text() == f"train{mark}{point.value:.3f}\n"


@pytest.mark.full
@pytest.mark.usefixtures("new_files", "compiled_once")
def test_new_classes_are_public_and_the_builder_accepts_them(tmp_path):
    builder = LearnerBuilder(tmp_path / "run").renderer(None)
    builder.metric_train(learner.metrics.MeanBias()).metric_loggers(learner.loggers.LineWriter())
    build_line(builder).fit(batches())
    check_lines(tmp_path / "run", ":")
    assert "MeanBias" in learner.metrics.__all__
    assert "LineWriter" in learner.loggers.__all__


@pytest.mark.full
@pytest.mark.usefixtures("new_files", "compiled_once")
@pytest.mark.parametrize(
    "places",
    [("", ""), pytest.param(("learner.metrics.bias.", "learner.loggers.line_writer."), marks=pytest.mark.full)],
)
def test_config_names_new_classes(tmp_path, places):
    """Configs accept short names and the paths of modules."""
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG.format(metric=f"{places[0]}MeanBias", logger=f"{places[1]}LineWriter"))
    RunConfig({**read_mapping(config), "directory": str(tmp_path / "run")}).learner().fit()
    check_lines(tmp_path / "run", "=")


@pytest.mark.usefixtures("new_files")
def test_help_lists_new_classes(capsys):
    for key, entry in (("metric_valid", "MeanBias()"), ("metric_loggers", "LineWriter(mark=:)")):
        assert main(["fit", f"--{key}.help"]) == 0
        assert f"  {entry}\n" in capsys.readouterr().out


@pytest.mark.usefixtures("new_files")
def test_reference_contains_new_classes():
    """Pages of the reference show `__all__` of a package, and names in docstrings link to public objects."""
    # Not `docs.plain`: that module caches names, and doctests look up modules by their file.
    spec = importlib.util.spec_from_file_location("plain_with_new_files", ROOT / "docs" / "plain.py")
    plain = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plain)
    assert plain.found("MeanBias", "learner.Learner") == "learner.metrics.MeanBias"
    assert plain.found("LineWriter", "learner.Learner") == "learner.loggers.LineWriter"
    for package in ("metrics", "loggers"):
        page = (ROOT / "docs" / "reference" / f"{package}.md").read_text()
        assert re.search(rf"automodule:: learner\.{package}\n +:members:", page)


def test_bases_and_private_classes_are_not_exported():
    assert not {"RunLogger", "ExactlyOnceLogger"} & set(learner.loggers.__all__)
    assert not {"ClassMetric", "RankingMetric", "_Dice"} & set(learner.metrics.__all__)


PACKAGES = [
    "checkpoint",
    "data",
    "data.sources",
    "loggers",
    "metrics",
    "optimizers",
    "records",
    "renderers",
    "runs",
    "schedules",
]


@pytest.mark.full
def test_names_are_imported_on_first_use():
    """Run in a new process, where no test has used a name of these packages."""
    program = f"""
import importlib
for package in map(importlib.import_module, {[f"learner.{name}" for name in PACKAGES]}):
    listed = set(dir(package))  # by which shells complete names
    values = {{name: getattr(package, name) for name in package.__all__}}
    wrong = [n for n, value in values.items() if n not in listed or getattr(value, "__name__", n) != n]
    try:
        package.nothing_of_the_kind
    except AttributeError as error:
        print(wrong, error)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    lines = [f"[] module 'learner.{name}' has no attribute 'nothing_of_the_kind'" for name in PACKAGES]
    assert ran.stdout.splitlines() == lines


@pytest.mark.parametrize(
    ("package", "name", "expected"),
    [
        (learner, "Accuracy", "learner.metrics.Accuracy"),
        (learner, "EarlyStopping", "MetricEarlyStopping"),
        (learner, "Sharded", "learner.strategies.Sharded"),
        (learner.metrics, "F1", "FBeta"),
        (learner.metrics, "f1_score", "FBeta"),
        (learner.metrics, "roc_auc", "AUROC"),
        (learner, "Trainer", "LearnerBuilder"),
        (learner.metrics, "RMSE", "RootMeanSquaredError"),
        (learner.metrics, "accuracies", "Accuracy"),
        (learner.loggers, "CSV", "Csv"),
        (learner.optimizers, "adamw", "AdamW"),
    ],
)
def test_misspelt_names_are_answered_with_the_nearest(package, name, expected):
    with pytest.raises(AttributeError, match=re.escape(f"has no attribute {name!r}; did you mean {expected}?")):
        getattr(package, name)


def test_names_like_no_other_have_no_hint():
    for package in (learner, learner.metrics, learner.optimizers):
        with pytest.raises(AttributeError, match=r"has no attribute 'zzz'$"):
            getattr(package, "zzz")  # noqa: B009


def test_other_names_are_those_of_public_classes():
    known = {*learner.__all__, *learner.metrics.__all__, *learner.loggers.__all__}
    assert {*OTHER_NAMES.values()} <= known


def test_names_without_the_source(monkeypatch):
    """Some installations hold compiled files only."""
    monkeypatch.setattr(type(learner.schedules.__spec__.loader), "get_source", lambda *_: None)
    get, names = import_lazily("learner.schedules")
    monkeypatch.delitem(vars(learner.schedules), "Cosine", raising=False)
    assert get("Cosine") is learner.schedules.decays.Cosine
    assert "Linear" in names()
