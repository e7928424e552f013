"""Tests of precision policies: casts, comparison with loops that cast explicitly, and the loss scale."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from learner import (
    ClassificationOutput,
    LearnerBuilder,
    LearnerError,
    LossScale,
    Policy,
    RegressionOutput,
    TrainOutput,
)
from learner.metrics import GradientNorm
from learner.metrics.base import Metric
from learner.models.adapters import adapter_of
from learner.steps.finite import NonFinitePolicy
from learner.steps.precision import DTYPES, FLOAT32, PRESETS, policy_of
from learner.util.trees import named_leaves
from tests.support.codes import raises_code
from tests.support.small_models import BATCH, CASES, make_list, other_batch
from tests.support.stopped import some

HALF = ("bfloat16", "float16")


def build(tmp_path, model, precision: Any, optimizer=optax.sgd, lr=0.1, accumulate=1, matmul=None, **steps):
    builder = LearnerBuilder(tmp_path / "run").precision(precision, matmul).grads_accumulation(accumulate)
    return builder.metrics(GradientNorm()).build(model, optimizer, lr, **steps)


def trained(learner, *batches, state=None):
    """Return the first state and the state after each step, and the values of each step."""
    step, states, values = jax.jit(learner.train_step), [learner.init() if state is None else state], []
    for batch in batches:
        new, numbers = step(states[-1], *(batch if isinstance(batch, list) else [batch]))
        states.append(new)
        values.append({name: float(x) for name, x in numbers.items()})
    return states, values


def cast(tree, dtype):
    return jax.tree.map(lambda x: jnp.asarray(x).astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree)


def dtypes_of(tree):
    return {name: str(x.dtype) for name, x in named_leaves(tree).items() if hasattr(x, "dtype")}


# -- casts -------------------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("case", some(CASES, [c for c in CASES if c.name == "linen"]), ids=str)
def test_float32_is_the_program_without_the_option(case, tmp_path):
    plain = LearnerBuilder(tmp_path / "plain").build(case.make(), optax.adamw, 0.1, **case.steps)
    set_ = LearnerBuilder(tmp_path / "set").precision("float32").build(case.make(), optax.adamw, 0.1, **case.steps)
    state = plain.init()
    assert state.extra.keys() == set_.init().extra.keys() == {"nonfinite"}
    for name in ("train_step", "valid_step"):
        programs = [str(jax.make_jaxpr(getattr(learner, name))(state, BATCH)) for learner in (plain, set_)]
        assert programs[0] == programs[1]
        assert not any(f"{short}[" in programs[0] for short in ("bf16", "f16"))


@pytest.mark.full
def test_float32_leaves_a_model_of_another_dtype_as_it_is(tmp_path):
    model = nnx.Linear(3, 2, param_dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    step = lambda model, batch: RegressionOutput.from_predictions(model(batch["x"].astype(jnp.bfloat16)), batch["y"])  # noqa: E731
    (_, state), _ = trained(build(tmp_path, model, "float32", train_step=step), BATCH)
    assert set(dtypes_of(state.params).values()) == {"bfloat16"}


@dataclasses.dataclass
class Spy:
    """A step that records the dtypes of its arguments."""

    step: Any
    seen: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __call__(self, model, batch, rng):
        arrays = nnx.as_pure(nnx.state(model)) if isinstance(model, nnx.Module) else getattr(model, "variables", model)
        self.seen = {"model": dtypes_of(arrays), "batch": dtypes_of(batch)}
        method = getattr(type(model), "train_step", None)
        for takes_rng in (True, False):
            step = self.step or method
            if ("rng" in step.__code__.co_varnames[: step.__code__.co_argcount]) is takes_rng:
                return step(model, batch, rng) if takes_rng else step(model, batch)
        raise AssertionError


STATISTICS = {  # model state that keeps its dtype
    "nnx": ("norm.mean", "norm.var"),
    "linen": ("batch_stats",),
    "nnx_dict": ("body.norm.mean", "body.norm.var"),
}


# BatchNorm of Equinox refuses rows and statistics of different dtypes.
MIXING = [case for case in CASES if case.name != "equinox_state"]
CHOSEN = [(case, d) for case in MIXING for d in HALF if (case.name, d) == ("dict", "float16")]


@pytest.mark.full
@pytest.mark.parametrize(("case", "dtype"), some([(case, d) for case in MIXING for d in HALF], CHOSEN), ids=str)
def test_parameters_and_batches_are_cast(case, dtype, tmp_path):
    """Statistics, integers and the kept state are not cast."""
    spies = Spy(case.step), Spy(case.step)
    policy = Policy(compute=dtype, loss_scale=LossScale(64.0))  # does not overflow with these gradients
    learner = build(tmp_path, case.make(), policy, optax.adamw, train_step=spies[0], valid_step=spies[1])
    batch = {**BATCH, "count": np.arange(8, dtype=np.int32), "on": np.ones(8, bool)}
    (before, after), (values,) = trained(learner, batch)
    jax.jit(learner.valid_step)(after, batch)
    for spy in spies:
        assert spy.seen["batch"] == {"x": dtype, "y": dtype, "count": "int32", "on": "bool"}
        for name, dtype_seen in spy.seen["model"].items():
            kept = name.startswith(STATISTICS.get(case.name, ()))
            assert dtype_seen in (("float32", "int32", "uint32") if kept else (dtype, "int32", "uint32", "key<fry>")), (
                name
            )
        assert dtype in spy.seen["model"].values()
    assert dtypes_of(after) == dtypes_of(before)
    for part in (after.params, after.opt_state):
        assert set(dtypes_of(part).values()) <= {"float32", "int32"}
    assert any(
        np.any(a != b) for a, b in zip(jax.tree.leaves(after.params), jax.tree.leaves(before.params), strict=True)
    )
    whole = build(tmp_path, case.make(), "float32", optax.adamw, **case.steps)
    _, (exact,) = trained(whole, BATCH)
    np.testing.assert_allclose(values["Loss"], exact["Loss"], rtol=0.05)
    assert values["Loss"] != exact["Loss"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Shown:
    loss: Any
    logits: Any
    label: Any
    weight: Any = None


def shown_step(model, batch):
    y = batch["x"] @ model["w"]
    return Shown(y.mean(), y, batch["n"], jnp.float32(8))


class Dtypes(Metric):
    """A metric that records the dtypes of its arguments."""

    name = "Dtypes"
    higher_is_better = None
    seen: dict[str, str] = {}

    def init(self):
        return jnp.float32(0)

    def update(self, state, output, info):
        type(self).seen = dtypes_of(dict(vars(output))) | {"info": str(info.weight.dtype)}
        return state

    merge = staticmethod(lambda a, b: a)
    compute = staticmethod(lambda state: state)


ONES = {"w": jnp.ones((3, 2))}
ROWS = {"x": np.ones((8, 3), np.float32), "n": np.arange(8, dtype=np.int32)}


@pytest.mark.parametrize("output", DTYPES)
@pytest.mark.parametrize("split", ["train", "valid"])
def test_metrics_receive_the_output_dtype(tmp_path, output, split):
    policy = Policy(compute="bfloat16", output=output)
    builder = LearnerBuilder(tmp_path / "run").precision(policy).metrics(Dtypes())
    learner = builder.build(ONES, optax.sgd, 0.1, train_step=shown_step, valid_step=shown_step)
    jax.eval_shape(getattr(learner, f"{split}_step"), learner.init(), ROWS)
    expected = {"loss": "float32", "logits": output, "label": "int32", "weight": "float32", "info": "float32"}
    assert Dtypes.seen == expected


def test_predictions_have_the_output_dtype(tmp_path):
    builder = LearnerBuilder(tmp_path / "run").renderer(None).precision("bfloat16")
    learner = builder.build(ONES, optax.sgd, 0.1, valid_step=shown_step)
    (output,) = learner.predict([ROWS])
    assert (output.logits.dtype, output.loss.dtype) == (np.float32, np.float32)


@pytest.mark.full
@pytest.mark.parametrize("param", ["float32", "bfloat16"])
def test_parameters_have_the_param_dtype(tmp_path, param):
    policy = Policy(param=param, compute="bfloat16")
    learner = build(tmp_path, make_list(), policy, optax.adam, train_step=list_loss, accumulate=2)
    (before, after), _ = trained(learner, [BATCH, other_batch(3)])
    assert set(dtypes_of((before.params, after.params, before.opt_state[0].mu)).values()) == {param}


def list_loss(model, batch):
    return RegressionOutput.from_predictions(batch["x"] @ model[0], batch["y"])


# -- frozen parameters -------------------------------------------------------------------------------------------------


def head_only(path, x):
    return "head" in path


@pytest.mark.full
@pytest.mark.parametrize("name", some(["nnx", "linen", "equinox", "dict"], ["nnx"]))
def test_frozen_parameters_are_cast_for_the_step_and_unchanged(name, tmp_path):
    (case,) = [case for case in CASES if case.name == name]
    spy = Spy(case.step)
    learner = build(tmp_path, case.make(), "bfloat16", train_step=spy, trainable=head_only)
    (before, after), _ = trained(learner, BATCH)
    frozen = {n: x for n, x in named_leaves(before.model_state).items() if "hidden" in n or "layers" in n}
    assert frozen
    for path, x in frozen.items():
        np.testing.assert_array_equal(named_leaves(after.model_state)[path], x, err_msg=path)
    assert all(dtype == "bfloat16" for path, dtype in spy.seen["model"].items() if "hidden" in path or "layers" in path)


class Moving(nnx.Module):
    """A model that changes a frozen parameter, and a statistic that it computes in half precision."""

    def __init__(self):
        self.head = nnx.Param(jnp.ones((3, 2)))
        self.slow = nnx.Param(jnp.full((2,), 0.1))
        self.mean = nnx.BatchStat(jnp.zeros(()))

    def train_step(self, batch):
        y = batch["x"] @ self.head[...]
        self.slow[...] = self.slow[...] * 2
        self.mean[...] = y.mean()
        return RegressionOutput.from_predictions(y, batch["y"])


@pytest.mark.full
def test_changed_state_keeps_its_dtype(tmp_path):
    (_, after), _ = trained(build(tmp_path, Moving(), "bfloat16", trainable=head_only), BATCH)
    assert set(dtypes_of(after.model_state).values()) == {"float32"}
    np.testing.assert_array_equal(after.model_state["slow"], np.float32([0.1, 0.1]) * 2)  # not that of bfloat16(0.1)
    expected = (jnp.asarray(BATCH["x"], jnp.bfloat16) @ jnp.ones((3, 2), jnp.bfloat16)).mean()
    np.testing.assert_allclose(after.model_state["mean"], np.float32(expected), rtol=1e-2)


# -- loops with explicit casts -----------------------------------------------------------------------------------------

MOMENTUM = functools.partial(optax.sgd, momentum=0.9)  # Adam would hide a wrong loss scale


def images(seed):
    rng = np.random.default_rng(seed)
    return {"x": rng.normal(size=(8, 6, 6, 1)).astype(np.float32), "y": rng.integers(0, 3, 8).astype(np.int32)}


def mlp():
    rng = np.random.default_rng(1)
    shapes = {"a": (36, 16), "b": (16,), "c": (16, 3)}
    return {name: jnp.asarray(rng.normal(size=shape) / 6, jnp.float32) for name, shape in shapes.items()}


def mlp_step(model, batch):
    x = batch["x"].reshape(len(batch["x"]), -1)
    hidden = jnp.tanh(x @ model["a"] + model["b"][None])
    return ClassificationOutput.from_logits(hidden @ model["c"], batch["y"])


class Cnn(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.conv = nnx.Conv(1, 4, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(4, momentum=0.9, rngs=rngs)
        self.head = nnx.Linear(144, 3, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.norm(self.conv(x)))
        return self.head(x.reshape(len(x), -1))

    def train_step(self, batch):
        return ClassificationOutput.from_logits(self(batch["x"]), batch["y"])

    valid_step = train_step


def cross_entropy(logits, y):
    return optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), y).mean()


def mlp_by_hand(dtype):
    def loss(params, statistics, batch):
        half, x = cast(params, dtype), jnp.asarray(batch["x"]).reshape(8, -1).astype(dtype)
        return cross_entropy(jnp.tanh(x @ half["a"] + half["b"][None]) @ half["c"], batch["y"]), statistics

    return loss, mlp(), {}


def cnn_by_hand(dtype):
    graph, params, statistics = nnx.split(Cnn(), nnx.Param, nnx.BatchStat)

    def loss(params, statistics, batch):
        with jax.numpy_dtype_promotion("standard"):
            model = nnx.merge(graph, cast(params, dtype), statistics)
            value = cross_entropy(model(jnp.asarray(batch["x"]).astype(dtype)), batch["y"])
            return value, nnx.as_pure(nnx.state(model, nnx.BatchStat))

    return loss, nnx.as_pure(params), nnx.as_pure(statistics)


def loop_by_hand(of, dtype, batches, scale):
    """Train float32 parameters with momentum and gradients of the scaled loss."""
    loss, params, statistics = of(dtype)
    optimizer = MOMENTUM(0.1)
    state = optimizer.init(params)

    @jax.jit
    def step(params, state, statistics, batch):
        def scaled(params):
            value, new = loss(params, statistics, batch)
            return value * jnp.float32(scale), (value, new)

        (_, (value, statistics_)), grads = jax.value_and_grad(scaled, has_aux=True)(params)
        grads = jax.tree.map(lambda g: g / jnp.float32(scale), grads)
        with jax.numpy_dtype_promotion("standard"):
            updates, state = optimizer.update(grads, state, params)
            return optax.apply_updates(params, updates), state, statistics_, value

    losses = []
    for batch in batches:
        params, state, statistics, value = step(params, state, statistics, batch)
        losses.append(float(value))
    return params, statistics, losses


LOOPS = [(*parts, d) for parts in ((mlp_by_hand, mlp, mlp_step), (cnn_by_hand, Cnn, None)) for d in HALF]


@pytest.mark.parametrize(("of", "model", "step", "dtype"), some(LOOPS, [LOOPS[0]]))
def test_training_equals_a_loop_with_explicit_casts(tmp_path, of, model, step, dtype):
    batches = [images(seed) for seed in range(6)]
    learner = build(tmp_path, model(), dtype, MOMENTUM, 0.1, **({} if step is None else {"train_step": step}))
    (*_, state), values = trained(learner, *batches)
    scale = 2.0**15 if dtype == "float16" else 1.0
    params, statistics, losses = loop_by_hand(of, dtype, batches, scale)
    exact, _, exact_losses = loop_by_hand(of, "float32", batches, 1.0)
    np.testing.assert_allclose([v["Loss"] for v in values], losses, rtol=1e-6)
    assert not np.allclose(losses, exact_losses, rtol=1e-6)
    for name, x in named_leaves(params).items():
        assert x.dtype == jnp.float32
        np.testing.assert_allclose(named_leaves(state.params)[name], x, rtol=1e-5, atol=1e-6, err_msg=name)
    for name, x in named_leaves(statistics).items():
        np.testing.assert_allclose(named_leaves(state.model_state)[name], x, rtol=1e-6, atol=1e-7, err_msg=name)
    assert any(np.abs(x - named_leaves(exact)[n]).max() > 5e-5 for n, x in named_leaves(params).items())


@pytest.mark.full
@pytest.mark.parametrize("dtype", some(HALF, ["bfloat16"]))
def test_validation_equals_explicit_casts(tmp_path, dtype):
    learner = build(tmp_path, mlp(), dtype, train_step=mlp_step, valid_step=mlp_step)
    values = jax.jit(learner.valid_step)(learner.init(), images(3))
    loss, params, _ = mlp_by_hand(dtype)
    np.testing.assert_allclose(values["Loss"], jax.jit(loss)(params, {}, images(3))[0], rtol=1e-6)
    assert abs(values["Loss"] - mlp_by_hand("float32")[0](params, {}, images(3))[0]) > 1e-6


@pytest.mark.full
@pytest.mark.parametrize("dtype", some(HALF, ["float16"]))
def test_accumulation_in_half_precision(tmp_path, dtype):
    """Sums are float32, so four micro-batches give the mean of their gradients."""
    group = [images(seed) for seed in range(4)]
    learner = build(tmp_path, mlp(), dtype, lr=1.0, accumulate=4, train_step=mlp_step)
    (before, after), _ = trained(learner, group)
    loss, params, _ = mlp_by_hand(dtype)
    scale = 2.0**15 if dtype == "float16" else 1.0
    grad = jax.jit(jax.grad(lambda params, batch: loss(params, {}, batch)[0] * scale))
    grads = [jax.tree.map(lambda g: np.float64(g) / scale, grad(params, batch)) for batch in group]
    for name in params:
        step = np.float64(before.params[name]) - np.float64(after.params[name])
        np.testing.assert_allclose(step, np.mean([g[name] for g in grads], 0), rtol=1e-4, atol=3e-8)


@pytest.mark.full
def test_own_gradients_are_cast_back(tmp_path):
    """The step differentiates by the cast parameters; its gradients are cast to float32."""
    seen = []

    def step(model, batch):
        loss = lambda model: mlp_step(model, batch).loss  # noqa: E731
        grads = jax.grad(loss)(model)
        seen.append(dtypes_of(grads))
        return TrainOutput(grads, mlp_step(model, batch))

    learner = build(tmp_path, mlp(), "bfloat16", lr=1.0, train_step=step)
    (before, after), _ = trained(learner, images(0))
    assert set(seen[-1].values()) == {"bfloat16"}
    micro = learner.definition.step.accumulate_micro_batch
    acc, _ = jax.eval_shape(micro, before, learner.definition.step.begin(before), images(0), jnp.int32(0))
    assert set(dtypes_of(acc.grads).values()) == {"float32"}
    loss, params, _ = mlp_by_hand("bfloat16")
    grads = jax.jit(jax.grad(lambda params: loss(params, {}, images(0))[0]))(params)
    for name in params:
        assert after.params[name].dtype == jnp.float32
        np.testing.assert_allclose(before.params[name] - after.params[name], grads[name], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("dtype", some(HALF, ["float16"]))
@pytest.mark.full
def test_line_searches_use_half_precision_and_a_float32_loss(tmp_path, dtype):
    learner = build(tmp_path, mlp(), dtype, optax.lbfgs, 1.0, train_step=mlp_step)
    _, values = trained(learner, *[images(0)] * 6)
    losses = [v["Loss"] for v in values]
    assert losses[-1] < 0.5 * losses[0]
    loss, params, _ = mlp_by_hand(dtype)
    state = learner.init()
    value = jax.jit(learner.definition.step.value_fn(state, images(0)))(params)
    assert value.dtype == jnp.float32
    np.testing.assert_allclose(value, jax.jit(loss)(params, {}, images(0))[0], rtol=1e-6)


# -- the loss scale ----------------------------------------------------------------------------------------------------


def product(model, batch):
    """Return a loss in the compute dtype, whose gradient is the number in the batch."""
    loss = model["w"] * batch["x"].mean()
    return Shown(loss, loss[None], batch["x"], jnp.float32(1))


ONE = {"w": jnp.float32(0.5)}


def number(x, rows=1):
    return {"x": np.full((rows,), x, np.float32)}


@pytest.mark.full
def test_small_gradients_are_not_lost(tmp_path):
    """2⁻²⁶ underflows in float16 without the loss scale."""
    learner = build(tmp_path, ONE, "float16", lr=2.0**20, train_step=lambda m, b: tiny(m, b))
    (_, after), _ = trained(learner, number(1.0))
    assert float(after.params["w"]) == 0.5 - 2.0**-6
    unscaled = build(tmp_path, ONE, Policy(compute="float16", loss_scale=LossScale(1.0)), lr=2.0**20, train_step=tiny)
    (_, after), _ = trained(unscaled, number(1.0))
    assert float(after.params["w"]) == 0.5


def tiny(model, batch):
    loss = (model["w"] * batch["x"].mean()).astype(jnp.float32) * 2.0**-26
    return Shown(loss, loss[None], batch["x"], jnp.float32(1))


def expected_scales(numbers, start, every):
    """Return `(scale, good, overflowed)` after each step; a step overflows if the scaled gradient exceeds float16."""
    scale, good, rows = start, 0, []
    for x in numbers:
        over = scale * x > 65504
        good = 0 if over else good + 1
        if over:
            scale /= 2
        elif good == every:
            scale, good = scale * 2, 0
        rows.append((scale, good, over))
    return rows


NUMBERS = [1.0, 100.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 100.0, 100.0, 50.0, 1.0]


@pytest.mark.full
@pytest.mark.parametrize("accumulate", some([1, 2], [2]))
def test_the_scale_changes_at_the_right_steps(tmp_path, accumulate):
    """A step that overflows changes only the scale and the count of steps."""
    policy = Policy(compute="float16", loss_scale=LossScale(1024.0, every=3))
    learner = build(tmp_path, ONE, policy, optax.adam, 0.01, accumulate, train_step=product)
    groups = [[number(x)] if accumulate == 1 else [number(1.0), number(x)] for x in NUMBERS]
    states, values = trained(learner, *groups)
    expected = expected_scales(NUMBERS, 1024.0, 3)
    assert {over for _, _, over in expected} == {True, False}
    updates = 0
    for before, after, numbers, (scale, good, over) in zip(states[:-1], states[1:], values, expected, strict=True):
        scaling = after.extra["loss_scale"]
        assert (float(scaling["scale"]), int(scaling["good"])) == (scale, good)
        assert int(after.step) == int(before.step) + 1
        updates += not over
        assert int(after.opt_state[0].count) == updates
        assert (float(after.params["w"]) == float(before.params["w"])) is over
        assert int(after.extra["nonfinite"][3]) == (-scale if over else 0)
        assert np.isnan(numbers["Gradient Norm"]) == over  # NaN is excluded from means, unlike inf
    assert expected_scales(NUMBERS, 1024.0, 3)[1][2]


@pytest.mark.full
def test_a_step_that_overflows_does_not_change_statistics(tmp_path):
    policy = Policy(compute="float16", loss_scale=LossScale(2.0**24))
    (before, after), _ = trained(build(tmp_path, Cnn(), policy, optax.adam), images(0))
    assert float(after.extra["loss_scale"]["scale"]) == 2.0**23
    for part in ("params", "model_state", "opt_state"):
        for a, b in zip(jax.tree.leaves(getattr(before, part)), jax.tree.leaves(getattr(after, part)), strict=True):
            np.testing.assert_array_equal(a, b)


def test_overflow_is_detected_in_the_sum_of_gradients(tmp_path):
    """Devices add their gradients between the last micro-batch and the end of the step."""
    learner = build(tmp_path, ONE, "float16", train_step=product)
    step, state = learner.definition.step, learner.init()
    acc, _ = step.accumulate_micro_batch(state, step.begin(state), number(1.0), jnp.int32(0))
    assert float(acc.grads["w"]) == 1.0
    other = dataclasses.replace(acc, grads={"w": acc.grads["w"] + jnp.inf})
    new, _, _ = step.finish(state, other)
    assert float(new.extra["loss_scale"]["scale"]) == 2.0**14
    assert float(new.params["w"]) == 0.5


def test_a_step_without_weight_does_not_affect_the_scale(tmp_path):
    def nothing(model, batch):
        output = product(model, batch)
        return dataclasses.replace(output, weight=jnp.float32(0))

    policy = Policy(compute="float16", loss_scale=LossScale(1024.0, every=1))
    states, _ = trained(build(tmp_path, ONE, policy, train_step=nothing), number(1.0), number(100.0))
    assert [float(s.extra["loss_scale"]["scale"]) for s in states] == [1024.0] * 3
    assert int(states[-1].extra["nonfinite"][3]) == 0


def test_the_scale_is_bounded():
    scaling = LossScale(2.0**24, every=1)
    state = scaling.after(scaling.fresh(), jnp.bool_(False), jnp.bool_(True))
    assert float(state["scale"]) == 2.0**24
    least = LossScale(1.0).fresh()
    one, inf = jnp.float32(1), jnp.float32(jnp.inf)
    assert not scaling.overflows(least, one, one, inf)
    assert scaling.overflows(scaling.fresh(), one, one, inf)
    assert not scaling.overflows(scaling.fresh(), one, inf, inf)


@pytest.mark.parametrize(
    ("policy", "x", "kind", "w"),
    [
        ("raise", 65500.0 * 1.5, 2, 0.5),
        ("skip", 65500.0 * 1.5, 2, 0.5),
        ("stop", 65500.0 * 1.5, 2, 0.5),
        ("ignore", 65500.0 * 1.5, 0, -np.inf),
        ("raise", np.nan, 1, 0.5),
        ("ignore", np.nan, 0, np.nan),
    ],
)
def test_at_the_minimum_scale_the_nonfinite_policy_applies(tmp_path, policy, x, kind, w):
    """For a NaN loss, it applies at any scale, which does not change."""
    start = 1.0 if x == x else 1024.0
    learner = LearnerBuilder(tmp_path / "run").on_nonfinite(policy)
    learner = learner.precision(Policy(compute="float16", loss_scale=LossScale(start)))
    learner = learner.build(ONE, optax.sgd, 0.1, train_step=huge)
    (_, after), _ = trained(learner, number(x))
    assert int(after.extra["nonfinite"][3]) % 4 == kind
    assert float(after.extra["loss_scale"]["scale"]) == start
    np.testing.assert_array_equal(after.params["w"], np.float32(w))


def huge(model, batch):
    """Return a finite loss whose float16 gradient overflows if the number does."""
    x = batch["x"].mean()
    value = jnp.where(jnp.isnan(x), x.astype(jnp.float32), jnp.float32(1.0))
    loss = value + model["w"].astype(jnp.float32) * 0 + steep(model["w"], x)
    return Shown(loss, loss[None], batch["x"], jnp.float32(1))


@jax.custom_vjp
def steep(w, x):
    return jnp.float32(0)


steep.defvjp(lambda w, x: (jnp.float32(0), x), lambda x, g: (x * 2, jnp.zeros_like(x)))


def test_overflows_do_not_count_among_skipped_steps():
    """They do not interrupt consecutive skipped steps, either."""
    watch = NonFinitePolicy("skip", in_a_row=2)
    mark, changes = watch.look(watch.fresh(), jnp.int32(0), jnp.float32(1), jnp.float32(jnp.nan), jnp.float32(1))
    mark, changes = watch.look(mark, jnp.int32(1), jnp.float32(0), jnp.float32(1), jnp.float32(jnp.inf))
    assert changes
    assert mark.tolist() == [0, 1, 1, 0]


# -- matrix products ---------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("matmul", some([None, "default", "high", "highest"], ["high"]))
def test_the_precision_of_matrix_products(tmp_path, matmul):
    learner = build(tmp_path, Cnn(), "float32", matmul=matmul)
    for step in (learner.train_step, learner.valid_step):
        text = str(jax.make_jaxpr(step)(learner.init(), images(0)))
        expected = {None: "None", "default": "None", "high": "HIGH", "highest": "HIGHEST"}[matmul]
        for operation in ("dot_general", "conv_general_dilated"):
            assert operation in text
        precisions = {part.split("\n")[0].split("]")[0].strip("( ,)") for part in text.split("precision=")[1:]}
        assert all((expected in part) is (expected != "None") or expected == "None" for part in precisions), precisions
        assert any("HIGH" in part for part in precisions) is (matmul in ("high", "highest"))


# -- wrong input -------------------------------------------------------------------------------------------------------

WRONG = {
    "no dtype": (
        lambda: Policy(compute="float8"),
        ("precision-dtype-unknown", "compute", "'float8'", "'float32'", "'bfloat16'"),
    ),
    "an integer": (lambda: Policy(output=jnp.int32), ("precision-dtype-unknown", "output", "int32")),
    "nothing": (lambda: Policy(param=None), ("precision-dtype-unknown", "param", "None")),
    "parameters in float16": (lambda: Policy(param="float16"), ("precision-float16-params",)),
    "no loss scale": (
        lambda: Policy(compute="float16", loss_scale=8.0),
        ("precision-loss-scale-type", "8.0"),
    ),
    "a scale of float32": (lambda: Policy(loss_scale=LossScale()), ("precision-loss-scale-unneeded",)),
    "no power of two": (lambda: LossScale(1000.0), ("precision-loss-scale-start", "1000.0")),
    "below 1": (lambda: LossScale(0.5), ("precision-loss-scale-start", "0.5")),
    "a text": (lambda: LossScale("8"), ("precision-loss-scale-start", "'8'")),
    "too large": (lambda: LossScale(2.0**25), ("precision-loss-scale-start",)),
    "true": (lambda: LossScale(True), ("precision-loss-scale-start", "True")),
    "no steps": (lambda: LossScale(every=0), ("precision-loss-scale-every", "0")),
    "half a step": (lambda: LossScale(every=1.5), ("precision-loss-scale-every", "1.5")),
    "no policy": (lambda: policy_of("half"), ("precision-policy-unknown", "'half'", "'float32'")),
}


@pytest.mark.parametrize("case", WRONG)
def test_invalid_policies_are_refused(case):
    make, expected = WRONG[case]
    with raises_code(*expected):
        make()


def test_dtypes_may_be_objects():
    assert Policy(np.float32, jnp.bfloat16, jnp.dtype("float16")) == Policy("float32", "bfloat16", "float16")
    assert PRESETS["float32"] == FLOAT32
    assert PRESETS["float16"].scaling == LossScale()
    assert PRESETS["bfloat16"].scaling is None


@pytest.mark.parametrize("policy", ["float32", "bfloat16"])
def test_a_weight_in_half_precision_is_refused(tmp_path, policy):
    """A batch may have masks in half precision of its own."""

    def step(model, batch):
        return dataclasses.replace(shown_step(model, batch), weight=batch["x"].astype(jnp.bfloat16).sum())

    learner = build(tmp_path, ONES, policy, train_step=step, valid_step=step)
    for name, call in (("train_step", learner.train_step), ("valid_step", learner.valid_step)):
        with pytest.raises(LearnerError, match=rf"the weight of {name}'s output is bfloat16.*sum\(dtype=jnp.float32\)"):
            call(learner.init(), ROWS)


def test_own_gradients_with_a_loss_scale_are_refused(tmp_path):
    def step(model, batch):
        return TrainOutput(model, shown_step(model, batch))

    learner = build(tmp_path, ONES, "float16", train_step=step)
    with pytest.raises(LearnerError, match=r"scales the loss .*computes its own gradients.*precision\('bfloat16'\)"):
        learner.train_step(learner.init(), ROWS)


def test_update_refuses_precision_and_remat(tmp_path):
    update = lambda model, batch, lr, rng: (model, shown_step(model, batch))  # noqa: E731
    builder = LearnerBuilder(tmp_path / "run").precision("bfloat16").remat("dots_saveable")
    with pytest.raises(LearnerError) as error:
        builder.build(ONES, None, 0.1, update=update)
    assert "precision 'bfloat16 (parameters" in str(error.value)
    assert "remat cannot act on it" in str(error.value)
    learner = LearnerBuilder(tmp_path / "run").precision("float32", "high").build(ONES, None, 0.1, update=update)
    assert "HIGH" in str(jax.make_jaxpr(learner.train_step)(learner.init(), ROWS))


@pytest.mark.full
def test_frozen_flags_match_the_model_state_of_every_library():
    for case in CASES:
        adapter = adapter_of(case.make())
        assert jax.tree.structure(adapter.frozen) == jax.tree.structure(adapter.model_state), case.name
        if case.name == "equinox_state":  # its State contains all state
            assert set(jax.tree.leaves(adapter.frozen)) == {False}


# -- frozen parameters that a step assigns -----------------------------------------------------------------------------


class Followed(nnx.Module):
    def __init__(self):
        self.w, self.teacher = nnx.Param(jnp.ones((1, 3))), nnx.Param(jnp.ones((1, 3)))


def follow_in_place(model, batch):
    model.teacher[...] = model.teacher[...] * jnp.float32(0.999)
    return {"loss": jnp.square(model.w[...] * batch["x"]).mean()}


def follow(model, batch):
    teacher = model["teacher"] * jnp.float32(0.999)
    return {"loss": jnp.square(model["w"] * batch["x"]).mean()}, {**model, "teacher": teacher}


@pytest.mark.parametrize("precision", HALF)
@pytest.mark.parametrize(
    ("make", "step"),
    [(Followed, follow_in_place), (lambda: {"w": jnp.ones((1, 3)), "teacher": jnp.ones((1, 3))}, follow)],
    ids=["nnx", "dict"],
)
def test_a_moving_average_of_frozen_parameters_is_not_rounded(tmp_path, make, step, precision):
    """0.999 is 1 in bfloat16, and a teacher that half precision rounds in each step stays where it is."""
    data = [{"x": np.ones((2, 3), np.float32)}] * 5
    builder = LearnerBuilder(tmp_path / "run").precision(precision).freeze("teacher").renderer(None).num_epochs(8)
    learner = builder.build(make(), optax.sgd, 0.0, train_step=step)
    state = learner.init()
    for _ in range(2):
        state, _ = learner.train_step(state, data[0])
    expected = {2: np.full((1, 3), 0.999**2), 40: np.full((1, 3), 0.999**40)}
    for steps, model in {2: learner.model_of(state), 40: learner.fit(data).model}.items():
        teacher = model["teacher"] if isinstance(model, dict) else model.teacher[...]
        np.testing.assert_allclose(teacher, expected[steps], rtol=1e-5)


def test_a_moving_average_that_must_be_cast_is_warned_about(tmp_path):
    """A convolution takes no operands of two types."""

    def convolved(model, batch):
        x, kernel = batch["x"][:, None, :], model["teacher"][None]
        y = jax.lax.conv_general_dilated(x, kernel, (1,), "SAME")
        teacher = model["teacher"] * jnp.float32(0.999)
        return {"loss": jnp.square(model["w"] * y.mean()).mean()}, {**model, "teacher": teacher}

    model = {"w": jnp.ones((1, 3)), "teacher": jnp.ones((1, 3))}
    for precision, count in (("float32", 0), ("bfloat16", 1)):
        builder = LearnerBuilder(tmp_path / precision).precision(precision).freeze("teacher").renderer(None)
        builder.num_epochs(1).build(model, optax.sgd, 0.0, train_step=convolved).fit(
            [{"x": np.ones((2, 3), np.float32)}]
        )
        assert (tmp_path / precision / "experiment.log").read_text().count("half precision rounds them") == count
