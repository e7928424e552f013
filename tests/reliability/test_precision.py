"""Tests of runs in half precision: the loss scale in logs and checkpoints, and resuming with it."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from learner import LossScale, Policy, RegressionOutput, load_checkpoint
from learner.metrics import Accuracy, GradientNorm
from tests.support.codes import raises_code
from tests.support.runs import (
    STEPS,
    Net,
    X,
    batches,
    bits,
    build_line,
    checkpoint_bits,
    line,
    line_step,
    model_bits,
    noisy_step,
    progress_of,
    quiet,
    saved_steps,
    tamper,
    valid_data,
)
from tests.support.stopped import all_of, same, some, stopping_at

pytestmark = pytest.mark.usefixtures("compiled_once")


def log_of(directory):
    return (directory / "experiment.log").read_text()


def scaled(start=2.0**15, every=2000):
    return Policy(compute="float16", loss_scale=LossScale(start, every))


def large_step(model, batch):
    """Return a float16 loss whose gradients are several hundred."""
    predictions = batch["x"] @ model["w"] + model["b"][None]
    return RegressionOutput.from_predictions(predictions * 8, batch["t"] * 8)


def build_large(builder, lr=1e-3):
    return builder.build(line(), optax.adam, lr, train_step=large_step, valid_step=large_step)


def overflows(directory):
    """Return the steps and scales of the overflows in the log."""
    lines = [text.split("gradients of step ")[1] for text in log_of(directory).splitlines() if "overflowed" in text]
    return [(int(text.split()[0]), int(text.split()[-1])) for text in lines]


def by_hand(start, every, epochs, lr=1e-3):
    """Return the parameters, the scale and the overflowed steps of a loop in plain JAX and optax."""
    params, optimizer, scale, good, over = line(), optax.adam(lr), start, 0, []
    state = optimizer.init(params)

    @jax.jit
    def grad(params, batch, scale):
        def loss(params):
            half = lambda tree: jax.tree.map(lambda x: jnp.asarray(x).astype(jnp.float16), tree)  # noqa: E731
            batch_ = {"x": half(batch["x"]), "t": half(batch["t"])}
            return large_step(half(params), batch_).loss * scale

        return jax.tree.map(lambda g: g / scale, jax.grad(loss)(params))

    for step, batch in enumerate(batches() * epochs, 1):
        grads = grad(params, batch, jnp.float32(scale))
        if not all(np.isfinite(g).all() for g in grads.values()):
            scale, good = scale / 2, 0
            over.append((step, scale))
            continue
        good += 1
        if good == every:
            scale, good = scale * 2, 0
        with jax.numpy_dtype_promotion("standard"):
            updates, state = optimizer.update(grads, state, params)
        params = optax.apply_updates(params, updates)
    return params, scale, over


@pytest.mark.full
@pytest.mark.parametrize("dispatch", some([1, 32], {32}))
def test_a_run_with_overflows(tmp_path, dispatch):
    """The run equals the hand-written loop. Each overflow is in the log, none is on the screen, and the run is saved as
    usual.
    """
    builder = quiet(tmp_path / "run", saves=True).num_epochs(3).precision(scaled(2.0**14, every=4))
    builder.steps_per_dispatch(dispatch).metrics(GradientNorm()).with_file_checkpointer(every_epochs=1, keep_last=9)
    result = build_large(builder).fit(batches(), valid_data())
    params, scale, over = by_hand(2.0**14, 4, 3)
    assert len(over) > 3
    assert over[-1][0] > STEPS
    assert overflows(tmp_path / "run") == over
    for name in ("w", "b"):
        assert result.model[name].dtype == np.float32
        np.testing.assert_allclose(result.model[name], params[name], rtol=1e-5, atol=1e-6)
    assert "WARNING" not in log_of(tmp_path / "run")
    assert saved_steps(tmp_path / "run") == [STEPS, 2 * STEPS, 3 * STEPS]
    stored = checkpoint_bits(tmp_path / "run", 3 * STEPS)["optim"]
    assert stored["['extra']['loss_scale.scale']"] == bits(np.float32(scale))[""]
    assert math.isfinite(result.history["train/Gradient Norm"][-1])
    assert result.stopped_by == "num_epochs"


@pytest.mark.full
@pytest.mark.parametrize(
    ("model", "accumulate", "stop"),
    some([(line, 1, STEPS + 3), (Net, 1, 2), (Net, 2, STEPS), (Net, 2, 5)], {(line, 1, STEPS + 3)}),
)
def test_resumed_to_the_bit(tmp_path, model, accumulate, stop):
    """While the scale rises or falls, with random inputs, dropout and statistics."""
    steps = {} if model is Net else {"train_step": noisy_step, "valid_step": line_step}

    def builder(name):
        return quiet(tmp_path / name).num_epochs(3).precision(scaled(2.0**24, every=3)).grads_accumulation(accumulate)

    def fit(builder):
        builder.with_file_checkpointer(keep_last=2).metrics(*([Accuracy()] if model is Net else []))
        return builder.build(model(), optax.adamw, 1e-2, **steps).fit(batches(), valid_data())

    expected = all_of(tmp_path / "whole", fit(builder("whole")))
    fit(stopping_at(builder("run"), stop))
    assert saved_steps(tmp_path / "run")[-1] == stop
    result = fit(builder("run").resume())
    same(all_of(tmp_path / "run", result), expected)
    assert overflows(tmp_path / "run") == overflows(tmp_path / "whole")
    assert overflows(tmp_path / "run")


@pytest.mark.full
def test_the_loss_of_a_step_that_overflows_counts(tmp_path):
    """Only its gradients are not finite, also in a run that skips steps with a non-finite loss."""
    histories = []
    for policy in ("raise", "skip"):
        builder = quiet(tmp_path / policy).num_epochs(2).precision(scaled(2.0**16)).on_nonfinite(policy)
        histories.append(build_large(builder).fit(batches(), valid_data()).history["train/Loss"])
        assert overflows(tmp_path / policy)
    assert histories[0] == histories[1]
    assert np.isfinite(histories).all()


# -- on_nonfinite ------------------------------------------------------------------------------------------------------


def huge(value):
    """Return batches of which the third overflows float16 gradients at any scale."""
    rows = [{**batch} for batch in batches()]
    rows[2] = {**rows[2], "t": np.full_like(rows[2]["t"], value)}
    return rows


def half_loss(model, batch):
    """Return a loss that is finite where the gradients are not: `clip` bounds the values, and passes gradients of 2¹⁵
    times.
    """
    predictions = batch["x"] @ model["w"] + model["b"][None]
    loss = (predictions.astype(jnp.float32) * batch["t"].astype(jnp.float32)).mean()
    return RegressionOutput(loss, predictions, batch["t"], jnp.float32(4))


def build_half(builder):
    return builder.build(line(), optax.sgd, 1e-9, train_step=half_loss)


@pytest.mark.full
def test_run_ends_once_the_scale_is_1(tmp_path):
    """65 000 times inputs of up to 2 exceeds float16, at any scale."""
    assert np.abs(X[8:12]).max() > 1.2
    rows = [{**batch, "x": batch["x"] * 8} for batch in huge(65000.0)]
    builder = quiet(tmp_path / "run", saves=True).num_epochs(4).precision(scaled(4.0))
    with raises_code("step-nonfinite", quantity="gradient norm", step=2 * STEPS + 3):
        build_half(builder.with_file_checkpointer(every_steps=1, keep_last=99)).fit(rows)
    assert overflows(tmp_path / "run") == [(3, 2), (STEPS + 3, 1)]
    assert saved_steps(tmp_path / "run") == list(range(1, 2 * STEPS + 3))


@pytest.mark.full
def test_run_continues_by_skipping(tmp_path):
    rows = [{**batch, "x": batch["x"] * 8} for batch in huge(65000.0)]
    builder = quiet(tmp_path / "run").num_epochs(4).precision(scaled(2.0)).on_nonfinite("skip", 2)
    result = build_half(builder).fit(rows)
    assert result.stopped_by == "num_epochs"
    assert overflows(tmp_path / "run") == [(3, 1)]
    lines = [text for text in log_of(tmp_path / "run").splitlines() if "the gradient norm of step" in text]
    assert [f"step {n * STEPS + 3} is not finite" in text for n, text in enumerate(lines, 1)] == [True] * 3


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.full
def test_nan_loss_ends_the_run_at_once(tmp_path, dtype):
    with raises_code("step-nonfinite", quantity="loss", step=3):
        build_large(quiet(tmp_path / "run").precision(dtype)).fit(huge(math.nan))
    assert not [step for step, _ in overflows(tmp_path / "run") if step >= 3]


# -- another precision -------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_precision_is_logged(tmp_path):
    build_line(quiet(tmp_path / "a").precision("bfloat16", "highest").remat("dots_saveable")).fit(batches())
    lines = "bfloat16 (parameters float32, outputs float32), matrix products highest, rematerialised by dots_saveable"
    assert f"precision: {lines}\n" in log_of(tmp_path / "a")
    build_line(quiet(tmp_path / "b")).fit(batches())
    assert "precision: float32\n" in log_of(tmp_path / "b")


@pytest.mark.full
@pytest.mark.parametrize(
    ("first", "second"),
    [("float32", "bfloat16"), ("float32", "float16"), ("float16", "float32"), ("float16", scaled(8.0))],
)
def test_resumed_with_another_precision(tmp_path, first, second):
    """A warning names the change. A loss scale starts anew, is dropped, or continues."""

    def saving(epochs):
        return quiet(tmp_path / "run").num_epochs(epochs).with_file_checkpointer(keep_last=9)

    build_large(saving(1).precision(first)).fit(batches())
    result = build_large(saving(2).precision(second).resume()).fit(batches())
    assert result.summary["steps"] == 2 * STEPS
    names = {"float16": "float16 (parameters float32, outputs float32)", "float32": "float32"}
    names["bfloat16"] = names["float16"].replace("float16", "bfloat16")
    of_scale = ", loss scale from 8, doubled after 2000 steps without overflow"
    before, now = names[first], names.get(second, names["float16"] + of_scale)
    assert f"this changed since the checkpoint of step {STEPS}: precision: {before} -> {now}\n" in log_of(
        tmp_path / "run"
    )
    scales = [
        checkpoint_bits(tmp_path / "run", n * STEPS)["optim"].get("['extra']['loss_scale.scale']") for n in (1, 2)
    ]
    assert (scales[1] is None) is (second in ("float32", "bfloat16"))
    if first == "float16" and second != "float32":  # it had decreased from 2**15
        assert np.frombuffer(scales[1][2], np.float32) <= np.frombuffer(scales[0][2], np.float32)
        assert np.frombuffer(scales[1][2], np.float32) != 8


@pytest.mark.full
def test_checkpoint_without_precision(tmp_path):
    """Its checkpoints do not contain a precision, and mean float32."""
    build_line(quiet(tmp_path / "run").with_file_checkpointer(keep_last=9)).fit(batches())
    progress = json.loads(json.dumps(progress_of(tmp_path / "run", STEPS)))
    assert progress["fingerprint"]["settings"].pop("precision") == "float32"
    tamper(tmp_path / "run", STEPS, progress)
    build_line(quiet(tmp_path / "run").with_file_checkpointer(keep_last=9).num_epochs(2).resume()).fit(batches())
    assert "precision: float32 ->" not in log_of(tmp_path / "run")


@pytest.mark.full
def test_parameters_of_another_dtype_are_rejected(tmp_path):
    """They are rejected like every array of another dtype; `initial_from` accepts them."""
    build_line(quiet(tmp_path / "run").with_file_checkpointer(keep_last=9)).fit(batches())
    kept = Policy(param="bfloat16", compute="bfloat16")
    with raises_code("resume-differs") as error:
        build_line(quiet(tmp_path / "run").precision(kept).num_epochs(2).resume()).fit(batches())
    assert "params/w: saved float32[3, 1], now bfloat16[3, 1]" in str(error.value)
    result = build_line(quiet(tmp_path / "new").precision(kept).initial_from(tmp_path / "run")).fit(batches())
    assert result.model["w"].dtype == jnp.bfloat16


@pytest.mark.full
def test_a_checkpoint_of_float16_outside_of_its_run(tmp_path):
    build_large(quiet(tmp_path / "run").precision(scaled(8.0)).with_file_checkpointer(keep_last=9)).fit(batches())
    loaded = load_checkpoint(tmp_path / "run", "latest", line(), optimizer=optax.adam)
    assert loaded.model["w"].dtype == np.float32
    assert int(loaded.optimizer_state[0].count) > 0


@pytest.mark.full
def test_the_size_of_a_dispatch_changes_no_bit(tmp_path):
    def fit(name, k):
        builder = quiet(tmp_path / name).num_epochs(2).precision(scaled(2.0**24, every=2)).steps_per_dispatch(k)
        return model_bits(builder.build(Net(), optax.adamw, 1e-2).fit(batches()).model)

    assert fit("a", 5) == fit("b", 32)
