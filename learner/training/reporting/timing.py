"""Measurement of the wall-clock time of a run."""

import contextlib
import dataclasses
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping

from learner.util.ownership import ThreadOwned

PARTS = ("compile", "data", "train", "valid", "save", "other")
"""The parts of a run's time: compiling (and tracing) programs, waiting for batches while the device is idle, the rest
of the training steps, validations, waiting for checkpoints, and everything else."""


@dataclasses.dataclass(frozen=True)
class DispatchTime:
    """The loop's time for a dispatch, by the clock of steps.

    Attributes:
      since: when the loop began to prepare it, after any hook or validation.
      overhead: seconds since then in which the loop compiled, or waited for batches.
      dispatched: when the loop had dispatched it.
    """

    since: float = 0.0
    overhead: float = 0.0
    dispatched: float = math.inf

    def overhead_after(self, end: float) -> float:
        """Return the part of the overhead after the end of the previous steps. Earlier overhead delays nothing."""
        return max(0.0, min(self.overhead, self.dispatched - max(end, self.since)))


class StepTimeEstimator:
    """Estimate the seconds of a training step and of a validation batch from their ends. The estimates limit the size
    of dispatches and the number in flight.

    The reporter's thread calls `measured`. The loop's, the feeder's and the watchdog's threads read single values, each
    of which is one number that is replaced atomically.

    Args:
      seconds: the target time of one dispatch.
      compilations: returns the number of compilations so far. A step that waited for one counts only until another
        step is measured.

    Attributes:
      ended: the number of steps that have ended, including validation batches.
      stepped: set once a step has ended.
    """

    # Half a second, as signals, saves and progress bars wait for the end of a dispatch.
    def __init__(self, seconds: float = 0.5, compilations: Callable[[], int] = lambda: 0):
        self._aim, self._compilations = seconds, compilations
        self._per_step: dict[str, float] = {}
        self._rough: dict[str, bool] = {}
        self._compiled = compilations()
        self.ended, self.stepped = 0, threading.Event()

    def measured(self, kind: str, steps: int, seconds: float) -> None:
        """Record steps of a kind (`train`, `valid`) that ended within `seconds`."""
        self.ended += steps
        # Compared, not reset: the count also goes into the log.
        now, compiled = seconds / max(steps, 1), self._compilations()
        waited, self._compiled = compiled != self._compiled, compiled
        # A first value that includes a compilation is replaced by the next one; later values that do are ignored.
        if self._rough.get(kind, True):
            self._per_step[kind], self._rough[kind] = now, waited
        elif not waited:
            self._per_step[kind] = 0.5 * self._per_step[kind] + 0.5 * now
        self.stepped.set()

    def seconds(self, kind: str, steps: int = 1) -> float | None:
        """Return the estimated seconds of `steps` steps of a kind, or None before the first measurement."""
        per_step = self._per_step.get(kind)
        return None if per_step is None else per_step * steps

    def steps(self, kind: str) -> int:
        """Return the number of steps of a kind that fit into one dispatch; 1 before the first measurement."""
        per_step = self._per_step.get(kind)
        return 1 if per_step is None else max(1, int(self._aim / max(per_step, 1e-6)))


class TimeBreakdown:
    """Seconds that the loop's thread spends on anything but steps.

    The device works while the loop prepares the next dispatch, so the reporter measures the time of a step at its end:
    from the end of the previous step, or from when the loop began to prepare it. The seconds counted here are part of
    that time and are subtracted from it.

    Args:
      compiling: returns the seconds that this thread has spent on tracing and compiling programs.
      clock: returns seconds from any origin.

    Attributes:
      data: seconds of waiting for batches.
      save: seconds of waiting for checkpoints.

    >>> now = [0.0]
    >>> spent = TimeBreakdown(lambda: 0.0, lambda: now[0])
    >>> with spent.saving():
    ...     now[0] = 2.0
    >>> spent.split(10.0, {"train": 5.0, "valid": 1.0})["other"]
    2.0
    """

    def __init__(self, compiling: Callable[[], float], clock: Callable[[], float] = time.perf_counter):
        self.data = self.save = 0.0
        self.compiling, self._clock = compiling, clock
        self._taken_before = self._of_steps

    @property
    def _of_steps(self) -> float:
        return self.data + self.compiling()

    def take_overhead(self) -> float:
        """Return the seconds of compiling and of waiting for batches since the last call."""
        before, self._taken_before = self._taken_before, self._of_steps
        return self._taken_before - before

    def waited(self, idle: float, compiled: float) -> None:
        """Count the wait for a batch: `idle` seconds in which the device was idle, minus the compilation since
        `compiled`, the value of `compiling()` before the wait.
        """
        self.data += max(0.0, idle - (self.compiling() - compiled))

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Count the time of the block as waiting for a checkpoint."""
        began, compiled = self._clock(), self.compiling()
        try:
            yield
        finally:
            # Compilation within the block is counted separately.
            self.save += self._clock() - began - (self.compiling() - compiled)

    def split(self, total: float, steps: Mapping[str, float]) -> dict[str, float]:
        """Return seconds by part, which add up to `total`. `steps`: the reporter's seconds of `train` and `valid`."""
        parts, remaining = {}, total
        waits = {"compile": self.compiling(), "data": self.data}
        # Parts that overlap are cut: steps while the loop compiles, and saves while it trains.
        for name, seconds in {**waits, **steps, "save": self.save}.items():
            parts[name] = max(0.0, min(remaining, seconds))
            remaining -= parts[name]
        return {"total": total, **parts, "other": remaining}


class StepTimer(ThreadOwned):
    """Mark where the time of each dispatch begins. It belongs to the loop's thread.

    Args:
      estimator: the reporter's estimate of the time of a step.
      spent: the loop's seconds on anything but steps.
      now: the clock of steps, in seconds; the reporter uses the same one.

    Attributes:
      since: when the loop began to prepare the next dispatch.

    >>> ticks = iter([1.0, 4.0])
    >>> timer = StepTimer(StepTimeEstimator(), TimeBreakdown(lambda: 0.0), lambda: next(ticks))
    >>> timer.begin()
    >>> timer.lap()
    DispatchTime(since=1.0, overhead=0.0, dispatched=4.0)
    >>> timer.since
    4.0
    """

    def __init__(
        self, estimator: StepTimeEstimator, spent: TimeBreakdown, now: Callable[[], float] = time.perf_counter
    ):
        self.estimator, self.spent, self.now = estimator, spent, now
        self.since = 0.0
        self.claim()

    def begin(self) -> None:
        """Begin the next dispatch now, so that a validation or a hook before it is not part of its time."""
        self.since = self.now()
        self.spent.take_overhead()

    def lap(self) -> DispatchTime:
        """Return the time of the dispatch that ends now, and begin the next one."""
        since, overhead, self.since = self.since, self.spent.take_overhead(), self.now()
        return DispatchTime(since, overhead, self.since)


def format_breakdown(seconds: Mapping[str, float]) -> str:
    """Return the parts as text, without those below one percent.

    >>> seconds = {"total": 12.0, "compile": 2.0, "data": 0.001, "train": 9.5, "valid": 0.4, "save": 0.0, "other": 0.1}
    >>> format_breakdown(seconds)
    'compile 2.0 s, train 9.5 s, valid 0.4 s'
    """
    parts = {name: value for name, value in seconds.items() if name in PARTS and value >= 0.01 * seconds["total"]}
    return ", ".join(f"{name} {value:.1f} s" for name, value in parts.items())
