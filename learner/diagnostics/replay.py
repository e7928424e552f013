"""The replay of two runs, step by step from their checkpoints until an array differs. Nothing is written."""

import contextlib
import copy
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from learner.diagnostics.array_difference import ArrayDifference, Arrays, first_difference, named_arrays
from learner.errors import LearnerError
from learner.steps.train_state import TrainState
from learner.strategies.single import SingleDevice
from learner.training.checked_inputs import read_checked
from learner.training.checkpoints.resume import data_of, differences
from learner.training.checkpoints.resumed_length import resolve_length
from learner.training.checks.fingerprints import fingerprint_of
from learner.training.definition import TrainingDefinition
from learner.training.feed.group import DispatchGrouping, Grouper, MicroBatchGroup
from learner.training.feed.inputs import Inputs
from learner.training.files.run_directory import open_store
from learner.training.programs.single_step import SingleStepRunner
from learner.training.progress.position import Position
from learner.training.progress.restore import Restored, restore
from learner.util.user_warnings import warn

PyTree = Any
PARTS = ("params", "model_state", "opt_state", "lr_scale", "rng", "extra")
"""Parts of a state, in the order in which they are compared."""


@dataclasses.dataclass(frozen=True)
class RunInputs:
    """A run to repeat.

    Attributes:
      definition: the definition of the learner, which is changed.
      train: the training data, as for `Learner.fit`.
      valid: the validation data, as for `Learner.fit`.
      updates: the steps after which hooks changed the run.
    """

    definition: TrainingDefinition
    train: Any
    valid: Any
    updates: Sequence[int] = ()


@dataclasses.dataclass(frozen=True)
class Replay:
    """The result of `replay`.

    Attributes:
      start: the step of the states from which both runs started; 0 without a checkpoint.
      stop: the last step to repeat.
      step: the step at which an array differs, or None. If it is `start`, the states differ before the first step.
      difference: the first array that differs, or None.
      losses: the losses of both runs, for each repeated step from `start + 1` on.
    """

    start: int
    stop: int
    step: int | None = None
    difference: ArrayDifference | None = None
    losses: tuple[tuple[float, float], ...] = ()

    @property
    def explanation(self) -> str:
        """A sentence about where the runs diverge."""
        since = f"the checkpoints of step {self.start}" if self.start else "the states before the first step"
        if self.step is None:
            return f"replayed from {since} to step {self.stop}: no array differs"
        if self.step == self.start:
            earlier = f": replay an earlier step, up to {self.start}, to see where they diverge" if self.start else ""
            return f"replay: {since} differ already{earlier}"
        return f"replayed from {since}: step {self.step} differs"

    def lines(self) -> list[str]:
        """Return the result as text."""
        found = [] if self.difference is None else self.difference.lines()
        return [self.explanation, *(f"  {line}" for line in found)]


def replay(a: RunInputs, b: RunInputs, stop: int) -> Replay:
    """Repeat both runs from their newest checkpoints of the same step before `stop`, or from the beginning if they have
    none, through step `stop`. Stop at the first array that differs.

    Steps run on one device. States are compared before the first step; then for each step the batch, the loss and the
    weight, the gradients, and the new state.

    Raises:
      LearnerError: the runs have no checkpoints of the same step, or cannot be repeated.
    """
    runs = a, b
    start = common_start([run.definition for run in runs], stop)
    for run in runs:
        _refuse_updates(run, start, stop)
    with contextlib.ExitStack() as stack:
        replayed = []
        for run in runs:
            inputs = read_checked(run.definition, run.train, run.valid)
            stack.enter_context(contextlib.closing(inputs))
            replayed.append(ReplayedRun(run.definition, inputs, start))
        result = Replay(start, stop)
        for step, arrays in _stages(replayed, start, stop):
            if (difference := first_difference(*arrays)) is not None:
                result = Replay(start, stop, step, difference)
                break
    losses = zip(*(run.losses for run in replayed), strict=True)
    return dataclasses.replace(result, losses=tuple(losses))


def common_start(definitions: Sequence[TrainingDefinition], stop: int) -> int:
    """Return the newest step before `stop` for which all runs have a checkpoint. Return 0 if no run has one before it.

    Raises:
      LearnerError: the runs have checkpoints, but none of the same step.
    """
    steps = []
    for definition in definitions:
        definition.refuse_population("replay")
        with contextlib.closing(open_store(definition.options)) as store:
            steps.append([entry.step for entry in store.entries if 0 < entry.step < stop])
    if common := set.intersection(*map(set, steps)):
        return max(common)
    if not any(steps):
        return 0
    known = "; ".join(
        f"{definition.options.directory} has {', '.join(map(str, of_run)) or 'none'}"
        for definition, of_run in zip(definitions, steps, strict=True)
    )
    raise LearnerError(
        f"a replay begins with checkpoints of one step, and before step {stop} the runs have none in common: {known}. "
        f"Steps up to {min(map(min, filter(None, steps)))} are replayed from the beginning; for later ones, train both "
        "with the same with_file_checkpointer(every_steps=..., keep_last=...)",
        code="replay-checkpoint-missing",
        stop=stop,
    )


def _refuse_updates(run: RunInputs, start: int, stop: int) -> None:
    """Raise `LearnerError` if hooks changed the run after the state at `start` and before step `stop`."""
    if between := [step for step in run.updates if start < step < stop]:
        first, directory = min(between), run.definition.options.directory
        raise LearnerError(
            f"{directory} was changed by a hook (Updates) after step {first}, which a replay does not repeat: replay a "
            f"step up to {first}, or runs with checkpoints after it",
            code="replay-updates",
            step=first,
        )


class ReplayedRun:
    """A run that is repeated one step at a time.

    Args:
      definition: the definition of the run, with resolved schedules.
      inputs: the data of the run.
      start: the step of the checkpoint to start from; 0 for the state before the first step.

    Attributes:
      state: the state after the steps so far.
      losses: the losses of these steps.
    """

    def __init__(self, definition: TrainingDefinition, inputs: Inputs, start: int) -> None:
        self._definition, self._inputs = definition, inputs
        self.losses: list[float] = []
        restored = self._restore(start) if start else None
        if restored is None:
            definition.take_initial()
        resolve_length(definition, inputs, restored)
        self.state: TrainState = definition.init() if restored is None else restored.state
        first = inputs.first_batches["train"]
        self._runner = SingleStepRunner(definition.step, definition.strategy.platform, first)
        position = Position() if restored is None else restored.position
        self._is_validated = position.in_validation
        batches = inputs.source("train").batches
        self._groups = self._open(position, None if restored is None else data_of(restored.progress, 0, 1, batches))

    def _restore(self, step: int) -> Restored:
        definition = self._definition

        def differing(progress: Mapping[str, Any]) -> list[str]:
            return differences(progress, fingerprint_of(definition, self._inputs), 1, False, ("metrics",))

        alone = copy.copy(definition)
        alone.strategy = SingleDevice(definition.strategy.devices[0])
        with contextlib.closing(open_store(definition.options)) as store:
            return restore(store, store.find(step=step), alone, differing=differing)

    def _open(self, position: Position, data: Any) -> Iterator[MicroBatchGroup]:
        """Return the groups of micro-batches from a position on, in the same way as `fit` reads them."""
        source, first = self._inputs.source("train"), self._inputs.first_batches["train"]
        epoch, batch = (position.epoch + 1, 0) if position.has_closed_training else (position.epoch, position.batch)
        if self._definition.options.checkpoints is not None:
            source.keep_state()
        source.refuse_position(epoch, batch, data)
        grouping = DispatchGrouping(self._definition.step.accumulate, 1, False, lambda step: 1)
        return Grouper(source, grouping, first, warn).groups(epoch, batch, data, None)

    def read(self) -> MicroBatchGroup:
        """Return the micro-batches of the next step."""
        self._refuse_plateau()
        options, group = self._definition.options, next(self._groups)
        self._is_validated = group.ends_epoch or bool(options.valid_every or options.valid_splits)
        return group

    def _refuse_plateau(self) -> None:
        if self._is_validated and self._definition.optimizer.plateau is not None:
            directory, step = self._definition.options.directory, int(self.state.step) + 1
            raise LearnerError(
                f"{directory} lowers its learning rate after validations (ReduceOnPlateau), which a replay does not "
                f"repeat, and step {step} may follow one: replay an earlier step, or a run with a checkpoint after the "
                "validation",
                code="replay-plateau",
                step=step,
            )

    def train(self, batches: tuple[PyTree, ...]) -> tuple[Arrays, Arrays]:
        """Run a step. Return its loss and weight, and the sums of its gradients over micro-batches (none if the step
        computes its own update).
        """
        before = self.state
        self.state, values = self._runner.train(before, batches)
        loss = {"loss": np.asarray(values["Loss"]), "weight": np.asarray(values["weight"])}
        self.losses.append(float(loss["loss"]))
        gradients = {} if self._definition.step.train is None else self._gradients(before, batches)
        return loss, named_arrays("gradients", gradients)

    @functools.cached_property
    def _gradients(self) -> Any:
        step = self._definition.step

        def gradients(state: TrainState, batches: tuple[PyTree, ...]) -> PyTree:
            sums = step.begin(state)
            for index, batch in enumerate(batches):
                sums, _ = step.accumulate_micro_batch(state, sums, batch, jnp.int32(index))
            return sums.grads

        return jax.jit(gradients)

    def arrays(self) -> Arrays:
        """Return the arrays of the state."""
        parts = [named_arrays(part, getattr(self.state, part)) for part in PARTS]
        return {path: array for part in parts for path, array in part.items()}


def _stages(runs: Sequence[ReplayedRun], start: int, stop: int) -> Iterator[tuple[int, list[Arrays]]]:
    """Yield the step and the arrays of both runs, in the order of their computation."""
    yield start, [run.arrays() for run in runs]
    for step in range(start + 1, stop + 1):
        batches = [tuple(micro.batch for micro in run.read().micro_batches) for run in runs]
        yield step, [_batch_arrays(of_run) for of_run in batches]
        results = [run.train(of_run) for run, of_run in zip(runs, batches, strict=True)]
        yield step, [loss for loss, _ in results]
        yield step, [gradients for _, gradients in results]
        yield step, [run.arrays() for run in runs]


def _batch_arrays(batches: tuple[PyTree, ...]) -> Arrays:
    names = ["batch"] if len(batches) == 1 else [f"batch-{number}" for number in range(1, len(batches) + 1)]
    parts = [named_arrays(name, batch) for name, batch in zip(names, batches, strict=True)]
    return {path: array for part in parts for path, array in part.items()}
