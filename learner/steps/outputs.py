"""Outputs of a step: pytrees with the loss, its weight, and the fields that metrics read.

Losses are computed in float32, or in float64 if the model's numbers are float64 (`jax_enable_x64`).

Every mean is `Σ(value·weight) / Σweight`; values with weight 0 contribute nothing, even if they are NaN. `weight` is
the number of examples (or tokens) that the loss is the mean over. It makes accumulation, ragged batches and several
devices exact.
"""

import dataclasses
import functools
import math
import types
from collections.abc import Iterable
from typing import Any, Self

import jax
import jax.numpy as jnp
import optax

from learner.errors import LearnerError
from learner.metrics.rows import as_int32

Array = Any  # a jax.Array, or a tracer of one
ROUNDING = 0.01  # tolerance for probabilities outside of 0 and 1, as mixtures of labels are rounded


@jax.tree_util.register_pytree_with_keys_class
class Output(types.SimpleNamespace):
    """A loss and any further fields, which metrics read by their names. A step may also return a dict of them.

    Attributes:
      loss: scalar, the mean over the rows of the batch.
      weight: the number of rows (or tokens) that the mean is over. Default: the rows of the batch.
      mask: `[batch]` of 0 and 1. Default: every row counts. A mask requires `weight`.

    >>> out = Output(jnp.float32(1.5), reconstruction=jnp.float32(1.2), kl=jnp.float32(0.3))
    >>> print(out.loss, out.kl, out["kl"])
    1.5 0.3 0.3
    """

    loss: Array

    def __init__(self, loss: Array, **fields: Any):
        super().__init__(loss=loss, **fields)

    def __getitem__(self, name: str) -> Array:
        """Return a field, as from the dict that the step returned."""
        return vars(self)[name]

    def __contains__(self, name: object) -> bool:
        return name in vars(self)

    __iter__ = None  # otherwise Python calls `__getitem__` with 0

    def tree_flatten_with_keys(self) -> tuple[list[tuple[Any, Any]], tuple[str, ...]]:
        """Return the fields, sorted, and their names."""
        names = tuple(sorted(vars(self)))
        return [(jax.tree_util.GetAttrKey(name), getattr(self, name)) for name in names], names

    @classmethod
    def tree_unflatten(cls, names: tuple[str, ...], fields: Iterable[Any]) -> Self:
        """Return an output with these fields."""
        return cls(**dict(zip(names, fields, strict=True)))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ClassificationOutput:
    """Output of a classifier with one label for each row.

    Attributes:
      loss: scalar, the mean cross-entropy over the rows.
      logits: `[batch, classes]`, unnormalised scores.
      targets: `[batch]`, integer labels.
      weight: the number of rows that the mean is over, or the sum of their weights.
      mask: `[batch]` of 0 and 1, or weights of the rows in the loss; `None` if every row counts. Metrics count a row
        once if its mask is not 0.
    """

    loss: Array
    logits: Array
    targets: Array
    weight: Array
    mask: Array | None = None

    @classmethod
    def from_logits(
        cls, logits: Array, labels: Array, mask: Array | None = None, ignore_label: int | None = None
    ) -> "ClassificationOutput":
        """Return an output with the softmax cross-entropy, in nats, of `logits` `[batch, classes]` and integer
        `labels` `[batch]`. Rows with the label `ignore_label`, such as -100, do not count: the output's mask leaves
        them out.

        The loss and its gradient are NaN if a label that counts is outside of `0..classes-1`.

        >>> out = ClassificationOutput.from_logits(jnp.zeros((4, 10)), jnp.arange(4))
        >>> print(f"{out.loss:.4f} over {out.weight} rows")   # ln(10)
        2.3026 over 4.0 rows
        """
        if logits.ndim != 2 or labels.shape != logits.shape[:1]:
            raise LearnerError(
                f"ClassificationOutput.from_logits got logits of shape {logits.shape} and labels of shape "
                f"{labels.shape}; it needs [batch, classes] and [batch]{_labels_hint(logits, labels)}",
                code="output-classification-shapes",
            )
        _check_mask(mask, labels.shape)
        mask = _without_ignored(mask, labels, ignore_label)
        losses = _cross_entropy("ClassificationOutput.from_logits", _kept(logits, mask), _kept(labels, mask))
        loss, weight = weighted_mean(losses, mask)
        return cls(loss, logits, labels, weight, mask)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class MultiLabelOutput:
    """Output of a classifier with several labels for each row, each present or not.

    Attributes:
      loss: scalar, the mean binary cross-entropy over rows and labels.
      logits: `[batch, labels]`.
      targets: `[batch, labels]` of 0 and 1, or probabilities.
      weight: the number of rows that the mean is over, or the sum of their weights. A row counts by the fraction of its
        labels that count.
      mask: `[batch]` of 0 and 1, or weights; `None` if every row counts. See `ClassificationOutput`.
      ignore_label: the target of an unknown label, which does not count; None for no such target.
    """

    loss: Array
    logits: Array
    targets: Array
    weight: Array
    mask: Array | None = None
    ignore_label: int | None = dataclasses.field(default=None, metadata={"static": True})

    @classmethod
    def from_logits(
        cls, logits: Array, targets: Array, mask: Array | None = None, ignore_label: int | None = None
    ) -> "MultiLabelOutput":
        """Return an output with the sigmoid cross-entropy of `logits` and 0/1 `targets`, both `[batch, labels]`.

        The loss and its gradient are NaN if a target that counts is not between 0 and 1. Metrics ignore unknown labels
        by their own `ignore_label`.

        >>> out = MultiLabelOutput.from_logits(jnp.zeros((4, 3)), jnp.ones((4, 3)))
        >>> print(f"{out.loss:.4f}")   # ln(2)
        0.6931
        """
        if logits.ndim != 2 or targets.shape != logits.shape:
            raise LearnerError(
                f"MultiLabelOutput.from_logits got logits of shape {logits.shape} and targets of shape "
                f"{targets.shape}; both must be [batch, labels]",
                code="output-multilabel-shapes",
            )
        _check_mask(mask, logits.shape[:1])
        if ignore_label is None:
            loss, weight = weighted_mean(_label_losses(_kept(logits, mask), _kept(targets, mask)).mean(-1), mask)
            return cls(loss, logits, targets, weight, mask)
        known = (targets != ignore_label).astype(jnp.float32)
        weights = known if mask is None else known * mask.astype(jnp.float32)[:, None]
        loss, total = weighted_mean(_label_losses(_kept(logits, weights), _kept(targets, weights)), weights)
        return cls(loss, logits, targets, total / targets.shape[1], mask, ignore_label)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RegressionOutput:
    """Output of a regression model with numbers for each row.

    Attributes:
      loss: scalar, the mean squared error over rows and their values.
      predictions: `[batch, ...]`.
      targets: same shape as `predictions`.
      weight: the number of rows that the mean is over, or the sum of their weights. A row counts by the fraction of its
        values that count.
      mask: `[batch]`, or more of the first axes of `predictions`: 0 and 1, or weights; `None` if every value counts.
        See `ClassificationOutput`.
    """

    loss: Array
    predictions: Array
    targets: Array
    weight: Array
    mask: Array | None = None

    @classmethod
    def from_predictions(cls, predictions: Array, targets: Array, mask: Array | None = None) -> "RegressionOutput":
        """Return an output with the mean squared error of `predictions` and `targets`, both `[batch, ...]`.

        >>> out = RegressionOutput.from_predictions(jnp.array([1.0, 2.0]), jnp.array([1.0, 4.0]))
        >>> print(out.loss)
        2.0
        >>> predictions, targets = jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([[1.0, jnp.nan], [1.0, 2.0]])
        >>> out = RegressionOutput.from_predictions(predictions, targets, mask=~jnp.isnan(targets))
        >>> print(f"{out.loss:.4f} over {out.weight} rows")   # (0 + 4 + 4) / 3
        2.6667 over 1.5 rows
        """
        if predictions.ndim < 1 or predictions.shape != targets.shape:
            raise LearnerError(
                f"RegressionOutput.from_predictions got predictions of shape {predictions.shape} and targets of shape "
                f"{targets.shape}; they must be the same (a missing [:, 0] is the usual reason)",
                code="output-regression-shapes",
            )
        counted = predictions.shape[: 1 if mask is None else max(mask.ndim, 1)]  # the axes of losses with own weights
        _check_mask(mask, counted)
        difference = jnp.subtract(*_wide(_kept(predictions, mask), _kept(targets, mask)))
        loss, total = weighted_mean(jnp.square(difference).reshape(*counted, -1).mean(-1), mask)
        weight = total / math.prod(counted[1:]) if counted[1:] else total
        return cls(loss, predictions, targets, weight, mask)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SequenceOutput:
    """Output of a sequence model with one label for each token.

    Attributes:
      loss: scalar, the mean cross-entropy over the tokens that count.
      logits: `[batch, length, classes]`.
      targets: `[batch, length]`, integer labels.
      weight: the number of tokens that the mean is over.
      mask: `[batch, length]` of 0 and 1, or weights; `None` if every token counts. See `ClassificationOutput`.
    """

    loss: Array
    logits: Array
    targets: Array
    weight: Array
    mask: Array | None = None

    @classmethod
    def from_logits(
        cls, logits: Array, targets: Array, mask: Array | None = None, ignore_label: int | None = None
    ) -> "SequenceOutput":
        """Return an output with the softmax cross-entropy per token. `mask` marks the tokens that count, `[batch,
        length]`, or the rows whose tokens count, `[batch]`. Tokens with the label `ignore_label`, such as -100, do not
        count: the output's mask leaves them out.

        The loss and its gradient are NaN if a label that counts is outside of `0..classes-1`.

        >>> logits, targets, mask = jnp.zeros((2, 3, 4)), jnp.zeros((2, 3), int), jnp.array([[1, 1, 0], [1, 0, 0]])
        >>> out = SequenceOutput.from_logits(logits, targets, mask)
        >>> print(f"{out.loss:.4f} over {out.weight} tokens")   # ln(4)
        1.3863 over 3.0 tokens
        >>> out = SequenceOutput.from_logits(logits, jnp.array([[3, 2, -100], [0, -100, -100]]), ignore_label=-100)
        >>> print(f"{out.loss:.4f} over {out.weight} tokens")
        1.3863 over 3.0 tokens
        """
        if logits.ndim != 3 or targets.shape != logits.shape[:2]:
            raise LearnerError(
                f"SequenceOutput.from_logits got logits of shape {logits.shape} and targets of shape {targets.shape}; "
                f"it needs [batch, length, classes] and [batch, length]{_labels_hint(logits, targets)}",
                code="output-sequence-shapes",
            )
        mask = _without_ignored(_mask_of_labels(mask, targets), targets, ignore_label)
        losses = _cross_entropy("SequenceOutput.from_logits", _kept(logits, mask), _kept(targets, mask))
        loss, weight = weighted_mean(losses, mask)
        return cls(loss, logits, targets, weight, mask)

    @property
    def predictions(self) -> Array:
        """int32 `[batch, length]`: the tokens with the highest scores, for metrics of sequences."""
        return jnp.argmax(self.logits, axis=-1).astype(jnp.int32)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SegmentationOutput:
    """Output of a segmentation model with one label for each pixel (or voxel).

    Attributes:
      loss: scalar, the mean cross-entropy over the pixels that count.
      logits: `[batch, height, width, ..., classes]`.
      targets: `[batch, height, width, ...]`, integer labels.
      weight: the number of pixels that the mean is over.
      mask: 0 and 1, or weights, in the targets' shape; `None` if every pixel counts. See `ClassificationOutput`.
    """

    loss: Array
    logits: Array
    targets: Array
    weight: Array
    mask: Array | None = None

    @classmethod
    def from_logits(
        cls, logits: Array, targets: Array, mask: Array | None = None, ignore_label: int | None = None
    ) -> "SegmentationOutput":
        """Return an output with the softmax cross-entropy per pixel. `mask` marks the pixels that count, in the
        targets' shape, or the rows whose pixels count, `[batch]`. Pixels with the label `ignore_label`, such as 255, do
        not count: the output's mask leaves them out.

        The loss and its gradient are NaN if a label that counts is outside of `0..classes-1`.

        >>> logits, targets = jnp.zeros((2, 5, 5, 4)), jnp.zeros((2, 5, 5), int)
        >>> out = SegmentationOutput.from_logits(logits, targets)
        >>> print(f"{out.loss:.4f} over {out.weight} pixels")   # ln(4)
        1.3863 over 50.0 pixels
        """
        if logits.ndim < 3 or targets.shape != logits.shape[:-1]:
            raise LearnerError(
                f"SegmentationOutput.from_logits got logits of shape {logits.shape} and targets of shape "
                f"{targets.shape}; it needs [batch, height, width, ..., classes] and [batch, height, width, ...]"
                f"{_labels_hint(logits, targets)}",
                code="output-segmentation-shapes",
            )
        mask = _without_ignored(_mask_of_labels(mask, targets), targets, ignore_label)
        losses = _cross_entropy("SegmentationOutput.from_logits", _kept(logits, mask), _kept(targets, mask))
        loss, weight = weighted_mean(losses, mask)
        return cls(loss, logits, targets, weight, mask)

    @property
    def predictions(self) -> Array:
        """int32 in the targets' shape: the classes with the highest scores."""
        return jnp.argmax(self.logits, axis=-1).astype(jnp.int32)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class GeneratedOutput:
    """Generated sequences of any length, and their target sequences, for validation.

    Attributes:
      loss: scalar; NaN if there is no loss.
      predictions: `[batch, length]`, integer tokens.
      targets: `[batch, another length]`, integer tokens.
      weight: the weight of `loss`: from its own output, or the number of rows.
      mask: `[batch]` or `[batch, another length]` of 0 and 1: the rows or target tokens that count; or `None`.
      prediction_mask: `[batch, length]` of 0 and 1: the predicted tokens that count. `None`: determined by `mask`.
    """

    loss: Array
    predictions: Array
    targets: Array
    weight: Array
    mask: Array | None = None
    prediction_mask: Array | None = None

    @classmethod
    def of(
        cls,
        predictions: Array,
        targets: Array,
        mask: Array | None = None,
        prediction_mask: Array | None = None,
        scored: Any = None,
    ) -> "GeneratedOutput":
        """Return sequences with the loss and the weight of another output, `scored`: a monitor needs a number, and
        generated sequences have no loss of their own.

        >>> out = GeneratedOutput.of(jnp.array([[4, 5, 6]]), jnp.array([[4, 5]]))
        >>> print(out.loss, out.weight)
        nan 1.0
        """
        if predictions.ndim != 2 or targets.ndim != 2 or len(predictions) != len(targets):
            raise LearnerError(
                f"GeneratedOutput.of got predictions of shape {predictions.shape} and targets of shape "
                f"{targets.shape}; it needs [batch, length] and [batch, another length]",
                code="output-generated-shapes",
            )
        rows = float(len(targets)) if mask is None else mask.reshape(len(targets), -1).any(1).sum().astype(jnp.float32)
        loss, weight = (jnp.float32(jnp.nan), rows) if scored is None else (scored.loss, scored.weight)
        return cls(loss, predictions, targets, weight, mask, prediction_mask)


def weighted_mean(values: Array, weights: Array | None) -> tuple[Array, Array]:
    """Return the weighted mean of `values` and the sum of the weights, or (0, 0) if that sum is 0. `weights` has the
    shape of `values`, such as a mask of 0 and 1.

    Values with weight 0 may be NaN: they count neither here nor in the gradient.

    >>> weighted_mean(jnp.array([1.0, jnp.nan, 3.0]), jnp.array([1, 0, 1]))
    (Array(2., dtype=float32), Array(2., dtype=float32))
    >>> weighted_mean(jnp.array([1.0, 2.0, 3.0]), jnp.array([1.0, 0.5, 0.5]))
    (Array(1.75, dtype=float32), Array(2., dtype=float32))
    """
    if weights is None:
        return values.mean(), float(values.size)
    _check_mask(weights, values.shape)
    (values,) = _wide(values)
    # Integers are summed as integers, so that no mask is too long for float32.
    total = weights.astype(values.dtype if jnp.issubdtype(weights.dtype, jnp.floating) else jnp.int32).sum()
    weighted = (jnp.where(weights.astype(bool), values, 0) * weights.astype(values.dtype)).sum()
    return weighted / jnp.where(total > 0, total, 1).astype(values.dtype), total.astype(jnp.float32)


def _check_mask(mask: Array | None, shape: tuple[int, ...]) -> None:
    if mask is not None and mask.shape != shape:
        raise LearnerError(
            f"the mask has shape {mask.shape}; it needs {shape}, one number for each value of the loss",
            code="output-mask-shape",
            shape=shape,
        )


def _mask_of_labels(mask: Array | None, targets: Array) -> Array | None:
    """Return a mask in the shape of the targets; one of rows is repeated for all labels of a row."""
    if mask is not None and mask.shape == targets.shape[:1]:
        return jnp.broadcast_to(mask.reshape(-1, *[1] * (targets.ndim - 1)), targets.shape)
    _check_mask(mask, targets.shape)
    return mask


def _without_ignored(mask: Array | None, labels: Array, ignore_label: int | None) -> Array | None:
    """Return the mask, 0 also where the label is the ignored one."""
    if ignore_label is None:
        return mask
    counted = as_int32(jnp.asarray(labels)) != ignore_label
    return counted if mask is None else _kept(mask, counted)


def _labels_hint(logits: Array, labels: Array) -> str:
    if logits.ndim == 3 and labels.shape == logits.shape[:2]:
        return "; for a label at each place of a sequence use SequenceOutput.from_logits"
    if labels.shape == (*logits.shape[:-1], 1) != logits.shape:
        return "; pass labels[:, 0]" if labels.ndim == 2 else "; pass targets[..., 0]"
    if labels.shape != logits.shape:
        return ""
    is_soft = jnp.issubdtype(labels.dtype, jnp.floating)
    hint = "; of one-hot labels pass labels.argmax(-1)"
    return f"{hint}, for soft labels compute the loss yourself and return Output(loss)" if is_soft else hint


def _kept(values: Array, mask: Array | None) -> Array:
    """Return `values` with zeros where the mask is 0. Applied before the loss, so that a masked NaN does not reach the
    gradients.
    """
    if mask is None:
        return values
    values = jnp.asarray(values)  # NumPy's int64 without jax_enable_x64
    kept = mask.astype(bool).reshape(mask.shape + (1,) * (values.ndim - mask.ndim))
    return jnp.where(kept, values, jnp.zeros((), values.dtype))


def _wide(*arrays: Array) -> list[Array]:
    """Return the arrays in the dtype of losses: float64 if the first array is float64, else float32."""
    for x in arrays:
        if jnp.iscomplexobj(x):
            raise LearnerError(
                f"a loss of this package got {x.dtype} values, of which it would ignore the imaginary parts: return an "
                "Output with a loss of real numbers, such as jnp.square(jnp.abs(predictions - targets)).mean()",
                code="output-complex",
            )
    double = jnp.result_type(arrays[0]) == jnp.float64
    return [x.astype(jnp.float64 if double else jnp.float32) for x in arrays]


def _label_losses(logits: Array, targets: Array) -> Array:
    losses = optax.sigmoid_binary_cross_entropy(*_wide(logits, targets))
    return losses * jnp.where(_no_probability(targets), jnp.nan, 1.0)  # as in `_cross_entropy`


def _no_probability(targets: Array) -> Array:
    """Return True for targets that are not between 0 and 1: bool in the targets' shape."""
    (targets,) = _wide(targets)
    return (targets < -ROUNDING) | (targets > 1 + ROUNDING)


def _cross_entropy(what: str, logits: Array, labels: Array) -> Array:
    if not jnp.issubdtype(labels.dtype, jnp.integer):
        raise LearnerError(
            f"{what} got labels of dtype {labels.dtype}; it needs integer class numbers (labels.astype(int))",
            code="output-labels-dtype",
        )
    losses = optax.softmax_cross_entropy_with_integer_labels(*_wide(logits), labels)
    # optax counts negative labels from the end. As a factor, NaN also reaches the gradient; times 1 is exact.
    return losses * jnp.where(_outside(labels, logits.shape[-1]), jnp.nan, 1.0)


def _outside(labels: Array, classes: int) -> Array:
    """Return True for labels outside of `0..classes-1`: bool in the labels' shape."""
    highest = min(classes - 1, int(jnp.iinfo(labels.dtype).max))  # type: ignore[no-untyped-call]
    return (labels < 0) | (labels > highest)


def has_wrong_labels(output: Any) -> Array:
    """Return a bool scalar: True if an output of this module, or one nested in `output`, has an invalid label that
    counts: one outside of the classes of its logits or, in a `MultiLabelOutput`, not between 0 and 1.

    >>> out = ClassificationOutput.from_logits(jnp.zeros((2, 3)), jnp.array([2, -1]), mask=jnp.array([1, 0]))
    >>> print(has_wrong_labels(out), out.loss)
    False 1.0986123
    """
    parts = jax.tree.leaves(output, is_leaf=lambda part: isinstance(part, OF_CLASSES))
    wrong = [_is_wrong(part) for part in parts if isinstance(part, OF_CLASSES)]
    return functools.reduce(jnp.logical_or, wrong) if wrong else jnp.bool_(False)


def _is_wrong(output: Any) -> Array:
    logits, labels, mask = output.logits, output.targets, output.mask
    if isinstance(output, MultiLabelOutput):
        outside = _no_probability(labels)
        if output.ignore_label is not None:
            outside &= labels != output.ignore_label
        return _kept(outside, mask).any()
    if not jnp.issubdtype(jnp.result_type(labels), jnp.integer) or logits.shape[:-1] != labels.shape:
        return jnp.bool_(False)
    return _kept(_outside(labels, logits.shape[-1]), mask).any()


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainOutput:
    """Output of a train step that computes its own gradients.

    Attributes:
      grads: gradients as returned by `nnx.grad`, `jax.grad` or `eqx.filter_grad` for the model, one per parameter.
      output: the step's output, with `loss`.
    """

    grads: Any
    output: Any


def as_output(returned: Any) -> Any:
    """Return the result of a step, with an `Output` in place of a dict with a loss.

    >>> as_output({"loss": 1.5, "kl": 0.5}), as_output(TrainOutput({}, {"loss": 1.5}))
    (Output(loss=1.5, kl=0.5), TrainOutput(grads={}, output=Output(loss=1.5)))
    """
    if isinstance(returned, TrainOutput):
        return dataclasses.replace(returned, output=as_output(returned.output))
    return Output(**returned) if isinstance(returned, dict) and "loss" in returned else returned


OF_LABELS = (ClassificationOutput, SegmentationOutput, SequenceOutput)  # with losses of integer labels
OF_CLASSES = (*OF_LABELS, MultiLabelOutput)
