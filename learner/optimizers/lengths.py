"""Schedules inside of an optimizer, in a run of a certain length: as the run's own, they learn it from `fit`."""

from typing import Any

from learner.optimizers.base import OptimizerFactory
from learner.schedules import Constant, RunLength, Schedule
from learner.schedules.base import ScheduleFn
from learner.schedules.whole import settled, text_of
from learner.steps.optimizer import check_schedule

OF_RUN = "the schedule"


def schedules_of(optimizer: Any) -> dict[str, ScheduleFn]:
    """The schedules of an optimizer's groups, by their place.

    >>> import optax
    >>> from learner.optimizers import Ema, Group, Groups
    >>> schedules_of(Ema(Groups(optax.sgd, [Group("head"), Group("body", lr=Constant(0.1))])))
    {'group 1': Constant(value=0.1)}
    """
    found: dict[str, ScheduleFn] = {}

    def note(place: str, schedule: ScheduleFn) -> ScheduleFn:
        found[place] = schedule
        return schedule

    if isinstance(optimizer, OptimizerFactory):
        optimizer.with_schedules(note)
    return found


def schedules_in(schedule: ScheduleFn | None, optimizer: Any) -> list[tuple[str, ScheduleFn]]:
    """The run's own schedule, if it has one, and those of an optimizer's groups, each with its place in words; that of
    the run has none.
    """
    own = [] if schedule is None else [("", schedule)]
    return own + [(f"{place} of the optimizer", each) for place, each in schedules_of(optimizer).items()]


def describe_schedules(schedule: ScheduleFn | None, optimizer: Any) -> dict[str, str]:
    """The same as texts, by what they are; `OF_RUN` is that of the run."""
    found = schedules_in(schedule, optimizer)
    return {f"{OF_RUN} of {place}" if place else OF_RUN: text_of(each) for place, each in found}


def with_placeholder_schedules(optimizer: Any) -> Any:
    """The optimizer for when the length of the run plays no part: schedules that wait for it are replaced by 0."""
    if not isinstance(optimizer, OptimizerFactory):
        return optimizer
    return optimizer.with_schedules(
        lambda place, schedule: Constant(0.0) if isinstance(schedule, Schedule) and schedule.waits else schedule
    )


def told(optimizer: Any, run: RunLength) -> tuple[Any, list[str]]:
    """The optimizer in a run of this length, and what is wrong with its schedules then.

    >>> import optax
    >>> from learner.optimizers import Group, Groups
    >>> from learner.schedules import Linear
    >>> told(Groups(optax.sgd, [Group("head", lr=Linear(0.1))]), RunLength(10))[0].groups[0].lr
    Linear(first=0.1) in 10 steps
    """
    problems: list[str] = []

    def tell(place: str, schedule: ScheduleFn) -> ScheduleFn:
        found, wrong = settled(schedule, run, f"{place} of the optimizer")
        if found is not None and found is not schedule:
            wrong = [f"{place} of the optimizer: {problem}" for problem in check_schedule(found)]
        problems.extend(wrong)
        return Constant(0.0) if wrong or found is None else found

    return (optimizer.with_schedules(tell), problems) if isinstance(optimizer, OptimizerFactory) else (optimizer, [])
