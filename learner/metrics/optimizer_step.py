"""Metrics of the optimizer step: learning rate, gradients and parameters."""

import dataclasses
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp

from learner.errors import LearnerError
from learner.metrics.base import Array, Info, MergingMetric, WeightedMean
from learner.metrics.means import MeanMetric


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Latest:
    """The step and the value of the last step: int32 and float32 scalars. Step -1 means no step."""

    step: Array
    value: Array

    def merge(self, other: Self) -> Self:
        newer = other.step > self.step
        return type(self)(jnp.where(newer, other.step, self.step), jnp.where(newer, other.value, self.value))


class _LastStep(MergingMetric):
    """A property of a step, `info.<known>`. The value of an epoch is that of its last step."""

    splits = ("train",)
    per_step = True
    undefined = "what it shows is not a number, or there was no step"
    known: ClassVar[str]

    def init(self) -> _Latest:
        """Return the state before the first step."""
        return _Latest(jnp.full((), -1, jnp.int32), jnp.zeros((), jnp.float32))  # `jax.debug_nans` refuses a NaN here

    def update(self, state: _Latest, output: Any, info: Info) -> _Latest:
        """Take the property of the step from `info`."""
        return state.merge(_Latest(jnp.asarray(info.step, jnp.int32), _known(self.name, self.known, info)))

    def compute(self, state: _Latest) -> Array:
        """Return a float32 scalar; NaN without steps."""
        return jnp.where(state.step < 0, jnp.nan, state.value)


class LearningRate(_LastStep):
    """The learning rate of the step, including schedule and scale. The value of an epoch is that of its last step.

    A factor in an optimizer's own state, as `optax.contrib.reduce_on_plateau` or `prodigy` compute it, is not part of
    it. It has no unit and no direction. It is available in training only.

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
    known = "learning_rate"


class ParameterNorm(_LastStep):
    """The global norm of the parameters after the step, `√Σp²`. The value of an epoch is that of its last step.

    It covers the trained parameters, without frozen parameters and running statistics. It reads all parameters in each
    step, and costs nothing unless it is registered. It has no direction. It is available in training only.

    >>> metric = ParameterNorm()
    >>> info = Info(step=jnp.int32(0), weight=jnp.float32(32), param_norm=jnp.float32(4))
    >>> print(metric.compute(metric.update(metric.init(), None, info)))
    4.0
    """

    name = "Parameter Norm"
    higher_is_better = None
    unit = ""
    description = "global norm of the trained parameters after the step; of an epoch: after its last"
    known = "param_norm"
    requires = ("param_norm",)


class GradientNorm(MeanMetric):
    """The global norm of the gradients, `√Σg²` over all parameters, before the optimizer clips or scales them.

    It is the norm of the whole optimizer step's gradient, the mean over its micro-batches. The value of an epoch is the
    mean over its steps; a step of weight 0 does not count. It has no direction. It is available in training only.

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
    undefined = "no step had gradients that the learner knows of: update= keeps its own, and float16 skips an overflow"

    def update(self, state: WeightedMean, output: Any, info: Info) -> WeightedMean:
        """Take the step's `info.grad_norm`."""
        counts = jnp.asarray(info.weight, jnp.float32) > 0
        return state.add(_known(self.name, "grad_norm", info), counts)


class UpdateRatio(MeanMetric):
    """The size of a parameter update relative to the parameters: `√Σ(p - p₀)² / √Σp²`, with `p₀` before and `p` after
    the step.

    About 0.001 is usual; much less learns slowly, much more is unstable. It covers the trained parameters, as changed
    by the optimizer, including clipping, momentum, decay and learning rate. The value of an epoch is the mean over its
    steps; a step of weight 0, or one after which all parameters are 0, does not count. It reads all parameters in each
    step, and costs nothing unless it is registered. It has no direction. It is available in training only.

    >>> metric = UpdateRatio()
    >>> norms = {"update_norm": jnp.float32(0.5), "param_norm": jnp.float32(4)}
    >>> info = Info(step=jnp.int32(0), weight=jnp.float32(32), **norms)
    >>> print(metric.compute(metric.update(metric.init(), None, info)))
    0.125
    """

    name = "Update Ratio"
    higher_is_better = None
    unit = ""
    description = "norm of a step's update over the norm of the parameters, mean over steps"
    splits = ("train",)
    per_step = True
    requires = ("param_norm", "update_norm")
    undefined = "all of its steps left only zeros as parameters, or one left a NaN"

    def update(self, state: WeightedMean, output: Any, info: Info) -> WeightedMean:
        """Take the step's `info.update_norm` and `info.param_norm`."""
        update, norm = _known(self.name, "update_norm", info), _known(self.name, "param_norm", info)
        some = norm != 0
        counts = (jnp.asarray(info.weight, jnp.float32) > 0) & some
        return state.add(update / jnp.where(some, norm, 1), counts)


def _known(name: str, what: str, info: Info) -> Array:
    value = getattr(info, what)
    if value is None:
        raise LearnerError(
            f"{name} needs `info.{what}`, which exists only in training; register it with metric_train",
            code="metric-training-only",
            name=name,
        )
    return jnp.asarray(value, jnp.float32)
