"""Loaders: a dataset as batches, epoch by epoch, in an order that depends only on (seed, epoch).

    train = DataLoaderBuilder().batch_size(32).shuffle(seed=0).build(digits("train"))
    for batch in train:  # epoch 1; the next loop is epoch 2, in another order
        ...

Arrays in memory are gathered, one `take` per array and batch. All other data is prefetched through Grain, optionally by
worker processes (`learner.data.pipeline`). The order is the same either way, for any number of workers.
"""

from collections.abc import Callable, Generator, Mapping
from typing import Any, Protocol

import numpy as np

from learner.data.array_dataset import ArrayDataset
from learner.data.batch_arrays import digest_of
from learner.data.batcher import Batcher, declares, stack
from learner.data.data_fingerprint import checksum_text, describe_dataset, fields_of, name_of, sampled
from learner.data.dataset import as_dataset
from learner.data.mixture import Mixture, MixturePool
from learner.data.plan import Plan
from learner.data.sharding import ProcessShard
from learner.errors import LearnerError
from learner.util.number_checks import check_int


class Reader(Protocol):
    """The interface of readers: they yield the batches of an epoch from any position, or a share of each batch."""

    def read(self, epoch: int, start: int, share: ProcessShard | None = None) -> Generator[Any, None, None]:
        """Yield the batches of an epoch (from 1) from batch `start` (from 0) on. `close()` ends prefetching."""

    def close(self) -> None:
        """Release the resources that are kept between epochs."""


class Gather:
    """Reads batches of arrays in memory. Batches are copies, so they may be changed or kept.

    Args:
      data: the arrays.
      plan: the batches of the dataset.
      drawn: returns the rows of the arrays that form the dataset in an epoch; None: all rows, in order.
    """

    def __init__(
        self, data: ArrayDataset | MixturePool, plan: Plan, drawn: Callable[[int], np.ndarray] | None = None
    ) -> None:
        self.data = data
        self._plan = plan
        self._drawn = drawn

    @property
    def nbytes(self) -> int:
        """Return the size of the arrays, or of an epoch if that is larger."""
        return max(self.data.nbytes, self.data.nbytes // len(self.data) * self._plan.num_items)

    def order(self, epoch: int, seed: int | None = None) -> np.ndarray:
        """Return the rows of the arrays in the order of an epoch (from 1); `seed`: see `Plan.order`."""
        order = self._plan.order(epoch, seed)
        return order if self._drawn is None else self._drawn(epoch)[order].astype(order.dtype)

    def read(self, epoch: int, start: int, share: ProcessShard | None = None) -> Generator[Any, None, None]:
        """See `Reader`."""
        order = self.order(epoch).astype(np.intp)  # otherwise NumPy would convert the rows of every batch
        size = self._plan.batch_size
        for number in range(start, self._plan.num_batches):
            rows = slice(number * size, (number + 1) * size) if share is None else self._plan.rows_of(number, share)
            yield self.data.take(order[rows])

    def close(self) -> None:
        """Do nothing: no resources are kept between epochs."""


class DataLoaderBuilder:
    """Builds loaders. Every method checks its arguments at once and returns the builder.

    Args:
      batcher: a function that turns a list of items into a batch; default: `learner.data.stack`.

    >>> loader = DataLoaderBuilder().batch_size(4).shuffle(seed=1).build({"x": np.arange(10)})
    >>> loader
    DataLoader(batch_size=4, 10 rows of ArrayDataset in 3 batches, shuffled with seed 1)
    >>> [len(batch["x"]) for batch in loader]
    [4, 4, 2]
    """

    def __init__(self, batcher: Batcher | None = None) -> None:
        if batcher is not None and not callable(batcher):
            raise LearnerError(
                f"batcher is a {type(batcher).__name__}: give a function of a list of items", code="data-batcher-type"
            )
        if isinstance(batcher, type):
            raise LearnerError(
                f"batcher is the class {batcher.__name__}: pass an instance, {batcher.__name__}(...)",
                code="data-batcher-not-instance",
            )
        self._batcher = batcher
        self._batch_size: int | None = None
        self._seed: int | None = None
        self._num_workers = 0
        self._drop_last = False
        self._prefetch = 2

    def batch_size(self, n: int) -> "DataLoaderBuilder":
        """Set the rows per batch over all devices, 1 or more. Required."""
        self._batch_size = check_int("batch_size", n, least=1)
        return self

    def shuffle(self, seed: int = 0) -> "DataLoaderBuilder":
        """Shuffle each epoch into a new order, seeded with (seed, epoch). Default: the dataset's own order."""
        self._seed = check_int("the seed of shuffle", seed, least=0)
        return self

    def num_workers(self, n: int) -> "DataLoaderBuilder":
        """Set the number of worker processes that read the dataset and make batches, in order. Default: 0, a thread.

        Workers take seconds to start and live from epoch to epoch, until `DataLoader.close` or the loader's end. They
        import the main script, which therefore needs `if __name__ == "__main__":`; otherwise the first batch raises
        `LearnerError`.
        """
        self._num_workers = check_int("num_workers", n, least=0)
        return self

    def drop_last(self, drop: bool = True) -> "DataLoaderBuilder":
        """Drop the last batch of an epoch if it is not full; by default it is included."""
        if not isinstance(drop, bool):
            raise LearnerError(f"drop_last is {drop!r}: give True or False", code="data-drop-last-type")
        self._drop_last = drop
        return self

    def prefetch(self, n: int) -> "DataLoaderBuilder":
        """Set the number of batches that a thread (0: none), or each worker (at least 1), prefetches. Default: 2.

        Arrays in memory are not prefetched.
        """
        self._prefetch = check_int("prefetch", n, least=0)
        return self

    def build(self, dataset: Any) -> "DataLoader":
        """Return a loader of data that `as_dataset` accepts: an object with a length and an index, or a dict of arrays.

        Raises:
          LearnerError: there is no batch size, the dataset is empty or invalid, or has less than one batch under
            `drop_last`.
        """
        data = as_dataset(dataset)
        if self._batch_size is None:
            raise LearnerError(
                "DataLoaderBuilder has no batch size: give it one with .batch_size(32)", code="data-batch-size-missing"
            )
        plan = Plan(len(data), self._batch_size, self._seed, self._drop_last)
        if plan.num_batches == 0:
            raise LearnerError(
                f"drop_last leaves nothing: the dataset has {plan.rows} rows and batch_size is {plan.batch_size}; "
                "give a smaller batch_size, or drop_last(False)",
                code="data-drop-last-leaves-none",
            )
        return DataLoader(data, plan, self._reader(data, plan), self._batcher or stack)

    def _reader(self, data: Any, plan: Plan) -> Reader:
        if self._batcher is None and self._num_workers == 0:
            if isinstance(data, ArrayDataset):
                return Gather(data, plan)
            if isinstance(data, Mixture) and (pool := data.pool) is not None:
                return Gather(pool, plan, data.pool_rows)
        from learner.data.pipeline import Pipeline  # imports Grain, which takes a while

        return Pipeline(data, self._batcher or stack, plan, self._num_workers, self._prefetch)


class DataLoader:
    """Batches of a dataset, made by `DataLoaderBuilder.build`. `len(loader)` is the number of batches in an epoch.

    Each iteration is the next epoch, from 1. `epoch(number, start)` returns the batches of any epoch from any position.

    Attributes:
      dataset: the data.
      batch_size: rows per batch.
      in_memory: True if the dataset is an `ArrayDataset` or a mixture of them, without a batcher or workers: batches
        are rows of `arrays` in the order of `order(epoch)`.
      iterations: the number of iterations so far, which is the epoch of the latest one.
    """

    counts_iterations = True  # see `learner.data.randomness`

    def __init__(self, dataset: Any, plan: Plan, reader: Reader, batcher: Batcher = stack) -> None:
        self.dataset = dataset
        self.batch_size = plan.batch_size
        self._gather = reader if isinstance(reader, Gather) else None
        self.in_memory = self._gather is not None
        self._plan = plan
        self._reader = reader
        self._batcher = batcher
        self.iterations = 0

    @property
    def arrays(self) -> Any:
        """Return the NumPy arrays `[rows, ...]` if the loader is `in_memory`, None otherwise. For a mixture, the arrays
        of its sources are concatenated.
        """
        return None if self._gather is None else self._gather.data.arrays

    @property
    def num_workers(self) -> int:
        """Return the number of worker processes."""
        return getattr(self._reader, "num_workers", 0)

    @property
    def nbytes(self) -> int | None:
        """Return the size of `arrays`, or of an epoch of them if that is larger; None unless it is `in_memory`."""
        return None if self._gather is None else self._gather.nbytes

    @property
    def needs_all_rows(self) -> bool:
        """Return True if the batcher needs all rows of a batch also for a share of it: see `Batcher`."""
        return declares(self._batcher, "needs_all_rows")

    def num_items(self) -> int:
        """Return the number of rows in an epoch, without rows that `drop_last` drops."""
        return self._plan.num_items

    def order(self, epoch: int, seed: int | None = None) -> np.ndarray:
        """Return the row numbers of an epoch, int32 `[num_items]`: batch k begins at `k * batch_size`. They index
        `arrays`, or the dataset unless `in_memory`. `seed` replaces the seed of a loader that shuffles.
        """
        number = check_int("epoch", epoch, least=1)
        return self._plan.order(number, seed) if self._gather is None else self._gather.order(number, seed)

    def epoch(self, epoch: int, start: int = 0, share: ProcessShard | None = None) -> "BatchIterator":
        """Return the batches of an epoch (from 1) from batch number `start` (from 0) on. Skipped batches are not read.

        With a `share`, the batches are cut to its rows, and only these are read, unless the loader `needs_all_rows`.

        Raises:
          LearnerError: `epoch` is below 1, or `start` is outside 0 to `len(loader)`.
        """
        return BatchIterator(self, epoch, start, share)

    def fingerprint(self) -> dict[str, Any]:
        """Return JSON values that describe rows, batches and order: equal for equally built loaders, in any process.

        Only arrays in memory are read. `fields` is `None` if only reading items could tell, as with a batcher.

        >>> loader = DataLoaderBuilder().batch_size(4).shuffle(seed=1).build({"x": np.arange(10)})
        >>> facts = loader.fingerprint()
        >>> facts["rows"], facts["batches"], facts["order"], facts["seed"], facts["fields"]
        (10, 3, 'shuffled', 1, {'x': 'int64 []'})
        """
        plan = self._plan
        return {
            "dataset": describe_dataset(self.dataset),
            "rows": plan.rows,
            "batches": plan.num_batches,
            "batch_size": plan.batch_size,
            "drop_last": plan.drop_last,
            "order": "as given" if plan.seed is None else "shuffled",
            "seed": plan.seed,
            "batcher": name_of(self._batcher),
            "in_memory": self.in_memory,
            "contents": checksum_text(self.digest()),
            "fields": None if self._gather is None else fields_of(self._gather.data.take(np.zeros(1, np.intp))),
        }

    def digest(self) -> int | None:
        """Return a checksum of rows, see `sampled`: equal for equal arrays in memory, in any process; None for other
        data, as a user's function may compute its items at random.

        >>> of = lambda numbers: DataLoaderBuilder().batch_size(2).build({"x": np.arange(numbers)}).digest()
        >>> of(6) == of(6), of(6) == of(7)
        (True, False)
        """
        if self._gather is None:
            return None
        data = self._gather.data  # `arrays` would copy all rows of a view
        return digest_of(data.take(sampled(len(data), data.nbytes // len(data))))

    def close(self) -> None:
        """End worker processes that wait for the next epoch. The loader stays usable: they start again when needed."""
        self._reader.close()

    def __len__(self) -> int:
        return self._plan.num_batches

    def __iter__(self) -> "BatchIterator":
        self.iterations += 1
        return self.epoch(self.iterations)

    def __repr__(self) -> str:
        plan = self._plan
        left_out = f" (without the last {plan.rows - plan.num_items})" if plan.rows > plan.num_items else ""
        order = "not shuffled" if plan.seed is None else f"shuffled with seed {plan.seed}"
        return (
            f"DataLoader(batch_size={plan.batch_size}, {plan.rows} rows of {type(self.dataset).__name__}{left_out} in "
            f"{plan.num_batches} batches, {order})"
        )


class BatchIterator:
    """The batches of one epoch, with a position that can be read and set.

    Attributes:
      part: True if the batch returned last is only the share of a batch.

    >>> loader = DataLoaderBuilder().batch_size(2).build({"x": np.arange(6)})
    >>> batches = iter(loader)
    >>> next(batches)["x"].tolist(), batches.get_state()
    ([0, 1], {'epoch': 1, 'batch': 1})
    >>> batches.set_state({"epoch": 4, "batch": 2})
    >>> next(batches)["x"].tolist()
    [4, 5]
    """

    def __init__(self, loader: DataLoader, epoch: int, start: int, share: ProcessShard | None = None) -> None:
        self._loader = loader
        self._share = share
        self.part = False
        self._open(epoch, start)

    def __iter__(self) -> "BatchIterator":
        return self

    def __next__(self) -> Any:
        batch = next(self._batches)
        self._batch += 1
        if self._share is not None and self._loader.needs_all_rows:
            batch, self.part = self._share.cut(batch)
        elif self._share is not None:
            rows = self._loader._plan.rows_of(self._batch - 1)
            self.part = self._share.divides(rows.stop - rows.start)
        return batch

    def get_state(self) -> dict[str, int]:
        """Return the position: `{"epoch": from 1, "batch": the number of batches returned so far}`."""
        return {"epoch": self._epoch, "batch": self._batch}

    def set_state(self, state: Mapping[str, int]) -> None:
        """Go to a position from `get_state`, also of an equally built loader. The loader counts its epochs from there.

        Raises:
          LearnerError: the state is malformed, or outside the epoch.
        """
        if not isinstance(state, Mapping) or set(state) != {"epoch", "batch"}:
            raise LearnerError(
                f'set_state got {state!r}: it needs what get_state gives, {{"epoch": 1, "batch": 0}}',
                code="data-state-malformed",
            )
        before = self._batches
        self._open(state["epoch"], state["batch"])
        self._loader.iterations = self._epoch
        before.close()

    def close(self) -> None:
        """End prefetching; no further batch is returned."""
        self._batches.close()

    def _open(self, epoch: int, start: int) -> None:
        epoch, start = check_int("epoch", epoch, least=1), check_int("start", start, least=0)
        if start > len(self._loader):
            raise LearnerError(
                f"start is {start}: an epoch of this loader has {len(self._loader)} batches",
                code="data-start-outside",
                start=start,
            )
        self._epoch, self._batch = epoch, start
        share = None if self._loader.needs_all_rows else self._share
        self._batches = self._loader._reader.read(epoch, start, share)
