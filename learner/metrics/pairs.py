"""The base class of metrics of moments: pairs of target and prediction, for each of several outputs."""

import abc
from collections.abc import Hashable
from typing import Any

import jax.numpy as jnp

from learner.errors import LearnerError
from learner.metrics.base import Array, Info, MergingMetric
from learner.metrics.class_arguments import is_integral, metric_name, refuse
from learner.metrics.moments import Moments
from learner.metrics.rows import kept_rows, wide


class PairMetric(MergingMetric, abc.ABC):
    """A metric of the moments of targets (x) and of predictions or errors (y).

    Args:
      outputs: the number of values per row; the metric's value is the unweighted mean over the outputs.

    Raises:
      LearnerError: `outputs` is below 1; when updated with another number of outputs, or with shapes that differ.
    """

    base = ""
    unit = ""
    higher_is_better = True
    fields = ("predictions", "targets")
    undefined = (
        "the targets or the predictions are constant, their distances have no squares in float32, or one of them that "
        "counts is not a finite number"
    )

    def __init__(self, outputs: int = 1) -> None:
        refuse(type(self).__name__, [outputs_problem(type(self).__name__, outputs)])
        self.name = metric_name(self.base)
        self._outputs = int(outputs)

    @abc.abstractmethod
    def value(self, moments: Moments) -> Array:
        """Return float32 `[outputs]`; NaN or infinite where it is undefined."""

    def second(self, predictions: Array, targets: Array) -> Array:
        """Return the second variable beside the targets: the predictions."""
        return predictions

    @property
    def state_key(self) -> Hashable:
        """See `Metric.state_key`."""
        second = type(self).second  # a user's override may read other attributes
        return (self._outputs, second) if second.__module__.startswith("learner.metrics.") else None

    def init(self) -> Moments:
        """Return the state of no rows."""
        return Moments.zero(self._outputs)

    def update(self, state: Moments, output: Any, info: Info) -> Moments:
        """Add a batch: `predictions` and `targets` `[batch, ..., outputs]`, or `[batch]` for one output."""
        predictions, targets, counted = read_pairs(self.name, output, self._outputs)
        x, y = targets, self.second(predictions, targets)
        flat = (-1, self._outputs)
        return state.merge(Moments.of(x.reshape(flat), y.reshape(flat), counted.reshape(flat)))

    def compute(self, state: Moments) -> Array:
        """Return a float32 scalar; NaN if it is undefined for one of the outputs."""
        values = self.value(state)
        return jnp.where((state.count > 0).all() & jnp.isfinite(values).all(), values.mean(), jnp.nan)


def read_pairs(name: str, output: Any, outputs: int) -> tuple[Array, Array, Array]:
    """Return predictions and targets, `wide`, and the bool mask of the values that count: `[batch, ..., outputs]`.

    Raises:
      LearnerError: the shapes differ, or rows have another number of values.
    """
    predictions, targets = jnp.asarray(output.predictions), jnp.asarray(output.targets)
    message = (
        f"{name} got {type(output).__name__} with predictions of shape {predictions.shape} and targets of shape "
        f"{targets.shape}"
    )
    if predictions.ndim < 1 or predictions.shape != targets.shape:
        raise LearnerError(f"{message}; they must be the same, [batch, ...]", code="metric-pair-shapes")
    counted = kept_rows(name, output, targets.shape)
    if outputs == 1 and predictions.ndim == 1:
        predictions, targets, counted = (x[:, None] for x in (predictions, targets, counted))
    if predictions.ndim < 2 or predictions.shape[-1] != outputs:
        last = predictions.shape[-1] if predictions.ndim > 1 else 1
        raise LearnerError(
            f"{message}; it has outputs={outputs}, but each row has {last}: give outputs={last}",
            code="metric-outputs-count",
        )
    predictions, targets = wide(predictions, targets)
    return predictions, targets, counted


def outputs_problem(what: str, outputs: Any) -> str | None:
    """Return the problem with a number of outputs, if any."""
    return None if is_integral(outputs) and outputs >= 1 else f"outputs of {what} is {outputs!r}; it needs 1 or more"
