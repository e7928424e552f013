"""Tests of the best snapshot of a run, until it is written."""

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


def test_best_is_popped_once():
    best, kept = best_of(), snapshot(6, 0.5)
    assert best.pop() is None
    best.keep(kept)
    assert best.is_pending()
    assert best.is_pending(6)
    assert not best.is_pending(12)
    assert best.pop() is kept
    assert best.pop() is None
    assert not best.is_pending()
    assert not best.improves(0.5)  # while it is about to be written


def test_failed_best_is_held_again():
    best, kept = best_of(), snapshot(6, 0.5)
    best.keep(kept)
    best.give_back(best.pop())
    assert best.pop() is kept
    best.give_back(snapshot(12, 0.6))
    assert best.pop() is None


def test_failed_checkpoint_that_is_the_best_is_held():
    best, written = best_of(), snapshot(12, 0.4)
    best.keep(snapshot(6, 0.5))
    best.supersede(12, 0.4)
    assert not best.is_pending()
    assert not best.improves(0.4)
    best.give_back(written)
    assert best.pop() is written


def test_a_write_that_fails_does_not_replace_a_better_one():
    best, better = best_of(), snapshot(12, 0.4)
    best.keep(snapshot(6, 0.5))
    first = best.pop()
    best.keep(better)
    best.give_back(first)
    assert best.pop() is better


def test_failed_best_on_devices_is_held_on_the_host():
    best = best_of()
    best.keep(snapshot(6, 0.5).to_host())
    kept = best.pop()
    best.give_back(kept.to_devices())
    assert best.pop() is kept


def test_candidates_come_in_order_and_end_their_reservation():
    best = best_of(state_bytes=UNDECIDED_BYTES)
    for copy in ("first", "second"):
        best.reserve(lambda: pytest.fail("the copy before has been decided about"))
        best.offer(copy)
        with best.candidate() as candidate:
            assert candidate == copy
    best.reserve(lambda: None)
    best.offer("third")
    with pytest.raises(OSError, match="broken"), best.candidate():
        raise OSError("broken")
    best.reserve(lambda: pytest.fail("a decision that failed is one"))


@pytest.mark.parametrize(
    ("state_bytes", "copies"),
    [(0, MOST_UNDECIDED), (UNDECIDED_BYTES // 4, 4), (UNDECIDED_BYTES * 10, 1)],
)
def test_number_of_waiting_copies_is_limited(state_bytes, copies):
    best, calls = best_of(state_bytes=state_bytes), []
    for _ in range(copies):
        best.reserve(lambda: calls.append("full"))

    class FullError(Exception):
        pass

    def full():
        raise FullError

    with pytest.raises(FullError):  # rather than waiting for a worker that has failed
        best.reserve(full)
    best.offer("copy")
    with best.candidate():
        pass
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
