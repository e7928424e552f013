"""Checks of the arguments of a schedule, reported together."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Self

from learner.errors import one_error
from learner.schedules.base import Schedule
from learner.util.number_checks import is_finite, plain_numbers

UNITS = ("steps", "epochs", "fraction")
LAST_STEP = 2**31 - 1


class Checks:
    """The problems of the arguments of a schedule, reported together. Numbers of NumPy become numbers of Python first.

    Args:
      schedule: the schedule whose fields are checked.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule, self._problems = schedule, list[str]()
        for name, value in vars(schedule).items():
            object.__setattr__(schedule, name, plain_numbers(value))

    def add(self, problem: str) -> Self:
        """Add one problem."""
        self._problems.append(f"{type(self._schedule).__name__}: {problem}")
        return self

    def positive(self, *names: str) -> Self:
        """Check that these fields are positive numbers."""
        for name in names:
            value = getattr(self._schedule, name)
            if not is_finite(value) or value <= 0:
                self.add(f"{name} is {value!r}; it needs a number greater than 0")
        return self

    def rates(self, *names: str) -> Self:
        """Check that these fields are learning rates: 0 or more."""
        for name in names:
            value = getattr(self._schedule, name)
            if not is_finite(value) or value < 0:
                self.add(f"{name} is {value!r}; it needs a number 0 or more")
        return self

    def one_of(self, name: str, words: Sequence[str]) -> Self:
        """Check that this field is one of the given words."""
        value = getattr(self._schedule, name)
        if value not in words:
            self.add(f"{name} is {value!r}; it needs {' or '.join(map(repr, words))}")
        return self

    def lengths(self, *names: str, optional: bool = False) -> Self:
        """Check that these fields are lengths in the schedule's `unit`."""
        for name in names:
            value = getattr(self._schedule, name)
            if value is not None or not optional:
                self.length(name, value)
        return self

    def length(self, name: str, value: Any) -> Self:
        """Check that this is a length in the schedule's `unit`."""
        unit = getattr(self._schedule, "unit", "steps")
        if not is_finite(value) or value <= 0:
            return self.add(f"{name} is {value!r}; it needs a number of {unit} greater than 0")
        if unit == "steps" and value != int(value):
            return self.add(f"{name} is {value!r}; it needs a whole number of steps (or unit='epochs' or 'fraction')")
        if unit == "steps" and value > LAST_STEP:
            return self.add(f"{name} is {value!r}; steps are counted in int32, so it needs at most {LAST_STEP:,}")
        if unit == "fraction" and value > 1:
            return self.add(f"{name} is {value!r}; a fraction of the run is at most 1 (unit='steps' counts steps)")
        return self

    def raise_problems(self) -> None:
        """Raise one `LearnerError` that lists all problems, if there are any."""
        if self._problems:
            raise one_error(self._problems, "this schedule cannot be used", code="schedule-unusable")


def check_milestones(checks: Checks, milestones: Any) -> Checks:
    """Check that milestones are lengths from the beginning, in increasing order."""
    if isinstance(milestones, str) or not isinstance(milestones, Sequence) or not milestones:
        return checks.add(f"milestones is {milestones!r}; it needs a list of one or more, such as [100, 200]")
    for number, milestone in enumerate(milestones):
        checks.length(f"milestones[{number}]", milestone)
    for number, (before, after) in enumerate(pairwise(milestones), 1):
        if isinstance(before, int | float) and isinstance(after, int | float) and after <= before:
            checks.add(
                f"milestones are out of order: milestones[{number}] is {after:g}, and the one before is {before:g}; "
                "each counts from the beginning of the run, so they must increase"
            )
    return checks
