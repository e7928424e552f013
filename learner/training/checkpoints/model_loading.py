"""Reading the model of a checkpoint into a state."""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from learner.checkpoint.items import from_items, to_items
from learner.checkpoint.manifest import DamagedError
from learner.checkpoint.store import CheckpointStore, Entry
from learner.errors import LearnerError
from learner.steps.eval_params import has_eval_params
from learner.steps.train_state import TrainState
from learner.training.definition import TrainingDefinition
from learner.training.files.run_directory import open_store
from learner.training.progress.position import Position
from learner.training.progress.restore import restore
from learner.util.trees import named_leaves

T = TypeVar("T")


def load_model_state(
    definition: TrainingDefinition, state: TrainState, entry: Entry, store: CheckpointStore
) -> TrainState:
    """Return a state with the model of a checkpoint.

    Args:
      definition: the definition of the run.
      state: arrays, or shapes with their shardings. Parts that do not belong to the model are unchanged, unless the
        checkpoint has another optimizer or other frozen parameters.
      entry: the checkpoint.
      store: the store of the checkpoint.

    Raises:
      DamagedError: a file of the checkpoint is damaged.
    """
    shapes = definition.placed_shapes()
    averaged = has_eval_params(named_leaves(shapes.opt_state))
    items = to_items(shapes)
    if store.differences(entry.step, {name: items[name] for name in ("model", "optim")}):
        return restore(store, entry, definition, eval_only=True).state
    # The optimizer's state may be larger than the model, so it is read only if it holds averaged parameters.
    items = {name: x for name, x in items.items() if name == "model" or (name == "optim" and averaged)}
    return from_items(store.restore(entry.step, items), state)


def load_best_state(definition: TrainingDefinition, state: TrainState) -> tuple[TrainState, int, int]:
    """Return a state with the model of the best intact checkpoint, and the epoch and step of the checkpoint. `state`:
    see `load_model_state`.

    Raises:
      LearnerError: the run saved nothing, or none of its checkpoints can be read.
    """

    def read(store: CheckpointStore, entry: Entry) -> tuple[TrainState, int, int]:
        return load_model_state(definition, state, entry, store), epoch_of(store, entry), entry.step

    return _read_best(definition, read)


def find_best(definition: TrainingDefinition) -> tuple[int, int]:
    """Return the epoch and step of the best intact checkpoint. No array is read.

    Raises:
      LearnerError: see `load_best_state`.
    """

    def read(store: CheckpointStore, entry: Entry) -> tuple[int, int]:
        store.verify(entry.step)
        return epoch_of(store, entry), entry.step

    return _read_best(definition, read)


def _read_best(definition: TrainingDefinition, read: Callable[[CheckpointStore, Entry], T]) -> T:
    """Return the result of a function for the best checkpoint for which it does not raise `DamagedError`."""
    if definition.options.checkpoints is None:
        raise LearnerError(
            "the run kept no best model: with_file_checkpointer(None) turns saving off. Leave it out, or use "
            "result.model, the model after the last step",
            code="learner-best-not-kept",
        )
    damaged = []
    with contextlib.closing(open_store(definition.options)) as store:
        for entry in store.ranked():
            try:
                return read(store, entry)
            except DamagedError as error:
                damaged.append(str(error))
    reason = "; ".join(damaged) or f"there is no checkpoint in {store.place.root}"
    raise LearnerError(
        f"the best model cannot be read: {reason}. result.model is the model after the last step",
        code="learner-best-unreadable",
    )


def trained_until(entry: Entry, progress: Mapping[str, Any]) -> tuple[Entry, int]:
    """Return a checkpoint with the last trained step of its state, and the epoch of that step. A member of a population
    may have ended before the checkpoint. `progress`: the progress of the checkpoint.
    """
    step, halted = progress.get("state_step", entry.step), progress.get("halted")
    if halted is not None:  # its steps are counted also after its end, unless `on_nonfinite` keeps its parameters
        step = min(step, halted["step"])
    if step == entry.step:
        return entry, entry.epoch or Position.from_json(progress["position"]).shown_epoch
    end = halted or progress["stopped"]
    return dataclasses.replace(entry, step=step, epoch=end["epoch"] if end.get("ends_epoch") else None), end["epoch"]


def epoch_of(store: CheckpointStore, entry: Entry) -> int:
    """Return the epoch at whose end, or inside of which, a checkpoint was made."""
    return entry.epoch or Position.from_json(store.progress(entry.step)["position"]).shown_epoch
