"""Metrics of segmented images: the overlap of predicted and true pixels of each class."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from learner.errors import LearnerError
from learner.metrics.base import Array, Info, MergingMetric
from learner.metrics.class_arguments import Classes, is_integral, metric_name
from learner.metrics.class_averages import MetricOfClasses, averaged
from learner.metrics.counts import Count
from learner.metrics.rows import as_int32, kept_rows


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Overlap:
    """Exact counts for each class: pixels that are `both` predicted and true, and pixels that are only one of them."""

    both: Count
    one: Count

    @classmethod
    def zero(cls, classes: int) -> Self:
        """Return the state of no pixels."""
        return cls(Count.zero((classes,)), Count.zero((classes,)))

    def merge(self, other: Self) -> Self:
        """Merge two states."""
        return type(self)(self.both.merge(other.both), self.one.merge(other.one))


class _OverlapMetric(MetricOfClasses, MergingMetric):
    """A metric with a value for each class."""

    higher_is_better = True
    fields = ("predictions", "targets")
    undefined = "none of the classes was there, or predicted"

    def __init__(self, classes: Classes, ignore_label: int | None = None) -> None:
        self.set_classes(classes, ignore_label, [])
        self._classes = len(self.classes)
        self.name = metric_name(self.base, ignore_label=ignore_label)

    def init(self) -> Overlap:
        """Return the state of no pixels."""
        return Overlap.zero(self._classes)

    def update(self, state: Overlap, output: Any, info: Info) -> Overlap:
        """Add a batch: integer `predictions` and `targets` of one shape `[batch, ...]`, and their `mask`."""
        predicted, true = jnp.asarray(output.predictions), jnp.asarray(output.targets)
        integers = all(jnp.issubdtype(x.dtype, jnp.integer) or x.dtype == bool for x in (predicted, true))
        if predicted.ndim < 1 or predicted.shape != true.shape or not integers:
            raise LearnerError(
                f"{self.name} got predictions {predicted.dtype}{list(predicted.shape)} and targets "
                f"{true.dtype}{list(true.shape)}; it needs class numbers of one shape: integers [batch, height, "
                "width] (convert scores with argmax, or with > 0)",
                code="metric-overlap-shapes",
            )
        scores: tuple[int, ...] = getattr(getattr(output, "logits", None), "shape", ())
        if scores[:-1] == true.shape and scores[-1] > self._classes:
            raise LearnerError(
                f"{self.name} got logits of {scores[-1]} classes, and has classes={self._classes}; it needs the "
                "number of all classes, as the others would not be counted",
                code="metric-classes-mismatch",
                classes=self._classes,
            )
        counted = kept_rows(self.name, output, true.shape)
        true, predicted = as_int32(true), as_int32(predicted)
        if self.ignore_label is not None:
            counted &= true != self.ignore_label
        hits = self._count(true, counted & (predicted == true))
        one = self._count(true, counted) + self._count(predicted, counted) - 2 * hits
        return Overlap(state.both.plus(hits), state.one.plus(one))

    def _count(self, labels: Array, counted: Array) -> Array:
        """Count the labels of each class, fewer than 2**31: uint32 `[classes]`. Others are left out."""
        known = counted & (labels >= 0) & (labels < self._classes)
        places = jnp.where(known, labels, self._classes).reshape(-1)
        return jnp.zeros(self._classes + 1, jnp.uint32).at[places].add(jnp.uint32(1))[: self._classes]

    def _per_class(self, state: Overlap) -> Array:
        """Return float32 `[classes]`; NaN for a class that is neither present nor predicted."""
        return self._ratio(state.both.value(), state.one.value())

    def _ratio(self, both: Array, one: Array) -> Array:
        raise NotImplementedError

    def compute(self, state: Overlap) -> Array:
        """Return a float32 scalar from 0 to 1, the mean over the present or predicted classes; NaN if there is none."""
        values = self._per_class(state)
        return averaged(values, "macro", values, jnp)


class _Dice(_OverlapMetric):
    base = "Dice"

    def _ratio(self, both: Array, one: Array) -> Array:
        return _divided(2 * both, 2 * both + one)


class _IoU(_OverlapMetric):
    base = "IoU"

    def _ratio(self, both: Array, one: Array) -> Array:
        return _divided(both, both + one)


class Dice(_Dice):
    """The Dice coefficient from 0 to 1, mean over classes: `2·TP / (2·TP + FP + FN)` over all pixels of all images.

    It is the F1 score of each class. A class that is neither present nor predicted does not count. Counts are exact.
    The `predictions` are class numbers in the targets' shape. `SegmentationOutput` has them; a custom output must
    provide them as `logits.argmax(-1)`, or `logits > 0` for two classes.

    Source: Dice, "Measures of the Amount of Ecologic Association Between Species", 1945.

    Args:
      classes: the number of classes, or a list of their names; other labels belong to no class.
      ignore_label: the label of pixels that do not count. The name is then `Dice ignoring 255`.

    Raises:
      LearnerError: an argument is invalid; when updated with anything but integers of one shape, or with
        `logits` of more classes.

    >>> from learner.steps.outputs import SegmentationOutput
    >>> out = SegmentationOutput.from_logits(jax.nn.one_hot(jnp.array([[[0, 1, 1]]]), 2), jnp.array([[[0, 0, 1]]]))
    >>> metric, info = Dice(classes=2), Info(step=jnp.int32(0), weight=jnp.float32(1))
    >>> print(f"{metric.compute(metric.update(metric.init(), out, info)):.4f}")   # 2/3 of both classes
    0.6667
    """

    description = "twice the overlap of prediction and truth over their sizes, mean over classes, 0 to 1"


class IoU(_IoU):
    """Intersection over union (the Jaccard index) from 0 to 1, mean over classes: `TP / (TP + FP + FN)` over all pixels
    of all images.

    See `Dice` for the fields that it reads, its arguments and errors.

    Source: Jaccard, "The Distribution of the Flora in the Alpine Zone", 1912.

    >>> from learner.steps.outputs import SegmentationOutput
    >>> out = SegmentationOutput.from_logits(jax.nn.one_hot(jnp.array([[[0, 1, 1]]]), 2), jnp.array([[[0, 0, 1]]]))
    >>> metric, info = IoU(classes=2), Info(step=jnp.int32(0), weight=jnp.float32(1))
    >>> print(metric.compute(metric.update(metric.init(), out, info)))   # 1/2 of both classes
    0.5
    """

    description = "overlap of prediction and truth over their union, mean over classes, 0 to 1"


class _Table(_OverlapMetric):
    """The values of all classes as a text, at the end of a split."""

    numeric = False

    def __init__(self, classes: Classes, ignore_label: int | None = None, names: Sequence[str] | None = None) -> None:
        super().__init__(classes, ignore_label)
        if names is not None and (
            isinstance(names, str)
            or not isinstance(names, Sequence)
            or not all(isinstance(name, str) for name in names)
        ):
            raise LearnerError(
                f"names of {type(self).__name__} is {names!r}; it needs a list of the names of the {self._classes} "
                "classes",
                code="metric-class-names-type",
                classes=self._classes,
            )
        if names is not None and not is_integral(classes):
            raise LearnerError(
                f"{type(self).__name__} got names of classes twice: classes is a list of names, so leave names out",
                code="metric-class-names-twice",
            )
        if names is not None and len(names) != self._classes:
            raise LearnerError(
                f"names of {type(self).__name__} has {len(names)} names; there are {self._classes} classes",
                code="metric-class-names-count",
                classes=self._classes,
            )
        self.classes = self.classes if names is None else tuple(names)

    def compute(self, state: Overlap) -> Array:
        """Return float32 `[classes]`; NaN for a class that is neither labelled nor predicted."""
        return self._per_class(state)

    def text(self, value: Any) -> str:
        """Return `cat 0.5, dog 0.75`."""
        return ", ".join(f"{name} {x:.6g}" for name, x in zip(self.classes, np.asarray(value), strict=True))


class DicePerClass(_Table, _Dice):
    """The Dice coefficient of each class, as a text at the end of a split; see `Dice`.

    Args:
      classes: the number of classes, or a list of their names.
      ignore_label: the label of pixels that do not count.
      names: the names of the classes, if `classes` is their number.

    Raises:
      LearnerError: as for `Dice`; the number of names is not that of the classes.

    >>> from learner.steps.outputs import SegmentationOutput
    >>> out = SegmentationOutput.from_logits(jax.nn.one_hot(jnp.array([[[0, 1, 1]]]), 3), jnp.array([[[0, 0, 1]]]))
    >>> metric, info = DicePerClass(["sky", "tree", "lake"]), Info(jnp.int32(0), jnp.float32(1))
    >>> metric.text(metric.compute(metric.update(metric.init(), out, info)))
    'sky 0.666667, tree 0.666667, lake nan'
    """

    base = "Dice per Class"
    description = "twice the overlap of prediction and truth over their sizes, of each class"


class IoUPerClass(_Table, _IoU):
    """Intersection over union of each class, as a text at the end of a split; see `IoU`, and `DicePerClass` for its
    arguments and errors.

    >>> from learner.steps.outputs import SegmentationOutput
    >>> out = SegmentationOutput.from_logits(jax.nn.one_hot(jnp.array([[[0, 1, 1]]]), 2), jnp.array([[[0, 0, 1]]]))
    >>> metric, info = IoUPerClass(2), Info(jnp.int32(0), jnp.float32(1))
    >>> metric.text(metric.compute(metric.update(metric.init(), out, info)))
    '0 0.5, 1 0.5'
    """

    base = "IoU per Class"
    description = "overlap of prediction and truth over their union, of each class"


def _divided(part: Array, of: Array) -> Array:
    return jnp.where(of > 0, part / jnp.where(of > 0, of, 1), jnp.nan)
