"""Tests of `evaluations.jsonl`, which any process may append to."""

import json

import pytest

from learner.events import MetricInfo
from learner.runs import evaluations
from learner.runs.evaluations import evaluated_steps, read_evaluations, record_evaluation
from tests.support.codes import raises_code

LOSS = MetricInfo("test", "Loss", "", False)


def record(directory, step, value, time=100.0, info=LOSS):
    record_evaluation(directory, step // 10, step, {info.key: value}, [info], time)


def test_later_value_of_a_checkpoint_counts(tmp_path):
    for step, value in ((20, 0.5), (10, 0.75), (20, 0.25)):
        record(tmp_path, step, value)
    assert [(e["step"], e["values"]["test/Loss"]) for e in read_evaluations(tmp_path)] == [(10, 0.75), (20, 0.25)]
    assert evaluated_steps(tmp_path, ["test"]) == {10, 20}
    assert evaluated_steps(tmp_path, ["other"]) == set()


def test_later_line_replaces_the_whole_split(tmp_path):
    both = [MetricInfo(f"test-{name}", "Loss", "", False) for name in ("clean", "noisy")]
    record_evaluation(tmp_path, 1, 10, {info.key: 0.5 for info in both}, both, 100.0)
    more = [both[0], MetricInfo("test-clean", "Accuracy", "", True)]
    record_evaluation(tmp_path, 1, 10, {info.key: 0.25 for info in more}, more, 200.0)
    values = [entry["values"] for entry in read_evaluations(tmp_path)]
    assert values == [{"test-clean/Loss": 0.25, "test-clean/Accuracy": 0.25}, {"test-noisy/Loss": 0.5}]
    assert evaluated_steps(tmp_path, ["test-clean", "test-noisy"]) == {10}
    assert evaluated_steps(tmp_path, ["test-clean", "test-other"]) == set()
    assert evaluated_steps(tmp_path, ["test"]) == set(), "test-clean is another split than test"


def test_torn_line_is_skipped(tmp_path):
    record(tmp_path, 10, 0.5)
    with (tmp_path / evaluations.NAME).open("a") as file:
        file.write('{"event": "evaluation", "ti')
    record(tmp_path, 20, float("nan"))
    with pytest.warns(UserWarning, match="line 2 is damaged"):
        assert [e["step"] for e in read_evaluations(tmp_path)] == [10, 20]


@pytest.mark.parametrize(
    "change",
    [
        {"values": {"Loss": 1}},
        {"values": [1]},
        {"step": -1},
        {"step": "1"},
        {"epoch": None},
        {"time": "now"},
        {"metrics": {"test/Loss": 1}},
        {"metrics": {"test/Loss": {"unit": "", "higher_is_better": "no"}}},
    ],
)
def test_malformed_line_is_skipped(tmp_path, change):
    record(tmp_path, 10, 0.5)
    entry = json.loads((tmp_path / evaluations.NAME).read_text())
    (tmp_path / evaluations.NAME).write_text(json.dumps({**entry, **change}) + "\n")
    with pytest.warns(UserWarning, match="line 1 is damaged"):
        assert read_evaluations(tmp_path) == []


STARTS = [{"event": "start", "time": 500.0, "step": 0}, {"event": "start", "time": 600.0, "step": 15}]


@pytest.mark.parametrize(("step", "stays"), [(5, False), (10, True)])
@pytest.mark.parametrize("began", [50.0, 700.0])
def test_later_start_before_the_checkpoint_invalidates_it(tmp_path, began, step, stays):
    """Whatever the clocks of the two processes show."""
    (tmp_path / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in STARTS))
    record(tmp_path, 10, 0.5)
    assert len(read_evaluations(tmp_path)) == 1
    journal = [*STARTS, {"event": "start", "time": began, "step": step}]
    assert len(read_evaluations(tmp_path, journal)) == stays


@pytest.mark.parametrize(("began", "step", "stays"), [(150.0, 5, False), (150.0, 10, True), (50.0, 5, True)])
def test_older_line_is_ordered_by_time(tmp_path, began, step, stays):
    record(tmp_path, 10, 0.5)
    path = tmp_path / evaluations.NAME
    path.write_text(path.read_text().replace(', "starts": 0', ""))
    journal = [{"event": "start", "time": began, "step": step}]
    assert len(read_evaluations(tmp_path, journal)) == stays


def test_link_is_neither_read_nor_written(tmp_path):
    (tmp_path / "target").touch()
    (tmp_path / evaluations.NAME).symlink_to(tmp_path / "target")
    with raises_code("run-file-kind"):
        record(tmp_path, 10, 0.5)
    assert read_evaluations(tmp_path) == []
    assert (tmp_path / "target").read_text() == ""
