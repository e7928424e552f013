"""Loaders: a dataset as batches, epoch by epoch, in an order that is a function of (seed, epoch) only.

    train = DataLoaderBuilder().batch_size(32).shuffle(seed=0).build(digits("train"))
    for batch in train:  # epoch 1; the next loop is epoch 2, in another order
        ...

Arrays in memory are gathered, one `take` per array and batch. Everything else is read through Grain, ahead and, if
wanted, by worker processes (`learner.data.pipeline`). The order is the same either way, for any number of workers.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from learner.data.batcher import Batcher, stack
from learner.data.dataset import ArrayDataset
from learner.data.fingerprint import describe_dataset, fields_of, name_of
from learner.data.plan import Plan, ProcessShard, whole_number
from learner.data.reader import Gather, Reader
from learner.data.sources.foreign import as_dataset
from learner.errors import LearnerError


class DataLoaderBuilder:
    """How a dataset becomes batches. Every method checks at once and returns the builder.

    Args:
      batcher: a function of a list of items that returns a batch; default: items are stacked (`learner.data.stack`).

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
                f"batcher is the class {batcher.__name__}: give an object of it, {batcher.__name__}(...)",
                code="data-batcher-not-instance",
            )
        self._batcher = batcher
        self._batch_size: int | None = None
        self._seed: int | None = None
        self._num_workers = 0
        self._drop_last = False
        self._prefetch = 2

    def batch_size(self, n: int) -> "DataLoaderBuilder":
        """Rows per batch, 1 or more; over all devices. Must be given."""
        self._batch_size = whole_number("batch_size", n, least=1)
        return self

    def shuffle(self, seed: int = 0) -> "DataLoaderBuilder":
        """A new order in every epoch, made from (seed, epoch). Without this: the dataset's own order."""
        self._seed = whole_number("the seed of shuffle", seed, least=0)
        return self

    def num_workers(self, n: int) -> "DataLoaderBuilder":
        """Processes that read the dataset and make the batches, in the same order; 0 (default): a thread does.

        They take seconds to start and live from epoch to epoch, until `DataLoader.close` or the loader's end. They
        import the script that starts them, so it needs `if __name__ == "__main__":`; the first batch raises
        `LearnerError` where it has none.
        """
        self._num_workers = whole_number("num_workers", n, least=0)
        return self

    def drop_last(self, drop: bool = True) -> "DataLoaderBuilder":
        """Leave out the last batch of an epoch when it is not full; by default it is kept."""
        if not isinstance(drop, bool):
            raise LearnerError(f"drop_last is {drop!r}: give True or False", code="data-drop-last-type")
        self._drop_last = drop
        return self

    def prefetch(self, n: int) -> "DataLoaderBuilder":
        """Batches read ahead by a thread (0: read when asked for), or by each worker (at least 1); default 2.

        Arrays in memory are gathered when asked for.
        """
        self._prefetch = whole_number("prefetch", n, least=0)
        return self

    def build(self, dataset: Any) -> "DataLoader":
        """The loader of what `as_dataset` takes: all that has a length and an index, or a dict of arrays.

        Raises:
          LearnerError: no batch size, no rows, fewer rows than one batch under `drop_last`, or not a dataset.
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
        if isinstance(data, ArrayDataset) and self._batcher is None and self._num_workers == 0:
            return Gather(data, plan)
        from learner.data.pipeline import Pipeline  # imports Grain, which takes a while

        return Pipeline(data, self._batcher or stack, plan, self._num_workers, self._prefetch)


class DataLoader:
    """Batches of a dataset, made by `DataLoaderBuilder.build`. `len(loader)` is the number of batches in an epoch.

    Iterating gives epoch after epoch: 1 the first time, 2 the second. `epoch(number, start)` gives any part of any one.

    Attributes:
      dataset: what is loaded.
      batch_size: rows per batch.
      in_memory: whether the dataset is an `ArrayDataset`, and batches are rows of its arrays (then a batch is those
        rows, `order(epoch)` after `order(epoch)`), because there is neither a batcher nor workers.
    """

    def __init__(self, dataset: Any, plan: Plan, reader: Reader, batcher: Batcher = stack) -> None:
        self.dataset = dataset
        self.batch_size = plan.batch_size
        self.in_memory = isinstance(reader, Gather)
        self._plan = plan
        self._reader = reader
        self._batcher = batcher
        self._epoch = 0

    @property
    def arrays(self) -> Any:
        """The NumPy arrays `[rows, ...]` where it is `in_memory`, otherwise `None`."""
        return self.dataset.arrays if self.in_memory else None

    def num_items(self) -> int:
        """Rows in an epoch, without those that `drop_last` leaves out."""
        return self._plan.num_items

    def order(self, epoch: int) -> np.ndarray:
        """The row numbers of an epoch, int32 `[num_items]`: batch k has those from `k * batch_size` on."""
        return self._plan.order(whole_number("epoch", epoch, least=1))

    def epoch(self, epoch: int, start: int = 0, share: ProcessShard | None = None) -> "BatchIterator":
        """The batches of an epoch (from 1) from batch number `start` (from 0) on. What is skipped is not read.

        Of each batch it gives the rows of `share` where there is one, and reads no others. A batcher then sees the
        items of the share only, so one that pads has to pad to the same length in all processes.

        Raises:
          LearnerError: `epoch` below 1, or `start` outside 0 to `len(loader)`.
        """
        return BatchIterator(self, self._reader, epoch, start, share)

    def fingerprint(self) -> dict[str, Any]:
        """Return JSON values that describe rows, batches and order: equal for loaders built alike, in any process.

        Nothing is read. `fields` is `None` where they are known from items only, as behind a batcher.

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
            "fields": fields_of(self.dataset.take(np.zeros(1, np.intp))) if self.in_memory else None,
        }

    def close(self) -> None:
        """Ends worker processes that wait for the next epoch. The loader stays usable: they start again when needed."""
        self._reader.close()

    def __len__(self) -> int:
        return self._plan.num_batches

    def __iter__(self) -> "BatchIterator":
        self._epoch += 1
        return self.epoch(self._epoch)

    def __repr__(self) -> str:
        plan = self._plan
        left_out = f" (without the last {plan.rows - plan.num_items})" if plan.rows > plan.num_items else ""
        order = "not shuffled" if plan.seed is None else f"shuffled with seed {plan.seed}"
        return (
            f"DataLoader(batch_size={plan.batch_size}, {plan.rows} rows of {type(self.dataset).__name__}{left_out} in "
            f"{plan.num_batches} batches, {order})"
        )


class BatchIterator:
    """The batches of one epoch, and where in it one is.

    >>> loader = DataLoaderBuilder().batch_size(2).build({"x": np.arange(6)})
    >>> batches = iter(loader)
    >>> next(batches)["x"].tolist(), batches.get_state()
    ([0, 1], {'epoch': 1, 'batch': 1})
    >>> batches.set_state({"epoch": 4, "batch": 2})
    >>> next(batches)["x"].tolist()
    [4, 5]
    """

    def __init__(
        self, loader: DataLoader, reader: Reader, epoch: int, start: int, share: ProcessShard | None = None
    ) -> None:
        self._loader = loader
        self._reader = reader
        self._share = share
        self._open(epoch, start)

    def __iter__(self) -> "BatchIterator":
        return self

    def __next__(self) -> Any:
        batch = next(self._batches)
        self._batch += 1
        return batch

    def get_state(self) -> dict[str, int]:
        """`{"epoch": from 1, "batch": how many batches of it have been given}`."""
        return {"epoch": self._epoch, "batch": self._batch}

    @property
    def part(self) -> bool:
        """Whether the batch given last is a part, as the share says, or a whole batch."""
        rows = self._loader._plan.rows_of(self._batch - 1)
        return self._share is not None and self._share.divides(rows.stop - rows.start)

    def set_state(self, state: Mapping[str, int]) -> None:
        """Goes to where `get_state` was called, also on a loader built alike, which then counts its epochs from there.

        Raises:
          LearnerError: not such a state, or one that lies outside the epoch.
        """
        if not isinstance(state, Mapping) or set(state) != {"epoch", "batch"}:
            raise LearnerError(
                f'set_state got {state!r}: it needs what get_state gives, {{"epoch": 1, "batch": 0}}',
                code="data-state-malformed",
            )
        before = self._batches
        self._open(state["epoch"], state["batch"])
        self._loader._epoch = self._epoch
        before.close()

    def close(self) -> None:
        """Ends reading ahead; no further batch is given."""
        self._batches.close()

    def _open(self, epoch: int, start: int) -> None:
        epoch, start = whole_number("epoch", epoch, least=1), whole_number("start", start, least=0)
        if start > len(self._loader):
            raise LearnerError(
                f"start is {start}: an epoch of this loader has {len(self._loader)} batches",
                code="data-start-outside",
                start=start,
            )
        self._epoch, self._batch = epoch, start
        self._batches = self._reader.read(epoch, start, self._share)
