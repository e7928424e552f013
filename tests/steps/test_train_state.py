"""Tests of `TrainState`: a pytree with named leaves and unshared arrays."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest

from learner import LearnerBuilder, TrainState
from learner.util.trees import named_leaves, path_name
from tests.support.runs import line, regression_step
from tests.support.small_models import CASES
from tests.support.stopped import some


def build(model, optimizer=optax.adamw, lr=0.1, seed=0, **steps):
    return LearnerBuilder("unused").seed(seed).build(model, optimizer, lr, **steps)


def test_a_state_is_a_pytree_of_its_fields():
    state = TrainState(*(jnp.float32(i) for i in range(6)), {"ema": {"w": jnp.float32(6)}})
    assert [int(x) for x in jax.tree.leaves(state)] == list(range(7))
    doubled = jax.tree.map(lambda x: 2 * x, state)
    assert isinstance(doubled, TrainState)
    assert doubled.extra["ema"]["w"] == 12
    assert list(named_leaves(state)) == [
        "step",
        "params",
        "model_state",
        "opt_state",
        "lr_scale",
        "rng",
        "extra.ema.w",
    ]
    with pytest.raises(dataclasses.FrozenInstanceError):
        state.step = 1


def test_leaves_have_dotted_names():
    tree = {"layers": [{"kernel": 1, "bias": 2}, (3,)], "opt": optax.ScaleState(), "count": optax.EmptyState()}
    assert named_leaves(tree) == {"layers.0.bias": 2, "layers.0.kernel": 1, "layers.1.0": 3}
    assert named_leaves(5) == {"": 5}
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path({"a": {1: 2}})]
    assert path_name(paths[0]) == "a.1"


@pytest.mark.full
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_first_state_has_strongly_typed_unshared_arrays(case):
    """A shared buffer could not be donated, and a weak type would compile another program."""
    model = case.make()
    state = build(model, **case.steps).init()
    leaves = [x for x in jax.tree.leaves(state) if x is not state.rng]
    assert all(isinstance(x, jax.Array) and not x.weak_type for x in leaves)
    places = [x.unsafe_buffer_pointer() for x in leaves]
    assert len(set(places)) == len(places)
    given = [x for x in jax.tree.leaves(model) if isinstance(x, jax.Array) and x.dtype in (jnp.float32, jnp.int32)]
    assert given or case.name == "linen"
    assert not {x.unsafe_buffer_pointer() for x in given} & set(places)


@pytest.mark.parametrize("name", some(["cocob", "dog", "dowg", "madgrad", "prodigy"], {"cocob", "prodigy"}))
def test_states_of_optimizers_with_shared_arrays_can_be_donated(name):
    model = line(3, 2, bias=False, value=1.0)
    optimizer = getattr(optax.contrib, name)
    held = jax.tree.leaves((model, optimizer(0.1).init(model)))
    assert len({id(x) for x in held}) < len(held)
    learner = build(model, optimizer, train_step=regression_step)
    step = jax.jit(learner.train_step, donate_argnums=0)
    batch = {"x": np.ones((4, 3), np.float32), "y": np.zeros((4, 2), np.float32)}
    state, _ = step(learner.init(), batch)
    state, values = step(state, batch)
    assert np.isfinite(values["Loss"])
    assert (model["w"] == 1).all()


def test_the_first_state():
    model = {"w": np.full((3, 2), 0.5), "n": np.int64(4), "table": np.arange(3)}
    state = build(model, lr=0.25, seed=9, train_step=regression_step).init()
    assert (state.step, state.step.dtype) == (0, jnp.int32)
    assert (state.lr_scale, state.lr_scale.dtype) == (0.25, jnp.float32)
    assert jax.random.key_data(state.rng).tolist() == jax.random.key_data(jax.random.key(9)).tolist()
    assert {name: leaf.tolist() for name, leaf in state.extra.items()} == {"nonfinite": [0, 0, 0, 0]}
    np.testing.assert_array_equal(state.params["w"], np.full((3, 2), 0.5))
    assert state.params["w"].dtype == jnp.float32  # JAX converts to 32 bits
    assert list(state.model_state) == ["table"]
    expected = optax.adamw(0.25).init({"w": jnp.zeros((3, 2))})
    assert jax.tree.structure(state.opt_state) != jax.tree.structure(())
    assert [x.shape for x in jax.tree.leaves(state.opt_state)] == [x.shape for x in jax.tree.leaves(expected)]


def test_each_init_returns_new_arrays():
    learner = build(line(3, 2, bias=False, value=1.0), train_step=regression_step)
    one, two = learner.init(), learner.init()
    jax.tree.map(np.testing.assert_array_equal, one.params, two.params)
    batch = {"x": np.ones((4, 3), np.float32), "y": np.zeros((4, 2), np.float32)}
    jax.jit(learner.train_step, donate_argnums=0)(one, batch)
    assert one.params["w"].is_deleted()
    assert not two.params["w"].is_deleted()


def test_init_can_be_evaluated_abstractly():
    learner = build(line(3, 2, bias=False, value=1.0), train_step=regression_step)
    shapes = jax.eval_shape(learner.init)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), shapes) == jax.tree.map(
        lambda x: (x.shape, x.dtype), learner.init()
    )
