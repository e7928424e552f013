"""Tests of the warning about state that valid steps carry."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from learner import LearnerBuilder, RegressionOutput
from learner.training.checks.step_checks import trace_valid
from learner.training.checks.validation_state import carried_state

BATCH = {"x": np.ones((4, 3), np.float32), "y": np.zeros(4, np.float32)}


class Model(nnx.Module):
    """A model with a state that it reads and writes, statistics that it only writes, and a counter."""

    def __init__(self, writes=("carry", "mean", "count")):
        self.layer, self.writes = nnx.Linear(3, 1, rngs=nnx.Rngs(0)), writes
        self.carry, self.mean = nnx.Variable(jnp.zeros(4)), nnx.BatchStat(jnp.zeros(()))
        self.count = nnx.Variable(jnp.array(0))

    def train_step(self, batch):
        out = self.layer(batch["x"])[:, 0] + jax.lax.stop_gradient(self.carry[...])
        if "carry" in self.writes:
            self.carry[...] = 0.5 * out
        if "mean" in self.writes:
            self.mean[...] = 0.9 * self.mean[...] + 0.1 * batch["x"].mean()
        if "count" in self.writes:
            self.count[...] += 1
        return RegressionOutput.from_predictions(out, batch["y"])

    valid_step = train_step


def functional(model, batch):
    out = batch["x"] @ model["w"] + model["carry"]
    return RegressionOutput.from_predictions(out, batch["y"]), {**model, "carry": out}


def carried(directory, model, **steps):
    trainable = (lambda path, _: path == "w") if steps else None
    learner = LearnerBuilder(directory).build(model, optax.sgd, 0.1, trainable=trainable, **steps)
    step, state = learner.definition.step, jax.eval_shape(learner.init)
    return carried_state(step, state, BATCH) if trace_valid(step, state, BATCH, "valid").changes_state else []


def test_state_that_a_valid_step_reads_and_changes_is_named(tmp_path):
    assert carried(tmp_path, Model()) == ["carry"]
    assert carried(tmp_path, Model(writes=("mean", "count"))) == []
    assert carried(tmp_path, Model(writes=())) == []


class Layers(nnx.Module):
    """Rematerialised layers in a loop, with statistics that a step either writes or reads."""

    def __init__(self):
        make = nnx.vmap(lambda rngs: nnx.BatchNorm(3, rngs=rngs), in_axes=0, out_axes=0)
        self.layers = make(nnx.Rngs(0).split(2))

    def __call__(self, x, update):
        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        def run(x, layer):
            return nnx.remat(lambda layer, x: layer(x, use_running_average=not update))(layer, x)

        return run(x, self.layers)[:, 0]


@pytest.mark.parametrize("update", [True, False])
def test_statistics_that_a_loop_only_writes_or_only_reads_are_not_named(tmp_path, update):
    def step(model, batch):
        return RegressionOutput.from_predictions(model(batch["x"], update), batch["y"])

    learner = LearnerBuilder(tmp_path).build(Layers(), optax.sgd, 0.1, train_step=step, valid_step=step)
    state = jax.eval_shape(learner.init)
    assert carried_state(learner.definition.step, state, BATCH) == []


class Adding(nnx.Module):
    """A model whose valid step adds variables, as decoders create a cache."""

    def __init__(self):
        self.attention = nnx.MultiHeadAttention(1, in_features=3, rngs=nnx.Rngs(0))

    def train_step(self, batch):
        out = self.attention(batch["x"][:, None], decode=False)
        return RegressionOutput.from_predictions(out.sum((1, 2)), batch["y"])

    def valid_step(self, batch):
        self.attention.init_cache((4, 1, 3))
        self.seen = nnx.Variable(batch["x"])
        out = self.attention(batch["x"][:, None], decode=True)
        return RegressionOutput.from_predictions(out.sum((1, 2)), batch["y"])


@pytest.mark.full
def test_a_valid_step_may_add_variables(tmp_path):
    assert carried(tmp_path, Adding()) == []
    builder = LearnerBuilder(tmp_path).renderer(None).with_file_checkpointer(None)
    builder.build(Adding(), optax.sgd, 0.1).fit([BATCH], [BATCH])


@pytest.mark.parametrize("jitted", [False, True])
def test_state_of_a_returned_model_is_named(tmp_path, jitted):
    model = {"w": jnp.ones(3), "carry": jnp.zeros(4)}
    step = jax.jit(functional) if jitted else functional
    assert carried(tmp_path, model, train_step=step, valid_step=step) == ["carry"]

    def same(model, batch):
        return functional(model, batch)[0], jax.jit(lambda x: x)(model)

    def other(model, batch):
        return functional(model, batch)[0], {**model, "cache": batch["x"]}

    assert carried(tmp_path, model, train_step=step, valid_step=same) == []
    assert carried(tmp_path, model, train_step=step, valid_step=other) == []


@pytest.mark.full
@pytest.mark.parametrize(("writes", "warned"), [(("carry",), True), (("count",), False)], ids=str)
def test_a_run_warns_about_carried_state(tmp_path, writes, warned):
    builder = LearnerBuilder(tmp_path).renderer(None).with_file_checkpointer(None).num_epochs(1)
    builder.build(Model(writes), optax.sgd, 0.1).fit([BATCH], [BATCH, BATCH])
    assert ("valid_step reads and changes carry" in (tmp_path / "experiment.log").read_text()) == warned
