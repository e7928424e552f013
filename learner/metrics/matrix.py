"""The confusion matrix: exact counts of labels and predicted classes, and its table as text."""

import abc
from collections.abc import Hashable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from learner.errors import LearnerError
from learner.metrics.base import Info, MergingMetric
from learner.metrics.class_arguments import (
    Classes,
    class_names,
    metric_name,
    threshold_part,
    threshold_problem,
)
from learner.metrics.class_averages import MetricOfClasses
from learner.metrics.counts import Count
from learner.metrics.scores import decided, read_scores
from learner.util.png import matrix_picture
from learner.util.text import aligned

MOST_CLASSES = 100  # of a table with a column for each class; a run's files store the table after every epoch


class MatrixMetric(MetricOfClasses, MergingMetric, abc.ABC):
    """A metric computed from a confusion matrix.

    The state has a row for each label and a column for each predicted class. A last row and a last column count the
    invalid ones: labels outside the classes, and rows with a NaN among their scores.

    Args:
      classes: the number of classes, or their names; 1 for one score whose label is 0 or 1, which has two classes.
      threshold: for two classes, the probability of class 1 above which it is predicted; by default the higher score
        wins.
      ignore_label: a label whose rows (or tokens) do not count.

    Raises:
      LearnerError: an argument is invalid; when updated with several labels per row, or with scores and labels that do
        not fit.
    """

    undefined = (
        "only one class was among the labels, or among the predictions, or a label outside of the classes or a NaN "
        "among the scores counted"
    )

    def __init__(self, classes: Classes, threshold: float | None = None, ignore_label: int | None = None) -> None:
        self._prepare(classes, threshold, ignore_label, [], [])

    def _prepare(
        self,
        classes: Classes,
        threshold: float | None,
        ignore_label: int | None,
        problems: list[str | None],
        parts: list[str | None],
    ) -> None:
        self.set_classes(classes, ignore_label, [threshold_problem(type(self).__name__, threshold), *problems])
        self._given = len(self.classes)
        if self._given == 1:
            self.classes = class_names(2)
        self.name = metric_name(self.base, [*parts, threshold_part(threshold)], ignore_label)
        self._threshold = threshold

    @property
    def state_key(self) -> Hashable:
        """See `Metric.state_key`."""
        return self._given, self._threshold, self.ignore_label

    def init(self) -> Count:
        """Return the state of no labels: the counts `[classes + 1, classes + 1]`."""
        size = len(self.classes) + 1
        return Count.zero((size, size))

    def update(self, state: Count, output: Any, info: Info) -> Count:
        """Add a batch: `logits` `[..., classes]`, integer `targets` `[...]`, and their `mask`, if any."""
        scores = read_scores(self.name, output, self._given, self.ignore_label).flat()
        if scores.several and self._given != 1:
            raise LearnerError(
                f"{self.name} got several labels for each row ({self._given} logits and as many targets); it needs one "
                "class number for each",
                code="metric-matrix-multilabel",
            )
        none, size = len(self.classes), len(self.classes) + 1
        labels, counted = scores.labels.reshape(-1), scores.counted.reshape(-1)
        labels = jnp.where((labels < 0) | (labels >= none), none, labels)
        unknown = jnp.isnan(scores.logits).any(-1)
        best = jnp.where(unknown, none, decided(self.name, scores, self._threshold).reshape(-1))
        counts = jnp.zeros(size * size, jnp.uint32).at[labels * size + best].add(counted.astype(jnp.uint32))
        return state.plus(counts.reshape(size, size))


class ConfusionMatrix(MatrixMetric):
    """The number of times each label (rows) was predicted as each class (columns). Its value is a text, not a number.

    `compute` returns a `Count` `[classes + 1, classes + 1]`, and `matrix(value)` the integers of the classes. The table
    has a line and a column `none` if there were labels outside the classes, or rows with a NaN among their scores. For
    more than 100 classes it has a line for the correct predictions of each class, even without any, and one for each
    other pair of a label and a class predicted for it.

    Counts are exact to 2⁶⁴. See `MatrixMetric` for the arguments. A threshold is for two classes.

    Source: `sklearn.metrics.confusion_matrix`.

    >>> from learner.steps.outputs import ClassificationOutput
    >>> logits = jnp.array([[2.0, 0.0], [2.0, 0.0], [0.0, 2.0], [0.0, 2.0]])   # predicted: 0, 0, 1, 1
    >>> out = ClassificationOutput.from_logits(logits, jnp.array([0, 1, 1, 1]))
    >>> metric, info = ConfusionMatrix(["cat", "dog"]), Info(step=jnp.int32(0), weight=jnp.float32(4))
    >>> value = metric.compute(metric.update(metric.init(), out, info))
    >>> print(metric.text(value))
    label  cat  dog
    cat      1    0
    dog      1    2
    >>> metric.matrix(value).tolist()
    [[1, 0], [1, 2]]
    """

    base = "Confusion Matrix"
    description = "how often each label (rows) was predicted as each class (columns)"
    higher_is_better = None
    numeric = False

    def compute(self, state: Count) -> Count:
        """Return all counts, including labels and predictions outside the classes."""
        return state

    def counts(self, value: Count) -> np.ndarray:
        """Return, on the host, uint64 `[classes + 1, classes + 1]`; the last row and column belong to no class."""
        high, low = np.asarray(value.high, np.uint64), np.asarray(value.low, np.uint64)
        return high * np.uint64(2**32) + low

    def matrix(self, value: Count) -> np.ndarray:
        """Return, on the host, uint64 `[classes, classes]`; rows are labels and columns predictions."""
        return self.counts(value)[:-1, :-1]

    def arrays(self, value: Count) -> np.ndarray:
        """Return `matrix(value)`."""
        return self.matrix(value)

    def picture(self, value: Count) -> np.ndarray:
        """Return, on the host, a greyscale image, uint8 `[side, side]`, with a square for each label (rows) and
        predicted class (columns). White means that none of the label's rows were predicted as the class, black that all
        were; a label without rows is white. Up to 96 classes the side is 289 to 384 pixels, then 4 for each class, and
        1,024 at most: with more than 256 classes each has fewer, and with more than 1,024 several classes share a
        pixel, which is the darkest of them.

        >>> metric = ConfusionMatrix(2)
        >>> counts = jnp.array([[3, 1, 0], [0, 0, 0], [0, 0, 0]], jnp.uint32)
        >>> picture = metric.picture(Count(jnp.zeros_like(counts), counts))
        >>> print(picture.shape, picture[::192, ::192].tolist())
        (384, 384) [[64, 191], [255, 255]]
        """
        counts = self.counts(value).astype(np.float64)
        shares = counts[:-1, :-1] / np.maximum(counts[:-1].sum(1, keepdims=True), 1)
        row, column = np.nonzero(shares)
        return matrix_picture(row, column, shares[row, column], shares.shape)

    def text(self, value: Count) -> str:
        """Return the table: a line for each label, a column for each predicted class; for many classes a line for each
        pair.
        """
        counts, names = self.counts(value), [*self.classes, "none"]
        rows, columns = len(names) - int(not counts[-1].any()), len(names) - int(not counts[:, -1].any())
        if len(self.classes) > MOST_CLASSES:
            return "\n".join(aligned([["label", "predicted", "rows"], *_pairs(counts[:rows, :columns], names)]))
        lines = [[names[row], *map(str, counts[row, :columns])] for row in range(rows)]
        return "\n".join(aligned([["label", *names[:columns]], *lines]))


def _pairs(counts: np.ndarray, names: Sequence[str]) -> list[list[str]]:
    """Return the pairs of label and prediction: for each label always the correct one first, then the other predictions
    that occur.
    """
    lines = []
    for row, line in enumerate(counts):
        others = [column for column in np.flatnonzero(line).tolist() if column != row]
        columns = ([row] if row < len(line) else []) + others
        lines += [[names[row], names[column], str(line[column])] for column in columns]
    return lines
