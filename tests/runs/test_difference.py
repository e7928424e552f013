"""Tests of the difference of two runs: settings, data, and the step where a metric diverges."""

import dataclasses
import json
import shutil
import tracemalloc

import numpy as np
import pytest

from learner.runs import RunReader
from learner.runs.difference import difference, pair_lines
from learner.runs.thinning import Series
from tests.support.codes import raises_code
from tests.support.runs import STEPS, batches, build_line, quiet, shuffled

pytestmark = pytest.mark.usefixtures("compiled_once")


@pytest.fixture(scope="module")
def runs(tmp_path_factory, compiled_once):
    """Return three runs by name; one has a wrong target in its fourth batch, another a different learning rate."""
    root = tmp_path_factory.mktemp("runs")
    changed = [dict(batch) for batch in batches()]
    changed[3]["t"] = changed[3]["t"] + 1
    for name, data, lr in (("a", batches(), 0.05), ("b", changed, 0.05), ("c", batches(), 0.1)):
        build_line(quiet(root / name).num_epochs(2), lr).fit(data)
    return lambda name: RunReader(root / name)


@pytest.mark.full
def test_run_does_not_differ_from_itself(runs):
    result = difference(runs("a"), runs("a"))
    assert (result.steps, result.parting, result.settings, result.code) == (2 * STEPS, None, {}, {})
    assert result.lines() == ["train/Loss of 12 steps is the same"]


@pytest.mark.full
def test_changed_batch_diverges_at_its_step(runs):
    """The loss of step 4 is the first to use the changed batch. Runs do not record the values of rows, so no setting
    differs.
    """
    result = difference(runs("a"), runs("b"))
    assert result.parting.step == 4
    expected = [runs(name).steps("train/Loss").mean[3] for name in "ab"]
    assert result.parting.values == (expected[0], expected[1])
    assert result.settings == {}


def test_other_learning_rate_diverges_at_the_second_step(runs):
    result = difference(runs("a"), runs("c"))
    assert (result.parting.step, result.settings) == (2, {"lr": (0.05, 0.1)})
    assert "What differs: settings" in result.explanation


def test_tolerance_and_unknown_metric(runs):
    a, b = (runs(name).steps("train/Loss").mean for name in "ab")
    relative = np.abs(a - b) / np.maximum(np.abs(a), np.abs(b))
    assert (
        difference(runs("a"), runs("b"), tolerance=float(relative[3]) * 1.01).parting
        != difference(runs("a"), runs("b")).parting
    )
    close = difference(runs("a"), runs("b"), tolerance=2.0)
    assert close.parting is None
    assert close.explanation == "train/Loss of 12 steps is the same within the tolerance 2"
    with raises_code("run-metric-unknown", key="train/Los"):
        difference(runs("a"), runs("b"), "train/Los")


@pytest.mark.full
def test_validation_metric_is_compared_at_common_steps(tmp_path):
    """Validations run at steps 2, 4, 6 and at 3, 6, so that only step 6 is common."""
    for name, every, lr in (("a", 2, 0.05), ("b", 3, 0.1)):
        builder = quiet(tmp_path / name).valid_every(steps=every, epochs=0)
        build_line(builder, lr).fit(batches(), batches(8))
    a, b = (RunReader(tmp_path / name) for name in "ab")
    result = difference(a, b, "valid/Loss")
    expected = tuple(run.points("valid/Loss")[-1].value for run in (a, b))
    assert (result.steps, result.parting.step, result.parting.values) == (1, 6, expected)


@pytest.mark.full
def test_no_common_steps_is_an_error(tmp_path):
    """One run validates at step 5, the other at steps 3 and 6."""
    for name, every, steps in (("a", 5, 5), ("b", 3, 6)):
        builder = quiet(tmp_path / name).num_steps(steps).valid_every(steps=every, epochs=0)
        build_line(builder).fit(batches(), batches(8))
    with raises_code("run-metric-no-common-steps", key="valid/Loss"):
        difference(RunReader(tmp_path / "a"), RunReader(tmp_path / "b"), "valid/Loss")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"environment": {"jax": ("1", "2")}}, "Only the environment differs"),
        ({"environment": {"train step (not comparable)": ("1", "2")}}, "may hide a change of their code"),
        ({}, "Nothing that the runs recorded explains it"),
        ({"data": {"data.train.rows": (1, 2)}, "environment": {"jax": ("1", "2")}}, "What differs: data"),
    ],
)
def test_explanations(runs, changes, text):
    nothing = {"settings": {}, "data": {}, "code": {}, "environment": {}}
    result = dataclasses.replace(difference(runs("a"), runs("b")), **{**nothing, **changes})
    assert text in result.explanation


def test_order_of_shuffled_data_is_a_difference(runs, tmp_path):
    build_line(quiet(tmp_path / "d").num_epochs(2)).fit(shuffled(seed=1))
    result = difference(runs("a"), RunReader(tmp_path / "d"))
    assert result.parting.step == 1
    assert "data.train.order" in result.data


def test_the_optimizer_of_earlier_versions_is_compared(runs, tmp_path):
    """They recorded it as a text among the settings, and its own settings apart."""
    other = shutil.copytree(runs("a").directory, tmp_path / "other")
    start, *lines = (other / "journal.jsonl").read_text().splitlines()
    start = json.loads(start)
    start["config"]["optimizer"] = "sgd(momentum=0.9)"
    (other / "journal.jsonl").write_text("".join(line + "\n" for line in (json.dumps(start), *lines)))
    assert difference(runs("a"), RunReader(other)).settings == {}
    start["fingerprint"]["settings"]["optimizer"]["settings"]["momentum"] = "0.9"
    (other / "journal.jsonl").write_text("".join(line + "\n" for line in (json.dumps(start), *lines)))
    assert difference(runs("a"), RunReader(other)).settings == {"optimizer.momentum": (None, 0.9)}


@pytest.mark.parametrize("version", [None, "0"])
def test_train_steps_of_other_versions_are_not_comparable(runs, tmp_path, version):
    """The hashes alone do not show whether the code differs, too."""
    other = shutil.copytree(runs("a").directory, tmp_path / "other")
    start, *lines = (other / "journal.jsonl").read_text().splitlines()
    start = json.loads(start)
    start["fingerprint"]["programs"]["hashes"]["train"] = "another"
    if version is not None:
        start["environment"]["flax"] = start["fingerprint"]["programs"]["versions"]["flax"] = version
    (other / "journal.jsonl").write_text("".join(line + "\n" for line in (json.dumps(start), *lines)))
    result = difference(runs("a"), RunReader(other))
    if version is None:
        assert (list(result.code), list(result.environment)) == (["train step"], [])
    else:
        assert (list(result.code), list(result.environment)) == ([], ["flax", "train step (not comparable)"])


def test_long_values_are_shortened_and_stay_different():
    """Lists that begin and end alike are shown from shortly before their first difference."""
    before, after = [*range(3000)], [*range(1500), -1, *range(1501, 3000)]
    pairs = {"text": ("a" * 5000, "b" * 5000), "list": (before, after), "lr": (1, 2)}
    assert pair_lines({"settings": pairs}) == [
        f"settings  text  {'a' * 20}…{'a' * 19}  {'b' * 20}…{'b' * 19}",
        "settings  list  …, 1499, 1500, 1501,…, 2997, 2998, 2999]  …, 1499, -1, 1501, 1…, 2997, 2998, 2999]",
        f"settings    lr  {'1':>40}  {'2':>40}",
    ]


def test_long_runs_are_compared_in_little_memory(runs, monkeypatch):
    """Arrays need about 100 bytes per step, mappings 280."""
    count = 200_000
    values = np.zeros(count)
    series = Series(np.arange(1, count + 1), values, values, values)
    monkeypatch.setattr(RunReader, "steps", lambda self, key: series)
    pair = runs("a"), runs("b")
    assert difference(*pair).steps == count  # which reads the other files of both
    tracemalloc.start()
    try:
        difference(*pair)
        assert tracemalloc.get_traced_memory()[1] < 150 * count
    finally:
        tracemalloc.stop()
