"""Where the wall-clock time of a run goes."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping

PARTS = ("compile", "data", "train", "valid", "save", "other")
"""What the time of a run is split into: compiling (and tracing) programs, waiting for batches while the device has
nothing to do, the rest of the training steps, validations, waiting for checkpoints, and everything else."""


class TimeBreakdown:
    """What the loop's thread spends apart from steps.

    The device works while the loop prepares what comes next, so the time of steps is measured where they end: by the
    worker, from the end of the step before, or from when the loop began to work for it. What is told here lies within
    that time and is not the step's own.

    Args:
      compiling: how many seconds of this thread went into programs so far.
      clock: seconds from any moment on.

    Attributes:
      data: seconds of waiting for batches.
      save: seconds of waiting for checkpoints.
      worker_save: those of the worker, which holds the loop before long.

    >>> now = [0.0]
    >>> spent = TimeBreakdown(lambda: 0.0, lambda: now[0])
    >>> with spent.saving():
    ...     now[0] = 2.0
    >>> spent.split(10.0, {"train": 5.0, "valid": 1.0})["other"]
    2.0
    """

    def __init__(self, compiling: Callable[[], float], clock: Callable[[], float] = time.perf_counter):
        self.data = self.save = self.worker_save = 0.0
        self.compiling, self._clock = compiling, clock
        self._told = self._of_steps

    @property
    def _of_steps(self) -> float:
        return self.data + self.compiling()

    def apart(self) -> float:
        """The seconds of compiling and of waiting for batches since this was last asked."""
        before, self._told = self._told, self._of_steps
        return self._told - before

    def waited(self, idle: float, compiled: float) -> None:
        """For a batch: `idle` seconds without work for the device. `compiled`: the `compiling` of before, as what was
        compiled meanwhile is told apart.
        """
        self.data += max(0.0, idle - (self.compiling() - compiled))

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Around what waits for a checkpoint."""
        began, compiled = self._clock(), self.compiling()
        try:
            yield
        finally:
            self.save += self._clock() - began - (self.compiling() - compiled)

    @contextlib.contextmanager
    def saving_on_worker(self) -> Iterator[None]:
        """The same on the worker's thread."""
        began = self._clock()
        try:
            yield
        finally:
            self.worker_save += self._clock() - began

    def split(self, total: float, steps: Mapping[str, float]) -> dict[str, float]:
        """Seconds by part, which add up to the `total`; `steps`: those of `train` and `valid`."""
        parts, left = {}, total
        waits = {"compile": self.compiling(), "data": self.data}
        # What is done beside something else is cut: steps while the loop compiles, saves while it goes on.
        for name, seconds in {**waits, **steps, "save": self.save + self.worker_save}.items():
            parts[name] = max(0.0, min(left, seconds))
            left -= parts[name]
        return {"total": total, **parts, "other": left}


def said(seconds: Mapping[str, float]) -> str:
    """The parts in words, without those that took nothing worth a word.

    >>> said({"total": 12.0, "compile": 2.0, "data": 0.001, "train": 9.5, "valid": 0.4, "save": 0.0, "other": 0.099})
    'compile 2.0 s, train 9.5 s, valid 0.4 s'
    """
    parts = {name: value for name, value in seconds.items() if name in PARTS and value >= 0.01 * seconds["total"]}
    return ", ".join(f"{name} {value:.1f} s" for name, value in parts.items())
