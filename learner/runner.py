"""Runs dispatches: the compiled programs of a run, and the state that goes through them."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from learner.data.feed import Dispatch
from learner.steps.program import Feed, Programs, Values
from learner.steps.state import TrainState
from learner.strategies.base import Strategy

PyTree = Any


@dataclasses.dataclass
class Tally:
    """The running metrics of a split: the states on the device, and where its programs are.

    Attributes:
      metrics: the metrics' states since the split began.
      cursor: the next micro-batch in the feed.
      number: the next batch's number within a validation.
    """

    metrics: PyTree
    cursor: Any = None
    number: Any = None


class Runner:
    """Holds the state of a run and steps it. Nothing here waits for the device.

    Attributes:
      leaves: the train state as flat leaves, donated to each training dispatch.
      strategy: where they are.
    """

    def __init__(self, programs: Programs, strategy: Strategy, state: TrainState):
        self.strategy = strategy
        self._tree = programs.tree
        compiled = strategy.compile
        self._train = {
            "loop": compiled(programs.train, (0, 1)),
            "single": compiled(programs.train_single, (0, 1)),
            "tail": compiled(programs.train_tail, (0, 1)),
        }
        self._valid_loop = compiled(programs.valid, (1,))
        self._valid_one = {"single": compiled(programs.valid_single, (1,)), "tail": compiled(programs.valid_tail, (1,))}
        self._begin, self._finish = compiled(programs.begin), compiled(programs.finish, (0, 2))
        self._add = {False: compiled(programs.add, (1,)), True: compiled(programs.add_tail, (1,))}
        self._outputs = compiled(programs.outputs)
        measures = {"train": programs.step.train_measure, "valid": programs.step.valid_measure}
        # Committed, as what comes out of a program is: the first dispatch of a split would be compiled twice otherwise.
        self._fresh = {kind: compiled(measure.init) for kind, measure in measures.items()}
        self._values = {
            kind: compiled(lambda states, m=measure: (m.values(states), m.init()), (0,))
            for kind, measure in measures.items()
        }
        self._spare: dict[str, PyTree] = {}
        self._copy = compiled(lambda tree: jax.tree.map(jnp.copy, tree))
        self._set_scale = compiled(lambda leaves, scale: jax.tree.leaves(self._with_scale(leaves, scale)))
        self.leaves = jax.tree.leaves(strategy.place(state))

    def _with_scale(self, leaves: list[Any], scale: Any) -> TrainState:
        state: TrainState = jax.tree.unflatten(self._tree, leaves)
        return dataclasses.replace(state, lr_scale=scale)

    @property
    def state(self) -> TrainState:
        """The state as a tree; its arrays are gone after the next training dispatch."""
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
        self.leaves, tally.metrics, tally.cursor, values = program(self.leaves, tally.metrics, *arguments)
        return values

    def _cursor(self, tally: Tally, dispatch: Dispatch) -> Any:
        return tally.cursor if dispatch.start is None else self.strategy.scalar(dispatch.start)

    def _train_parts(self, tally: Tally, dispatch: Dispatch) -> Values:
        assert isinstance(dispatch.feed, list)
        acc, cursor, index, collected = (
            self._begin(self.leaves),
            self._cursor(tally, dispatch),
            self.strategy.scalar(0),
            [],
        )
        for feed, is_tail in dispatch.feed:
            acc, cursor, index, rows = self._add[is_tail](self.leaves, acc, feed, cursor, index)
            collected.append(rows)
        tally.cursor = cursor
        values: Values
        self.leaves, tally.metrics, values = self._finish(self.leaves, acc, tally.metrics)
        return dataclasses.replace(values, tail=collected)

    def valid(self, tally: Tally, dispatch: Dispatch) -> Values:
        """Validation batches."""
        arguments = self.leaves, tally.metrics, dispatch.feed, self._cursor(tally, dispatch), tally.number
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
        return self._outputs(self.leaves, self.strategy.place(batch), self.strategy.scalar(number))

    def copy(self, tree: PyTree) -> PyTree:
        """Arrays of their own, for a checkpoint: the originals are donated to the next dispatch."""
        return self._copy(tree)

    def set_lr_scale(self, scale: float) -> None:
        """A scheduler sets the rate."""
        self.leaves = self._set_scale(self.leaves, self.strategy.place(np.float32(scale)))

    def traced(self, kind: str, feed: Feed) -> Any:
        """The traced training or validation loop, to be looked at. It is not traced again when it is compiled."""
        zero = self.strategy.scalar(0)
        tally = self.start(kind)
        if kind == "train":
            return self._train["loop"].trace(self.leaves, tally.metrics, feed, zero, zero).jaxpr.jaxpr
        return self._valid_loop.trace(self.leaves, tally.metrics, feed, zero, zero, zero).jaxpr.jaxpr
