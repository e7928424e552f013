"""Two runs: what differs, and where their losses part."""

import dataclasses

import numpy as np
import pytest

from learner.runs import RunReader
from learner.runs.difference import difference
from tests.support.codes import raises_code
from tests.support.runs import STEPS, batches, build_line, quiet, shuffled

pytestmark = pytest.mark.usefixtures("compiled_once")


@pytest.fixture(scope="module")
def runs(tmp_path_factory, compiled_once):
    """Three runs by name; one has a wrong target in its fourth batch, and one another rate."""
    root = tmp_path_factory.mktemp("runs")
    spoilt = [dict(batch) for batch in batches()]
    spoilt[3]["t"] = spoilt[3]["t"] + 1
    for name, data, lr in (("a", batches(), 0.05), ("b", spoilt, 0.05), ("c", batches(), 0.1)):
        build_line(quiet(root / name).num_epochs(2), lr).fit(data)
    return lambda name: RunReader(root / name)


def test_a_run_is_as_itself(runs):
    found = difference(runs("a"), runs("a"))
    assert (found.steps, found.parting, found.settings, found.code) == (2 * STEPS, None, {}, {})
    assert found.lines() == ["train/Loss of 12 steps is the same"]


def test_data_that_was_changed(runs):
    """The loss of the fourth step is the first that sees it. No run records the values of all rows."""
    found = difference(runs("a"), runs("b"))
    assert found.parting.step == 4
    expected = [runs(name).steps("train/Loss").mean[3] for name in "ab"]
    assert found.parting.values == (expected[0], expected[1])
    assert found.settings == {}


def test_another_rate_parts_after_the_first_step(runs):
    found = difference(runs("a"), runs("c"))
    assert (found.parting.step, found.settings) == (2, {"lr": (0.05, 0.1)})
    assert "What differs: settings" in found.explanation


def test_a_tolerance_and_a_metric(runs):
    a, b = (runs(name).steps("train/Loss").mean for name in "ab")
    relative = np.abs(a - b) / np.maximum(np.abs(a), np.abs(b))
    assert (
        difference(runs("a"), runs("b"), tolerance=float(relative[3]) * 1.01).parting
        != difference(runs("a"), runs("b")).parting
    )
    assert difference(runs("a"), runs("b"), tolerance=2.0).parting is None
    with raises_code("run-metric-unknown", key="train/Los"):
        difference(runs("a"), runs("b"), "train/Los")


def test_a_metric_of_whole_splits_is_compared_where_it_was_measured(tmp_path):
    """Validations of two batches each, at steps 2, 4, 6 and 3, 6: of the batches nothing is compared."""
    for name, every, lr in (("a", 2, 0.05), ("b", 3, 0.1)):
        builder = quiet(tmp_path / name).valid_every(steps=every, epochs=0)
        build_line(builder, lr).fit(batches(), batches(8))
    a, b = (RunReader(tmp_path / name) for name in "ab")
    found = difference(a, b, "valid/Loss")
    expected = tuple(run.points("valid/Loss")[-1].value for run in (a, b))
    assert (found.steps, found.parting.step, found.parting.values) == (1, 6, expected)


def test_nothing_to_compare(tmp_path):
    """Step 5 of one run, and steps 3 and 6 of the other."""
    for name, every, steps in (("a", 5, 5), ("b", 3, 6)):
        builder = quiet(tmp_path / name).num_steps(steps).valid_every(steps=every, epochs=0)
        build_line(builder).fit(batches(), batches(8))
    with raises_code("run-metric-no-common-steps", key="valid/Loss"):
        difference(RunReader(tmp_path / "a"), RunReader(tmp_path / "b"), "valid/Loss")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"environment": {"jax": ("1", "2")}}, "Only the environment differs"),
        ({}, "Nothing that the runs recorded explains it"),
        ({"data": {"data.train.rows": (1, 2)}, "environment": {"jax": ("1", "2")}}, "What differs: data"),
    ],
)
def test_explanations(runs, changes, text):
    nothing = {"settings": {}, "data": {}, "code": {}, "environment": {}}
    found = dataclasses.replace(difference(runs("a"), runs("b")), **{**nothing, **changes})
    assert text in found.explanation


def test_a_shuffled_order_is_told(runs, tmp_path):
    build_line(quiet(tmp_path / "d").num_epochs(2)).fit(shuffled(seed=1))
    found = difference(runs("a"), RunReader(tmp_path / "d"))
    assert found.parting.step == 1
    assert "data.train.order" in found.data
