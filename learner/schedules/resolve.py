"""Any schedule over a whole run: its text, its rates, and its end if it is before that of the run."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from learner.errors import LearnerError
from learner.schedules.base import Resolved, RunLength, Schedule, ScheduleFn, lr_of
from learner.util.executables import scalar_program
from learner.util.promotion import standard_promotion
from learner.util.text import name_of


def text_of(schedule: ScheduleFn) -> str:
    """Return the text of a schedule for logs and other processes, the same in each process.

    >>> from learner.schedules import Cosine
    >>> text_of(Cosine(0.1, over=100)), text_of(lambda step: 0.1)
    ('Cosine(first=0.1, over=100)', '<lambda>')
    """
    text = repr(schedule)
    tells = isinstance(schedule, Schedule | Resolved) or dataclasses.is_dataclass(schedule)
    if tells and " at 0x" not in text:
        return text
    maker, inner, _ = getattr(schedule, "__qualname__", "").partition(".<locals>.schedule")
    return maker if inner else name_of(schedule)  # optax's functions are all named `schedule`


def resolve(
    schedule: ScheduleFn | None, run: RunLength, what: str = "the learning rate"
) -> tuple[ScheduleFn | None, list[str]]:
    """Return a schedule for a run of this length, and its problems. None and functions are returned unchanged.

    Args:
      schedule: the schedule of the run, or of a part of it.
      run: the length of the run.
      what: the schedule's role, for messages.

    >>> from learner.schedules import Cosine
    >>> resolve(Cosine(0.1), RunLength(100)), resolve(None, RunLength())
    ((Cosine(first=0.1) in 100 steps, []), (None, []))
    """
    if not isinstance(schedule, Schedule):
        return schedule, []
    try:
        return Resolved(schedule, run), []
    except LearnerError as error:
        return None, [f"{what}: {error}"]


def rates(schedule: ScheduleFn, steps: int, points: int = 1000) -> tuple[list[int], list[float]]:
    """Return the steps that were evaluated, from 0 to the last one of a run, and the learning rate at each.

    Args:
      schedule: a function of the step.
      steps: the steps of the run.
      points: the maximum number of steps to evaluate, evenly spaced.
    """
    count = min(steps, points)
    places = [round(i * (steps - 1) / max(1, count - 1)) for i in range(count)]
    with standard_promotion():
        values = jax.jit(jax.vmap(lambda step: lr_of(schedule, step)))(jnp.asarray(places, jnp.int32))
    return places, [float(rate) for rate in values]


ROUNDED = 1e-3  # the last part of a run, in which a cosine that ends with the run may be 0 in float32


def early_end(schedule: ScheduleFn, steps: int) -> tuple[str, bool] | None:
    """Return a sentence about a schedule that ends before a run of `steps`, and True if its last rate is 0. Return None
    if it does not end before.

    >>> from learner.schedules import Cosine
    >>> early_end(Cosine(0.1, over=100), 150)[0]
    'the schedule Cosine(first=0.1, over=100) ends after 100 of 150 steps; from there on the rate stays 0'
    """
    ends = schedule.ends if isinstance(schedule, Resolved) else None
    ends = schedule.steps(RunLength(steps)) if isinstance(schedule, Schedule) else ends
    rate = scalar_program(lambda step: lr_of(schedule, step))
    last = rate(steps - 1)
    if ends is None and last == 0:
        ends = _zero_from(rate, steps)
        if ends is not None and ends > steps * (1 - ROUNDED):
            return None
    if ends is None or ends >= steps or ends < 1:
        return None
    text = f"the schedule {text_of(schedule)} ends after {ends} of {steps} steps; from there on the rate stays {last:g}"
    return text, last == 0


def not_reached(schedule: ScheduleFn, steps: int) -> list[str]:
    """Return descriptions of the parts of a schedule that a run of `steps` does not reach.

    >>> from learner.schedules import MultiStep
    >>> not_reached(MultiStep(0.1, [50, 150]), 100)[0].partition(" is ")[0]
    'milestones[1] of MultiStep(first=0.1, milestones=[50, 150])'
    """
    if isinstance(schedule, Resolved):
        return schedule.not_reached
    return schedule.not_reached(RunLength(steps)) if isinstance(schedule, Schedule) else []


def _zero_from(rate: Callable[[int], float], steps: int) -> int | None:
    """Return the step from which on a learning rate is 0, given that it is 0 at the last step. Return None if the
    search finds no step at which it is not 0.
    """
    zero, back = steps - 1, 1
    while rate(zero - back if back < zero else 0) == 0:
        if back >= zero:
            return None
        back *= 2
    low, high = max(0, zero - back), zero
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if rate(middle) == 0 else (middle, high)
    return high
