"""Tests of NaN and infinite losses and gradients."""

import math
import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from learner import ClassificationOutput, LearnerError, LearnerWarning, NonFiniteError, RegressionOutput
from learner.data.source import source_of
from learner.events import RunFailed
from learner.loggers import MemoryLogger
from learner.metrics import R2, GradientNorm, SpearmanCorrelation
from learner.runs.history import read_history
from learner.steps.outputs import weighted_mean
from learner.training.programs.in_flight import InFlightLimiter
from learner.training.reporting import step_reader
from tests.support.codes import raises_code
from tests.support.runs import (
    STEPS,
    T,
    X,
    batches,
    build_line,
    journal_of,
    line,
    line_step,
    logs_of,
    model_bits,
    noisy_step,
    quiet,
    saved_steps,
    valid_data,
)
from tests.support.stopped import some

pytestmark = pytest.mark.usefixtures("compiled_once")

BAD = STEPS + 3  # the third step of the second epoch


class Poisoned:
    """The batches of each epoch, with a non-finite number in some steps of the run."""

    def __init__(self, *steps, value=math.nan):
        self.steps, self.value, self.epochs = steps, value, 0

    def __call__(self):
        first, self.epochs = self.epochs * STEPS + 1, self.epochs + 1
        for number, batch in enumerate(batches(), first):
            yield {**batch, "t": batch["t"] + np.float32(self.value if number in self.steps else 0)}


def losses(directory, epoch):
    text = logs_of(directory)[f"train/epoch-{epoch}/Loss.log"]
    return [float(line.split(",")[0]) for line in text.splitlines()]


@pytest.mark.full
@pytest.mark.parametrize("dispatch", some([1, 4, 32], {32}))
def test_nan_visible(tmp_path, dispatch):
    """The error names the step in any dispatch, its value is logged unchanged, nothing after it is, and the previous
    checkpoint survives.
    """
    builder = quiet(tmp_path / "run", saves=True).num_epochs(5).steps_per_dispatch(dispatch)
    learner = build_line(builder.with_file_checkpointer(every_steps=4, keep_last=9))
    checkpoint = str((tmp_path / "run" / "checkpoint" / "8").absolute())
    with raises_code("step-nonfinite", quantity="loss", step=BAD, epoch=2, checkpoint=checkpoint) as caught:
        learner.fit(Poisoned(BAD), valid_data())
    assert isinstance(caught.value, NonFiniteError)
    assert saved_steps(tmp_path / "run") == [4, 6, 8]  # 6: the best epoch
    first, second = losses(tmp_path / "run", 1), losses(tmp_path / "run", 2)
    assert len(first) == STEPS + 1
    assert np.isfinite(first).all()
    assert np.isfinite(second[:2]).all()
    assert len(second) == 3
    assert math.isnan(second[2])
    assert [line["event"] for line in journal_of(tmp_path / "run")][-1] == "error"
    assert f"the loss of step {BAD} is not finite" in (tmp_path / "run" / "experiment.log").read_text()


def test_rows_in_memory_are_named(tmp_path):
    x, t = np.ones((8, 3), np.float32), np.ones((8, 1), np.float32)
    x[5, 1], x[6, 0], t[7] = math.nan, math.inf, math.nan
    with raises_code("step-nonfinite", "NaN or infinite values in t (row 7) and x (row 5, 6):"):
        build_line(quiet(tmp_path / "run").with_batch_size(4)).fit({"x": x, "t": t})


@pytest.mark.full
def test_advice_without_bad_rows(tmp_path):
    with raises_code("step-nonfinite", "Clipped(optimizer, norm=1.0)", "`learner data`"):
        build_line(quiet(tmp_path / "stream")).fit(Poisoned(2))
    steep_rate = quiet(tmp_path / "arrays").with_batch_size(4).num_epochs(99)
    with raises_code("step-nonfinite", "lower learning rate") as error:
        steep_rate.build(line(), optax.sgd, 1e30, train_step=line_step).fit(
            {"x": np.ones((8, 3), np.float32), "t": np.ones((8, 1), np.float32)}
        )
    assert "`learner data`" not in str(error.value)


def test_advice_for_nonfinite_gradient_of_finite_loss(tmp_path):
    def penalised(model, batch):
        return {"loss": jnp.sqrt((model["w"] ** 2).sum()) + batch["x"].mean()}  # the derivative at 0 is 0 · ∞

    learner = quiet(tmp_path / "run").build({"w": jnp.zeros(3)}, optax.sgd, 0.1, train_step=penalised)
    with raises_code("step-nonfinite", "The loss is finite; derivatives of a square root", quantity="gradient norm"):
        learner.fit([{"x": np.ones(4, np.float32)}])


def test_advice_for_an_index_beyond_the_table(tmp_path):
    def embedded(model, batch):
        rows = jnp.take(model["w"], batch["text"], axis=0)
        return RegressionOutput.from_predictions(rows, jnp.zeros_like(rows))

    text = np.array([0, 1, 2, 3, 1, 2, 0, 1], np.int32)
    with raises_code("step-nonfinite", "embedding's table (text is from 0 to 3)", quantity="loss"):
        quiet(tmp_path / "run").with_batch_size(4).build(line(), optax.sgd, 0.1, train_step=embedded).fit(
            {"text": text, "x": np.ones(8, np.float32)}
        )


def test_advice_for_labels_has_their_range_and_ignore_label(tmp_path):
    def classified(model, batch):
        return ClassificationOutput.from_logits(batch["x"] @ model["w"], batch["label"])

    x, label = np.ones((8, 2), np.float32), np.array([0, 1, 2, 1, 2, 0, 1, -100], np.int32)
    learner = quiet(tmp_path / "run").with_batch_size(2)
    learner = learner.build({"w": jnp.zeros((2, 3))}, optax.sgd, 0.1, train_step=classified)
    with raises_code("step-nonfinite", "their ignore_label", "(label is from -100 to 2)", quantity="labels"):
        learner.fit({"x": x, "label": label})


def test_the_warning_of_a_validation_names_bad_rows_and_the_range_of_labels(tmp_path):
    def classified(model, batch):
        return ClassificationOutput.from_logits(batch["x"] @ model["w"], batch["label"])

    x, label = np.ones((8, 2), np.float32), np.array([0, 1, 2, 1, 2, 0, 1, 2], np.int32)
    bad, wrong = x.copy(), label.copy()
    bad[5, 1], wrong[6] = np.nan, 3
    builder = quiet(tmp_path / "run").with_batch_size(2).num_epochs(2)
    learner = builder.build({"w": jnp.zeros((2, 3))}, optax.sgd, 0.1, train_step=classified, valid_step=classified)
    splits = {
        "bad": {"x": bad, "label": label},
        "wrong": {"x": x, "label": wrong},
        "stream": lambda: iter([{"x": x, "label": label}, {"x": x, "label": wrong}]),
    }
    with pytest.warns(LearnerWarning) as warned:
        learner.fit({"x": x, "label": label}, splits)
    rest = "masks that keep nothing, or outputs that overflow"
    before = "the loss of valid-{} is nan in epoch 1, and training continues: "
    assert [str(warning.message) for warning in warned] == [
        f"{before.format('bad')}that data has NaN or infinite values in x (row 5). If the loss does not depend on "
        f"them, look for labels outside of the classes (label is from 0 to 2), {rest}",
        f"{before.format('wrong')}look for labels outside of the classes (label is from 0 to 3), {rest}",
        f"{before.format('stream')}look for NaN or infinite values in that data (`learner data`, DatasetReport), "
        f"labels outside of the classes, {rest}",
    ]


@pytest.mark.full
def test_resuming_before_a_nonfinite_step(tmp_path):
    """With corrected data, the run ends like one whose data was always correct."""

    def fit(name, data):
        builder = quiet(tmp_path / name).num_epochs(3).with_file_checkpointer(every_steps=4).resume()
        return build_line(builder).fit(data)

    with pytest.raises(NonFiniteError):
        fit("run", Poisoned(BAD))
    mended, whole = (fit(name, lambda: iter(batches())) for name in ("run", "whole"))
    assert model_bits(mended.model) == model_bits(whole.model)
    assert logs_of(tmp_path / "run") == logs_of(tmp_path / "whole")


def test_error_without_checkpoint(tmp_path):
    """Also if the step is the last of its run."""
    with raises_code("step-nonfinite", step=STEPS, checkpoint=None):
        build_line(quiet(tmp_path / "run", saves=True)).fit(Poisoned(STEPS))
    assert saved_steps(tmp_path / "run") == []


def steep(model, batch):
    """Return a finite loss whose gradient is infinite where the square root is at 0."""
    predictions = batch["x"] @ model["w"] + model["b"][None]
    return RegressionOutput(jnp.sqrt(jnp.abs(predictions)).mean(), predictions, batch["t"], jnp.float32(4))


@pytest.mark.full
@pytest.mark.parametrize("accumulate", some([1, 4], {4}))
def test_gradients_alone(tmp_path, accumulate):
    builder = quiet(tmp_path / "run").grads_accumulation(accumulate)
    learner = builder.build(line(), optax.sgd, 0.1, train_step=steep)
    with raises_code("step-nonfinite", quantity="gradient norm", step=1):
        learner.fit(batches())
    assert losses(tmp_path / "run", 1) == [0.0]


@pytest.mark.parametrize("value", some([math.nan, math.inf, -math.inf], {math.inf}))
def test_stop(tmp_path, value):
    """The result has the parameters before the step, whatever was in flight. Hooks see no later step."""
    steps = []
    builder = quiet(tmp_path / "run").num_epochs(5).on_nonfinite("stop").with_file_checkpointer(every_steps=4)
    builder.every(1, lambda info, model: steps.append(info.step))
    result = build_line(builder).fit(Poisoned(BAD, value=value), valid_data())
    assert steps == list(range(1, BAD))
    assert result.stopped_by == f"on_nonfinite: the loss of step {BAD} is not finite"
    assert result.summary["steps"] == BAD
    assert result.summary["epochs"] == 1
    until = build_line(quiet(tmp_path / "until").num_steps(BAD - 1)).fit(batches())
    assert model_bits(result.model) == model_bits(until.model)
    assert saved_steps(tmp_path / "run") == [4, 6, 8]  # 6: the best epoch
    assert len(losses(tmp_path / "run", 2)) == 3
    assert read_history(tmp_path / "run").to_json() == result.history.to_json()
    assert journal_of(tmp_path / "run")[-1]["stopped_by"] == result.stopped_by


def by_hand(skipped, optimizer):
    """Return the parameters of a loop that skips the batches of some steps."""
    params = line()
    state = optimizer.init(params)
    grad = jax.grad(lambda params, batch: line_step(params, batch).loss)
    for number, batch in enumerate([*batches(), *batches(), *batches()], 1):
        if number not in skipped:
            with jax.numpy_dtype_promotion("standard"):
                updates, state = optimizer.update(grad(params, batch), state, params)
            params = optax.apply_updates(params, updates)
    return params


@pytest.mark.parametrize("dispatch", some([1, 32], {32}))
def test_skip(tmp_path, dispatch):
    """The step affects neither parameters, momentum nor the optimizer's count; it counts as a step of the run."""
    bad = (2, 3, BAD)
    builder = quiet(tmp_path / "run", saves=True).num_epochs(3).on_nonfinite("skip", 3).steps_per_dispatch(dispatch)
    result = build_line(builder.metrics(GradientNorm()), 0.05, optax.adam).fit(Poisoned(*bad))
    assert np.isfinite(result.history["train/Gradient Norm"]).all()  # of the steps that were not skipped
    expected = by_hand(bad, optax.adam(0.05))
    for name in ("w", "b"):
        np.testing.assert_allclose(result.model[name], expected[name], rtol=2e-6)
    assert (result.stopped_by, result.summary["steps"]) == ("num_epochs", 3 * STEPS)
    assert saved_steps(tmp_path / "run")[-1] == 3 * STEPS
    first = losses(tmp_path / "run", 1)
    assert [math.isnan(loss) for loss in first] == [False, True, True, False, False, False, False]
    assert first[-1] == pytest.approx(np.nanmean(first[:-1]), rel=1e-6)  # batches of equal size
    assert result.history["train/Loss"][0] == first[-1]
    warnings = [x for x in (tmp_path / "run" / "experiment.log").read_text().splitlines() if "WARNING" in x]
    assert [f"the loss of step {step} is not finite" in x for step, x in zip(bad, warnings, strict=True)] == [True] * 3


@pytest.mark.full
@pytest.mark.parametrize("dispatch", some([1, 32], {1}))
def test_too_many_skips_in_a_row(tmp_path, dispatch):
    builder = quiet(tmp_path / "run", saves=True).num_epochs(3).on_nonfinite("skip", 3).steps_per_dispatch(dispatch)
    with raises_code("step-nonfinite", quantity="loss", step=10) as error:
        build_line(builder.with_file_checkpointer(every_steps=3, keep_last=99)).fit(Poisoned(4, 5, 8, 9, 10))
    assert "as were those of the 2 steps before" in str(error.value)
    assert saved_steps(tmp_path / "run") == [3, 6, 9]


@pytest.mark.full
def test_skips_are_counted_across_a_resume(tmp_path):
    def build(n):
        builder = quiet(tmp_path / "run", saves=True).num_steps(n).on_nonfinite("skip", 3).resume()
        return build_line(builder.with_file_checkpointer(every_steps=1))

    build(4).fit(Poisoned(3, 4))
    with raises_code("step-nonfinite", step=5):
        build(9).fit(lambda: iter([{**b, "t": b["t"] * np.float32(math.nan)} for b in batches()]))


def test_ignore(tmp_path):
    result = build_line(quiet(tmp_path / "run", saves=True).num_epochs(2).on_nonfinite("ignore")).fit(Poisoned(2))
    assert result.stopped_by == "num_epochs"
    assert np.isnan(result.model["w"]).all()
    assert saved_steps(tmp_path / "run")[-1] == 2 * STEPS


@pytest.mark.full
def test_policy_changes_no_bit(tmp_path):
    def fit(what):
        builder = quiet(tmp_path / what).num_epochs(2).on_nonfinite(what)
        return builder.build(line(), optax.adamw, 0.05, train_step=noisy_step).fit(batches())

    assert model_bits(fit("raise").model) == model_bits(fit("ignore").model)


def test_rows_without_weight_are_not_checked(tmp_path):
    def weighed(model, batch):
        output = line_step(model, batch)
        return RegressionOutput(output.loss, output.predictions, output.targets, weight=batch["weight"].sum())

    rows = [
        {"x": X[:4], "t": T[:4] + np.float32(bad), "weight": np.float32([w] * 4)} for bad, w in ((math.nan, 0), (0, 1))
    ]
    result = quiet(tmp_path / "run").build(line(), optax.sgd, 0.1, train_step=weighed).fit(rows)
    assert np.isfinite(result.model["w"]).all()


def test_validation_may_be_nan(tmp_path):
    result = build_line(quiet(tmp_path / "run")).fit(
        batches(), [{**b, "t": b["t"] * np.float32(math.nan)} for b in batches()]
    )
    assert math.isnan(result.history["valid/Loss"][-1])


@pytest.mark.full
def test_a_custom_update(tmp_path):
    def update(state, batch, lr, rng):
        mean = batch["t"].mean()
        return {"w": state["w"] * mean}, RegressionOutput(mean, batch["t"], batch["t"], jnp.float32(4))

    def build(what):
        return quiet(tmp_path / what).on_nonfinite(what).build({"w": jnp.ones(())}, None, 0.1, update=update)

    with raises_code("step-nonfinite", quantity="loss", step=3):
        build("raise").fit(Poisoned(3))
    result = build("stop").fit(Poisoned(3))
    expected = batches()[0]["t"].mean() * batches()[1]["t"].mean()
    np.testing.assert_allclose(result.model["w"], expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("targets", "note"),
    [(T[:5], "while computing the metric R2"), (np.ones((8, 1), np.float32), "leave metrics out")],
    ids=["a batch of one row", "constant, in a loop"],
)
def test_debug_nans_mentions_undefined_metrics(tmp_path, targets, note):
    learner = build_line(quiet(tmp_path / "run").with_batch_size(4).metrics(R2()))
    with jax.debug_nans(True), pytest.raises(FloatingPointError) as raised:
        learner.fit({"x": X[: len(targets)], "t": targets})
    assert note in "".join(raised.value.__notes__)


def test_nonfinite_error_is_a_learner_error():
    assert issubclass(NonFiniteError, LearnerError)


def test_failing_step_is_reported_once(tmp_path, monkeypatch):
    """Journal and listeners name the step that the error names, not the loop's current step."""
    third, read, acquire, calls = threading.Event(), step_reader.fetch, InFlightLimiter.acquire, []

    def taking_off(flight, *arguments):
        calls.append(arguments)
        if len(calls) == 3:  # two steps are in flight
            third.set()
        return acquire(flight, *arguments)

    monkeypatch.setattr(InFlightLimiter, "acquire", taking_off)
    monkeypatch.setattr(step_reader, "fetch", lambda dispatched: third.wait(30) and read(dispatched))
    memory = MemoryLogger()
    builder = quiet(tmp_path / "run").steps_per_dispatch(1).metric_loggers(memory)
    with raises_code("step-nonfinite", quantity="loss"):
        build_line(builder).fit(Poisoned(1))
    (failed,) = memory.of(RunFailed)
    line = journal_of(tmp_path / "run")[-1]
    assert (failed.epoch, failed.step) == (line["epoch"], line["step"]) == (1, 1)


@pytest.mark.full
@pytest.mark.parametrize("policy", ["raise", "ignore"])
def test_nonfinite_validation_warns_once(tmp_path, policy):
    rows = [{**batch, "x": np.where(batch["x"] == batch["x"].max(), np.nan, batch["x"])} for batch in valid_data()]
    builder = quiet(tmp_path / "run").num_epochs(3).on_nonfinite(policy)
    result = build_line(builder).fit(batches(), {"clean": valid_data(), "dirty": rows})
    assert np.isnan(result.history["valid-dirty/Loss"]).all()
    assert np.isfinite(result.history["valid-clean/Loss"]).all()
    lines = (tmp_path / "run" / "experiment.log").read_text().splitlines()
    warned = [line for line in lines if "WARNING" in line and "valid" in line]
    assert len(warned) == (policy == "raise")
    assert all("valid-dirty" in line and "epoch 1" in line for line in warned)


@pytest.mark.full
@pytest.mark.parametrize("kept", [0, 1])
def test_epoch_without_weight_warns_once(tmp_path, kept):
    def masked(model, batch):
        losses = jnp.square(line_step(model, batch).predictions - batch["t"]).mean(1)
        loss, weight = weighted_mean(losses, batch["mask"])
        return {"loss": loss, "weight": weight}

    rows = [{**batch, "mask": np.zeros(len(batch["x"]), np.float32)} for batch in batches()]
    rows[2]["mask"][:kept] = 1
    builder = quiet(tmp_path / "run").num_epochs(3)
    model = builder.build(line(), optax.sgd, 0.1, train_step=masked).fit(rows).model
    warned = [x for x in (tmp_path / "run" / "experiment.log").read_text().splitlines() if "WARNING" in x]
    assert len(warned) == (kept == 0)
    assert all("train" in text and "epoch 1" in text for text in warned)
    assert all("no row had a weight" in text for text in warned)
    assert (model_bits(model) == model_bits(line())) == (kept == 0)


def test_an_epoch_whose_loss_exceeds_float32_is_a_warning(tmp_path):
    """The loss of each of 8 rows is 1e38, so their sum is infinite."""

    def large(model, batch):
        return {"loss": 1e38 + 0 * line_step(model, batch).loss}

    learner = quiet(tmp_path / "run").build(line(), optax.sgd, 0.1, train_step=large)
    assert learner.fit([{name: x[:8] for name, x in batches()[0].items()}]).history["train/Loss"] == [math.inf]
    log = (tmp_path / "run" / "experiment.log").read_text()
    assert "is inf in epoch 1, but the loss of each step is finite: its sum over the rows exceeds float32" in log


@pytest.mark.full
@pytest.mark.parametrize("accumulate", some([1, 2], {2}))
def test_rows_of_skipped_steps_are_not_collected(tmp_path, accumulate):
    """As in other metrics: the values are those of a run without these steps."""

    def correlation(name, data):
        builder = quiet(tmp_path / name).grads_accumulation(accumulate).on_nonfinite("skip")
        learner = builder.metrics(SpearmanCorrelation()).build(line(value=0.3), optax.sgd, 0.0, train_step=line_step)
        return learner.fit(data).history["train/Spearman Correlation"]

    data = batches()
    bad = range(2 * accumulate, 3 * accumulate)  # the micro-batches of the third step
    dirty = [{**x, "t": x["t"] + np.float32(math.nan if i in bad else 0)} for i, x in enumerate(data)]
    (value,) = correlation("dirty", dirty)
    assert math.isfinite(value)
    assert [value] == correlation("clean", [x for i, x in enumerate(data) if i not in bad])


# -- updates that make NaN of finite gradients -------------------------------------------------------------------------


def breaking(lr):
    """SGD whose third update divides by 0."""

    def update(updates, count, params=None):
        return jax.tree.map(lambda g: -lr * g / (count != 2), updates), count + 1

    return optax.GradientTransformation(lambda params: jnp.int32(0), update)


@pytest.mark.parametrize("policy", ["raise", "ignore"])
def test_nonfinite_parameters_are_not_saved(tmp_path, policy):
    """The run ends after that step, as no later loss shows the fault."""
    builder = quiet(tmp_path, saves=True).num_steps(3).on_nonfinite(policy)
    result = build_line(builder.with_file_checkpointer(every_steps=1, keep_last=5), optimizer=breaking).fit(batches())
    assert result.stopped_by == "num_steps"
    assert saved_steps(tmp_path) == ([1, 2] if policy == "raise" else [1, 2, 3])
    log = (tmp_path / "experiment.log").read_text()
    assert log.count("there is no checkpoint of step 3: its loss and gradients were finite") == (policy == "raise")


@pytest.mark.full
def test_next_step_names_a_usable_checkpoint(tmp_path):
    builder = quiet(tmp_path, saves=True).with_file_checkpointer(every_steps=1, keep_last=5)
    with raises_code("step-nonfinite", str(tmp_path / "checkpoint/2"), step=4):
        build_line(builder, optimizer=breaking).fit(batches())
    assert saved_steps(tmp_path) == [1, 2]
    result = build_line(quiet(tmp_path, saves=True).resume(allow="optimizer")).fit(batches())
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(result.model))


@pytest.mark.parametrize("is_bad", [False, True])
def test_batches_in_a_list_are_searched_for_values_that_are_not_finite(is_bad):
    data = [{"x": np.ones((3, 2), np.float32)} for _ in range(3)]
    if is_bad:
        data[1]["x"][2, 0] = np.nan
    assert source_of(data, "train").bad_batch() == ("x (row 2) of batch 2" if is_bad else "")
    assert source_of(lambda: iter(data), "train").bad_batch() is None
