"""The range test: what it trains, what it suggests, and that nothing of it stays."""

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
from learner.schedules import Cosine
from tests.support.codes import raises_code
from tests.support.runs import batches, build_line, line, line_step, model_bits, quiet, valid_data

pytestmark = pytest.mark.usefixtures("compiled_once")


def nnx_line(model, batch):
    return RegressionOutput.from_predictions(model(batch["x"]), batch["t"])


def by_hand(rates, accumulate=1):
    """The losses of SGD with a rate for each step."""
    grad = jax.jit(jax.value_and_grad(lambda params, batch: line_step(params, batch).loss))
    params, losses, all_batches = line(), [], [*batches(), *batches()]
    for number, rate in enumerate(rates):
        parts = all_batches[number * accumulate : (number + 1) * accumulate]
        batch = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        loss, grads = grad(params, batch)
        params = jax.tree.map(lambda p, g, rate=rate: p - np.float32(rate) * g, params, grads)
        losses.append(float(loss))
    return losses


@pytest.mark.parametrize(("accumulate", "lr"), [pytest.param(1, 0.05, marks=pytest.mark.full), (2, Cosine(0.1))])
def test_it_is_training_with_rising_rates(tmp_path, accumulate, lr):
    learner = build_line(quiet(tmp_path / "run").grads_accumulation(accumulate), lr)
    found = learner.find_lr(batches(), lowest=1e-3, highest=0.1, steps=5)
    rates = [1e-3 * 100 ** (i / 4) for i in range(5)]
    np.testing.assert_allclose(found.rates, rates, rtol=1e-5)
    np.testing.assert_allclose(found.losses, by_hand(rates, accumulate), rtol=1e-5)
    assert found.planned == 5


@pytest.mark.full
def test_nothing_of_it_stays(tmp_path, monkeypatch):
    """No file, no call of a hook or a logger, no other model; and `fit` afterwards gives what it gives without it."""
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
    found = one.find_lr(steps=20)
    assert len(found.losses) > 10
    assert (calls, memory.events, plateau.lr) == ([], [], 0.05)
    assert model_bits(model) == before
    assert [path.name for path in tmp_path.rglob("*")] == ["temporary"]
    expected = learner("two").fit()
    assert model_bits(one.fit().model) == model_bits(expected.model)


def test_it_ends_where_the_loss_diverges(tmp_path):
    found = build_line(quiet(tmp_path / "run")).find_lr(batches(), lowest=1e-3, highest=1e6, steps=200)
    assert found.planned == 200
    assert 20 < len(found.losses) < 150
    means = found.smoothed
    assert means[-1] > 4 * means[:-1].min()
    assert all(means[i] <= 4 * means[4 : i + 1].min() for i in range(4, len(means) - 1))
    assert 1e-3 < found.suggestion < found.lowest
    assert f"ended after {len(found.losses)} of 200 steps: the loss diverges" in str(found)


def test_a_loss_that_is_not_finite_ends_it(tmp_path):
    def step(model, batch):
        output = line_step(model, batch)
        bad = jnp.where(jnp.abs(model["b"][0]) > 0.1, jnp.nan, 1.0)
        return dataclasses.replace(output, loss=output.loss * bad)

    learner = quiet(tmp_path / "run").build(line(), optax.sgd, 0.1, train_step=step)
    found = learner.find_lr(batches(), lowest=1e-3, highest=10.0, steps=60)
    assert 1 < len(found.losses) < 60
    assert np.isfinite(found.losses).all()


def test_a_first_loss_that_is_not_finite(tmp_path):
    data = [{**batch, "x": batch["x"] * np.float32(math.inf)} for batch in batches()]
    with raises_code("step-first-loss-nonfinite"):
        build_line(quiet(tmp_path / "run")).find_lr(data, steps=3)


@pytest.mark.full
def test_it_runs_where_the_learner_does(tmp_path):
    expected = build_line(quiet(tmp_path / "run")).find_lr(batches(), steps=6)
    found = build_line(quiet(tmp_path / "run").devices(2)).find_lr(batches(), steps=6)
    np.testing.assert_allclose(found.losses, expected.losses, rtol=1e-5)


def test_what_is_wrong_is_told_at_once(tmp_path):
    learner = build_line(quiet(tmp_path / "run"))
    with pytest.raises(LearnerError) as error:
        learner.find_lr(batches(), lowest=0.0, highest=-1.0, steps=1, smoothing=1.0, diverges=1.0)
    for part in ("5 problems", "lowest is 0.0", "highest is -1.0", "steps is 1", "smoothing is 1.0", "diverges is 1.0"):
        assert part in str(error.value)
    with raises_code("data-training-missing"):
        learner.find_lr()


# -- what it suggests --------------------------------------------------------------------------------------------------


def valley(smoothing=0.0, noise=0.0):
    """100 rates from 1e-6 to 1: flat, a line down from 1e-4 to 1e-2 with its steepest part at 1e-3, and up again."""
    rates = np.geomspace(1e-6, 1.0, 100)
    x = np.log10(rates)
    losses = 2.0 - np.tanh(2 * (x + 3)) + 3 * np.maximum(x + 1, 0) ** 2
    losses += noise * np.random.default_rng(0).normal(size=100)
    return RangeTest(rates, losses, 100, smoothing)


def test_the_rates_that_are_suggested():
    found = valley()
    assert found.steepest == pytest.approx(1e-3, rel=0.1)
    assert found.suggestion == found.steepest
    assert found.lowest == pytest.approx(0.1, rel=0.2)
    assert found.tenth == found.lowest / 10


def test_the_last_step_down_is_not_suggested():
    """It is the steepest, and the next rate diverges."""
    rates = np.array([1e-4, 1e-3, 1e-2, 1e-1, 1.0])
    found = RangeTest(rates, np.array([2.0, 1.9, 1.7, 0.4, 9.0]), planned=5, smoothing=0.0)
    assert (found.lowest, found.suggestion) == (1e-1, 1e-2)


def test_noise_before_the_valley_is_no_valley():
    """The first smoothed losses are means of few, and jump."""
    assert valley(smoothing=0.9, noise=0.05).steepest == pytest.approx(2e-3, rel=0.8)


def test_a_first_loss_by_chance_is_not_the_lowest():
    found = valley(smoothing=0.8)
    lucky = RangeTest(found.rates, np.concatenate([[0.01], found.losses[1:]]), 100, 0.8)
    assert lucky.smoothed.argmin() == 0
    assert (lucky.lowest, lucky.steepest) == (found.lowest, found.steepest)


def test_a_loss_that_never_falls():
    found = RangeTest(np.geomspace(0.1, 1.0, 5), np.array([1.0, 1.1, 1.2, 1.3, 1.4]), 5, 0.0)
    assert (found.steepest, found.tenth, found.suggestion) == (None, None, None)
    assert str(found).endswith("try a wider range, or look at the model and the data")


def test_smoothed_losses():
    """Weights 0.81, 0.9 and 1, by NumPy."""
    assert smoothed(np.array([3.0, 1.0, 2.0]), 0.9)[2] == pytest.approx(np.average([3, 1, 2], weights=[0.81, 0.9, 1]))
    assert smoothed(np.array([3.0, 1.0, 2.0]), 0.0).tolist() == [3.0, 1.0, 2.0]


def test_the_table():
    lines = str(valley()).splitlines()
    assert lines[0].split() == ["step", "rate", "loss", "smoothed"]
    assert [line.split()[0] for line in lines[1:13]] == [str(1 + 9 * i) for i in range(12)]
    assert lines[1].split() == ["1", "1e-06", "3", "3"]
    assert lines[-1].split()[-1] == f"{valley().lowest / 10:.2g}"


def test_a_notebook_shows_the_table_and_the_losses():
    content = valley()._repr_html_()
    assert str(valley()) in content
    assert content.count("<img") == 1
    assert f"last: each step {valley().losses[-1]:.4g}, smoothed {valley().smoothed[-1]:.4g}" in content


def watched(losses, smoothing):
    """After these losses of the training, and a validation that is not looked at."""
    interrupter = Interrupter()
    watcher = RangeTestListener(interrupter, smoothing, 4.0)
    for split, column in (("valid", [math.nan]), ("train", losses)):
        values = {"Loss": np.array(column)}
        ones = np.ones(len(column))
        watcher.on_event(StepsEnded(0.0, split, 1, 1, len(column), 1, None, 1, values, ones, 0.1))
    return watcher, interrupter


def test_the_first_losses_may_jump():
    """With `smoothing` 0.8, the first four smoothed losses are of too few."""
    jumps = [0.1, 2.0, 1.0, 1.0, 1.0, 1.0]
    watcher = watched([*jumps, 10.0, 50.0, 1.0], 0.8)[0]
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
def test_where_losses_diverge(losses, kept):
    watcher, interrupter = watched(losses, 0.0)
    assert watcher.losses.tolist() == kept
    ended = len(kept) < len(losses) or kept[-1] > 4
    assert (interrupter.reason is not None) == ended
