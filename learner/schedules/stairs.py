"""Staircase schedules."""

import dataclasses
from collections.abc import Sequence

import optax

from learner.schedules.base import RunLength, Schedule, ScheduleFn, Unit, milestones_in_steps
from learner.schedules.checks import UNITS, Checks, check_milestones


@dataclasses.dataclass(frozen=True, repr=False)
class Step(Schedule):
    """A rate that is multiplied by `factor` after every `every` steps: `first * factor ** (step // every)`
    (`optax.exponential_decay` of the number of the stair: a compiled division by `every` would change the rate a step
    late at some stairs).

    Args:
      first: the rate of the first stair.
      factor: the factor of each stair, greater than 0.
      every: the length of a stair.
      unit: the unit of `every`: `"steps"` of the optimizer, `"epochs"`, or a `"fraction"` of the run.

    >>> [round(float(Step(0.4, 0.5, every=10)(step)), 4) for step in (0, 9, 10, 20)]
    [0.4, 0.4, 0.2, 0.1]
    """

    first: float
    factor: float
    every: float
    unit: Unit = "steps"

    def __post_init__(self) -> None:
        """Raise `LearnerError` for a wrong learning rate, factor or length."""
        checks = Checks(self).rates("first").positive("factor")
        checks.one_of("unit", UNITS).lengths("every").raise_problems()

    def function(self, run: RunLength) -> ScheduleFn:
        """See `Schedule`."""
        every = run.in_steps(self.every, self.unit, "every")
        by_stair = optax.exponential_decay(self.first, 1, self.factor)
        return lambda step: by_stair(step // every)


@dataclasses.dataclass(frozen=True, repr=False)
class MultiStep(Schedule):
    """A rate that is multiplied by `factor` at each milestone (`optax.piecewise_constant_schedule`). The step at a
    milestone has the new rate.

    Args:
      first: the rate before the first milestone.
      milestones: the points at which the rate changes, in order.
      factor: the factor of each change, 0 or more.
      unit: the unit of `milestones`: `"steps"` of the optimizer, `"epochs"`, or a `"fraction"` of the run.

    >>> [round(float(MultiStep(0.4, [10, 15], 0.5)(step)), 4) for step in (9, 10, 14, 15)]
    [0.4, 0.2, 0.2, 0.1]
    """

    first: float
    milestones: Sequence[float]
    factor: float = 0.1
    unit: Unit = "steps"

    def __post_init__(self) -> None:
        """Raise `LearnerError` for a wrong learning rate or factor, and for milestones out of order."""
        checks = Checks(self).rates("first", "factor").one_of("unit", UNITS)
        check_milestones(checks, self.milestones).raise_problems()

    def function(self, run: RunLength) -> ScheduleFn:
        """See `Schedule`."""
        places = milestones_in_steps(self.milestones, self.unit, run)
        rate: ScheduleFn = optax.piecewise_constant_schedule(self.first, dict.fromkeys(places, self.factor))
        return rate

    def not_reached(self, run: RunLength) -> list[str]:
        """See `Schedule`."""
        places = enumerate(milestones_in_steps(self.milestones, self.unit, run))
        late = [(number, step) for number, step in places if run.own is not None and step >= run.own]
        return [
            f"milestones[{number}] of {self!r} is not reached: it is step {step}, and there are {run.own} steps"
            for number, step in late
        ]
