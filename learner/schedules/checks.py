"""Checks of the arguments of a schedule, reported together."""

import math
from collections.abc import Sequence
from typing import Any, Self

from learner.errors import one_error
from learner.schedules.base import Schedule

UNITS = ("steps", "epochs", "fraction")


class Checks:
    """Collects the problems of the arguments of a schedule, and reports them together.

    Args:
      schedule: its fields are looked at.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule, self._problems = schedule, list[str]()

    def add(self, problem: str) -> Self:
        """Add one problem."""
        self._problems.append(f"{type(self._schedule).__name__}: {problem}")
        return self

    def numbers(self, *names: str, above: float = -math.inf, least: float = -math.inf, most: float = math.inf) -> Self:
        """These fields are finite numbers in a range."""
        range_text = (
            f"greater than {above:g}" if above > -math.inf else f"{least:g} or more" if least > -math.inf else ""
        )
        range_text += f" and at most {most:g}" if most < math.inf else ""
        for name in names:
            value = getattr(self._schedule, name)
            if not is_number(value) or not (above < value and least <= value <= most):
                self.add(f"{name} is {value!r}; it needs a number{' ' if range_text else ''}{range_text}")
        return self

    def rates(self, *names: str) -> Self:
        """These fields are rates: 0 or more."""
        return self.numbers(*names, least=0.0)

    def one_of(self, name: str, words: Sequence[str]) -> Self:
        """This field is one of some words."""
        value = getattr(self._schedule, name)
        if value not in words:
            self.add(f"{name} is {value!r}; it needs {' or '.join(map(repr, words))}")
        return self

    def lengths(self, *names: str, optional: bool = False) -> Self:
        """These fields are lengths in the schedule's `unit`."""
        for name in names:
            value = getattr(self._schedule, name)
            if value is not None or not optional:
                self.length(name, value)
        return self

    def length(self, name: str, value: Any) -> Self:
        """This is a length in the schedule's `unit`."""
        unit = getattr(self._schedule, "unit", "steps")
        if not is_number(value) or value <= 0:
            return self.add(f"{name} is {value!r}; it needs a number of {unit} greater than 0")
        if unit == "steps" and value != int(value):
            return self.add(f"{name} is {value!r}; it needs a whole number of steps (or unit='epochs' or 'fraction')")
        if unit == "fraction" and value > 1:
            return self.add(f"{name} is {value!r}; a fraction of the run is at most 1 (unit='steps' counts steps)")
        return self

    def done(self) -> None:
        """Raises one `LearnerError` of all that was found."""
        if self._problems:
            raise one_error(self._problems, "this schedule cannot be used", code="schedule-unusable")


def is_number(value: Any) -> bool:
    """Return True for a finite number that is not a boolean."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
