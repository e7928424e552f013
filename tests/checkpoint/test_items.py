"""Tests of the conversion of a train state to items, and back."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from learner import TrainState
from learner.checkpoint.items import (
    differences,
    escaped,
    flat,
    from_items,
    loaded_leaves,
    refuse_differences,
    root_key_of,
    stored_leaves,
    to_items,
    unescaped,
)
from learner.util.trees import key_impl
from tests.support.codes import raises_code
from tests.support.runs import bits


def state_of(fill):
    """Return a state with leaves of every kind, under names that are not file names."""
    leaf = lambda *shape, dtype=jnp.float32: jnp.full(shape, fill, dtype)  # noqa: E731
    return TrainState(
        step=leaf(dtype=jnp.int32),
        params={"layers": [{"w/b": leaf(2, 3)}, {"100%": leaf(1, dtype=jnp.bfloat16)}], "%2F": leaf(0, 4)},
        model_state={"count": leaf(dtype=jnp.uint8), "seen": leaf(3).astype(bool), "key": jax.random.key(fill)},
        opt_state=(leaf(2), [leaf(2, dtype=jnp.float16)], ()),
        lr_scale=leaf(),
        rng=jax.random.key(fill),
        extra={"ema": leaf(2)},
    )


def test_round_trip():
    saved, other = state_of(7), state_of(1)
    restored = from_items(to_items(saved), other)
    assert bits(dataclasses.replace(restored, rng=saved.rng)) == bits(saved)
    assert bits(restored.rng) == bits(other.rng)  # the root key is part of the progress
    assert jax.tree.structure(restored) == jax.tree.structure(saved)
    assert jax.random.key_impl(restored.model_state["key"]) == jax.random.key_impl(saved.model_state["key"])


def test_single_item():
    saved, other = state_of(7), state_of(1)
    restored = from_items({"model": to_items(saved)["model"]}, other)
    assert bits(restored.params) == bits(saved.params)
    assert bits(restored.model_state) == bits(saved.model_state)
    assert bits(restored.opt_state) == bits(other.opt_state)


def test_into_shapes():
    saved, place = state_of(7), jax.sharding.SingleDeviceSharding(jax.devices()[1])
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), state_of(1))
    needed = to_items(shapes)
    for name, x in flat(needed).items():
        there = flat(to_items(saved))[name]
        assert (x.shape, x.dtype, x.sharding) == (there.shape, there.dtype, place)
    restored = from_items(to_items(saved), shapes)
    assert bits(dataclasses.replace(restored, rng=saved.rng)) == bits(saved)
    assert restored.params["%2F"].sharding == place  # without elements, so it is in no checkpoint
    assert (restored.rng, key_impl(shapes.rng)) == (shapes.rng, jax.random.key_impl(saved.rng))
    alone = from_items({"model": needed["model"]}, shapes)
    assert alone.model_state["key"] is shapes.model_state["key"]


def test_names_are_flat_and_unique():
    items = to_items(state_of(7))
    assert set(items) == {"model", "optim", "scheduler"}
    assert set(items["model"]["params"]) == {"layers.0.w%2Fb", "layers.1.100%25"}  # not the one without elements
    assert not any("/" in name for parts in items.values() for leaves in parts.values() for name in leaves)


def test_a_model_that_is_one_array_has_a_name():
    state = dataclasses.replace(state_of(7), params=jnp.ones(2))
    items = to_items(state)
    assert list(items["model"]["params"]) == ["value"]
    other = dataclasses.replace(state_of(1), params=jnp.zeros(2))
    assert bits(from_items(items, other).params) == bits(state.params)


def shape(*shape, dtype=np.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


def test_every_difference_is_listed_in_one_error():
    saved = {
        "model/params/w": shape(3, 4),
        "model/params/b": shape(4),
        "optim/opt_state/mu": shape(2),
        "same": shape(1),
    }
    needed = {
        "model/params/w": shape(3, 8),
        "model/params/b": shape(4, dtype=np.int32),
        "new": shape(2),
        "same": shape(1),
    }
    with raises_code("checkpoint-model-differs", count=4) as error:
        refuse_differences(saved, needed, "the checkpoint runs/a/6")
    message = str(error.value)
    assert "the checkpoint runs/a/6" in message
    for line in (
        "model/params/w: saved float32[3, 4], now float32[3, 8]",
        "model/params/b: saved float32[4], now int32[4]",
        "optim/opt_state/mu: saved float32[2], now nothing",
        "new: saved nothing, now float32[2]",
    ):
        assert line in message
    assert "same" not in message


def test_a_long_list_is_cut():
    saved = {f"layer{i:02}": shape(1) for i in range(30)}
    with raises_code("checkpoint-model-differs", count=30) as error:
        refuse_differences(saved, {}, "it")
    assert "layer19" in str(error.value)
    assert "layer20" not in str(error.value)
    assert "and 10 more" in str(error.value)


def test_no_difference_is_no_error():
    leaves = flat(to_items(state_of(7)))
    assert leaves
    refuse_differences(leaves, flat(to_items(state_of(1))), "it")


# -- the root key ------------------------------------------------------------------------------------------------------


def progress_of(impl, named=True):
    key = jax.random.key(3, impl=impl)
    return {"root_key": jax.random.key_data(key).tolist()} | ({"key_impl": impl} if named else {})


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
@pytest.mark.parametrize("named", [True, False])
def test_root_key_is_restored(impl, named):
    key = root_key_of(progress_of(impl, named), jax.random.key(0, impl=impl))
    assert str(jax.random.key_impl(key)) == impl
    assert bits(key) == bits(jax.random.key(3, impl=impl))


@pytest.mark.parametrize(
    ("saved", "now", "named"),
    [("threefry2x32", "rbg", False), ("rbg", "threefry2x32", True), ("rbg", "unsafe_rbg", True)],
)
def test_keys_of_another_implementation_are_refused(saved, now, named):
    shape = jax.eval_shape(lambda: jax.random.key(0, impl=now))
    with raises_code("checkpoint-key-implementation", saved=saved, now=now):
        root_key_of(progress_of(saved, named), shape)


def test_names_survive_escaping():
    assert [unescaped(escaped(name)) for name in ("a/b", "a%2Fb", "%25")] == ["a/b", "a%2Fb", "%25"]


def test_keys_keep_their_implementation():
    tree = {"k": jax.random.key(0, impl="rbg")}
    assert loaded_leaves(stored_leaves(tree), tree)["k"].dtype == tree["k"].dtype


def test_only_streams_of_random_numbers_may_be_left_out():
    name = "model/model_state/a.key.value"
    assert len(differences({name: np.zeros(2, np.uint32)}, {name: np.zeros(4, np.uint32)})) == 1
    assert len(differences({name: np.zeros(2, np.float32)}, {})) == 1
