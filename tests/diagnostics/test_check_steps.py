"""Tests of the check's questions about training steps, each with a step that passes and one that fails."""

import dataclasses
import itertools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from learner import ClassificationOutput, RegressionOutput
from learner.diagnostics import step_questions
from learner.schedules import Linear
from learner.strategies import SingleDevice
from tests.support.runs import batches, build_line, line, line_step, quiet

pytestmark = pytest.mark.usefixtures("compiled_once")


@pytest.fixture
def answer(tmp_path):
    """Return a function that answers a question about a model and its train step."""

    def ask(question, model, step, lr=0.05, steps=100, builder=None, train=None):
        builder = builder or quiet(tmp_path / "run")
        learner = builder.build(model, optax.sgd, lr, train_step=step)
        return learner.check(batches() if train is None else train, only=[question], steps=steps)[question]

    return ask


def blocked_step(model, batch):
    """Stop the gradient of the weights."""
    return line_step({**model, "w": jax.lax.stop_gradient(model["w"])}, batch)


# -- gradients ---------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_parameters_without_gradients_fail(answer):
    finding = answer("gradients", line(), line_step)
    assert (finding.verdict, finding.number) == ("ok", 0)
    finding = answer("gradients", line(), blocked_step)
    assert (finding.verdict, finding.number) == ("failed", 1)
    assert "1 of 2 trained arrays have no gradient (w)" in finding.text
    finding = answer("gradients", {**line(), "unused": {"a": jnp.ones(2), "b": jnp.ones(2)}}, line_step)
    assert (finding.number, "(unused.a, unused.b)" in finding.text) == (2, True)


def test_frozen_parameters_are_skipped(answer, tmp_path):
    finding = answer("gradients", line(), blocked_step, builder=quiet(tmp_path / "run").freeze("w"))
    assert (finding.verdict, "1 frozen array" in finding.text) == ("ok", True)


@pytest.mark.full
def test_gradient_that_starts_with_the_second_step_passes(answer):
    """One of two factors starts at zero, so that the other has no gradient in the first step."""

    def step(model, batch):
        return line_step({"w": model["a"] @ model["zero"], "b": model["b"]}, batch)

    model = {"a": jnp.ones((3, 2)), "zero": jnp.zeros((2, 1)), "b": jnp.zeros(1)}
    assert answer("gradients", model, step).verdict == "ok"
    assert answer("gradients", model, step, lr=0.0).text.startswith("1 of 3 trained arrays have no gradient (a)")


def test_gradients_that_are_not_finite_fail(answer):
    def step(model, batch):
        output = line_step(model, batch)
        return dataclasses.replace(output, loss=output.loss + jnp.sqrt(model["b"][0]))  # sqrt has no slope at 0

    finding = answer("gradients", line(), step)
    assert (finding.verdict, finding.number) == ("failed", 1)
    assert "gradients of b are not finite" in finding.text


@pytest.mark.full
def test_loss_scale_is_lowered_before_gradients_fail(answer, tmp_path):
    """The gradient of b is 4000: times 32768 and times 16 it exceeds the largest float16, but not times 8."""

    def step(model, batch):
        output = line_step(model, batch)
        return dataclasses.replace(output, loss=output.loss + (4000 * model["b"][0]).astype(jnp.float32))

    finding = answer("gradients", line(), step, lr=1e-6, builder=quiet(tmp_path / "run").precision("float16"))
    assert finding.verdict == "ok"


def test_batch_of_another_shape_is_skipped(answer):
    ragged = [*batches()[:1], {name: x[:1] for name, x in batches()[0].items()}]
    assert answer("gradients", line(), line_step, train=ragged).verdict == "ok"


def test_custom_update_is_skipped(tmp_path):
    def update(model, batch, lr, rng):
        output = line_step(model, batch)
        grads = jax.grad(lambda model: line_step(model, batch).loss)(model)
        return jax.tree.map(lambda p, g: p - lr * g, model, grads), output

    learner = quiet(tmp_path / "run").build(line(), None, 0.05, update=update)
    result = learner.check(batches(), only=["initial-loss", "gradients", "determinism", "one-batch"])
    assert [answer.verdict for answer in result.answers] == ["skipped", "skipped", "ok", "ok"]


# -- determinism -------------------------------------------------------------------------------------------------------


def counting_step():
    """Return a step that multiplies its loss, and so its gradients, by the number of its calls."""
    numbers = itertools.count(1)

    def step(model, batch):
        output = line_step(model, batch)
        number = jax.pure_callback(lambda: np.float32(next(numbers)), jax.ShapeDtypeStruct((), jnp.float32))
        return dataclasses.replace(output, loss=output.loss * number)

    return step


@pytest.mark.full
def test_step_that_counts_its_calls_is_not_deterministic(answer):
    finding = answer("determinism", line(), line_step)
    assert (finding.verdict, finding.number) == ("ok", 0)
    finding = answer("determinism", line(), counting_step())
    assert (finding.verdict, finding.number) == ("failed", 2)  # w and b


def test_nondeterminism_on_an_accelerator_is_a_warning(answer, monkeypatch):
    monkeypatch.setattr(SingleDevice, "platform", "gpu")
    finding = answer("determinism", line(), counting_step())
    assert (finding.verdict, "--xla_gpu_deterministic_ops=true" in finding.text) == ("warning", True)


# -- one batch ---------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_one_batch_is_learned(answer):
    finding = answer("one-batch", line(), line_step)
    assert finding.verdict == "ok"
    assert finding.number <= 0.1
    finding = answer("one-batch", line(bias=False), blocked_step)
    assert (finding.verdict, finding.number) == ("failed", 1.0)


def square_step(model, batch):
    """Return w² as the loss: a step of SGD multiplies w by 1 - 2 lr."""
    return dataclasses.replace(line_step(line(), batch), loss=model["w"] ** 2)


@pytest.mark.full
def test_number_is_the_remaining_share_of_the_loss(answer):
    finding = answer("one-batch", {"w": jnp.float32(3)}, square_step, lr=0.01, steps=20)
    losses = [9 * 0.98 ** (2 * step) for step in range(20)]
    assert finding.number == pytest.approx(sum(losses[-5:]) / 5 / 9, rel=1e-5)  # 0.505
    assert finding.verdict == "warning"
    assert answer("one-batch", {"w": jnp.float32(3)}, square_step, lr=0.01, steps=10).verdict == "warning"
    assert answer("one-batch", {"w": jnp.float32(3)}, square_step, lr=1e-5, steps=10).verdict == "failed"
    assert answer("one-batch", {"w": jnp.float32(0)}, square_step, steps=3).verdict == "failed"  # nothing to learn


@pytest.mark.full
def test_first_loss_that_is_not_finite_does_not_blame_the_rate(answer):
    def step(model, batch):
        return dataclasses.replace(square_step(model, batch), loss=jnp.log(-1 - model["w"] ** 2))

    for question in ("one-batch", "learning-rate"):
        finding = answer(question, {"w": jnp.float32(3)}, step)
        assert (finding.verdict, "look for NaN in the data" in finding.text) == ("failed", True)


def test_diverging_loss_fails(answer):
    finding = answer("one-batch", {"w": jnp.float32(3)}, square_step, lr=1e9)
    assert (finding.verdict, math.isfinite(finding.number)) == ("failed", False)
    assert "lower the learning rate" in finding.text


@pytest.mark.full
def test_highest_rate_of_a_schedule_is_used(answer, tmp_path):
    warmup = Linear(0.0, 0.05, over=10_000)
    finding = answer("one-batch", line(), line_step, lr=warmup, builder=quiet(tmp_path / "run").num_steps(20_000))
    assert (finding.verdict, "at the rate 0.05" in finding.text) == ("ok", True)


@pytest.mark.full
def test_large_batch_is_cut_to_32_rows(answer):
    (all_rows,) = batches(24)
    large = {name: np.concatenate([x, x]) for name, x in all_rows.items()}
    assert "The loss of 32 rows" in answer("one-batch", line(), line_step, train=[large], steps=2).text


# -- learning rate -----------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_rate_is_compared_with_a_range_test(answer):
    finding = answer("learning-rate", line(), line_step, lr=0.05)
    assert finding.verdict == "ok"
    assert 1e-3 < finding.number < 1
    finding = answer("learning-rate", line(), line_step, lr=100.0)
    assert (finding.verdict, "lower it" in finding.text) == ("failed", True)
    finding = answer("learning-rate", line(), line_step, lr=1e-6)
    assert (finding.verdict, "try a higher one" in finding.text) == ("warning", True)


@pytest.mark.full
def test_high_rate_after_a_warm_up_is_a_warning(answer, tmp_path):
    builder = quiet(tmp_path / "run").num_steps(200)
    finding = answer("learning-rate", line(), line_step, lr=Linear(0.0, 100.0, over=100), builder=builder)
    assert (finding.verdict, "warm-up" in finding.text) == ("warning", True)


@pytest.mark.full
def test_diverging_rate_is_reported(answer):
    """The loss is w², which grows if a step of SGD multiplies w by less than -1: above the rate 1."""
    finding = answer("learning-rate", {"w": jnp.float32(3)}, square_step, lr=0.9)
    assert finding.verdict == "ok"
    finding = answer("learning-rate", {"w": jnp.float32(3)}, square_step, lr=11.0)
    assert finding.verdict == "failed"
    assert 1 < float(re.search(r"diverges at the rate ([\d.]+),", finding.text)[1]) <= 10


@pytest.mark.full
def test_losses_that_never_fall_or_are_not_finite(answer):
    finding = answer("learning-rate", line(bias=False), blocked_step)
    assert (finding.verdict, "does not fall at any rate" in finding.text) == ("warning", True)

    def step(model, batch):
        return dataclasses.replace(line_step(model, batch), loss=jnp.log(model["b"][0]))

    finding = answer("learning-rate", line(), step)
    assert (finding.verdict, finding.number) == ("failed", -math.inf)


# -- memory ------------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_memory_is_compared_with_the_limit_of_the_device(tmp_path, monkeypatch):
    learner = build_line(quiet(tmp_path / "run"))
    check = lambda: learner.check(batches(), only=["memory"])["memory"]  # noqa: E731
    finding = check()
    peak = max(program.peak for program in learner.sharding_report(batches()).programs)
    assert (finding.verdict, finding.number > 0.5 * peak) == ("ok", True)
    for limit, verdict in ((2 * finding.number, "ok"), (finding.number, "warning"), (finding.number - 1, "failed")):
        monkeypatch.setattr(step_questions, "memory_limit", lambda device, limit=limit: limit)
        assert check().verdict == verdict


# -- shuffled labels ---------------------------------------------------------------------------------------------------


def linear_step(model, batch):
    return RegressionOutput.from_predictions(batch["x"] @ model["w"], batch["t"])


def ask_about_labels(directory, train, valid, step=linear_step, width=3, lr=0.5):
    learner = quiet(directory).build({"w": jnp.zeros(width)}, optax.sgd, lr, train_step=step, valid_step=step)
    return learner.check(train, valid, only=["label-shuffle"], steps=60)["label-shuffle"]


def in_batches(x, t):
    return [{"x": x[i : i + 8], "t": t[i : i + 8]} for i in range(0, len(x), 8)]


def test_labels_that_depend_on_inputs_pass(tmp_path):
    x = np.random.default_rng(0).normal(size=(48, 3)).astype(np.float32)
    data = in_batches(x, x @ np.float32([1, -2, 3]))
    finding = ask_about_labels(tmp_path / "run", data[:4], data[4:])
    assert (finding.verdict, finding.number < 0.01, "with t shuffled" in finding.text) == ("ok", True, True)


def test_unlearned_labels_are_a_warning(tmp_path):
    x = np.random.default_rng(0).normal(size=(48, 3)).astype(np.float32)
    data = in_batches(x, x @ np.float32([1, -2, 3]))
    finding = ask_about_labels(tmp_path / "run", data[:4], data[4:], lr=1e-4)
    assert (finding.verdict, finding.number > 0.95) == ("warning", True)


@pytest.mark.full
def test_labels_are_identified_for_outputs_of_zeros(tmp_path):
    """The loss of a model that starts with zeros does not depend on the order of the labels."""
    step = lambda model, batch: ClassificationOutput.from_logits(batch["x"] @ model["w"], batch["t"])  # noqa: E731
    x = np.random.default_rng(0).normal(size=(48, 3)).astype(np.float32)
    data = in_batches(x, x.argmax(1).astype(np.int32))
    assert ask_about_labels(tmp_path / "run", data[:4], data[4:], step, width=(3, 3)).verdict == "ok"


@pytest.mark.full
def test_memorized_labels_fail(tmp_path):
    """Each row has a separate weight, so that training changes no other row."""
    rows, t = np.eye(32, dtype=np.float32), np.random.default_rng(0).normal(size=32).astype(np.float32)
    batches = in_batches(2 * rows, t)
    finding = ask_about_labels(tmp_path / "run", batches[:2], batches[2:], width=32)
    assert (finding.verdict, finding.number) == ("failed", 1.0)


@pytest.mark.full
def test_unknown_labels_are_skipped(tmp_path):
    """The labels of a language model are part of its inputs."""

    def step(model, batch):
        return RegressionOutput.from_predictions(batch["x"][:, :-1] @ model["w"], batch["x"][:, -1])

    data = in_batches(np.ones((16, 4), np.float32) * np.arange(16, dtype=np.float32)[:, None], np.zeros(16, np.float32))
    assert ask_about_labels(tmp_path / "run", data, data, step).verdict == "skipped"
    assert ask_about_labels(tmp_path / "run", data, None, step).verdict == "skipped"
    single = [{name: x[:1] for name, x in data[0].items()}]
    assert ask_about_labels(tmp_path / "run", single, data, width=4).verdict == "skipped"


def test_valid_step_with_more_fields_is_skipped(tmp_path):
    """A masked autoencoder draws its masks in training, and has fixed ones in the validation data."""

    def valid_step(model, batch):
        return RegressionOutput.from_predictions(batch["x"] @ model["w"], batch["t"], batch["mask"])

    train = in_batches(np.ones((16, 3), np.float32), np.arange(16, dtype=np.float32))
    valid = [{**batch, "mask": np.ones(8, bool)} for batch in train]
    learner = quiet(tmp_path / "run").build(
        {"w": jnp.zeros(3)}, optax.sgd, 0.1, train_step=linear_step, valid_step=valid_step
    )
    finding = learner.check(train, valid, only=["label-shuffle"])["label-shuffle"]
    assert (finding.verdict, "have other fields" in finding.text) == ("skipped", True)


@pytest.mark.parametrize("dtype", [bool, pytest.param(np.float32, marks=pytest.mark.full)])
def test_mask_of_the_output_is_no_label(tmp_path, dtype):
    def masked_step(model, batch):
        return RegressionOutput.from_predictions(batch["x"] @ model["w"], batch["t"], batch["mask"][:, 0])

    x = np.random.default_rng(0).normal(size=(48, 3)).astype(np.float32)
    data = in_batches(x, x @ np.float32([1, -2, 3]))
    masked = [{**batch, "mask": (np.arange(16).reshape(8, 2) % 6 < 4).astype(dtype)} for batch in data]
    finding = ask_about_labels(tmp_path / "run", masked[:4], masked[4:], masked_step)
    assert (finding.verdict, "with t shuffled" in finding.text) == ("ok", True)


@pytest.mark.full
def test_label_that_masks_itself_is_shuffled(tmp_path):
    """A label of -1 is unknown, so that labels determine the mask of the output."""

    def masked_step(model, batch):
        return RegressionOutput.from_predictions(batch["x"] @ model["w"], batch["t"], batch["t"] != -1)

    x = np.random.default_rng(0).normal(size=(48, 3)).astype(np.float32)
    data = in_batches(x, np.where(np.arange(48) % 5, x @ np.float32([1, -2, 3]), -1))
    finding = ask_about_labels(tmp_path / "run", data[:4], data[4:], masked_step)
    assert (finding.verdict, "with t shuffled" in finding.text) == ("ok", True)
