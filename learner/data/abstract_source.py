"""The interface of all data: the batches of one split, epoch by epoch, from any position."""

import abc
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import numpy as np

from learner.data.sharding import Batches, ProcessShard, ShardedBatches
from learner.errors import LearnerError

PyTree = Any
CHANGED = "changed between epochs"  # the only key of such a state


def changed(state: Any) -> dict[str, Any]:
    """Return the state of data that changed between two epochs, as JSON."""
    return {CHANGED: state}


class Source(abc.ABC):
    """The batches of one split.

    Attributes:
      split: the name of the split, for messages.
      batches: batches per epoch, or `None` if unknown.
      repeats: True if the data can be read more than once.
      share: the rows of every batch that this process reads; `None` for all rows.
      own: True if every process has its own data, so that the state of `Batches.where` differs between them.
      endless: True if the data is known to have no end.
      batchable: the class of data that has a method `batch`, as Grain's and streamed datasets of Hugging Face; else "".
      first_part: True if the batch that `peek` returned last is this process's part of a batch.
      will_keep: True if `keep_state` will be called.
      first_digest: a checksum of that batch, or of rows of arrays in memory; None if it may differ between processes.
    """

    repeats = True

    def __init__(self, split: str, batches: int | None, share: ProcessShard | None, own: bool):
        self.split = split
        self.batches = batches
        self.share = share
        self.own = own
        self.endless = False
        self.batchable = ""
        self.first_part = False
        self.first_digest: int | None = None
        self.will_keep = False
        self._most: int | None = None
        self._kept: tuple[int, Batches] | None = None
        self._first: PyTree = None  # the batch that `peek` gave last
        self._opened = self._resumed = False

    @property
    def shares(self) -> int:
        """Return the number of parts of a batch."""
        return 1 if self.share is None else self.share.count

    @property
    def differs(self) -> bool:
        """Return True if processes have different rows of their own, and False if all need the same data."""
        return self.own and self.shares > 1

    @property
    def is_uniform(self) -> bool:
        """Return True if the shapes of batches cannot differ between processes that have agreed on the data."""
        return False

    @property
    def claimed_batches(self) -> int | None:
        """Return the batches per epoch that the data itself claims to have; None if it claims none, or is limited."""
        return self.batches if self._most is None else None

    @abc.abstractmethod
    def _open(self, epoch: int, start: int, state: Any, warn: Callable[[str], None]) -> Batches:
        """See `open`; the state is a result of `Batches.where`."""

    def limit(self, batches: int) -> None:
        """End each epoch after at most `batches` batches."""
        self._most, self.endless = batches, False
        self.batches = batches if self.batches is None else min(batches, self.batches)

    @abc.abstractmethod
    def fingerprint(self) -> dict[str, Any]:
        """Return JSON values that describe the data, equal for the same data in any process.

        Rows and batch size are those of all processes together. A value is `None` if the data does not provide it.

        - `kind`: `loader` (one of ours), `iterable`, `function` (that returns batches) or `iterator`
        - `class`: the name of the class, or of the function or generator
        - `rows`: per epoch, before `drop_last`; `batches`: per epoch; `batch_size`; `drop_last`
        - `fields`: dtype and shape of a row by field, as `float32 [8, 8]`; `?` for axes whose length may change with
          the order; `None` before `peek`
        - `order`: `shuffled` or `as given`; `seed`: the seed of the order, for our loaders
        - `dataset`, `batcher` (our loaders), `sampler` (others): descriptions; `in_memory`: arrays (our loaders)
        - `contents`: a checksum of rows in memory
        """

    def describe(self, epoch: int) -> list[str]:
        """Return lines about the rows of an epoch (from 1) for the log; none unless the data draws its rows."""
        return []

    def describe_state(self, state: Any) -> list[str]:
        """Return lines for the log about the rows that were read up to a state of `Batches.where`."""
        return []

    def _of_all_processes(self, facts: dict[str, Any]) -> dict[str, Any]:
        if not self.differs:
            return facts
        size = facts["batch_size"]  # of this process; the rows of other processes are unknown
        size = None if size is None else size * self.shares
        unknown: dict[str, Any] = {name: None for name in ("dataset", "contents") if name in facts}
        return {**facts, "rows": None, "batch_size": size, "own": True, **unknown}

    def refuse_position(self, epoch: int, start: int, state: Any = None) -> None:  # noqa: B027 (most may be)
        """Raise `LearnerError` if the batches from a position on cannot be read again."""

    def end_epoch(self, epoch: int, state: Any, warn: Callable[[str], None]) -> Callable[[], Any] | None:
        """Repeat the end of an epoch: data may carry state into the next epoch, such as a shuffling order.

        Args:
          epoch: from 1.
          state: the state of `Batches.where` after the epoch's last batch.
          warn: called with a text if the data does not accept the state.

        Returns:
          See `Batches.between`.
        """
        return None

    def keep_state(self) -> list[str]:
        """Make `Batches.where` return positions from now on, for checkpoints. Return warnings about the states.

        Raises:
          LearnerError: the state of the data cannot be stored in a checkpoint.
        """
        return []

    def shorter(self, epoch: int, start: int, found: int | None = None) -> LearnerError:
        """Return the error of an epoch that ended at or before batch `start` (`found`: the batches it had)."""
        ends = "at or before that one" if found is None else f"after {found}"
        return LearnerError(
            f"the {self.split} data is shorter than it was: the run resumes after batch {start} of epoch {epoch}, and "
            f"now the data ends {ends}. Pass the data that the run was trained on, or resume from the end of an epoch: "
            "checkpoint(epoch)",
            code="resume-data-shorter",
            start=start,
            epoch=epoch,
        )

    @property
    def rows(self) -> tuple[PyTree, Callable[..., np.ndarray], int] | None:
        """Return arrays that may be kept on the device, a function that returns the row order of an epoch (with another
        seed, if given), and the batch size; None for streams. Data that several processes share is a stream. Each
        access gathers the arrays of views.
        """
        return None

    @property
    def arrays(self) -> PyTree | None:
        """Return the arrays in this process's memory from which the batches take their rows; None for streams. Each
        access gathers the arrays of views.
        """
        return None

    def unsaved(self) -> dict[str, Hashable]:
        """Return digests of what hooks could change in the data, but no checkpoint contains."""
        return {}

    def draws_itself(self) -> bool:
        """Return True if the data has random generators of its own, so that it may differ each time it is read."""
        return False

    def is_reproducible(self) -> bool:
        """Return True if the first batch is expected to be the same in each process that reads the data: neither its
        order nor its items are random, or depend on a state. Functions and iterables may draw random numbers unseen.
        """
        return False

    def bad_batch(self) -> str | None:
        """Return the fields of the first batch in memory that are not finite, for messages; empty if there is none.
        Return None if batches are not in memory.
        """
        return None

    @property
    def has_rows(self) -> bool:
        """Return True if `rows` is not None."""
        return False

    def close(self) -> None:
        """Release the data's resources: worker processes, including those that prefetch a first batch."""
        self._kept = None

    def _sharded(
        self,
        batches: Iterator[Any],
        where: Callable[[], Any] | None = None,
        end: Callable[[], Any] | None = None,
    ) -> Batches:
        """Return the batches of data that does not shard them itself."""
        if self.share is None:
            return Batches(batches, where, end=end)
        return ShardedBatches(batches, self.share, self.own, self.split, where, end)

    def open(
        self, epoch: int, start: int = 0, state: Any = None, warn: Callable[[str], None] = lambda text: None
    ) -> Batches:
        """Return the batches of an epoch from batch number `start` on, including a batch that `peek` read.

        Args:
          epoch: from 1.
          start: from 0.
          state: the state of `Batches.where` after the previous batch (if `start` is 0, the last one of the previous
            epoch); or `changed` of `Batches.between` after that epoch. Data without a state does not need it.
          warn: called with a text if reaching the position takes time, or if the batches may differ.
        """
        self._resumed = not self._opened and (epoch, start) != (1, 0)
        self._opened = True
        kept, self._kept = self._kept, None
        if kept is not None and kept[0] == epoch:
            batches = kept[1] if start == 0 and state is None else self._continued(kept[1], epoch, start, state, warn)
            if batches is not None:
                return self._limited(batches, start)
        # Its threads and worker processes end here, before those of the next iterator start.
        del kept
        return self._limited(self._open(epoch, start, state, warn), start)

    def _continued(
        self, batches: Batches, epoch: int, start: int, state: Any, warn: Callable[[str], None]
    ) -> Batches | None:
        """Return the batches that `peek` has begun, moved to another position of their epoch; None to open the epoch
        again. The arguments are those of `open`.
        """
        return None

    def _limited(self, batches: Batches, start: int) -> Batches:
        if self._most is not None:
            batches.limit(max(0, self._most - start))
        return batches

    def peek(self, epoch: int) -> PyTree:
        """Return the first batch of an epoch. It stays part of the epoch."""
        batches = self._open(epoch, 0, None, lambda text: None)
        try:
            first = batches.peek()
        except StopIteration:
            raise LearnerError(
                f"the {self.split} data has no batches: the loader is empty", code="data-without-batches"
            ) from None
        self._kept, self.first_part, self._first = (epoch, batches), batches.part(), first
        self.first_digest = batches.first_digest
        return first
