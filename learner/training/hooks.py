"""Hooks of the user: what they are called with, and the numbers that they return."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from learner.errors import LearnerError
from learner.training.executor import Runner
from learner.training.messages import SplitFinished
from learner.training.position import Position
from learner.training.reporter import Reporter

LONGEST_SHOWN = 500  # characters of what a hook returned


@dataclasses.dataclass(frozen=True)
class EpochInfo:
    """The arguments of a hook.

    Attributes:
      epoch: the epoch that ended, or the current one.
      step: optimizer steps so far.
      values: the newest value of every metric, by key.
    """

    epoch: int
    step: int
    values: Mapping[str, float | str]


def call_hooks(
    hooks: Sequence[Callable[..., Any]], runner: Runner, reporter: Reporter, p: Position, at_step: int | None
) -> None:
    """Call each hook with `(info, model)`, and log the numbers that they return as the split `custom`."""
    if not hooks:
        return
    numbers: dict[str, Any] = {}
    info = EpochInfo(p.epoch, p.step, reporter.newest())
    # After `newest`, which waits: the steps before the hook may have ended the run.
    if reporter.halted is not None:
        return
    model = runner.model()
    for hook in hooks:
        numbers |= _numbers(hook, hook(info, model))
    if numbers:
        reporter.put(SplitFinished("custom", p.epoch, p.step, at_step, numbers))


def _numbers(hook: Callable[..., Any], returned: Any) -> dict[str, np.float32]:
    """Return the result of a hook as numbers to log."""
    if returned is None:
        return {}
    try:
        return {str(name): np.float32(np.asarray(value, np.float32).item()) for name, value in dict(returned).items()}
    except (TypeError, ValueError, OverflowError):  # OverflowError: of an integer beyond all floats
        name = getattr(hook, "__name__", type(hook).__name__)
        raise LearnerError(
            f"the hook {name} returned {_shown(returned)}; it may return numbers to log, by name, such as "
            "{'norm': 1.5}, or None",
            code="step-hook-returns",
            name=name,
        ) from None


def _shown(returned: Any) -> str:
    """Return the result of a hook for an error message: Python refuses to print integers of thousands of digits."""
    try:
        text = repr(returned)
        return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."
    except Exception:  # from a `__repr__` of the user's
        return f"a {type(returned).__name__} that cannot be written out"
