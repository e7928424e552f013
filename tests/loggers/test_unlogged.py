"""Tests of runs without metric files: `metric_loggers(only=[...])`."""

import csv
import json

import pytest

from learner import Interrupter
from learner.loggers import Csv, JsonLines, MemoryLogger
from learner.reports.curves import curves
from learner.reports.pictures import picture
from learner.reports.plots import Plot
from learner.runs import each_run
from learner.runs.history import read_history
from tests.support.codes import raises_code
from tests.support.runs import STEPS, batches, build_line, journal_of, logs_of, quiet, valid_data
from tests.support.stopped import some

pytestmark = pytest.mark.usefixtures("compiled_once")


def fit(directory, *, only=True, stops_at=None, epochs=3):
    """Train with every step in `metrics.jsonl`, and resume if the run exists."""
    interrupter = Interrupter()

    def hook(info, model):
        if info.step == stops_at:
            interrupter.stop("enough")

    builder = quiet(directory, saves=True).with_file_checkpointer(every_steps=4).valid_every(5).every(1, hook)
    loggers = [JsonLines(every_steps=1)]
    builder.metric_loggers(only=loggers) if only else builder.metric_loggers(*loggers)
    return build_line(builder.num_epochs(epochs).interrupter(interrupter).resume()).fit(batches(), valid_data())


def losses_of(directory):
    """Return the kind, split, step and loss of each JSON line of numbers."""
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    kept = [x for x in lines if x["event"] in ("step", "split")]
    return [tuple(x[name] for name in ("event", "split", "step", "Loss")) for x in kept]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the result and the directory of a run with metric files."""
    directory = tmp_path_factory.mktemp("whole") / "run"
    return fit(directory, only=False), directory


@pytest.fixture(scope="module")
def unlogged(tmp_path_factory):
    directory = tmp_path_factory.mktemp("unlogged") / "run"
    return fit(directory), directory


@pytest.mark.full
def test_loggers_replace_the_metric_files_and_nothing_else(whole, unlogged):
    result, directory = unlogged
    assert (result.history, read_history(directory)) == (whole[0].history, whole[0].history)
    assert logs_of(directory) == {}
    assert not (directory / "train").exists()
    assert losses_of(directory) == losses_of(whole[1])
    assert result.summary["metrics"] == whole[0].summary["metrics"]
    assert (directory / "summary.json").exists()
    assert "values of single steps go to loggers only" in (directory / "experiment.log").read_text()


@pytest.mark.full
@pytest.mark.parametrize("step", [5, STEPS, 9])
def test_resuming(whole, tmp_path, step):
    """The run stops where a validation is due, at the end of an epoch, or within one."""
    fit(tmp_path / "run", stops_at=step)
    result = fit(tmp_path / "run")
    assert result.history == whole[0].history
    assert losses_of(tmp_path / "run") == losses_of(whole[1])


@pytest.mark.full
@pytest.mark.parametrize("first", some(["files first", "loggers first"], {"files first"}))
def test_switching_between_files_and_loggers(whole, tmp_path, first):
    """Values from before the resumed step stay; files of earlier epochs do not change."""
    files = first == "files first"
    fit(tmp_path / "run", only=not files, stops_at=9)
    before = logs_of(tmp_path / "run")
    fit(tmp_path / "run", only=files, stops_at=15)
    between = logs_of(tmp_path / "run")
    result = fit(tmp_path / "run", only=not files)
    assert result.history == whole[0].history
    expected, actual = logs_of(whole[1]), logs_of(tmp_path / "run")
    if files:
        assert between == before
        assert {path: expected[path] for path in before if "epoch-1/" in path}.items() <= actual.items()
        assert [path for path in actual if "epoch-3/" in path] == [path for path in expected if "epoch-3/" in path]
    else:
        assert (before, actual) == ({}, between)
        assert {path.split("/")[1] for path in between} == {"epoch-2", "epoch-3"}


@pytest.mark.full
def test_reports_and_plots_without_values_of_steps(unlogged):
    runs = list(each_run([unlogged[1]]))
    drawn = [curve for metric in curves(runs)["metrics"] for curve in metric["curves"]]
    assert {len(curve["y"]) for curve in drawn if curve["split"] == "train"} == {3}  # epochs
    assert isinstance(picture(runs, "train/Loss"), Plot)
    with raises_code("report-step-values-missing"):
        picture(runs, "train/Loss", steps=True)


def test_no_logger_at_all(tmp_path):
    build_line(quiet(tmp_path / "run").metric_loggers(only=[])).fit(batches())
    assert logs_of(tmp_path / "run") == {}
    assert [line["event"] for line in journal_of(tmp_path / "run")] == ["start", "epoch", "end"]


def test_loggers_of_both_kinds(tmp_path):
    memory = MemoryLogger()
    build_line(quiet(tmp_path / "run").metric_loggers(memory, only=[Csv()])).fit(batches())
    assert len(memory.steps["train/Loss"]) == STEPS
    with (tmp_path / "run" / "metrics.csv").open() as file:
        assert [row["kind"] for row in csv.DictReader(file)] == ["split"]
    assert logs_of(tmp_path / "run") == {}


@pytest.mark.parametrize(
    ("only", "code", "shown"),
    [
        (JsonLines(), "logger-only-not-list", ["JsonLines"]),
        ("JsonLines", "logger-only-not-list", []),
        (True, "logger-only-not-list", []),
        ([True], "logger-not-listener", []),
    ],
    ids=["logger", "text", "bool", "list"],
)
def test_wrong_types_are_refused(tmp_path, only, code, shown):
    with raises_code(code, *shown):
        quiet(tmp_path / "run").metric_loggers(only=only)
