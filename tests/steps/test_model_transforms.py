"""Tests of `after_step`: functions that change the model after each update, inside of the programs."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from learner import LearnerBuilder
from learner.optimizers import Ema
from learner.strategies import Replicated, Sharded, fsdp
from tests.support.codes import raises_code
from tests.support.runs import T, X, batches, build_line, checkpoint_bits, line, line_step, model_bits, quiet
from tests.support.small_models import BATCH, CASES, other_batch
from tests.support.stopped import some

pytestmark = pytest.mark.usefixtures("compiled_once")
BOUND = 0.15


def clip(model):
    return {**model, "w": jnp.clip(model["w"], -BOUND, BOUND)}


def descend(steps):
    """Train the line by gradient descent in NumPy, clipping after each step of 8 rows."""
    w, b = np.zeros((3, 1)), np.zeros(1)
    for step in range(steps):
        i = step % 3 * 8
        x, t = X[i : i + 8].astype(np.float64), T[i : i + 8].astype(np.float64)
        error = 2 * (x @ w + b - t) / 8
        w, b = np.clip(w - 0.05 * x.T @ error, -BOUND, BOUND), b - 0.05 * error.sum(0)
    return {"w": w, "b": b}


STRATEGIES = {
    "one": lambda: None,
    "replicated": lambda: Replicated(2),
    "fsdp": lambda: Sharded({"data": 2}, fsdp(1), devices=2),
}


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("strategy", some(STRATEGIES, {"one", "replicated"}))
def test_weights_within_bounds_equal_numpy(tmp_path, accumulate, strategy):
    builder = quiet(tmp_path).num_epochs(2).grads_accumulation(accumulate).after_step(clip)
    if (chosen := STRATEGIES[strategy]()) is not None:
        builder.strategy(chosen)
    result = build_line(builder).fit(batches(8 // accumulate))
    for name, expected in descend(6).items():
        np.testing.assert_allclose(result.model[name], expected, atol=1e-6)


class Followed(nnx.Module):
    def __init__(self):
        self.w, self.teacher = nnx.Param(jnp.ones((1, 3))), nnx.Param(jnp.ones((1, 3)))
        self.steps = nnx.Variable(jnp.int32(0))

    def train_step(self, batch):
        return {"loss": jnp.square(self.w[...] * batch["x"]).mean()}


def follow(model, step):
    model.teacher[...] = model.teacher[...] * jnp.float32(0.999)
    model.steps[...] = 10 * model.steps[...] + step


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_teacher_follows_once_per_step_and_is_not_rounded(tmp_path, precision):
    """0.999 is 1 in bfloat16, and each step has three micro-batches."""
    builder = quiet(tmp_path).num_epochs(1).grads_accumulation(3).precision(precision).freeze("teacher")
    learner = builder.after_step(follow).build(Followed(), optax.sgd, 0.1)
    state, _ = learner.train_step(learner.init(), *batches()[:3])
    for model, steps in ((learner.model_of(state), 1), (learner.fit(batches()).model, 2)):
        np.testing.assert_allclose(model.teacher[...], np.full((1, 3), 0.999**steps), rtol=1e-6)
        assert int(model.steps[...]) == (1, 12)[steps - 1]


QUICK = [case for case in CASES if case.name in ("nnx", "equinox_state")]


@pytest.mark.parametrize("case", some(CASES, QUICK), ids=str)
def test_a_function_that_changes_nothing_changes_no_bit(tmp_path, case):
    """In models of each library, with random streams and statistics."""

    def fit(name, *functions):
        builder = LearnerBuilder(tmp_path / name).num_epochs(1).renderer(None)
        for function in functions:
            builder.after_step(function)
        learner = builder.build(case.make(), optax.adam, 0.01, train_step=case.step)
        return case.arrays(learner.fit([BATCH, other_batch(1)]).model)

    plain, changed = fit("plain"), fit("changed", lambda model: model, lambda model, step: model)
    assert plain.keys() == changed.keys()
    for name, array in plain.items():
        np.testing.assert_array_equal(array, changed[name], name)


def test_functions_run_in_order_and_resume_to_the_bit(tmp_path):
    def build(name, epochs):
        builder = quiet(tmp_path / name, saves=True).num_epochs(epochs).resume()
        return build_line(builder.after_step(lambda model: {**model, "b": model["b"] + 1}).after_step(halve))

    def halve(model, step):
        return {**model, "b": model["b"] / (1 + step).astype(jnp.float32)}

    build("run", 1).fit(batches())
    resumed, whole = build("run", 2).fit(batches()), build("whole", 2).fit(batches())
    assert model_bits(resumed.model) == model_bits(whole.model)
    assert checkpoint_bits(tmp_path / "run", 12) == checkpoint_bits(tmp_path / "whole", 12)
    learner = build("unused", 1)
    state, _ = learner.train_step(learner.init(), batches()[0])
    b = -0.05 * jax.grad(lambda params: line_step(params, batches()[0]).loss)(line())["b"]
    np.testing.assert_allclose(learner.model_of(state)["b"], (b + 1) / 2, rtol=1e-6)


def test_steps_that_change_nothing_do_not_call_it(tmp_path):
    def counted(model, batch):
        output = line_step(model, batch)
        return {"loss": output.loss, "weight": batch["weight"].sum()}

    given = {**line(), "count": jnp.int32(0)}
    count = lambda model: {**model, "count": model["count"] + 1}  # noqa: E731
    first, second, third = ({**batch, "weight": np.ones(4, np.float32)} for batch in batches()[:3])
    data = [first, {**second, "weight": np.zeros(4, np.float32)}, {**third, "x": np.full((4, 3), np.nan, np.float32)}]
    builder = quiet(tmp_path).num_epochs(2).on_nonfinite("skip", 3).after_step(count)
    assert int(builder.build(given, optax.sgd, 0.01, train_step=counted).fit(data).model["count"]) == 2


def test_an_attribute_that_it_assigns_is_a_warning(tmp_path):
    """Attributes are constants of the program: the next step starts with the first value again."""

    def mark(model):
        model.epoch = 1

    model = Followed()
    model.epoch = 0
    learner = quiet(tmp_path, saves=True).num_epochs(1).after_step(mark).build(model, optax.sgd, 0.1)
    assert learner.fit(batches()).model.epoch == 0
    assert "after_step assigns epoch of its model, which has no effect" in (tmp_path / "experiment.log").read_text()


@pytest.mark.full
def test_averages_are_of_the_parameters_before_it(tmp_path):
    zero = lambda model: jax.tree.map(jnp.zeros_like, model)  # noqa: E731
    builder = quiet(tmp_path, saves=True).num_epochs(1).after_step(zero)
    result = build_line(builder, 0.05, lambda lr: Ema(optax.sgd, 0.5, warmup=False)(lr)).fit(batches())
    assert np.asarray(result.model["w"]).any()
    assert "after_step changes" in (tmp_path / "experiment.log").read_text()


@pytest.mark.full
def test_members_of_a_population_equal_single_runs(tmp_path):
    builder = quiet(tmp_path / "all").num_epochs(1).after_step(clip).population(lr=[0.05, 0.1])
    members = build_line(builder).fit(batches())
    for member, lr in zip(members, (0.05, 0.1), strict=True):
        alone = build_line(quiet(tmp_path / str(lr)).num_epochs(1).after_step(clip), lr).fit(batches())
        np.testing.assert_allclose(member.model["w"], alone.model["w"], rtol=1e-6)


@pytest.mark.parametrize("fn", [3, lambda: None, lambda model, step, other: model, line])
def test_other_than_functions_of_a_model_are_refused(tmp_path, fn):
    with raises_code("step-model-transform"):
        quiet(tmp_path).after_step(fn)


@pytest.mark.parametrize(
    ("fn", "code"),
    [
        (lambda model: None, "step-model-transform-returns"),
        (lambda model: model["w"], "step-model-transform-returns"),
        (lambda model: {**model, "w": model["w"][:2]}, "step-state-changed"),
        (lambda model: {**model, "w": model["w"].astype(jnp.bfloat16)}, "step-state-changed"),
        (lambda model: {**model, "w": model["w"] @ model["w"]}, "step-trace-failed"),
        (lambda model: {**model, "more": model["w"]}, "model-structure-changed"),
        (lambda model: {"w": model["w"]}, "model-structure-changed"),
    ],
)
def test_functions_that_return_another_model_are_refused_before_training(tmp_path, fn, code):
    with raises_code(code):
        build_line(quiet(tmp_path / "run").after_step(fn)).fit(batches())
    assert not (tmp_path / "run").exists()


def test_it_is_refused_with_an_update(tmp_path):
    with raises_code("step-update-and-after-step"):
        quiet(tmp_path).after_step(clip).build(line(), None, 0.1, update=lambda state, batch, lr, rng: (state, None))


@pytest.mark.parametrize(
    ("before", "text"), [((), "after_step: it was added"), ((clip,), "after_step: it computes something else")]
)
def test_another_function_is_a_warning_of_a_resumed_run(tmp_path, before, text):
    def fit(epochs, *functions):
        builder = quiet(tmp_path, saves=True).num_epochs(epochs).resume()
        for function in functions:
            builder.after_step(function)
        build_line(builder).fit(batches())

    fit(1, *before)
    fit(2, *before)
    log = lambda: (tmp_path / "experiment.log").read_text().count(text)  # noqa: E731
    assert log() == 0
    fit(3, lambda model: model)
    assert log() == 1
