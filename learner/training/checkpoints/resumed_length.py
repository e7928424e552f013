"""The length of a run that resumes with epochs of another length, and its schedules."""

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Any

from learner.errors import LearnerError, one_error
from learner.training.checks.fingerprints import MICRO_BATCHES, saved_fingerprint
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
    problems = [] if restored is None else _resolve_after(definition, inputs, restored.progress)
    if problems:
        raise one_error(problems, "the run cannot resume", code="learner-untrainable")


def resolve_ahead(definition: TrainingDefinition, inputs: Inputs) -> list[str]:
    """Resolve the schedules, and return their problems. If they do not fit a run whose epochs all have the present
    number of steps, resolve them for the run that resumes from the builder's checkpoint.
    """
    problems, start = definition.resolve(inputs.source("train").batches), definition.options.start
    if not problems or not start:
        return problems
    # An error of the checkpoint is left to the restoration, which raises it with its context.
    with contextlib.closing(open_store(definition.options)) as store, contextlib.suppress(LearnerError, OSError):
        step = store.find(start.get("epoch", None if "step" in start else "latest"), start.get("step")).step
        progress = store.progress(step)
        refuse_malformed(progress, step, str(store.path(step)))
        problems = _resolve_after(definition, inputs, progress)
    return problems


def _resolve_after(definition: TrainingDefinition, inputs: Inputs, progress: Mapping[str, Any]) -> list[str]:
    """Resolve the schedules for a run that resumes with this progress, unless they are, and return their problems."""
    batches = inputs.source("train").batches
    changes = _epoch_changes(definition.options, batches, progress)
    if changes == definition.options.epoch_changes:
        return []
    definition.options = dataclasses.replace(definition.options, epoch_changes=changes)
    return definition.resolve(batches)


def _epoch_changes(options: Options, batches: int | None, progress: Mapping[str, Any]) -> tuple[tuple[int, int], ...]:
    """Return the changes of the epochs' length in a run that resumes, with that to the present data; see
    `RunLength.changes`. Empty if all epochs have the same number of steps.
    """
    epoch, saved = run_length(options, batches).epoch, saved_fingerprint(progress)
    p = Position.from_json(progress["position"])
    if epoch is None or batches is None:
        return ()
    facts, changes = saved["data"].get("train"), _saved_changes(progress)
    before = facts.get("batches") if isinstance(facts, dict) else None
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
