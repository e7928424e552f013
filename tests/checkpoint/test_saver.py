"""Tests of the thread that saves."""

import threading
import traceback
import types

import jax
import jax.numpy as jnp
import pytest

from learner import TrainState
from learner.checkpoint import Saver
from learner.checkpoint.best import Snapshot
from learner.checkpoint.save_queue import SaveQueue, SaveRequest


def snapshot(step, **further):
    one = jnp.float32(step)
    state = TrainState(jnp.int32(step), {"w": one}, {}, (), jnp.float32(1), jax.random.key(0), {})
    return Snapshot(state, {"step": step}, dict, further)


def request(*steps, answered=True, **further):
    pending = SaveRequest(lambda answer: [snapshot(step, **further) for step in steps])
    if answered:
        pending.answer.set_result(None)
    return pending


class Store:
    """A store that saves when it is released."""

    def __init__(self):
        self.saved = []
        self.begun = threading.Semaphore(0)
        self.allowed = threading.Semaphore(0)
        self.error = None

    def save(self, step, items, progress):
        self.begun.release()
        assert self.allowed.acquire(timeout=30)
        if self.error is not None:
            raise self.error
        self.saved.append((step, float(items["model"]["params"]["w"]), sorted(items)))


@pytest.fixture
def store():
    return Store()


@pytest.fixture
def done():
    return []


@pytest.fixture
def queue():
    return SaveQueue()


@pytest.fixture
def saver(store, queue, done):
    saver = Saver(store, queue, lambda snapshot, seconds: done.append((snapshot.step, seconds >= 0)))
    yield saver
    store.allowed.release(100)
    saver.close()


def submit(saver, step, **further):
    saver.submit(request(step, **further))


def test_saves_and_reports_in_order(store, saver, done):
    store.allowed.release(2)
    submit(saver, 5)
    submit(saver, 9, in_flight={"rows": {}})
    saver.close()
    items = ["model", "optim", "scheduler"]
    assert store.saved == [(5, 5.0, items), (9, 9.0, ["in_flight", *items])]
    assert done == [(5, True), (9, True)]


def test_the_caller_does_not_wait_for_the_disk(store, saver):
    submit(saver, 1)
    assert store.begun.acquire(timeout=30)
    submit(saver, 2)  # waits in the queue
    assert store.saved == []


def test_third_save_waits_for_the_first(store, saver):
    submit(saver, 1)
    assert store.begun.acquire(timeout=30)
    submit(saver, 2)
    third = threading.Thread(target=submit, args=(saver, 3))
    third.start()
    assert third.is_alive()
    store.allowed.release(3)
    third.join(timeout=30)
    saver.close()
    assert [step for step, *_ in store.saved] == [1, 2, 3]


def test_an_error_is_raised_later_with_its_own_traceback(store, saver, done):
    store.error = OSError(28, "No space left on device")
    store.allowed.release()
    submit(saver, 1)
    saver.close()
    with pytest.raises(OSError, match="No space left") as caught:
        saver.check()
    assert "save" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    with pytest.raises(OSError, match="No space left"):
        submit(saver, 2)
    assert done == []


def test_nothing_more_is_written_after_an_error(store, saver):
    store.error = OSError("first")
    submit(saver, 1)
    assert store.begun.acquire(timeout=30)
    submit(saver, 2)
    store.allowed.release(2)
    saver.close()
    assert store.saved == []
    assert not store.begun.acquire(blocking=False)
    with pytest.raises(OSError, match="first"):
        saver.check()


def test_error_while_reporting_a_save_is_raised(store):
    def broken(snapshot, seconds):
        raise RuntimeError("telling failed")

    saver = Saver(store, SaveQueue(), broken)
    store.allowed.release()
    submit(saver, 1)
    saver.close()
    with pytest.raises(RuntimeError, match="telling failed"):
        saver.check()


def test_closed_saver_rejects_requests_and_releases_waiters(store, saver):
    saver.close()
    with pytest.raises(RuntimeError, match="closed"):
        submit(saver, 5)
    saver.wait()
    assert store.saved == []


def test_the_snapshots_of_a_request_are_written_in_order(store, saver, done):
    store.allowed.release(2)
    saver.submit(request(3, 9))
    saver.wait()
    assert [step for step, _ in done] == [3, 9]


def test_an_answer_is_given_to_the_request(store, saver, done):
    store.allowed.release()
    pending = SaveRequest(lambda answer: [snapshot(answer)])
    saver.submit(pending)
    assert not store.begun.acquire(timeout=0.1)  # it waits for the answer
    pending.answer.set_result(7)
    saver.wait()
    assert [step for step, _ in done] == [7]


@pytest.mark.parametrize("fail", [lambda answer: answer.cancel(), lambda answer: answer.set_exception(OSError())])
def test_a_request_without_an_answer_is_dropped(store, saver, done, fail):
    """The error belongs to the thread that should have answered; later saves are written."""
    store.allowed.release()
    pending = request(1, answered=False)
    saver.submit(pending)
    submit(saver, 2)
    fail(pending.answer)
    saver.wait()
    saver.check()
    assert [step for step, _ in done] == [2]


def test_waiting_ignores_unanswered_saves(store, saver, queue, done):
    """The thread that answers waits here when the disk is full: otherwise it would wait for itself."""
    submit(saver, 1)
    assert store.begun.acquire(timeout=30)
    pending = request(2, answered=False)
    saver.submit(pending)
    waiter = threading.Thread(target=queue.wait_for_answered)
    waiter.start()
    waiter.join(timeout=0.1)
    assert waiter.is_alive()  # the first one is being written
    store.allowed.release(2)
    waiter.join(timeout=30)
    assert not waiter.is_alive()
    assert [step for step, _ in done] == [1]
    pending.answer.set_result(None)
    saver.wait()
    assert [step for step, _ in done] == [1, 2]


def test_waiting_loop_raises_other_errors(store, saver, monkeypatch):
    monkeypatch.setattr("learner.checkpoint.save_queue.POLL_SECONDS", 0.01)
    submit(saver, 1)
    submit(saver, 2)

    def check():
        raise OSError("a peer failed")

    with pytest.raises(OSError, match="a peer failed"):
        saver.submit(request(3), check)


def test_the_longest_save_is_measured_from_its_request(store, saver, monkeypatch):
    """The answer may take a while, and a stop has to include that time."""
    now = [100.0]
    stub = types.SimpleNamespace(monotonic=lambda: now[0], perf_counter=lambda: now[0])
    for module in ("saver", "save_queue"):
        monkeypatch.setattr(f"learner.checkpoint.{module}.time", stub)
    assert saver.longest == 0
    for seconds, longest in ((9, 9), (2, 9), (11, 11)):
        pending = request(1, answered=False)
        saver.submit(pending)
        now[0] += seconds
        store.allowed.release()
        pending.answer.set_result(None)
        saver.wait()
        assert saver.longest == pytest.approx(longest)
