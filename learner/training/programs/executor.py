"""The runner of dispatches: the state of a run, and the compiled programs that change it."""

import dataclasses
from concurrent.futures import Executor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from learner.errors import LearnerError
from learner.steps.buffers import BatchBuffer, Feed, StepOutputs
from learner.steps.eval_params import eval_leaves, eval_params, has_eval_params
from learner.steps.population import member_shapes
from learner.steps.program import Programs
from learner.steps.train_state import TrainState
from learner.strategies.base import Strategy
from learner.training.feed.dispatch import Dispatch
from learner.training.feed.place import StreamedParts
from learner.training.programs.compiled_programs import CompiledPrograms, Leaves, StateLeaves
from learner.util.executables import compile_ahead, executable_of
from learner.util.text import join_names
from learner.util.trees import named_leaves

PyTree = Any
OF_OTHER_MODELS = LearnerError, AttributeError, KeyError, TypeError, ValueError  # of a model that a hook has changed
SHOWN = 5  # arrays in the text of an error


@dataclasses.dataclass
class MetricAccumulator:
    """The running metrics of a split: the states on the device, and the position of its programs.

    Attributes:
      metrics: the metrics' packed states since the split began.
      cursor: the index of the next micro-batch in the feed.
      number: the next batch's number within a validation.
    """

    metrics: PyTree
    cursor: Any = None
    number: Any = None


class Runner:
    """Hold the state of a run and step it. Nothing here waits for the device, except for the memory of large
    micro-batches.

    If the state consists of shapes with shardings, the programs can be inspected and compiled. They can run once
    `begin` has set the state.

    Attributes:
      strategy: the placement of the arrays.
      lanes: in a population, the member of each position on the leading axis of the arrays; None for a single run.
    """

    lanes: tuple[int, ...] | None = None

    def __init__(self, programs: Programs, strategy: Strategy, state: TrainState):
        self.strategy = strategy
        self._step = programs.step
        self._lr: Any = None
        self._copy = jax.jit(_copy)
        shapes = isinstance(state.step, jax.ShapeDtypeStruct)
        self._use(programs, state if shapes else self._placed(state))

    def _use(self, programs: Programs, state: TrainState) -> None:
        """Continue with these programs and a state of their shapes."""
        self._state = StateLeaves(programs.tree, state)
        self._programs = CompiledPrograms(programs, self.strategy, self._state)
        # Spare metric states have the shapes of the programs that returned them.
        self._spare: dict[str, PyTree] = {}

    def begin(self, state: TrainState, lr: np.ndarray) -> None:
        """Set the first state, or a checkpoint's state. `lr`: the learning rate that hooks scale, float32."""
        # Arrays that are already placed are not copied, so the next training dispatch donates the caller's
        # arrays.
        self.leaves, self._lr = jax.tree.leaves(self._placed(state)), lr

    def _placed(self, state: TrainState) -> TrainState:
        placed: TrainState = self.strategy.place(state, self.strategy.shardings(state))
        return placed

    @property
    def leaves(self) -> Leaves:
        """The state as flat leaves. The next training dispatch invalidates those that steps change."""
        return self._state.leaves

    @leaves.setter
    def leaves(self, leaves: Leaves) -> None:
        """Replace the leaves by those that a step returned."""
        self._state.replace(leaves)

    @property
    def state(self) -> TrainState:
        """The state as a tree. The next training dispatch invalidates most of its arrays."""
        return self._state.state

    def start(self, kind: str, metrics: PyTree = None) -> MetricAccumulator:
        """Begin a split, or continue it from the metrics' states of a checkpoint."""
        if metrics is not None:
            states = self.strategy.place_members(metrics)
        elif kind in self._spare:
            # Popped: the states are donated to the next dispatch, and must not be used by another split.
            states = self._spare.pop(kind)
        else:
            states = self.strategy.place_members(self._programs.fresh[kind]())
        return MetricAccumulator(states, number=self.strategy.scalar(0))

    def train(self, accumulator: MetricAccumulator, dispatch: Dispatch) -> StepOutputs:
        """Run the optimizer steps of a dispatch."""
        if dispatch.kind == "parts":
            return self._train_parts(accumulator, dispatch)
        state, program = self._state, self._programs.train[dispatch.kind]
        count, cursor = self.strategy.scalar(dispatch.count), self._cursor(accumulator, dispatch)
        values: StepOutputs
        # One statement: the arguments are donated, so no code may see the old arrays once the program is dispatched.
        state.moving, accumulator.metrics, accumulator.cursor, values = program(
            state.moving, state.fixed, accumulator.metrics, dispatch.feed, cursor, count
        )
        return values

    def _cursor(self, accumulator: MetricAccumulator, dispatch: Dispatch) -> Any:
        # The cursor of the previous dispatch is on the device: placing a number would take longer than a short step.
        return accumulator.cursor if dispatch.start is None else self.strategy.scalar(dispatch.start)

    def _train_parts(self, accumulator: MetricAccumulator, dispatch: Dispatch) -> StepOutputs:
        """Run one optimizer step with its micro-batches one after the other."""
        assert isinstance(dispatch.feed, list | StreamedParts)
        state, programs, collected = self._state, self._programs, []
        sums = programs.begin(state.moving, state.fixed)
        cursor, index = self._cursor(accumulator, dispatch), self.strategy.scalar(0)
        for feed, is_tail in dispatch.feed:
            done = index
            sums, cursor, index, rows = programs.add[is_tail](state.moving, state.fixed, sums, feed, cursor, index)
            collected.append(rows)
            if isinstance(dispatch.feed, StreamedParts):
                # The next iteration places a micro-batch. Until the one before this is added, its memory is in use.
                jax.block_until_ready(done)
        accumulator.cursor = cursor
        values: StepOutputs
        state.moving, accumulator.metrics, values = programs.finish(
            state.moving, state.fixed, sums, accumulator.metrics
        )
        return dataclasses.replace(values, tail=collected)

    def valid(self, accumulator: MetricAccumulator, dispatch: Dispatch) -> StepOutputs:
        """Run the validation batches of a dispatch."""
        count = [self.strategy.scalar(dispatch.count)] if dispatch.kind == "loop" else []
        values: StepOutputs
        accumulator.metrics, accumulator.cursor, accumulator.number, values = self._programs.valid[dispatch.kind](
            self._state.moving,
            self._state.fixed,
            accumulator.metrics,
            dispatch.feed,
            self._cursor(accumulator, dispatch),
            accumulator.number,
            *count,
        )
        return values

    def values(self, kind: str, accumulator: MetricAccumulator) -> dict[str, Any]:
        """Return the metrics' values of a split, on the device, and end the split."""
        values: dict[str, Any]
        values, self._spare[kind] = self._programs.values[kind](accumulator.metrics)
        return values

    def outputs(self, batch: PyTree, number: int) -> PyTree:
        """Return the output of the predict step for one batch, on the device."""
        placed, index = self.strategy.place(batch), self.strategy.scalar(number)
        return self._programs.outputs(self._state.moving, self._state.fixed, placed, index)

    def copy(self, tree: PyTree) -> PyTree:
        """Return a copy of the arrays, as the originals are donated to the next dispatch."""
        # Only one replica of replicated arrays is copied: a save or a model needs no more.
        return self._copy(self.strategy.to_single_device(tree))

    def copied_state(self) -> TrainState:
        """Return a copy of the state, in a population with all members; see `copy`."""
        state: TrainState = self.copy(self.state)
        return state

    def model(self) -> Any:
        """Return the user's model of the current state, in eval mode, with copies of the arrays."""
        state = self.state
        if not has_eval_params(named_leaves(state.opt_state)):
            state = dataclasses.replace(state, opt_state=())  # often twice as large as the model
        return self.rebuild(self.copy(state))

    def rebuild(self, state: TrainState) -> Any:
        """Return the user's model of a state. It uses the state's arrays."""
        return self._step.eval_model(state)

    def arrays_of(self, model: Any) -> dict[str, Any]:
        """Return the arrays of a model that `model()` has returned, by path; empty if its structure has changed."""
        try:
            params, model_state = self._step.adapter.read_all(model)
        except OF_OTHER_MODELS:
            return {}
        return {**named_leaves(params), **named_leaves(model_state)}

    def attributes_of(self, model: Any) -> dict[str, Any]:
        """Return the attributes of a model that are no variables, by path; empty if it has another structure."""
        try:
            return self._step.adapter.attributes(model)
        except OF_OTHER_MODELS:
            return {}

    def replace_model(self, model: Any) -> None:
        """Replace the arrays of the model by those of another model with the structure that `model()` returns.

        Raises:
          LearnerError: it has other arrays, or other parameters while the optimizer evaluates averages of those that it
            trains.
        """
        state = self.copy(self.state)
        try:
            params, model_state = self._step.adapter.read_all(model)
        except OF_OTHER_MODELS as error:
            raise LearnerError(
                f"a hook returned a different model, a {type(model).__name__}: return the model that it received, "
                "with new values in its arrays",
                code="step-hook-model",
                names=[],
            ) from error
        old, new = (state.params, state.model_state), (params, model_state)
        shapes, expected = (
            {n: _shape(x) for tree in trees for n, x in named_leaves(tree).items()} for trees in (new, old)
        )
        if names := [name for name in {**expected, **shapes} if shapes.get(name) != expected.get(name)]:
            raise LearnerError(
                f"a hook returned a model with other arrays than it got: {join_names(names, SHOWN)}",
                code="step-hook-model",
                names=names,
            )
        if eval_leaves(named_leaves(state.params), named_leaves(state.opt_state)):
            averages = named_leaves(eval_params(state.params, state.opt_state))
            given = named_leaves(params)
            if names := [name for name, x in given.items() if not jnp.array_equal(x, averages[name], equal_nan=True)]:
                raise LearnerError(
                    f"a hook changed {join_names(names, SHOWN)} of its model, where it gets the parameters that the "
                    "optimizer averages for evaluation, and others are trained: change them in the train step, or "
                    "train without Ema or Swa. A hook may change other arrays, such as statistics",
                    code="step-hook-averaged",
                    names=names,
                )
            new = state.params, model_state
        # Copies, which the next dispatch donates.
        params, model_state = jax.tree.map(lambda x, own: jnp.array(x, own.dtype), new, old)
        replaced = self._placed(dataclasses.replace(state, params=params, model_state=model_state))
        self.leaves = jax.tree.leaves(replaced)

    def scale_lr(self, factor: float) -> None:
        """Set the learning rate to `factor` times the builder's."""
        self.set_lr_scale(scaled(self._lr, factor))

    def set_lr_scale(self, scale: float | np.ndarray) -> None:
        """Set `lr_scale` of the state: the learning rate, or the factor of its schedule; one per lane."""
        # Placed as the old one was: another sharding would compile every program again.
        placed = self.strategy.place_members(np.asarray(scale, np.float32))
        self.leaves = jax.tree.leaves(dataclasses.replace(self.state, lr_scale=placed))

    def row_shapes(self, batch: PyTree) -> list[Any]:
        """Return the shapes of a micro-batch's rows for each collecting metric of the train split."""
        # Outside of a mapped program there is no axis of devices.
        step = dataclasses.replace(self._step, axis=None)

        def rows(state: TrainState, batch: PyTree) -> PyTree:
            if step.update is not None:
                return step.custom(state, batch)[3]
            return step.accumulate_micro_batch(state, step.begin(state), batch, jnp.int32(0))[1]

        state = self.state if self.lanes is None else member_shapes(self.state)
        return list(jax.eval_shape(rows, state, batch))

    def traced(self, kind: str, feed: Feed) -> Any:
        """Return the jaxpr of the training or validation loop. It is not traced again when it is compiled."""
        program, arguments = self._example_call(kind, "loop", feed)
        return program.trace(*arguments).jaxpr.jaxpr

    def compile_ahead(self, threads: Executor, kind: str, name: str, feed: Feed) -> None:
        """Compile the program of a dispatch in another thread. A call waits for it.

        Args:
          threads: the executor to compile it in.
          kind: `train` or `valid`.
          name: the kind of dispatch.
          feed: an example feed.
        """
        program, arguments = self._example_call(kind, name, feed)
        compile_ahead(program, threads, *arguments)

    def _example_call(self, kind: str, name: str, feed: Feed) -> tuple[Any, list[Any]]:
        """Return the program of a dispatch, and arguments of its types."""
        zero, state = self.strategy.scalar(0), self._state
        arguments = [state.moving, state.fixed, self.start(kind).metrics, feed, zero, zero]
        if kind == "train":
            return self._programs.train[name], arguments
        return self._programs.valid[name], [*arguments, zero] if name == "loop" else arguments

    def compiled(self, feed: Feed, loop: bool) -> dict[str, Any]:
        """Return the programs of a training dispatch by name, compiled for this feed. Nothing runs."""
        zero, metrics, programs = self.strategy.scalar(0), self.start("train").metrics, self._programs
        state = self._state.moving, self._state.fixed
        is_tail = isinstance(feed, BatchBuffer) and feed.batches is None
        if loop or self._step.accumulate == 1:
            program = programs.train["loop" if loop else "tail" if is_tail else "single"]
            return {"loop" if loop else "step": executable_of(program, *state, metrics, feed, zero, zero)}
        begun = programs.begin.lower(*state).compile()
        sums = jax.tree.map(
            lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
            begun.out_info,
            begun.output_shardings,
        )
        return {
            "micro-batch": programs.add[is_tail].lower(*state, sums, feed, zero, zero).compile(),
            "update": programs.finish.lower(*state, sums, metrics).compile(),
        }


def scaled(lr: np.ndarray, factor: float) -> np.ndarray:
    """Return a learning rate times a factor, float32. Setting and restoring it yield the same bits."""
    product: np.ndarray = lr * np.float32(factor)
    return product


def _shape(x: Any) -> tuple[Any, ...]:
    return np.shape(x), jnp.asarray(x).dtype


def _copy(tree: PyTree) -> PyTree:
    return jax.tree.map(jnp.copy, tree)
