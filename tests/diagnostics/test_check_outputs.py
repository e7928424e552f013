"""Tests of the check's questions about outputs before training, each with a model that passes and one that fails."""

import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from learner import ClassificationOutput, MultiLabelOutput
from tests.support.runs import (
    Net,
    batches,
    class_step,
    line,
    line_predictions,
    line_step,
    noisy_step,
    quiet,
    regression_step,
    valid_data,
)

pytestmark = pytest.mark.usefixtures("compiled_once")


@pytest.fixture
def answer(tmp_path):
    """Return a function that answers a question about a model with one function for both steps, or two."""

    def ask(question, model, step, valid_step=None, train=None, valid=None):
        steps = {} if step is None else {"train_step": step, "valid_step": valid_step or step}
        learner = quiet(tmp_path / "run").build(model, optax.sgd, 0.1, **steps)
        train, valid = batches() if train is None else train, valid_data() if valid is None else valid
        return learner.check(train, valid, only=[question])[question]

    return ask


# -- the first loss ----------------------------------------------------------------------------------------------------


def test_uniform_guess_has_the_expected_loss(answer):
    finding = answer("initial-loss", line(outputs=3), class_step)  # zeros: all classes have equal logits
    assert finding.verdict == "ok"
    assert finding.number == pytest.approx(0, abs=1e-6)
    assert "log(3) = 1.1" in finding.text


def scaled(factor):
    """Return a model whose first logit is the row's first number times a factor."""
    return {"w": jnp.zeros((3, 3)).at[0, 0].set(factor), "b": jnp.zeros(3)}


def test_confident_errors_fail(answer):
    finding = answer("initial-loss", scaled(100.0), class_step)
    x, y = batches()[0]["x"].astype(np.float64), batches()[0]["y"]
    logits = np.stack([100 * x[:, 0], np.zeros(4), np.zeros(4)], 1)
    loss = np.mean([np.logaddexp.reduce(row) - row[label] for row, label in zip(logits, y, strict=True)])
    assert finding.verdict == "failed"
    assert finding.number == pytest.approx(loss - math.log(3), rel=1e-5)


def test_high_loss_is_a_warning(answer):
    finding = answer("initial-loss", scaled(20.0), class_step)
    assert finding.verdict == "warning"
    assert math.log(3) < finding.number < 4 * math.log(3)


def test_labels_among_the_inputs_are_a_warning(answer):
    def cheating(model, batch):
        return class_step(model, {**batch, "x": 9 * jax.nn.one_hot(batch["y"], 3)})

    finding = answer("initial-loss", {"w": jnp.eye(3), "b": jnp.zeros(3)}, cheating)
    assert finding.verdict == "warning"
    assert "look for them in the inputs" in finding.text


def test_loss_that_is_not_finite_fails(answer):
    def step(model, batch):
        return class_step({**model, "b": jnp.log(model["b"])}, batch)  # infinite logits

    finding = answer("initial-loss", line(outputs=3), step)
    assert (finding.verdict, math.isnan(finding.number)) == ("failed", True)


def test_multiple_labels_and_outputs_without_labels(answer):
    def labels(model, batch):
        return MultiLabelOutput.from_logits(line_predictions(model, batch["x"]), jnp.sign(batch["x"]) / 2 + 0.5)

    finding = answer("initial-loss", line(outputs=3), labels)
    assert (finding.verdict, "log(2)" in finding.text) == ("ok", True)
    assert answer("initial-loss", line(), line_step).verdict == "skipped"


# -- modes -------------------------------------------------------------------------------------------------------------


class Dropped(Net):
    """A net whose dropout ignores the mode."""

    def __call__(self, x):
        return self.out(self.drop(nnx.relu(self.norm(self.hidden(x))), deterministic=False))


@pytest.mark.full
def test_valid_step_repeats_its_bits(answer):
    assert answer("eval-mode", Net(), None).verdict == "ok"
    finding = answer("eval-mode", Dropped(), None)
    assert (finding.verdict, "dropout must follow the mode" in finding.text) == ("failed", True)
    assert finding.number == 2  # the loss and the logits; labels and weights do not change


@pytest.mark.full
def test_valid_step_that_uses_its_key_is_a_warning(answer):
    assert answer("eval-mode", line(value=1.0), noisy_step).verdict == "warning"
    keyless = lambda model, batch, rng: line_step(model, batch)  # noqa: E731
    assert answer("eval-mode", line(value=1.0), keyless).verdict == "ok"


def counting(step):
    """Return a step whose loss differs at each call."""
    numbers = itertools.count(1)

    def counted(model, batch):
        output = step(model, batch)
        number = jax.pure_callback(lambda: np.float32(next(numbers)), jax.ShapeDtypeStruct((), jnp.float32))
        return dataclasses.replace(output, loss=output.loss * number)

    return counted


def test_valid_step_with_a_counting_callback_fails(answer):
    finding = answer("eval-mode", line(), line_step, counting(line_step))
    assert (finding.verdict, finding.number) == ("failed", 1)
    assert "callbacks" in finding.text


@pytest.mark.full
def test_train_and_eval_mode(answer):
    finding = answer("train-mode", Net(), None)
    assert (finding.verdict, finding.number != 0) == ("ok", True)
    noisy = answer("train-mode", line(value=1.0), noisy_step, noisy_step)
    assert (noisy.verdict, noisy.number != 0, "another key gives" in noisy.text) == ("ok", True, True)
    finding = answer("train-mode", line(), line_step)
    assert (finding.verdict, finding.number) == ("ok", 0)


class OnlyDropped(nnx.Module):
    """A line with dropout and without batch statistics."""

    def __init__(self, rate):
        self.line, self.drop = nnx.Linear(3, 3, rngs=nnx.Rngs(0)), nnx.Dropout(rate, rngs=nnx.Rngs(1))

    def train_step(self, batch):
        return ClassificationOutput.from_logits(self.line(self.drop(batch["x"])), batch["y"])

    valid_step = train_step


@pytest.mark.full
@pytest.mark.parametrize(
    ("model", "verdict"), [(Net, "warning"), (lambda: OnlyDropped(0.5), "warning"), (lambda: OnlyDropped(0.0), "ok")]
)
def test_train_step_in_eval_mode_is_a_warning(answer, model, verdict):
    def step(model, batch):
        model.eval()
        return model.train_step(batch)

    finding = answer("train-mode", model(), step)
    assert (finding.verdict, "pass the mode on" in finding.text) == (verdict, verdict == "warning")


@pytest.mark.full
def test_weak_dropout_is_not_a_warning(answer):
    """Dropout hardly changes the loss of a model that starts near zeros, which is the loss of a uniform guess."""
    model = OnlyDropped(0.1)
    model.line.kernel[...] *= 1e-3
    finding = answer("train-mode", model, None)
    assert abs(finding.number) < 1e-3
    assert (finding.verdict, "draws random numbers" in finding.text) == ("ok", True)


def test_losses_that_are_not_finite_are_skipped(answer):
    def generating(model, batch):
        return dataclasses.replace(line_step(model, batch), loss=jnp.float32(math.nan))

    assert answer("train-mode", line(), line_step, generating).verdict == "skipped"


def test_train_step_that_cannot_read_validation_data_is_skipped(answer):
    def valid_step(model, batch):
        return regression_step(model, {"x": batch["x"], "y": batch["z"]})

    valid = [{"x": batch["x"], "z": batch["t"]} for batch in batches()]
    assert answer("train-mode", line(), line_step, valid_step, valid=valid).verdict == "skipped"


def test_questions_about_the_valid_step_need_a_step_and_data(tmp_path):
    for steps in ({}, {"valid_step": line_step}):
        learner = quiet(tmp_path / "run").build(line(), optax.sgd, 0.1, train_step=line_step, **steps)
        result = learner.check(batches(), only=["eval-mode", "train-mode", "row-leak"])
        assert {answer.verdict for answer in result.answers} == {"skipped"}


# -- rows --------------------------------------------------------------------------------------------------------------


def centered_step(model, batch):
    """Subtract the mean of the batch from each row, in eval mode too."""
    return line_step(model, {**batch, "x": batch["x"] - batch["x"].mean(0, keepdims=True)})


def test_rows_that_depend_on_each_other_fail(answer):
    finding = answer("row-leak", line(value=1.0), line_step)
    assert (finding.verdict, finding.number) == ("ok", 0)
    assert "(predictions)" in finding.text  # targets are copied from the batch
    finding = answer("row-leak", line(value=1.0), centered_step)
    assert finding.verdict == "failed"
    assert finding.number > 0.01


@pytest.mark.full
def test_batch_statistics_mix_rows_in_train_mode(answer):
    def train_step(model, batch):
        return model.train_step(batch)

    def in_train_mode(model, batch):
        model.norm.use_running_average = False
        return model.train_step(batch)

    assert answer("row-leak", Net(), train_step).verdict == "ok"
    assert answer("row-leak", Net(), train_step, in_train_mode).verdict == "failed"


def test_outputs_that_cannot_be_compared_are_skipped(answer):
    @jax.tree_util.register_dataclass
    @dataclasses.dataclass(frozen=True)
    class LossOnly:
        loss: jax.Array

    def step(model, batch):
        return LossOnly(line_step(model, batch).loss)

    assert "no outputs per row" in answer("row-leak", line(), step).text
    assert "single row" in answer("row-leak", line(), line_step, valid=batches(1)).text
    equal = {name: np.repeat(x[:1], 4, 0) for name, x in batches()[0].items()}
    assert "are equal" in answer("row-leak", line(), line_step, valid=[equal]).text
