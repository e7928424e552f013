"""The thread that saves."""

import threading
import traceback

import jax
import jax.numpy as jnp
import pytest

from learner import TrainState
from learner.checkpoint import Saver


def state_of(step):
    one = jnp.float32(step)
    return TrainState(jnp.int32(step), {"w": one}, {}, (), jnp.float32(1), jax.random.key(0), {})


class Store:
    """Takes what it is given, when it is allowed to."""

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
def saver(store, done):
    saver = Saver(store, lambda progress, seconds: done.append((progress["step"], seconds >= 0)))
    yield saver
    store.allowed.release(100)
    saver.close()


def submit(saver, step, **further):
    saver.submit(state_of(step), {"step": step}, further)


def test_saves_in_order_and_tells_of_each(store, saver, done):
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


def test_a_third_one_waits_until_the_first_is_done(store, saver):
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


def test_an_error_while_telling_of_a_save_is_raised_too(store):
    def broken(progress, seconds):
        raise RuntimeError("telling failed")

    saver = Saver(store, broken)
    store.allowed.release()
    submit(saver, 1)
    saver.close()
    with pytest.raises(RuntimeError, match="telling failed"):
        saver.check()


def test_a_closed_saver_takes_nothing_and_keeps_nobody_waiting(store, saver):
    saver.close()
    with pytest.raises(RuntimeError, match="closed"):
        submit(saver, 5)
    saver.wait()
    assert store.saved == []
