"""Tests of the metadata of `Options`, which selects the records that contain an option."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest

from learner import LearnerBuilder
from learner.optimizers.schedule_resolution import OptimizerDefinition
from learner.training.checks.agreement import description
from learner.training.options import Options, option
from tests.support.runs import batches, build_line, journal_of

pytestmark = pytest.mark.usefixtures("compiled_once")


@dataclasses.dataclass(frozen=True)
class MoreOptions(Options):
    smoothing: float = option(0.0, journal="label_smoothing", resume="label smoothing")
    unrecorded: int = 0


class MoreBuilder(LearnerBuilder):
    def label_smoothing(self, value):
        return self._set(smoothing=value)


@pytest.fixture
def new_option(monkeypatch):
    monkeypatch.setattr("learner.builder.Options", MoreOptions)


def smoothed(directory, value):
    return build_line(MoreBuilder(directory).renderer(None).num_epochs(1).label_smoothing(value))


def test_a_new_option_is_in_the_journal(new_option, tmp_path):
    smoothed(tmp_path / "run", 0.1).fit(batches())
    config = journal_of(tmp_path / "run")[0]["config"]
    assert config["label_smoothing"] == 0.1
    assert "unrecorded" not in config


@pytest.mark.full
def test_resuming_compares_a_new_option(new_option, tmp_path):
    smoothed(tmp_path / "run", 0.1).fit(batches())
    builder = MoreBuilder(tmp_path / "run").renderer(None).num_epochs(2)
    build_line(builder.label_smoothing(0.2).resume()).fit(batches())
    assert "label smoothing: 0.1 -> 0.2" in (tmp_path / "run" / "experiment.log").read_text()


def test_processes_agree_on_a_new_option():
    shared = agreed(Options(Path("run"), seed=3))
    assert shared["seed"] == 3
    assert agreed(MoreOptions(Path("run"), seed=3, smoothing=0.1)) == {**shared, "label_smoothing": 0.1}


def agreed(options):
    step = SimpleNamespace(
        adapter=SimpleNamespace(params={}), optimizer=None, policy=None, matmul=None, remat=None, watch=None
    )
    inputs = SimpleNamespace(first_batches={})
    devices, optimizer = SimpleNamespace(description="one device"), OptimizerDefinition(None, 0.1)
    definition = SimpleNamespace(options=options, step=step, strategy=devices, optimizer=optimizer)
    fingerprint = {"settings": {"schedules": {}}, "programs": {}}
    return description(definition, inputs, True, {}, fingerprint)["options"]
