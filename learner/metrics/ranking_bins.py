"""The metrics of `ranking` from counts in bins of probabilities: a small state, for splits of any size."""

import abc
from collections.abc import Hashable
from typing import Any

import jax.numpy as jnp

from learner.metrics.base import Array, Info, MergingMetric
from learner.metrics.class_arguments import (
    AVERAGES,
    Classes,
    average_part,
    choice_problem,
    is_integral,
    metric_name,
)
from learner.metrics.class_averages import MetricOfClasses, averaged
from learner.metrics.counts import Count
from learner.metrics.scores import read_scores

BINNED_AVERAGES = tuple(average for average in AVERAGES if average != "micro")


class BinnedRankingMetric(MetricOfClasses, MergingMetric, abc.ABC):
    """A metric of the order of probabilities. Probabilities in the same one of `bins` equally wide bins count as equal.

    Probabilities are the softmax over classes; with several labels per row, or one score for two classes, the sigmoid
    of each score. A class whose value is undefined has NaN, and averages skip it. A counted row with a NaN among its
    scores, without a softmax (+inf among its scores), or with a label outside the classes makes the value NaN. Counts
    are exact to 2⁶⁴.

    Args:
      classes: the number of classes, or their names; 1 for one score whose label is 0 or 1.
      bins: the number of bins, 2 or more.
      average: `"macro"` (all classes weigh the same), `"weighted"` (by their labels), `"binary"` (class 1 of two, or
        the only one) or `"none"`: a table of all classes, no number.
      ignore_label: a label whose rows (or tokens) do not count.

    Raises:
      LearnerError: an argument is invalid; when updated with scores and labels that do not fit.
    """

    higher_is_better = True
    undefined = (
        "no class had labels (for AUROC: and other rows), or a label outside of the classes or scores without a "
        "probability (NaN, inf) counted"
    )

    def __init__(
        self, classes: Classes, bins: int = 1000, average: str = "macro", ignore_label: int | None = None
    ) -> None:
        what = type(self).__name__
        problem = None if is_integral(bins) and bins >= 2 else f"bins of {what} is {bins!r}; it needs 2 or more"
        problems = [problem, choice_problem(what, "average", average, BINNED_AVERAGES)]
        self.set_classes(classes, ignore_label, problems, average)
        self.name = metric_name(self.base, [average_part(average), f"{bins} bins"], ignore_label)
        self._bins, self._average = int(bins), average

    @abc.abstractmethod
    def areas(self, true: Array, false: Array, support: Array, others: Array) -> Array:
        """Return the values, float32 `[classes]`; NaN where they are undefined.

        Args:
          true: the fraction of a class's rows in each bin, float32 `[classes, bins]`, from the highest probability on;
            0 for a class without rows.
          false: the fraction of the other rows in each bin, likewise.
          support: the number of rows of each class, float32 `[classes]`.
          others: the number of other rows, likewise.
        """

    @property
    def state_key(self) -> Hashable:
        """See `Metric.state_key`."""
        return len(self.classes), self._bins, self.ignore_label

    def init(self) -> Count:
        """Return the state of no labels: counts of the class and of others `[2, classes, bins + 1]`. Strange scores are
        in the last bin.
        """
        return Count.zero((2, len(self.classes), self._bins + 1))

    def update(self, state: Count, output: Any, info: Info) -> Count:
        """Add a batch: `logits` and `targets` of one of the three kinds (see `scores`), and the `mask`, if any."""
        scores = read_scores(self.name, output, len(self.classes), self.ignore_label).flat()
        present, strange, counted = scores.present(), scores.uncertain(), scores.counted
        if not scores.several:
            strange, counted = (jnp.broadcast_to(x[:, None], present.shape) for x in (strange, counted))
        places = jnp.clip(jnp.floor((1 - scores.probabilities()) * self._bins), 0, self._bins - 1)
        places = jnp.where(strange, self._bins, places).astype(jnp.int32)
        numbers = jnp.broadcast_to(jnp.arange(scores.classes)[None, :], present.shape)
        where = (~present).astype(jnp.int32), numbers, places
        return state.plus(jnp.zeros(state.low.shape, jnp.uint32).at[where].add(counted.astype(jnp.uint32)))

    def compute(self, state: Count) -> Array:
        """Return a float32 scalar from 0 to 1, or `[classes]` for `average="none"`; NaN where it is not defined."""
        strange, known = state[:, :, -1].sum(0).value() > 0, state[:, :, :-1]
        support, others = known.sum(2).value()
        rows = jnp.stack([support, others])[:, :, None]
        true, false = known.value() / jnp.where(rows > 0, rows, 1)
        values = jnp.where(strange, jnp.nan, self.areas(true, false, support, others))
        if self._average in ("none", "binary"):
            return averaged(values, self._average, support, jnp)
        return jnp.where(strange.any(), jnp.nan, averaged(values, self._average, support, jnp))


class BinnedAUROC(BinnedRankingMetric):
    """The area under the ROC curve, from 0 to 1, of probabilities in bins: pairs within one bin count half.

    It differs from `AUROC` by at most `½ Σ f⁺ f⁻` over the bins, where f⁺ and f⁻ are the fractions of a class's rows,
    and of all other rows, in the bin. It is NaN for a class without labels, or if all labels are of the class. See
    `BinnedRankingMetric` for the arguments.

    >>> from learner.metrics.base import Info
    >>> from learner.steps.outputs import ClassificationOutput
    >>> out = ClassificationOutput.from_logits(jnp.array([[0.0, -2.0], [0.0, 1.0], [0.0, 1.1]]), jnp.array([0, 1, 0]))
    >>> metric, info = BinnedAUROC(2, bins=10), Info(step=jnp.int32(0), weight=jnp.float32(3))
    >>> print(metric.name, metric.compute(metric.update(metric.init(), out, info)))   # 1 pair in order, 1 in one bin
    AUROC (10 bins) 0.75
    """

    base = "AUROC"
    description = "how often a row of the class has a higher probability than one of another, mean over classes, 0 to 1"

    def areas(self, true: Array, false: Array, support: Array, others: Array) -> Array:
        """Return the areas: rows of the class rank before all other rows of lower bins, and before half of the other
        rows in their own bin.
        """
        below = 1 - jnp.cumsum(false, 1)
        values = (true * (below + false / 2)).sum(1)
        return jnp.where((support > 0) & (others > 0), values, jnp.nan)


class BinnedAveragePrecision(BinnedRankingMetric):
    """The mean precision over the lower edges of the bins, weighted by the labels found in each bin, from 0 to 1.

    It differs from `AveragePrecision` by at most `Σ f⁺ (U - L)` over the bins, where f⁺ is the fraction of a class's
    rows in the bin, U the precision at its end if no other row of it came first, and L the precision at its first row
    of the class if all others did. It is NaN for a class without labels. See `BinnedRankingMetric` for the arguments.

    >>> from learner.metrics.base import Info
    >>> from learner.steps.outputs import ClassificationOutput
    >>> out = ClassificationOutput.from_logits(jnp.array([[0.0, 2.0], [0.0, 1.0], [0.0, 1.1]]), jnp.array([1, 1, 0]))
    >>> metric = BinnedAveragePrecision(2, bins=10, average="binary")
    >>> state = metric.update(metric.init(), out, Info(step=jnp.int32(0), weight=jnp.float32(3)))
    >>> print(f"{metric.name} {metric.compute(state):.4f}")   # (1/1 + 2/3) / 2
    Average Precision (binary, 10 bins) 0.8333
    """

    base = "Average Precision"
    description = "precision at each probability, mean over the labels that it finds and over classes, 0 to 1"

    def areas(self, true: Array, false: Array, support: Array, others: Array) -> Array:
        """Return the sums over the bins of the precision down to each bin times the rise of recall in it."""
        hits = jnp.cumsum(true, 1) * support[:, None]
        ranked = hits + jnp.cumsum(false, 1) * others[:, None]
        values = (true * hits / jnp.where(ranked > 0, ranked, 1)).sum(1)
        return jnp.where(support > 0, values, jnp.nan)
