"""The part of every batch that this process reads, if several processes train together.

Our loaders read only their share, unless the shapes of their batches depend on all rows. Every process reads all other
data and keeps its rows of each batch (`ShardedBatches`), unless the data is marked as being this process's part
(`PerProcess`).
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from learner.data.batch_arrays import as_dicts, digest_of
from learner.errors import LearnerError
from learner.util.number_checks import check_int


@dataclasses.dataclass(frozen=True)
class ProcessShard:
    """The rows of every batch that a process reads. Batch sizes are global: over all processes.

    A batch whose rows divide evenly over the devices is split into `count` equal parts of consecutive rows. Any other
    batch is replicated: every device computes all of it, so every process reads all of it.

    Attributes:
      index: the number of the share, from 0.
      count: the number of shares: the number of processes, unless some of them have the same rows.
      multiple: the number of devices over which the rows of a batch are split, in all processes; a multiple of `count`.

    Raises:
      LearnerError: the numbers do not fit together.

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
            check_int(f"the {name} of a Share", getattr(self, name), least)
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
        """Return True if a batch with this number of rows is split."""
        return rows % self.multiple == 0

    def of(self, rows: int) -> slice:
        """Return the slice that the process reads of a batch with this number of rows."""
        if not self.divides(rows):
            return slice(0, rows)
        part = rows // self.count
        return slice(self.index * part, (self.index + 1) * part)

    def cut(self, batch: Any) -> tuple[Any, bool]:
        """Return the rows of a whole batch that the process needs, and True if the batch is split."""
        rows = rows_of(batch)
        if rows is None or not self.divides(rows):  # without common rows, placing it reports the error
            return batch, False
        return jax.tree.map(lambda x: x[self.of(rows)], batch), True


@dataclasses.dataclass(frozen=True)
class PerProcess:
    """Marks data that yields only this process's part of every batch, such as the process's own files.

    All processes must yield the same number of batches in an epoch, each with equally many rows in all of them, which
    together divide evenly over the devices; otherwise all end with an error, before the end of the epoch. The same
    holds for all other axes: sequences are padded to one length in all processes, as by `Pad(length=n)`. With a single
    process it has no effect, and if rows are not sharded over processes, as with tensor parallelism over all of them,
    all must yield the same rows. Our loaders and a Grain `DataLoader` with `shard_options` need no mark, as they read
    only their share.

    Attributes:
      data: any data. A loader's batch size here is per process; `with_batch_size` is still global.

    >>> from learner.data import DataLoaderBuilder
    >>> rows_of_this_machine = {"x": np.zeros((6, 2))}
    >>> PerProcess(DataLoaderBuilder().batch_size(3).build(rows_of_this_machine))
    PerProcess(data=DataLoader(batch_size=3, 6 rows of ArrayDataset in 2 batches, not shuffled))
    """

    data: Any


class Batches(Iterator[Any]):
    """The batches of an epoch from a position on.

    Args:
      batches: the iterator to read.
      where: see below.
      part: see the method `part`.
      end: see below.

    Attributes:
      where: returns the position in the data after the batch returned last, as JSON; `None` if there is no position to
        store.
      end: returns the state after all batches, if it differs from the state after the last one.
      between: returns the state of data that has a state itself, rather than in its iterators; else None. A state read
        between two epochs is passed to `Source.open` as `changed`.
      first_digest: a checksum of the batch that `peek` has read, if every process reads all of it; else None.
    """

    between: Callable[[], Any] | None = None
    first_digest: int | None = None

    def __init__(
        self,
        batches: Iterator[Any],
        where: Callable[[], Any] | None = None,
        part: Callable[[], bool] = lambda: False,
        end: Callable[[], Any] | None = None,
    ):
        self._batches, self.where, self._part, self.end = batches, where, part, end
        self._first: list[Any] = []
        self._remaining: int | None = None

    def __next__(self) -> Any:
        if self._remaining == 0:  # do not read: a loader may wait, or draw from a generator, for another batch
            raise StopIteration
        batch = self._first.pop() if self._first else self._read()
        if self._remaining is not None:
            self._remaining -= 1
        return batch

    def _read(self) -> Any:
        return as_dicts(next(self._batches))

    def part(self) -> bool:
        """Return True if the batch returned last is only this process's part, False if every process has all of it."""
        return self._part()

    def peek(self) -> Any:
        """Return the first batch without consuming it."""
        self._first = [self._read()]
        return self._first[0]

    def limit(self, count: int) -> None:
        """End after `count` more batches."""
        self._remaining = count


class ShardedBatches(Batches):
    """Batches that are cut to the part of this process.

    Args:
      batches: global batches, or parts of them if each process has its own.
      share: the part of this process.
      own: True if the batches are parts already.
      split: the name of the split, for messages.
      where: see `Batches`.
      end: see `Batches`.

    >>> parts = ShardedBatches(iter([np.arange(8), np.arange(3)]), ProcessShard(1, 2, 4), own=False, split="train")
    >>> [(part.tolist(), parts.part()) for part in parts]
    [([4, 5, 6, 7], True), ([0, 1, 2], False)]
    """

    def __init__(
        self,
        batches: Iterator[Any],
        share: ProcessShard,
        own: bool,
        split: str,
        where: Callable[[], Any] | None = None,
        end: Callable[[], Any] | None = None,
    ) -> None:
        super().__init__(batches, where, end=end)
        self._is_part = self._digests = False
        self._share, self._own, self._split = share, own, split

    def part(self) -> bool:
        """See `Batches`."""
        # A method rather than a function passed to `Batches`, which would make a reference cycle: loaders end their
        # workers with the last reference to their iterator.
        return self._is_part

    def peek(self) -> Any:
        """See `Batches`."""
        # The only share is the same rows in all processes, also of their own data.
        self._digests = not self._own or self._share.count == 1
        first = super().peek()
        self._digests = False
        return first

    def _read(self) -> Any:
        batch = super()._read()
        if self._digests:
            self.first_digest = digest_of(batch)
        if not self._own:
            batch, self._is_part = self._share.cut(batch)
            return batch
        rows = rows_of(batch)
        self._is_part = rows is not None
        if rows is not None:
            self._refuse_uneven(rows)
        return batch

    def _refuse_uneven(self, rows: int) -> None:
        share = self._share
        if not share.divides(rows * share.count):
            raise LearnerError(
                f"a batch of the {self._split} data has {rows} rows in this process, which makes {rows * share.count} "
                f"in all {share.count}: they do not divide evenly over {share.multiple} devices, and no process has "
                "all of them to compute the batch whole. Drop the last rows of an epoch or pad them with weight 0, or "
                "pass data that has the whole batches in every process",
                code="data-rows-uneven",
                rows=rows,
            )


def rows_of(batch: Any) -> int | None:
    """Return the length of the common first axis of a batch; None if there is none.

    >>> rows_of({"x": np.zeros((4, 2)), "y": np.zeros(4)}), rows_of({"x": np.zeros(4), "y": 1.0})
    (4, None)
    """
    lengths = {shape[0] if (shape := np.shape(leaf)) else None for leaf in jax.tree.leaves(batch)}
    return lengths.pop() if len(lengths) == 1 else None


def refuse_small(rows: int | None, share: ProcessShard | None, split: str) -> None:
    """Raise `LearnerError` if there are more shares than rows in a batch."""
    if share is not None and rows is not None and rows < share.count:
        raise LearnerError(
            f"the batches of the {split} data have {rows} rows, and {share.count} processes share them: batch sizes "
            f"are global, give {share.multiple} or a multiple of it",
            code="data-batch-size-uneven",
            split=split,
            rows=rows,
        )


def shards_itself(data: Any, share: ProcessShard, split: str) -> bool:
    """Return True if `data` is a Grain `DataLoader` that reads its own shard.

    Raises:
      LearnerError: it reads another process's shard.
    """
    options = getattr(data, "_shard_options", None)
    if type(data).__module__.partition(".")[0] != "grain" or options is None or options.shard_count == 1:
        return False
    if (options.shard_index, options.shard_count) != (share.index, share.count):
        raise LearnerError(
            f"the {split} data is a Grain DataLoader that reads shard {options.shard_index} of {options.shard_count}, "
            f"and this process has share {share.index} of {share.count}: give it grain.sharding.ShardOptions("
            f"shard_index={share.index}, shard_count={share.count}, drop_remainder=True)",
            code="data-shard-differs",
            split=split,
        )
    return True
