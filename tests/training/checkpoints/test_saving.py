"""Tests of saving: the loop, the reporter and the saver exchange messages without a deadlock."""

import errno
import os
import threading
import time
from types import SimpleNamespace

import pytest

from learner.checkpoint import CheckpointStore
from learner.checkpoint.best import BestSnapshot
from learner.checkpoint.save_queue import SaveQueue
from learner.errors import LearnerError
from learner.training.checkpoints.save_decisions import SaveDecisions
from learner.training.progress.position import Position
from tests.support.runs import batches, build_line, journal_of, quiet, saved_steps

pytestmark = pytest.mark.usefixtures("compiled_once")


@pytest.fixture
def slow_disk(monkeypatch):
    """Slow down saving, so that several saves are pending."""
    save = CheckpointStore.save

    def slowly(store, step, items, progress):
        time.sleep(0.05)
        save(store, step, items, progress)

    monkeypatch.setattr(CheckpointStore, "save", slowly)


def build(directory, **options):
    builder = quiet(directory).num_epochs(2).steps_per_dispatch(1)
    return build_line(builder.with_file_checkpointer(keep_last=99, every_steps=1, **options))


@pytest.mark.full
@pytest.mark.parametrize("keep_best", [pytest.param(0, marks=pytest.mark.full), 1])
def test_a_full_disk_waits_only_for_answered_saves(tmp_path, monkeypatch, slow_disk, keep_best):
    """The reporter waits for the saver before each line, and the saver waits for the reporter's answers."""
    write, attempts, waited, wait = os.write, [], [], SaveQueue.wait_for_answered

    def full_at_first(descriptor, content):
        if threading.current_thread().name == "learner-reporter":
            attempts.append(descriptor)
            if len(attempts) % 2:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, content)

    def counted(queue):
        waited.append(1)
        wait(queue)

    monkeypatch.setattr(os, "write", full_at_first)
    monkeypatch.setattr(SaveQueue, "wait_for_answered", counted)
    build(tmp_path / "run", keep_best=keep_best).fit(batches())
    assert len(waited) > 12
    assert saved_steps(tmp_path / "run") == list(range(1, 13))
    assert [entry["step"] for entry in journal_of(tmp_path / "run") if entry["event"] == "save"] == list(range(1, 13))


@pytest.mark.full
def test_each_checkpoint_has_the_log_offsets_of_its_step(tmp_path, slow_disk):
    """The loop and the reporter are already further when the checkpoint is written."""
    build(tmp_path / "run").fit(batches())
    store = CheckpointStore(tmp_path / "run" / "checkpoint")
    for step in range(1, 13):
        log = store.progress(step)["log"]
        epoch = (step - 1) // 6 + 1
        path = f"train/epoch-{epoch}/Loss.log"
        lines = (tmp_path / "run" / path).read_bytes()[: log["files"][path]].splitlines()
        assert len([line for line in lines if b"final" not in line]) == step - 6 * (epoch - 1)
        assert len(store.progress(step)["history"].get("train/Loss", [])) == step // 6


def test_a_reporter_that_fails_ends_the_run_with_saves_pending(tmp_path, monkeypatch, slow_disk):
    """The saver waits for answers of the reporter that will not come."""
    write, lines = os.write, []

    def broken(descriptor, content):
        if threading.current_thread().name == "learner-reporter":
            lines.append(content)
            if len(lines) > 5:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        return write(descriptor, content)

    monkeypatch.setattr(os, "write", broken)
    with pytest.raises((OSError, LearnerError)) as caught:
        build(tmp_path / "run").fit(batches())
    assert getattr(caught.value, "errno", None) == errno.EIO
    assert not [thread.name for thread in threading.enumerate() if thread.name == "learner-saver"]


def decided(score, at_stop):
    """Return the answer to a save of step 5 while a snapshot of step 3 with the score 0.5 is held."""
    best = BestSnapshot(higher_is_better=False, score=None, state_bytes=4)
    best.keep(SimpleNamespace(step=3, progress={"score": 0.5}))
    reporter = SimpleNamespace(halted=None, snapshot=lambda *_: "reported", score=lambda *_: score)
    composer = SimpleNamespace(monitor="valid/Loss", higher_is_better=False)
    return SaveDecisions(reporter, best, composer, "cpu").answer(Position(step=5), at_stop, with_rows=False), best


def test_a_better_checkpoint_supersedes_the_snapshot_unless_it_is_of_a_stop():
    """That of a stop is removed once the run has resumed."""
    answer, best = decided(0.4, at_stop=False)
    assert answer.best is None
    assert [best.improves(score) for score in (0.45, 0.35)] == [False, True]
    assert decided(0.4, at_stop=True)[0].best.step == decided(0.6, at_stop=False)[0].best.step == 3
