"""Tests of the learning-rate range test: training, suggestions, and that nothing changes."""

import dataclasses
import math
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from learner import Interrupter, LearnerError, RangeTest, ReduceOnPlateau, RegressionOutput
from learner.diagnostics.rate_range import RangeTestListener, smoothed
from learner.events import StepsEnded
from learner.loggers import MemoryLogger
from learner.metrics import MeanAbsoluteError
from learner.optimizers import Clipped, Group, Groups
from learner.schedules import Constant, Cosine
from tests.support.codes import raises_code
from tests.support.runs import batches, build_line, line, line_step, model_bits, quiet, valid_data

pytestmark = pytest.mark.usefixtures("compiled_once")


def nnx_line(model, batch):
    return RegressionOutput.from_predictions(model(batch["x"]), batch["t"])


def by_hand(rates, accumulate=1):
    """Return the losses of SGD with a rate for each step."""
    grad = jax.jit(jax.value_and_grad(lambda params, batch: line_step(params, batch).loss))
    params, losses, all_batches = line(), [], [*batches(), *batches()]
    for number, rate in enumerate(rates):
        parts = all_batches[number * accumulate : (number + 1) * accumulate]
        batch = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        loss, grads = grad(params, batch)
        params = jax.tree.map(lambda p, g, rate=rate: p - np.float32(rate) * g, params, grads)
        losses.append(float(loss))
    return losses


@pytest.mark.full
@pytest.mark.parametrize(("accumulate", "lr"), [pytest.param(1, 0.05, marks=pytest.mark.full), (2, Cosine(0.1))])
def test_losses_are_those_of_sgd_with_rising_rates(tmp_path, accumulate, lr):
    learner = build_line(quiet(tmp_path / "run").grads_accumulation(accumulate), lr)
    result = learner.find_lr(batches(), lowest=1e-3, highest=0.1, steps=5)
    rates = [1e-3 * 100 ** (i / 4) for i in range(5)]
    np.testing.assert_allclose(result.rates, rates, rtol=1e-5)
    np.testing.assert_allclose(result.losses, by_hand(rates, accumulate), rtol=1e-5)
    assert result.planned == 5


@pytest.mark.full
def test_range_test_changes_nothing(tmp_path, monkeypatch):
    """The test writes no file, calls no hook and no logger, and leaves the model as it is. A later `fit` has the bits
    of one without the test.
    """
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    memory, calls = MemoryLogger(), []
    plateau = ReduceOnPlateau(0.05, "valid/Loss", patience=0)

    def learner(directory, *loggers):
        builder = quiet(tmp_path / directory, saves=True).metrics(MeanAbsoluteError()).metric_loggers(*loggers)
        builder = builder.on_epoch_end(lambda info, model: calls.append(info)).watchdog(60).resume()
        return builder.build(
            model, optax.adam, plateau, batches(), valid_data(), train_step=nnx_line, valid_step=nnx_line
        )

    model = nnx.Linear(3, 1, rngs=nnx.Rngs(0))
    before = model_bits(model)
    one = learner("one", memory)
    result = one.find_lr(steps=20)
    assert len(result.losses) > 10
    assert (calls, memory.events, plateau.lr) == ([], [], 0.05)
    assert model_bits(model) == before
    assert [path.name for path in tmp_path.rglob("*")] == ["temporary"]
    expected = learner("two").fit()
    assert model_bits(one.fit().model) == model_bits(expected.model)


@pytest.mark.full
def test_range_test_ends_when_the_loss_diverges(tmp_path):
    result = build_line(quiet(tmp_path / "run")).find_lr(batches(), lowest=1e-3, highest=1e6, steps=200)
    assert result.planned == 200
    assert 20 < len(result.losses) < 150
    means = result.smoothed
    assert means[-1] > 4 * means[:-1].min()
    assert all(means[i] <= 4 * means[4 : i + 1].min() for i in range(4, len(means) - 1))
    assert 1e-3 < result.suggestion < result.lowest
    assert f"ended after {len(result.losses)} of 200 steps: the loss diverges" in str(result)


@pytest.mark.full
def test_loss_that_is_not_finite_ends_the_test(tmp_path):
    def step(model, batch):
        output = line_step(model, batch)
        bad = jnp.where(jnp.abs(model["b"][0]) > 0.1, jnp.nan, 1.0)
        return dataclasses.replace(output, loss=output.loss * bad)

    learner = quiet(tmp_path / "run").build(line(), optax.sgd, 0.1, train_step=step)
    result = learner.find_lr(batches(), lowest=1e-3, highest=10.0, steps=60)
    assert 1 < len(result.losses) < 60
    assert np.isfinite(result.losses).all()


def test_first_loss_that_is_not_finite_is_an_error(tmp_path):
    data = [{**batch, "x": batch["x"] * np.float32(math.inf)} for batch in batches()]
    with raises_code("step-first-loss-nonfinite"):
        build_line(quiet(tmp_path / "run")).find_lr(data, steps=3)


@pytest.mark.full
def test_devices_of_the_learner_are_used(tmp_path):
    expected = build_line(quiet(tmp_path / "run")).find_lr(batches(), steps=6)
    result = build_line(quiet(tmp_path / "run").devices(2)).find_lr(batches(), steps=6)
    np.testing.assert_allclose(result.losses, expected.losses, rtol=1e-5)


def test_invalid_arguments_are_reported_together(tmp_path):
    learner = build_line(quiet(tmp_path / "run"))
    with pytest.raises(LearnerError) as error:
        learner.find_lr(batches(), lowest=0.0, highest=-1.0, steps=1, smoothing=1.0, diverges=1.0)
    for part in ("5 problems", "lowest is 0.0", "highest is -1.0", "steps is 1", "smoothing is 1.0", "diverges is 1.0"):
        assert part in str(error.value)
    with raises_code("data-training-missing"):
        learner.find_lr()


@pytest.mark.parametrize(
    ("optimizer", "update", "part"),
    [
        (lambda lr: optax.adam(1e-2), None, "the optimizer"),
        (Clipped(lambda lr: optax.adam(1e-2), norm=1.0), None, "the optimizer (Clipped)"),
        pytest.param(
            Groups(optax.sgd, [Group(".", lr=Constant(0.01))]), None, "the optimizer (Groups)", marks=pytest.mark.full
        ),
        (None, lambda model, batch, lr, rng: ({**model, "b": 0.5 * model["b"]}, line_step(model, batch)), "update="),
    ],
)
@pytest.mark.parametrize("lr", [0.0, 0.1])
def test_rate_that_nothing_uses_cannot_be_tested(tmp_path, optimizer, update, part, lr):
    steps = {"train_step": line_step} if update is None else {"update": update}
    learner = quiet(tmp_path / "run").build(line(), optimizer, lr, **steps)
    with raises_code("optimizer-ignores-rate", part):
        learner.find_lr(batches(), steps=5)
    finding = learner.check(batches(), only="learning-rate")["learning-rate"]
    assert (finding.verdict, f"not used, as {part}" in finding.text) == ("warning" if lr else "skipped", True)


# -- suggested rates ---------------------------------------------------------------------------------------------------


def valley(smoothing=0.0, noise=0.0):
    """Return a test of 100 rates from 1e-6 to 1. The loss is flat, falls from 1e-4 to 1e-2 with its steepest part at
    1e-3, and rises again.
    """
    rates = np.geomspace(1e-6, 1.0, 100)
    x = np.log10(rates)
    losses = 2.0 - np.tanh(2 * (x + 3)) + 3 * np.maximum(x + 1, 0) ** 2
    losses += noise * np.random.default_rng(0).normal(size=100)
    return RangeTest(rates, losses, 100, smoothing)


def test_suggested_rates():
    result = valley()
    assert result.steepest == pytest.approx(1e-3, rel=0.1)
    assert result.suggestion == result.steepest
    assert result.lowest == pytest.approx(0.1, rel=0.2)
    assert result.tenth == result.lowest / 10


def test_rate_before_divergence_is_not_suggested():
    """The last fall is the steepest, but the next rate diverges."""
    rates = np.array([1e-4, 1e-3, 1e-2, 1e-1, 1.0])
    result = RangeTest(rates, np.array([2.0, 1.9, 1.7, 0.4, 9.0]), planned=5, smoothing=0.0)
    assert (result.lowest, result.suggestion) == (1e-1, 1e-2)


def test_noise_before_the_valley_is_ignored():
    """The first smoothed losses are means of few values, and jump."""
    assert valley(smoothing=0.9, noise=0.05).steepest == pytest.approx(2e-3, rel=0.8)


def test_low_first_loss_by_chance_is_ignored():
    result = valley(smoothing=0.8)
    lucky = RangeTest(result.rates, np.concatenate([[0.01], result.losses[1:]]), 100, 0.8)
    assert lucky.smoothed.argmin() == 0
    assert (lucky.lowest, lucky.steepest) == (result.lowest, result.steepest)


def test_loss_that_never_falls_has_no_suggestion():
    result = RangeTest(np.geomspace(0.1, 1.0, 5), np.array([1.0, 1.1, 1.2, 1.3, 1.4]), 5, 0.0)
    assert (result.steepest, result.tenth, result.suggestion) == (None, None, None)
    assert str(result).endswith("try a wider range, or look at the model and the data")


def test_smoothed_losses():
    """The weights are 0.81, 0.9 and 1; NumPy computes the expected mean."""
    assert smoothed(np.array([3.0, 1.0, 2.0]), 0.9)[2] == pytest.approx(np.average([3, 1, 2], weights=[0.81, 0.9, 1]))
    assert smoothed(np.array([3.0, 1.0, 2.0]), 0.0).tolist() == [3.0, 1.0, 2.0]


def test_table_of_a_range_test():
    lines = str(valley()).splitlines()
    assert lines[0].split() == ["step", "rate", "loss", "smoothed"]
    assert [line.split()[0] for line in lines[1:13]] == [str(1 + 9 * i) for i in range(12)]
    assert lines[1].split() == ["1", "1e-06", "3", "3"]
    assert lines[-1].split()[-1] == f"{valley().lowest / 10:.2g}"


def test_html_of_a_range_test():
    content = valley()._repr_html_()
    assert str(valley()) in content
    assert content.count("<img") == 1
    assert f"last: each step {valley().losses[-1]:.4g}, smoothed {valley().smoothed[-1]:.4g}" in content


def listener_after(losses, smoothing):
    """Return the listener and its interrupter after these training losses, and a validation that it ignores."""
    interrupter = Interrupter()
    watcher = RangeTestListener(interrupter, smoothing, 4.0)
    for split, column in (("valid", [math.nan]), ("train", losses)):
        values = {"Loss": np.array(column)}
        ones = np.ones(len(column))
        watcher.on_event(StepsEnded(0.0, split, 1, 1, len(column), 1, None, 1, values, ones, 0.1))
    return watcher, interrupter


def test_first_losses_may_jump():
    """With `smoothing` 0.8, the first four smoothed losses are means of too few values."""
    jumps = [0.1, 2.0, 1.0, 1.0, 1.0, 1.0]
    watcher = listener_after([*jumps, 10.0, 50.0, 1.0], 0.8)[0]
    assert watcher.losses.tolist() == [*jumps, 10.0, 50.0]


@pytest.mark.parametrize(
    ("losses", "kept"),
    [
        ([2.0, 1.0, 3.9], [2.0, 1.0, 3.9]),
        ([2.0, 1.0, 4.1, 1.0], [2.0, 1.0, 4.1]),
        ([2.0, math.nan, 1.0], [2.0]),
        ([2.0, 9.0, math.inf], [2.0, 9.0]),
        ([-2.0, -1.0, 5.0], [-2.0, -1.0, 5.0]),
        ([math.nan], []),
    ],
)
def test_divergence_of_losses(losses, kept):
    watcher, interrupter = listener_after(losses, 0.0)
    assert watcher.losses.tolist() == kept
    ended = len(kept) < len(losses) or kept[-1] > 4
    assert (interrupter.reason is not None) == ended


@pytest.mark.parametrize("steps", [100, 1000])
@pytest.mark.parametrize("seed", range(4))
def test_noise_of_the_batches_is_not_the_steepest_fall(steps, seed):
    """The loss is 15 with a deviation of 2, and falls to 2 between 0.01 and 1 only."""
    rates = np.geomspace(1e-7, 10.0, steps)
    fall = np.clip((np.log10(rates) + 2) / 2, 0, 1)
    noise = np.random.default_rng(seed).normal(size=steps) * 2 * (1 - 0.8 * fall)
    losses = np.where(rates > 2, 15 * rates, 15 - 13 * fall + noise)
    found = RangeTest(rates, losses, planned=steps)
    assert 0.005 < found.steepest < 1
