"""Base classes of metrics that are one weighted mean, or one fraction."""

from typing import Any

import jax.numpy as jnp

from learner.errors import LearnerError
from learner.metrics.base import Array, Info, MergingMetric, WeightedMean, rows_mask
from learner.metrics.counts import Fraction


class MeanMetric(MergingMetric):
    """A metric whose value is one weighted mean. Subclasses define `update` only.

    >>> import jax.numpy as jnp
    >>> from learner.metrics.base import Info
    >>> from learner.steps.outputs import RegressionOutput
    >>> class Bias(MeanMetric):
    ...     name = "Bias"
    ...     fields = ("predictions", "targets")
    ...
    ...     def update(self, state, output, info):
    ...         return state.add(output.predictions - output.targets)
    >>> metric, info = Bias(), Info(step=jnp.int32(0), weight=jnp.float32(2))
    >>> out = RegressionOutput.from_predictions(jnp.array([1.0, 4.0]), jnp.array([0.0, 0.0]))
    >>> print(metric.compute(metric.update(metric.init(), out, info)))
    2.5
    """

    def init(self) -> WeightedMean:
        """Return the mean of no values."""
        return WeightedMean.zero()

    def compute(self, state: WeightedMean) -> Array:
        """Return a float32 scalar; NaN without rows."""
        return state.value()


class FieldMean(MeanMetric):
    """The mean of a field of the step's output over all rows: a term of the loss, or another value of the step.

    A scalar is a mean over the rows of its batch and is weighted like the loss. Each row of an array counts once,
    unless the output's `mask` excludes it.

    >>> from learner.steps.outputs import Output
    >>> metric = FieldMean("kl")
    >>> state = metric.init()
    >>> for kl, rows in ((1.0, 3), (5.0, 1)):
    ...     out = Output(jnp.float32(0), kl=jnp.float32(kl))
    ...     state = metric.update(state, out, Info(step=jnp.int32(0), weight=jnp.float32(rows)))
    >>> print(metric.compute(state))   # (3 * 1 + 1 * 5) / 4
    2.0

    Args:
      field: the name of a field of numbers: a scalar, or `[batch, ...]`.
      name: the metric's name; default: `field`.
      higher_is_better: the metric's direction, if it has one.
    """

    unit = ""
    higher_is_better = None
    description = "a field of the step's output, mean over rows and values"
    undefined = "nothing that it counts was there, or a value of the field that counts is NaN"

    def __init__(self, field: str, name: str | None = None, higher_is_better: bool | None = None) -> None:
        if not (isinstance(field, str) and field):
            raise LearnerError(
                f"FieldMean got the field {field!r}: it needs the name of a field of the step's output",
                code="metric-field-name",
            )
        self.name = field if name is None else name
        self.fields, self.higher_is_better = (field,), higher_is_better

    def update(self, state: WeightedMean, output: Any, info: Info) -> WeightedMean:
        """Add the field of a batch."""
        values, mask = jnp.asarray(getattr(output, *self.fields)), rows_mask(output)
        shape = () if mask is None else jnp.shape(mask)
        if values.ndim and shape[: values.ndim] == values.shape != shape:
            raise LearnerError(
                f"the field {self.fields[0]} has shape {list(values.shape)}, and the output's mask has {list(shape)}, "
                "as one of tokens has: put the field into an output of its own, which Head reads. (Its mean, a scalar, "
                "would be weighted by the tokens of each batch)",
                code="metric-field-mask",
                field=self.fields[0],
            )
        return state.add(values, mask if values.ndim else info.weight)


class FractionMetric(MergingMetric):
    """A metric whose value is one exact fraction. Subclasses define `update` only."""

    unit = ""

    def init(self) -> Fraction:
        """Return an empty fraction."""
        return Fraction.zero()

    def compute(self, state: Fraction) -> Array:
        """Return a float32 scalar from 0 to 1; NaN if nothing was counted."""
        return state.value()
