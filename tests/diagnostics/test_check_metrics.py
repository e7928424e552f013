"""Tests of the check's question about metrics, with metrics that divide as they should and ones that do not."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from learner import RegressionOutput
from learner.metrics import (
    R2,
    ExplainedVariance,
    GradientNorm,
    MeanAbsoluteError,
    Metric,
    PearsonCorrelation,
    WeightedMean,
    rows_mask,
)
from learner.metrics.base import MergingMetric
from tests.support.runs import batches, line, line_predictions, line_step, quiet, valid_data

pytestmark = pytest.mark.usefixtures("compiled_once")


def masked_step(model, batch):
    """Leave out the first row of each batch."""
    predictions = line_predictions(model, batch["x"])
    mask = jnp.arange(len(predictions)) > 0
    return RegressionOutput.from_predictions(predictions, batch["t"], mask=mask)


@pytest.fixture
def answer(tmp_path):
    """Return a function that answers the question for metrics of a regression."""

    def ask(*metrics, step=line_step, valid=None):
        builder = quiet(tmp_path / "run").metrics(*metrics)
        learner = builder.build(line(value=1.0), optax.sgd, 0.1, train_step=step, valid_step=step)
        return learner.check(batches(), valid_data() if valid is None else valid, only="metrics")["metrics"]

    return ask


class Mean(MergingMetric):
    """The mean of the predictions of the rows that count."""

    name = "Mean"
    fields = ("predictions",)

    def init(self):
        return WeightedMean.zero()

    def update(self, state, output, info):
        return state.add(output.predictions, rows_mask(output))

    def compute(self, state):
        return state.value()


class OfBatches(Mean):
    """The mean over batches of their largest prediction."""

    name = "Of Batches"

    def update(self, state, output, info):
        return state.add(output.predictions.max(), jnp.float32(1))


class OfAllRows(Mean):
    """The mean over all rows, also those that the mask leaves out."""

    name = "Of All Rows"

    def update(self, state, output, info):
        return state.add(output.predictions)


class FromOne(Metric):
    """A number of rows that begins at 1."""

    name = "From One"
    fields = ("predictions",)

    def init(self):
        return jnp.float32(1)

    def update(self, state, output, info):
        return state + len(output.predictions)

    def merge(self, a, b):
        return a + b

    def compute(self, state):
        return state


class Forgetful(Mean):
    """A mean that forgets the micro-batches before the last one."""

    name = "Forgetful"

    def update(self, state, output, info):
        return super().update(self.init(), output, info)


@pytest.mark.parametrize("step", [line_step, masked_step])
def test_metrics_that_merge_pass(answer, step):
    finding = answer(Mean(), MeanAbsoluteError(), PearsonCorrelation(), GradientNorm(), step=step)
    assert (finding.verdict, finding.number) == ("ok", 0)
    assert "3 metrics" in finding.text  # a step's gradient norm is no metric of a validation


def test_value_that_depends_on_the_division_of_rows_is_a_warning(answer):
    for metric in (OfBatches(), Forgetful()):
        finding = answer(metric, Mean())
        assert (finding.verdict, finding.number) == ("warning", 1)
        assert finding.text.startswith(f"{metric.name}: ")


def test_state_of_no_rows_that_changes_others_fails(answer):
    finding = answer(Mean(), FromOne())
    assert (finding.verdict, finding.number) == ("failed", 1)
    assert finding.text.startswith("From One: ")


def test_metric_that_ignores_the_mask_is_a_warning(answer):
    finding = answer(Mean(), OfAllRows(), step=masked_step)
    assert (finding.verdict, finding.number) == ("warning", 1)
    assert finding.text.startswith("Of All Rows: rows count")
    assert answer(OfAllRows()).verdict == "ok"


def test_outputs_of_other_types_and_metrics_of_pairs(answer):
    """A dict has no dataclass of its own, and a metric of pairs cannot take the uneven parts of a batch."""

    class OfPairs(Mean):
        name = "Of Pairs"

        def update(self, state, output, info):
            return state.add(output.predictions.reshape(-1, 2).max(-1), None)

    def step(model, batch):
        output = masked_step(model, batch)
        names = ("loss", "predictions", "targets", "mask", "weight")
        return {name: getattr(output, name) for name in names}

    finding = answer(Mean(), OfAllRows(), step=step)
    assert (finding.verdict, finding.number) == ("warning", 1)
    finding = answer(OfPairs())
    assert (finding.verdict, "could not be divided" in finding.text) == ("ok", True)


def test_rounding_of_values_near_zero_is_no_difference(answer):
    """A constant prediction explains nothing of the variance: 0, or what rounding leaves."""

    def constant(model, batch):
        return RegressionOutput.from_predictions(line_predictions(model, batch["x"]) * 0 + 0.1, batch["t"])

    for seed in range(8):
        t = np.random.default_rng(seed).normal(size=(32, 1)).astype(np.float32)
        valid = [{"x": np.zeros((32, 3), np.float32), "t": t}]
        assert answer(ExplainedVariance(), R2(), step=constant, valid=valid).verdict == "ok"


def test_question_needs_metrics_and_rows(answer):
    assert answer().verdict == "skipped"
    assert answer(GradientNorm()).verdict == "skipped"
    one = [{name: np.asarray(x[:1]) for name, x in batch.items()} for batch in batches()[:1]]
    assert "could not be divided" in answer(OfBatches(), valid=one).text
