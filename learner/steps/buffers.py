"""The arguments and results of programs: micro-batches on the devices, and the outputs of steps."""

import dataclasses
from typing import Any

import jax

Array = Any
PyTree = Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ResidentBatches:
    """Micro-batches as rows of data on the device.

    Attributes:
      data: arrays `[rows of an epoch, ...]` in the order of this epoch; the last rows may be a ragged micro-batch.
      size: the rows of a full micro-batch.
      room: the maximum number of micro-batches in a dispatch.
      of_lanes: True if the arrays have a leading axis, the lanes of a population, outside of its programs.
    """

    data: PyTree
    size: int = dataclasses.field(metadata={"static": True})
    room: int = dataclasses.field(metadata={"static": True})
    of_lanes: bool = dataclasses.field(default=False, metadata={"static": True})

    def batch_shapes(self, rows: int) -> PyTree:
        """Return the shapes of a batch with this number of rows."""
        first = 1 + self.of_lanes
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct((rows, *x.shape[first:]), x.dtype), self.data)

    @property
    def rows(self) -> int:
        """The number of rows of an epoch."""
        return int(jax.tree.leaves(self.data)[0].shape[int(self.of_lanes)])

    @property
    def replicated(self) -> tuple[bool, bool]:
        """See `BatchBuffer`: there is one device."""
        return True, True

    def micro(self, index: Array) -> PyTree:
        """Return the `index`-th full micro-batch of the epoch."""
        return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, index * self.size, self.size), self.data)

    def tail(self) -> PyTree:
        """Return the ragged micro-batch at the end of the epoch."""
        return jax.tree.map(lambda x: x[x.shape[0] // self.size * self.size :], self.data)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class BatchBuffer:
    """Micro-batches in a buffer.

    Attributes:
      batches: arrays `[buffer, rows, ...]`; a dispatch may use fewer than `buffer` of them.
      last: the ragged micro-batch that ends a group, arrays `[fewer rows, ...]`, or `None`.
      replicated: for `batches` and for `last`, True if every device has all rows rather than a part of them.
    """

    batches: PyTree
    last: PyTree = None
    replicated: tuple[bool, bool] = dataclasses.field(default=(True, True), metadata={"static": True})

    @property
    def room(self) -> int:
        """The maximum number of micro-batches in a dispatch."""
        return int(jax.tree.leaves(self.batches)[0].shape[0])

    def micro(self, index: Array) -> PyTree:
        """Return the `index`-th micro-batch of the buffer."""
        return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, index, keepdims=False), self.batches)

    def tail(self) -> PyTree:
        """Return the ragged micro-batch."""
        return self.last


Feed = ResidentBatches | BatchBuffer


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StepOutputs:
    """The outputs of a dispatch for the logs, read later by the host.

    Attributes:
      table: float32 `[buffer, metrics + 2]`: for each step, the metrics' values, its weight, and its mark for
        non-finite values (see `learner.steps.finite`). One array, as each array takes time on the host and the device.
      rows: the rows of collecting metrics, arrays `[buffer, micro-batches, rows, ...]`.
      tail: the same for the ragged micro-batch, arrays `[rows, ...]`, or `()`.
    """

    table: Array
    rows: PyTree
    tail: PyTree = ()

    @property
    def numbers(self) -> Array:
        """float32 `[buffer, metrics]`."""
        return self.table[:, :-2]

    @property
    def weights(self) -> Array:
        """float32 `[buffer]`."""
        return self.table[:, -2]

    @property
    def nonfinite(self) -> Array:
        """float32 `[buffer]`."""
        return self.table[:, -1]

    @classmethod
    def of(cls, row: Array, rows: PyTree, tail: PyTree = ()) -> "StepOutputs":
        """Return the outputs of one step: `row` is its row of the table."""
        return cls(row[None], rows, tail)

    def put(self, index: Array, row: Array, rows: PyTree) -> "StepOutputs":
        """Return the outputs with the values of one step at `index`."""

        def set_at(buffer: Array, x: Array) -> Array:
            return jax.lax.dynamic_update_index_in_dim(buffer, x, index, 0)

        rows = jax.tree.map(set_at, self.rows, rows)
        return StepOutputs(set_at(self.table, row), rows, self.tail)
