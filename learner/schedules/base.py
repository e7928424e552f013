"""The interface of schedules: functions of the optimizer step whose lengths may be parts of the run.

Lengths are in steps, epochs or fractions of the run. Lengths in steps need no context. The others, and a length that is
left out (to the end of the run), are resolved when the run's length is known: `fit` calls `resolved`. Call it yourself
to use such a schedule without `fit`.
"""

import abc
import dataclasses
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Literal

import jax.numpy as jnp

from learner.errors import LearnerError
from learner.util.number_checks import check_int
from learner.util.promotion import standard_promotion
from learner.util.text import name_of

Array = Any
ScheduleFn = Callable[[Any], Any]
Unit = Literal["steps", "epochs", "fraction"]


class LengthNeededError(LearnerError):
    """A schedule's lengths are parts of a run whose length is not known."""


@dataclasses.dataclass(frozen=True)
class RunLength:
    """The length of a run.

    Attributes:
      steps: optimizer steps of the whole run, or `None` if unknown.
      epoch: optimizer steps of an epoch, or `None` if unknown.
      left: the number of steps of the schedule, if it is less than the run: a part of a `Sequence`.
      changes: where epochs began to have another number of steps, as pairs of the epochs and the steps until then, the
        earliest first.

    >>> RunLength(900, 45).in_steps(2.5, "epochs", "over")
    113
    >>> RunLength(900, 45).in_steps(0.1, "fraction", "over")
    90
    >>> RunLength(80, 10, changes=((1, 30),)).in_steps(3, "epochs", "over")  # the first epoch had 30 steps
    50
    """

    steps: int | None = None
    epoch: int | None = None
    left: int | None = None
    changes: tuple[tuple[float, float], ...] = ()

    def in_steps(self, length: float | None, unit: Unit, name: str) -> int:
        """Return a length in optimizer steps, rounded, at least 1. None is the `rest`.

        Raises:
          LengthNeededError: it is relative to an unknown length.
        """
        if length is None:
            return self.rest(name)
        unit_steps = {"steps": 1, "epochs": self.epoch, "fraction": self.steps}[unit]
        if unit_steps is None and unit == "epochs":
            raise LengthNeededError(
                f"{name} is {length:g} epochs, and it is not known how many steps an epoch has: the training data does "
                "not say how many batches it has. Count in steps (unit='steps'), or pass a loader with a length",
                code="schedule-epoch-length-unknown",
                name=name,
                length=length,
            )
        if unit_steps is None:
            raise LengthNeededError(
                f"{name} is {length:g} of the run, and {UNKNOWN}",
                code="schedule-run-length-unknown",
                name=name,
                length=length,
            )
        return max(1, _rounded(self._step_at(length) if unit == "epochs" else length * unit_steps))

    def _step_at(self, epochs: float) -> float:
        return _interpolated(epochs, [(0, 0), *self.changes], self.epoch or math.nan)

    def _epochs_at(self, step: float) -> float:
        knots = [(steps, epochs) for epochs, steps in ((0, 0), *self.changes)]
        return _interpolated(step, knots, 1 / (self.epoch or math.nan))

    def after(self, begin: int, left: int | None) -> "RunLength":
        """Return the run as a part of a `Sequence` sees it, whose steps and epochs begin at step `begin`."""
        passed, end = self._epochs_at(begin), math.inf if left is None else begin + left
        changes = tuple((epochs - passed, steps - begin) for epochs, steps in self.changes if begin < steps < end)
        epoch = self.epoch
        for (low, below), (high, above) in pairwise([(0, 0), *self.changes]):
            if below < end <= above:  # a part that has ended has epochs of its own time
                epoch = max(1, _rounded((above - below) / (high - low)))
        return dataclasses.replace(self, epoch=epoch, left=left, changes=changes)

    @property
    def ahead(self) -> int:
        """The steps by which the run is ahead of epochs of equal length, from the last change on: epoch n ends at step
        `ahead + n * epoch`. May be negative.
        """
        epochs, steps = self.changes[-1] if self.changes else (0, 0)
        return _rounded(steps - epochs * (self.epoch or 0))

    @property
    def own(self) -> int | None:
        """The number of steps of the schedule, or None if it is unknown."""
        return self.steps if self.left is None else self.left

    def rest(self, name: str) -> int:
        """Return the steps to the end of the run, or of the schedule's part of it: `own`.

        Raises:
          LengthNeededError: the length is unknown.
        """
        if self.own is None:
            raise LengthNeededError(
                f"{name} is left out, which means to the end of the run, and {UNKNOWN}",
                code="schedule-run-length-unknown",
                name=name,
            )
        return max(1, self.own)


def _rounded(steps: float) -> int:
    return math.floor(steps + 0.5)


def _interpolated(x: float, knots: Sequence[tuple[float, float]], slope: float) -> float:
    """Return the value at `x` of the polygon through the knots, with a slope after the last one."""
    for (low, below), (high, above) in pairwise(knots):
        if x < high:
            return below + (x - low) * (above - below) / (high - low)
    last, value = knots[-1]
    return value + (x - last) * slope


UNKNOWN = (
    "the run's length is not known: the training data does not say how many batches an epoch has. Set num_steps(n), "
    "count in steps (unit='steps'), or pass a loader with a length"
)


class Schedule(abc.ABC):
    """A learning-rate schedule: calling it with the number of the optimizer step (from 0) returns the learning rate, a
    float32 scalar. The first step uses the initial rate.

    It is an `optax.Schedule`: it can be traced, and passed to optax's optimizers. Custom schedules need to derive from
    this class only if they have lengths in epochs or fractions; otherwise any function of the step works.
    """

    @abc.abstractmethod
    def function(self, run: RunLength) -> ScheduleFn:
        """Return the learning rate as a function of the step, in a run of this length.

        Raises:
          LengthNeededError: a length of the run is needed but unknown.
          LearnerError: the lengths do not fit together in such a run.
        """

    def steps(self, run: RunLength) -> int | None:
        """Return the number of steps after which the learning rate is constant, or None if it never is, or if this is
        unknown.
        """
        return None

    def not_reached(self, run: RunLength) -> list[str]:
        """Return descriptions of the parts that begin after the end of a run of this length."""
        return []

    def __call__(self, step: Any) -> Array:
        """Return the float32 learning rate at `step`, an int or an int32 scalar, traced or not."""
        return lr_of(self._alone, step)

    @property
    def _alone(self) -> ScheduleFn:
        try:
            return self.function(RunLength())
        except LengthNeededError as error:
            raise LengthNeededError(
                f"{self!r} does not know the length of the run. `fit` resolves it; without `fit` use "
                "schedule.resolved(num_steps=..., steps_per_epoch=...)",
                code="schedule-run-length-unknown",
            ) from error
        except LearnerError as error:
            raise LearnerError(f"{self!r}: {error}", code=error.code, **error.fields) from error

    @property
    def counts_epochs(self) -> bool:
        """True if its lengths are epochs, so that it is stretched where epochs have other numbers of steps."""
        return getattr(self, "unit", None) == "epochs"

    @property
    def needs_run_length(self) -> bool:
        """True if any of its lengths is relative to the run.

        >>> from learner.schedules import Cosine
        >>> Cosine(0.1).needs_run_length, Cosine(0.1, over=100).needs_run_length
        (True, False)
        """
        try:
            self.function(RunLength())
        except LengthNeededError:
            return True
        except LearnerError:  # its lengths do not fit together in any run
            return False
        return False

    def resolved(self, num_steps: int | None = None, steps_per_epoch: int | None = None) -> "Resolved":
        """Return the schedule for a run of the given length.

        Args:
          num_steps: optimizer steps of the whole run.
          steps_per_epoch: optimizer steps of an epoch.

        Raises:
          LearnerError: a required length is missing, or the lengths do not fit the run.

        >>> from learner.schedules import Linear
        >>> halfway = Linear(0.0, 0.1, over=0.5, unit="fraction").resolved(num_steps=100)
        >>> [round(float(halfway(step)), 4) for step in (0, 25, 50, 99)]
        [0.0, 0.05, 0.1, 0.1]
        """
        steps, epoch = (
            None if value is None else check_int(name, value, least=1, code="schedule-length-value")
            for name, value in (("num_steps", num_steps), ("steps_per_epoch", steps_per_epoch))
        )
        return Resolved(self, RunLength(steps, epoch))

    def __repr__(self) -> str:
        """Show the fields that differ from their defaults, functions by their names."""
        texts = []
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if field.default is dataclasses.MISSING or value != field.default:
                texts.append(f"{field.name}={_argument_text(value)}")
        return f"{type(self).__name__}({', '.join(texts)})"


class EndingSchedule(Schedule):
    """A schedule whose rate is constant after `over`, a length in its `unit`, or to the end of the run."""

    over: float | None
    unit: Unit

    def steps(self, run: RunLength) -> int:
        """See `Schedule`."""
        return run.in_steps(self.over, self.unit, "over")


class Resolved:
    """A schedule for a run of known length, returned by `Schedule.resolved`.

    Attributes:
      schedule: the original schedule.
      run: the length of the run.
    """

    def __init__(self, schedule: Schedule, run: RunLength):
        self.schedule, self.run = schedule, run
        try:
            self._function = function_in(schedule, run)
        except LearnerError as error:
            raise LearnerError(f"{schedule!r}: {error}", code=error.code, **error.fields) from error

    def __call__(self, step: Any) -> Array:
        """Return the float32 learning rate at `step`, an int or an int32 scalar, traced or not."""
        return lr_of(self._function, step)

    @property
    def ends(self) -> int | None:
        """The step from which the learning rate is constant; see `Schedule.steps`."""
        seen, first = _seen(self.schedule, self.run)
        ends = self.schedule.steps(seen)
        return None if ends is None else first + ends

    @property
    def not_reached(self) -> list[str]:
        """Descriptions of the parts that begin after the end of the run."""
        return self.schedule.not_reached(_seen(self.schedule, self.run)[0])

    def __repr__(self) -> str:
        """Show the schedule, and the length of the run if the schedule depends on it."""
        if not self.schedule.needs_run_length:
            return repr(self.schedule)
        return f"{self.schedule!r} in {self.run.steps} steps"


def function_in(schedule: Schedule, run: RunLength) -> ScheduleFn:
    """Return the learning rate as a function of the step. Schedules in epochs follow the epochs of a run that has
    trained others of another length.

    >>> from learner.schedules import Step
    >>> rate = function_in(Step(1.0, 0.5, every=1, unit="epochs"), RunLength(40, 10, changes=((1, 30),)))
    >>> [round(float(rate(step)), 4) for step in (29, 30, 39)]
    [1.0, 0.5, 0.5]
    """
    seen, first = _seen(schedule, run)
    function = schedule.function(seen)
    return (lambda step: function(jnp.maximum(step - first, 0))) if first else function


def _seen(schedule: Schedule, run: RunLength) -> tuple[RunLength, int]:
    """Return the run as the schedule sees it, all epochs of one length if it counts in epochs, and its first step."""
    if not run.changes or not schedule.counts_epochs:
        return run, 0
    steps, left = (None if x is None else max(1, x - run.ahead) for x in (run.steps, run.left))
    return dataclasses.replace(run, steps=steps, left=left, changes=()), run.ahead


def needs_run_length(schedule: Any) -> bool:
    """Return True for a `Schedule` whose lengths are relative to a run; False for other functions and None."""
    return isinstance(schedule, Schedule) and schedule.needs_run_length


def lr_of(function: ScheduleFn, step: Any) -> Array:
    """Return the learning rate at a step, as a float32 array with a strong type.

    >>> lr_of(lambda step: 0.5, 3)
    Array(0.5, dtype=float32)
    """
    with standard_promotion():
        return jnp.asarray(function(jnp.asarray(step, jnp.int32)), jnp.float32)


def between(function: ScheduleFn, first: float, steps: int, last: float) -> ScheduleFn:
    """Return `function` with exact ends: `first` at step 0 and `last` from `steps` on.

    Compilers multiply by the reciprocal where optax divides by a number of steps. At the end of a linear decay to 0 the
    rate is then slightly negative, and its root is NaN.
    """

    def rate(step: Array) -> Array:
        inside = function(jnp.clip(step, 0, max(steps - 1, 0)))
        return jnp.where(step <= 0, first, jnp.where(step >= steps, last, inside))

    return rate


def milestones_in_steps(milestones: Sequence[float], unit: Unit, run: RunLength) -> list[int]:
    """Return the milestones in optimizer steps.

    Raises:
      LearnerError: two milestones are the same step of this run.

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


def _argument_text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_argument_text, value))}]"
    return name_of(value) if callable(value) and not isinstance(value, Schedule) else repr(value)
