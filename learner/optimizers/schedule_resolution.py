"""The learning rate of a run: declared to `build`, resolved once the length of the run is known."""

import dataclasses
from collections.abc import Callable
from typing import Any

from learner.optimizers.base import OptimizerFactory
from learner.schedules.base import RunLength, Schedule, ScheduleFn, needs_run_length
from learner.schedules.decays import Constant
from learner.schedules.plateau import ReduceOnPlateau
from learner.schedules.resolve import resolve, text_of
from learner.steps.optimizer_checks import check_schedule

OF_RUN = "the schedule"


@dataclasses.dataclass(frozen=True)
class ResolvedOptimizer:
    """An optimizer and the schedule of its learning rate, from which a step can be built.

    Attributes:
      optimizer: a function of the learning rate. None if `update=` replaces it.
      schedule: a function of the optimizer step. None if the learning rate is only the state's `lr_scale`.
    """

    optimizer: Callable[[Any], Any] | None
    schedule: ScheduleFn | None


@dataclasses.dataclass(frozen=True)
class OptimizerDefinition:
    """The optimizer and the learning rate passed to `build`. Their schedules may need the length of the run.

    Attributes:
      optimizer: a function of the learning rate. None if `update=` replaces it.
      lr: the initial `lr_scale` of the state: the learning rate, or 1 if there is a schedule.
      schedule: the schedule of the learning rate, if any.
      plateau: the scheduler that lowers `lr_scale` after validations, if any.
      raw: the names of parameters to which the optimizer adds their gradients unchanged. `fit` rejects it unless these
        gradients are 0, or the train step's own.
    """

    optimizer: Any
    lr: float
    schedule: ScheduleFn | None = None
    plateau: ReduceOnPlateau | None = None
    raw: tuple[str, ...] = ()

    def needing_run_length(self) -> list[tuple[str, Schedule]]:
        """Return the schedules that need the length of the run, each with its place; see `schedules_in`."""
        schedules = schedules_in(self.schedule, self.optimizer)
        return [(place, s) for place, s in schedules if isinstance(s, Schedule) and s.needs_run_length]

    def resolve(self, run: RunLength) -> tuple[ResolvedOptimizer | None, list[str]]:
        """Return the optimizer for a run of this length, or None, and all problems of its schedules.

        >>> from learner.schedules import Cosine
        >>> OptimizerDefinition(None, 1.0, Cosine(0.1)).resolve(RunLength(100))[0].schedule
        Cosine(first=0.1) in 100 steps
        """
        schedule, problems = resolve(self.schedule, run)
        optimizer, problems_of_groups = resolve_schedules(self.optimizer, run)
        problems += problems_of_groups
        if schedule is not None and schedule is not self.schedule:  # `build` has checked any other function
            problems += check_schedule(schedule)
        return (None, problems) if problems else (ResolvedOptimizer(optimizer, schedule), [])

    def without_run_length(self) -> ResolvedOptimizer:
        """Return the optimizer for programs that never update parameters: evaluation, and the shapes of the state. They
        call no schedule that needs the length of the run.
        """
        schedule = None if needs_run_length(self.schedule) else self.schedule
        return ResolvedOptimizer(with_placeholder_schedules(self.optimizer), schedule)


def schedules_of(optimizer: Any) -> dict[str, ScheduleFn]:
    """Return the schedules of an optimizer's groups by their place.

    >>> import optax
    >>> from learner.optimizers import Ema, Group, Groups
    >>> schedules_of(Ema(Groups(optax.sgd, [Group("head"), Group("body", lr=Constant(0.1))])))
    {'group 1': Constant(value=0.1)}
    """
    schedules: dict[str, ScheduleFn] = {}

    def collect(place: str, schedule: ScheduleFn) -> ScheduleFn:
        schedules[place] = schedule
        return schedule

    if isinstance(optimizer, OptimizerFactory):
        optimizer.with_schedules(collect)
    return schedules


def schedules_in(schedule: ScheduleFn | None, optimizer: Any) -> list[tuple[str, ScheduleFn]]:
    """Return the schedule of the run, if any, and the schedules of the optimizer's groups, each with a description of
    its place, which is empty for the schedule of the run.
    """
    of_run = [] if schedule is None else [("", schedule)]
    return of_run + [(f"{place} of the optimizer", s) for place, s in schedules_of(optimizer).items()]


def describe_schedules(schedule: ScheduleFn | None, optimizer: Any) -> dict[str, str]:
    """Return the texts of the run's and the groups' schedules. The key of the run's schedule is `OF_RUN`."""
    schedules = schedules_in(schedule, optimizer)
    return {f"{OF_RUN} of {place}" if place else OF_RUN: text_of(s) for place, s in schedules}


def with_placeholder_schedules(optimizer: Any) -> Any:
    """Return an optimizer whose state and problems can be inspected before the length of the run is known: schedules
    that need the length are replaced by 0. It never trains.
    """
    if not isinstance(optimizer, OptimizerFactory):
        return optimizer
    return optimizer.with_schedules(lambda place, schedule: Constant(0.0) if needs_run_length(schedule) else schedule)


def resolve_schedules(optimizer: Any, run: RunLength) -> tuple[Any, list[str]]:
    """Return an optimizer with its schedules resolved for a run of this length, and their problems.

    >>> import optax
    >>> from learner.optimizers import Group, Groups
    >>> from learner.schedules import Linear
    >>> resolve_schedules(Groups(optax.sgd, [Group("head", lr=Linear(0.1))]), RunLength(10))[0].groups[0].lr
    Linear(first=0.1) in 10 steps
    """
    problems: list[str] = []

    def resolve_one(place: str, schedule: ScheduleFn) -> ScheduleFn:
        name = f"{place} of the optimizer"
        resolved, found = resolve(schedule, run, name)
        if resolved is not None and resolved is not schedule:
            found = [f"{name}: {problem}" for problem in check_schedule(resolved)]
        problems.extend(found)
        return Constant(0.0) if found or resolved is None else resolved

    if not isinstance(optimizer, OptimizerFactory):
        return optimizer, []
    return optimizer.with_schedules(resolve_one), problems
