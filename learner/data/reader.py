"""Where a loader's batches come from: the interface, and arrays in memory."""

from collections.abc import Generator
from typing import Any, Protocol

import jax
import numpy as np

from learner.data.plan import Plan


class Reader(Protocol):
    """A way of loading: the batches of an epoch (from 1) from batch `start` (from 0) on."""

    def read(self, epoch: int, start: int) -> Generator[Any, None, None]:
        """Gives the batches; closing the generator ends reading ahead."""

    def close(self) -> None:
        """Gives back what is held between epochs."""


class Gather:
    """Batches of arrays in memory: copies, so that a batch may be changed or kept."""

    def __init__(self, arrays: Any, plan: Plan) -> None:
        self.arrays = arrays
        self._plan = plan

    def read(self, epoch: int, start: int) -> Generator[Any, None, None]:
        """The batches of an epoch (from 1) from batch `start` (from 0) on."""
        leaves: list[np.ndarray]
        structure: Any
        leaves, structure = jax.tree.flatten(self.arrays)
        size = self._plan.batch_size
        order = self._plan.order(epoch).astype(np.intp)  # NumPy would convert the rows of every batch otherwise
        for first in range(start * size, len(order), size):
            rows = order[first : first + size]
            yield structure.unflatten([leaf.take(rows, axis=0) for leaf in leaves])

    def close(self) -> None:
        """Nothing is held between epochs."""
