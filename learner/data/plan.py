"""The rows of each batch: arithmetic on (seed, epoch), equal for every way of loading."""

import dataclasses
from typing import Any

import numpy as np

from learner.errors import LearnerError


@dataclasses.dataclass(frozen=True)
class ProcessShard:
    """The rows of every batch that a process reads. Batch sizes are global: over all processes.

    A batch whose rows divide evenly over the devices is split into as many equal parts as there are shares, one after
    another. Any other batch is computed whole on every device, so every process reads all of it.

    Attributes:
      index: which share, from 0.
      count: how many there are: as many as processes, unless some of them hold the same rows.
      multiple: devices over which the rows of a batch are split, in all processes; a multiple of `count`.

    Raises:
      LearnerError: numbers that do not fit each other.

    >>> share = ProcessShard(index=1, count=2, multiple=4)
    >>> share.divides(12), share.of(12)
    (True, slice(6, 12, None))
    >>> share.divides(6), share.of(6)
    (False, slice(0, 6, None))
    """

    index: int
    count: int
    multiple: int

    def __post_init__(self) -> None:
        for name, least in (("index", 0), ("count", 1), ("multiple", 1)):
            whole_number(f"the {name} of a Share", getattr(self, name), least)
        if self.index >= self.count:
            raise LearnerError(
                f"the index of a Share is {self.index}: with a count of {self.count}, give less",
                code="data-share-index",
            )
        if self.multiple % self.count:
            raise LearnerError(
                f"the multiple of a Share is {self.multiple}: every one of {self.count} shares needs as many devices",
                code="data-share-multiple",
            )

    def divides(self, rows: int) -> bool:
        """Return True if a batch of so many rows is split."""
        return rows % self.multiple == 0

    def of(self, rows: int) -> slice:
        """Return the slice of a batch of so many rows that the process reads."""
        if not self.divides(rows):
            return slice(0, rows)
        part = rows // self.count
        return slice(self.index * part, (self.index + 1) * part)


@dataclasses.dataclass(frozen=True)
class Plan:
    """Arithmetic of the batches of a dataset.

    Attributes:
      rows: how many rows the dataset has.
      batch_size: rows per batch; the last batch of an epoch may have fewer.
      seed: every epoch has an order of its own, made from (seed, epoch); `None`: the dataset's own order.
      drop_last: leave out a last batch that is not full.

    >>> plan = Plan(rows=5, batch_size=2)
    >>> plan.num_batches, plan.order(epoch=1)
    (3, array([0, 1, 2, 3, 4], dtype=int32))
    >>> sorted(Plan(rows=5, batch_size=2, seed=0).order(epoch=1).tolist())
    [0, 1, 2, 3, 4]
    """

    rows: int
    batch_size: int
    seed: int | None = None
    drop_last: bool = False

    @property
    def num_items(self) -> int:
        """Rows used in an epoch."""
        return self.rows - self.rows % self.batch_size if self.drop_last else self.rows

    @property
    def num_batches(self) -> int:
        """Batches in an epoch."""
        return -(-self.num_items // self.batch_size)

    def rows_of(self, number: int, share: ProcessShard | None = None) -> slice:
        """Return the slice of an epoch's order for batch `number` (from 0), or a share's part of it.

        >>> plan = Plan(rows=10, batch_size=4)
        >>> plan.rows_of(1), plan.rows_of(1, ProcessShard(1, 2, 4)), plan.rows_of(2, ProcessShard(1, 2, 4))
        (slice(4, 8, None), slice(6, 8, None), slice(8, 10, None))
        """
        first = number * self.batch_size
        rows = min(self.batch_size, self.num_items - first)
        part = slice(0, rows) if share is None else share.of(rows)
        return slice(first + part.start, first + part.stop)

    def order(self, epoch: int) -> np.ndarray:
        """Row numbers of an epoch (from 1), int32 `[num_items]` (int64 above 2³¹ rows): a function of (seed, epoch).

        The permutation is NumPy's, drawn from Philox under `SeedSequence([seed, epoch])`, so that neighbouring seeds
        and epochs have nothing in common.
        """
        if self.seed is None:
            rows = np.arange(self.num_items)
        else:
            generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([self.seed, epoch])))
            rows = generator.permutation(self.rows)[: self.num_items]
        return rows.astype(np.int32 if self.rows <= 2**31 else np.int64)


def whole_number(name: str, value: Any, least: int) -> int:
    """Return `value` as an int. Raise a `LearnerError` with its name unless it is a whole number from `least` on.

    >>> whole_number("batch_size", 32, least=1)
    32
    >>> whole_number("batch_size", 0, least=1)
    Traceback (most recent call last):
    learner.errors.LearnerError: batch_size is 0: give a whole number, 1 or more
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise LearnerError(
            f"{name} is {value!r}: give a whole number, {least} or more",
            code="data-number-value",
            name=name,
            value=value,
            least=least,
        )
    return int(value)
