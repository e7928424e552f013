"""Where a loader's batches come from: the interface, and arrays in memory."""

from collections.abc import Generator
from typing import Any, Protocol

import numpy as np

from learner.data.dataset import ArrayDataset
from learner.data.plan import Plan, ProcessShard


class Reader(Protocol):
    """A way of loading: the batches of an epoch (from 1) from batch `start` (from 0) on, or the share of each."""

    def read(self, epoch: int, start: int, share: ProcessShard | None = None) -> Generator[Any, None, None]:
        """Gives the batches; closing the generator ends reading ahead."""

    def close(self) -> None:
        """Gives back what is held between epochs."""


class Gather:
    """Batches of arrays in memory: copies, so that a batch may be changed or kept."""

    def __init__(self, data: ArrayDataset, plan: Plan) -> None:
        self._data = data
        self._plan = plan

    def read(self, epoch: int, start: int, share: ProcessShard | None = None) -> Generator[Any, None, None]:
        """See `Reader`."""
        order = self._plan.order(epoch).astype(np.intp)  # NumPy would convert the rows of every batch otherwise
        size = self._plan.batch_size
        for number in range(start, self._plan.num_batches):
            rows = slice(number * size, (number + 1) * size) if share is None else self._plan.rows_of(number, share)
            yield self._data.take(order[rows])

    def close(self) -> None:
        """Nothing is held between epochs."""
