"""The rows of each batch: a function of (seed, epoch), the same for every way of loading."""

import dataclasses

import numpy as np

from learner.data.sharding import ProcessShard


@dataclasses.dataclass(frozen=True)
class Plan:
    """Arithmetic of the batches of a dataset.

    Attributes:
      rows: the number of rows of the dataset.
      batch_size: rows per batch; the last batch of an epoch may have fewer.
      seed: each epoch has another order, seeded with (seed, epoch); `None`: the dataset's own order.
      drop_last: drop a last batch that is not full.

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
        """Return the number of rows used in an epoch."""
        return self.rows - self.rows % self.batch_size if self.drop_last else self.rows

    @property
    def num_batches(self) -> int:
        """Return the number of batches in an epoch."""
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

    def order(self, epoch: int, seed: int | None = None) -> np.ndarray:
        """Return the row numbers of an epoch (from 1), int32 `[num_items]` (int64 above 2³¹ rows), from (seed, epoch).
        `seed` replaces the plan's seed, if it has one.

        The permutation is NumPy's, drawn from Philox with `SeedSequence([seed, epoch])`, so that neighbouring seeds and
        epochs are unrelated.
        """
        if self.seed is None:
            rows = np.arange(self.num_items)
        else:
            generator = np.random.Generator(
                np.random.Philox(np.random.SeedSequence([self.seed if seed is None else seed, epoch]))
            )
            rows = generator.permutation(self.rows)[: self.num_items]
        return rows.astype(np.int32 if self.rows <= 2**31 else np.int64)
