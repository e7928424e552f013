"""Reading classes from an output: the scores, the labels, and the mask of the labels that count.

There are three kinds of outputs, distinguished by shapes. One label for each row (or token): `logits` `[..., classes]`
with integer `targets` `[...]`. Several labels for each row: `logits` and `targets` `[..., classes]`, of 0 and 1. One
score for two classes, whose label is 0 or 1: both of one shape, if the metric has `classes=1`.

A label that counts is *strange* if its scores contain a NaN, or if it is outside the classes. A program cannot raise an
error about a value, so metrics become NaN, or count the label as wrong; each metric documents which.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from learner.errors import LearnerError
from learner.metrics.base import Array
from learner.metrics.rows import as_int32, kept_rows, wide


@dataclasses.dataclass(frozen=True)
class Scores:
    """The scores and labels of a batch.

    Attributes:
      logits: float32 or float64 `[..., classes]`.
      labels: int32, `[...]` for one label per row, or `[..., classes]` for several: 1, 0, or -1 for any other value.
      counted: bool of the labels' shape, True for the labels that count.
    """

    logits: Array
    labels: Array
    counted: Array

    @property
    def classes(self) -> int:
        """The number of classes; 1 for one score for two classes."""
        return int(self.logits.shape[-1])

    @property
    def several(self) -> bool:
        """True if each class has its own label."""
        return bool(self.labels.ndim == self.logits.ndim)

    def flat(self) -> "Scores":
        """Return the scores with one axis of rows in front of the classes: tokens are rows."""
        labels = (-1, self.classes) if self.several else (-1,)
        logits = self.logits.reshape(-1, self.classes)
        return Scores(logits, self.labels.reshape(labels), self.counted.reshape(labels))

    def strange(self) -> Array:
        """Return bool of the labels' shape: True for a label outside the classes, or with a NaN among its scores."""
        nan = jnp.isnan(self.logits)
        if self.several:
            return nan | (self.labels < 0)
        return nan.any(-1) | (self.labels < 0) | (self.labels >= self.classes)

    def uncertain(self) -> Array:
        """Return bool of the labels' shape: True for strange labels, and for scores without probabilities (+inf has no
        softmax).
        """
        nan = jnp.isnan(self.probabilities())
        return self.strange() | (nan if self.several else nan.any(-1))

    def best(self, threshold: float | None = None) -> Array:
        """Return the predictions, int32 of the labels' shape: the class with the highest score, and the smallest class
        number among equal scores. With several labels per row, 1 where the label's probability is above the threshold
        (0.5); a threshold for two classes applies to class 1.
        """
        edge = 0.0 if threshold is None else math.log(threshold) - math.log1p(-threshold)
        if self.several:
            return (self.logits > edge).astype(jnp.int32)
        if threshold is not None:
            return (self.logits[..., 1] - self.logits[..., 0] > edge).astype(jnp.int32)
        return jnp.argmax(self.logits, -1).astype(jnp.int32)

    def probabilities(self) -> Array:
        """Return `[..., classes]`, in the logits' dtype: the softmax over classes, or the sigmoid of each label."""
        return jax.nn.sigmoid(self.logits) if self.several else jax.nn.softmax(self.logits)

    def present(self) -> Array:
        """Return bool `[..., classes]`: True if the class is a label of the row."""
        return self.labels == 1 if self.several else self.one_of(self.labels)

    def one_of(self, numbers: Array) -> Array:
        """Return bool `[..., classes]`: True for the class with the number."""
        shape = (*numbers.shape, self.classes)
        return jax.lax.broadcasted_iota(jnp.int32, shape, len(shape) - 1) == numbers[..., None]


def read_scores(name: str, output: Any, classes: int | None = None, ignore_label: int | None = None) -> Scores:
    """Return the scores and labels of an output.

    Args:
      name: the metric's name, for error messages.
      output: an output with `logits`, `targets` and an optional `mask` over the first of the targets' axes.
      classes: the required number of classes; None accepts any.
      ignore_label: the label that does not count.

    Raises:
      LearnerError: the shapes or dtypes fit none of the three kinds, or the number of classes differs.

    >>> import types
    >>> out = types.SimpleNamespace(logits=jnp.zeros((2, 3)), targets=jnp.array([1, -100]))
    >>> scores = read_scores("Mine", out, ignore_label=-100)
    >>> print(scores.classes, scores.several, scores.counted)
    3 False [ True False]
    """
    logits, targets = jnp.asarray(output.logits), jnp.asarray(output.targets)
    _check(name, output, logits, targets, classes)
    counted = kept_rows(name, output, targets.shape)
    several = logits.shape == targets.shape
    # Losses often need float labels. Neither dtype overflows at -100, as uint8 would.
    labels = targets.astype(jnp.float32) if several else as_int32(targets)
    if ignore_label is not None:
        counted &= labels != ignore_label
    if several:
        labels = jnp.where(labels == 1, 1, jnp.where(labels == 0, 0, -1)).astype(jnp.int32)
        if logits.ndim == 1 or (classes == 1 and logits.shape[-1] != 1):
            logits, labels, counted = logits[..., None], labels[..., None], counted[..., None]
    return Scores(wide(logits)[0], labels, counted)


def classes_before(logits: Array, targets: Array) -> Array:
    """Return the number of classes ranked before the label: int32 `[...]`. All classes are before a label outside the
    classes.

    Comparing is cheaper than sorting. The comparisons are negated so that NaN ranks before everything, and nothing
    ranks after a NaN.
    """
    classes = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    labels = targets[..., None]
    known = (labels >= 0) & (labels < logits.shape[-1])
    score = jnp.take_along_axis(logits, jnp.where(known, labels, 0), axis=-1)
    before = jnp.where(classes < labels, ~(logits < score), ~(logits <= score))
    return (before | ~known).sum(-1, dtype=jnp.int32)


def decided(name: str, scores: Scores, threshold: float | None = None) -> Array:
    """Return the predictions, as `Scores.best` does.

    Raises:
      LearnerError: there is a threshold, but one label per row and more than two classes.
    """
    if threshold is not None and not scores.several and scores.classes != 2:
        raise LearnerError(
            f"{name} got one label for each row, of {scores.classes} classes; a threshold is for two classes, or for "
            "several labels of a row",
            code="metric-threshold-classes",
            name=name,
        )
    return scores.best(threshold)


def _check(name: str, output: Any, logits: Array, targets: Array, classes: int | None) -> None:
    message = (
        f"{name} got {type(output).__name__} with logits {logits.dtype}{list(logits.shape)} and targets "
        f"{targets.dtype}{list(targets.shape)}"
    )
    one = logits.ndim >= 2 and logits.shape[:-1] == targets.shape and jnp.issubdtype(targets.dtype, jnp.integer)
    several = logits.ndim >= 1 and logits.shape == targets.shape
    if not jnp.issubdtype(logits.dtype, jnp.floating):
        raise LearnerError(
            f"{message}; it needs scores (floating-point logits), not predicted classes", code="metric-scores-needed"
        )
    if not (one or several):
        raise LearnerError(
            f"{message}; it needs one class number for each row or token (integer targets of the logits' shape without "
            "the last axis), or 0 and 1 for each label (targets of the logits' shape)",
            code="metric-targets-shape",
        )
    if classes == 1 and not several:
        raise LearnerError(
            f"{message}; with classes=1 it needs one score for each label, of one shape", code="metric-scores-shape"
        )
    if classes not in (None, 1) and logits.shape[-1] != classes:
        raise LearnerError(
            f"{message}; it has classes={classes}, and needs as many logits for each row",
            code="metric-classes-mismatch",
            classes=classes,
        )
    if several and classes not in (None, 1) and logits.ndim < 2:
        raise LearnerError(
            f"{message}; it needs a score for each of {classes} classes, or classes=1",
            code="metric-classes-mismatch",
            classes=classes,
        )
