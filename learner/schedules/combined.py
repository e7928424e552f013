"""Schedules made of other schedules: in sequence, or combined at each step."""

import dataclasses
import math
from collections import abc
from collections.abc import Callable
from itertools import pairwise
from typing import Any, ClassVar

import jax.numpy as jnp
import optax

from learner.errors import LearnerError
from learner.schedules.base import RunLength, Schedule, ScheduleFn, Unit, function_in, lr_of, milestones_in_steps
from learner.schedules.checks import UNITS, Checks, check_milestones
from learner.steps.optimizer_checks import is_schedule
from learner.util.number_checks import is_finite

Part = Callable[[Any], Any] | float


@dataclasses.dataclass(frozen=True, repr=False)
class Sequence(Schedule):
    """Schedules in sequence (`optax.join_schedules`). Each part counts steps from its milestone, so it begins with its
    own first rate. A part without a length lasts until the next part begins, the last part until the end of the run.

    Args:
      parts: schedules, other functions of the step, or numbers.
      milestones: the beginnings of all parts but the first, in order, counted from the beginning of the sequence.
      unit: the unit of `milestones`: `"steps"` of the optimizer, `"epochs"`, or a `"fraction"` of the run. Parts have
        their own units.

    >>> from learner.schedules import Cosine, Linear
    >>> warmed_up = Sequence([Linear(0.0, 0.4), Cosine(0.4)], [0.1], unit="fraction").resolved(num_steps=100)
    >>> [round(float(warmed_up(step)), 4) for step in (0, 5, 10, 55, 100)]
    [0.0, 0.2, 0.4, 0.2, 0.0]
    """

    parts: abc.Sequence[Any]
    milestones: abc.Sequence[float]
    unit: Unit = "steps"

    def __post_init__(self) -> None:
        """Raise `LearnerError` for parts that are not schedules, and for milestones out of order."""
        checks = _check_parts(Checks(self), self.parts).one_of("unit", UNITS)
        check_milestones(checks, self.milestones)
        if _many(self.parts) and _many(self.milestones) and len(self.milestones) != len(self.parts) - 1:
            checks.add(
                f"there are {len(self.parts)} parts and {len(self.milestones)} milestones; each part but the first "
                "begins at one"
            )
        checks.raise_problems()

    def _pieces(self, run: RunLength) -> list[tuple[Any, int, RunLength]]:
        """Return, for each part, the schedule, its first step, and the length of its run."""
        begins = [0, *milestones_in_steps(self.milestones, self.unit, run)]
        lengths: list[int | None] = [after - before for before, after in pairwise(begins)]
        lengths.append(None if run.own is None else max(1, run.own - begins[-1]))
        seen = [run.after(begin, left) for begin, left in zip(begins, lengths, strict=True)]
        return list(zip(self.parts, begins, seen, strict=True))

    @property
    def counts_epochs(self) -> bool:
        """False: `unit` is that of the milestones, and each part has its own."""
        return False

    def steps(self, run: RunLength) -> int | None:
        """See `Schedule`."""
        part, begin, seen = self._pieces(run)[-1]
        ends = _steps_of(part, seen)
        return None if ends is None else begin + ends

    def not_reached(self, run: RunLength) -> list[str]:
        """See `Schedule`."""
        texts: list[str] = []
        for number, (part, begin, seen) in enumerate(self._pieces(run)):
            if run.own is not None and begin >= run.own:
                what = f"parts[{number}] of {self!r} is not reached"
                texts.append(f"{what}: milestones[{number - 1}] is step {begin}, and there are {run.own} steps")
            elif isinstance(part, Schedule):
                texts += part.not_reached(seen)
        return texts

    def function(self, run: RunLength) -> ScheduleFn:
        """See `Schedule`."""
        pieces = self._pieces(run)
        functions = [_from_zero(_function(part, seen)) for part, _, seen in pieces]
        rate: ScheduleFn = optax.join_schedules(functions, [begin for _, begin, _ in pieces[1:]])
        return rate


@dataclasses.dataclass(frozen=True, repr=False)
class _Several(Schedule):
    """Several schedules that all count steps from the beginning."""

    parts: abc.Sequence[Any]
    _combined: ClassVar[Any]  # a function of the rates of all parts

    def __post_init__(self) -> None:
        """Raise `LearnerError` for parts that are not schedules."""
        _check_parts(Checks(self), self.parts).raise_problems()

    def steps(self, run: RunLength) -> int | None:
        """See `Schedule`."""
        ends = [_steps_of(part, run) for part in self.parts]
        return None if None in ends else max(end for end in ends if end is not None)

    def not_reached(self, run: RunLength) -> list[str]:
        """See `Schedule`."""
        return [text for part in self.parts if isinstance(part, Schedule) for text in part.not_reached(run)]

    def function(self, run: RunLength) -> ScheduleFn:
        """See `Schedule`."""
        functions = [_function(part, run) for part in self.parts]
        return lambda step: self._combined([lr_of(function, step) for function in functions])


@dataclasses.dataclass(frozen=True, repr=False)
class Product(_Several):
    """The product of several schedules.

    Args:
      parts: schedules, other functions of the step, or numbers. All count steps from the beginning.

    >>> from learner.schedules import Linear, Step
    >>> [round(float(Product([Linear(0.0, 1.0, over=4), Step(0.4, 0.5, every=8)])(step)), 4) for step in (0, 2, 4, 8)]
    [0.0, 0.2, 0.4, 0.2]
    """

    _combined = staticmethod(math.prod)


@dataclasses.dataclass(frozen=True, repr=False)
class Sum(_Several):
    """The sum of several schedules.

    Args:
      parts: schedules, other functions of the step, or numbers. All count steps from the beginning.

    >>> from learner.schedules import Linear
    >>> [round(float(Sum([Linear(0.2, 0.0, over=4), 0.1])(step)), 4) for step in (0, 2, 4)]
    [0.3, 0.2, 0.1]
    """

    _combined = staticmethod(sum)


@dataclasses.dataclass(frozen=True, repr=False)
class Mean(_Several):
    """The mean of several schedules.

    Args:
      parts: schedules, other functions of the step, or numbers. All count steps from the beginning.

    >>> from learner.schedules import Linear
    >>> [round(float(Mean([Linear(0.2, 0.0, over=4), 0.1])(step)), 4) for step in (0, 2, 4)]
    [0.15, 0.1, 0.05]
    """

    _combined = staticmethod(lambda rates: sum(rates) / len(rates))


def _many(parts: Any) -> bool:
    return isinstance(parts, list | tuple)


def _check_parts(checks: Checks, parts: Any) -> Checks:
    if not _many(parts) or not parts:
        return checks.add(f"parts is {parts!r}; it needs a list of schedules")
    for number, part in enumerate(parts):
        if not (is_finite(part) and part >= 0) and not is_schedule(part):
            checks.add(f"parts[{number}] is {part!r}; it needs a schedule, a function of the step, or a number")
    return checks


def _function(part: Part, run: RunLength) -> ScheduleFn:
    if isinstance(part, Schedule):
        try:
            return function_in(part, run)
        except LearnerError as error:
            raise type(error)(f"{part!r}: {error}", code=error.code, **error.fields) from error
    return part if callable(part) else optax.constant_schedule(part)


def _from_zero(function: ScheduleFn) -> ScheduleFn:
    """Return the function with negative steps clipped to 0: a part is also evaluated before its milestone."""
    return lambda step: lr_of(function, jnp.maximum(step, 0))


def _steps_of(part: Part, run: RunLength) -> int | None:
    return part.steps(run) if isinstance(part, Schedule) else None if callable(part) else 0
