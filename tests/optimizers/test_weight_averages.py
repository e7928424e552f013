"""Tests of averages of parameters: values by hand, and their use in evaluation."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from learner import load_checkpoint, load_model
from learner.data import DataLoaderBuilder
from learner.optimizers import Clipped, Ema, Group, Groups, Swa
from learner.records import MessagePackRecorder
from learner.steps.eval_params import eval_params
from learner.strategies import Replicated, Sharded, fsdp
from tests.support.codes import raises_code
from tests.support.runs import Net, T, X, Y, batches, bits, build_line, checkpoint_bits, line, line_step, quiet
from tests.support.stopped import some

pytestmark = pytest.mark.usefixtures("compiled_once")

RATE, STEPS = 0.05, 12


def by_hand():
    """Return the parameters after every step of SGD, two epochs of six batches."""
    w, b, left = np.zeros((3, 1)), np.zeros(1), []
    for _ in range(2):
        for first in range(0, 24, 4):
            x, t = X[first : first + 4].astype(np.float64), T[first : first + 4].astype(np.float64)
            error = 2 * (x @ w + b - t) / 4
            w, b = w - RATE * x.T @ error, b - RATE * error.sum(0)
            left.append({"w": w, "b": b})
    return left


def ema_by_hand(decay, warmup, start):
    average = {"w": np.zeros((3, 1)), "b": np.zeros(1)}
    for step, params in enumerate(by_hand()):
        d = min(decay, (1 + step - start) / (10 + step - start)) if warmup else decay
        d = 0.0 if step < start else d
        average = {name: d * average[name] + (1 - d) * params[name] for name in params}
    return average


def swa_by_hand(start, every):
    first = {"w": np.zeros((3, 1)), "b": np.zeros(1)}
    counted = [first, *by_hand()][start::every]  # the parameters after 0, 1, ... steps
    return {name: np.mean([params[name] for params in counted], 0) for name in ("w", "b")}


def loss_of(params):
    return np.mean((X @ np.asarray(params["w"]) + np.asarray(params["b"]) - T) ** 2)


CASES = {
    "ema": (functools.partial(Ema, decay=0.8, warmup=False), ema_by_hand(0.8, False, 0)),
    "ema, warmed up": (functools.partial(Ema, decay=0.8), ema_by_hand(0.8, True, 0)),
    "ema, later": (functools.partial(Ema, decay=0.8, start=5), ema_by_hand(0.8, True, 5)),
    "swa": (functools.partial(Swa, start=4), swa_by_hand(4, 1)),
    "swa, every third": (functools.partial(Swa, start=3, every=3), swa_by_hand(3, 3)),
    "swa, from the first parameters on": (functools.partial(Swa, start=0, every=5), swa_by_hand(0, 5)),
}
STRATEGIES = {
    "replicated": lambda: Replicated(2),
    "fsdp": lambda: Sharded({"data": 2}, fsdp(1), devices=2),
}


def options(directory, n=2, **more):
    return quiet(directory, saves=True, **more).num_epochs(n)


def close(actual, expected):
    for name in ("w", "b"):
        np.testing.assert_allclose(actual[name], expected[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("case", some(CASES, {"ema, warmed up"}))
def test_average_is_evaluated_saved_and_loaded(tmp_path, case):
    make, expected = CASES[case]
    optimizer = make(optax.sgd)
    seen = []
    builder = options(tmp_path / "run").on_epoch_end(lambda info, model: seen.append(model))
    learner = build_line(builder, RATE, optimizer)
    result = learner.fit(batches(), batches(24))
    close(result.model, expected)
    close(seen[-1], expected)
    assert result.history["valid/Loss"][-1] == pytest.approx(loss_of(expected), rel=1e-4)
    assert learner.evaluate(batches(24))["Loss"] == pytest.approx(loss_of(expected), rel=1e-4)
    assert "validation, hooks and the result have averaged" in (tmp_path / "run" / "experiment.log").read_text()
    for given in ({"optimizer": optimizer}, {}):
        loaded = load_checkpoint(tmp_path / "run", "latest", line(), **given)
        close(loaded.model, expected)
        close(loaded.params, by_hand()[-1])  # by path, the trained parameters are returned
    assert bits(result.best_model) == bits(load_checkpoint(tmp_path / "run", "best", line()).model)
    other = build_line(quiet(tmp_path / "other").initial_from(tmp_path / "run", "latest"), RATE)
    close(other.fit(batches(rows=4)).model, after_one_more(expected))


def after_one_more(params):
    """Return the parameters after another SGD step on the first batch."""
    x, t = X[:4].astype(np.float64), T[:4].astype(np.float64)
    error = 2 * (x @ params["w"] + params["b"] - t) / 4
    return {"w": params["w"] - RATE * x.T @ error, "b": params["b"] - RATE * error.sum(0)}


@pytest.mark.full
def test_resumed_average_has_equal_bits(tmp_path):
    optimizer = Ema(Clipped(optax.adam, norm=1.0), decay=0.9)
    build_line(options(tmp_path / "run", 1), RATE, optimizer).fit(batches())
    resumed = build_line(options(tmp_path / "run").resume(), RATE, optimizer).fit(batches())
    whole = build_line(options(tmp_path / "whole"), RATE, optimizer).fit(batches())
    assert bits(resumed.model) == bits(whole.model)
    assert checkpoint_bits(tmp_path / "run", STEPS) == checkpoint_bits(tmp_path / "whole", STEPS)


@pytest.mark.parametrize("strategy", some(["replicated", "fsdp"], {"fsdp"}))
@pytest.mark.full
def test_on_several_devices(tmp_path, strategy):
    make, expected = CASES["ema"]
    builder = options(tmp_path / "run").strategy(STRATEGIES[strategy]())
    builder.with_file_checkpointer(record=MessagePackRecorder())
    result = build_line(builder, RATE, make(optax.sgd)).fit(batches(), batches(24))
    close(result.model, expected)
    assert result.history["valid/Loss"][-1] == pytest.approx(loss_of(expected), rel=1e-4)
    close(result.best_model, expected)
    close(load_model(tmp_path / "run" / "checkpoint" / "model-2.mpk", line()), expected)


@pytest.mark.full
def test_schedule_free_optimizers_are_evaluated_at_their_average(tmp_path):
    """As `optax.contrib.schedule_free_eval_params` in a hand-written loop."""
    make = functools.partial(optax.contrib.schedule_free_sgd, b1=0.9)
    result = build_line(options(tmp_path / "run"), RATE, make).fit(batches(), batches(24))
    optimizer, params = make(RATE), line()
    state = optimizer.init(params)
    grad = jax.jit(jax.grad(lambda params, batch: line_step(params, batch).loss))
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        for _ in range(2):
            for batch in batches():
                updates, state = optimizer.update(grad(params, batch), state, params)
                params = optax.apply_updates(params, updates)
        expected = optax.contrib.schedule_free_eval_params(state, params)
    close(result.model, expected)
    assert np.abs(np.asarray(params["w"]) - np.asarray(expected["w"])).max() > 1e-3
    assert result.history["valid/Loss"][-1] == pytest.approx(loss_of(expected), rel=1e-4)
    close(load_checkpoint(tmp_path / "run", "latest", line()).model, expected)


def test_a_group_may_be_averaged_alone():
    params = {"w": jnp.float32(1), "b": jnp.float32(1)}
    transform = Groups(optax.sgd, [Group("w", optimizer=Ema(optax.sgd, decay=0.75, warmup=False))])(1.0)
    state = transform.init(params)
    updates, state = transform.update({"w": jnp.float32(-4), "b": jnp.float32(-4)}, state, params)
    params = optax.apply_updates(params, updates)
    assert {name: float(x) for name, x in eval_params(params, state).items()} == {"w": 2.0, "b": 5.0}


@pytest.mark.full
@pytest.mark.parametrize(
    "optimizer",
    [
        pytest.param(Ema(optax.sgd, decay=0.9), marks=pytest.mark.full, id="ema"),
        pytest.param(optax.contrib.schedule_free_sgd, id="free"),
    ],
)
def test_a_model_that_is_one_array_begins_with_the_average(tmp_path, optimizer):
    step = lambda model, batch: line_step({"w": model, "b": jnp.zeros(1)}, batch)  # noqa: E731
    make = lambda name: quiet(tmp_path / name, saves=True).num_epochs(2)  # noqa: E731
    first = make("run").build(jnp.zeros((3, 1)), optimizer, RATE, train_step=step).fit(batches())
    other = make("other").initial_from(tmp_path / "run", "latest")
    begun = other.build(jnp.zeros((3, 1)), optax.sgd, RATE, train_step=step).init().params
    np.testing.assert_array_equal(begun, first.model)
    assert np.abs(np.asarray(load_checkpoint(tmp_path / "run", "latest").params["value"]) - begun).max() > 1e-4


@pytest.mark.parametrize(
    ("names", "optimizer"),
    [
        (("averaged_params",), optax.adam),
        (("b1", "weight_sum", "max_lr", "z"), functools.partial(optax.sgd, momentum=0.9)),
    ],
)
def test_parameters_may_have_the_name_of_an_average(names, optimizer):
    params = {name: {"w": jnp.ones(2), "b1": jnp.ones(2)} for name in names} | {"w": jnp.ones(2), "b1": jnp.ones(2)}
    assert eval_params(params, optimizer(0.1).init(params)) is params


@pytest.mark.parametrize("warmup", [False, True])
def test_a_decay_near_1_is_not_rounded(warmup):
    """1 - float32(0.99999) is 1.001e-5."""
    average = Ema(optax.sgd, 0.99999, warmup)(1.0)
    params = {"w": jnp.zeros(1)}
    state = average.init(params)
    count = state[1].count + 2_000_000  # steps, after the warmup
    state = state[0], state[1]._replace(count=count)
    _, state = average.update({"w": jnp.full(1, -1.0)}, state, params)
    np.testing.assert_allclose(state[1].averaged_params["w"], 1e-5 * np.ones(1), rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "steps", "expected"),
    [
        # Parameters 1 after steps 1 and 2, then 2, 3, 4 ...: step 2 is skipped.
        (functools.partial(Swa, start=2, every=3), [0, 2, 3, 4, 5, 6, 7], (1 + 4 + 7) / 3),
        # Step 3 is skipped: the parameters are 1, 2, 3, 4 after the others.
        (functools.partial(Swa, start=1), [0, 1, 3, 4], (1 + 2 + 3 + 4) / 4),
        # Step 5 of 3, 5, 7 is skipped: the parameters are 3 after step 3, and 6 after step 7.
        (functools.partial(Swa, start=3, every=2), [0, 1, 2, 3, 5, 6], (3 + 6) / 2),
        (functools.partial(Ema, start=3, decay=0.5, warmup=False), [0, 2, 3, 4], (2 + 3 + 2 * 4) / 4),
        # An optimizer that starts after step 100, with the parameters at that time: 0, 1, 2, 3.
        (functools.partial(Swa, start=1), [100, 101, 102], (0 + 1 + 2 + 3) / 4),
    ],
)
def test_skipped_steps_count_as_they_do_in_schedules(make, steps, expected):
    transform = make(optax.sgd)(1.0)
    params = jnp.float32(0)
    state = transform.init(params)
    for step in steps:
        updates, state = transform.update(jnp.float32(-1), state, params, step=jnp.int32(step))
        params = params + updates
    np.testing.assert_allclose(state[1].averaged_params, expected, rtol=1e-6)


def test_half_precision_is_averaged_in_float32():
    transform = Ema(optax.sgd, decay=0.5, warmup=False)(1.0)
    params = {"w": jnp.bfloat16(1)}
    state = transform.init(params)
    assert state[1].averaged_params["w"].dtype == jnp.float32
    assert eval_params(params, state)["w"].dtype == jnp.bfloat16


@pytest.mark.parametrize(
    ("make", "code", "values"),
    [
        (lambda: Ema(optax.sgd, decay=1.0), "optimizer-ema-decay-value", ("1.0",)),
        (lambda: Ema(0.9, optax.adam), "optimizer-ema-decay-value", ("is adam", "Ema(optax.adamw, decay=0.999)")),
        (lambda: Ema(optax.sgd, start=-1), "optimizer-number-value", ("Ema", "-1", "0", "start")),
        (lambda: Ema(optax.sgd(0.1)), "optimizer-already-built", ("the optimizer of Ema",)),
        (lambda: Swa(optax.sgd, start=3, every=0), "optimizer-number-value", ("Swa", "0", "1", "every")),
    ],
)
def test_wrong_arguments(make, code, values):
    with raises_code(code, *values):
        make()


@pytest.mark.full
@pytest.mark.parametrize(
    "twice",
    [
        Ema(functools.partial(optax.contrib.schedule_free_sgd, b1=0.9)),
        Ema(Swa(optax.sgd, start=3)),
        Swa(Clipped(Ema(optax.sgd), norm=1.0), start=3),
    ],
    ids=["schedule-free", "both", "behind another"],
)
def test_parameters_are_not_averaged_twice(tmp_path, twice):
    with raises_code("optimizer-averages-twice"):
        build_line(quiet(tmp_path / "run"), RATE, twice)


@pytest.mark.parametrize(
    ("make", "number"),
    [
        (functools.partial(Ema, start=STEPS), 1),
        (functools.partial(Ema, start=STEPS - 1), 0),
        (functools.partial(Swa, start=STEPS), 1),
        (functools.partial(Swa, start=STEPS - 3, every=4), 1),
        (functools.partial(Swa, start=STEPS - 4, every=4), 0),
        (lambda optimizer: Clipped(Swa(optimizer, start=100), norm=1.0), 1),
    ],
)
def test_a_run_that_ends_too_early_for_an_average_is_warned_about(tmp_path, make, number):
    build_line(quiet(tmp_path / "run").num_epochs(2), RATE, make(optax.sgd)).fit(batches())
    assert len(re.findall("WARNING.* average", (tmp_path / "run" / "experiment.log").read_text())) == number


@pytest.mark.parametrize(("make", "number"), [(Ema, 0), (functools.partial(Swa, start=1), 1)])
def test_statistics_that_swa_does_not_average_are_warned_about(tmp_path, make, number):
    """The mean of parameters meets statistics of others."""
    data = DataLoaderBuilder().batch_size(8).build({"x": X, "y": Y})
    quiet(tmp_path / "run").num_epochs(1).build(Net(), make(optax.sgd), RATE).fit(data)
    assert (tmp_path / "run" / "experiment.log").read_text().count("statistics of BatchNorm") == number
