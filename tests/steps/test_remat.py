"""Tests of rematerialization: gradients, memory and policies."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import nnx

from learner import LearnerBuilder, LearnerError, Linen, RegressionOutput
from learner.steps.remat import REMAT, remat_name, remat_of
from tests.support.codes import raises_code
from tests.support.small_models import BATCH, CASES
from tests.support.stopped import some

WIDTH, DEPTH, ROWS = 32, 8, 64
_rng = np.random.default_rng(3)
WEIGHTS = {
    "up": (_rng.normal(size=(DEPTH, WIDTH, 2 * WIDTH)) / 8).astype(np.float32),
    "down": (_rng.normal(size=(DEPTH, 2 * WIDTH, WIDTH)) / 16).astype(np.float32),
}
DATA = {name: _rng.normal(size=(ROWS, WIDTH)).astype(np.float32) for name in ("x", "y")}


def layer(x, weights):
    return x + jax.nn.gelu(x @ weights["up"]) @ weights["down"], None


def deep(model, batch):
    """Run the layers in a loop."""
    return RegressionOutput.from_predictions(jax.lax.scan(layer, batch["x"], model)[0], batch["y"])


def deep_with_checkpoint(model, batch):
    """Run the layers in a loop with `jax.checkpoint` around each layer."""
    again = jax.checkpoint(layer, policy=jax.checkpoint_policies.nothing_saveable, prevent_cse=False)
    return RegressionOutput.from_predictions(jax.lax.scan(again, batch["x"], model)[0], batch["y"])


def jitted(model, batch):
    return jax.jit(deep)(model, batch)


def flat(model, batch):
    """Run the layers without a loop."""
    x = batch["x"]
    for index in range(DEPTH):
        x, _ = layer(x, jax.tree.map(lambda w, index=index: w[index], model))
    return RegressionOutput.from_predictions(x, batch["y"])


def build(tmp_path, policy, model=WEIGHTS, **steps):
    return LearnerBuilder(tmp_path / "run").remat(policy).build(model, optax.sgd, 1.0, **steps)


def temporary(learner):
    """Return the temporary memory of the compiled train step in bytes."""
    program = jax.jit(learner.train_step, donate_argnums=0).lower(jax.eval_shape(learner.init), DATA).compile()
    return program.memory_analysis().temp_size_in_bytes


@pytest.mark.full
def test_a_loop_needs_less_memory(tmp_path):
    """It needs as much as `jax.checkpoint` around each layer; keeping matrix products needs more."""
    nothing, dots = (temporary(build(tmp_path, p, train_step=deep)) for p in ("nothing_saveable", "dots_saveable"))
    everything = temporary(build(tmp_path, None, train_step=deep))
    by_hand = temporary(build(tmp_path, None, train_step=deep_with_checkpoint))
    assert nothing == by_hand
    assert 3 * nothing < everything
    assert nothing < dots < everything / 2
    assert temporary(build(tmp_path, "nothing_saveable", train_step=jitted)) == nothing


NAMED = jax.checkpoint_policies.save_only_these_names("hidden")
PAIRS = [*((deep, policy) for policy in (*REMAT, NAMED)), (jitted, NAMED), (flat, NAMED), (flat, REMAT[0])]
CHOSEN = [(deep, NAMED)]  # `test_a_loop_needs_less_memory` covers `jitted`


@pytest.mark.full
@pytest.mark.parametrize(("step", "policy"), some(PAIRS, CHOSEN))
def test_remat_does_not_change_gradients(tmp_path, step, policy):
    states = []
    for setting in (None, policy):
        learner = build(tmp_path, setting, train_step=step)
        states.append(jax.jit(learner.train_step)(learner.init(), DATA)[0].params)
    for name in WEIGHTS:
        np.testing.assert_allclose(states[1][name], states[0][name], rtol=1e-5, atol=1e-7)
        assert np.abs(states[0][name] - WEIGHTS[name]).max() > 1e-4


@pytest.mark.parametrize("case", some(CASES, [c for c in CASES if c.name == "linen"]), ids=str)
@pytest.mark.full
def test_remat_does_not_change_models_of_any_library(case, tmp_path):
    """The models have dropout, statistics and returned models; recomputation uses the same random numbers."""
    states = []
    for policy in (None, "dots_saveable"):
        learner = build(tmp_path, policy, case.make(), **case.steps)
        states.append(jax.jit(learner.train_step)(learner.init(), BATCH)[0])
    for a, b in zip(*map(jax.tree.leaves, ((s.params, s.model_state) for s in states)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    programs = [
        str(jax.make_jaxpr(build(tmp_path, p, case.make(), **case.steps).train_step)(states[0], BATCH))
        for p in (None, "dots_saveable")
    ]
    assert ["checkpoint" in text or "remat" in text for text in programs] == [False, True]


class Block(nnx.Module):
    def __init__(self, rngs):
        self.up, self.down = nnx.Linear(WIDTH, 64, rngs=rngs), nnx.Linear(64, WIDTH, rngs=rngs)

    def __call__(self, x):
        return x + self.down(nnx.gelu(self.up(x)))


class BatchBuffer(nnx.Module):
    """A model of blocks with stacked parameters, in a loop of nnx."""

    def __init__(self):
        make = nnx.split_rngs(splits=DEPTH)(nnx.vmap(Block, in_axes=0, out_axes=0))
        self.blocks = make(nnx.Rngs(0))

    def __call__(self, x):
        return nnx.scan(lambda x, block: block(x), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)(x, self.blocks)

    def train_step(self, batch):
        return RegressionOutput.from_predictions(self(batch["x"]), batch["y"])


class LinenBlock(nn.Module):
    @nn.compact
    def __call__(self, x, _):
        return x + nn.Dense(WIDTH)(nn.gelu(nn.Dense(64)(x))), None


def linen_stack():
    blocks = nn.scan(LinenBlock, variable_axes={"params": 0}, split_rngs={"params": True}, length=DEPTH)()
    return Linen(blocks, blocks.init(jax.random.key(0), DATA["x"], None))


def linen_step(model, batch):
    return RegressionOutput.from_predictions(model(batch["x"], None)[0], batch["y"])


STACKS = [(BatchBuffer, {}), (linen_stack, {"train_step": linen_step})]


@pytest.mark.full
@pytest.mark.parametrize(("make", "steps"), some(STACKS, STACKS[:1]))
def test_loops_of_the_libraries_are_rematerialized(tmp_path, make, steps):
    kept, again = (temporary(build(tmp_path, policy, make(), **steps)) for policy in (None, "nothing_saveable"))
    assert 2 * again < kept


def bucketed(step):
    """Return the step behind a search, which is a loop that computes only integers."""
    edges = jnp.linspace(-1, 1, 9)

    def search(model, batch):
        bucket = jnp.searchsorted(edges, batch["x"]).astype(jnp.float32)
        return step(model, {**batch, "x": batch["x"] + 0.01 * bucket})

    return search


def smoothed(step):
    """Return the step behind a small loop of floating-point numbers."""

    def mean(total, row):
        total = 0.9 * total + 0.1 * row
        return total, total

    def smooth(model, batch):
        rows = jax.lax.scan(mean, jnp.zeros(WIDTH), batch["x"])[1]
        return step(model, {**batch, "x": batch["x"] + rows})

    return smooth


def gelus(tmp_path, policy, step):
    """Return the number of gelus in the traced train step."""
    learner = build(tmp_path, policy, train_step=step)
    return str(jax.make_jaxpr(learner.train_step)(learner.init(), DATA)).count(" tanh ")


@pytest.mark.parametrize("around", [lambda step: step, bucketed, smoothed, lambda step: smoothed(bucketed(step))])
def test_an_unrelated_loop_does_not_replace_the_layers(tmp_path, around):
    """Each layer has one gelu, and a recomputed layer two. A loop of layers contains one layer."""
    assert gelus(tmp_path, None, around(flat)) == DEPTH
    assert gelus(tmp_path, "nothing_saveable", around(flat)) == 2 * DEPTH
    assert gelus(tmp_path, "nothing_saveable", around(deep)) == 2
    assert gelus(tmp_path, "nothing_saveable", around(jitted)) == 2


def test_a_loop_of_few_layers_is_wrapped_twice(tmp_path):
    """Its body is recomputed in the loop of the backward pass, and in the second forward pass of the whole model."""

    def mostly_flat(model, batch):
        first, rest = (jax.tree.map(lambda w, part=part: w[part], model) for part in (slice(2), slice(2, None)))
        x = jax.lax.scan(layer, batch["x"], first)[0]
        for index in range(DEPTH - 2):
            x, _ = layer(x, jax.tree.map(lambda w, index=index: w[index], rest))
        return RegressionOutput.from_predictions(x, batch["y"])

    assert gelus(tmp_path, None, mostly_flat) == 1 + DEPTH - 2
    assert gelus(tmp_path, "nothing_saveable", mostly_flat) == 3 + 2 * (DEPTH - 2)


# -- policies ----------------------------------------------------------------------------------------------------------


def test_every_policy_without_arguments_is_available_by_name():
    names = [name for name in dir(jax.checkpoint_policies) if not name.startswith("_")]
    available = []
    for name in names:
        try:
            assert remat_of(name) is getattr(jax.checkpoint_policies, name)
            available.append(name)
        except LearnerError as error:
            assert f"jax.checkpoint_policies.{name}(...)" in str(error)  # noqa: PT017
    assert set(REMAT) <= set(available)
    assert "save_only_these_names" not in available
    assert "checkpoint_dots" in available


@pytest.mark.parametrize("given", ["dots", "", 3, True, ["dots_saveable"]])
def test_unknown_policies_are_refused(given):
    with raises_code("step-remat-unknown", "'nothing_saveable'"):
        remat_of(given)


def test_policy_factories_are_refused():
    with raises_code("step-remat-policy-factory", name="save_only_these_names"):
        remat_of(jax.checkpoint_policies.save_only_these_names)


def test_policy_names():
    assert remat_name(jax.checkpoint_policies.checkpoint_dots) == "dots_saveable"
    assert remat_name(deep) == "deep"


def test_own_gradients_with_remat_are_refused(tmp_path):
    from learner import TrainOutput

    learner = build(tmp_path, "dots_saveable", train_step=lambda model, batch: TrainOutput(model, deep(model, batch)))
    with pytest.raises(LearnerError, match=r"remat is set, but train_step computes its own gradients"):
        learner.train_step(learner.init(), DATA)


def test_a_convolution_inside_remat_is_found(tmp_path):
    """On a CPU, programs with a convolution have no loop around them."""
    from learner.steps.program import has_convolution

    def step(model, batch):
        x = jax.lax.conv_general_dilated(
            batch["x"][..., None], model["w"], (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
        )
        return RegressionOutput.from_predictions(x[..., 0], batch["y"])

    learner = build(tmp_path, "dots_saveable", {"w": jnp.ones((3, 1, 1))}, train_step=step)
    assert has_convolution(jax.make_jaxpr(learner.train_step)(learner.init(), DATA).jaxpr)
