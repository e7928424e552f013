"""Schedules that change from one rate to another, or decay without end."""

import dataclasses

import jax.numpy as jnp
import optax

from learner.schedules.base import Array, EndingSchedule, RunLength, Schedule, ScheduleFn, Unit, between
from learner.schedules.checks import UNITS, Checks


@dataclasses.dataclass(frozen=True, repr=False)
class Constant(Schedule):
    """A constant rate (`optax.constant_schedule`).

    Args:
      value: the rate.

    >>> float(Constant(0.5)(1000))
    0.5
    """

    value: float

    def __post_init__(self) -> None:
        """Raise `LearnerError` for a wrong learning rate."""
        Checks(self).rates("value").raise_problems()

    def steps(self, run: RunLength) -> int:
        """See `Schedule`."""
        return 0

    def function(self, run: RunLength) -> ScheduleFn:
        """See `Schedule`."""
        rate: ScheduleFn = optax.constant_schedule(self.value)
        return rate


@dataclasses.dataclass(frozen=True, repr=False)
class _Over(EndingSchedule):
    """A change from `first` to `last` over some steps, then constant `last`."""

    first: float
    _: dataclasses.KW_ONLY  # of optax's schedules, the second argument is the number of steps
    last: float = 0.0
    over: float | None = None
    unit: Unit = "steps"

    def __post_init__(self) -> None:
        """Raise `LearnerError` for a wrong learning rate or length."""
        self._checks().raise_problems()

    def _checks(self) -> Checks:
        checks = Checks(self).rates("first", "last").one_of("unit", UNITS)
        return checks.lengths("over", optional=True)


@dataclasses.dataclass(frozen=True, repr=False)
class Linear(_Over):
    """A linear change (`optax.linear_schedule`): `first + (last - first) * step / over`, then `last`.

    Args:
      first: the rate of the first step.
      last: the rate after `over`.
      over: the length; `None`: to the end of the run, or of its part of a `Sequence`.
      unit: the unit of `over`: `"steps"` of the optimizer, `"epochs"`, or a `"fraction"` of the run.

    >>> warmup = Linear(0.0, 0.1, over=4)
    >>> [round(float(warmup(step)), 4) for step in (0, 1, 4, 9)]
    [0.0, 0.025, 0.1, 0.1]
    """

    last: float = 0.0

    def function(self, run: RunLength) -> ScheduleFn:
        """See `Schedule`."""
        steps = self.steps(run)
        return between(optax.linear_schedule(self.first, self.last, steps), self.first, steps, self.last)


@dataclasses.dataclass(frozen=True, repr=False)
class Polynomial(_Over):
    """A polynomial decay (`optax.polynomial_schedule`):
    `last + (first - last) * (1 - step / over) ** power`, then `last`.

    Args:
      first: the rate of the first step.
      last: the rate after `over`.
      over: the length; `None`: to the end of the run, or of its part of a `Sequence`.
      unit: the unit of `over`: `"steps"` of the optimizer, `"epochs"`, or a `"fraction"` of the run.
      power: the exponent, greater than 0; 1 is `Linear`.

    >>> [round(float(Polynomial(0.4, over=4, power=2.0)(step)), 4) for step in (0, 2, 4, 9)]
    [0.4, 0.1, 0.0, 0.0]
    """

    _: dataclasses.KW_ONLY
    power: float = 2.0

    def _checks(self) -> Checks:
        return super()._checks().positive("power")

    def function(self, run: RunLength) -> ScheduleFn:
        """See `Schedule`."""
        steps = self.steps(run)
        function = optax.polynomial_schedule(self.first, self.last, self.power, steps)
        return between(function, self.first, steps, self.last)


@dataclasses.dataclass(frozen=True, repr=False)
class Cosine(_Over):
    """A cosine decay (`optax.cosine_decay_schedule`; Loshchilov and Hutter 2017, arXiv:1608.03983):
    `last + (first - last) * (1 + cos(pi * step / over)) / 2`, then `last`.

    Args:
      first: the rate of the first step, greater than 0.
      last: the rate after `over`.
      over: the length; `None`: to the end of the run, or of its part of a `Sequence`.
      unit: the unit of `over`: `"steps"` of the optimizer, `"epochs"`, or a `"fraction"` of the run.

    >>> [round(float(Cosine(0.2, over=100)(step)), 4) for step in (0, 50, 100, 200)]
    [0.2, 0.1, 0.0, 0.0]
    """

    def _checks(self) -> Checks:
        return super()._checks().positive("first") if self.first == 0 else super()._checks()

    def function(self, run: RunLength) -> ScheduleFn:
        """See `Schedule`."""
        steps = self.steps(run)
        function = optax.cosine_decay_schedule(self.first, steps, alpha=self.last / self.first)
        return between(function, self.first, steps, self.last)


@dataclasses.dataclass(frozen=True, repr=False)
class Exponential(Schedule):
    """A smooth decay by `factor` in every `every` steps (`optax.exponential_decay`):
    `first * factor ** (step / every)`. See `Step` for the staircase version.

    Args:
      first: the rate of the first step.
      factor: the factor, greater than 0; above 1 the rate rises.
      every: the length in which the rate changes by `factor`; `None`: to the end of the run, or of its part of a
        `Sequence`.
      unit: the unit of `every`: `"steps"` of the optimizer, `"epochs"`, or a `"fraction"` of the run.
      floor: the lowest rate.

    >>> [round(float(Exponential(0.8, 0.5, every=10)(step)), 4) for step in (0, 10, 20)]
    [0.8, 0.4, 0.2]
    """

    first: float
    factor: float
    every: float | None = None
    unit: Unit = "steps"
    floor: float = 0.0

    def __post_init__(self) -> None:
        """Raise `LearnerError` for a wrong learning rate, factor or length."""
        checks = Checks(self).rates("first", "floor").positive("factor")
        checks.one_of("unit", UNITS).lengths("every", optional=True).raise_problems()

    def function(self, run: RunLength) -> ScheduleFn:
        """See `Schedule`."""
        every = run.in_steps(self.every, self.unit, "every")
        function = optax.exponential_decay(self.first, every, self.factor)
        return lambda step: jnp.maximum(function(step), self.floor)


@dataclasses.dataclass(frozen=True, repr=False)
class InverseSqrt(Schedule):
    """A linear warmup from `first` to `peak`, then a decay with the root of the step: `peak * sqrt(warmup / step)` from
    the step `warmup` on. It has no end, so runs can be extended.

    Args:
      peak: the highest rate, at the step `warmup`.
      warmup: the length of the warmup.
      unit: the unit of `warmup`: `"steps"` of the optimizer, `"epochs"`, or a `"fraction"` of the run.
      first: the rate of the first step.

    >>> [round(float(InverseSqrt(0.4, warmup=100)(step)), 4) for step in (0, 50, 100, 400)]
    [0.0, 0.2, 0.4, 0.2]
    """

    peak: float
    warmup: float
    unit: Unit = "steps"
    first: float = 0.0

    def __post_init__(self) -> None:
        """Raise `LearnerError` for a wrong learning rate or length."""
        checks = Checks(self).rates("peak", "first").one_of("unit", UNITS)
        checks.lengths("warmup").raise_problems()

    def function(self, run: RunLength) -> ScheduleFn:
        """See `Schedule`."""
        warmup = run.in_steps(self.warmup, self.unit, "warmup")
        rising = between(optax.linear_schedule(self.first, self.peak, warmup), self.first, warmup, self.peak)

        def falling(since: Array) -> Array:
            return self.peak * jnp.sqrt(warmup / (warmup + jnp.maximum(since, 0)))

        rate: ScheduleFn = optax.join_schedules([rising, falling], [warmup])
        return rate


@dataclasses.dataclass(frozen=True, repr=False)
class Noam(Schedule):
    """The schedule of "Attention is all you need" (Vaswani et al. 2017, arXiv:1706.03762, section 5.3):
    `scale * width ** -0.5 * min(n ** -0.5, n * warmup ** -1.5)`, where the first step is n = 1.

    Args:
      width: the width of the model (`d_model`).
      warmup: the length of the warmup.
      unit: the unit of `warmup`: `"steps"` of the optimizer, `"epochs"`, or a `"fraction"` of the run.
      scale: a factor of all rates.

    >>> noam = Noam(512, warmup=4000)
    >>> [f"{noam(step):.3g}" for step in (0, 3999, 15999)]
    ['1.75e-07', '0.000699', '0.000349']
    """

    width: int
    warmup: float = 4000
    unit: Unit = "steps"
    scale: float = 1.0

    def __post_init__(self) -> None:
        """Raise `LearnerError` for a wrong width or length."""
        checks = Checks(self).positive("width", "scale").one_of("unit", UNITS)
        checks.lengths("warmup").raise_problems()

    def function(self, run: RunLength) -> ScheduleFn:
        """See `Schedule`."""
        warmup = run.in_steps(self.warmup, self.unit, "warmup")

        def rate(step: Array) -> Array:
            n = (step + 1).astype(jnp.float32)
            return self.scale * self.width**-0.5 * jnp.minimum(n**-0.5, n * warmup**-1.5)

        return rate
