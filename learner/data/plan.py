"""Which rows make up which batch: arithmetic on (seed, epoch), the same for every way of loading."""

import dataclasses
from typing import Any

import numpy as np

from learner.errors import LearnerError


@dataclasses.dataclass(frozen=True)
class Plan:
    """How the rows of a dataset become batches.

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
    """`value` as an int, or a `LearnerError` that names it when it is not a whole number of at least `least`.

    >>> whole_number("batch_size", 32, least=1)
    32
    >>> whole_number("batch_size", 0, least=1)
    Traceback (most recent call last):
    learner.errors.LearnerError: batch_size is 0: give a whole number, 1 or more
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise LearnerError(f"{name} is {value!r}: give a whole number, {least} or more")
    return int(value)
