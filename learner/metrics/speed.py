"""Metrics of a run's speed."""

import abc
import math

from learner.metrics.base import HostMetric


class _PerSecond(HostMetric):
    """An amount of each step, per second. The value of an epoch is its whole amount over its whole time.

    The time of steps is that of the run's summary: without compiling, and without waiting for batches while the device
    has nothing to do. Both have parts of their own in the summary.
    """

    higher_is_better = True
    undefined = "the clock did not move"

    def __init__(self) -> None:
        self.reset()

    def update(self, steps: int, seconds: float) -> float:
        """Return the amount per second of these steps; NaN if the clock did not move."""
        amount = self._amount(steps)
        self._total += amount
        self._seconds += seconds
        return _per_second(amount, seconds)

    @abc.abstractmethod
    def _amount(self, steps: int) -> float:
        """Return the amount counted for these steps."""

    def compute(self) -> float:
        """Return the mean per second over the epoch so far; NaN before the first step."""
        return _per_second(self._total, self._seconds)

    def reset(self) -> None:
        """Start a new epoch."""
        self._total = 0.0
        self._seconds = 0.0


class IterationSpeed(_PerSecond):
    """Optimizer steps (in validation: batches) per second. Of an epoch: all of its steps over all of their time,
    without compiling and without waiting for batches.

    >>> speed = IterationSpeed()
    >>> speed.update(steps=30, seconds=0.5)
    60.0
    >>> speed.update(steps=30, seconds=1.5)
    20.0
    >>> speed.compute()
    30.0
    """

    name = "Iteration Speed"
    unit = "steps/s"
    description = "optimizer steps (in validation: batches) per second"

    def _amount(self, steps: int) -> float:
        return steps


class RowsPerSecond(_PerSecond):
    """Rows of the batches per second: the length of their leading axis, whatever of it is masked. Of an epoch: all of
    its rows over all of the time of its steps.

    Rows of all micro-batches of a step count, and those of all devices and processes. Compiling and waiting for batches
    are no part of the time.

    >>> speed = RowsPerSecond()
    >>> speed.on_batches(rows=960, weight=960.0)
    >>> speed.update(steps=30, seconds=0.5)
    1920.0
    """

    name = "Rows per Second"
    unit = "rows/s"
    description = "rows of the batches per second"

    def __init__(self) -> None:
        super().__init__()
        self._rows = 0

    def on_batches(self, rows: int, weight: float) -> None:
        """Take the rows of the steps that the next `update` covers."""
        self._rows = rows

    def _amount(self, steps: int) -> float:
        return self._rows


class TokensPerSecond(_PerSecond):
    """Tokens per second, which are what the loss is the mean over: the sum of the outputs' `weight`. Of an epoch: all
    of its tokens over all of the time of its steps.

    `SequenceOutput` weighs by the tokens that its mask keeps, so that padding does not count. An output whose loss is a
    mean over rows weighs by rows: then this is a number of rows. Compiling and waiting for batches are no part of the
    time.

    >>> speed = TokensPerSecond()
    >>> speed.on_batches(rows=64, weight=5120.0)
    >>> speed.update(steps=2, seconds=0.5)
    10240.0
    """

    name = "Tokens per Second"
    unit = "tokens/s"
    description = "what the loss is a mean over (tokens that are not masked) per second"

    def __init__(self) -> None:
        super().__init__()
        self._tokens = 0.0

    def on_batches(self, rows: int, weight: float) -> None:
        """Take the tokens of the steps that the next `update` covers."""
        self._tokens = weight

    def _amount(self, steps: int) -> float:
        return self._tokens


def _per_second(amount: float, seconds: float) -> float:
    return amount / seconds if seconds > 0 else math.nan
