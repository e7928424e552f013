"""Placement of micro-batches on the devices: in buffers, or as resident data in the order of an epoch."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from learner.data.abstract_source import Source
from learner.data.batch_arrays import refuse_wrapped
from learner.steps.buffers import BatchBuffer, ResidentBatches
from learner.strategies.base import Strategy
from learner.training.feed.group import MicroBatch, Signature

PyTree = Any


class Placer:
    """Place micro-batches on the devices of a strategy.

    Args:
      source: the data of a split.
      strategy: chooses the devices.

    Attributes:
      source: see above.
      strategy: see above.
    """

    def __init__(self, source: Source, strategy: Strategy):
        self.source, self.strategy = source, strategy

    def is_replicated(self, signature: Signature) -> bool:
        """Return True if every device gets all rows of a batch."""
        if self.source.share is not None:
            return not signature[2]
        return not self.strategy.divides(signature[1][0][0][0])

    def place(self, batches: PyTree, signature: Signature | None, last: MicroBatch | None = None) -> BatchBuffer:
        """Place a buffer of `stacked` micro-batches with one signature, and one more micro-batch separately."""
        put, replicated = self.strategy.put, (True, True)
        if signature is not None:
            replicated = self.is_replicated(signature), True
        if last is not None:
            replicated = replicated[0], self.is_replicated(last.signature)
        last_batch = None if last is None else jax.tree.map(device_dtype, last.batch)
        # A buffer with a ragged batch usually comes once per epoch, so a program to place it would not pay off.
        return BatchBuffer(
            None if signature is None else put(batches, axis=1, replicated=replicated[0], one_off=last is not None),
            None if last is None else put(last_batch, replicated=replicated[1], one_off=True),
            replicated,
        )


class StreamedParts:
    """The micro-batches of one step, which are placed one by one while the step runs. Placed together, they would need
    memory on the devices in proportion to their number.

    Args:
      placer: places them.
      micro_batches: the micro-batches on the host. The list is emptied, as they would need twice the memory while the
        next step is read.
    """

    def __init__(self, placer: Placer, micro_batches: list[MicroBatch]):
        self._placer, self._micro_batches = placer, micro_batches
        self._shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), micro_batches[-1].batch)

    def __iter__(self) -> Iterator[tuple[BatchBuffer, bool]]:
        """Place each micro-batch when it is requested, and release it on the host."""
        while self._micro_batches:
            yield self._placer.place(None, None, self._micro_batches.pop(0)), True

    def shapes(self) -> PyTree:
        """Return the shapes of the last micro-batch in this process."""
        return self._shapes


class ResidentRows:
    """Rows that stay on the devices during a run, in the order of one epoch at a time.

    Args:
      source: has `rows`.
      strategy: chooses the devices.
      room: the maximum number of micro-batches in one dispatch.
      lane_seeds: returns the seed of the order for each lane of a population whose members have their own orders.

    Attributes:
      data: the rows in their original order.
    """

    def __init__(
        self,
        source: Source,
        strategy: Strategy,
        room: int,
        lane_seeds: Callable[[], Sequence[int]] | None = None,
    ):
        rows = source.rows
        assert rows is not None
        refuse_wrapped(rows[0], source.split)  # once for all epochs
        self._arrays, self._order_of, self._size = rows
        self._strategy, self._room = strategy, room
        # Copies, as a CPU device may alias the memory of an array, depending on its alignment, and hooks may change it.
        self.data = strategy.place(jax.tree.map(lambda x: np.array(device_dtype(x)), self._arrays))
        self._lane_seeds = lane_seeds
        self._arrange = strategy.compile(_arranged if lane_seeds is None else _arranged_by_lane)
        self._epoch: tuple[Any, ResidentBatches] | None = None

    def batches(self, epoch: int) -> ResidentBatches:
        """Return the rows in the order of an epoch, arranging them if the epoch has changed."""
        if self._lane_seeds is not None:
            return self._batches_of_lanes(epoch, tuple(self._lane_seeds()))
        if self._epoch is None or self._epoch[0] != epoch:
            order = np.asarray(self._order_of(epoch), np.int32)
            # The last epoch's arrangement is released first, so that there are never two in addition to the data.
            self._epoch, data = None, self.data
            # Once per epoch, not in the loop: there, on a CPU, XLA treats a gather of a few rows like one of all rows,
            # and splits it between threads, which costs more than a small step.
            if not np.array_equal(order, np.arange(len(jax.tree.leaves(self._arrays)[0]))):
                data = self._arrange(self.data, self._strategy.place(order))
            self._epoch = epoch, ResidentBatches(data, min(self._size, len(order)), self._room)
        return self._epoch[1]

    def _batches_of_lanes(self, epoch: int, seeds: tuple[int, ...]) -> ResidentBatches:
        """Return the rows of an epoch in the order of each seed, `[lanes, rows, ...]`."""
        if self._epoch is None or self._epoch[0] != (epoch, seeds):
            self._epoch = None
            orders = np.stack([np.asarray(self._order_of(epoch, seed), np.int32) for seed in seeds])
            data = self._arrange(self.data, self._strategy.place(orders))
            size = min(self._size, orders.shape[1])
            self._epoch = (epoch, seeds), ResidentBatches(data, size, self._room, of_lanes=True)
        return self._epoch[1]


def stacked(batches: list[PyTree], size: int) -> PyTree:
    """Return a new buffer of `size` batches with the given ones at its start."""
    # A new one each time: a CPU device aliases the memory of the buffer instead of copying it, so refilling a buffer
    # would change the data of a dispatch in flight. Its unused end is not cleared: programs read only `count` batches.

    def stack(*arrays: np.ndarray) -> np.ndarray:
        buffer = np.empty((size, *arrays[0].shape), device_dtype(arrays[0]).dtype)
        for i, array in enumerate(arrays):
            buffer[i] = array
        return buffer

    return jax.tree.map(stack, *batches)


def device_dtype(array: Any) -> np.ndarray:
    """Return an array in JAX's dtype for it: 64-bit numbers become 32-bit, unless x64 is enabled."""
    array = np.asarray(array)
    return np.asarray(array, jax.dtypes.canonicalize_dtype(array.dtype))


def _arranged(data: PyTree, order: Any) -> PyTree:
    """Return the rows in the order of an epoch."""
    # `unique_indices` matters only for gradients, which are not used here: rows of a mixture or a sample may repeat.
    return jax.tree.map(lambda x: jnp.asarray(x).at[order].get(mode="promise_in_bounds", unique_indices=True), data)


def _arranged_by_lane(data: PyTree, orders: Any) -> PyTree:
    """Return the rows in the order of each lane."""
    return jax.vmap(_arranged, (None, 0))(data, orders)
