"""Where the time of a run went."""

import json

import pytest

from learner.reports.time_use import epoch_seconds, parts
from learner.runs import RunReader
from tests.support.written import write_run

SAID = {"total": 31.0, "compile": 4, "data": 0.5, "train": 20.0, "valid": 3.0, "save": 2.0, "other": 1.5}


def end(directory, event, seconds):
    with (directory / "journal.jsonl").open("a") as file:
        file.write(json.dumps({"event": event, "time": 1031.0, "seconds": seconds}) + "\n")


def test_of_all_resumes(tmp_path):
    directory = write_run(tmp_path / "a", ending=None)
    end(directory, "stop", SAID)
    end(directory, "end", {**SAID, "train": 5.0})
    end(directory, "save", SAID)
    assert parts(RunReader(directory)) == {"compile": 8, "data": 1, "train": 25, "valid": 6, "save": 4, "other": 3}


def test_older_runs_tell_none(tmp_path):
    assert parts(RunReader(write_run(tmp_path / "a"))) == {}


@pytest.mark.parametrize("said", [3, [1], {"train": "1"}, {"train": -1}, {"train": True}, {"train": 1e300}, {"x": 1}])
def test_what_is_no_time(tmp_path, said):
    directory = write_run(tmp_path / "a", ending=None)
    end(directory, "end", said)
    assert parts(RunReader(directory)) == {}


def test_epochs(tmp_path):
    """Breaks do not count."""
    directory = write_run(tmp_path / "a", ending="sigterm")
    with (directory / "journal.jsonl").open("a") as file:
        file.write('{"event": "start", "time": 5000.0, "epoch": 4, "step": 6}\n')
        file.write('{"event": "epoch", "time": 5007.0, "epoch": 4, "step": 8, "values": {"valid/Loss": 1.0}}\n')
    assert epoch_seconds(RunReader(directory)) == {1: 10, 2: 10, 3: 10, 4: 8}
    assert epoch_seconds(RunReader(write_run(tmp_path / "b", {}))) == {}
