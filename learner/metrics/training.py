"""Metrics of the run itself: its rate, its gradients, its speed."""

import dataclasses
import math
from typing import Any, Self

import jax
import jax.numpy as jnp

from learner.errors import LearnerError
from learner.metrics.base import Array, HostMetric, Info, Mean, Metric
from learner.metrics.means import MeanMetric


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Latest:
    """The value at the last step: float32 and int32 scalars. No step is -1."""

    step: Array
    value: Array

    def merge(self, other: Self) -> Self:
        newer = other.step > self.step
        return type(self)(jnp.where(newer, other.step, self.step), jnp.where(newer, other.value, self.value))


class LearningRate(Metric):
    """The rate that the step used, schedule and scale included. The value of an epoch is that of its last step.

    It has no unit and no direction. Only training has a rate.

    >>> metric = LearningRate()
    >>> first = Info(step=jnp.int32(0), weight=jnp.float32(32), learning_rate=jnp.float32(0.5))
    >>> second = Info(step=jnp.int32(1), weight=jnp.float32(32), learning_rate=jnp.float32(0.25))
    >>> print(metric.compute(metric.update(metric.update(metric.init(), None, first), None, second)))
    0.25
    """

    name = "Learning Rate"
    higher_is_better = None
    unit = ""
    description = "the rate that the optimizer step used; of an epoch: its last"
    splits = ("train",)
    per_step = True

    def init(self) -> _Latest:
        """No step."""
        return _Latest(jnp.full((), -1, jnp.int32), jnp.full((), jnp.nan, jnp.float32))

    def update(self, state: _Latest, output: Any, info: Info) -> _Latest:
        """Takes the step's `info.learning_rate`."""
        rate = _known(self.name, "learning_rate", info)
        return state.merge(_Latest(jnp.asarray(info.step, jnp.int32), rate))

    def merge(self, a: _Latest, b: _Latest) -> _Latest:
        """The later one of both."""
        return a.merge(b)

    def compute(self, state: _Latest) -> Array:
        """float32 scalar; NaN without steps."""
        return state.value


class GradientNorm(MeanMetric):
    """The global norm of the gradients, `√Σg²` over all parameters, before the optimizer clips or scales them.

    It is that of the whole optimizer step, of the mean gradient over its micro-batches. The value of an epoch is the
    mean over its steps; one of weight 0 does not count. It has no direction. Only training has gradients.

    >>> metric = GradientNorm()
    >>> info = Info(step=jnp.int32(0), weight=jnp.float32(32), grad_norm=jnp.float32(1.5))
    >>> print(metric.compute(metric.update(metric.init(), None, info)))
    1.5
    """

    name = "Gradient Norm"
    higher_is_better = None
    unit = ""
    description = "global norm of the gradients of an optimizer step, mean over steps"
    splits = ("train",)
    per_step = True

    def update(self, state: Mean, output: Any, info: Info) -> Mean:
        """Takes the step's `info.grad_norm`."""
        counts = jnp.asarray(info.weight, jnp.float32) > 0
        return state.add(_known(self.name, "grad_norm", info), counts)


class IterationSpeed(HostMetric):
    """Optimizer steps (in validation: batches) per second. Of an epoch: all of its steps over all of their time.

    >>> speed = IterationSpeed()
    >>> speed.update(steps=30, seconds=0.5)
    60.0
    >>> speed.update(steps=30, seconds=1.5)
    20.0
    >>> speed.compute()
    30.0
    """

    name = "Iteration Speed"
    higher_is_better = True
    unit = "steps/s"
    description = "optimizer steps (in validation: batches) per second"

    def __init__(self) -> None:
        self.reset()

    def update(self, steps: int, seconds: float) -> float:
        """Steps per second of this dispatch; NaN if the clock did not move."""
        self._steps += steps
        self._seconds += seconds
        return _per_second(steps, seconds)

    def compute(self) -> float:
        """Steps per second of the epoch so far; NaN before the first step."""
        return _per_second(self._steps, self._seconds)

    def reset(self) -> None:
        """A new epoch begins."""
        self._steps = 0
        self._seconds = 0.0


def _per_second(steps: int, seconds: float) -> float:
    return steps / seconds if seconds > 0 else math.nan


def _known(name: str, what: str, info: Info) -> Array:
    value = getattr(info, what)
    if value is None:
        raise LearnerError(
            f"{name} needs `info.{what}`, which is there in training only; register it with metric_train"
        )
    return jnp.asarray(value, jnp.float32)
