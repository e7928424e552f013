"""Precision, recall and the metrics derived from them, for each class and averaged."""

from typing import Any

import jax.numpy as jnp

from learner.metrics.base import Array, Info
from learner.metrics.class_arguments import Classes, is_real
from learner.metrics.class_counts import FALSE, NEITHER, ClassMetric
from learner.metrics.counts import Count


class Precision(ClassMetric):
    """The fraction of predictions of a class that are right, from 0 to 1: `TP / (TP + FP)`.

    See `ClassMetric` for counts, averages, arguments and undefined values.

    Source: `sklearn.metrics.precision_score` with `zero_division=nan`.

    >>> import jax.numpy as jnp
    >>> from learner.metrics.base import Info
    >>> from learner.steps.outputs import ClassificationOutput
    >>> logits = jnp.array([[2.0, 0.0], [2.0, 0.0], [0.0, 2.0], [0.0, 2.0]])   # predicted: 0, 0, 1, 1
    >>> out = ClassificationOutput.from_logits(logits, jnp.array([0, 1, 1, 1]))
    >>> metric, info = Precision(2), Info(step=jnp.int32(0), weight=jnp.float32(4))
    >>> print(metric.name, metric.compute(metric.update(metric.init(), out, info)))   # (1/2 + 2/2) / 2
    Precision 0.75
    >>> table = Precision(["cat", "dog"], average="none")
    >>> print(table.text(table.compute(table.update(table.init(), out, info))))
    cat  0.5000
    dog  1.0000
    """

    base = "Precision"
    description = "how often a prediction of a class is right, mean over classes, 0 to 1"

    def ratio(self, hits: Count, false: Count, missed: Count, neither: Count) -> tuple[Array, Array]:
        """Return `TP` and `TP + FP`."""
        return hits.value(), hits.merge(false).value()


class Recall(ClassMetric):
    """The fraction of labels of a class that are found, from 0 to 1: `TP / (TP + FN)`. It is also called sensitivity.

    See `ClassMetric` for counts, averages, arguments and undefined values.

    Source: `sklearn.metrics.recall_score` with `zero_division=nan`.

    >>> import jax.numpy as jnp
    >>> from learner.metrics.base import Info
    >>> from learner.steps.outputs import ClassificationOutput
    >>> logits = jnp.array([[2.0, 0.0], [2.0, 0.0], [0.0, 2.0], [0.0, 2.0]])   # predicted: 0, 0, 1, 1
    >>> out = ClassificationOutput.from_logits(logits, jnp.array([0, 1, 1, 1]))
    >>> metric, info = Recall(2, average="binary"), Info(step=jnp.int32(0), weight=jnp.float32(4))
    >>> print(f"{metric.name} {metric.compute(metric.update(metric.init(), out, info)):.4f}")   # 2 of 3
    Recall (binary) 0.6667
    """

    base = "Recall"
    description = "how many labels of a class are found, mean over classes, 0 to 1"

    def ratio(self, hits: Count, false: Count, missed: Count, neither: Count) -> tuple[Array, Array]:
        """Return `TP` and `TP + FN`."""
        return hits.value(), hits.merge(missed).value()


class BalancedAccuracy(ClassMetric):
    """The mean recall of the classes that have labels: rare classes count as much as frequent ones.

    With one label per row it is `Recall` with the average `"macro"`. With one score for two classes it is the mean of
    both recalls, `(TP / (TP + FN) + TN / (TN + FP)) / 2`, as for two scores. With several labels per row it is this
    mean for each label, averaged over labels. Recalls without labels are skipped; without any labels it is NaN.

    Args:
      classes: the number of classes, or their names; 1 for one score whose label is 0 or 1.
      ignore_label: a label whose rows (or tokens) do not count.

    Source: `sklearn.metrics.balanced_accuracy_score`.

    >>> import jax.numpy as jnp
    >>> from learner.metrics.base import Info
    >>> from learner.steps.outputs import ClassificationOutput
    >>> logits = jnp.eye(3)[jnp.array([0, 0, 1, 0])]   # predicted: 0, 0, 1, 0
    >>> out = ClassificationOutput.from_logits(logits, jnp.array([0, 0, 1, 1]))
    >>> metric, info = BalancedAccuracy(3), Info(step=jnp.int32(0), weight=jnp.float32(4))
    >>> print(metric.compute(metric.update(metric.init(), out, info)))   # (2/2 + 1/2) / 2
    0.75
    """

    base = "Balanced Accuracy"
    description = "recall of each class, mean over the classes with labels, 0 to 1"

    def __init__(self, classes: Classes, ignore_label: int | None = None) -> None:
        super().__init__(classes, ignore_label=ignore_label)

    def update(self, state: Count, output: Any, info: Info) -> Count:
        """Add a batch. With one label per row, a row that is not of a class counts for another one."""
        if jnp.shape(output.logits) == jnp.shape(output.targets):
            return super().update(state, output, info)
        added = super().update(self.init(), output, info)
        others = jnp.array([[case in (FALSE, NEITHER)] for case in range(len(added.low))])
        return state.merge(Count(added.high, jnp.where(others, jnp.uint32(0), added.low)))

    def ratio(self, hits: Count, false: Count, missed: Count, neither: Count) -> tuple[Array, Array]:
        """Return the sum of both recalls, and their number."""
        numerator, labels = hits.value(), hits.merge(missed).value()
        left, others = neither.value(), neither.merge(false).value()
        total = numerator / jnp.maximum(labels, 1) + left / jnp.maximum(others, 1)
        return total, (labels > 0).astype(jnp.float32) + (others > 0).astype(jnp.float32)


class Specificity(ClassMetric):
    """The fraction of rows of other classes for which a class is not predicted, from 0 to 1: `TN / (TN + FP)`.

    See `ClassMetric` for counts, averages, arguments and undefined values.

    Source: Yerushalmy, "Statistical problems in assessing methods of medical diagnosis", 1947; it is the recall of
    "another class".

    >>> import jax.numpy as jnp
    >>> from learner.metrics.base import Info
    >>> from learner.steps.outputs import ClassificationOutput
    >>> logits = jnp.array([[2.0, 0.0], [0.0, 2.0], [0.0, 2.0], [2.0, 0.0]])   # predicted: 0, 1, 1, 0
    >>> out = ClassificationOutput.from_logits(logits, jnp.array([0, 0, 1, 0]))
    >>> metric, info = Specificity(2, average="binary"), Info(step=jnp.int32(0), weight=jnp.float32(4))
    >>> print(f"{metric.compute(metric.update(metric.init(), out, info)):.4f}")   # 2 of 3 that are not 1
    0.6667
    """

    base = "Specificity"
    description = "how often a class is not predicted where it is not the label, mean over classes, 0 to 1"

    def ratio(self, hits: Count, false: Count, missed: Count, neither: Count) -> tuple[Array, Array]:
        """Return `TN` and `TN + FP`."""
        return neither.value(), neither.merge(false).value()


class Jaccard(ClassMetric):
    """The intersection of the labels and predictions of a class over their union, from 0 to 1: `TP / (TP + FP + FN)`.

    See `ClassMetric` for counts, averages, arguments and undefined values: classes that are neither labels nor
    predicted do not count.

    Source: `sklearn.metrics.jaccard_score`.

    >>> import jax.numpy as jnp
    >>> from learner.metrics.base import Info
    >>> from learner.steps.outputs import MultiLabelOutput
    >>> logits, targets = jnp.array([[9.0, -9.0], [9.0, 9.0]]), jnp.array([[1, 1], [0, 1]])
    >>> out = MultiLabelOutput.from_logits(logits, targets)   # each label: 1 in common of 2
    >>> metric, info = Jaccard(2), Info(step=jnp.int32(0), weight=jnp.float32(2))
    >>> print(metric.compute(metric.update(metric.init(), out, info)))
    0.5
    """

    base = "Jaccard"
    description = "what labels and predictions of a class have in common, of both together, mean over classes, 0 to 1"

    def ratio(self, hits: Count, false: Count, missed: Count, neither: Count) -> tuple[Array, Array]:
        """Return `TP` and `TP + FP + FN`."""
        return hits.value(), hits.merge(false).merge(missed).value()


class FBeta(ClassMetric):
    """The harmonic mean of precision and recall, from 0 to 1, with recall weighted β times as much:
    `(1 + β²) TP / ((1 + β²) TP + β² FN + FP)`.

    Its name includes β: `F1`. See `ClassMetric` for counts, averages, arguments and undefined values.

    Args:
      classes: the number of classes, or their names; 1 for one score whose label is 0 or 1.
      beta: β, more than 0.
      average: as for `ClassMetric`; `"macro"` is the mean of the classes' values.
      threshold: the probability above which a label is predicted.
      top_k: the number of classes to predict for each row.
      ignore_label: a label whose rows (or tokens) do not count.

    Source: van Rijsbergen, "Information Retrieval", 1979; `sklearn.metrics.fbeta_score` with `zero_division=nan`.

    >>> import jax.numpy as jnp
    >>> from learner.metrics.base import Info
    >>> from learner.steps.outputs import ClassificationOutput
    >>> logits = jnp.array([[2.0, 0.0], [2.0, 0.0], [0.0, 2.0], [0.0, 2.0]])   # predicted: 0, 0, 1, 1
    >>> out = ClassificationOutput.from_logits(logits, jnp.array([0, 1, 1, 1]))
    >>> metric, info = FBeta(2, average="binary"), Info(step=jnp.int32(0), weight=jnp.float32(4))
    >>> print(f"{metric.name} {metric.compute(metric.update(metric.init(), out, info)):.4f}")   # 4 / (4 + 1 + 0)
    F1 (binary) 0.8000
    """

    description = "harmonic mean of precision and recall, mean over classes, 0 to 1"

    def __init__(
        self,
        classes: Classes,
        beta: float = 1.0,
        average: str = "macro",
        threshold: float | None = None,
        top_k: int | None = None,
        ignore_label: int | None = None,
    ) -> None:
        self._beta = beta
        self.base = f"F{beta:g}" if is_real(beta) else "F"
        super().__init__(classes, average, threshold, top_k, ignore_label)
        self._square = float(beta) ** 2

    def _problem(self) -> str | None:
        fits = is_real(self._beta) and 0 < self._beta < float("inf")
        return None if fits else f"beta of FBeta is {self._beta!r}; it needs a number above 0"

    def ratio(self, hits: Count, false: Count, missed: Count, neither: Count) -> tuple[Array, Array]:
        """Return `(1 + β²) TP` and `(1 + β²) TP + β² FN + FP`."""
        numerator = (1 + self._square) * hits.value()
        return numerator, numerator + (self._square * missed.value() + false.value())
