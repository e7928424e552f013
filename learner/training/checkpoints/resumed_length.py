"""The length of a run that resumes with epochs of another length, and its schedules."""

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Any

from learner.checkpoint.manifest import DamagedError
from learner.checkpoint.store import CheckpointStore
from learner.errors import LearnerError, one_error
from learner.training.checks.fingerprints import MICRO_BATCHES, mapping_at, saved_fingerprint
from learner.training.definition import TrainingDefinition
from learner.training.feed.inputs import Inputs, run_length
from learner.training.files.run_directory import open_store
from learner.training.options import Options
from learner.training.progress.position import Position
from learner.training.progress.progress_schema import refuse_malformed
from learner.training.progress.restore import Restored


def resolve_length(definition: TrainingDefinition, inputs: Inputs, restored: Restored | None) -> None:
    """Resolve the schedules again if epochs before the checkpoint had another number of steps than they have now.

    Raises:
      LearnerError: the lengths of a schedule do not fit the run.
    """
    if restored is None or not _has_changed(definition, inputs, restored.progress):
        return
    if problems := definition.resolve(inputs.source("train").batches):
        raise one_error(problems, "the run cannot resume", code="learner-untrainable")


def resolve_ahead(definition: TrainingDefinition, inputs: Inputs) -> list[str]:
    """Resolve the schedules, and return their problems. If they do not fit a run whose epochs all have the present
    number of steps, resolve them for the run that resumes from the builder's checkpoint.
    """
    batches = inputs.source("train").batches
    problems = definition.resolve(batches)
    if problems and definition.options.start:
        progress = _saved_progress(definition.options)
        if progress is not None and _has_changed(definition, inputs, progress):
            problems = definition.resolve(batches)
    return problems


def _saved_progress(options: Options) -> Mapping[str, Any] | None:
    """Return the progress of the checkpoint that the builder selects, or None if it cannot be read."""
    start = options.start or {}
    with contextlib.closing(open_store(options)) as store, contextlib.suppress(LearnerError, OSError):
        if not start.get("resume"):
            epoch = start.get("epoch", None if "step" in start else "latest")
            return _readable(store, store.find(epoch, start.get("step")).step)
        for entry in reversed(store.entries):  # `resume` uses an older one if the newest is damaged
            with contextlib.suppress(DamagedError):
                return _readable(store, entry.step)
    return None


def _readable(store: CheckpointStore, step: int) -> Mapping[str, Any]:
    progress = store.progress(step)
    refuse_malformed(progress, step, str(store.path(step)))
    return progress


def _has_changed(definition: TrainingDefinition, inputs: Inputs, progress: Mapping[str, Any]) -> bool:
    """Set the changes of the epochs' length in a run that resumes with this progress. Return True if they differ from
    those with which the schedules are resolved.
    """
    options = definition.options
    changes = _epoch_changes(options, inputs.source("train").batches, progress)
    if changes == options.epoch_changes:
        return False
    definition.options = dataclasses.replace(options, epoch_changes=changes)
    return True


def _epoch_changes(options: Options, batches: int | None, progress: Mapping[str, Any]) -> tuple[tuple[int, int], ...]:
    """Return the changes of the epochs' length in a run that resumes, with that to the present data; see
    `RunLength.changes`. Empty if all epochs have the same number of steps.
    """
    epoch, saved = run_length(options, batches).epoch, saved_fingerprint(progress)
    p = Position.from_json(progress["position"])
    if epoch is None or batches is None:
        return ()
    before, changes = mapping_at(saved, "data", "train").get("batches"), _saved_changes(progress)
    accumulated, accumulate = saved["settings"].get(MICRO_BATCHES), options.accumulate
    # Only for a change: a run that resumes unchanged must have the schedule that it would have had.
    if before != batches or accumulated not in (None, accumulate):
        inside = bool(p.batch) and not p.has_closed_training
        left = -(-max(0, batches - p.batch) // accumulate) if inside else 0
        # Counted to the next end of an epoch: only later ones have the new number of steps.
        change = (p.epoch if inside or p.has_closed_training else p.epoch - 1, p.step + left)
        changes = (*(x for x in changes if x[0] < change[0]), *([change] if change[0] else []))
    return changes if any(steps != epochs * epoch for epochs, steps in changes) else ()


def _saved_changes(progress: Mapping[str, Any]) -> tuple[tuple[int, int], ...]:
    """Return the changes of the epochs' length before a checkpoint; see `RunLength.changes`."""
    changes = tuple((epochs, steps) for epochs, steps in progress.get("epoch_changes", ()))
    if changes or not progress.get("steps_ahead"):
        return changes
    # An earlier version has saved only their sum, and has counted as if the first epoch alone had another length.
    p, ahead = Position.from_json(progress["position"]), progress["steps_ahead"]
    epochs, steps = (p.epoch, p.step) if p.has_closed_training else (p.epoch - 1, p.step - p.in_epoch)
    first = ahead + (steps - ahead) // max(1, epochs)
    return ((1, first),) if first > 0 else ((epochs, steps),) if epochs else ()
