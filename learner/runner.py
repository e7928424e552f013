"""Runs dispatches: the compiled programs of a run, and the state that goes through them."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from learner.data.feed import Dispatch
from learner.steps.measure import Measure, Packed
from learner.steps.program import Feed, Programs, Values
from learner.steps.state import TrainState
from learner.strategies.base import Strategy

PyTree = Any
Leaves = list[Any]


@dataclasses.dataclass
class Tally:
    """The running metrics of a split: the states on the device, and where its programs are.

    Attributes:
      metrics: the metrics' packed states since the split began.
      cursor: the next micro-batch in the feed.
      number: the next batch's number within a validation.
    """

    metrics: PyTree
    cursor: Any = None
    number: Any = None


class Runner:
    """Holds the state of a run and steps it. Nothing here waits for the device.

    What no step changes (the rate's factor, the root key) goes into programs and does not come out again: a small step
    notices every array that does.

    Attributes:
      strategy: where the arrays are.
    """

    def __init__(self, programs: Programs, strategy: Strategy, state: TrainState):
        self.strategy = strategy
        self._tree, self._step = programs.tree, programs.step
        marks = jax.tree.map(lambda _: False, state)
        self._is_fixed = jax.tree.leaves(dataclasses.replace(marks, lr_scale=True, rng=True))
        self.leaves = jax.tree.leaves(strategy.place(state))
        self._train = {
            "loop": self._compiled_step(programs.train, (0, 2)),
            "single": self._compiled_step(programs.train_single, (0, 2)),
            "tail": self._compiled_step(programs.train_tail, (0, 2)),
        }
        self._valid_loop = self._compiled(programs.valid, (2,))
        self._valid_one = {
            "single": self._compiled(programs.valid_single, (2,)),
            "tail": self._compiled(programs.valid_tail, (2,)),
        }
        self._begin, self._finish = self._compiled(programs.begin), self._compiled_step(programs.finish, (0, 3))
        self._add = {False: self._compiled(programs.add, (2,)), True: self._compiled(programs.add_tail, (2,))}
        self._outputs = self._compiled(programs.outputs)
        measures = {"train": programs.step.train_measure, "valid": programs.step.valid_measure}
        # Committed, as what comes out of a program is: the first dispatch of a split would be compiled twice otherwise.
        self._fresh = {kind: strategy.compile(measure.fresh) for kind, measure in measures.items()}
        self._values = {
            kind: strategy.compile(functools.partial(_closed, measure), (0,)) for kind, measure in measures.items()
        }
        self._spare: dict[str, PyTree] = {}
        self._copy = strategy.compile(_copied)

    def _compiled(self, program: Callable[..., Any], donate: tuple[int, ...] = ()) -> Any:
        """A program of all leaves, as one of the two kinds of leaves."""

        def split(moving: Leaves, fixed: Leaves, *rest: Any) -> Any:
            return program(self._joined(moving, fixed), *rest)

        split.__name__ = program.__name__  # for profiles
        return self.strategy.compile(split, donate)

    def _compiled_step(self, program: Callable[..., Any], donate: tuple[int, ...]) -> Any:
        """The same for one that returns leaves first."""

        def split(leaves: Leaves, *rest: Any) -> Any:
            leaves, *more = program(leaves, *rest)
            return self._split(leaves)[0], *more

        split.__name__ = program.__name__
        return self._compiled(split, donate)

    def _split(self, leaves: Leaves) -> tuple[Leaves, Leaves]:
        pairs = list(zip(leaves, self._is_fixed, strict=True))
        return [x for x, fixed in pairs if not fixed], [x for x, fixed in pairs if fixed]

    def _joined(self, moving: Leaves, fixed: Leaves) -> Leaves:
        kinds = {False: iter(moving), True: iter(fixed)}
        return [next(kinds[kind]) for kind in self._is_fixed]

    @property
    def leaves(self) -> Leaves:
        """The state as flat leaves; those that steps change are gone after the next training dispatch."""
        return self._joined(self._moving, self._fixed)

    @leaves.setter
    def leaves(self, leaves: Leaves) -> None:
        """Another state."""
        self._moving, self._fixed = self._split(leaves)

    @property
    def state(self) -> TrainState:
        """The state as a tree; most of its arrays are gone after the next training dispatch."""
        state: TrainState = jax.tree.unflatten(self._tree, self.leaves)
        return state

    def start(self, kind: str, metrics: PyTree = None) -> Tally:
        """A split begins, or goes on from the metrics' states of a checkpoint."""
        if metrics is not None:
            states = self.strategy.place(metrics)
        elif kind in self._spare:
            states = self._spare.pop(kind)
        else:
            states = self.strategy.place(self._fresh[kind]())
        return Tally(states, number=self.strategy.scalar(0))

    def train(self, tally: Tally, dispatch: Dispatch) -> Values:
        """Optimizer steps."""
        if dispatch.kind == "parts":
            return self._train_parts(tally, dispatch)
        arguments = dispatch.feed, self._cursor(tally, dispatch), self.strategy.scalar(dispatch.count)
        program = self._train[dispatch.kind]
        values: Values
        self._moving, tally.metrics, tally.cursor, values = program(
            self._moving, self._fixed, tally.metrics, *arguments
        )
        return values

    def _cursor(self, tally: Tally, dispatch: Dispatch) -> Any:
        return tally.cursor if dispatch.start is None else self.strategy.scalar(dispatch.start)

    def _train_parts(self, tally: Tally, dispatch: Dispatch) -> Values:
        assert isinstance(dispatch.feed, list)
        acc, cursor, index, collected = (
            self._begin(self._moving, self._fixed),
            self._cursor(tally, dispatch),
            self.strategy.scalar(0),
            [],
        )
        for feed, is_tail in dispatch.feed:
            acc, cursor, index, rows = self._add[is_tail](self._moving, self._fixed, acc, feed, cursor, index)
            collected.append(rows)
        tally.cursor = cursor
        values: Values
        self._moving, tally.metrics, values = self._finish(self._moving, self._fixed, acc, tally.metrics)
        return dataclasses.replace(values, tail=collected)

    def valid(self, tally: Tally, dispatch: Dispatch) -> Values:
        """Validation batches."""
        cursor = self._cursor(tally, dispatch)
        arguments = self._moving, self._fixed, tally.metrics, dispatch.feed, cursor, tally.number
        if dispatch.kind == "loop":
            result = self._valid_loop(*arguments, self.strategy.scalar(dispatch.count))
        else:
            result = self._valid_one[dispatch.kind](*arguments)
        values: Values
        tally.metrics, tally.cursor, tally.number, values = result
        return values

    def values(self, kind: str, tally: Tally) -> dict[str, Any]:
        """The metrics' values of a split, on the device. The split is over."""
        values: dict[str, Any]
        values, self._spare[kind] = self._values[kind](tally.metrics)
        return values

    def outputs(self, batch: PyTree, number: int) -> PyTree:
        """The valid step's output for one batch, on the device."""
        return self._outputs(self._moving, self._fixed, self.strategy.place(batch), self.strategy.scalar(number))

    def copy(self, tree: PyTree) -> PyTree:
        """Arrays of their own, for a checkpoint: the originals are donated to the next dispatch."""
        return self._copy(tree)

    def set_lr_scale(self, scale: float) -> None:
        """A scheduler sets the rate."""
        self.leaves = jax.tree.leaves(dataclasses.replace(self.state, lr_scale=self.strategy.place(np.float32(scale))))

    def row_trees(self, feed: Feed) -> list[Any]:
        """The structures of what each collecting metric of the train split collects of a micro-batch."""

        def rows() -> PyTree:
            zero = jnp.int32(0)
            if self._step.update is not None:
                return self._step.custom(self.state, feed.micro(zero))[3]
            return self._step.micro(self.state, self._step.begin(self.state), feed.micro(zero), zero)[1]

        return [jax.tree.structure(each) for each in jax.eval_shape(rows)]

    def traced(self, kind: str, feed: Feed) -> Any:
        """The traced training or validation loop, to be looked at. It is not traced again when it is compiled."""
        zero = self.strategy.scalar(0)
        tally = self.start(kind)
        if kind == "train":
            return self._train["loop"].trace(self._moving, self._fixed, tally.metrics, feed, zero, zero).jaxpr.jaxpr
        return self._valid_loop.trace(self._moving, self._fixed, tally.metrics, feed, zero, zero, zero).jaxpr.jaxpr


def _copied(tree: PyTree) -> PyTree:
    return jax.tree.map(jnp.copy, tree)


def _closed(measure: Measure, packed: Packed) -> tuple[dict[str, Any], Packed]:
    """The values over a split, and new states in the place of the old ones."""
    return measure.totals(packed), measure.fresh()
