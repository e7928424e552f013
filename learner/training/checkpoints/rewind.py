"""Rewinding a run to the checkpoint that it resumes from: newer log lines and checkpoints are archived."""

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from learner.checkpoint.manifest import DamagedError
from learner.checkpoint.member_store import MemberStore
from learner.checkpoint.store import CheckpointStore
from learner.runs.log_cutting import refuse_changed
from learner.training.checkpoints.resume import allowed, changes_since, unused_states
from learner.training.files.run_directory import open_store
from learner.training.files.run_outputs import Outputs
from learner.training.options import Options
from learner.training.progress.restore import Restored
from learner.training.spec import RunSpec
from learner.util.disk import replacing
from learner.util.text import join_names

MOST_NAMED = 6
NOTHING_LOGGED = {"epoch_lines": 0, "epoch": 0, "files": {}}


def open_checkpoints(spec: RunSpec, outputs: Outputs, threads: contextlib.ExitStack) -> CheckpointStore | None:
    """Rewind the directory to the position to resume from, and return the checkpoints, which `threads` closes. Return
    None if nothing is saved.
    """
    options, restored, log = spec.options, spec.restored, outputs.log
    store = None
    if options.checkpoints is not None:
        store = open_store(options, spec.monitor[1], spec.processes)
        threads.callback(store.close)
    if restored is not None:
        is_reproducible = spec.inputs.source("train").is_reproducible()
        warned, logged = changes_since(restored, spec.fingerprint, options, is_reproducible)
        unused = unused_states(restored.progress, spec.processes.count, spec.inputs.source("train").batches)
        for text in (*restored.notes, *warned, *unused):
            outputs.warn(text)
        for text in logged:
            log.warning(text)

    def prepare() -> None:
        superseded = restored is not None and _has_newer(options, restored)  # before the first copy
        if store is not None and restored is not None:
            _copy_from_population(options, restored, store, outputs.warn)
        _rewind_logs(spec, outputs, store, superseded)
        if store is not None:
            store.place.warn = outputs.warn
            store.prepare()
            # Only now, as the newest could be read, and before a run that may have nothing left to save.
            store.prune()

    # The other processes wait for this: none may write to the directory while it is cleared.
    spec.processes.run_on_primary(prepare)
    if store is not None and spec.processes.index:
        store.place.refuse_unwritable()  # the first process has tried it
    return store


def _has_newer(options: Options, restored: Restored) -> bool:
    """Return True if there are later checkpoints than the one from which the run resumes."""
    with contextlib.closing(open_store(options)) as saved:
        return any(step > restored.entry.step for step in saved.steps)


def _copy_from_population(
    options: Options, restored: Restored, store: CheckpointStore, warn: Callable[[str], None]
) -> None:
    """Write separate checkpoints for a member that resumes separately for the first time."""
    with contextlib.closing(open_store(options)) as source:
        if not isinstance(source, MemberStore):
            return
        store.prepare()
        # The newest last: until it exists, another start reads the population's checkpoints and continues the copy.
        for step in [entry.step for entry in source.entries if entry.step <= restored.entry.step]:
            try:
                if step not in store.steps:
                    source.copy(step, store, more=step < restored.entry.step)
            except DamagedError as error:
                if step == restored.entry.step:
                    raise
                warn(f"{error}; the run resumes without it")


def _rewind_logs(spec: RunSpec, outputs: Outputs, store: CheckpointStore | None, superseded: bool) -> None:
    """Cut the files at the position to resume from, and keep the newer lines in `superseded/`."""
    options, restored, log = spec.options, spec.restored, outputs.log
    every, lenient = [outputs, *outputs.members], "logs" in allowed(options)
    positions = _positions(restored)
    if not lenient:
        for each, position in zip(every, positions, strict=False):
            refuse_changed(each.options.directory, position)  # before anything is changed
    for own in (each.options for each in every):
        if own.config_text is not None:
            _write(own.directory / "config.yaml", own.config_text, 0o600 if own.config_private else 0o666)
    if not spec.resumes:
        return
    if restored is None:
        for each in every:
            each.files.cut(NOTHING_LOGGED)
        log.info("resume: there is no checkpoint yet, so the run starts over")
    else:
        # Checkpoints before logs: a kill in between leaves logs that are too long, which the next start cuts. If logs
        # were cut first, the newest checkpoint would rely on missing lines.
        place = _archive_newer_checkpoints(options, restored, store, outputs) if superseded else None
        for each, position in zip(every, positions, strict=True):
            kept = place if place is None else each.options.directory / "superseded" / place.name
            each.files.cut(position, kept, lenient)
        log.info("resume: from the checkpoint of step %d", restored.entry.step)
    for each in every:
        (each.options.directory / "summary.json").unlink(missing_ok=True)


def _positions(restored: Restored | None) -> list[Mapping[str, Any]]:
    """Return the positions of the logs of the run and of the members of a population."""
    parts = () if restored is None else (restored.progress, *restored.progress.get("members", ()))
    return [part["log"] for part in parts]


def _archive_newer_checkpoints(
    options: Options, restored: Restored, store: CheckpointStore | None, outputs: Outputs
) -> Path:
    """Move newer checkpoints to a directory in `superseded/`, and return it. Checkpoints of a population stay."""
    if store is None:  # nothing is saved from now on, but newer checkpoints must go, too
        with contextlib.closing(open_store(options)) as reader:
            return _archive_newer_checkpoints(options, restored, reader, outputs)
    superseded = options.directory / "superseded"
    superseded.mkdir(exist_ok=True)
    place = superseded / str(1 + max((int(p.name) for p in superseded.iterdir() if p.name.isdecimal()), default=0))
    moved = store.set_aside(restored.entry.step, place.absolute() / "checkpoint")
    logs = f"the logs after step {restored.entry.step} moved to {place}"
    if moved:
        steps = join_names([f"step {step}" for step in moved], MOST_NAMED)
        outputs.notify(f"the checkpoints of {steps} and {logs}")
    else:
        outputs.info(logs)
    return place


def _write(path: Path, text: str, mode: int) -> None:
    # Flushed: a config truncated by a power loss would look like another run's. Never readable by others, not even for
    # a moment.
    with replacing(path, mode=mode) as file:
        file.write(text.encode())
