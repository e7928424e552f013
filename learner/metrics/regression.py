"""Metrics of numbers: how far predictions are from their targets."""

import math
from typing import Any

import jax.numpy as jnp

from learner.errors import LearnerError
from learner.metrics.base import Array, Info, Mean
from learner.metrics.means import MeanMetric
from learner.metrics.rows import kept_rows


class MeanAbsoluteError(MeanMetric):
    """`Σ|prediction - target| / n` over rows and their values, in the unit of the targets.

    The mask is `[batch]`, for predictions `[batch, ...]`: a masked row does not count, even when it is NaN.

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

    def update(self, state: Mean, output: Any, info: Info) -> Mean:
        """Adds a batch: `predictions` and `targets` `[batch, ...]`."""
        return _add_rows(self.name, state, output, jnp.abs(_difference(self.name, output)))


class MeanSquaredError(MeanMetric):
    """`Σ(prediction - target)² / n` over rows and their values, in the squared unit of the targets.

    The mask is `[batch]`, for predictions `[batch, ...]`: a masked row does not count, even when it is NaN.

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

    def update(self, state: Mean, output: Any, info: Info) -> Mean:
        """Adds a batch: `predictions` and `targets` `[batch, ...]`."""
        return _add_rows(self.name, state, output, jnp.square(_difference(self.name, output)))


def _difference(name: str, output: Any) -> Array:
    predictions, targets = jnp.asarray(output.predictions), jnp.asarray(output.targets)
    if predictions.ndim < 1 or predictions.shape != targets.shape:
        raise LearnerError(
            f"{name} got {type(output).__name__} with predictions of shape {predictions.shape} and targets of shape "
            f"{targets.shape}; they must be the same, [batch, ...]"
        )
    return predictions.astype(jnp.float32) - targets.astype(jnp.float32)


def _add_rows(name: str, state: Mean, output: Any, each: Array) -> Mean:
    """Adds the mean of each row, weighted by how many of its values count: so every value counts the same."""
    rows, values = each.shape[0], math.prod(each.shape[1:])
    kept = kept_rows(name, output, each.shape).reshape(rows, values)
    each = jnp.where(kept, each.reshape(rows, values), 0)
    weights = kept.sum(-1, dtype=jnp.int32).astype(jnp.float32)
    return state.add(each.sum(-1) / jnp.maximum(weights, 1), weights)
