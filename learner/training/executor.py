"""Runs dispatches: the compiled programs of a run, and the state that goes through them."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from learner.steps.eval_params import eval_params
from learner.steps.measure import MetricCollection, Packed
from learner.steps.program import BatchBuffer, Feed, Programs, StepOutputs
from learner.steps.state import TrainState
from learner.strategies.base import Kind, Strategy
from learner.training.feed.dispatches import Dispatch

PyTree = Any
Leaves = list[Any]


@dataclasses.dataclass
class MetricAccumulator:
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

    A state of shapes that have shardings makes a runner whose programs can be looked at, and not run.

    Attributes:
      strategy: where the arrays are.
    """

    def __init__(self, programs: Programs, strategy: Strategy, state: TrainState):
        self.strategy = strategy
        self._tree, self._step = programs.tree, programs.step
        marks = jax.tree.map(lambda _: False, state)
        self._is_fixed = jax.tree.leaves(dataclasses.replace(marks, lr_scale=True, rng=True))
        shapes = isinstance(state.step, jax.ShapeDtypeStruct)
        placed = state if shapes else strategy.place(state, strategy.shardings(state))
        self.leaves = jax.tree.leaves(placed)
        self._where = {"state": [x.sharding for x in self._moving], "sums": []}
        if programs.step.update is None:
            self._where["sums"] = self._sums_places(placed)
        train = ("same", "batch", "same", "same"), ("state", "same", "same", "same")
        self._train = {
            "loop": self._compiled_step(programs.train, *train, (0, 2)),
            "single": self._compiled_step(programs.train_single, *train, (0, 2)),
            "tail": self._compiled_step(programs.train_tail, *train, (0, 2)),
        }
        valid: tuple[Kind, ...] = ("same", "batch", "same", "same")
        self._valid_loop = self._compiled(programs.valid, (*valid, "same"), ("same",) * 4, (2,))
        self._valid_one = {
            "single": self._compiled(programs.valid_single, valid, ("same",) * 4, (2,)),
            "tail": self._compiled(programs.valid_tail, valid, ("same",) * 4, (2,)),
        }
        self._begin = self._compiled(programs.begin, (), "sums")
        self._finish = self._compiled_step(programs.finish, ("sums", "same"), ("state", "same", "same"), (0, 3))
        add = ("sums", "batch", "same", "same"), ("sums", "same", "same", "same")
        self._add = {
            False: self._compiled(programs.add, *add, (2,)),
            True: self._compiled(programs.add_tail, *add, (2,)),
        }
        self._outputs = self._compiled(programs.outputs, ("same", "same"))
        measures = {"train": programs.step.train_metrics, "valid": programs.step.valid_metrics}
        # Committed, as what comes out of a program is: the first dispatch of a split would be compiled twice otherwise.
        self._fresh = {kind: strategy.compile(measure.fresh) for kind, measure in measures.items()}
        self._values = {
            kind: strategy.compile(functools.partial(_closed, measure), ("same",), donate=(0,))
            for kind, measure in measures.items()
        }
        self._spare: dict[str, PyTree] = {}
        self._copy = jax.jit(_copied)

    def _sums_places(self, state: TrainState) -> list[Any]:
        """The shardings of what micro-batches add up to: gradients lie where their parameters do."""
        same = self.strategy.scalar(0).sharding
        sums = jax.tree.map(lambda _: same, jax.eval_shape(self._step.begin, state))
        grads, model_state = (jax.tree.map(lambda x: x.sharding, part) for part in (state.params, state.model_state))
        return jax.tree.leaves(dataclasses.replace(sums, grads=grads, model_state=model_state))

    def _compiled(
        self,
        program: Callable[..., Any],
        takes: Sequence[Kind],
        gives: Sequence[Kind] | Kind = "same",
        donate: tuple[int, ...] = (),
    ) -> Any:
        """A program of all leaves, as one of the two kinds of leaves. `takes` is about what follows them."""

        def split(moving: Leaves, fixed: Leaves, *rest: Any) -> Any:
            return program(self._joined(moving, fixed), *rest)

        split.__name__ = program.__name__  # for profiles
        return self.strategy.compile(split, ("state", "same", *takes), gives, donate, self._where)

    def _compiled_step(
        self, program: Callable[..., Any], takes: Sequence[Kind], gives: Sequence[Kind], donate: tuple[int, ...]
    ) -> Any:
        """The same for one that returns leaves first."""

        def split(leaves: Leaves, *rest: Any) -> Any:
            leaves, *more = program(leaves, *rest)
            return self._split(leaves)[0], *more

        split.__name__ = program.__name__
        return self._compiled(split, takes, gives, donate)

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

    def start(self, kind: str, metrics: PyTree = None) -> MetricAccumulator:
        """A split begins, or goes on from the metrics' states of a checkpoint."""
        if metrics is not None:
            states = self.strategy.place(metrics)
        elif kind in self._spare:
            states = self._spare.pop(kind)
        else:
            states = self.strategy.place(self._fresh[kind]())
        return MetricAccumulator(states, number=self.strategy.scalar(0))

    def train(self, tally: MetricAccumulator, dispatch: Dispatch) -> StepOutputs:
        """Optimizer steps."""
        if dispatch.kind == "parts":
            return self._train_parts(tally, dispatch)
        arguments = dispatch.feed, self._cursor(tally, dispatch), self.strategy.scalar(dispatch.count)
        program = self._train[dispatch.kind]
        values: StepOutputs
        self._moving, tally.metrics, tally.cursor, values = program(
            self._moving, self._fixed, tally.metrics, *arguments
        )
        return values

    def _cursor(self, tally: MetricAccumulator, dispatch: Dispatch) -> Any:
        return tally.cursor if dispatch.start is None else self.strategy.scalar(dispatch.start)

    def _train_parts(self, tally: MetricAccumulator, dispatch: Dispatch) -> StepOutputs:
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
        values: StepOutputs
        self._moving, tally.metrics, values = self._finish(self._moving, self._fixed, acc, tally.metrics)
        return dataclasses.replace(values, tail=collected)

    def valid(self, tally: MetricAccumulator, dispatch: Dispatch) -> StepOutputs:
        """Validation batches."""
        cursor = self._cursor(tally, dispatch)
        arguments = self._moving, self._fixed, tally.metrics, dispatch.feed, cursor, tally.number
        if dispatch.kind == "loop":
            result = self._valid_loop(*arguments, self.strategy.scalar(dispatch.count))
        else:
            result = self._valid_one[dispatch.kind](*arguments)
        values: StepOutputs
        tally.metrics, tally.cursor, tally.number, values = result
        return values

    def values(self, kind: str, tally: MetricAccumulator) -> dict[str, Any]:
        """The metrics' values of a split, on the device. The split is over."""
        values: dict[str, Any]
        values, self._spare[kind] = self._values[kind](tally.metrics)
        return values

    def outputs(self, batch: PyTree, number: int) -> PyTree:
        """The valid step's output for one batch, on the device."""
        return self._outputs(self._moving, self._fixed, self.strategy.place(batch), self.strategy.scalar(number))

    def copy(self, tree: PyTree) -> PyTree:
        """Arrays of their own, for a checkpoint: the originals are donated to the next dispatch."""
        return self._copy(self.strategy.to_single_device(tree))

    def model(self) -> Any:
        """Return the user's model of the current state, in eval mode, with arrays of its own."""
        return self.rebuild(self.copy(self.state))

    def rebuild(self, state: TrainState) -> Any:
        """Return the user's model of a state; it takes the state's arrays."""
        return self._step.family.rebuild(eval_params(state.params, state.opt_state), state.model_state)

    def set_lr_scale(self, scale: float) -> None:
        """A scheduler sets the rate."""
        self.leaves = jax.tree.leaves(dataclasses.replace(self.state, lr_scale=self.strategy.place(np.float32(scale))))

    def row_trees(self, batch: PyTree) -> list[Any]:
        """The structures of what each collecting metric of the train split collects of a micro-batch."""
        step = dataclasses.replace(self._step, axis=None)

        def rows(state: TrainState, batch: PyTree) -> PyTree:
            if step.update is not None:
                return step.custom(state, batch)[3]
            return step.accumulate_micro_batch(state, step.begin(state), batch, jnp.int32(0))[1]

        return [jax.tree.structure(each) for each in jax.eval_shape(rows, self.state, batch)]

    def traced(self, kind: str, feed: Feed) -> Any:
        """The traced training or validation loop, to be looked at. It is not traced again when it is compiled."""
        zero = self.strategy.scalar(0)
        tally = self.start(kind)
        if kind == "train":
            return self.strategy.traced(self._train["loop"], self._moving, self._fixed, tally.metrics, feed, zero, zero)
        return self.strategy.traced(self._valid_loop, self._moving, self._fixed, tally.metrics, feed, zero, zero, zero)

    def lowered(self, feed: Feed, loop: bool) -> dict[str, Any]:
        """The programs of a training dispatch by name, lowered for this feed and not run."""
        zero, metrics, state = self.strategy.scalar(0), self.start("train").metrics, (self._moving, self._fixed)
        alone = isinstance(feed, BatchBuffer) and feed.batches is None
        if loop or self._step.accumulate == 1:
            program = self._train["loop" if loop else "tail" if alone else "single"]
            return {"loop" if loop else "step": program.lower(*state, metrics, feed, zero, zero)}
        sums = self._begin.lower(*state).compile()
        acc = jax.tree.map(
            lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place),
            sums.out_info,
            sums.output_shardings,
        )
        return {
            "micro-batch": self._add[alone].lower(*state, acc, feed, zero, zero),
            "update": self._finish.lower(*state, acc, metrics),
        }


def _copied(tree: PyTree) -> PyTree:
    return jax.tree.map(jnp.copy, tree)


def _closed(measure: MetricCollection, packed: Packed) -> tuple[dict[str, Any], Packed]:
    """The values over a split, and new states in the place of the old ones."""
    return measure.totals(packed), measure.fresh()
