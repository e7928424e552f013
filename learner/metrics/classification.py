"""Metrics of classification with one label for each row or token."""

from typing import Any

import jax.numpy as jnp

from learner.errors import LearnerError
from learner.metrics.base import Array, Info
from learner.metrics.class_arguments import as_int, is_integral
from learner.metrics.counts import Fraction
from learner.metrics.means import FractionMetric
from learner.metrics.rows import as_int32, kept_rows
from learner.metrics.scores import classes_before, read_scores
from learner.util.number_checks import check_int

HAMMING = "learner.metrics.Hamming() is how often they are wrong, 1 - accuracy (in a config: `metrics: [Hamming]`)"


class _HitRate(FractionMetric):
    """The fraction of labels that are among the `k` classes with the highest scores."""

    higher_is_better = True
    fields = ("logits", "targets")

    def __init__(self, name: str, k: int, ignore_label: int | None) -> None:
        if ignore_label is not None and not is_integral(ignore_label):
            raise LearnerError(
                f"ignore_label of {name} is {ignore_label!r}; it needs the number of a label, or None",
                code="metric-ignore-label-value",
                name=name,
            )
        self.name = name if ignore_label is None else f"{name} ignoring {ignore_label}"
        self._k = int(k)
        self.ignore_label = as_int(ignore_label)

    def update(self, state: Fraction, output: Any, info: Info) -> Fraction:
        """Add a batch: `logits` `[..., classes]`, integer `targets` `[...]`, and their `mask`, if any."""
        logits, targets = jnp.asarray(output.logits), jnp.asarray(output.targets)
        self._check(output, logits, targets)
        targets = as_int32(targets)
        counted = kept_rows(self.name, output, targets.shape)
        if self.ignore_label is not None:
            counted &= targets != self.ignore_label
        return state.add(classes_before(logits, targets) < self._k, counted)

    def _check(self, output: Any, logits: Array, targets: Array) -> None:
        several = logits.shape == targets.shape
        advice = f"; of several labels for each row, {HAMMING}; of one score for two classes, use Accuracy()"
        hint = advice if several else ""
        if logits.ndim < 2 or logits.shape[:-1] != targets.shape or not jnp.issubdtype(targets.dtype, jnp.integer):
            raise LearnerError(
                f"{self.name} got {type(output).__name__} with logits {logits.dtype}{list(logits.shape)} and targets "
                f"{targets.dtype}{list(targets.shape)}; it needs one class number for each row or token: integer "
                f"targets of the logits' shape without the last axis{hint}",
                code="metric-classification-shapes",
            )
        if logits.shape[-1] < self._k:
            raise LearnerError(
                f"{self.name} got logits of {logits.shape[-1]} classes; it needs {self._k} or more",
                code="metric-classes-too-few",
            )


class Accuracy(_HitRate):
    """The fraction of labels that have the highest score, from 0 to 1: `hits / (hits + misses)`.

    Both numbers are exact, over any number of labels. Among classes with equal scores, which are common in bfloat16,
    the smaller class number comes first, as for `numpy.argmax`. A row with a NaN among its scores is a miss, and so is
    a label outside the classes, unless they are masked or ignored. One score for two classes, `logits` `[batch]`,
    predicts class 1 where it is above 0. For several labels per row use `Hamming`, the fraction of wrong labels.

    Args:
      ignore_label: a label whose rows (or tokens) do not count, such as -100 for padded tokens. The name is then
        `Accuracy ignoring -100`.

    >>> from learner.steps.outputs import ClassificationOutput
    >>> logits = jnp.array([[2.0, 1.0], [0.0, 3.0], [5.0, 1.0], [0.0, 1.0]])
    >>> out = ClassificationOutput.from_logits(logits, jnp.array([0, 1, 1, 0]), mask=jnp.array([1, 1, 1, 0]))
    >>> metric, info = Accuracy(), Info(step=jnp.int32(0), weight=jnp.float32(2))
    >>> print(f"{metric.compute(metric.update(metric.init(), out, info)):.4f}")   # 2 of the 3 that are not masked
    0.6667
    """

    description = "how often the class with the highest score is the label, 0 to 1"

    def __init__(self, ignore_label: int | None = None) -> None:
        super().__init__("Accuracy", 1, ignore_label)

    def update(self, state: Fraction, output: Any, info: Info) -> Fraction:
        """Add a batch: `logits` `[..., classes]` and integer `targets` `[...]`, or one score for two classes, `logits`
        and `targets` of 0 and 1 `[batch]`; and their `mask`, if any.
        """
        if jnp.ndim(output.logits) != 1 or jnp.shape(output.targets) != jnp.shape(output.logits):
            return super().update(state, output, info)
        scores = read_scores(self.name, output, 1, self.ignore_label)
        return state.add((scores.best() == scores.labels) & ~scores.strange(), scores.counted)


class TopKAccuracy(_HitRate):
    """The fraction of labels that are among the `k` classes with the highest scores, from 0 to 1.

    Its name includes `k`: `Top-5 Accuracy`. Counts, masks and equal scores are as for `Accuracy`, which is
    `TopKAccuracy(1)` by another name. A NaN takes one of the `k` places, and a label whose score is NaN is a miss.

    Args:
      k: the number of classes, 1 or more.
      ignore_label: as for `Accuracy`.

    Raises:
      LearnerError: `k` is below 1; when updated with logits of fewer than `k` classes.

    >>> from learner.steps.outputs import ClassificationOutput
    >>> out = ClassificationOutput.from_logits(jnp.array([[0.1, 0.5, 0.4], [0.2, 0.3, 0.5]]), jnp.array([2, 0]))
    >>> metric, info = TopKAccuracy(2), Info(step=jnp.int32(0), weight=jnp.float32(2))
    >>> print(metric.name, metric.compute(metric.update(metric.init(), out, info)))
    Top-2 Accuracy 0.5
    """

    description = "how often the label is among the k classes with the highest scores, 0 to 1"

    def __init__(self, k: int = 5, ignore_label: int | None = None) -> None:
        k = check_int("k", k, least=1, of="TopKAccuracy", code="metric-top-k-value")
        super().__init__(f"Top-{k} Accuracy", k, ignore_label)
