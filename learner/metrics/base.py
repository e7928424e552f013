"""Metrics: numbers (or texts) about a split, exact over the whole split.

There are three kinds.

- `Metric`: pure functions on a small state, traced into the training program, so that it costs no round trip to the
  host.
- `CollectingMetric`: needs every prediction at once (a median, a ranking). Its rows are collected, and it is computed
  on the host at the end of the split.
- `HostMetric`: measures what the program cannot (time, memory). It is updated by events, outside the program.

A custom metric takes ten lines:

    class MeanAbsoluteError(Metric):
        name = "Mean Absolute Error"
        higher_is_better = False
        fields = ("predictions", "targets")

        def init(self):
            return WeightedMean.zero()

        def update(self, state, output, info):
            return state.add(jnp.abs(output.predictions - output.targets), rows_mask(output))

        def merge(self, a, b):
            return a.merge(b)

        def compute(self, state):
            return state.value()
"""

import abc
import dataclasses
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from learner.errors import LearnerError

Array = Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Info:
    """Information about a step that a metric may use besides the output.

    Attributes:
      step: int32 scalar, the number of optimizer steps before this one.
      weight: float32 scalar, the weight of the loss of this (micro-)batch, or of this step for `per_step` metrics: the
        output's `weight`, or the number of rows if it has none.
      learning_rate: float32 scalar, the learning rate of this step; `None` in validation.
      grad_norm: float32 scalar, the global norm of the step's gradients. It is available only after all micro-batches
        of the step, so only to metrics with `per_step = True`; `None` for others and in validation.
      update_norm: float32 scalar, the global norm of the change of the parameters in this step. `None` unless a
        `per_step` metric of the split `requires` it.
      param_norm: float32 scalar, the global norm of the parameters after the step. `None` as for `update_norm`.
    """

    step: Array
    weight: Array
    learning_rate: Array | None = None
    grad_norm: Array | None = None
    update_norm: Array | None = None
    param_norm: Array | None = None


class MetricBase:
    """The common part of all kinds of metrics.

    Attributes:
      name: the name in logs, monitors (`valid/<name>`) and files. It is unique within a split; a metric with
        parameters includes them in its name (`Top-5 Accuracy`).
      higher_is_better: the direction, or None for a metric without one (a learning rate).
      unit: the unit of the value, such as `"%"`, or empty.
      description: a one-line description for users.
      numeric: True if the value is one number. Other values are text: they are shown and logged at the end of a split
        and cannot be plotted or monitored.
      splits: the kinds of split in which the metric makes sense.
      undefined: a text that says when the value is NaN although the loss is a number. A run logs it once.
      inner: the metrics that this metric wraps or combines; empty for most.
    """

    name: str = ""
    higher_is_better: bool | None = None
    unit: str = ""
    description: str = ""
    numeric: bool = True
    splits: tuple[str, ...] = ("train", "valid")
    undefined: str = "nothing that it counts was there"
    inner: tuple["MetricBase", ...] = ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    def text(self, value: Any) -> str:
        """Format the value; metrics that are not numeric override it. `value` is on the host."""
        return f"{float(value):.6g}"

    def arrays(self, value: Any) -> Any:
        """Return the value as NumPy arrays, for the `arrays` of `Learner.evaluate`'s result. `value` is on the host."""
        return jax.tree.map(np.asarray, value)


def all_within(metric: MetricBase) -> Iterator[MetricBase]:
    """Return a metric and all metrics inside it, at any depth."""
    yield metric
    for part in metric.inner:
        yield from all_within(part)


class Metric(MetricBase, abc.ABC):
    """A metric as pure functions on a state, traced into the program.

    The state is any pytree of arrays of fixed shapes. The value logged for a step is
    `compute(update(init(), output, info))` (updated once for each micro-batch of the step); the value of an epoch is
    `compute` of all states merged. Count with integers, and sum with `WeightedMean` or `CompensatedSum`, whose errors
    do not accumulate.

    Attributes:
      fields: the fields of the step's output that it reads. A missing field is an error before compilation.
      per_step: update once per optimizer step, after the parameters' update, with `output=None` and the step's `info`,
        rather than once per micro-batch. For metrics of the step itself: the learning rate, the gradient norm.
      requires: the fields of `Info` that cost time and are computed only if a metric requires them: `update_norm`,
        `param_norm`.
    """

    fields: tuple[str, ...] = ()
    per_step: bool = False
    requires: tuple[str, ...] = ()

    @property
    def state_key(self) -> Hashable:
        """The settings that the state depends on, or None. Metrics with equal keys and the same methods `init`,
        `update` and `merge` share one state: Precision, Recall and FBeta of the same classes count once.
        """
        return None

    @abc.abstractmethod
    def init(self) -> Any:
        """Return the state of no rows: a pytree of arrays."""

    @abc.abstractmethod
    def update(self, state: Any, output: Any, info: Info) -> Any:
        """Return the state after the rows of one (micro-)batch."""

    @abc.abstractmethod
    def merge(self, a: Any, b: Any) -> Any:
        """Merge two states."""

    @abc.abstractmethod
    def compute(self, state: Any) -> Any:
        """Return the value: a float32 scalar, or any pytree of arrays when `numeric` is False. NaN where it is
        undefined.
        """


class MergingMetric(Metric, abc.ABC):
    """A metric whose state has a method `merge`, as all states of this package have."""

    def merge(self, a: Any, b: Any) -> Any:
        """Return `a.merge(b)`."""
        return a.merge(b)


class CollectingMetric(MetricBase, abc.ABC):
    """A metric that needs every row at once. It has no value per step.

    Attributes:
      fields: as in `Metric`.
      pads_rows: accept batches of several lengths: `pad_value` pads the collected rows to the longest. For metrics that
        collect the lengths, too, or that tell the padding from the rest. A metric around others overrides `paddings`.
      pad_value: the number that pads them. Zeros pad booleans and unsigned numbers, such as masks.
    """

    fields: tuple[str, ...] = ()
    pads_rows: bool = False
    pad_value: int = 0

    @abc.abstractmethod
    def collect(self, output: Any) -> Any:
        """Return the values to collect from a batch, a pytree of arrays `[rows, ...]`. It is traced."""

    @abc.abstractmethod
    def compute(self, rows: Any) -> Any:
        """Return the value from all rows of the split, NumPy arrays `[all rows, ...]` in the loader's order. It runs on
        the host.
        """

    def paddings(self, rows: Any) -> list[int | None]:
        """Return the number that pads each leaf of `rows`, and None for a leaf whose batches have one shape."""
        return [self.pad_value if self.pads_rows else None] * len(jax.tree.leaves(rows))


@dataclasses.dataclass(frozen=True)
class StepWork:
    """The work of a training step and the devices that it runs on.

    Attributes:
      flops: a function that returns the floating-point operations of one optimizer step over all devices. It traces
        the step.
      rows: the rows of a step's batches, over all devices and processes.
      devices: the number of devices.
      device_kind: the kind of device, such as `NVIDIA H100 80GB HBM3`.
    """

    flops: Callable[[], int]
    rows: int
    devices: int
    device_kind: str


class HostMetric(MetricBase, abc.ABC):
    """A metric about the run itself, measured on the host. It never changes what is computed."""

    def on_start(self, work: StepWork) -> None:
        """Receive the description of the training steps before the first one. Most metrics do not need it."""
        return

    def on_batches(self, rows: int, weight: float) -> None:
        """Receive the number of rows and the sum of the weights (the denominators of the losses, such as tokens) of the
        steps that the next `update` covers. Most metrics need neither.
        """
        return

    @abc.abstractmethod
    def update(self, steps: int, seconds: float) -> float:
        """Return the value for the `steps` of a dispatch, which took `seconds`, excluding compilation and waiting for
        batches. It is called in order, once for each completed dispatch.
        """

    @abc.abstractmethod
    def compute(self) -> float:
        """Return the value of the epoch so far."""

    @abc.abstractmethod
    def reset(self) -> None:
        """Start a new epoch."""

    def get_state(self) -> Any:
        """Return the state to store in checkpoints, as JSON-compatible values, for a metric that continues its count
        after resuming. The default, None, stores nothing.
        """
        return None

    def set_state(self, state: Any) -> None:
        """Restore the result of `get_state`. It is called before the first `update`."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CompensatedSum:
    """A float32 sum that keeps the digits that plain addition would lose: two float32, 48 bits together.

    A plain float32 sum has a relative error of 5e-6 after 40 000 batches; this one is right to the last digit. The
    rounding error of `high` goes into `low`, which is carried over at each addition. Without that (Neumaier's form)
    `low` grows and loses digits too, and the sum is off by 6e-5 after a million additions.

    >>> s = CompensatedSum.zero()
    >>> for x in (1e8, 1.0, -1e8):
    ...     s = s.add(jnp.float32(x))
    >>> print(s.value())
    1.0
    """

    high: Array
    low: Array

    @classmethod
    def zero(cls, shape: tuple[int, ...] = ()) -> Self:
        """Return an empty sum of the given shape."""
        return cls(jnp.zeros(shape, jnp.float32), jnp.zeros(shape, jnp.float32))

    @classmethod
    def of(cls, x: Array) -> Self:
        """Return the sum of one value. It keeps 48 bits of a float64."""
        high = jnp.asarray(x, jnp.float32)
        if jnp.result_type(x) != jnp.float64:
            return cls(high, jnp.zeros_like(high))
        return cls(high, jnp.where(jnp.isfinite(high), x - high.astype(jnp.float64), 0).astype(jnp.float32))

    def add(self, x: Array) -> Self:
        """Add a float32 or float64 value of the sum's shape."""
        return self.merge(self.of(x))

    def merge(self, other: Self) -> Self:
        """Merge two sums."""
        a, b = self.high, other.high
        high = a + b
        lost = jnp.where(jnp.abs(a) >= jnp.abs(b), (a - high) + b, (b - high) + a)
        # Past the largest float32 the rounding error would be inf - inf.
        low = self.low + other.low + jnp.where(jnp.isfinite(high), lost, 0)
        total = high + low
        return type(self)(total, jnp.where(jnp.isfinite(total), low - (total - high), 0))

    def value(self) -> Array:
        """Return float32."""
        return self.high + self.low


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class WeightedMean:
    """A weighted mean, `Σ(value·weight) / Σweight`. A value of weight 0 does not count, even if it is NaN; a negative
    weight makes the mean NaN.

    >>> m = WeightedMean.zero().add(jnp.array([1.0, 5.0, jnp.nan]), jnp.array([1, 3, 0]))
    >>> print(m.value())
    4.0
    """

    total: CompensatedSum
    weight: CompensatedSum

    @classmethod
    def zero(cls) -> Self:
        """Return the mean of no values, which is NaN."""
        return cls(CompensatedSum.zero(), CompensatedSum.zero())

    def add(self, values: Array, weights: Array | None = None) -> Self:
        """Add `values` of any shape, with `weights` of that shape or of its leading axes. With None, each value of an
        array has weight 1. A scalar needs a weight: the number of rows that it averages.

        Raises:
          LearnerError: the weights have another shape, or a scalar has no weight.
        """
        values = jnp.asarray(values, jnp.float32)
        if weights is None and values.ndim == 0:
            raise LearnerError(
                "WeightedMean.add got a scalar without a weight, so that a batch of few rows would count as much as "
                "a full one: pass the number of rows that it averages, such as state.add(value, len(output.logits)), "
                "or rows_mask(output).sum() if the output has a mask",
                code="metric-scalar-weight",
            )
        if weights is None:
            return type(self)(self.total.add(values.sum()), self.weight.add(jnp.float32(values.size)))
        weights = jnp.asarray(weights, jnp.float32)
        if weights.shape != values.shape[: weights.ndim]:
            raise LearnerError(
                f"WeightedMean.add got values of shape {values.shape} and weights of shape {weights.shape}; the "
                "weights need the same shape, or the first of its axes",
                code="metric-weights-shape",
            )
        weights = jnp.broadcast_to(weights.reshape(weights.shape + (1,) * (values.ndim - weights.ndim)), values.shape)
        unweighted = jnp.where(weights < 0, jnp.nan, 0)
        return type(self)(
            self.total.add(jnp.where(weights > 0, values * weights, unweighted).sum()), self.weight.add(weights.sum())
        )

    def merge(self, other: Self) -> Self:
        """Merge two means."""
        return type(self)(self.total.merge(other.total), self.weight.merge(other.weight))

    def value(self) -> Array:
        """Return float32; NaN where the weights sum to 0."""
        weight = self.weight.value()
        return jnp.where(weight > 0, self.total.value() / jnp.where(weight > 0, weight, 1), jnp.nan)


def rows_mask(output: Any) -> Array | None:
    """Return the mask of the rows that count: the output's `mask` (`[batch]`, or `[batch, length]` for sequences) as
    bool, or None if it has none. Weights in the mask apply to the loss only: a metric counts each row once.

    >>> from learner.steps.outputs import RegressionOutput
    >>> weights = jnp.array([0.5, 0.0, 2.0])
    >>> rows_mask(RegressionOutput.from_predictions(jnp.ones(3), jnp.ones(3), mask=weights))
    Array([ True, False,  True], dtype=bool)
    """
    mask = getattr(output, "mask", None)
    return None if mask is None else mask.astype(bool)
