"""Tests of the status line of the member of a sweep that trains."""

import io
import re
from pathlib import Path

from rich.console import Console

from learner.cli.sweeps.sweep_status import SweepStatus
from learner.events import EpochEnded, RunStarted, StepsEnded


def test_line_has_position_values_and_remaining_time():
    stream, now = io.StringIO(), iter(range(0, 100, 10))
    console = Console(file=stream, force_terminal=True, width=120, color_system=None)
    status = SweepStatus("3/8  002-lr=0.1", console, clock=lambda: next(now))
    status.on_event(RunStarted(0.0, Path("runs/a"), 4, None, 10, (), parameters=10, monitor="valid/Loss"))
    for step in (5, 10):
        status.on_event(StepsEnded(0.0, "train", 1, step - 4, 5, step, 10, step, {}, (), seconds=1.0))
    status.on_event(EpochEnded(0.0, 1, 10, {"train/Loss": 0.5, "valid/Loss": 0.25}, 2.0))
    status.close()
    last = stream.getvalue().rpartition("3/8  002-lr=0.1")[2]
    assert last.split("  ")[1:4] == ["epoch 1/4", "step 10/10", "valid Loss 0.25 | train Loss 0.5"]
    assert "s left" in last


def test_run_that_never_starts_draws_nothing():
    stream = io.StringIO()
    SweepStatus("1/2  a", Console(file=stream, force_terminal=True)).close()
    assert stream.getvalue() == ""


def test_long_line_fits_the_terminal():
    stream = io.StringIO()
    status = SweepStatus("1/2  " + "name" * 50, Console(file=stream, force_terminal=True, width=40, color_system=None))
    status.on_event(RunStarted(0.0, Path("runs/a"), 4, None, 10, (), parameters=10))
    status.close()
    names = [line for line in re.sub(r"\x1b\[[?0-9]*[A-Za-z]", "\n", stream.getvalue()).splitlines() if "name" in line]
    assert names
    assert all(len(line) <= 40 for line in names)
