"""Metrics of regression: the errors of predictions."""

import math
from typing import Any

import jax.numpy as jnp

from learner.errors import LearnerError
from learner.metrics.base import Array, Info, WeightedMean
from learner.metrics.class_arguments import is_real
from learner.metrics.means import MeanMetric
from learner.metrics.rows import kept_rows, wide

NO_NUMBER = "nothing that it counts was there, or a prediction or a target that counts is not a finite number"


class MeanAbsoluteError(MeanMetric):
    """`Σ|prediction - target| / n` over rows and their values, in the unit of the targets.

    The mask is `[batch]`, or has more of the first axes: a masked row does not count, even when it is NaN.

    >>> from learner.steps.outputs import RegressionOutput
    >>> predictions, targets = jnp.array([1.0, 2.0, 9.0]), jnp.array([1.0, 4.0, 0.0])
    >>> out = RegressionOutput.from_predictions(predictions, targets, mask=jnp.array([1, 1, 0]))
    >>> metric, info = MeanAbsoluteError(), Info(step=jnp.int32(0), weight=jnp.float32(2))
    >>> print(metric.compute(metric.update(metric.init(), out, info)))   # (0 + 2) / 2
    1.0
    """

    name = "Mean Absolute Error"
    higher_is_better = False
    unit = ""
    description = "how far predictions are from their targets, mean over rows and values"
    fields = ("predictions", "targets")
    undefined = NO_NUMBER

    def update(self, state: WeightedMean, output: Any, info: Info) -> WeightedMean:
        """Add a batch: `predictions` and `targets` `[batch, ...]`."""
        return _add_rows(self.name, state, output, jnp.abs(_difference(self.name, output)))


class MeanSquaredError(MeanMetric):
    """`Σ(prediction - target)² / n` over rows and their values, in the squared unit of the targets.

    The mask is `[batch]`, or has more of the first axes: a masked row does not count, even when it is NaN.

    >>> from learner.steps.outputs import RegressionOutput
    >>> predictions, targets = jnp.array([[1.0, 2.0], [0.0, 0.0]]), jnp.array([[1.0, 4.0], [2.0, 2.0]])
    >>> out = RegressionOutput.from_predictions(predictions, targets)
    >>> metric, info = MeanSquaredError(), Info(step=jnp.int32(0), weight=jnp.float32(2))
    >>> print(metric.compute(metric.update(metric.init(), out, info)))   # (0 + 4 + 4 + 4) / 4
    3.0
    """

    name = "Mean Squared Error"
    higher_is_better = False
    unit = ""
    description = "squared distance of predictions from their targets, mean over rows and values"
    fields = ("predictions", "targets")
    undefined = NO_NUMBER

    def update(self, state: WeightedMean, output: Any, info: Info) -> WeightedMean:
        """Add a batch: `predictions` and `targets` `[batch, ...]`."""
        return _add_rows(self.name, state, output, jnp.square(_difference(self.name, output)))


class RootMeanSquaredError(MeanSquaredError):
    """`√(Σ(prediction - target)² / n)` over rows and their values, in the unit of the targets.

    It is the root over the whole split, not a mean of the batches' roots. Several outputs share one root over all their
    values. The mask is `[batch]`, or has more of the first axes: a masked row does not count, even when it is NaN.

    Source: `sklearn.metrics.root_mean_squared_error` for one output.

    >>> from learner.steps.outputs import RegressionOutput
    >>> out = RegressionOutput.from_predictions(jnp.array([1.0, 2.0]), jnp.array([4.0, 6.0]))
    >>> metric, info = RootMeanSquaredError(), Info(step=jnp.int32(0), weight=jnp.float32(2))
    >>> print(f"{metric.compute(metric.update(metric.init(), out, info)):.4f}")   # √((9 + 16) / 2)
    3.5355
    """

    name = "Root Mean Squared Error"
    description = "root of the squared distance of predictions from their targets, mean over rows and values"

    def compute(self, state: WeightedMean) -> Array:
        """Return a float32 scalar; NaN without rows."""
        return jnp.sqrt(state.value())


class MeanAbsolutePercentageError(MeanMetric):
    """`Σ|prediction - target| / |target| / n` over rows and their values, as a fraction: 0.1 is ten percent.

    A counted target of 0 makes it NaN (scikit-learn returns a large number), so mask such rows. The mask is `[batch]`,
    or has more of the first axes.

    Source: `sklearn.metrics.mean_absolute_percentage_error`.

    >>> from learner.steps.outputs import RegressionOutput
    >>> out = RegressionOutput.from_predictions(jnp.array([9.0, 30.0]), jnp.array([10.0, 20.0]))
    >>> metric, info = MeanAbsolutePercentageError(), Info(step=jnp.int32(0), weight=jnp.float32(2))
    >>> print(f"{metric.compute(metric.update(metric.init(), out, info)):.4f}")   # (0.1 + 0.5) / 2
    0.3000
    """

    name = "Mean Absolute Percentage Error"
    higher_is_better = False
    unit = ""
    description = "distance of predictions from their targets as a fraction of the targets, mean over rows and values"
    fields = ("predictions", "targets")
    undefined = f"a target is 0, or {NO_NUMBER}"

    def update(self, state: WeightedMean, output: Any, info: Info) -> WeightedMean:
        """Add a batch: `predictions` and `targets` `[batch, ...]`."""
        distance = jnp.abs(_difference(self.name, output))
        size = jnp.abs(jnp.asarray(output.targets).astype(distance.dtype))
        row_errors = distance / jnp.where(size > 0, size, jnp.nan)
        return _add_rows(self.name, state, output, row_errors)


class QuantileLoss(MeanMetric):
    """The distance of predictions from the q-quantile of their targets: `Σ max(q (t - p), (q - 1) (t - p)) / n`.

    It is also called the pinball loss, and has the unit of the targets. For q = 0.5 it is half the mean absolute error.
    Its name includes q: `Quantile Loss 0.9`. The mask is `[batch]`, or has more of the first axes.

    Args:
      q: the quantile, between 0 and 1.

    Raises:
      LearnerError: `q` is not between 0 and 1.

    Source: Koenker, Bassett, "Regression quantiles", 1978; `sklearn.metrics.mean_pinball_loss`.

    >>> from learner.steps.outputs import RegressionOutput
    >>> out = RegressionOutput.from_predictions(jnp.array([1.0, 2.0]), jnp.array([3.0, 1.0]))
    >>> metric, info = QuantileLoss(0.9), Info(step=jnp.int32(0), weight=jnp.float32(2))
    >>> print(f"{metric.name}: {metric.compute(metric.update(metric.init(), out, info)):.4f}")   # (0.9·2 + 0.1·1) / 2
    Quantile Loss 0.9: 0.9500
    """

    higher_is_better = False
    unit = ""
    description = "how far predictions are from a quantile of their targets, mean over rows and values"
    fields = ("predictions", "targets")
    undefined = NO_NUMBER

    def __init__(self, q: float = 0.5) -> None:
        if not is_real(q) or not 0 < q < 1:
            raise LearnerError(
                f"q of QuantileLoss is {q!r}; it needs a quantile between 0 and 1", code="metric-quantile-value", q=q
            )
        self.name = f"Quantile Loss {q:g}"
        self._q = float(q)

    def update(self, state: WeightedMean, output: Any, info: Info) -> WeightedMean:
        """Add a batch: `predictions` and `targets` `[batch, ...]`."""
        over = _difference(self.name, output)
        return _add_rows(self.name, state, output, jnp.maximum(-self._q * over, (1 - self._q) * over))


def _difference(name: str, output: Any) -> Array:
    predictions, targets = jnp.asarray(output.predictions), jnp.asarray(output.targets)
    if predictions.ndim < 1 or predictions.shape != targets.shape:
        raise LearnerError(
            f"{name} got {type(output).__name__} with predictions of shape {predictions.shape} and targets of shape "
            f"{targets.shape}; they must be the same, [batch, ...]",
            code="metric-regression-shapes",
            name=name,
        )
    predictions, targets = wide(predictions, targets)
    return predictions - targets


def _add_rows(name: str, state: WeightedMean, output: Any, row_errors: Array) -> WeightedMean:
    """Add the mean of each row, weighted by its number of counted values, so that every value counts the same."""
    rows, values = row_errors.shape[0], math.prod(row_errors.shape[1:])
    kept = kept_rows(name, output, row_errors.shape).reshape(rows, values)
    row_errors = jnp.where(kept, row_errors.reshape(rows, values), 0)
    weights = kept.sum(-1, dtype=jnp.int32).astype(jnp.float32)
    return state.add(row_errors.sum(-1) / jnp.maximum(weights, 1).astype(row_errors.dtype), weights)
