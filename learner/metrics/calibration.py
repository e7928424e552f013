"""Calibration of probabilities."""

import dataclasses
from typing import Any, Self

import jax
import jax.numpy as jnp

from learner.metrics.base import Array, CompensatedSum, Info, MergingMetric, WeightedMean
from learner.metrics.class_arguments import (
    as_int,
    choice_problem,
    ignore_label_problem,
    is_integral,
    metric_name,
    refuse,
)
from learner.metrics.counts import Count
from learner.metrics.means import MeanMetric
from learner.metrics.scores import read_scores

UNCERTAIN = (
    "nothing that it counts was there, or a label outside of the classes or scores without a probability (NaN, inf) did"
)


class BrierScore(MeanMetric):
    """The squared distance of the probabilities from the label; 0 is perfect.

    With one label per row it is `Σₖ (pₖ - yₖ)²` over the classes, mean over rows, from 0 to 2, with yₖ = 1 for the
    label; for two classes half of that, `(p₁ - y₁)²`, from 0 to 1. With several labels per row, or one score for two
    classes, it is `(p - y)²`, mean over rows and labels. Probabilities are the softmax or the sigmoid of the scores. A
    counted label outside the classes makes it NaN.

    Args:
      ignore_label: a label whose rows (or tokens) do not count.

    Source: Brier, "Verification of forecasts expressed in terms of probability", 1950;
    `sklearn.metrics.brier_score_loss`.

    >>> from learner.steps.outputs import ClassificationOutput
    >>> out = ClassificationOutput.from_logits(jnp.log(jnp.array([[0.25, 0.75], [0.5, 0.5]])), jnp.array([1, 0]))
    >>> metric, info = BrierScore(), Info(step=jnp.int32(0), weight=jnp.float32(2))
    >>> print(f"{metric.compute(metric.update(metric.init(), out, info)):.5f}")   # (0.25² + 0.5²) / 2
    0.15625
    """

    higher_is_better = False
    unit = ""
    description = "squared distance of the probabilities from the label, 0 is perfect"
    fields = ("logits", "targets")
    undefined = UNCERTAIN

    def __init__(self, ignore_label: int | None = None) -> None:
        refuse("BrierScore", [ignore_label_problem("BrierScore", ignore_label)])
        self.name = metric_name("Brier Score", [], ignore_label)
        self.ignore_label = as_int(ignore_label)

    def update(self, state: WeightedMean, output: Any, info: Info) -> WeightedMean:
        """Add a batch: `logits` and `targets` of one of the three kinds (see `scores`), and the `mask`, if any."""
        scores = read_scores(self.name, output, None, self.ignore_label)
        errors = jnp.square(scores.probabilities() - scores.present().astype(scores.logits.dtype))
        if not scores.several:
            errors = errors.sum(-1) / (2 if scores.classes == 2 else 1)
        return state.add(jnp.where(scores.strange(), jnp.nan, errors), scores.counted)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Bins:
    """Predictions grouped by their confidence.

    Attributes:
      counts: `[2, bins]`, the numbers of right and of wrong predictions.
      confidence: `[bins]`, the sum of their confidences.
      strange: the number of invalid predictions, with a NaN among their scores or a label outside the classes.
    """

    counts: Count
    confidence: CompensatedSum
    strange: Count

    def merge(self, other: Self) -> Self:
        """Return the predictions of both."""
        return type(self)(
            self.counts.merge(other.counts),
            self.confidence.merge(other.confidence),
            self.strange.merge(other.strange),
        )


class CalibrationError(MergingMetric):
    """The gap between confidence and accuracy, from 0 to 1; 0 is perfect.

    The confidence is the probability of the predicted class. It sorts the predictions into `bins` of equal width; an
    edge belongs to the bin below. Each bin has `gap = |right / n - mean confidence|`. `"expected"` is `Σ (n / N) gap`,
    and `"max"` the largest gap of a bin that is not empty. With several labels per row, each label is a prediction of
    two classes. A counted NaN, +inf (which has no softmax) or label outside the classes makes it NaN.

    Args:
      bins: the number of bins, 1 or more.
      norm: `"expected"` or `"max"`.
      ignore_label: a label whose rows (or tokens) do not count.

    Source: Guo, Pleiss, Sun, Weinberger, "On calibration of modern neural networks", 2017, equations 3 and 5.

    >>> from learner.steps.outputs import ClassificationOutput
    >>> out = ClassificationOutput.from_logits(jnp.log(jnp.array([[0.2, 0.8], [0.2, 0.8]])), jnp.array([1, 0]))
    >>> metric, info = CalibrationError(), Info(step=jnp.int32(0), weight=jnp.float32(2))
    >>> print(f"{metric.name} {metric.compute(metric.update(metric.init(), out, info)):.2f}")   # 0.8, not 0.5
    Calibration Error 0.30
    """

    higher_is_better = False
    unit = ""
    description = "how far confidences are from how often they are right, 0 to 1"
    fields = ("logits", "targets")
    undefined = UNCERTAIN

    def __init__(self, bins: int = 15, norm: str = "expected", ignore_label: int | None = None) -> None:
        what = "CalibrationError"
        bins_problem = f"bins of {what} is {bins!r}; it needs how many, 1 or more"
        refuse(
            what,
            [
                None if is_integral(bins) and bins >= 1 else bins_problem,
                choice_problem(what, "norm", norm, ("expected", "max")),
                ignore_label_problem(what, ignore_label),
            ],
        )
        parts = [None if norm == "expected" else norm, None if bins == 15 else f"{bins} bins"]
        self.name = metric_name("Calibration Error", parts, ignore_label)
        self.ignore_label = as_int(ignore_label)
        self._bins, self._norm = int(bins), norm

    def init(self) -> Bins:
        """Return the state of no predictions."""
        return Bins(Count.zero((2, self._bins)), CompensatedSum.zero((self._bins,)), Count.zero())

    def update(self, state: Bins, output: Any, info: Info) -> Bins:
        """Add a batch: `logits` and `targets` of one of the three kinds (see `scores`), and the `mask`, if any."""
        scores = read_scores(self.name, output, None, self.ignore_label)
        best, chances = scores.best(), scores.probabilities()
        confidence = jnp.maximum(chances, 1 - chances) if scores.several else chances.max(-1)
        right, strange = (x.reshape(-1) for x in (best == scores.labels, scores.uncertain() & scores.counted))
        used = (scores.counted & ~scores.uncertain()).reshape(-1)
        confidence = jnp.where(used, confidence.reshape(-1), 1)
        places = jnp.clip(jnp.ceil(confidence * self._bins) - 1, 0, self._bins - 1).astype(jnp.int32)
        inside = (places[:, None] == jnp.arange(self._bins, dtype=jnp.int32)[None, :]) & used[:, None]
        counts = [(inside & which[:, None]).sum(0, dtype=jnp.uint32) for which in (right, ~right)]
        sums = jnp.where(inside, confidence[:, None], 0).sum(0)
        return Bins(state.counts.plus(jnp.stack(counts)), state.confidence.add(sums), state.strange.add(strange))

    def compute(self, state: Bins) -> Array:
        """Return a float32 scalar from 0 to 1; NaN without predictions."""
        right, all_of = state.counts[0].value(), state.counts.sum(0).value()
        total = all_of.sum()
        gaps = jnp.abs(right - state.confidence.value()) / jnp.where(all_of > 0, all_of, 1)
        value = gaps.max() if self._norm == "max" else (gaps * all_of).sum() / jnp.where(total > 0, total, 1)
        return jnp.where((total > 0) & (state.strange.value() == 0), value, jnp.nan)
