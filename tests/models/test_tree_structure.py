"""Tests of pytrees in which one variable of nnx is in several places."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from learner import (
    LearnerBuilder,
    Optimizer,
    Output,
    TrainOutput,
    eval_mode,
    load_checkpoint,
    load_model,
    save_model,
    value_and_grad,
)
from learner.models.adapters import adapter_of
from learner.models.params import with_parameters
from tests.support.codes import raises_code

DATA = [{"x": np.random.default_rng(i).normal(size=(4, 3)).astype(np.float32)} for i in range(3)]
RATE = 0.25


class Tied(nnx.Module):
    def __init__(self):
        self.encode = nnx.Linear(3, 3, use_bias=False, rngs=nnx.Rngs(0))
        self.decode = nnx.Linear(3, 3, use_bias=False, rngs=nnx.Rngs(1))
        self.decode.kernel = self.encode.kernel

    def loss(self, x):
        return ((self.decode(jnp.tanh(self.encode(x))) - x) ** 2).mean()


@pytest.fixture(scope="module")
def by_hand():
    """The kernel after SGD in which it is one array."""

    def loss(kernel, x):
        return ((jnp.tanh(x @ kernel) @ kernel - x) ** 2).mean()

    kernel = jnp.array(Tied().encode.kernel[...])
    for batch in DATA:
        kernel -= RATE * jax.grad(loss)(kernel, batch["x"])
    return kernel


def output(model, batch):
    return Output(model["net"].loss(batch["x"]))


def total(batch):
    return lambda model: output(model, batch).loss


def own(gradient):
    def step(model, batch) -> TrainOutput:
        loss, grads = gradient(total(batch))(model)
        return TrainOutput(grads, Output(loss))

    return step


def ours(model, batch) -> TrainOutput:
    result, grads = value_and_grad(output)(model, batch)
    return TrainOutput(grads, result)


STEPS = {
    "automatic": output,
    "value_and_grad": ours,
    "nnx": own(nnx.value_and_grad),
    "jax": own(jax.value_and_grad),
}
SGD = Optimizer(optax.sgd)


def assert_tied(model, kernel):
    net = model["net"]
    assert net.encode.kernel is net.decode.kernel
    np.testing.assert_allclose(net.encode.kernel[...], kernel, rtol=1e-6, atol=1e-6)


def in_place(model, batch, lr, rng):
    loss, grads = nnx.value_and_grad(lambda net: net.loss(batch["x"]))(model["net"])
    nnx.update(model["net"], jax.tree.map(lambda p, g: p - lr * g, nnx.state(model["net"], nnx.Param), grads))
    return model, Output(loss)


def by_optimizer(gradient):
    def update(model, batch, lr, rng):
        loss, grads = gradient(total(batch))(model)
        model, _ = SGD.step(lr, model, grads, SGD.init(model))
        return model, Output(loss)

    return update


UPDATES = {
    "in_place": in_place,
    "nnx": by_optimizer(nnx.value_and_grad),
    "jax": by_optimizer(jax.value_and_grad),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_train_step_trains_a_shared_variable_as_one(tmp_path, by_hand, name):
    builder = LearnerBuilder(tmp_path / "run").num_epochs(1).renderer(None).with_file_checkpointer()
    result = builder.build({"net": Tied()}, optax.sgd, RATE, train_step=STEPS[name]).fit(DATA)
    assert_tied(result.model, by_hand)
    assert_tied(load_checkpoint(tmp_path / "run", "latest", {"net": Tied()}).model, by_hand)


@pytest.mark.parametrize("name", UPDATES)
def test_an_update_trains_a_shared_variable_as_one(tmp_path, by_hand, name):
    builder = LearnerBuilder(tmp_path / "run").num_epochs(1).renderer(None)
    assert_tied(builder.build({"net": Tied()}, None, RATE, update=UPDATES[name]).fit(DATA).model, by_hand)


def test_a_module_under_two_names_stays_one(tmp_path, by_hand):
    layer = Tied().encode

    def step(model, batch):
        return Output(((model["b"](jnp.tanh(model["a"](batch["x"]))) - batch["x"]) ** 2).mean())

    builder = LearnerBuilder(tmp_path / "run").num_epochs(1).renderer(None)
    model = builder.build({"a": layer, "b": layer}, optax.sgd, RATE, train_step=step).fit(DATA).model
    assert model["a"].kernel is model["b"].kernel
    np.testing.assert_allclose(model["a"].kernel[...], by_hand, rtol=1e-6, atol=1e-6)


def test_a_step_that_separates_a_shared_variable_is_refused(tmp_path):
    def update(model, batch, lr, rng):
        loss, grads = jax.value_and_grad(total(batch))(model)
        return jax.tree.map(lambda p, g: p - lr * g, model, grads), Output(loss)

    builder = LearnerBuilder(tmp_path / "run").num_epochs(1).renderer(None)
    learner = builder.build({"net": Tied()}, None, RATE, update=update)
    paths = {"first": "net.decode.kernel.value", "second": "net.encode.kernel.value"}
    with raises_code("model-untied", **paths):
        learner.fit(DATA)


def test_copies_of_a_model_keep_a_variable_shared(tmp_path):
    model, ones = {"net": Tied()}, jnp.ones((3, 3))
    new = with_parameters(model, {"net": {"decode": {"kernel": {"value": ones}}}})
    assert_tied(new, ones)
    assert_tied(eval_mode(new), ones)
    save_model(tmp_path / "model.safetensors", new)
    assert_tied(load_model(tmp_path / "model.safetensors", model), ones)
    assert_tied(adapter_of(new).rebuild(adapter_of(new).params, {}), ones)


@pytest.mark.parametrize("pattern", ["encode", "decode"])
def test_a_shared_variable_is_frozen_by_its_first_path(tmp_path, pattern):
    builder = LearnerBuilder(tmp_path / "run").num_epochs(1).renderer(None).freeze(pattern)
    model = {"net": Tied(), "scale": jnp.ones(())}

    def step(model, batch):
        return Output(model["net"].loss(batch["x"]) * model["scale"])

    if pattern == "encode":
        with raises_code("freeze-second-path"):
            builder.build(model, optax.sgd, RATE, train_step=step)
        return
    result = builder.build(model, optax.sgd, RATE, train_step=step).fit(DATA)
    assert_tied(result.model, Tied().encode.kernel[...])
    assert result.model["scale"] < 1
