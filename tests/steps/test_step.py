"""Tests of one optimizer step: accumulation, weights, own gradients, returned models, random keys and public functions.

Expected values come from arithmetic, from NumPy in float64, or from a loop with `jax.grad` and optax.
"""

import dataclasses
import functools
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest
from flax import nnx
from flax.training import train_state

from learner import (
    LearnerBuilder,
    LearnerError,
    Optimizer,
    RegressionOutput,
    SequenceOutput,
    TrainOutput,
    load_checkpoint,
    partition_params,
)
from learner.metrics import Accuracy, GradientNorm, LearningRate
from learner.steps.key_streams import VALID_STREAM
from learner.steps.step_definition import step_fn
from learner.steps.tree_math import global_norm, like, rows_of, weight_of
from learner.training.programs.compilation import CompileTimes
from learner.util.trees import named_leaves
from tests.support.codes import raises_code
from tests.support.runs import class_step, line, line_predictions, regression_step
from tests.support.small_models import BATCH, CASES, EquinoxNet, Everything, make_dict, make_linen, other_batch
from tests.support.stopped import some

CASE = {case.name: case for case in CASES}


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Own:
    """A custom output."""

    loss: Any
    weight: Any = None


def build(tmp_path: Any, model: Any, lr: Any = 0.1, optimizer: Any = optax.sgd, accumulate: int = 1, **steps: Any):
    builder = LearnerBuilder(tmp_path / "run").grads_accumulation(accumulate).metrics(GradientNorm(), LearningRate())
    return builder.build(model, optimizer, lr, **steps)


def trained(learner: Any, *groups: list[Any], state: Any = None) -> tuple[Any, list[dict[str, float]]]:
    """Return the state after one step per group of micro-batches, and the values of each step."""
    state, step, values = learner.init() if state is None else state, jax.jit(learner.train_step), []
    for group in groups:
        state, numbers = step(state, *group)
        values.append({name: float(x) for name, x in numbers.items()})
    return state, values


def assert_close(got: Any, expected: Any, tolerance: float = 1e-5) -> None:
    got, expected = named_leaves(got), named_leaves(expected)
    assert list(got) == list(expected)
    for name, x in expected.items():
        np.testing.assert_allclose(got[name], x, rtol=tolerance, atol=tolerance, err_msg=name)


def assert_bits(got: Any, expected: Any) -> None:
    got, expected = named_leaves(got), named_leaves(expected)
    assert list(got) == list(expected)
    for name, x in expected.items():
        np.testing.assert_array_equal(got[name], x, err_msg=name)


# -- accumulation is one step on the joined batch ----------------------------------------------------------------------

_rng = np.random.default_rng(2)
WEIGHTS = {
    "w": jnp.asarray(_rng.normal(size=(3, 4)), jnp.float32),
    "b": jnp.asarray(_rng.normal(size=(4,)), jnp.float32),
}


def tokens(counts: list[int], length: int = 6) -> dict[str, np.ndarray]:
    """Return sequences whose first `counts` tokens are unmasked; the logits of the others become NaN."""
    rng = np.random.default_rng(sum(counts) + 10 * len(counts))
    mask = (np.arange(length)[None] < np.array(counts)[:, None]).astype(np.int32)
    x = rng.normal(size=(len(counts), length, 3)).astype(np.float32)
    return {"x": x, "y": rng.integers(0, 4, (len(counts), length)).astype(np.int32), "mask": mask}


def rows(count: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {"x": rng.normal(size=(count, 3)).astype(np.float32), "y": rng.integers(0, 4, count).astype(np.int32)}


def joined(batches: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def token_step(model, batch):
    spoilt = jnp.where(batch["mask"] == 1, 0.0, jnp.nan)[..., None]
    logits = line_predictions(model, batch["x"]) + spoilt
    return SequenceOutput.from_logits(logits, batch["y"], batch["mask"])


def mean_cross_entropy(params: dict[str, Any], batch: dict[str, np.ndarray]) -> tuple[float, dict[str, np.ndarray]]:
    """Return the loss over unmasked values and its gradient in float64."""
    keep = batch["mask"].astype(bool) if "mask" in batch else np.ones(batch["y"].shape, bool)
    x, y = np.float64(batch["x"][keep]), batch["y"][keep]
    logits = x @ np.float64(params["w"]) + np.float64(params["b"])
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    delta = (p - np.eye(4)[y]) / len(y)
    return -np.log(p[np.arange(len(y)), y]).mean(), {"w": x.T @ delta, "b": delta.sum(0)}


GROUPS = {
    "even rows": (class_step, [rows(4, 1), rows(4, 2), rows(4, 3)]),
    "ragged last": (class_step, [rows(4, 1), rows(4, 2), rows(1, 3)]),
    "one": (class_step, [rows(4, 1)]),
    "short group": (class_step, [rows(4, 1), rows(4, 2)]),
    "short and ragged": (class_step, [rows(4, 1), rows(3, 2)]),
    "unequal tokens": (token_step, [tokens([6, 5]), tokens([1, 0]), tokens([2, 6])]),
    "no tokens in one": (token_step, [tokens([6, 5]), tokens([0, 0]), tokens([1, 2])]),
    "no tokens in the first": (token_step, [tokens([0, 0]), tokens([6, 5]), tokens([1, 2])]),
    "ragged tokens": (token_step, [tokens([6, 1]), tokens([2, 2]), tokens([5])]),
}


FEW = {"no tokens in the first", "ragged tokens"}


@pytest.mark.parametrize("name", some(GROUPS, FEW))
def test_accumulation_is_one_step_on_the_joined_batch(name, tmp_path):
    train, group = GROUPS[name]
    learner = build(tmp_path, WEIGHTS, 0.5, accumulate=4, train_step=train)
    state, (values,) = trained(learner, group)
    loss, grads = mean_cross_entropy(WEIGHTS, joined(group))
    got = jax.tree.map(lambda before, after: (before - after) / 0.5, WEIGHTS, state.params)
    assert_close(got, grads, 2e-6)
    np.testing.assert_allclose(values["Loss"], loss, rtol=1e-6)
    norm = np.sqrt(sum((g**2).sum() for g in grads.values()))
    np.testing.assert_allclose(values["Gradient Norm"], norm, rtol=1e-5)
    batch = joined(group)
    assert values["weight"] == (batch["mask"].sum() if "mask" in batch else len(batch["y"]))


@pytest.mark.full
def test_without_accumulation_the_step_is_equal(tmp_path):
    group = GROUPS["unequal tokens"][1]
    state, (values,) = trained(build(tmp_path, WEIGHTS, 0.5, train_step=token_step), [joined(group)])
    loss, grads = mean_cross_entropy(WEIGHTS, joined(group))
    assert_close(jax.tree.map(lambda before, after: (before - after) / 0.5, WEIGHTS, state.params), grads, 2e-6)
    np.testing.assert_allclose(values["Loss"], loss, rtol=1e-6)


def test_the_mean_of_means_differs():
    """This shows that the comparison above can fail."""
    group = GROUPS["unequal tokens"][1]
    _, grads = mean_cross_entropy(WEIGHTS, joined(group))
    gradients = [mean_cross_entropy(WEIGHTS, batch)[1]["w"] for batch in group]
    assert np.abs(np.mean(gradients, 0) - grads["w"]).max() > 0.01


@pytest.mark.full
def test_steps_count_by_optimizer_step(tmp_path):
    learner = build(tmp_path, WEIGHTS, optax.linear_schedule(0.4, 0.0, 4), accumulate=2, train_step=class_step)
    group = [rows(4, 1), rows(4, 2)]
    state, values = trained(learner, group, group, group)
    assert state.step == 3
    np.testing.assert_allclose([v["Learning Rate"] for v in values], [0.4, 0.3, 0.2], rtol=1e-6)


@pytest.mark.full
def test_sums_of_half_precision_gradients_are_float32(tmp_path):
    def train(model, batch):
        return Own((model["w"] * batch["x"].astype(jnp.bfloat16)).sum(), 1.0)

    learner = build(tmp_path, {"w": jnp.zeros(1, jnp.bfloat16)}, 1.0, accumulate=8, train_step=train)
    group = [{"x": np.float32([x])} for x in (256, 1, 1, 1, 1, 1, 1, 1)]
    state, _ = trained(learner, group)
    assert state.params["w"].dtype == jnp.bfloat16
    assert state.params["w"][0] == -263 / 8  # 256 + 1 is 256 in bfloat16


# -- weight 0 ----------------------------------------------------------------------------------------------------------


def weighed(model, batch):
    """Return a loss that is NaN if x is, with any weight."""
    return Own((model["w"] * batch["x"]).mean(), batch["weight"].sum())


def weighing(*pairs: tuple[float, float]) -> list[dict[str, np.ndarray]]:
    return [{"x": np.float32([x]), "weight": np.float32([weight])} for x, weight in pairs]


@pytest.mark.full
@pytest.mark.parametrize("bad", [np.nan, pytest.param(np.inf, marks=pytest.mark.full)])
def test_a_micro_batch_of_weight_0_contributes_nothing(bad, tmp_path):
    learner = build(tmp_path, {"w": jnp.float32(2)}, 1.0, accumulate=3, train_step=weighed)
    for group in (
        weighing((bad, 0), (1, 1), (4, 2)),
        weighing((1, 1), (bad, 0), (4, 2)),
        weighing((1, 1), (4, 2), (bad, 0)),
    ):
        state, (values,) = trained(learner, group)
        assert state.params["w"] == 2 - 3.0  # (1·1 + 4·2) / 3
        assert values["Loss"] == 2 * 3.0
        assert values["weight"] == 3


def test_a_nan_micro_batch_with_weight_makes_the_step_nan(tmp_path):
    learner = build(tmp_path, {"w": jnp.float32(2)}, 1.0, accumulate=2, train_step=weighed)
    state, _ = trained(learner, weighing((1, 1), (np.nan, 1)))
    assert np.isnan(state.params["w"])


@pytest.mark.full
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_step_of_weight_0_changes_only_the_count(accumulate, tmp_path):
    learner = build(tmp_path, {"w": jnp.float32(2)}, 0.1, optax.adamw, accumulate, train_step=weighed)
    before, _ = trained(learner, weighing((3, 1)))
    after, (values,) = trained(learner, weighing((np.nan, 0), (np.inf, 0))[:accumulate], state=before)
    for name in ("params", "opt_state", "model_state", "lr_scale"):
        assert_bits(getattr(after, name), getattr(before, name))
    assert after.step == before.step + 1
    assert np.isnan(values["Loss"])  # a mean over nothing
    assert values["weight"] == 0


class Watching(nnx.Module):
    """A model with a statistic that is the last batch."""

    def __init__(self):
        self.w, self.last = nnx.Param(jnp.float32(2)), nnx.BatchStat(jnp.float32(0))

    def train_step(self, batch):
        self.last[...] = batch["x"][0]
        return Own((self.w[...] * batch["x"]).mean(), batch["weight"].sum())


@pytest.mark.full
def test_a_micro_batch_of_weight_0_does_not_change_statistics(tmp_path):
    learner = build(tmp_path, Watching(), 1.0, accumulate=3)
    state, _ = trained(learner, weighing((5, 1), (7, 2), (np.nan, 0)))
    assert state.model_state["last"] == 7
    state, _ = trained(learner, weighing((np.nan, 0)), state=state)
    assert state.model_state["last"] == 7
    alone = build(tmp_path, Watching(), 1.0)
    state, _ = trained(alone, weighing((5, 1)), weighing((np.nan, 0)))
    assert state.model_state["last"] == 5


@pytest.mark.full
def test_statistics_are_updated_by_each_micro_batch(tmp_path):
    """BatchNorm processes the micro-batches one after the other."""
    learner = build(tmp_path, CASE["nnx"].make(), 0.0, accumulate=2)
    state, _ = trained(learner, [BATCH, other_batch(1)])
    arrays = {name: np.float64(x) for name, x in CASE["nnx"].arrays(Everything()).items()}
    mean = np.zeros(3)
    for batch in (BATCH, other_batch(1)):
        x = np.tanh(batch["x"] @ arrays["layers.0.kernel"] + arrays["layers.0.bias"])
        x = np.tanh(x @ arrays["layers.0.kernel"] + arrays["layers.1.bias"])
        mean = 0.9 * mean + 0.1 * x.mean(0)
    np.testing.assert_allclose(state.model_state["norm"]["mean"], mean, atol=1e-6)
    assert state.model_state["seen"] == 2


def test_the_default_weight_is_the_number_of_rows(tmp_path):
    def train(model, batch):
        return Own((model["w"] * batch["x"]).mean())

    learner = build(tmp_path, {"w": jnp.float32(0)}, 1.0, accumulate=2, train_step=train)
    state, (values,) = trained(learner, [{"x": np.full(3, 1, np.float32)}, {"x": np.full(1, 5, np.float32)}])
    assert state.params["w"] == -2.0  # (3·1 + 1·5) / 4
    assert values["weight"] == 4
    assert weight_of(Own(0.0, 7), 3) == 7
    assert rows_of({"a": {"b": np.zeros((5, 2))}}) == 5


# -- own gradients -----------------------------------------------------------------------------------------------------


def own_nnx(model, batch):
    def loss(model):
        output = Everything.valid_step(model, batch)
        return output.loss, output

    grads, output = nnx.grad(loss, has_aux=True)(model)
    return TrainOutput(grads, output)


def own_linen(model, batch):
    def loss(params):
        variables = {**model.variables, "params": params}
        output = RegressionOutput.from_predictions(model.module.apply(variables, batch["x"], train=False), batch["y"])
        return output.loss, output

    grads, output = jax.grad(loss, has_aux=True)(model.variables["params"])
    return TrainOutput(grads, output)


def own_equinox(model, batch, rng):
    def loss(model):
        output = EquinoxNet.train_step(model, batch, rng)
        return output.loss, output

    grads, output = eqx.filter_grad(loss, has_aux=True)(model)
    return TrainOutput(grads, output)


def own_dict(model, batch):
    grads, output = jax.grad(lambda m: (regression_step(m, batch).loss, regression_step(m, batch)), has_aux=True)(model)
    return TrainOutput(grads, output)


def plain_linen(model, batch):
    return RegressionOutput.from_predictions(model(batch["x"], train=False), batch["y"])


OWN = {
    "nnx": (Everything, own_nnx, Everything.valid_step),
    "linen": (make_linen, own_linen, plain_linen),
    "equinox": (EquinoxNet, own_equinox, EquinoxNet.train_step),
    "dict": (lambda: line(3, 2, bias=False, value=0.3), own_dict, regression_step),
}


ONCE_AND_TWICE = [
    pytest.param(name, n, id=f"{name}-{n}", marks=() if (name, n) in {("nnx", 1), ("dict", 2)} else pytest.mark.full)
    for name in OWN
    for n in (1, 2)
]


@pytest.mark.parametrize(("name", "accumulate"), ONCE_AND_TWICE)
def test_own_gradients_train_like_those_of_the_learner(name, accumulate, tmp_path):
    make, own, plain = OWN[name]
    group = [BATCH, other_batch(1, rows=3)][:accumulate]
    results = []
    for step in (own, plain):
        learner = build(tmp_path, make(), 0.1, accumulate=accumulate, train_step=step)
        results.append(trained(learner, group, group))
    (state, values), (expected, expected_values) = results
    assert_close(state.params, expected.params)
    np.testing.assert_allclose(values[1]["Loss"], expected_values[1]["Loss"], rtol=1e-5)
    np.testing.assert_allclose(values[1]["Gradient Norm"], expected_values[1]["Gradient Norm"], rtol=1e-4)


def test_own_gradients_are_used_unchanged(tmp_path):
    def train(model, batch):
        return TrainOutput({"w": jnp.float32([10.0, 20.0])}, Own(jnp.float32(1)))

    state, (values,) = trained(build(tmp_path, {"w": jnp.zeros(2)}, train_step=train), [BATCH])
    np.testing.assert_allclose(state.params["w"], [-1, -2], rtol=1e-6)
    np.testing.assert_allclose(values["Gradient Norm"], np.sqrt(500), rtol=1e-6)


@pytest.mark.full
def test_a_loss_may_be_a_python_number(tmp_path):
    def train(model, batch):
        return TrainOutput({"w": jnp.ones(2)}, Own(1.5))

    for accumulate in (1, 2):
        learner = build(tmp_path, {"w": jnp.zeros(2)}, accumulate=accumulate, train_step=train, valid_step=train_loss)
        state, (values,) = trained(learner, [BATCH])
        assert values["Loss"] == 1.5
        assert jax.jit(learner.valid_step)(state, BATCH)["Loss"] == 2.5


def train_loss(model, batch):
    return Own(2.5)


def test_own_gradients_of_the_trainable_part(tmp_path):
    def train(model, batch):
        grads = jax.grad(lambda m: (batch["x"] @ m["w"] + m["b"][None]).sum())(model)
        return TrainOutput(grads, Own(jnp.float32(0)))

    learner = build(
        tmp_path,
        {"w": jnp.zeros((3, 4)), "b": jnp.zeros(4)},
        1.0,
        train_step=train,
        trainable=lambda path, x: path == "b",
    )
    state, _ = trained(learner, [BATCH])
    np.testing.assert_array_equal(state.params["b"], np.full(4, -8.0))
    np.testing.assert_array_equal(state.model_state["w"], np.zeros((3, 4)))


def own_by(gradient):
    """Return a step that computes the gradients of all parameters of an nnx module, or of one in a dict, itself."""

    def train(model, batch) -> TrainOutput:
        net = lambda model: model["net"] if isinstance(model, dict) else model  # noqa: E731
        grads = gradient(lambda model: net(model)(batch["x"]).sum())(model)
        return TrainOutput(grads, Own(jnp.float32(0)))

    return train


OF_EVERYTHING = {
    "nnx": own_by(nnx.grad),
    "jax": own_by(jax.grad),
    "partition": own_by(
        lambda loss: lambda model: partition_params(nnx.grad(loss)(model), lambda n, x: "bias" in n)[0]
    ),
}


def test_own_gradients_of_a_frozen_part_named_frozen_are_ignored(tmp_path):
    model = nnx.Dict(frozen=nnx.Linear(3, 4, rngs=nnx.Rngs(0)), head=nnx.Linear(4, 1, rngs=nnx.Rngs(1)))

    def train(model, batch) -> TrainOutput:
        return TrainOutput(nnx.grad(lambda m: m.head(m.frozen(batch["x"])).sum())(model), Own(jnp.float32(0)))

    builder = LearnerBuilder(tmp_path / "run").renderer(None).freeze("^frozen")
    result = builder.build(model, optax.sgd, 1.0, train_step=train).fit([BATCH]).model
    np.testing.assert_array_equal(result.head.bias[...], [-float(len(BATCH["x"]))])


@pytest.mark.parametrize("name", OF_EVERYTHING)
@pytest.mark.parametrize("where", ["module", "dict"])
def test_own_gradients_of_frozen_parameters_are_ignored(tmp_path, name, where):
    net = nnx.Linear(3, 4, rngs=nnx.Rngs(0))
    model = net if where == "module" else {"net": net}
    builder = LearnerBuilder(tmp_path / "run").renderer(None).freeze("kernel")
    result = builder.build(model, optax.sgd, 1.0, train_step=OF_EVERYTHING[name]).fit([BATCH]).model
    trained_net = result if where == "module" else result["net"]
    np.testing.assert_array_equal(trained_net.bias[...], np.full(4, -float(len(BATCH["x"]))))
    np.testing.assert_array_equal(trained_net.kernel[...], net.kernel[...])


@pytest.mark.parametrize(
    ("grads", "code", "values"),
    [
        ({"w": jnp.ones(2)}, "model-structure-changed", ("missing: b", "the gradients of jax.grad")),
        ({"w": jnp.ones(2), "b": jnp.ones(2), "c": jnp.ones(2)}, "model-structure-changed", ("new: c",)),
        ({"w": jnp.ones(2), "c": jnp.ones(2)}, "model-structure-changed", ("new: c; missing: b",)),
        ({"w": jnp.ones(3), "b": jnp.ones(2)}, "step-gradient-shapes", ("w", "[3]", "[2]")),
        ({"w": jnp.ones(2), "b": jnp.ones(())}, "step-gradient-shapes", ("b", "[]", "[2]")),
        ({"w": jnp.ones((8, 2)), "b": jnp.ones((8, 2))}, "step-gradient-shapes", ("b", "[8, 2]", "[2]")),
        (None, "model-structure-changed", ("missing: b, w",)),
    ],
)
def test_own_gradients_that_do_not_fit_are_refused(grads, code, values, tmp_path):
    def train(model, batch):
        return TrainOutput(grads, Own(jnp.float32(0)))

    learner = build(tmp_path, {"w": jnp.zeros(2), "b": jnp.zeros(2)}, train_step=train)
    with raises_code(code, *values):
        trained(learner, [BATCH])


# -- returned models ---------------------------------------------------------------------------------------------------


def test_a_returned_model_updates_the_state_that_is_not_differentiated(tmp_path):
    def train(model, batch):
        new = {"w": model["w"] * 100, "seen": model["seen"] + 2, "table": model["table"] * 3}
        return Own((model["w"] * batch["x"][0]).sum()), new

    model = {"w": jnp.ones(3), "seen": jnp.int32(1), "table": jnp.ones(2)}
    learner = build(tmp_path, model, 0.5, train_step=train, trainable=lambda path, x: path == "w")
    state, _ = trained(learner, [BATCH], [BATCH])
    np.testing.assert_allclose(state.params["w"], 1 - 2 * 0.5 * BATCH["x"][0], rtol=1e-6)  # the returned w is ignored
    assert state.model_state["seen"] == 5
    np.testing.assert_array_equal(state.model_state["table"], [9, 9])


def test_a_pytree_that_is_not_returned_does_not_change(tmp_path):
    def train(model, batch):
        model["seen"] = model["seen"] + 1  # changes a copy
        return Own(model["w"].sum())

    state, _ = trained(build(tmp_path, {"w": jnp.ones(3), "seen": jnp.int32(1)}, train_step=train), [BATCH])
    assert state.model_state["seen"] == 1


def test_an_nnx_model_may_be_returned(tmp_path):
    def train(model, batch):
        return Watching.train_step(model, batch), model

    one, _ = trained(build(tmp_path, Watching(), train_step=train), weighing((5, 1)), weighing((7, 1)))
    two, _ = trained(build(tmp_path, Watching()), weighing((5, 1)), weighing((7, 1)))
    assert_bits(one.model_state, two.model_state)
    assert_bits(one.params, two.params)


# -- random keys-------------------------------------------------------------------------------------------------------


def draw_step(model, batch, rng):
    return Own(model["w"] * 0 + jax.random.uniform(rng))


def test_keys_are_folded_from_root_step_and_micro_batch(tmp_path):
    builder = LearnerBuilder(tmp_path / "run").seed(7)
    learner = builder.build({"w": jnp.float32(0)}, optax.sgd, 0.1, train_step=draw_step, valid_step=draw_step)
    step, state = jax.jit(learner.train_step), learner.init()
    root = jax.random.key(7)
    for i in range(3):
        state, values = step(state, BATCH)
        assert values["Loss"] == jax.random.uniform(jax.random.fold_in(jax.random.fold_in(root, i), 0))
    valid = jax.jit(learner.valid_step)(state, BATCH)
    key = jax.random.fold_in(jax.random.fold_in(root, VALID_STREAM), 0)
    assert valid["Loss"] == jax.random.uniform(key)


@pytest.mark.full
def test_micro_batches_have_different_keys(tmp_path):
    learner = build(tmp_path, {"w": jnp.float32(0)}, accumulate=3, train_step=draw_step)
    _, (values,) = trained(learner, [BATCH] * 3)
    keys = [jax.random.fold_in(jax.random.fold_in(jax.random.key(0), 0), i) for i in range(3)]
    np.testing.assert_allclose(values["Loss"], np.mean([jax.random.uniform(key) for key in keys]), rtol=1e-6)


@pytest.mark.full
def test_validation_batches_have_different_keys_equal_in_each_epoch(tmp_path):
    learner = build(tmp_path, {"w": jnp.float32(0)}, train_step=draw_step, valid_step=draw_step)
    evaluate = jax.jit(learner.definition.step.evaluate)
    first = learner.init()
    later, _ = trained(learner, [BATCH], [BATCH])
    one = [float(evaluate(first, BATCH, jnp.int32(i)).loss) for i in range(3)]
    assert one == [float(evaluate(later, BATCH, jnp.int32(i)).loss) for i in range(3)]
    assert len(set(one)) == 3


# -- methods and functions ---------------------------------------------------------------------------------------------


def test_a_method_and_a_function_are_equal_steps(tmp_path):
    def train(model, batch):
        return Watching.train_step(model, batch)

    group = weighing((5, 1))
    results = [trained(build(tmp_path, Watching(), **steps), group)[0] for steps in ({}, {"train_step": train})]
    assert_bits(results[0].params, results[1].params)


def test_a_function_takes_precedence_over_the_method(tmp_path):
    learner = build(tmp_path, Everything(), train_step=lambda model, batch: Own(model.head.bias.sum() * 0 + 5.0))
    assert trained(learner, [BATCH])[1][0]["Loss"] == 5.0


class Callable:
    def __call__(self, model, batch, rng):
        return Own(model["w"].sum())


def with_default(model, batch, scale=2.0):
    return Own(model["w"].sum() * scale)


def with_optional_key(model, batch, rng=None):
    return Own(model["w"].sum() * jax.random.uniform(rng))


def positional(model, batch, /):
    return Own(model["w"].sum())


def keyword(model, batch, *, scale=1.0):
    return Own(model["w"].sum())


@pytest.mark.parametrize(
    ("fn", "takes_rng"),
    [
        (with_default, False),
        (with_optional_key, True),
        (positional, False),
        (keyword, False),
        (Callable(), True),
        (functools.partial(with_default, scale=3.0), False),
        (jax.jit(with_default), False),
        (jax.jit(draw_step), True),
    ],
)
def test_accepted_step_functions(fn, takes_rng):
    step = step_fn({}, "train_step", fn)
    assert step.takes_rng == takes_rng
    output, model = step({"w": jnp.float32(1)}, BATCH, jax.random.key(0))
    assert isinstance(output, Own)
    assert model is None


@pytest.mark.parametrize(
    ("fn", "takes_rng"),
    [
        (lambda model, batch, key: 0, True),
        (lambda model, batch, rng=None: 0, True),
        (lambda model, batch, *, scale=None: 0, False),
        (functools.partial(lambda model, batch, key: 0, key=7), False),
    ],
)
def test_a_step_with_a_third_argument_gets_the_key(fn, takes_rng):
    assert step_fn({"w": 1}, "train_step", fn).takes_rng == takes_rng


def test_a_missing_step_is_none():
    assert step_fn({"w": 1}, "train_step", None) is None
    assert step_fn(Everything(), "valid_step", None).name == "Everything.valid_step"


@pytest.mark.parametrize(
    ("fn", "code", "values"),
    [
        (lambda model: 0, "step-function-signature", ("1", "model")),
        (lambda: 0, "step-function-signature", ("0",)),
        (lambda *given: 0, "step-function-signature", ("functools.wraps",)),
        (lambda model, batch, rng, more: 0, "step-function-signature", ("4",)),
        (lambda batch, model: 0, "step-function-signature", ("(batch, model)",)),
        (lambda net, rng, x: 0, "step-function-signature", ("(net, rng, x)",)),
        (lambda net, x, scale=1.0, rng=None: 0, "step-function-signature", ("scale",)),
        (lambda model, batch, key=None: 0, "step-function-signature", ("argument key",)),
        (lambda model, batch, *, rng: 0, "step-function-signature", ("argument rng",)),
        ("train", "step-function-type", ("train_step", "'train'")),
    ],
)
def test_step_functions_with_other_arguments_are_refused(fn, code, values, tmp_path):
    with raises_code(code, *values):
        build(tmp_path, {"w": jnp.float32(1)}, train_step=fn)


class Wrong(nnx.Module):
    def __init__(self):
        self.w = nnx.Param(jnp.ones(2))

    def train_step(self):
        return Own(self.w.sum())


def test_a_method_with_other_arguments_is_refused(tmp_path):
    with raises_code("step-function-signature", "1", "self", name="Wrong.train_step"):
        build(tmp_path, Wrong())


# -- update= -----------------------------------------------------------------------------------------------------------

make_first, make_second = functools.partial(optax.adam, b1=0.5), optax.rmsprop


def gan_losses(generator: Any, critic: Any, real: Any, noise: Any) -> tuple[Any, Any]:
    generated = noise @ generator["w"] + generator["b"][None]
    score = lambda x: jax.nn.sigmoid(jnp.tanh(x @ critic["w"]) @ critic["v"])  # noqa: E731
    return -jnp.log(score(generated)).mean(), -(jnp.log(score(real)) + jnp.log(1 - score(generated))).mean()


def gan_update(state, batch, lr, rng):
    """Update two networks, each with its optimizer; the second one has a lower rate."""
    generator, critic = state["generator"], state["critic"]
    noise = jax.random.normal(rng, (batch["x"].shape[0], 2))
    loss, grads = jax.value_and_grad(lambda g: gan_losses(g, critic, batch["x"], noise)[0])(generator)
    critic_loss, critic_grads = jax.value_and_grad(lambda c: gan_losses(generator, c, batch["x"], noise)[1])(critic)
    with jax.numpy_dtype_promotion("standard"):  # optax needs it
        updates, first = make_first(lr).update(grads, state["first"])
        critic_updates, second = make_second(lr * 0.1).update(critic_grads, state["second"])
    new = {
        "generator": optax.apply_updates(generator, updates),
        "critic": optax.apply_updates(critic, critic_updates),
        "first": first,
        "second": second,
    }
    return new, Own(loss + critic_loss)


def gan_state() -> dict[str, Any]:
    rng = np.random.default_rng(4)
    normal = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)  # noqa: E731
    generator, critic = {"w": normal(2, 3), "b": normal(3)}, {"w": normal(3, 4), "v": normal(4)}
    return {
        "generator": generator,
        "critic": critic,
        "first": make_first(0.1).init(generator),
        "second": make_second(0.1).init(critic),
    }


@pytest.mark.full
def test_a_gan_with_two_optimizers_trains_like_a_plain_loop(tmp_path):
    schedule = optax.linear_schedule(0.1, 0.0, 5)
    builder = LearnerBuilder(tmp_path / "run").metrics(LearningRate())
    learner = builder.build(gan_state(), None, schedule, update=gan_update)
    batches = [other_batch(i) for i in range(4)]
    state, values = trained(learner, *[[batch] for batch in batches])

    expected, plain = gan_state(), jax.jit(gan_update)
    for i, batch in enumerate(batches):
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), i), 0)
        expected, output = plain(expected, batch, jnp.float32(0.1 - 0.02 * i), key)
        np.testing.assert_allclose(values[i]["Loss"], output.loss, rtol=1e-5)
        np.testing.assert_allclose(values[i]["Learning Rate"], 0.1 - 0.02 * i, rtol=1e-6)
    got = learner.model_of(state)
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    assert_close(got, expected)
    assert state.step == 4
    assert state.opt_state == ()
    assert int(got["first"][0].count) == 4


@pytest.mark.full
def test_the_state_of_an_update_may_contain_an_array_twice(tmp_path):
    """The first states of some optimizers do."""
    make = optax.contrib.prodigy
    params = {"w": jnp.full((3, 4), 0.5), "b": jnp.zeros(4)}

    def update(state, batch, lr, rng):
        output, grads = (
            class_step(state["params"], batch),
            jax.grad(lambda p: class_step(p, batch).loss)(state["params"]),
        )
        with jax.numpy_dtype_promotion("standard"):
            updates, opt = make(lr).update(grads, state["opt"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "opt": opt}, output

    learner = build(tmp_path, {"params": params, "opt": make(1.0).init(params)}, 1.0, None, update=update)
    step = jax.jit(learner.train_step, donate_argnums=0)
    state, _ = step(learner.init(), rows(4, 1))
    state, _ = step(state, rows(4, 2))
    expected, optimizer = params, make(1.0)
    opt = optimizer.init(expected)
    for seed in (1, 2):
        grads = jax.tree.map(jnp.float32, mean_cross_entropy(expected, rows(4, seed))[1])
        with jax.numpy_dtype_promotion("standard"):
            updates, opt = optimizer.update(grads, opt, expected)
        expected = optax.apply_updates(expected, updates)
    assert_close(learner.model_of(state)["params"], expected)


class TwoPlayers(nnx.Module):
    """An nnx module as the state of an update."""

    def __init__(self):
        self.net, self.steps = nnx.Linear(3, 2, rngs=nnx.Rngs(0)), nnx.Variable(jnp.int32(0))


@pytest.mark.full
def test_an_update_may_change_an_nnx_module_in_place(tmp_path):
    def update(model, batch, lr, rng):
        loss, grads = nnx.value_and_grad(lambda net: jnp.square(net(batch["x"]) - batch["y"]).mean())(model.net)
        nnx.update(model.net, jax.tree.map(lambda p, g: p - lr * g, nnx.state(model.net, nnx.Param), grads))
        model.steps[...] += 1
        return model, Own(loss)

    learner = build(tmp_path, TwoPlayers(), 0.1, None, update=update)
    state, _ = trained(learner, [BATCH], [BATCH])
    params = {name: np.float64(x) for name, x in named_leaves(adapter_params(TwoPlayers())).items()}
    for _ in range(2):
        error = BATCH["x"] @ params["net.kernel"] + params["net.bias"] - BATCH["y"]
        params["net.kernel"] -= 0.1 * 2 * BATCH["x"].T @ error / error.size
        params["net.bias"] -= 0.1 * 2 * error.sum(0) / error.size
    assert_close(named_leaves(state.params), params)
    assert learner.model_of(state).steps[...] == 2


class Mode(nnx.Module):
    """A model with BatchNorm and dropout, which have modes."""

    def __init__(self):
        self.norm = nnx.BatchNorm(1, momentum=0.0, rngs=nnx.Rngs(0))
        self.drop = nnx.Dropout(0.5, rngs=nnx.Rngs(1))

    def __call__(self, x):
        return self.drop(self.norm(x))


def two_modes() -> dict[str, Any]:
    return {"nets": [Mode(), Mode()], "w": jnp.ones(1)}


@pytest.mark.full
def test_modules_inside_a_state_have_the_mode_of_the_step(tmp_path):
    """In eval mode, they use the statistics of the update and drop nothing."""
    seen = []

    def update(state, batch, lr, rng):
        seen.append([(net.norm.use_running_average, net.drop.deterministic) for net in state["nets"]])
        for net in state["nets"]:
            net(batch["x"])
        return state, Own(state["w"].sum())

    def valid(state, batch):
        seen.append([(net.norm.use_running_average, net.drop.deterministic) for net in state["nets"]])
        return Own(jnp.square(state["nets"][0](batch["x"])).mean())

    learner = LearnerBuilder(tmp_path / "run").build(two_modes(), None, 0.1, update=update, valid_step=valid)
    x = np.float32([[1], [3], [5]])  # mean 3, variance 8/3
    state, _ = trained(learner, [{"x": x}])
    values = learner.valid_step(state, {"x": x})
    assert seen[0] == [(False, False)] * 2
    assert seen[-1] == [(True, True)] * 2
    np.testing.assert_allclose(values["Loss"], 1.0, rtol=1e-4)
    trained_state = learner.model_of(state)
    assert [(net.norm.use_running_average, net.drop.deterministic) for net in trained_state["nets"]] == [
        (True, True)
    ] * 2
    np.testing.assert_allclose(trained_state["nets"][1].norm.mean[...], [3.0])


@pytest.mark.full
def test_the_state_may_contain_an_equinox_module_and_its_optimizer_state(tmp_path):
    """The optimizer state has the structure of the module, with None for fields such as the flag of the mode."""
    momentum = functools.partial(optax.sgd, momentum=0.9)
    net, opt, seen = EquinoxNet(), Optimizer(momentum), []

    def loss(net):
        return jnp.square(jax.vmap(net.head)(BATCH["x"]) - BATCH["y"]).mean()

    def update(state, batch, lr, rng):
        seen.append((state["net"].drop.inference, state["optimizer"][0].trace.drop.inference))
        value, grads = eqx.filter_value_and_grad(loss)(state["net"])
        net, optimizer = opt.step(lr, state["net"], grads, state["optimizer"])
        return {"net": net, "optimizer": optimizer}, Own(value)

    learner = build(tmp_path, {"net": net, "optimizer": opt.init(net)}, 0.1, None, update=update)
    state, _ = trained(learner, [BATCH], [BATCH])
    trained_net, alone = learner.model_of(state)["net"], momentum(0.1)
    assert set(seen) == {(False, None)}
    assert trained_net.drop.inference is True
    opt_state = alone.init(eqx.filter(net, eqx.is_inexact_array))
    for _ in range(2):
        updates, opt_state = alone.update(eqx.filter_grad(loss)(net), opt_state)
        net = eqx.apply_updates(net, updates)
    np.testing.assert_allclose(trained_net.head.weight, net.head.weight, rtol=1e-5)


@pytest.mark.full
def test_modules_inside_a_model_change_in_place(tmp_path):
    """Their statistics are carried, not trained; SGD with a large weight decay would change trained ones."""

    def step(model, batch):
        results = [net(batch["x"]) for net in model["nets"]]
        return Own(jnp.square(results[0] * model["w"][None]).mean())

    decayed = lambda lr: optax.chain(optax.add_decayed_weights(0.5), optax.sgd(lr))  # noqa: E731
    learner = build(tmp_path, two_modes(), 0.1, decayed, train_step=step, valid_step=step)
    state, _ = trained(learner, [{"x": np.float32([[1], [3], [5]])}], [{"x": np.float32([[2], [4], [9]])}])
    assert sorted(named_leaves(state.params)) == sorted(
        [f"nets.{i}.norm.{name}.value" for i in (0, 1) for name in ("bias", "scale")] + ["w"]
    )
    results = learner.model_of(state)
    np.testing.assert_allclose(results["nets"][0].norm.mean[...], [5.0], rtol=1e-6)
    assert results["nets"][0].drop.rngs.count[...] == 0  # each step starts the stream from its key


def adapter_params(model: nnx.Module) -> Any:
    return nnx.to_pure_dict(nnx.state(model, nnx.Param))


@pytest.mark.parametrize(
    ("options", "pattern"),
    [
        ({"update": gan_update, "optimizer": optax.sgd}, "pass None as the optimizer"),
        ({"update": gan_update, "train_step": class_step}, "no train_step"),
        ({"update": gan_update, "accumulate": 2}, "cannot be used with grads_accumulation"),
        ({"update": gan_update, "trainable": lambda path, x: True}, "trainable= has no effect"),
        ({"update": lambda state, batch, lr: None}, "needs \\(state, batch, lr, rng\\)"),
        ({"update": "gan"}, "update is 'gan'; it needs a function"),
    ],
)
def test_options_that_conflict_with_update_are_refused(options, pattern, tmp_path):
    options = {"optimizer": None, "accumulate": 1, **options}
    with pytest.raises(LearnerError, match=pattern):
        build(tmp_path, gan_state(), 0.1, **options)


@pytest.mark.parametrize(
    ("returned", "code", "values"),
    [
        (lambda state: {**state, "extra": jnp.zeros(2)}, "model-structure-changed", ("new: extra",)),
        (lambda state: {"w": state["w"]}, "model-structure-changed", ("missing: n",)),
        (lambda state: {**state, "w": jnp.zeros(3)}, "step-state-changed", ("w", "float32[2]", "float32[3]")),
        (lambda state: {**state, "n": state["n"] + 0.5}, "step-state-changed", ("n", "int32[]", "float32[]")),
    ],
)
def test_an_update_that_changes_the_structure_is_refused(returned, code, values, tmp_path):
    def update(state, batch, lr, rng):
        return returned(state), Own(jnp.float32(0))

    learner = build(tmp_path, {"w": jnp.zeros(2), "n": jnp.int32(0)}, 0.1, None, update=update)
    with raises_code(code, *values), jax.numpy_dtype_promotion("standard"):
        trained(learner, [BATCH])


@pytest.mark.parametrize("number", [0, 0.0, np.int32(0), False])
def test_an_update_that_replaces_a_number_is_refused(number, tmp_path):
    """The compiled program has the first value, so a target that moves every n steps would never move."""

    def update(state, batch, lr, rng):
        return {**state, "steps": state["steps"] + jnp.int32(1)}, Own(jnp.float32(0))

    learner = build(tmp_path, {"w": jnp.zeros(2), "steps": number}, 0.1, None, update=update)
    with raises_code("model-number-replaced", "steps"), jax.numpy_dtype_promotion("standard"):
        trained(learner, [BATCH])


class ScaledTrainState(train_state.TrainState):
    """A state of Flax with arrays and a Python number of its own."""

    decay: jax.Array
    seen: jax.Array
    rate: float = 0.5


@pytest.mark.full
def test_an_update_may_count_the_steps_of_a_train_state_of_flax(tmp_path):
    """`TrainState.create` starts with the Python number 0."""
    optimizer, x, y = optax.adam(0.1), jnp.asarray(BATCH["x"]), jnp.asarray(BATCH["y"])

    def make():
        params, own = {"w": jnp.full((x.shape[1], y.shape[1]), 0.5)}, {"decay": jnp.float32(1), "seen": jnp.int32(0)}
        return ScaledTrainState.create(apply_fn=jnp.matmul, params=params, tx=optimizer, **own)

    def update(state, batch, lr, rng):
        loss_of = lambda params: jnp.square(state.apply_fn(batch["x"], params["w"]) - batch["y"]).mean()  # noqa: E731
        loss, grads = jax.value_and_grad(loss_of)(state.params)
        with jax.numpy_dtype_promotion("standard"):  # optax needs it
            state = state.apply_gradients(grads=grads)
        return state.replace(seen=state.seen + len(batch["x"]), decay=state.rate * state.decay), {"loss": loss}

    def builder(epochs):
        saved = LearnerBuilder(tmp_path / "run").num_epochs(epochs).with_file_checkpointer().resume().renderer(None)
        return saved.build(make(), None, 0.0, update=update)

    batch = {"x": x, "y": y}
    builder(1).fit([batch])
    result = builder(3).fit([batch])
    expected, step = make(), jax.jit(lambda state: update(state, batch, 0.0, None))
    for epoch in range(3):
        expected, output = step(expected)
        np.testing.assert_allclose(result.history["train/Loss"][epoch], output["loss"], rtol=1e-5)
    assert jax.tree.structure(result.model) == jax.tree.structure(expected)
    assert_close(result.model, expected)
    assert (result.model.step, result.model.seen, result.model.decay) == (3, 3 * len(x), 0.125)
    assert type(result.model.rate) is float
    assert load_checkpoint(tmp_path / "run", "latest", make()).model.step == 3


def test_an_update_may_return_numbers_unchanged_and_flags(tmp_path):
    def update(state, batch, lr, rng):
        new = {"w": state["w"] + 1, "rate": 1.0 * state["rate"], "flag": True, "none": 2 * state["none"]}
        new["huge"] = state["huge"] + 0
        return new, Own(jnp.float32(0))

    state = {"w": jnp.zeros(2), "rate": 0.5, "flag": False, "none": math.nan, "huge": 10**400}
    assert trained(build(tmp_path, state, 0.1, None, update=update), [BATCH])


# -- the public functions under jit and vmap ---------------------------------------------------------------------------


def test_training_equals_a_plain_optax_loop(tmp_path):
    make = functools.partial(optax.sgd, momentum=0.9)
    learner = build(tmp_path, WEIGHTS, 0.2, make, train_step=class_step, valid_step=class_step)
    batches = [rows(4, i) for i in range(5)]
    state, values = trained(learner, *[[batch] for batch in batches])
    params, optimizer = WEIGHTS, make(0.2)
    opt_state = optimizer.init(params)
    for batch, got in zip(batches, values, strict=True):
        loss, grads = mean_cross_entropy(params, batch)
        np.testing.assert_allclose(got["Loss"], loss, rtol=1e-5)
        updates, opt_state = optimizer.update(jax.tree.map(jnp.float32, grads), opt_state)
        params = optax.apply_updates(params, updates)
    assert_close(state.params, params)
    held_out = rows(16, 9)
    numbers = jax.jit(learner.valid_step)(state, held_out)
    np.testing.assert_allclose(numbers["Loss"], mean_cross_entropy(params, held_out)[0], rtol=1e-5)
    assert numbers["weight"] == 16


@pytest.mark.full
def test_labels_may_be_traced_by_a_jit_of_the_user(tmp_path):
    """The check of labels needs concrete values and must be skipped."""
    builder = LearnerBuilder(tmp_path / "run").metrics(Accuracy())
    learner = builder.build(WEIGHTS, optax.sgd, 0.1, train_step=class_step, valid_step=class_step)
    state = learner.init()

    @jax.jit
    def two(state, batch):
        state, _ = learner.train_step(state, batch)
        return learner.train_step(state, batch)[0], learner.valid_step(state, batch)["Accuracy"]

    state, accuracy = two(state, rows(8, 1))
    assert state.step == 2
    assert 0 <= accuracy <= 1


@pytest.mark.parametrize("kind", some(["nnx", "dict"], {"dict"}))
@pytest.mark.full
def test_rates_and_seeds_train_side_by_side(tmp_path, kind):
    """`vmap` over members with different rates and random keys, inside one `jit`."""
    case = CASE[kind]
    learner = build(tmp_path, case.make(), 0.1, optax.adamw, **case.steps)
    rates, seeds = jnp.float32([0.3, 0.1, 0.01, 0.0]), jnp.arange(4)
    first = learner.init()
    members = jax.vmap(lambda lr, seed: dataclasses.replace(first, lr_scale=lr, rng=jax.random.key(seed)))(rates, seeds)

    side_by_side = jax.jit(jax.vmap(learner.train_step, in_axes=(0, None)))
    batches = [BATCH, other_batch(1), other_batch(2)]
    with CompileTimes() as times:
        for batch in batches:
            members, values = side_by_side(members, batch)
    assert times.count == 1
    valid = jax.jit(jax.vmap(learner.valid_step, in_axes=(0, None)))(members, batches[0])
    step, evaluate = jax.jit(learner.train_step), jax.jit(learner.valid_step)
    params = jax.tree.map(np.asarray, members.params)
    for i in (0, 2):
        state = dataclasses.replace(first, lr_scale=rates[i], rng=jax.random.key(i))
        for batch in batches:
            state, alone = step(state, batch)
        assert_close(jax.tree.map(lambda x, i=i: x[i], params), state.params, 1e-4)
        np.testing.assert_allclose(values["Loss"][i], alone["Loss"], rtol=1e-4)
        np.testing.assert_allclose(valid["Loss"][i], evaluate(state, batches[0])["Loss"], rtol=1e-4)
        np.testing.assert_allclose(values["Learning Rate"][i], rates[i], rtol=1e-6)
    assert_bits(jax.tree.map(lambda x: x[3], params), first.params)  # rate 0
    assert len(set(np.asarray(values["Loss"]).tolist())) == 4


def test_the_given_state_is_not_changed(tmp_path):
    learner = build(tmp_path, make_dict(), 0.1, optax.adamw, **CASE["dict"].steps)
    state = learner.init()
    before = jax.tree.map(lambda x: np.array(jax.random.key_data(x) if is_key(x) else x), state)
    jax.jit(learner.train_step)(state, BATCH)
    jax.jit(learner.valid_step)(state, BATCH)
    after = jax.tree.map(lambda x: np.array(jax.random.key_data(x) if is_key(x) else x), state)
    assert_bits(after, before)


def is_key(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


@pytest.mark.full
def test_values_have_names(tmp_path):
    builder = LearnerBuilder(tmp_path / "run").metrics(Accuracy(), LearningRate())
    learner = builder.build(WEIGHTS, optax.sgd, 0.1, train_step=class_step, valid_step=class_step)
    state, values = jax.jit(learner.train_step)(learner.init(), rows(4, 1))
    assert sorted(values) == ["Accuracy", "Learning Rate", "Loss", "weight"]
    assert all(x.dtype == jnp.float32 and x.shape == () for x in values.values())
    assert sorted(jax.jit(learner.valid_step)(state, rows(4, 1))) == ["Accuracy", "Loss", "weight"]


def test_public_functions_refuse_unusable_input(tmp_path):
    learner = build(tmp_path, WEIGHTS, accumulate=2, train_step=class_step)
    state = learner.init()
    with raises_code("step-batch-count", "0", "2"):
        learner.train_step(state)
    with raises_code("step-batch-count", "3"):
        learner.train_step(state, *[rows(4, 1)] * 3)
    with raises_code("step-valid-missing", "valid_step"):
        learner.valid_step(state, rows(4, 1))
    evaluating = build(tmp_path, WEIGHTS, valid_step=class_step)
    with raises_code("step-train-missing", "train_step"):
        evaluating.train_step(state, rows(4, 1))
    for step, pattern in ((lambda m, b: None, "returned nothing"), (lambda m, b: b["x"], "no field 'loss'")):
        wrong = build(tmp_path, WEIGHTS, train_step=step, valid_step=step)
        with pytest.raises(LearnerError, match=f"train_step {pattern}|train_step returned an array .* {pattern}"):
            wrong.train_step(state, rows(4, 1))
        with pytest.raises(LearnerError, match=f"valid_step {pattern}|valid_step returned an array .* {pattern}"):
            wrong.valid_step(state, rows(4, 1))


# -- small pieces ------------------------------------------------------------------------------------------------------


def test_global_norm_by_hand():
    assert global_norm({"a": jnp.float32([3.0]), "b": jnp.float32([[4.0]])}) == 5.0
    half = {"a": jnp.full(300, 33.0, jnp.bfloat16)}  # 33² would be rounded to 1088 in bfloat16
    np.testing.assert_allclose(global_norm(half), 33 * np.sqrt(300), rtol=1e-6)
    assert global_norm({"z": jnp.array([3 + 4j])}) == 5.0
    layers = [{"w": jnp.full((80, 80), 0.5), "b": jnp.full(4, 2.0)} for _ in range(3)]  # 3 * (1600 + 16)
    np.testing.assert_allclose(global_norm(layers), np.sqrt(4848), rtol=1e-6)
    assert jnp.isnan(global_norm([jnp.ones(4), jnp.array([1.0, jnp.nan, 1.0, 1.0])]))


def test_small_arrays_of_a_shape_share_a_reduction_in_the_norm():
    program = jax.make_jaxpr(global_norm)([jnp.ones(4)] * 5 + [jnp.ones((80, 80))] * 2)
    assert sum(equation.primitive.name == "reduce_sum" for equation in program.eqns) == 4  # one of them adds the sums


def test_like_makes_types_strong_and_names_differences():
    weak = jax.jit(lambda: like({"x": 2.0}, {"x": jnp.float32(1)}, "it"))()
    assert not weak["x"].weak_type
    with raises_code("step-state-changed", "it", "float32[]", "int32[]", name="x"):
        like({"x": jnp.int32(1)}, {"x": jnp.float32(1)}, "it")
    with raises_code("model-structure-changed", "new: y; missing: x"):
        like({"y": 1.0}, {"x": jnp.float32(1)}, "it")


@pytest.mark.full
def test_keys_and_counters_in_a_pytree_are_carried(tmp_path):
    def train(model, batch):
        drawn = jax.random.uniform(model["key"])
        return Own(model["w"].sum() * drawn), {**model, "key": jax.random.split(model["key"], 1)[0]}

    model = {"w": jnp.float32(1), "key": jax.random.key(3), "n": 3}
    for accumulate in (1, 2):
        learner = build(tmp_path, model, 0.0, accumulate=accumulate, train_step=train)
        state, values = trained(learner, [BATCH] * accumulate, [BATCH] * accumulate)
        key, drawn = jax.random.key(3), []
        for _ in range(2 * accumulate):
            drawn.append(float(jax.random.uniform(key)))
            key = jax.random.split(key, 1)[0]
        expected = [np.mean(drawn[:accumulate]), np.mean(drawn[accumulate:])]
        np.testing.assert_allclose([v["Loss"] for v in values], expected, rtol=1e-6)
        assert jax.random.key_data(state.model_state["key"]).tolist() == jax.random.key_data(key).tolist()
