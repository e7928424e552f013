"""Tests of optimizers: every optax optimizer with a traced rate, extra arguments, schedules, and refused optimizers.

The reference is a loop with a fixed rate that uses optax directly.
"""

import contextlib
import dataclasses
import functools
import inspect
import platform
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest
from flax import nnx, traverse_util

from learner import LearnerBuilder, LearnerError, Optimizer, RegressionOutput, TrainOutput
from learner.metrics import LearningRate
from learner.models.adapters import adapter_of
from learner.schedules import Constant, OneCycle
from learner.steps.buffers import ResidentBatches
from learner.steps.measure import MetricCollection
from learner.steps.optimizer import lr_at, update_params
from learner.steps.optimizer_checks import OptimizerCheck, check_optimizer, check_schedule, is_schedule
from learner.steps.program import Programs
from learner.steps.step import StepFunctions
from learner.steps.step_definition import step_fn
from learner.training.programs.compilation import CompileTimes
from tests.support.codes import raises_code
from tests.support.runs import line, regression_step

# -- the registry ------------------------------------------------------------------------------------------------------


def public_with_a_rate() -> dict[str, Callable[..., Any]]:
    """Return every public function of optax with a parameter `learning_rate` or `max_learning_rate`."""
    functions = {}
    for prefix, namespace in (("", optax), ("contrib.", optax.contrib)):
        for name, thing in vars(namespace).items():
            if not name.startswith("_") and inspect.isfunction(thing) and rate_name(thing):
                functions[prefix + name] = thing
    return functions


def rate_name(function: Callable[..., Any]) -> str | None:
    names = inspect.signature(function).parameters
    return next((name for name in ("learning_rate", "max_learning_rate") if name in names), None)


PUBLIC = public_with_a_rate()

# Arguments besides the rate, and extra arguments of `update`.
FURTHER: dict[str, Callable[..., dict[str, Any]]] = {
    "noisy_sgd": lambda lr: {"key": jax.random.key(3)},
    "contrib.schedule_free": lambda lr: {"base_optimizer": optax.sgd(lr)},
    "contrib.dpsgd": lambda lr: {"l2_norm_clip": 0.5, "noise_multiplier": 0.1, "seed": 3},
}
EXTRA: dict[str, tuple[str, ...]] = {
    "lbfgs": ("value", "grad", "value_fn"),
    "polyak_sgd": ("value",),
    "scale_by_polyak": ("value",),
    "scale_by_backtracking_linesearch": ("value", "grad", "value_fn"),
    "scale_by_zoom_linesearch": ("value", "grad", "value_fn"),
    "contrib.momo": ("value",),
    "contrib.momo_adam": ("value",),
    "contrib.sophia": ("obj_fn",),
}
MORE_ARGUMENTS: dict[str, dict[str, Any]] = {
    "scale_by_backtracking_linesearch": {"max_backtracking_steps": 5},
    "scale_by_zoom_linesearch": {"max_linesearch_steps": 5},
}
EACH_EXAMPLE = {"contrib.dpsgd"}
SCALE_FREE = {"contrib.cocob"}  # its rate scales the gradients, whose scale does not matter
# XLA folds a constant rate, so the last bits differ from those of a loop with the rate as an argument. A line search
# feeds the difference back into its step lengths. Values are relative tolerances.
FOLDED_BY_XLA = {"adafactor": 0.0, "fromage": 0.0, "lars": 0.0, "lbfgs": 1e-4}


def maker(name: str) -> Callable[[Any], optax.GradientTransformation]:
    """Return a public optimizer as a function of the rate alone."""
    function = PUBLIC[name]
    fixed = MORE_ARGUMENTS.get(name, {})
    further = FURTHER.get(name, lambda lr: {})

    def make(lr: Any) -> optax.GradientTransformation:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # optax's own
            return function(**{rate_name(function): lr}, **fixed, **further(lr))

    return make


# Typical compositions.
COMPOSED: dict[str, Callable[[Any], optax.GradientTransformation]] = {
    "partial": functools.partial(optax.adamw, weight_decay=0.1),
    "clipped": lambda lr: optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(lr)),
    "by_part": lambda lr: optax.multi_transform(
        {"fast": optax.sgd(lr), "slow": optax.adam(lr * 0.1)}, {"w": "fast", "b": "slow"}
    ),
    "frozen_part": lambda lr: optax.chain(
        optax.masked(optax.sgd(lr), {"w": True, "b": False}), optax.masked(optax.set_to_zero(), {"w": False, "b": True})
    ),
    "finite": lambda lr: optax.apply_if_finite(optax.sgd(lr, momentum=0.9), 3),
    "own_steps": lambda lr: optax.MultiSteps(optax.sgd(lr), 2).gradient_transformation(),
}


def test_the_registry_is_complete():
    assert set(PUBLIC) > {"adamw", "lbfgs", "rprop", "polyak_sgd", "contrib.muon", "contrib.prodigy", "contrib.dpsgd"}
    assert len([name for name in PUBLIC if "." not in name]) >= 27
    assert len([name for name in PUBLIC if "." in name]) >= 17
    for name, function in PUBLIC.items():
        parameters = inspect.signature(function).parameters.values()
        needed = {p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD}
        given = {rate_name(function), *FURTHER.get(name, lambda lr: {})(0.1), *MORE_ARGUMENTS.get(name, {})}
        assert needed <= given, f"{name} is new, or needs more: say in FURTHER what it is given"


def test_the_tables_name_optimizers_that_exist():
    for table in (FURTHER, EXTRA, MORE_ARGUMENTS, EACH_EXAMPLE, SCALE_FREE, FOLDED_BY_XLA):
        assert set(table) <= set(PUBLIC)


# -- bits --------------------------------------------------------------------------------------------------------------

STEPS, ROWS = 5, 8
_rng = np.random.default_rng(0)
PARAMS = {
    "w": jnp.asarray(_rng.normal(size=(3, 4)), jnp.float32),
    "b": jnp.asarray(_rng.normal(size=(4,)), jnp.float32),
}
DATA = {
    "x": jnp.asarray(_rng.normal(size=(STEPS * ROWS, 3)), jnp.float32),
    "y": jnp.asarray(_rng.normal(size=(STEPS * ROWS, 4)), jnp.float32),
}


def train_step(model, batch):
    predicted = jnp.tanh(batch["x"] @ model["w"] + model["b"][None])
    return RegressionOutput.from_predictions(predicted, batch["y"])


def each_example_step(model, batch) -> TrainOutput:
    one = jax.grad(lambda model, row: train_step(model, jax.tree.map(lambda x: x[None], row)).loss)
    return TrainOutput(jax.vmap(one, (None, 0))(model, batch), train_step(model, batch))


def plain_loop(name: str, rate: float, as_argument: bool = False) -> Any:
    """Train in a plain loop, with the rate as a constant or as an argument of the compiled function."""
    make, extra = ALL[name], EXTRA.get(name, ())

    def loss_of(params, batch):
        predicted = jnp.tanh(batch["x"] @ params["w"] + params["b"][None])
        return jnp.square(predicted - batch["y"]).mean(-1).mean()

    @jax.jit
    def steps(params, data, count, argument):
        optimizer = make(argument if as_argument else rate)

        def body(i, carry):
            params, opt_state = carry
            batch = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, i * ROWS, ROWS), data)
            value, grads = jax.value_and_grad(loss_of)(params, batch)
            if name in EACH_EXAMPLE:
                rows = jax.tree.map(lambda x: x[:, None], batch)
                grads = jax.vmap(jax.grad(loss_of), (None, 0))(params, rows)
            value_fn = lambda p: loss_of(p, batch)  # noqa: E731
            have = {"value": value, "grad": grads, "value_fn": value_fn, "obj_fn": value_fn}
            updates, opt_state = optimizer.update(grads, opt_state, params, **{name: have[name] for name in extra})
            return optax.apply_updates(params, updates), opt_state

        return jax.lax.fori_loop(0, count, body, (params, optimizer.init(params)))[0]

    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return steps(PARAMS, DATA, jnp.int32(STEPS), jnp.float32(rate))


class Ours:
    """The training program of a learner with an optimizer; `run` accepts any rate."""

    def __init__(self, make: Callable[[Any], Any], own_grads: bool = False):
        train = each_example_step if own_grads else train_step
        nothing = MetricCollection.of([])
        self.step = StepFunctions(
            adapter_of(PARAMS), step_fn(PARAMS, "train_step", train), None, None, nothing, nothing, optimizer=make
        )
        self.step = dataclasses.replace(self.step, own_grads=own_grads)
        self.tree = jax.tree.structure(self.step.init(0.1, 0))
        self.program = jax.jit(Programs(self.step, self.tree).train)
        self.feed = ResidentBatches(DATA, ROWS, STEPS)
        self.epoch = nothing.fresh()

    def run(self, rate: float) -> tuple[Any, int]:
        """Return the parameters after `STEPS` steps, and the number of compiled programs."""
        leaves = jax.tree.leaves(self.step.init(rate, 0))
        cursor, count = jnp.int32(0), jnp.int32(STEPS)
        with CompileTimes() as times:
            leaves, *_ = self.program(leaves, self.epoch, self.feed, cursor, count)
        return self.tree.unflatten(leaves).params, times.count


def assert_same(got: Any, expected: Any) -> None:
    """Compare bits on x86 CPUs, where XLA rounds both programs alike; elsewhere allow 2 ulp per step."""
    if platform.machine() in ("x86_64", "AMD64") and jax.default_backend() == "cpu":
        jax.tree.map(np.testing.assert_array_equal, got, expected)
    else:
        assert_near(got, expected, 0.0)


def assert_near(got: Any, expected: Any, tolerance: float) -> None:
    """Allow 2 ulp of the largest number per step, or a tolerance relative to that number."""
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        largest = np.abs(b).max()
        np.testing.assert_allclose(a, b, rtol=0, atol=max(2 * STEPS * np.spacing(largest), tolerance * largest))


ALL = {**{name: maker(name) for name in PUBLIC}, **COMPOSED}


# One of each kind; full runs contain the others.
SAMPLE = {
    *("adafactor", "rprop", "contrib.cocob", "by_part"),
}


@pytest.mark.full
@pytest.mark.parametrize("name", [n if n in SAMPLE else pytest.param(n, marks=pytest.mark.full) for n in ALL])
def test_a_traced_rate_gives_the_bits_of_a_fixed_one(name):
    ours = Ours(ALL[name], name in EACH_EXAMPLE)
    first, compiled = ours.run(0.25)
    assert compiled == 1
    second, compiled = ours.run(0.03)
    assert compiled == 0  # another rate uses the same program
    for changed in (first, second):
        assert not np.array_equal(changed["w"], PARAMS["w"])
    if name not in SCALE_FREE:
        assert not np.array_equal(first["w"], second["w"])  # the given rate is used
    if name in FOLDED_BY_XLA:
        assert_same(second, plain_loop(name, 0.03, as_argument=True))
        assert_near(second, plain_loop(name, 0.03), FOLDED_BY_XLA[name])
    else:
        assert_same(second, plain_loop(name, 0.03))


def test_the_comparison_detects_one_bit():
    one = {"w": np.float32([1.0, 2.0])}
    other = {"w": np.nextafter(one["w"], np.float32(3))}
    if platform.machine() in ("x86_64", "AMD64") and jax.default_backend() == "cpu":
        with pytest.raises(AssertionError):
            assert_same(one, other)
    with pytest.raises(AssertionError):
        assert_near(one, {"w": one["w"] * np.float32(1.00001)}, 0.0)


# -- extra arguments ---------------------------------------------------------------------------------------------------


class Seen(NamedTuple):
    """The extra arguments of an update."""

    value: Any
    grad: Any
    again: Any


def looking(lr: Any, again: bool = True) -> optax.GradientTransformationExtraArgs:
    """Return SGD that records its extra arguments and the loss evaluated again."""

    def init(params):
        zero = jnp.float32(0)
        return Seen(zero, jax.tree.map(jnp.zeros_like, params), zero)

    def update(updates, state, params=None, *, value, grad, value_fn=None, **extra):
        loss = value_fn(params) if again else jnp.float32(0)
        return jax.tree.map(lambda g: -lr * g, updates), Seen(value, grad, loss)

    return optax.GradientTransformationExtraArgs(init, update)


class Dropped(nnx.Module):
    """A model whose loss depends on random keys."""

    def __init__(self):
        rngs = nnx.Rngs(0)
        self.linear, self.drop, self.norm = (
            nnx.Linear(3, 4, rngs=rngs),
            nnx.Dropout(0.5, rngs=rngs),
            nnx.BatchNorm(4, rngs=rngs),
        )

    def train_step(self, batch, rng):
        noise = jax.random.normal(rng, batch["y"].shape)
        predicted = self.drop(self.norm(self.linear(batch["x"])))
        return RegressionOutput.from_predictions(predicted, batch["y"] + noise)


def some_rows(start: int, stop: int) -> dict[str, Any]:
    return {name: x[start:stop] for name, x in DATA.items()}


def build(model: Any, optimizer: Any, lr: Any, tmp_path: Any, accumulate: int = 1, **steps: Any) -> Any:
    builder = LearnerBuilder(tmp_path / "run").grads_accumulation(accumulate)
    return builder.metrics(LearningRate()).build(model, optimizer, lr, **steps)


@pytest.mark.full
def test_extra_arguments_are_the_loss_the_gradients_and_the_loss_function(tmp_path):
    learner = build(Dropped(), looking, 0.1, tmp_path)
    step = jax.jit(learner.train_step)
    state = learner.init()
    for i in range(3):
        before, (state, values) = state, step(state, some_rows(8 * i, 8 * i + 8))
        seen = state.opt_state
        np.testing.assert_allclose(seen.value, values["Loss"], rtol=1e-6)
        np.testing.assert_allclose(seen.again, seen.value, rtol=1e-5)  # equal masks and noise
        np.testing.assert_allclose(  # the gradients of the update
            seen.grad["linear"]["kernel"],
            (before.params["linear"]["kernel"] - state.params["linear"]["kernel"]) / 0.1,
            rtol=1e-2,
            atol=1e-5,
        )


@pytest.mark.full
def test_the_loss_of_an_accumulated_step_is_the_weighted_mean(tmp_path):
    once = functools.partial(looking, again=False)
    learner = build(PARAMS, once, 0.1, tmp_path, accumulate=2, train_step=train_step)
    state, _ = jax.jit(learner.train_step)(learner.init(), some_rows(0, 6), some_rows(6, 8))
    w, b, x, y = (np.asarray(a, np.float64) for a in (PARAMS["w"], PARAMS["b"], DATA["x"][:8], DATA["y"][:8]))
    np.testing.assert_allclose(state.opt_state.value, ((np.tanh(x @ w + b) - y) ** 2).mean(), rtol=1e-6)


@pytest.mark.full
def test_lbfgs_finds_the_least_squares_solution(tmp_path):
    learner = build(line(3, 4, bias=False), optax.lbfgs, 1.0, tmp_path, train_step=regression_step)
    step, state = jax.jit(learner.train_step), learner.init()
    for _ in range(10):
        state, _ = step(state, DATA)
    expected = np.linalg.lstsq(np.asarray(DATA["x"], np.float64), np.asarray(DATA["y"], np.float64))[0]
    np.testing.assert_allclose(state.params["w"], expected, atol=1e-4)


@pytest.mark.full
@pytest.mark.parametrize("store_grad", [pytest.param(False, marks=pytest.mark.full), True])
def test_a_line_search_receives_the_float64_loss_of_a_float64_model(tmp_path, store_grad):
    """The loss at the minimum is 0.5, and float32 would hide a decrease by 1e-9."""
    search = optax.scale_by_backtracking_linesearch(20, store_grad=store_grad)
    lbfgs = functools.partial(optax.lbfgs, linesearch=search)

    def value(w):
        return 0.5 + jnp.sum(jnp.cosh(w * jnp.arange(1.0, 4.0)) - 1)

    with jax.enable_x64(True):
        first = jnp.array([0.3, -0.2, 0.5])
        learner = build({"w": first}, lbfgs, 1.0, tmp_path, train_step=lambda m, _: {"loss": value(m["w"])})
        step, state = jax.jit(learner.train_step), learner.init()
        optimizer = lbfgs(1.0)
        w, of_optax = first, optimizer.init(first)

        @jax.jit
        def step_of_optax(w, opt_state):
            loss, grad = jax.value_and_grad(value)(w)
            updates, opt_state = optimizer.update(grad, opt_state, w, value=loss, grad=grad, value_fn=value)
            return optax.apply_updates(w, updates), opt_state

        for _ in range(12):
            state, _ = step(state, {"x": jnp.zeros((1, 1))})
            with jax.numpy_dtype_promotion("standard"):  # optax needs it
                w, of_optax = step_of_optax(w, of_optax)
        np.testing.assert_allclose(state.params["w"], w, atol=1e-12)
        assert np.abs(state.params["w"]).max() < 1e-8


INJECTED = {
    "adam": lambda lr: optax.inject_hyperparams(optax.adam)(learning_rate=lr),
    "chain": lambda lr: optax.chain(optax.clip(1.0), optax.inject_hyperparams(optax.sgd)(0.5 * lr, momentum=0.9)),
    "group": lambda lr: optax.partition(
        {"w": optax.inject_hyperparams(optax.sgd)(lr), "b": optax.sgd(lr)}, {"w": "w", "b": "b"}
    ),
}


def injected(path):
    return any(getattr(key, "name", "") == "hyperparams" for key in path)


@pytest.mark.full
@pytest.mark.parametrize("name", INJECTED)
def test_hyperparameters_that_optax_injects_follow_the_rate(name, tmp_path):
    """The first rate is 0, so an optimizer that keeps it would not change the parameters."""
    schedule = optax.linear_schedule(0.0, 0.1, 4)
    make = INJECTED[name]
    learner = build(PARAMS, make, schedule, tmp_path, train_step=train_step)
    step, state = jax.jit(learner.train_step), learner.init()
    gradient = jax.jit(jax.grad(lambda params, batch: train_step(params, batch).loss))
    params, opt_state = PARAMS, None
    for i in range(6):
        batch = some_rows(4 * i, 4 * i + 4)
        state, _ = step(state, batch)
        with jax.numpy_dtype_promotion("standard"):
            optimizer = make(schedule(i))  # its initial state contains the rate of this step
            fresh = optimizer.init(params)
            old = fresh if opt_state is None else opt_state
            opt_state = jax.tree_util.tree_map_with_path(lambda p, x, new: new if injected(p) else x, old, fresh)
            updates, opt_state = optimizer.update(gradient(params, batch), opt_state, params)
            params = optax.apply_updates(params, updates)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), state.params, params)
    assert not np.array_equal(state.params["w"], PARAMS["w"])
    assert any(np.isclose(x, 0.1) or np.isclose(x, 0.05) for x in jax.tree.leaves(state.opt_state) if x.shape == ())


def test_rprop_starts_with_the_first_rate_of_the_schedule(tmp_path):
    schedule = optax.linear_schedule(0.25, 0.125, 10)
    learner = build(PARAMS, optax.rprop, schedule, tmp_path, train_step=train_step)
    sizes = [x for x in jax.tree.leaves(learner.init().opt_state) if x.shape == (3, 4) and x.any()]
    assert len(sizes) == 1
    assert (sizes[0] == 0.25).all()


def test_update_params_works_alone():
    params, grads = {"w": jnp.array([1.0, 2.0])}, {"w": jnp.array([1.0, -1.0])}
    opt_state = optax.sgd(0.5, momentum=0.5).init(params)
    make = functools.partial(optax.sgd, momentum=0.5)
    for _ in range(2):
        params, opt_state = update_params(make, jnp.float32(0.5), grads, opt_state, params, loss=jnp.float32(0))
    # velocity 1, then 1.5
    np.testing.assert_array_equal(params["w"], [1 - 0.5 - 0.75, 2 + 0.5 + 0.75])


@pytest.mark.full
def test_complex_parameters_descend(tmp_path):
    """For f = |w|² with w = 1 + 2i, `jax.grad` returns ∂f/∂x - i ∂f/∂y = 2 - 4i; descent steps against 2 + 4i."""
    model, batch = {"w": jnp.complex64(1 + 2j)}, {"x": np.zeros(1, np.float32)}
    loss = lambda model, batch: {"loss": jnp.abs(model["w"]) ** 2}  # noqa: E731
    gradients = lambda model, batch: TrainOutput(jax.grad(lambda w: jnp.abs(w["w"]) ** 2)(model), loss(model, batch))  # noqa: E731
    sam = lambda lr: optax.contrib.sam(optax.sgd(lr), optax.sgd(0.25), opaque_mode=True)  # noqa: E731
    # The last optimizer first ascends by 0.25 (2 + 4i) to 1.5 + 3i, where the gradient direction is 3 + 6i.
    for optimizer, step, expected in (
        (optax.sgd, loss, 0.8 + 1.6j),
        (optax.sgd, gradients, 0.8 + 1.6j),
        (sam, loss, 0.7 + 1.4j),
    ):
        learner = build(model, optimizer, 0.1, tmp_path, train_step=step)
        state, _ = learner.train_step(learner.init(), batch)
        np.testing.assert_allclose(state.params["w"], expected, rtol=1e-6)


@pytest.mark.full
def test_lbfgs_finds_complex_parameters():
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=(6, n)) + 1j * rng.normal(size=(6, n)) for n in (3, 1))
    loss = lambda w: (jnp.abs(jnp.asarray(a) @ w - jnp.asarray(b)) ** 2).sum()  # noqa: E731
    params = jnp.zeros((3, 1), jnp.complex64)
    opt_state = optax.lbfgs(1.0).init(params)
    for _ in range(10):
        value, grads = jax.value_and_grad(loss)(params)
        given = (optax.lbfgs, jnp.float32(1), grads, opt_state, params)
        params, opt_state = update_params(*given, loss=value, value_fn=loss)
    np.testing.assert_allclose(params, np.linalg.lstsq(a, b)[0], atol=1e-4)


# -- refused optimizers ------------------------------------------------------------------------------------------------


def problem_with(optimizer: Any, tmp_path: Any, accumulate: int = 1, train: Any = train_step, lr: Any = 0.1) -> str:
    with pytest.raises(LearnerError) as error:
        build(PARAMS, optimizer, lr, tmp_path, accumulate, train_step=train)
    assert not (tmp_path / "run").exists()
    return str(error.value)


def test_a_function_of_the_rate_inside_a_wrapper_is_refused(tmp_path):
    message = problem_with(lambda lr: optax.MultiSteps(optax.adam, 2), tmp_path)
    assert "call it, adam(lr)" in message


@pytest.mark.parametrize(
    "built", [optax.adamw(1e-3), optax.chain(optax.clip(1.0), optax.sgd(0.1)), optax.contrib.prodigy()]
)
def test_a_built_optimizer_is_refused(built, tmp_path):
    message = problem_with(built, tmp_path)
    assert "already built" in message
    assert "optax.adamw" in message
    assert "build(model, optimizer, lr)" in message


def two_arguments(lr, other):
    return optax.sgd(lr)


def grows(lr):
    return optax.stateless(lambda updates, params: jax.tree.map(lambda g: jnp.stack([g, g]), updates))


def widens_its_state(lr):
    return optax.GradientTransformation(
        lambda params: jnp.zeros(2), lambda updates, state, params=None: (updates, jnp.concatenate([state, state]))
    )


def retypes_its_state(lr):
    return optax.GradientTransformation(
        lambda params: {"count": jnp.int32(0)}, lambda updates, state, params=None: (updates, {"count": lr})
    )


def renames_its_state(lr):
    return optax.GradientTransformation(
        lambda params: {"old": lr}, lambda updates, state, params=None: (updates, {"new": lr})
    )


def masks_a_bias(lr):
    return optax.masked(optax.sgd(lr), {"w": True, "bias": False})


def needs_a_kernel(lr):
    return optax.stateless(lambda updates, params: {"kernel": updates["kernel"]})


class AdamW:
    """The name and the module of `torch.optim.AdamW`."""

    __module__ = "torch.optim.adamw"

    def __init__(self, params, lr=1e-3, weight_decay=1e-2):
        raise TypeError("iteration over a 0-d array")


class ASGD:
    """An optimizer of PyTorch that optax lacks."""

    __module__ = "torch.optim.asgd"

    def step(self):
        """Make one step."""


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        (AdamW, "the optimizer is PyTorch's AdamW, which cannot update arrays of JAX: pass optax.adamw"),
        (functools.partial(AdamW, weight_decay=0.1), "the optimizer is PyTorch's AdamW"),
        (ASGD(), "the optimizer is PyTorch's ASGD, which cannot update arrays of JAX: pass optax.adamw"),
        ("adamw", "the optimizer is 'adamw'"),
        (two_arguments, "(two_arguments) cannot be called with a learning rate"),
        (lambda lr: optax.adamw, "returned function for a rate"),
        (lambda lr: None, "returned NoneType for a rate"),
        (optax.linear_schedule(0.1, 0.0, 10), "(schedule) gave a number for a rate, as schedules do"),
        (lambda lr: lr, "a schedule is the third argument, build(model, optimizer, lr)"),
        (grows, "(grows) cannot update this model: it makes updates of other shapes than the parameters have"),
        (widens_its_state, "state of the optimizer (widens_its_state) changes in a step"),
        (widens_its_state, "was float32[2] and became float32[4]"),
        (retypes_its_state, "count was int32[] and became float32[]"),
        (renames_its_state, "old was float32[] and became nothing, new was nothing and became float32[]"),
        (masks_a_bias, "'bias'"),
        (needs_a_kernel, "(needs_a_kernel) cannot update this model: 'kernel'"),
    ],
)
def test_unusable_optimizers_are_refused(optimizer, expected, tmp_path):
    message = problem_with(optimizer, tmp_path)
    assert expected in message


def test_labels_of_an_nnx_model_are_a_function_of_its_parameters(tmp_path):
    """The kernel has a rate of 0.5; the bias is not trained."""
    kinds = {"trained": optax.sgd(0.5), "fixed": optax.set_to_zero()}

    def labels(params):
        kind = lambda path, _: "fixed" if "bias" in jax.tree_util.keystr(path) else "trained"  # noqa: E731
        return jax.tree_util.tree_map_with_path(kind, params)

    def learner(labels):
        model = nnx.Linear(2, 1, rngs=nnx.Rngs(0), kernel_init=nnx.initializers.zeros)
        builder = LearnerBuilder(tmp_path / "run").renderer(None).with_file_checkpointer(None)
        step = lambda model, batch: RegressionOutput.from_predictions(model(batch["x"]), batch["y"])  # noqa: E731
        return builder.build(model, lambda lr: optax.partition(kinds, labels), 0.1, train_step=step)

    of_flax = lambda params: traverse_util.path_aware_map(lambda path, _: "trained", params)  # noqa: E731
    for refused in ({"kernel": "trained", "bias": "fixed"}, of_flax):
        with raises_code("optimizer-fails", ". The parameters of an nnx model are an nnx.State"):
            learner(refused)
    model = learner(labels).fit([{"x": np.ones((1, 2), np.float32), "y": np.ones((1, 1), np.float32)}]).model
    np.testing.assert_allclose(model.kernel[...], [[1.0], [1.0]])  # the gradient is -2
    np.testing.assert_array_equal(model.bias[...], [0.0])


PASSES_ON = {
    "masked": optax.masked,
    "clipped_by_norm": lambda inner, mask: optax.chain(optax.clip_by_global_norm(1.0), optax.masked(inner, mask)),
    "clipped": lambda inner, mask: optax.chain(optax.clip(1.0), optax.masked(inner, mask)),
    "in_a_branch": lambda inner, mask: optax.apply_if_finite(optax.masked(inner, mask), 3),
}


@pytest.mark.parametrize("name", PASSES_ON)
def test_masks_that_pass_gradients_on_are_detected(name):
    """`optax.masked` passes on gradients outside its mask, so b increases by its gradient 2, clipped to 1."""
    optimizer = lambda lr: PASSES_ON[name](optax.sgd(lr), {"w": True, "b": False})  # noqa: E731
    params, grads = {"w": jnp.float32(0), "b": jnp.float32(0)}, {"w": jnp.float32(0), "b": jnp.float32(2)}
    changed, _ = update_params(optimizer, 0.5, grads, optimizer(0.5).init(params), params, loss=jnp.float32(0))
    assert changed["b"] == (1 if "clipped" in name else 2)
    assert check_optimizer(optimizer, params, False) == OptimizerCheck([], ("b",))


def linear(model, batch):
    return RegressionOutput.from_predictions(batch["x"] * model["w"] + model["b"], batch["x"])


def own(model, batch):
    output = linear(model, batch)
    return TrainOutput({"w": jnp.ones(()), "b": jnp.ones(())}, output)


@pytest.mark.full
@pytest.mark.parametrize(
    ("step", "refused"),
    [
        (linear, True),
        (lambda model, batch: linear({**model, "b": jax.lax.stop_gradient(model["b"])}, batch), False),  # b is fixed
        (own, False),  # the step's gradients may be intended updates
    ],
    ids=["all", "stopped", "own"],
)
def test_a_run_whose_optimizer_passes_gradients_on_is_refused(tmp_path, step, refused):
    optimizer = lambda lr: optax.masked(optax.sgd(lr), {"w": True, "b": False})  # noqa: E731
    builder = LearnerBuilder(tmp_path).renderer(None).with_file_checkpointer(None)
    learner = builder.build({"w": jnp.ones(()), "b": jnp.ones(())}, optimizer, 0.1, train_step=step)
    with raises_code("optimizer-adds-gradients", "gradients of b to") if refused else contextlib.nullcontext():
        learner.fit([{"x": np.ones(4, np.float32)}])


SEARCHING = {
    "lbfgs": optax.lbfgs,
    "sophia": optax.contrib.sophia,
    "backtracking": lambda lr: optax.chain(optax.sgd(lr), optax.scale_by_backtracking_linesearch(5)),
    "zoom": lambda lr: optax.chain(optax.sgd(lr), optax.scale_by_zoom_linesearch(5)),
}


@pytest.mark.parametrize("name", SEARCHING)
def test_a_line_search_needs_the_whole_batch(name, tmp_path):
    assert check_optimizer(SEARCHING[name], PARAMS, False).problems == []
    message = problem_with(SEARCHING[name], tmp_path, accumulate=4)
    assert "evaluates the loss again" in message
    assert "grads_accumulation has it in parts" in message


@pytest.mark.full
def test_all_other_optimizers_are_accepted():
    refused = {name for name in ALL if check_optimizer(ALL[name], PARAMS, False).problems}
    assert refused == EACH_EXAMPLE
    refused = {name for name in ALL if check_optimizer(ALL[name], PARAMS, True).problems}
    searching = {"lbfgs", "contrib.sophia", "scale_by_backtracking_linesearch", "scale_by_zoom_linesearch"}
    assert refused == EACH_EXAMPLE | searching


@pytest.mark.full
def test_optimizers_with_half_precision_parameters():
    """The rate is float32, so a state that includes it would change its dtype and is refused."""
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), PARAMS)
    problems = {name: check_optimizer(ALL[name], half, False).problems for name in PUBLIC if name not in EACH_EXAMPLE}
    refused = {name: problem for name, problem in problems.items() if problem}
    assert set(refused) <= {
        *("lars", "contrib.cocob", "contrib.schedule_free"),
        *("contrib.schedule_free_adamw", "contrib.schedule_free_sgd"),
    }
    assert all("was bfloat16" in problem and "became float32" in problem for (problem,) in refused.values())


@pytest.mark.full
def test_dpsgd_names_the_shapes_of_gradients_that_are_not_of_each_example():
    dpsgd = maker("contrib.dpsgd")
    params = {"w": jnp.zeros((3, 1)), "b": jnp.zeros(())}
    opt = Optimizer(dpsgd)
    of_each = {name: jnp.ones((4, *x.shape)) for name, x in params.items()}
    opt.step(0.1, params, of_each, opt.init(params))
    wrong = [params, {**of_each, "b": of_each["b"][:2]}, {**of_each, "b": params["b"]}]
    for grads in wrong:
        shapes = ", ".join(f"{name} {list(x.shape)}" for name, x in sorted(grads.items()))
        with raises_code("optimizer-needs-each-gradient", shapes):
            opt.step(0.1, params, grads, opt.init(params))


@pytest.mark.full
def test_dpsgd_needs_the_gradients_of_each_example(tmp_path):
    dpsgd = maker("contrib.dpsgd")
    message = problem_with(dpsgd, tmp_path)
    assert "needs the gradient of each example" in message
    assert "TrainOutput" in message
    assert "cannot be added up" in problem_with(dpsgd, tmp_path, accumulate=2, train=each_example_step)
    learner = build(PARAMS, dpsgd, 0.1, tmp_path, train_step=each_example_step)  # the step returns them
    state, values = jax.jit(learner.train_step)(learner.init(), some_rows(0, 8))
    assert np.isfinite(values["Loss"])
    assert not np.array_equal(state.params["w"], PARAMS["w"])


# -- schedules ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_schedule_counts_optimizer_steps_from_0(accumulate, tmp_path):
    schedule = optax.piecewise_constant_schedule(0.5, {1: 0.5, 3: 0.1})  # 0.5, 0.25, 0.25, 0.025
    learner = build(
        {"w": jnp.zeros(())}, optax.sgd, schedule, tmp_path, accumulate, train_step=lambda m, b: Slope(m["w"] + 0.0)
    )
    step, state, w = jax.jit(learner.train_step), learner.init(), 0.0
    for i, rate in enumerate([0.5, 0.25, 0.25, 0.025]):
        state, values = step(state, *[{"x": np.zeros(4, np.float32)}] * accumulate)
        w -= rate  # the gradient of Slope is 1
        np.testing.assert_allclose(state.params["w"], w, rtol=1e-6)
        np.testing.assert_allclose(values["Learning Rate"], rate, rtol=1e-6)
        assert state.step == i + 1


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Slope:
    loss: Any


SCHEDULES = {
    "constant": optax.constant_schedule(0.1),
    "cosine": optax.cosine_decay_schedule(0.1, 10),
    "warm": optax.warmup_cosine_decay_schedule(0.0, 0.1, 3, 10),
    "exponential": optax.exponential_decay(0.1, 2, 0.5),
    "joined": optax.join_schedules([optax.linear_schedule(0.0, 0.1, 3), optax.constant_schedule(0.2)], [3]),
    "inverse_root": lambda step: 0.1 / jnp.sqrt(step + 1.0),
    "whole": lambda step: 1,
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_rate_is_the_schedule_times_the_scale(name):
    schedule = SCHEDULES[name]
    assert is_schedule(schedule)
    assert check_schedule(schedule) == []
    traced = jax.jit(lambda step, scale: lr_at(schedule, step, scale))
    for step in range(12):
        rate = traced(jnp.int32(step), jnp.float32(0.5))
        assert rate.dtype == jnp.float32
        with jax.numpy_dtype_promotion("standard"):
            np.testing.assert_allclose(rate, 0.5 * np.float64(schedule(step)), rtol=1e-5, atol=1e-8)


def test_a_schedule_is_checked_with_one_program():
    """Without it, JAX would compile each operation at the start of each process."""

    def schedule(step):
        return jnp.where(step < 3, jnp.cos(step / 7), jnp.sqrt(step + 0.25) * 1e-3)

    with CompileTimes() as times:
        assert check_schedule(schedule) == []
    assert times.count <= 1
    with CompileTimes() as times:
        assert check_schedule(lambda step: schedule(step)) == []
    assert times.count == 0


def test_without_a_schedule_the_rate_is_the_scale():
    assert lr_at(None, jnp.int32(7), jnp.float32(0.3)) == jnp.float32(0.3)


@pytest.mark.parametrize("thing", [0.1, "cosine", None, optax.adamw(0.1), float, lambda: 0.1, lambda a, b: 0.1])
def test_other_objects_are_not_schedules(thing):
    assert not is_schedule(thing)


def looks_at_the_step(step):
    return 0.1 if step < 3 else 0.01


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (looks_at_the_step, "(looks_at_the_step) cannot be called with a traced step"),
        (lambda step: jnp.stack([step, step]), "gives int32[2]; it needs one number"),
        (lambda step: step > 3, "gives bool[]; it needs one number"),
        (lambda step: "high", "cannot be called with a traced step"),
        (optax.constant_schedule(-0.1), "starts with -0.1"),
        (optax.constant_schedule(float("nan")), "starts with nan"),
        (lambda step: 1 / step.astype(float), "starts with inf"),
        (optax.adamw, "the learning rate: adamw makes an optimizer, not a rate; build takes (model, optimizer, lr)"),
        (optax.adamw(0.1), "the learning rate is an optimizer; it needs a float"),
        (optax.cosine_decay_schedule, "cosine_decay_schedule, which needs init_value and decay_steps: give what it"),
        (lambda: 0.1, "the learning rate is <lambda>, which takes no step: give a function of the step"),
        (Constant, "the learning rate is the class Constant: pass an instance, Constant(...)"),
        (OneCycle(0.1, over=2), "the learning rate: OneCycle(peak=0.1, over=2): 2 steps are too short for one cycle"),
    ],
)
def test_unusable_schedules_are_refused_at_build(schedule, expected, tmp_path):
    assert expected in problem_with(optax.sgd, tmp_path, lr=schedule)
