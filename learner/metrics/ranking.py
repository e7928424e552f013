"""Ranking metrics (one class against the others), exact, from every score of the split."""

import abc
from typing import Any

import jax.numpy as jnp
import numpy as np

from learner.errors import LearnerError
from learner.metrics.base import CollectingMetric
from learner.metrics.class_arguments import (
    Classes,
    average_part,
    binary_problem,
    choice_problem,
    metric_name,
)
from learner.metrics.class_averages import MetricOfClasses, averaged
from learner.metrics.scores import read_scores

NONE, UNCOUNTED = -1, -2  # labels outside the classes, and labels that do not count


class RankingMetric(MetricOfClasses, CollectingMetric, abc.ABC):
    """A metric of the order of scores. It collects them, is exact, and has no value per step.

    Each class is ranked against all others. With one label per row the ranking is by probability (the log-odds of the
    softmax, in float64, so that probabilities near 1 keep their order), otherwise (several labels per row, or one score
    for two classes) by score. A class whose value is undefined has NaN, and averages skip it. The value is also NaN if
    a counted row has a NaN among its scores (with several labels: for these classes), scores without a softmax (+inf),
    or a label outside the classes.

    It keeps 4 bytes for each score (8 in float64) and 4 for the label of each row (with several labels, 1 for each):
    on the device until the next dispatch is read, then on the host until the split ends. The `Binned` metrics need
    constant memory instead.

    Args:
      average: `"macro"` (all classes weigh the same), `"weighted"` (by their labels), `"micro"` (all scores in one
        ranking), `"binary"` (class 1 of two, or the only one) or `"none"`: a table of all classes, no number.
      classes: the number of classes, or their names, for checks and for the table; 1 for one score whose label is 0 or
        1. Default: the number in the scores.
      ignore_label: a label whose rows (or tokens) do not count.

    Raises:
      LearnerError: an argument is invalid; when given scores and labels that do not fit.
    """

    higher_is_better = True
    pads_rows, pad_value = True, UNCOUNTED  # of the labels; it hides the scores
    undefined = (
        "no class had labels (for AUROC: and other rows), or a label outside of the classes or scores without a "
        "probability (NaN, inf) counted"
    )

    def __init__(self, average: str = "macro", classes: Classes | None = None, ignore_label: int | None = None) -> None:
        problem = choice_problem(type(self).__name__, "average", average)
        self.set_classes(classes, ignore_label, [problem], average, may_be_unknown=True)
        self.name = metric_name(self.base, [average_part(average)], ignore_label)
        self._average = average

    @abc.abstractmethod
    def area(self, hits: np.ndarray, false: np.ndarray) -> float:
        """Return the value from the numbers of rows of the class and of other rows that are ranked down to each score:
        int64, from the highest score on. The class has at least one row.
        """

    def collect(self, output: Any) -> dict[str, Any]:
        """Return the scores, float32 or float64 `[rows, ..., classes]`, and the labels: int32 `[rows, ...]` for one
        label per row, int8 `[rows, ..., classes]` for several; -1 is outside the classes, and -2 does not count.
        """
        classes = None if self.classes is None else len(self.classes)
        scores = read_scores(self.name, output, classes, self.ignore_label)
        if problem := binary_problem(self.name, self._average, scores.classes):
            raise LearnerError(problem, code="metric-ranking-fields")
        highest = 1 if scores.several else scores.classes - 1
        labels = jnp.where((scores.labels < 0) | (scores.labels > highest), NONE, scores.labels)
        labels = jnp.where(scores.counted, labels, UNCOUNTED)
        return {"scores": scores.logits, "labels": labels.astype(jnp.int8) if scores.several else labels}

    def compute(self, rows: Any) -> Any:
        """Return a number from 0 to 1, or float64 `[classes]` for `average="none"`; NaN where it is undefined."""
        classes = rows["scores"].shape[-1]
        scores = rows["scores"].reshape(-1, classes).astype(np.float64)
        several = rows["labels"].ndim == rows["scores"].ndim
        shape = (-1, classes) if several else (-1, 1)
        labels = rows["labels"].reshape(shape)
        present = labels == (1 if several else np.arange(classes))
        counted = np.broadcast_to(labels != UNCOUNTED, present.shape)
        if not several:
            scores = _log_odds(np.where(counted, scores, 0))
        strange = np.isnan(scores) | (labels == NONE)
        if not several:
            strange = np.broadcast_to(strange.any(1, keepdims=True), present.shape)
        if self._average == "micro":
            return self._value(scores.ravel(), present.ravel(), counted.ravel(), strange.ravel())
        columns = [self._value(*(x[:, i] for x in (scores, present, counted, strange))) for i in range(classes)]
        if self._average in ("macro", "weighted") and (counted & strange).any():
            return np.nan
        return averaged(np.array(columns), self._average, (present & counted).sum(0).astype(np.float64))

    def _value(self, scores: np.ndarray, present: np.ndarray, counted: np.ndarray, strange: np.ndarray) -> float:
        if (counted & strange).any() or not (counted & present).any():
            return np.nan
        scores, present = scores[counted], present[counted]
        order = np.argsort(-scores, kind="stable")
        scores, hits = scores[order], np.cumsum(present[order], dtype=np.int64)
        # The end of each group of equal scores. Scores are compared: the difference of two infinities is NaN.
        last = np.append(np.flatnonzero(scores[1:] != scores[:-1]), scores.size - 1)
        return self.area(hits[last], last + 1 - hits[last])


class AUROC(RankingMetric):
    """The area under the ROC curve, from 0 to 1; 0.5 is chance. It is the probability that a row of the class has a
    higher score than another row, where equal scores count half:
    `Σ over pairs (1[s⁺ > s⁻] + ½ 1[s⁺ = s⁻]) / (n⁺ n⁻)`.

    It is NaN for a class without labels, or if all labels are of the class. See `RankingMetric` for counts, averages
    and arguments.

    Source: Hanley, McNeil, "The meaning and use of the area under a ROC curve", 1982; `sklearn.metrics.roc_auc_score`
    (`multi_class="ovr"`).

    >>> import jax.numpy as jnp
    >>> from learner.steps.outputs import ClassificationOutput
    >>> logits = jnp.array([[0.0, 1.0], [0.0, 2.0], [0.0, 2.0], [0.0, 3.0]])
    >>> out = ClassificationOutput.from_logits(logits, jnp.array([0, 0, 1, 1]))
    >>> metric = AUROC(average="binary")
    >>> rows = {name: np.asarray(x) for name, x in metric.collect(out).items()}
    >>> print(metric.compute(rows))   # 3 of 4 pairs are in order, and one is equal
    0.875
    """

    base = "AUROC"
    description = "how often a row of the class has a higher score than one of another, mean over classes, 0 to 1"

    def area(self, hits: np.ndarray, false: np.ndarray) -> float:
        """Return the sum of the trapezoids under the curve, or NaN if all rows are of the class."""
        if false[-1] == 0:
            return np.nan
        heights = (hits + np.append(0, hits[:-1])).astype(np.float64)
        return float((np.diff(false, prepend=0) * heights).sum() / 2 / hits[-1] / false[-1])


class AveragePrecision(RankingMetric):
    """The mean precision over the scores, weighted by the labels found at each, from 0 to 1: `Σ (Rₙ - Rₙ₋₁) Pₙ`.

    Pₙ and Rₙ are the precision and recall of predicting the rows with the n-th highest score or a higher one; equal
    scores are one step. It is NaN for a class without labels. See `RankingMetric` for counts, averages and arguments.
    Two classes are averaged like more classes; `average="binary"` is class 1 alone, as in scikit-learn.

    Source: `sklearn.metrics.average_precision_score`.

    >>> import jax.numpy as jnp
    >>> from learner.steps.outputs import ClassificationOutput
    >>> logits = jnp.array([[0.0, 1.0], [0.0, 2.0], [0.0, 3.0], [0.0, 4.0]])
    >>> out = ClassificationOutput.from_logits(logits, jnp.array([0, 1, 0, 1]))
    >>> metric = AveragePrecision(average="binary")
    >>> rows = {name: np.asarray(x) for name, x in metric.collect(out).items()}
    >>> print(f"{metric.compute(rows):.4f}")   # (1/1 + 2/3) / 2
    0.8333
    """

    base = "Average Precision"
    description = "precision at each score, mean over the labels that it finds and over classes, 0 to 1"

    def area(self, hits: np.ndarray, false: np.ndarray) -> float:
        """Return the sum over the scores of the precision times the rise of recall."""
        return float((np.diff(hits, prepend=0) * (hits / (hits + false))).sum() / hits[-1])


def _log_odds(logits: np.ndarray) -> np.ndarray:
    """Return `ln(p / (1 - p))` of the softmax, float64 `[rows, classes]`; NaN where it is undefined. The sum is over
    sorted numbers, so that its value does not depend on the order of the classes.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        logits = logits - logits.max(1, keepdims=True)
        rest = np.sort(logits, 1)[:, :-1]  # all but the largest, which is 0
        second = rest.max(1, keepdims=True, initial=-np.inf)
        scale = np.where(second == -np.inf, 0, second)  # so that a sum of tiny powers is not rounded to 0
        others = scale + np.log(np.exp(rest - scale).sum(1, keepdims=True))
        # The log-odds of the largest are no logarithm of a difference of two sums, which would be rounded to 0, too.
        below = np.log(1 + np.exp(others) - np.exp(logits))
        return np.asarray(logits - np.where(logits == 0, others, below))
