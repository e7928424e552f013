"""Programs: the functions that are compiled and dispatched. Up to `k` steps run in one loop with a traced count.

A program reads micro-batches from a feed: `ResidentBatches` slices them from data on the device, `BatchBuffer` has them
in a buffer. The count is traced, so a dispatch may be cut anywhere (by an epoch's end, a validation, a checkpoint, a
signal) without another compilation and without changing a bit.

Where loops are slow (a convolution on a CPU), and for groups of batches of several shapes, the same steps run without a
loop: `train_single`, or `add` for each micro-batch and `finish`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from learner.steps.buffers import Feed, StepOutputs
from learner.steps.finite import Mark
from learner.steps.measure import MetricCollection, Packed
from learner.steps.step import Accumulated, StepFunctions
from learner.steps.train_state import TrainState
from learner.steps.tree_math import keep_if
from learner.util.jaxprs import programs_in

Array = Any
PyTree = Any
Leaves = list[Array]


Trained = tuple[Leaves, Packed, Array, StepOutputs]  # leaves, the metrics' states, cursor, values
Validated = tuple[Packed, Array, Array, StepOutputs]  # the metrics' states, cursor, number, values


def _pack_row(numbers: Array, weight: Array, nonfinite: Array | float = 0.0) -> Array:
    return jnp.concatenate([numbers, jnp.stack([weight, jnp.asarray(nonfinite, jnp.float32)])])


def _no_values(measure: MetricCollection, buffer: int, rows: PyTree) -> StepOutputs:
    return StepOutputs(jnp.zeros((buffer, len(measure.step_names) + 2), jnp.float32), _buffers(rows, buffer))


@dataclasses.dataclass(frozen=True)
class Programs:
    """All programs of a run, as pure functions on the flat leaves of a `TrainState`.

    Their common arguments are `leaves` of the state and `epoch_metrics`, the packed metrics' states of the split so far
    (both donated if they are returned), `feed`, the source of micro-batches, `cursor`, int32, the index of the first
    micro-batch in the feed, and `count`, int32, the number of micro-batches.

    Attributes:
      step: the definition of the steps.
      tree: the structure of the state.
    """

    step: StepFunctions
    tree: Any

    def train(self, leaves: Leaves, epoch_metrics: Packed, feed: Feed, cursor: Array, count: Array) -> Trained:
        """Run optimizer steps over `count` micro-batches in one loop. The last group may be short."""
        measure, size = self.step.train_metrics, self.step.accumulate

        def one(leaves: Leaves, epoch_metrics: Packed, i: Array) -> tuple[Leaves, Packed, Array, PyTree, PyTree]:
            first = i * size
            return self._step(leaves, epoch_metrics, feed, cursor + first, jnp.minimum(size, count - first))

        def body(i: Array, carry: tuple[Leaves, Packed, StepOutputs]) -> tuple[Leaves, Packed, StepOutputs]:
            leaves, epoch_metrics, values = carry
            leaves, epoch_metrics, row, rows, _ = one(leaves, epoch_metrics, i)
            return leaves, epoch_metrics, values.put(i, row, rows)

        shapes = jax.eval_shape(lambda: one(leaves, epoch_metrics, jnp.int32(0))[3]) if measure.collecting else ()
        steps = (count + (size - 1)) // size
        carry = leaves, epoch_metrics, _no_values(measure, -(-feed.room // size), shapes)
        leaves, epoch_metrics, values = jax.lax.fori_loop(0, steps, body, carry)
        return leaves, epoch_metrics, cursor + count, values

    def train_tail(self, leaves: Leaves, epoch_metrics: Packed, feed: Feed, cursor: Array, count: Array) -> Trained:
        """Make one step over `count` full micro-batches and the feed's ragged one."""
        result = self._step(leaves, epoch_metrics, feed, cursor, count, with_tail=True)
        return self._single(result, cursor + count + 1)

    def train_single(self, leaves: Leaves, epoch_metrics: Packed, feed: Feed, cursor: Array, count: Array) -> Trained:
        """Make one step over one micro-batch, as a program without a loop."""
        return self._single(self._step(leaves, epoch_metrics, feed, cursor, count), cursor + count)

    def begin(self, leaves: Leaves) -> Leaves:
        """Return the empty accumulator of a step as leaves."""
        return jax.tree.leaves(self._begin(leaves)[1])

    def add(
        self, leaves: Leaves, acc: Leaves, feed: Feed, cursor: Array, index: Array
    ) -> tuple[Leaves, Array, Array, PyTree]:
        """Add one micro-batch to `acc` (donated), as a program without a loop. `index` is its number in the step."""
        return self._add(leaves, acc, feed.micro(cursor), feed.replicated[0], cursor, index)

    def add_tail(
        self, leaves: Leaves, acc: Leaves, feed: Feed, cursor: Array, index: Array
    ) -> tuple[Leaves, Array, Array, PyTree]:
        """Add the feed's ragged micro-batch; see `add`."""
        return self._add(leaves, acc, feed.tail(), feed.replicated[1], cursor, index)

    def finish(self, leaves: Leaves, acc: Leaves, epoch_metrics: Packed) -> tuple[Leaves, PyTree, StepOutputs]:
        """Run the update of a step whose micro-batches were added one by one. Their collected rows were already
        returned.
        """
        state, empty = self._begin(leaves)
        leaves, epoch_metrics, row = self._finish(
            state, jax.tree.unflatten(jax.tree.structure(empty), acc), epoch_metrics
        )
        return leaves, epoch_metrics, StepOutputs.of(row, ())

    def valid(
        self, leaves: Leaves, epoch_metrics: Packed, feed: Feed, cursor: Array, number: Array, count: Array
    ) -> Validated:
        """Validate `count` batches in one loop. This reads the state, but does not change it.

        `number`, int32, is the first batch's number within the split, from which its random key is derived.
        """
        measure, state = self.step.valid_metrics, self.tree.unflatten(leaves)

        def body(i: Array, carry: tuple[Packed, StepOutputs]) -> tuple[Packed, StepOutputs]:
            epoch_metrics, values = carry
            metrics, weight, rows = self.step.validate(state, feed.micro(cursor + i), number + i, feed.replicated[0])
            values = values.put(i, _pack_row(measure.step_values(metrics), weight), _grouped(rows))
            return measure.add(epoch_metrics, metrics), values

        shapes: PyTree = ()
        if measure.collecting:
            replicated = feed.replicated[0]
            shapes = jax.eval_shape(
                lambda: _grouped(self.step.validate(state, feed.micro(cursor), number, replicated)[2])
            )
        epoch_metrics, values = jax.lax.fori_loop(
            0, count, body, (epoch_metrics, _no_values(measure, feed.room, shapes))
        )
        return epoch_metrics, cursor + count, number + count, values

    def valid_single(
        self, leaves: Leaves, epoch_metrics: Packed, feed: Feed, cursor: Array, number: Array
    ) -> Validated:
        """Validate one batch, as a program without a loop."""
        return self._valid_one(leaves, epoch_metrics, feed.micro(cursor), feed.replicated[0], cursor, number)

    def valid_tail(self, leaves: Leaves, epoch_metrics: Packed, feed: Feed, cursor: Array, number: Array) -> Validated:
        """Validate the feed's ragged batch."""
        return self._valid_one(leaves, epoch_metrics, feed.tail(), feed.replicated[1], cursor, number)

    def outputs(self, leaves: Leaves, batch: PyTree, number: Array) -> PyTree:
        """Return the output of the predict step for a batch."""
        return self.step.predictions(self.tree.unflatten(leaves), batch, number)

    # -- the metrics of a split ----------------------------------------------------------------------------------------

    def measure(self, kind: str) -> MetricCollection:
        """Return the metrics of a kind of split, `train` or `valid`."""
        return self.step.train_metrics if kind == "train" else self.step.valid_metrics

    def fresh(self, kind: str) -> Packed:
        """Return the metrics' states of no batches."""
        return self.measure(kind).fresh()

    def totals(self, kind: str, epoch_metrics: Packed) -> tuple[dict[str, PyTree], Packed]:
        """Return the values over a split, and new states in place of the old ones."""
        return self.measure(kind).totals(epoch_metrics), self.fresh(kind)

    # ------------------------------------------------------------------------------------------------------------------

    def _step(
        self, leaves: Leaves, epoch_metrics: Packed, feed: Feed, cursor: Array, count: Array, with_tail: bool = False
    ) -> tuple[Leaves, Packed, Array, PyTree, PyTree]:
        """Make one step over `count` micro-batches and, with `with_tail`, the ragged one. Return the leaves, the
        metrics' states, the row of the table, the collected rows, and those of the tail.
        """
        step, tail_rows = self.step, ()
        if step.accumulate == 1:
            batch, replicated = (
                (feed.tail(), feed.replicated[1]) if with_tail else (feed.micro(cursor), feed.replicated[0])
            )
        if step.update is not None:
            state, metrics, weight, rows = step.custom(self.tree.unflatten(leaves), batch)
            row = self._pack_row_of(state, metrics, weight)
            return self._flat(state), self._add_metrics(epoch_metrics, metrics, state), row, _grouped(rows), ()
        state, acc = self._begin(leaves)
        value_fn = None
        if step.accumulate == 1:
            acc, rows = step.accumulate_micro_batch(state, acc, batch, jnp.int32(0), replicated)
            rows, value_fn = _grouped(rows), None if step.axis or step.accumulates else step.value_fn(state, batch)
        else:
            acc, rows = self._accumulate(state, acc, feed, cursor, count)
            if with_tail:
                acc, tail_rows = step.accumulate_micro_batch(state, acc, feed.tail(), count, feed.replicated[1])
        return *self._finish(state, acc, epoch_metrics, value_fn), rows, tail_rows

    def _begin(self, leaves: Leaves) -> tuple[TrainState, Accumulated]:
        state = self.tree.unflatten(leaves)
        return state, self.step.begin(state)

    def _accumulate(
        self, state: TrainState, acc: Accumulated, feed: Feed, cursor: Array, count: Array
    ) -> tuple[Accumulated, PyTree]:
        def body(j: Array, carry: tuple[Accumulated, PyTree]) -> tuple[Accumulated, PyTree]:
            acc, buffer = carry
            acc, rows = self.step.accumulate_micro_batch(state, acc, feed.micro(cursor + j), j, feed.replicated[0])
            return acc, jax.tree.map(lambda b, x: jax.lax.dynamic_update_index_in_dim(b, x, j, 0), buffer, rows)

        shapes: PyTree = ()
        if self.step.train_metrics.collecting:
            zero, replicated = jnp.int32(0), feed.replicated[0]
            shapes = jax.eval_shape(
                lambda: self.step.accumulate_micro_batch(state, acc, feed.micro(cursor), zero, replicated)[1]
            )
        added: tuple[Accumulated, PyTree] = acc, _buffers(shapes, self.step.accumulate)
        added = jax.lax.fori_loop(0, count, body, added)
        return added  # noqa: RET504 (its type is known by name only)

    def _add(
        self, leaves: Leaves, acc: Leaves, batch: PyTree, replicated: bool, cursor: Array, index: Array
    ) -> tuple[Leaves, Array, Array, PyTree]:
        state, empty = self._begin(leaves)
        added, rows = self.step.accumulate_micro_batch(
            state, jax.tree.unflatten(jax.tree.structure(empty), acc), batch, index, replicated
        )
        return jax.tree.leaves(added), cursor + 1, index + 1, rows

    def _finish(
        self,
        state: TrainState,
        acc: Accumulated,
        epoch_metrics: Packed,
        value_fn: Callable[[PyTree], Array] | None = None,
    ) -> tuple[Leaves, Packed, Array]:
        new, metrics, weight = self.step.finish(state, acc, value_fn)
        return (
            self._flat(new),
            self._add_metrics(epoch_metrics, metrics, new),
            self._pack_row_of(new, metrics, weight),
        )

    def _add_metrics(self, epoch: Packed, metrics: PyTree, new: TrainState) -> Packed:
        """Return the metrics' states of an epoch with those of a step, unless the step was skipped as not finite."""
        added = self.step.train_metrics.add(epoch, metrics)
        if self.step.watch.policy != "skip":
            return added
        # Negative if gradients overflowed: such a step lowers the loss scale, and its loss counts.
        kept: Packed = keep_if(new.extra["nonfinite"][Mark.KIND] <= 0, added, epoch)
        return kept

    def _pack_row_of(self, new: TrainState, metrics: PyTree, weight: Array) -> Array:
        return _pack_row(self.step.train_metrics.step_values(metrics), weight, new.extra["nonfinite"][Mark.KIND])

    def _single(self, result: tuple[Leaves, Packed, Array, PyTree, PyTree], cursor: Array) -> Trained:
        leaves, epoch_metrics, row, rows, tail = result
        return leaves, epoch_metrics, cursor, StepOutputs.of(row, _grouped(rows), tail)

    def _valid_one(
        self, leaves: Leaves, epoch_metrics: Packed, batch: PyTree, replicated: bool, cursor: Array, number: Array
    ) -> Validated:
        measure = self.step.valid_metrics
        metrics, weight, rows = self.step.validate(self.tree.unflatten(leaves), batch, number, replicated)
        values = StepOutputs.of(_pack_row(measure.step_values(metrics), weight), _grouped(_grouped(rows)))
        return measure.add(epoch_metrics, metrics), cursor + 1, number + 1, values

    def _flat(self, state: TrainState) -> Leaves:
        leaves, tree = jax.tree.flatten(state)
        assert tree == self.tree, "a step changed the structure of the state"
        return leaves


def _buffers(rows: PyTree, size: int) -> PyTree:
    return jax.tree.map(lambda x: jnp.zeros((size, *x.shape), x.dtype), rows)


def _grouped(rows: PyTree) -> PyTree:
    return jax.tree.map(lambda x: x[None], rows)


def has_convolution(jaxpr: Any) -> bool:
    """Return True if a traced program contains a convolution, at any depth."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "conv_general_dilated":
            return True
        if any(map(has_convolution, programs_in(equation))):
            return True
    return False
