"""Tests of `Optimizer`: updates of parts of a model, against optax."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from learner import Optimizer, partition_params, trainable_params
from learner.util.trees import named_leaves
from tests.support.codes import raises_code
from tests.support.small_models import Everything, make_linen
from tests.support.stopped import some

PARAMS = {"a": {"w": jnp.float32([1, 2]), "b": jnp.float32([3])}, "c": jnp.float32([[4, 5]])}
GRADS = {"a": {"w": jnp.float32([0.5, -1]), "b": jnp.float32([2])}, "c": jnp.float32([[-0.25, 1]])}
OPTIMIZERS = {
    "sgd": optax.sgd,
    "adamw": partial(optax.adamw, weight_decay=0.1),
    "clipped": lambda lr: optax.chain(optax.clip_by_global_norm(1.0), optax.adam(lr)),
    "lion": optax.lion,
    "adafactor": optax.adafactor,
    "schedule_free": optax.contrib.schedule_free_sgd,
    "masked": lambda lr: optax.adamw(lr, mask=lambda params: jax.tree.map(lambda p: p.ndim > 1, params)),
}


def standard():
    """Return contexts that allow optax to mix dtypes and ranks."""
    return jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow")


def by_optax(make, rates, params, grads):
    """Return the parameters after steps with these rates, each with an optax optimizer of a fixed rate."""
    one, two = standard()
    with one, two:
        state = make(rates[0]).init(params)
        for rate in rates:
            updates, state = make(rate).update(grads, state, params)
            params = optax.apply_updates(params, updates)
    return params


def close(got, expected):
    got, expected = named_leaves(got), named_leaves(expected)
    assert list(got) == list(expected)
    for name, x in expected.items():
        np.testing.assert_allclose(got[name], x, rtol=1e-6, atol=1e-7, err_msg=name)


@pytest.mark.parametrize("name", some(OPTIMIZERS, {"sgd", "adamw"}))
def test_all_parameters_with_changing_rates(name):
    opt, params = Optimizer(OPTIMIZERS[name]), PARAMS
    state = opt.init(params, lr=0.1)
    for rate in (0.1, 0.03):
        params, state = opt.step(rate, params, GRADS, state)
    close(params, by_optax(OPTIMIZERS[name], (0.1, 0.03), PARAMS, GRADS))


@pytest.mark.full
@pytest.mark.parametrize("name", some(["adamw", "clipped"], {"clipped"}))
def test_two_parts_with_different_rates(name):
    """Each part equals optax on that part alone; clipping uses the norm of the part."""
    opt = Optimizer(OPTIMIZERS[name])
    part, rest = partition_params(GRADS, "a.b", "c")
    of_part, of_rest = partition_params(PARAMS, "a.b", "c")
    states, params = [opt.init(of_part), opt.init(of_rest)], PARAMS

    @jax.jit
    def step(params, states):
        params, one = opt.step(0.2, params, part, states[0])
        params, two = opt.step(jnp.float32(0.01), params, rest, states[1])
        return params, [one, two]

    for _ in range(2):
        params, states = step(params, states)
    expected = by_optax(
        OPTIMIZERS[name], (0.2, 0.2), {"b": PARAMS["a"]["b"], "c": PARAMS["c"]}, {"b": GRADS["a"]["b"], "c": GRADS["c"]}
    )
    close({"b": params["a"]["b"], "c": params["c"]}, expected)
    close(params["a"]["w"], by_optax(OPTIMIZERS[name], (0.01, 0.01), PARAMS["a"]["w"], GRADS["a"]["w"]))
    assert not any("w" in name for name in named_leaves(states[0]))


@pytest.mark.parametrize("make", [Everything, make_linen])
def test_an_updated_model_is_a_new_one(make):
    model, opt = make(), Optimizer(optax.sgd)
    params = trainable_params(model)
    head, _ = partition_params(jax.tree.map(jnp.ones_like, params), "head")
    after, _ = opt.step(0.5, model, head, opt.init(partition_params(model, "head")[0]))
    before, now = named_leaves(params), named_leaves(trainable_params(after))
    for name, x in before.items():
        np.testing.assert_array_equal(now[name], x - 0.5 if name.startswith("head") else x)
    close(trainable_params(model), params)


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: {"net": x}], ids=["module", "dict of a module"])
def test_gradients_in_the_state_of_nnx_are_accepted(wrap):
    model, opt = nnx.Linear(2, 1, rngs=nnx.Rngs(0)), Optimizer(optax.sgd)
    grads = nnx.grad(lambda model: model(jnp.float32([[2, 3]])).sum())(model)  # the inputs
    new, _ = opt.step(0.5, wrap(model), wrap(grads), opt.init(wrap(model)))
    old, new = model.kernel[...], jax.tree.leaves(new)[1]
    np.testing.assert_allclose(new, old - jnp.float32([[1], [1.5]]), rtol=1e-6)


def test_a_full_state_with_partial_gradients_is_refused():
    opt = Optimizer(optax.adam)
    part, _ = partition_params(GRADS, "a.b")
    with raises_code("optimizer-state-mismatch", "a.b") as error:
        opt.step(0.1, PARAMS, part, opt.init(PARAMS))
    text = str(error.value)
    assert "too much: 0.mu.a.w, 0.mu.c, 0.nu.a.w, 0.nu.c" in text
    assert 'opt_state = opt.init(partition_params(params, "a.b")[0])' in text
    part, _ = partition_params(GRADS, "a")
    with raises_code("optimizer-state-mismatch", 'opt.init(partition_params(params, "a")[0])'):
        opt.step(0.1, PARAMS, part, opt.init(PARAMS))
    with raises_code("optimizer-state-mismatch", "0.mu.c", "0.nu.c"):
        opt.step(0.1, PARAMS, GRADS, opt.init(part))


def test_arguments_in_another_order_are_refused():
    opt = Optimizer(optax.sgd)
    with raises_code("optimizer-rate-type", "dict"):
        opt.step(PARAMS, GRADS, opt.init(PARAMS), 0.1)
    with raises_code("optimizer-gradients-missing"):
        opt.step(0.1, PARAMS, opt.init(PARAMS), GRADS)


def test_gradients_of_other_parameters_are_refused():
    opt = Optimizer(optax.sgd)
    wrong = {"a": {"w": jnp.ones(3), "bb": jnp.ones(1)}}
    with raises_code("optimizer-gradients-mismatch", "2") as error:
        opt.step(0.1, PARAMS, wrong, opt.init(PARAMS))
    assert "the gradient of a.w is [3], and a.w is [2]" in str(error.value)
    assert "a gradient of a.bb, which is not a parameter: did you mean 'a.b'" in str(error.value)


@pytest.mark.parametrize(
    ("rate", "code", "values"),
    [
        (-0.1, "optimizer-rate-value", ("-0.1",)),
        (float("nan"), "optimizer-rate-value", ("nan",)),
        ("fast", "optimizer-rate-value", ("'fast'",)),
        (jnp.ones(2), "optimizer-rate-shape", ("[2]",)),
        (
            optax.linear_schedule(1.0, 0.0, 10),
            "optimizer-rate-is-function",
            ("schedule",),
        ),
    ],
)
def test_invalid_rates_are_refused(rate, code, values):
    opt = Optimizer(optax.sgd)
    with raises_code(code, *values):
        opt.step(rate, PARAMS, GRADS, opt.init(PARAMS))


def test_unusable_optimizers_are_refused():
    for wrong in (optax.adam(1e-3), "adam", lambda lr: 3):
        with raises_code("optimizer-unusable", "pass the function"):
            Optimizer(wrong)


@pytest.mark.full
def test_a_state_that_depends_on_the_rate_needs_one():
    opt = Optimizer(optax.rprop)
    with raises_code("optimizer-rate-needed"):
        opt.init(PARAMS)
    params, _ = opt.step(0.1, PARAMS, GRADS, opt.init(PARAMS, lr=0.1))
    close(params, by_optax(optax.rprop, (0.1,), PARAMS, GRADS))


def test_optimizers_that_use_the_loss_need_it():
    opt = Optimizer(optax.polyak_sgd)
    state = opt.init(PARAMS)
    with raises_code("optimizer-loss-needed"):
        opt.step(1.0, PARAMS, GRADS, state)
    params, _ = opt.step(1.0, PARAMS, GRADS, state, loss=jnp.float32(0.3))
    norm = sum(float((g**2).sum()) for g in jax.tree.leaves(GRADS))
    close(params, jax.tree.map(lambda p, g: p - g * np.float32(0.3 / norm), PARAMS, GRADS))


@pytest.mark.full
def test_a_line_search_changes_only_its_part():
    opt = Optimizer(optax.lbfgs)
    params = {"w": jnp.float32([3.0, -2.0]), "other": jnp.ones(1)}

    def loss(params):
        return jnp.square(params["w"]).sum()

    part, _ = partition_params(params, "w")
    state = opt.init(part)
    value, grads = jax.value_and_grad(loss)(part)
    params, _ = opt.step(1.0, params, grads, state, loss=value, value_fn=loss)
    assert float(loss(params)) < float(value)
    assert params["other"].tolist() == [1]


@pytest.mark.full
def test_private_updates_from_gradients_of_each_example_equal_optax():
    def private(lr):
        aggregate = optax.contrib.differentially_private_aggregate(0.5, 0.1, jax.random.key(3))
        return optax.chain(aggregate, optax.sgd(lr))

    def loss(params, x):
        return jnp.square(params["w"] @ x - 1).sum() + params["b"].sum() * x.sum()

    params = {"w": jnp.ones((3, 2)), "b": jnp.zeros(4)}
    x = jnp.asarray(np.random.default_rng(0).normal(size=(5, 2)), jnp.float32)
    grads = jax.vmap(jax.grad(loss), (None, 0))(params, x)
    one, two = standard()
    with one, two:
        updates, expected = private(0.5).update(grads, private(0.5).init(params), params)
    opt = Optimizer(private)
    after, opt_state = opt.step(0.5, params, grads, opt.init(params))
    close(after, optax.apply_updates(params, updates))
    assert (jax.random.key_data(opt_state[0].rng_key) == jax.random.key_data(expected[0].rng_key)).all()
    part, _ = partition_params(grads, "w")
    after, _ = opt.step(0.5, params, part, opt.init(partition_params(params, "w")[0]))
    assert (after["w"] != 1).all()
    assert after["b"].tolist() == [0] * 4
    with raises_code("optimizer-gradients-mismatch"):
        Optimizer(optax.adam).step(0.5, params, grads, opt_state)
    with raises_code("optimizer-needs-each-gradient"):
        opt.step(0.5, params, {"w": grads["w"], "b": jnp.zeros(4)}, opt_state)
