"""Tests of errors in the journal of a run that fails before it starts."""

import os
import time

import pytest

from learner.runs import RunReader
from tests.support.codes import raises_code
from tests.support.runs import build_line, journal_of, quiet, shuffled


def fit(directory, epochs):
    build_line(quiet(directory, saves=True).num_epochs(epochs).resume()).fit(shuffled())


@pytest.mark.parametrize("death", [False, True])
def test_a_refused_resume_leaves_status_and_time(tmp_path, death):
    """Otherwise the break before it would count as training. `death`: the run before has recorded no end."""
    fit(tmp_path / "run", 1)
    journal = tmp_path / "run" / "journal.jsonl"
    if death:
        *lines, end = journal.read_text().splitlines(keepends=True)
        assert '"end"' in end
        journal.write_text("".join(lines))
    before, run = journal.read_bytes(), RunReader(tmp_path / "run", now=time.time())
    log = tmp_path / "run" / "train" / "epoch-1" / "Loss.log"
    os.truncate(log, log.stat().st_size - 3)
    with raises_code("resume-log-changed"):
        fit(tmp_path / "run", 2)
    assert journal.read_bytes() == before
    assert "failed: LearnerError" in (tmp_path / "run" / "experiment.log").read_text()
    again = RunReader(tmp_path / "run", now=time.time() + 100)
    assert (again.status, again.seconds) == (run.status, run.seconds)


def test_a_refused_resume_creates_no_journal_in_place_of_a_lost_one(tmp_path):
    """A journal with the error alone would be that of a run that failed without an epoch."""
    fit(tmp_path / "run", 1)
    (tmp_path / "run" / "journal.jsonl").unlink()
    with raises_code("resume-log-changed"):
        fit(tmp_path / "run", 2)
    assert not (tmp_path / "run" / "journal.jsonl").exists()


def test_a_first_start_that_fails_is_recorded(tmp_path):
    """The run has no other status. The next attempt replaces it."""
    for text in ("one", "two"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("learner.training.session.describe", fails(text))
            with pytest.raises(RuntimeError, match=text):
                fit(tmp_path / "run", 1)
        assert str(RunReader(tmp_path / "run").status) == f"failed: RuntimeError('{text}')"
    fit(tmp_path / "run", 1)
    assert [entry["event"] for entry in journal_of(tmp_path / "run")][:3] == ["error", "error", "start"]
    assert str(RunReader(tmp_path / "run").status) == "ended: num_epochs"


def fails(text):
    def describe(*arguments):
        raise RuntimeError(text)

    return describe
