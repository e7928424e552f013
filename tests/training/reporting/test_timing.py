import json
import threading

import pytest

from learner.runs import RunReader
from learner.training.reporting.timing import PARTS, TimeBreakdown, format_breakdown
from tests.support.runs import batches, build_line, journal_of, quiet


class Times:
    """A fake clock, and fake totals of compilation."""

    now = compiled = 0.0

    def spent(self):
        return TimeBreakdown(lambda: self.compiled, lambda: self.now)


def test_the_parts_add_up_and_are_reported_once():
    times = Times()
    times.compiled = 0.5  # before the first step of the run
    spent = times.spent()
    assert spent.take_overhead() == 0.0
    times.compiled = 1.5
    spent.waited(idle=3.0, compiled=0.5)  # compiling took 0.5 of these seconds
    assert (spent.data, spent.take_overhead(), spent.take_overhead()) == (2.0, 3.0, 0.0)
    with spent.saving():
        times.now, times.compiled = 4.0, 2.0
    assert spent.save == 3.5
    parts = spent.split(20.0, {"train": 8.0, "valid": 1.0})
    assert parts == {
        "total": 20.0,
        "compile": 2.0,
        "data": 2.0,
        "train": 8.0,
        "valid": 1.0,
        "save": 3.5,
        "other": 3.5,
    }


def test_saving_during_steps_is_not_counted_separately():
    times = Times()
    spent = times.spent()
    with spent.saving():
        times.now += 5.0
    parts = spent.split(10.0, {"train": 8.0, "valid": 0.0})
    assert (parts["save"], parts["other"], parts["total"]) == (2.0, 0.0, 10.0)


def test_steps_during_compiling_are_not_counted_separately():
    times = Times()
    times.compiled = 4.0
    parts = times.spent().split(10.0, {"train": 7.0, "valid": 1.0})
    assert parts == {"total": 10.0, "compile": 4.0, "data": 0, "train": 6.0, "valid": 0, "save": 0, "other": 0}


def test_the_text_names_relevant_parts_only():
    seconds = {"total": 10.0, "compile": 0.0, "data": 0.04, "train": 7.0, "valid": 0.0, "save": 0.1, "other": 2.9}
    assert format_breakdown(seconds) == "train 7.0 s, save 0.1 s, other 2.9 s"


class Slow:
    """Data whose batches arrive late by the real clock."""

    def __init__(self, given, wait):
        self.given, self.wait = given, wait

    def __iter__(self):
        for batch in self.given:
            self.wait()
            yield batch


@pytest.mark.full
def test_a_run_logs_how_it_spent_its_time(tmp_path):
    late = Slow(batches() * 4, lambda: threading.Event().wait(0.02))
    result = build_line(quiet(tmp_path / "run").num_epochs(2).with_file_checkpointer()).fit(late, batches() * 50)
    (seconds,) = [line["seconds"] for line in journal_of(tmp_path / "run") if line["event"] == "end"]
    assert tuple(seconds) == ("total", *PARTS)
    assert sum(seconds[name] for name in PARTS) == pytest.approx(seconds["total"], rel=1e-3)
    assert seconds["data"] > 0.1  # of 0.96 s; some batches are read while programs compile
    assert seconds["compile"] > 0
    assert seconds["train"] > 0
    assert seconds["valid"] > 0
    assert RunReader(tmp_path / "run").time_parts == seconds
    assert "seconds" not in result.summary
    assert "seconds" not in json.loads((tmp_path / "run" / "summary.json").read_text())
    build_line(quiet(tmp_path / "run").num_epochs(3).with_file_checkpointer().resume()).fit(batches() * 4, batches())
    lines = [line["seconds"] for line in journal_of(tmp_path / "run") if line["event"] == "end"]
    assert RunReader(tmp_path / "run").time_parts["total"] == pytest.approx(sum(line["total"] for line in lines))
