"""Tests of pytrees in which one variable of nnx is in several places."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
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
    partition_params,
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
    assert "b.kernel.value is a.kernel.value" in (tmp_path / "run" / "experiment.log").read_text()
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


# -- what is not shared, and other containers --------------------------------------------------------------------------


@pytest.mark.parametrize("in_place", [False, True])
def test_the_state_of_an_optimizer_that_holds_the_first_parameters_is_apart(tmp_path, in_place):
    """Prodigy keeps the first parameters, which are the same objects. Expected: optax on an array."""
    optimizer, x, y = optax.contrib.prodigy(1.0), jnp.arange(8.0), 3 * jnp.arange(8.0)

    def loss_of(kernel):
        return ((kernel * x - y) ** 2).mean()

    @jax.jit
    def step_by_hand(kernel, state):
        with jax.numpy_dtype_promotion("standard"):  # as the optimizer needs
            updates, state = optimizer.update(jax.grad(loss_of)(kernel), state, kernel)
        return optax.apply_updates(kernel, updates), state

    kernel = jnp.float32(1)
    state = optimizer.init(kernel)
    for _ in range(8):
        kernel, state = step_by_hand(kernel, state)

    def update(state, batch, lr, rng):
        loss, grads = jax.value_and_grad(lambda net: loss_of(net.kernel[...]))(state["net"])
        with jax.numpy_dtype_promotion("standard"):
            updates, opt = optimizer.update(grads, state["opt"], state["net"])
        new = optax.apply_updates(state["net"], updates)
        if in_place:
            nnx.update(state["net"], nnx.state(new))
            new = state["net"]
        return {"net": new, "opt": opt}, Output(loss)

    net = nnx.Dict(kernel=nnx.Param(jnp.float32(1)))
    builder = LearnerBuilder(tmp_path / "run").num_epochs(8).renderer(None)
    learner = builder.build({"net": net, "opt": optimizer.init(net)}, None, 0.0, update=update)
    result = learner.fit([{"x": x}])
    np.testing.assert_allclose(result.model["net"].kernel[...], kernel, rtol=1e-5)
    assert abs(kernel - 1) > 1e-5


def test_gradients_of_a_part_by_another_place_update_the_variable():
    kernel = nnx.Param(jnp.ones(2))
    model = {"a": nnx.Dict(kernel=kernel, other=nnx.Param(jnp.ones(1))), "b": nnx.Dict(kernel=kernel)}
    grads = jax.grad(lambda model: (3 * model["a"].kernel + 4 * model["b"].kernel).sum())(model)
    for chosen, gradient in ((["b"], 4), (["a.kernel"], 3), (["a.kernel", "b"], 7)):
        part, _ = partition_params(grads, *chosen)
        new, _ = SGD.step(1.0, model, part, SGD.init(partition_params(model, "a.kernel")[0]))
        np.testing.assert_array_equal(new["a"].kernel[...], 1 - gradient * np.ones(2))
        assert new["a"].kernel is new["b"].kernel
    replaced = with_parameters(model, {"b": {"kernel": {"value": jnp.zeros(2)}}})
    np.testing.assert_array_equal(replaced["a"].kernel[...], np.zeros(2))


def test_trees_of_equinox_and_nnx_keep_both():
    shared = nnx.BatchNorm(2, rngs=nnx.Rngs(0))
    given = {"drop": eqx.nn.Dropout(0.5), "a": shared, "b": shared, "rngs": nnx.Rngs(1)}
    adapter = adapter_of(given)
    model = adapter.merge(adapter.params, adapter.model_state, jax.random.key(0), train=True)
    assert model["a"].mean is model["b"].mean
    assert (model["drop"].inference, model["a"].use_running_average) == (False, False)
    assert 0 <= float(model["rngs"].uniform()) < 1
    evaluated = eval_mode(given)
    assert evaluated["a"].mean is evaluated["b"].mean
    assert (evaluated["drop"].inference, evaluated["a"].use_running_average) == (True, True)
    assert not given["a"].use_running_average


def test_variables_outside_of_modules_keep_their_kinds():
    adapter = adapter_of({"w": nnx.Param(jnp.ones(2)), "mean": nnx.BatchStat(jnp.zeros(2))})
    assert list(adapter.model_state) == ["mean.value"]


class Opaque(nnx.Module, pytree=False):
    def __init__(self):
        self.kernel = nnx.Param(jnp.ones(2))


def test_modules_that_jax_does_not_traverse_are_refused():
    assert list(adapter_of(Opaque()).params) == ["kernel"]
    with raises_code("model-module-opaque", "Opaque", place="net"):
        adapter_of({"net": Opaque(), "w": jnp.ones(2)})


def test_parameters_of_equal_paths_are_replaced_elsewhere():
    tree = {"a.b": jnp.ones(1), "a": {"b": jnp.ones(1)}, "c": jnp.ones(1)}
    assert with_parameters(tree, {"c": jnp.zeros(1)})["c"] == 0
