"""Schedules that go down in stairs."""

import dataclasses
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import optax

from learner.errors import LearnerError
from learner.schedules.base import RunLength, Schedule, ScheduleFn, Unit
from learner.schedules.checks import UNITS, Checks


@dataclasses.dataclass(frozen=True, repr=False)
class Step(Schedule):
    """The rate times `factor` after every so many steps: `first * factor ** (step // every)` (`optax.exponential_decay`
    of the number of the stair: a compiled division by `every` would take some stairs a step late).

    Args:
      first: the rate of the first stair.
      factor: greater than 0.
      every: how long a stair is.
      unit: what `every` counts: `"steps"` of the optimizer, `"epochs"`, or a `"fraction"` of the run.

    >>> [round(float(Step(0.4, 0.5, every=10)(step)), 4) for step in (0, 9, 10, 20)]
    [0.4, 0.4, 0.2, 0.1]
    """

    first: float
    factor: float
    every: float
    unit: Unit = "steps"

    def __post_init__(self) -> None:
        """Refuses what is no rate, factor or length."""
        checks = Checks(self).rates("first").numbers("factor", above=0.0)
        checks.one_of("unit", UNITS).lengths("every").done()

    def function(self, run: RunLength) -> ScheduleFn:
        """See `Schedule`."""
        every = run.in_steps(self.every, self.unit, "every")
        by_stair = optax.exponential_decay(self.first, 1, self.factor)
        return lambda step: by_stair(step // every)


@dataclasses.dataclass(frozen=True, repr=False)
class MultiStep(Schedule):
    """The rate times `factor` at each milestone (`optax.piecewise_constant_schedule`). The step at a milestone has the
    new rate.

    Args:
      first: the rate before the first milestone.
      milestones: where the rate changes, in order.
      factor: of the rate, 0 or more.
      unit: what `milestones` count: `"steps"` of the optimizer, `"epochs"`, or a `"fraction"` of the run.

    >>> [round(float(MultiStep(0.4, [10, 15], 0.5)(step)), 4) for step in (9, 10, 14, 15)]
    [0.4, 0.2, 0.2, 0.1]
    """

    first: float
    milestones: Sequence[float]
    factor: float = 0.1
    unit: Unit = "steps"

    def __post_init__(self) -> None:
        """Refuses what is no rate or factor, and milestones out of order."""
        checks = Checks(self).rates("first").numbers("factor", least=0.0).one_of("unit", UNITS)
        check_milestones(checks, self.milestones).done()

    def function(self, run: RunLength) -> ScheduleFn:
        """See `Schedule`."""
        places = milestones_in_steps(self.milestones, self.unit, run)
        rate: ScheduleFn = optax.piecewise_constant_schedule(self.first, dict.fromkeys(places, self.factor))
        return rate

    def not_reached(self, run: RunLength) -> list[str]:
        """See `Schedule`."""
        places = enumerate(milestones_in_steps(self.milestones, self.unit, run))
        late = [(number, place) for number, place in places if run.own is not None and place >= run.own]
        return [
            f"milestones[{number}] of {self!r} is not reached: it is step {place}, and there are {run.own} steps"
            for number, place in late
        ]


def check_milestones(checks: Checks, milestones: Any) -> Checks:
    """Milestones are lengths from the beginning, each later than the one before."""
    if isinstance(milestones, str) or not isinstance(milestones, Sequence) or not milestones:
        return checks.add(f"milestones is {milestones!r}; it needs a list of one or more, such as [100, 200]")
    for number, milestone in enumerate(milestones):
        checks.length(f"milestones[{number}]", milestone)
    for number, (before, after) in enumerate(pairwise(milestones), 1):
        if isinstance(before, int | float) and isinstance(after, int | float) and after <= before:
            checks.add(
                f"milestones are out of order: milestones[{number}] is {after:g}, and the one before it is {before:g}; "
                "each counts from the beginning, so each has to be greater than the one before"
            )
    return checks


def milestones_in_steps(milestones: Sequence[float], unit: Unit, run: RunLength) -> list[int]:
    """The milestones in optimizer steps.

    Raises:
      LearnerError: two of them are the same step of this run.

    >>> milestones_in_steps([0.5, 0.75], "fraction", RunLength(100))
    [50, 75]
    """
    places = [run.in_steps(milestone, unit, f"milestones[{i}]") for i, milestone in enumerate(milestones)]
    for (before, first), (after, second) in pairwise(zip(milestones, places, strict=True)):
        if second <= first:
            raise LearnerError(
                f"the milestones {before:g} and {after:g} ({unit}) are both step {first} of this run: it is too short "
                "for both",
                code="schedule-milestones-coincide",
                unit=unit,
            )
    return places
