import json
import os
import platform

import pytest

from learner.reports.live.watched import RunWatcher
from tests.support.written import write_run, write_steps

HELD = json.dumps({"host": platform.node(), "pid": os.getpid()})
VALUES = {
    "train/Loss": [0.9, 0.5, 0.4],
    "valid/Loss": [0.8, 0.6, 0.7],
    "train/Accuracy": [0.5, 0.7, 0.8],
    "valid/Confusion": ["4 1\n0 5"] * 3,
}


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Write two runs of three epochs with two steps each in `runs`, which are watched at the time 1100."""
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        directory = write_run(tmp_path / "runs" / name, VALUES, ending=None, lock=HELD)
        for epoch in (1, 2, 3):
            write_steps(directory, "Loss", epoch, [1 / epoch, 0.5 / epoch])
        (directory / "experiment.log").write_text("2026-11-22 08:00:00 INFO  start\n")
    return tmp_path / "runs"


@pytest.fixture
def watch():
    """Return a function that watches places, with a clock that stands at `now[0]`, and reads all of them."""

    def watch_places(*places, now=(1100.0,)):
        watched = RunWatcher(places, clock=lambda: now[0])
        watched.refresh()
        while watched.read(["Loss", "Accuracy"]):
            pass
        return watched

    return watch_places
