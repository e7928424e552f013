"""Single steps for custom training loops, by the same programs that `fit` dispatches, with bit-identical results.

XLA rounds a step inside a loop differently from a separate step, so a step is a loop of one iteration wherever `fit`
would use loops (see `learner.steps.program`).
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from learner.steps.buffers import BatchBuffer
from learner.steps.measure import MetricCollection
from learner.steps.program import Programs, has_convolution
from learner.steps.step import StepFunctions
from learner.steps.train_state import TrainState
from learner.steps.tree_math import rows_of
from learner.training.feed.group import bytes_of, steps_for

Array = Any
PyTree = Any
StepOutputs = dict[str, Array]


class SingleStepRunner:
    """Compiled steps on one device, which leave their arguments unchanged.

    Attributes:
      step: the definition of the steps.
    """

    def __init__(self, step: StepFunctions, platform: str, first: PyTree = None):
        """Prepare the programs.

        Args:
          step: the definition of the steps.
          platform: `cpu`, `gpu` or `tpu`.
          first: the first training batch of an epoch, which has the regular shapes; default: the first step's batch.
        """
        self.step = step
        self._platform = platform
        self._regular: dict[str, PyTree] = {}  # the shapes of the first batch of each split
        if first is not None:
            self._regular["train"] = _shapes(first)
        self._loops: dict[str, bool] = {}
        self._train_loop, self._train_tail = jax.jit(self._in_loop), jax.jit(self._with_tail)
        self._begin, self._add = jax.jit(self._begin_step), jax.jit(self._add_batch)
        self._finish = jax.jit(self._finish_step)
        self._valid_loop, self._valid_single = jax.jit(self._valid_in_loop), jax.jit(self._valid_one)

    def train(self, state: TrainState, batches: Sequence[PyTree]) -> tuple[TrainState, StepOutputs]:
        """Run one optimizer step over its micro-batches. Return the new state, the metrics' values and the weight."""
        first, one, size = self._regular.setdefault("train", _shapes(batches[0])), np.int32(1), self.step.accumulate
        loop = self._is_loop("train", (state, tuple(batches[:1]), one))
        *full, last = batches
        are_regular = all(_shapes(batch) == first for batch in full)
        if loop and not _is_ragged(last, first) and all(_shapes(batch) == _shapes(last) for batch in full):
            return self._train_loop(state, tuple(batches), np.int32(len(batches)))  # type: ignore[no-any-return]
        if size == 1 or (loop and are_regular and _is_ragged(last, first)):
            # The program of `fit` has a buffer even without full micro-batches, and must be the same here.
            filled = full or [jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), first[1])]
            return self._train_tail(state, tuple(filled) if size > 1 else (), last, np.int32(len(full)))  # type: ignore[no-any-return]
        acc = self._begin(state)
        for index, batch in enumerate(batches):
            acc = self._add(state, acc, batch, np.int32(index))
        return self._finish(state, acc)  # type: ignore[no-any-return]

    def valid(self, state: TrainState, batch: PyTree) -> StepOutputs:
        """Return the metrics' values of one validation batch, and its weight."""
        first = self._regular.setdefault("valid", _shapes(batch))
        if self._is_loop("valid", (state, batch, np.int32(1))) and not _is_ragged(batch, first):
            return self._valid_loop(state, batch, np.int32(1))  # type: ignore[no-any-return]
        return self._valid_single(state, batch)  # type: ignore[no-any-return]

    def _is_loop(self, kind: str, arguments: tuple[Any, ...]) -> bool:
        """Return True if `fit` would dispatch such steps in a loop; see `build_feeder`."""
        if kind not in self._loops:
            step_bytes = bytes_of(arguments[1]) * (self.step.accumulate if kind == "train" else 1)
            loop = steps_for(step_bytes) > 1
            if loop and self._platform == "cpu":
                program = self._train_loop if kind == "train" else self._valid_loop
                loop = not has_convolution(program.trace(*arguments).jaxpr.jaxpr)
            self._loops[kind] = loop
        return self._loops[kind]

    # -- the compiled functions ----------------------------------------------------------------------------------------

    def _programs(self, state: TrainState) -> tuple[Programs, list[Array]]:
        leaves, tree = jax.tree.flatten(state)
        return Programs(self.step, tree), leaves

    def _unpack(self, programs: Programs, result: Any) -> tuple[TrainState, StepOutputs]:
        leaves, *_, values = result
        return programs.tree.unflatten(leaves), _named(self.step.train_metrics, values.table[0])

    def _in_loop(self, state: TrainState, batches: tuple[PyTree, ...], count: Array) -> tuple[TrainState, StepOutputs]:
        programs, leaves = self._programs(state)
        # Space for two steps, the least that `fit` has: with space for one, XLA rounds losses differently.
        feed = BatchBuffer(_buffer(batches, 2 * self.step.accumulate))
        fresh = self.step.train_metrics.fresh()
        return self._unpack(programs, programs.train(leaves, fresh, feed, jnp.int32(0), count))

    def _with_tail(
        self, state: TrainState, full: tuple[PyTree, ...], last: PyTree, count: Array
    ) -> tuple[TrainState, StepOutputs]:
        programs, leaves = self._programs(state)
        feed = BatchBuffer(_buffer(full, self.step.accumulate) if full else None, last)
        fresh = self.step.train_metrics.fresh()
        return self._unpack(programs, programs.train_tail(leaves, fresh, feed, jnp.int32(0), count))

    def _begin_step(self, state: TrainState) -> list[Array]:
        programs, leaves = self._programs(state)
        return programs.begin(leaves)

    def _add_batch(self, state: TrainState, acc: list[Array], batch: PyTree, index: Array) -> list[Array]:
        programs, leaves = self._programs(state)
        return programs.add_tail(leaves, acc, BatchBuffer(None, batch), jnp.int32(0), index)[0]

    def _finish_step(self, state: TrainState, acc: list[Array]) -> tuple[TrainState, StepOutputs]:
        programs, leaves = self._programs(state)
        return self._unpack(programs, programs.finish(leaves, acc, self.step.train_metrics.fresh()))

    def _valid_in_loop(self, state: TrainState, batch: PyTree, count: Array) -> StepOutputs:
        programs, leaves = self._programs(state)
        fresh, zero = self.step.valid_metrics.fresh(), jnp.int32(0)
        *_, values = programs.valid(leaves, fresh, BatchBuffer(_buffer((batch,), 2)), zero, zero, count)
        return _named(self.step.valid_metrics, values.table[0])

    def _valid_one(self, state: TrainState, batch: PyTree) -> StepOutputs:
        programs, leaves = self._programs(state)
        fresh, zero = self.step.valid_metrics.fresh(), jnp.int32(0)
        *_, values = programs.valid_tail(leaves, fresh, BatchBuffer(None, batch), zero, zero)
        return _named(self.step.valid_metrics, values.table[0])


def _named(measure: MetricCollection, line: Array) -> StepOutputs:
    """Return the values of a row of `learner.steps.program.StepOutputs` by name."""
    return dict(zip(measure.step_names, line, strict=False)) | {"weight": line[-2]}


def _buffer(batches: tuple[PyTree, ...], size: int) -> PyTree:
    """Return a buffer `[size, rows, ...]` of the batches. The entries after them are never read."""
    return jax.tree.map(lambda *x: jnp.stack([*x, *x[:1] * (size - len(x))]), *batches)


def _shapes(batch: PyTree) -> Any:
    """Return the structure and the shapes of a batch, which are equal for batches that may share a buffer."""
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(np.shape(x), jnp.result_type(x)), batch)
    return jax.tree.structure(batch), shapes


def _is_ragged(batch: PyTree, first: Any) -> bool:
    """Return True if a batch has fewer rows than the first one, and otherwise the same shapes."""
    _, shapes = _shapes(batch)
    pairs = zip(jax.tree.leaves(shapes), jax.tree.leaves(first[1]), strict=True)
    return rows_of(shapes) < rows_of(first[1]) and all(a.shape[1:] == b.shape[1:] for a, b in pairs)
