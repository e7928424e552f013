"""Tests of `value_and_grad` against each model's library, and of `GradientsAccumulator`."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from learner import (
    GradientsAccumulator,
    LearnerBuilder,
    RegressionOutput,
    TrainOutput,
    trainable_params,
    value_and_grad,
)
from learner.util.trees import named_leaves
from tests.support.codes import raises_code
from tests.support.runs import line, regression_step
from tests.support.small_models import (
    BATCH,
    CASES,
    EquinoxNet,
    Everything,
    dict_step,
    linen_step,
    make_dict,
    make_linen,
    make_normed,
    nnx_arrays,
    normed_step,
    other_batch,
    tree_arrays,
)
from tests.support.stopped import some

KEY = jax.random.key(5)


def close(got, expected):
    got, expected = named_leaves(got), named_leaves(expected)
    assert sorted(got) == sorted(expected)
    for name, x in expected.items():
        np.testing.assert_allclose(got[name], x, rtol=1e-5, atol=1e-6, err_msg=name)


# -- value_and_grad ----------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_nnx_models_have_the_gradients_and_changes_of_nnx():
    """Statistics, counters and random streams change in place, so the second call drops other activations."""
    ours, theirs = Everything(), Everything()
    for _ in range(2):
        output, grads = value_and_grad(Everything.train_step)(ours, BATCH)
        loss, expected = nnx.value_and_grad(lambda model: model.train_step(BATCH).loss)(theirs)
        assert float(output.loss) == pytest.approx(float(loss), rel=1e-6)
        close(grads, nnx.as_pure(expected))
        close(nnx_arrays(ours), nnx_arrays(theirs))
    assert ours.drop.rngs.count.get_value() == theirs.drop.rngs.count.get_value() == 2


class Normed(nnx.Module):
    def __init__(self):
        self.norm, self.drop = nnx.BatchNorm(3, rngs=nnx.Rngs(0)), nnx.Dropout(0.5, rngs=nnx.Rngs(1))

    def train_step(self, batch):
        return jnp.square(self.drop(self.norm(batch["x"]))).mean()


@pytest.mark.full
def test_modules_inside_a_pytree_behave_like_single_modules():
    """This includes their statistics and random streams."""
    alone, inside = Normed(), {"net": Normed(), "other": jnp.ones(1)}
    for _ in range(2):
        loss, grads = value_and_grad(Normed.train_step)(alone, BATCH)
        loss_inside, of_both = value_and_grad(lambda model, batch: model["net"].train_step(batch))(inside, BATCH)
        assert float(loss_inside) == pytest.approx(float(loss), rel=1e-6)
        expected = {f"net.{name}.value": x for name, x in named_leaves(grads).items()}
        close(of_both, {**expected, "other": jnp.zeros(1)})
        close(nnx_arrays(inside["net"]), nnx_arrays(alone))
    assert inside["net"].drop.rngs.count[...] == 2


@pytest.mark.full
def test_linen_models_have_the_gradients_of_jax():
    model = make_linen()
    before = tree_arrays(model.variables)
    output, grads = value_and_grad(linen_step)(model, BATCH, KEY)
    dropout = jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(KEY, 1), 0), 0)

    def loss(params):
        variables = {**make_linen().variables, "params": params}
        predictions, changed = model.module.apply(
            variables, BATCH["x"], train=True, rngs={"dropout": dropout}, mutable=["batch_stats"]
        )
        return RegressionOutput.from_predictions(predictions, BATCH["y"]).loss, changed

    (value, changed), expected = jax.value_and_grad(loss, has_aux=True)(make_linen().variables["params"])
    assert float(output.loss) == pytest.approx(float(value), rel=1e-6)
    close(grads, expected)
    close(model.variables["batch_stats"], changed["batch_stats"])
    assert (tree_arrays(model.variables)["['params']['head']['bias']"] == before["['params']['head']['bias']"]).all()


@pytest.mark.full
def test_equinox_models_have_the_gradients_of_equinox():
    model = EquinoxNet()
    output, grads = value_and_grad(EquinoxNet.train_step)(model, BATCH, KEY)
    loss, expected = eqx.filter_value_and_grad(lambda m: m.train_step(BATCH, KEY).loss)(model)
    assert float(output.loss) == pytest.approx(float(loss), rel=1e-6)
    close(grads, expected)


@pytest.mark.full
def test_a_model_that_the_step_returns_is_returned_with_the_output():
    net, state = make_normed()
    (output, (after, new_state)), grads = value_and_grad(normed_step)((net, state), BATCH)
    expected = eqx.filter_grad(lambda net: normed_step((net, state), BATCH)[0].loss)(net)
    close(grads[0], expected)
    _, (_, expected_state) = normed_step((net, state), BATCH)
    close(new_state, expected_state)
    assert bool(eqx.tree_equal(after, net))
    assert output.loss.shape == ()


@pytest.mark.full
def test_dict_models_have_the_gradients_of_jax():
    model = make_dict()
    (output, after), grads = value_and_grad(dict_step)(model, BATCH, KEY)

    def loss(floats):
        return dict_step({**model, **floats}, BATCH, KEY)[0].loss

    expected = jax.grad(loss)({"hidden": model["hidden"], "head": model["head"]})
    close(grads, expected)
    assert int(after["seen"]) == 1
    assert int(model["seen"]) == 0
    assert after["keep"] == 0.8
    assert output.loss == dict_step(model, BATCH, KEY)[0].loss


@pytest.mark.full
@pytest.mark.parametrize("case", some(CASES, {CASES[5]}), ids=str)
def test_value_and_grad_equals_the_step_of_a_learner(case, tmp_path):
    """The random key is that of the first step of `fit`; SGD with the rate 1 shows the gradients."""
    learner = LearnerBuilder(tmp_path).build(case.make(), optax.sgd, 1.0, **case.steps)
    state = learner.init()
    after, _ = learner.train_step(state, BATCH)
    key = jax.random.fold_in(jax.random.fold_in(state.rng, 0), 0)
    step = case.step or type(case.make()).train_step
    _, grads = eqx.filter_jit(value_and_grad(step))(case.make(), BATCH, key)
    moved = {
        name: a - b
        for (name, a), b in zip(named_leaves(state.params).items(), jax.tree.leaves(after.params), strict=True)
    }
    gradients = named_leaves(grads)
    if case.name in ("nnx", "nnx_dict"):  # `eqx.filter_jit` does not support shared parameters
        _, grads = value_and_grad(step)(case.make(), BATCH, key)
        gradients = named_leaves(grads)
    assert list(gradients) == list(moved)
    for name, x in moved.items():
        np.testing.assert_allclose(gradients[name], x, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.full
def test_nnx_jit_keeps_shared_parameters():
    model = Everything()
    _, grads = nnx.jit(value_and_grad(Everything.train_step))(model, BATCH, KEY)
    close(grads, value_and_grad(Everything.train_step)(Everything(), BATCH, KEY)[1])
    assert int(model.seen[...]) == 1


def test_only_trainable_parameters_are_differentiated():
    _, grads = value_and_grad(dict_step, trainable=lambda path, x: path.startswith("head"))(make_dict(), BATCH, KEY)
    assert list(named_leaves(grads)) == ["head.w"]


def test_gradients_returned_by_the_step_are_used():
    def step(model, batch):
        return TrainOutput(
            {"w": jnp.float32(7)}, RegressionOutput.from_predictions(model["w"] * batch["x"], batch["y"])
        )

    batch = {"x": jnp.ones(4), "y": jnp.zeros(4)}
    output, grads = value_and_grad(step)({"w": jnp.float32(2)}, batch)
    assert float(grads["w"]) == 7
    assert float(output.loss) == 4


@pytest.mark.parametrize(
    ("step", "code", "values"),
    [
        (dict_step, "step-needs-random-key", ("dict_step",)),
        (lambda model: 0, "step-function-signature", ("1",)),
        (lambda model, batch: {"lost": 1.0}, "step-output-without-loss", ("dict",)),
        (lambda model, batch: model["hidden"]["b"] * 1.0, "step-output-without-loss", ("[3]",)),
    ],
)
def test_unusable_steps_are_refused(step, code, values):
    with raises_code(code, *values):
        value_and_grad(step)(make_dict(), BATCH)


# -- GradientsAccumulator ----------------------------------------------------------------------------------------------


def tree(*numbers, dtype=jnp.float32):
    return {"a": jnp.asarray(numbers[:2], dtype), "b": [jnp.asarray(numbers[2], dtype)]}


def test_grads_returns_the_weighted_mean_and_resets():
    accumulator = GradientsAccumulator()
    accumulator.accumulate(tree(1.0, 2.0, 3.0), 3)
    accumulator.accumulate(tree(5.0, 6.0, -1.0), jnp.float32(1))
    assert float(accumulator.weight) == 4
    mean = accumulator.grads()
    assert mean["a"].tolist() == [2.0, 3.0]
    assert float(mean["b"][0]) == 2.0
    assert float(accumulator.weight) == 0
    accumulator.accumulate(tree(1.0, 1.0, 1.0), 2)
    assert accumulator.grads()["a"].tolist() == [1.0, 1.0]


def test_nan_gradients_of_weight_zero_contribute_nothing():
    accumulator = GradientsAccumulator()
    accumulator.accumulate(tree(np.nan, np.inf, np.nan), 0)
    accumulator.accumulate(tree(1.0, 2.0, 3.0), 0.5)
    assert accumulator.grads()["a"].tolist() == [1.0, 2.0]
    accumulator.accumulate(tree(np.nan, np.inf, np.nan), 0.0)
    assert accumulator.grads()["a"].tolist() == [0.0, 0.0]


def test_half_precision_is_accumulated_in_float32():
    """bfloat16 cannot represent 1026, and the weighted sum, 100,000, exceeds float16."""
    accumulator = GradientsAccumulator()
    accumulator.accumulate({"w": jnp.bfloat16(1024)}, 1)
    for _ in range(3):
        accumulator.accumulate({"w": jnp.bfloat16(2)}, 1)
    mean = accumulator.grads()["w"]
    assert mean.dtype == jnp.bfloat16
    assert float(mean) == float(jnp.bfloat16(1030 / 4))
    accumulator = GradientsAccumulator()
    accumulator.accumulate({"w": jnp.float16(2)}, 50_000)
    assert float(accumulator.grads()["w"]) == 2


def test_accumulators_work_in_jit_and_scan():
    numbers = jnp.arange(4, dtype=jnp.float32)

    @jax.jit
    def add(accumulator, x):
        accumulator.accumulate({"w": x}, x)
        return accumulator

    accumulator = GradientsAccumulator(like={"w": numbers[0]})
    scanned, _ = jax.lax.scan(lambda acc, x: (add(acc, x), None), accumulator, numbers)
    assert float(scanned.grads()["w"]) == pytest.approx(14 / 6)
    assert float(jax.jit(lambda acc: acc.grads())(add(accumulator, numbers[2]))["w"]) == 2.0


@pytest.mark.full
def test_accumulated_parts_equal_the_whole_batch():
    """The parts have different sizes and are weighted by their rows."""
    whole = other_batch(3, rows=6)
    accumulator = GradientsAccumulator()
    model = line(3, 2, bias=False, value=0.3)
    for rows in (slice(0, 4), slice(4, 6)):
        output, grads = value_and_grad(regression_step)(model, {name: x[rows] for name, x in whole.items()})
        accumulator.accumulate(grads, output.weight)
    close(accumulator.grads(), value_and_grad(regression_step)(model, whole)[1])


def test_unusable_gradients_and_weights_are_refused():
    accumulator = GradientsAccumulator()
    with raises_code("step-gradients-missing"):
        accumulator.grads()
    for weight in (-1, float("nan"), jnp.ones(2)):
        with raises_code("step-weight-value"):
            accumulator.accumulate(tree(1.0, 2.0, 3.0), weight)
    accumulator.accumulate(tree(1.0, 2.0, 3.0))
    with raises_code("step-gradients-differ", "[3]", "[2]", "b.0", "[]"):
        accumulator.accumulate({"a": jnp.ones(3)})
    with raises_code("step-gradients-differ", "containers are of other types"):
        accumulator.accumulate({"a": jnp.ones(2), "b": (jnp.float32(1),)})


@pytest.mark.full
def test_an_accumulator_starts_from_the_parameters_of_a_model():
    accumulator = GradientsAccumulator(trainable_params(make_dict()))
    assert [x.shape for x in jax.tree.leaves(accumulator.grads())] == [(3, 2), (3,), (3, 3)]
