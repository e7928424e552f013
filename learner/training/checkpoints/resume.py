"""Resuming: the checkpoint to resume from, and the differences from the run that saved it."""

import contextlib
import dataclasses
import os
import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from learner.checkpoint.load import refuse_elsewhere
from learner.checkpoint.store import CheckpointStore, Entry
from learner.distributed.differences import named_processes
from learner.distributed.process_group import ProcessGroup
from learner.errors import LearnerError, Problem
from learner.runs.journal import read_journal
from learner.runs.layout import ENDS, MARK, read_summary
from learner.runs.population import member_index
from learner.steps.train_state import TrainState
from learner.training.checks.fingerprints import changes, mapping_at, saved_fingerprint
from learner.training.definition import TrainingDefinition
from learner.training.files.run_directory import SINGLE_PROCESS, open_store, read_found, read_of_run
from learner.training.member_decisions import all_ended_text
from learner.training.options import Options
from learner.training.programs.executor import scaled
from learner.training.progress.position import Position
from learner.training.progress.restore import (
    ALLOWED,
    Differing,
    Restored,
    older_checkpoint_clause,
    restore,
    restore_newest,
)
from learner.training.progress.snapshot import platform_facts
from learner.training.run_plan import RunPlan
from learner.training.stopping import MetricEarlyStopping
from learner.util.text import short

# -- the checkpoint ----------------------------------------------------------------------------------------------------


def find_checkpoint(plan: RunPlan) -> Restored | None:
    """Return the checkpoint to resume from, or None for a new run and for a run that has not saved anything."""
    if not plan.resumes:
        return None
    options = plan.options

    def recover() -> None:
        with contextlib.closing(open_store(options)) as store:
            store.recover()

    # Before any search for checkpoints: a kill may have left the newest complete one without its name.
    plan.processes.run_on_primary(recover)

    def differing(progress: Mapping[str, Any]) -> list[str]:
        if problem := population_difference(progress, plan.fingerprint):
            return [problem]
        if problem := member_problem(progress, plan):
            return [problem]
        members = progress.get("members", ())
        lanes = progress.get("lanes") or range(len(members))
        if any(members[lane]["stopped"] for lane in lanes) and not (options.early_stopping or options.halving):
            text = "members of the population have ended by early stopping: resume with early_stopping"
            return [Problem(text, code="resume-population-differs")]
        own = plan.inputs.source("train").own
        return differences(progress, plan.fingerprint, plan.processes.count, own, allowed(options))

    restored = read_checkpoint(plan.definition, differing, plan.processes)
    if restored is None and member_index(options.directory) is not None:
        refuse_elsewhere(options.directory)
        raise LearnerError(
            f"{options.directory} cannot resume alone: its population has saved nothing",
            code="resume-member-unsaved",
            directory=options.directory,
        )
    if restored is None:
        plan.processes.run_on_primary(lambda: _refuse_lost(options))
    return restored


def _note_of_lost(options: Options, step: int, eval_only: bool) -> list[str]:
    """Return a list with a warning if the newest checkpoint that the journal records is missing, and an older one, of
    `step`, is therefore used.
    """
    if member_index(options.directory) is not None:  # its journal has no saves of the population
        return []
    try:
        last = max(_recorded_saves(options.directory), default=0)
    except LearnerError:  # a journal that cannot be read is refused where the run opens it
        return []
    if last <= step:
        return []
    with contextlib.closing(open_store(options)) as store:
        # A damaged one has a warning of its own. A run that still trains may have replaced it since.
        if any(saved >= last for saved in store.steps):
            return []
    # Retention always keeps the newest. A run that was killed while it went back has moved it, and no start tells.
    if any((options.directory / "superseded").glob(f"*/checkpoint/{last}")):
        return []
    return [
        f"the checkpoint of step {last} was saved, but is missing in {options.checkpoint_place}; "
        f"{older_checkpoint_clause(step, eval_only)}"
    ]


def _refuse_lost(options: Options) -> None:
    """Raise `LearnerError` if a run has saved checkpoints and all are missing: a new run would remove its logs."""
    last = max(_recorded_saves(options.directory), default=None)
    if last is not None:
        raise LearnerError(
            f"{options.shown} has saved checkpoints, the last one at step {last}, but there is none in "
            f"{options.checkpoint_place}: restore them, or start over with LearnerBuilder(directory, "
            "overwrite=True) (--overwrite=true)",
            code="resume-checkpoints-lost",
            step=last,
        )


def _recorded_saves(directory: Path) -> set[int]:
    """Return the steps of the checkpoints that the journal records, without those that a later start went back from.
    They are in no order: a stop saves the newest state first, and then the best one of an earlier step.
    """
    saved: set[int] = set()
    for _, fields in read_journal(directory) if (directory / MARK).is_file() else []:
        event, step = fields.get("event"), fields.get("step")
        if isinstance(step, int) and event == "start":
            saved = {x for x in saved if x <= step}
        elif isinstance(step, int) and event == "save":
            saved.add(step)
    return saved


def member_problem(progress: Mapping[str, Any], plan: RunPlan) -> str | None:
    """Return why a member of a population cannot resume separately, or None."""
    if "keywords" not in progress:  # of a run, or of a population
        return None
    if end := progress["halted"] or progress["stopped"]:
        reason = end.get("reason") or "it was not finite"
        text = (
            f"{plan.options.shown} has ended at step {end['step']} ({reason}) while others of its population "
            "continued, and does not resume"
        )
        hint = f". A new run can begin with its model: {_beginning_with(plan.options)}" if progress["stopped"] else ""
        return Problem(text + hint, code="resume-member-ended")
    if plan.processes.count > 1:
        text = "a member of a population resumes alone in one process; after that, also in several"
        return Problem(text, code="resume-member-processes")
    return None


def _beginning_with(options: Options) -> str:
    """Return the command, or without a config the call, that begins a run with the model of a member."""
    place, config = options.shown, options.directory / "config.yaml"
    if not config.is_file():
        return f"initial_from({place!r})"
    words = shlex.quote(os.path.join(place, config.name)), shlex.quote(place)
    return f"learner fit {words[0]} --directory=NEW --initial_from={words[1]}"


def read_checkpoint(
    definition: TrainingDefinition,
    differing: Differing = lambda progress: [],
    processes: ProcessGroup = SINGLE_PROCESS,
    eval_only: bool = False,
) -> Restored | None:
    """Return the checkpoint that the builder selects, or None if `resume()` finds no checkpoint. For `eval_only`, see
    `restore`.
    """
    options, start = definition.options, definition.options.start or {}
    arguments = definition, allowed(options), differing, eval_only
    if start.get("resume"):
        restored = read_of_run(options, processes, lambda store: restore_newest(store, *arguments))
        if restored is None:
            return None
        note = _note_of_lost(options, restored.entry.step, eval_only)
        return dataclasses.replace(restored, notes=(*note, *restored.notes))
    epoch = start.get("epoch", None if "step" in start else "latest")

    def read(store: CheckpointStore, entry: Entry) -> Restored:
        return restore(store, entry, *arguments)

    return read_found(options, processes, epoch, start.get("step"), read)


def allowed(options: Options) -> Collection[str]:
    """Return the changes that `allow=` permits; see `ALLOWED`."""
    allow: Collection[str] = (options.start or {}).get("allow", ())
    return allow


def finished_summary(plan: RunPlan, restored: Restored) -> Mapping[str, Any] | None:
    """Return the summary of a run that has nothing left to train, or None. Nothing is written."""
    options, position = plan.options, restored.position
    if options.population is None:
        # Set only to get the reason: `restore_decisions` sets it again if the run continues.
        set_stopping(options.early_stopping, restored.progress["early_stopping"])
    past = (options.num_epochs is not None and position.epoch > options.num_epochs) or (
        options.num_steps is not None and position.step >= options.num_steps
    )
    ended = all_ended_reason(restored.progress.get("members", ()))
    if not past and not any(stopping.reason for stopping in options.early_stopping) and not ended:
        return None
    summary = read_summary(options.directory)
    if summary is None or not str(summary.get("stopped_by")).startswith(ENDS):
        return None
    # The summary may be of a later step than the checkpoint, which may have been selected by its step.
    if summary.get("steps") != position.step or position.pending:
        return None
    return summary


def all_ended_reason(members: Sequence[Mapping[str, Any]]) -> str | None:
    """Return why a population has ended if all of its members have ended, or None. `members`: from a checkpoint."""
    ended = bool(members) and all(member["halted"] or member["stopped"] for member in members)
    return all_ended_text(len(members)) if ended else None


def set_stopping(early_stopping: Sequence[MetricEarlyStopping], saved: list[Mapping[str, Any]]) -> None:
    """Set each early stopping to the first saved state with its monitor; others keep their initial state."""
    states = list(saved)
    for stopping in early_stopping:
        state = next((s for s in states if s.get("monitor") == stopping.monitor.monitor), None)
        if state is not None:
            states.remove(state)
            stopping.set_state(state)


def first_state(plan: RunPlan, restored: Restored) -> TrainState:
    """Return the initial state of a resumed run, placed by the strategy.

    Raises:
      LearnerError: the data cannot be read from the position of the checkpoint.
    """
    definition = plan.definition
    position, source = restored.position, plan.inputs.source("train")
    data = data_of(restored.progress, plan.processes.index, plan.processes.count, source.batches)
    # Before anything is changed: not all data can return to a position.
    source.refuse_position(position.epoch, position.batch, data)
    if plan.options.exploit is not None:
        return restored.state
    rates = _rates_of_plateau(plan, restored.progress)
    # The builder's learning rate may have changed; the factor from hooks stays.
    lr_scale = scaled(definition.lr_scale, position.lr_factor) if rates is None else rates
    return dataclasses.replace(restored.state, lr_scale=plan.strategy.place(lr_scale))


def _rates_of_plateau(plan: RunPlan, progress: Mapping[str, Any]) -> np.ndarray | None:
    """Return the learning rate with which a plateau continues, or of each member with its own; None if the checkpoint
    has none.
    """
    plateau, starts = plan.plateau, plan.definition.starts
    states = [state for state in (progress["plateau"], *progress.get("plateaus", ())) if state is not None]
    if plateau is None or not any(map(plateau.has_rate_of, states)):
        return None
    if starts is None:
        return np.asarray(plateau.rate_after(states[0]), np.float32)
    plateaus = [plateau.with_lr(start.lr_scale) for start in starts]
    return np.asarray([each.rate_after(x) for each, x in zip(plateaus, states, strict=True)], np.float32)


# -- changes since the checkpoint --------------------------------------------------------------------------------------


def differences(
    progress: Mapping[str, Any], fingerprint: Mapping[str, Any], processes: int, own: bool, allow: Collection[str]
) -> list[str]:
    """Return the changes that a checkpoint inside an epoch does not permit. A checkpoint between epochs permits all.

    Args:
      progress: the progress of the checkpoint.
      fingerprint: the fingerprint of the run that resumes.
      processes: the number of its processes.
      own: True if each of them has its own training data.
      allow: the changes that `allow=` permits.
    """
    position = Position.from_json(progress["position"])
    if not position.batch:
        return []
    problems: list[str] = []
    before, where = saved_fingerprint(progress), f"the checkpoint of step {position.step} lies inside epoch "
    where += str(position.epoch)
    parts = _parts_difference(progress, processes, own)
    if parts and not position.has_closed_training:
        problems.append(
            Problem(
                f"{where}, and {parts} cannot take over. Resume with the same number of processes, or from the end of "
                "an epoch: checkpoint(epoch)",
                code="resume-processes-differ",
                processes=processes,
            )
        )
    changed = changes(before, fingerprint).train_data
    if changed and not position.has_closed_training and "data" not in allow:
        problems.append(
            f"{where}, and its position means other rows now: {'; '.join(changed)}. Resume with the same data, "
            "from the end of an epoch with checkpoint(epoch), or with resume(allow='data') or --resume.allow=data: "
            f"{ALLOWED['data']}"
        )
    names_before, names = before["settings"].get("metrics"), fingerprint["settings"]["metrics"]
    if names_before != names and not position.has_closed_training and "metrics" not in allow:
        problems.append(
            f"{where}, with the metrics {_listed(names_before)} of the train split in flight, but now there are "
            f"{_listed(names)}. Resume with the same metrics, from the end of an epoch, or with "
            f"resume(allow='metrics') or --resume.allow=metrics: {ALLOWED['metrics']}"
        )
    return problems


def _parts_difference(progress: Mapping[str, Any], processes: int, own: bool) -> str | None:
    """Return the saved positions in the training data, and the processes whose data has other parts; None if it has the
    same. The arguments are those of `differences`.
    """
    count = _processes_of(progress)
    if count not in (None, processes):
        return f"each of {count} processes had its own data, whose positions {processes}"
    if count is None and own and processes > 1:
        # One process saves the position in its own data as that in any other data.
        had = "one process" if progress["made_on"].get("processes", 1) == 1 else "all processes"
        return f"{had} had all of the data, whose position {processes} processes, each with its own data,"
    return None


def population_difference(progress: Mapping[str, Any], fingerprint: Mapping[str, Any]) -> str | None:
    """Return why a checkpoint does not belong to the population that resumes, or None."""
    before: Any = saved_fingerprint(progress)["settings"].get("population")
    now: Any = fingerprint["settings"]["population"]
    if before == now:
        return None
    (had, count), (have, number) = (("one run", 0) if x is None else ("a population", len(x)) for x in (before, now))
    if had != have:
        text = f"the checkpoint is of {had}, and this is {have}"
    elif count != number:
        text = f"the population had {count} members, and now has {number}"
    else:
        index = next(i for i in range(count) if before[i] != now[i])
        text = (
            f"the member {index} of the population was {_shown_member(before[index])}, now {_shown_member(now[index])}"
        )
    return Problem(f"{text}: resume with the same population", code="resume-population-differs")


def _shown_member(member: Any) -> str:
    return short(str(member.get("directory")) if isinstance(member, Mapping) else str(member))


def data_of(progress: Mapping[str, Any], process: int, processes: int, batches: int | None) -> Any:
    """Return the state of the training data of a process, or None if it has none.

    Args:
      progress: the progress of the checkpoint.
      process: the index of the process.
      processes: the number of processes.
      batches: the number of batches in an epoch, or None if unknown.
    """
    if _processes_of(progress) is None:
        return progress.get("data")
    states = _restored_states(progress, processes, batches)
    return states[process] if process < len(states) else None


def _restored_states(progress: Mapping[str, Any], processes: int, batches: int | None) -> Sequence[Any]:
    """Return the states of the first processes, each with its own data, that resume from them."""
    states: Sequence[Any] = progress["data"]["processes"]
    before = mapping_at(saved_fingerprint(progress), "data", "train").get("batches")
    # In longer parts, the state at the end of a part would be a position inside of it.
    if len(states) != processes and None not in (before, batches) and before != batches:
        return ()
    return states[:processes]


def unused_states(progress: Mapping[str, Any], processes: int, batches: int | None) -> list[str]:
    """Return a warning if other processes than now had their own data, with a state. See `data_of`."""
    count = _processes_of(progress)
    if count in (None, processes) or not any(state is not None for state in progress["data"]["processes"]):
        return []
    count_restored = len(_restored_states(progress, processes, batches))
    texts = []
    if new := [*range(count_restored, processes)]:
        texts.append(f"the data of {named_processes(new)} starts as in a new run")
    if unused := [*range(count_restored, count)]:
        texts.append(f"the state of {named_processes(unused)} is not used")
    return [f"each of {count} processes had its own training data, and {processes} resume: {', and '.join(texts)}"]


def _processes_of(progress: Mapping[str, Any]) -> int | None:
    """Return the number of processes with their own data, or None if all had the same data."""
    data = progress.get("data")
    return len(data["processes"]) if isinstance(data, dict) and data.keys() == {"processes"} else None


def _listed(names: Any) -> str:
    return ", ".join(map(str, names)) if isinstance(names, list) and names else "none"


def changes_since_end(restored: Restored, fingerprint: Mapping[str, Any]) -> str | None:
    """Return a warning about changes since the end of a finished run, or None."""
    texts = changes(saved_fingerprint(restored.progress), fingerprint).others
    if not texts:
        return None
    what = "the run has nothing left to train: its result is unchanged, although this changed"
    return f"{what}: {'; '.join(texts)}"


def changes_since(
    restored: Restored, fingerprint: Mapping[str, Any], options: Options, is_reproducible: bool
) -> tuple[list[str], list[str]]:
    """Return a warning about changes since a checkpoint that have an effect, if any, and lines for the log about
    changes that may affect last bits.

    Args:
      restored: the checkpoint.
      fingerprint: the fingerprint of the run that resumes.
      options: its options.
      is_reproducible: True if its train data is expected to begin as that of the checkpoint.
    """
    changed, position = changes(saved_fingerprint(restored.progress), fingerprint), restored.position
    warned, now = [], platform_facts()
    # Between epochs, data whose order is random resumes from its state, or warns about its order itself.
    doubts = changed.doubts if position.batch or is_reproducible else []
    if texts := changed.others + changed.train_data + doubts:
        since = f"since the checkpoint of step {restored.entry.step}"
        warned.append(f"the run resumes although this changed {since}: {'; '.join(texts)}")
    warned += too_few_epochs(options, position)
    if numbers := restored.progress.get("changed"):
        warned.append(f"exploit has changed numbers while the member trained: it needs {_assigned(numbers)} now")
    made_on = restored.progress["made_on"]
    machine = [f"{name}: {made_on.get(name)} -> {now[name]}" for name in now if made_on.get(name) != now[name]]
    logged = []
    if keywords := restored.progress.get("keywords"):
        logged.append(f"the optimizer of the member had {_assigned(keywords)} in its population, and needs it")
    # Once each: the machine's facts include the versions of JAX, and the fingerprint those of all packages that trace.
    if others := list(dict.fromkeys(changed.logged + machine + changed.versions)):
        logged.append(f"{', '.join(others)}: numbers may differ in their last bits{_uncompared(changed.uncompared)}")
    return warned, logged


def _uncompared(steps: Sequence[str]) -> str:
    """Return a clause that names the steps that could not be compared; empty if all were."""
    if not steps:
        return ""
    return (
        f"; {', '.join(steps)}: traced by other versions and not compared, so a change of the loss or of the model's "
        "code would not be noticed"
    )


def _assigned(numbers: Mapping[str, float]) -> str:
    return ", ".join(f"{name}={x:g}" for name, x in numbers.items())


def too_few_epochs(options: Options, position: Position) -> list[str]:
    """Return a warning if `num_epochs` or `num_steps` is less than the run has already trained."""
    begun = position.epoch - (0 if position.batch else 1)
    if options.num_epochs is not None and begun > options.num_epochs:
        has = f"is in epoch {begun}" if position.batch else f"has {begun}"
        return [f"num_epochs is {options.num_epochs}, and the run {has} already: nothing is trained"]
    if options.num_steps is not None and position.step > options.num_steps:
        return [f"num_steps is {options.num_steps}, and the run has {position.step} already: nothing is trained"]
    return []
