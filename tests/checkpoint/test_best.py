"""The best snapshot of a run, until it is written."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from learner import TrainState
from learner.checkpoint.best import MOST_UNDECIDED, UNDECIDED_BYTES, BestSnapshot, Snapshot


def snapshot(step, score, w=None):
    w = jnp.full(2, step, jnp.float32) if w is None else w
    state = TrainState(jnp.int32(step), {"w": w}, {}, (), jnp.float32(1), jax.random.key(step), {})
    return Snapshot(state, {"step": step, "score": score}, dict, {})


def best_of(higher_is_better=False, score=None, state_bytes=1):
    return BestSnapshot(higher_is_better, score, state_bytes)


@pytest.mark.parametrize(("higher", "better", "worse"), [(False, 0.4, 0.6), (True, 0.6, 0.4)])
def test_only_a_better_score_improves(higher, better, worse):
    best = best_of(higher, 0.5)
    assert [best.improves(score) for score in (better, 0.5, worse, None)] == [True, False, False, False]
    best.keep(snapshot(6, better))
    assert not best.improves(better)


def test_the_first_score_improves():
    assert best_of().improves(1e9)


def test_it_is_taken_once_and_dropped_when_it_is_written():
    best, held = best_of(), snapshot(6, 0.5)
    assert best.take() is None
    best.keep(held)
    assert best.waits()
    assert best.waits(6)
    assert not best.waits(12)
    assert best.take() is held
    assert best.take() is None
    assert not best.waits()
    best.written(6)
    best.failed(6)
    assert best.take() is None
    assert not best.improves(0.5)  # it is on the disk


def test_one_that_could_not_be_written_is_taken_again():
    best, held = best_of(), snapshot(6, 0.5)
    best.keep(held, writing=True)
    assert best.take() is None
    best.failed(12)
    assert best.take() is None
    best.failed(6)
    assert best.take() is held


def test_the_end_of_a_write_does_not_drop_a_better_one():
    best, better = best_of(), snapshot(12, 0.4)
    best.keep(snapshot(6, 0.5))
    best.take()
    best.keep(better)
    best.written(6)
    assert best.take() is better


@pytest.mark.parametrize(
    ("state_bytes", "copies"),
    [(0, MOST_UNDECIDED), (UNDECIDED_BYTES // 4, 4), (UNDECIDED_BYTES * 10, 1)],
)
def test_few_copies_of_a_large_state_wait_at_once(state_bytes, copies):
    best, calls = best_of(state_bytes=state_bytes), []
    for _ in range(copies):
        best.reserve(lambda: calls.append("full"))

    class FullError(Exception):
        pass

    def full():
        raise FullError

    with pytest.raises(FullError):  # rather than to wait for a worker that has failed
        best.reserve(full)
    best.release()
    best.reserve(full)
    assert calls == []


def test_a_snapshot_comes_back_from_the_host_as_it_was():
    devices = jax.devices()[:4]
    place = jax.sharding.NamedSharding(jax.make_mesh((4,), ("x",), devices=devices), jax.sharding.PartitionSpec("x"))
    given = snapshot(6, 0.5, jax.device_put(jnp.arange(8, dtype=jnp.bfloat16), place))
    moved = given.to_host()
    assert isinstance(moved.state.params["w"], np.ndarray)
    assert isinstance(moved.state.step, np.ndarray)
    back = moved.to_devices()
    assert back.state.params["w"].sharding == place
    assert back.state.params["w"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(back.state.params["w"], given.state.params["w"])
    assert jax.random.key_data(back.state.rng).tolist() == jax.random.key_data(given.state.rng).tolist()
    assert back.shardings is None
    assert given.to_devices() is given
