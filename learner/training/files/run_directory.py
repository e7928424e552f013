"""The directory of a run: checks, lock and preparation before anything is written there."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from learner.checkpoint.manifest import DamagedError
from learner.checkpoint.member_store import copies_follow, member_store
from learner.checkpoint.retention import CheckpointOptions, Retention
from learner.checkpoint.store import ATTEMPTS, CheckpointStore, Entry, read_while_training
from learner.distributed.differences import named_processes
from learner.distributed.process_group import ProcessGroup, SingleProcess
from learner.errors import LearnerError
from learner.runs import control_files
from learner.runs.evaluations import complete_summary
from learner.runs.file_names import file_name
from learner.runs.lock import NAME, locked, read_note
from learner.runs.population import read_members, write_members
from learner.training.feed.inputs import Inputs
from learner.training.files import directory
from learner.training.options import Options
from learner.util.disk import make_directory
from learner.util.user_warnings import warn

SINGLE_PROCESS = SingleProcess()
SECONDS_TO_SEE = 60.0
"""Seconds within which all processes see a new file: network file systems cache directories for as long."""
T = TypeVar("T")


def resumes(options: Options) -> bool:
    """Return True if the builder requests to resume and the directory holds a run.

    Raises:
      LearnerError: the builder selects a checkpoint, but there is no run.
    """
    start, path = options.start, options.directory
    if start is None or directory.holds_run(path):
        return start is not None
    if not start.get("resume"):
        named = " ".join(f"{key} {value}" for key, value in start.items())
        raise LearnerError(
            f"there is no run in {path}, so there is no checkpoint of {named}; resume() starts a new run there",
            code="resume-checkpoint-missing",
            place=path,
        )
    return False


def may_resume(options: Options) -> bool:
    """Return True if the run in the directory is resumed.

    Raises:
      LearnerError: a new run may not start there.
    """
    if options.start is not None or not options.overwrite:
        directory.refuse_waves(options.directory)
    if resumes(options):
        _refuse_members_alone(options)
        return True
    for path in _directories(options):
        directory.refuse_run(path, overwrite=options.overwrite)
    _refuse_checkpoints(options)
    return False


def refuse_links(options: Options, inputs: Inputs) -> None:
    """Raise `LearnerError` if anything that no run wrote has the name of a file of this run."""
    splits = ["train", "custom", *map(file_name, inputs.valid)]
    profile, config = options.profile is not None, options.config_text is not None
    for path in _directories(options):
        directory.refuse_foreign(path, splits, profile=profile, config=config)


@contextlib.contextmanager
def locked_directory(options: Options, processes: ProcessGroup) -> Iterator[None]:
    """Hold the lock of the directory in the first process, and the locks of a population's members and of a separate
    directory of checkpoints. Remove requests to an earlier run.
    """
    with contextlib.ExitStack() as locks:
        for path in _directories(options):
            make_directory(path)
            # One process holds the locks for all: if it fails, the others raise its error at their next meeting.
            if processes.index == 0:
                locks.enter_context(locked(path))
                # Requests to an earlier run. Under the lock: otherwise a request to an active run would be lost.
                control_files.consume(path)
        # Two runs may have the same directory of checkpoints: each would remove the checkpoints of the other.
        if processes.index == 0 and (place := _checkpoints_elsewhere(options)) is not None:
            make_directory(place)
            locks.enter_context(locked(place))
        refuse_unshared(options, processes)  # by the lock, which process 0 holds until the end
        yield
        if processes.index == 0:
            for path in _directories(options):
                # Evaluations that were recorded while the loggers closed: the summary was written, the lock held.
                try:
                    complete_summary(path)
                except (OSError, LearnerError) as error:
                    warn(f"the evaluations of {path} could not be added to its summary: {error}")


def refuse_unshared(
    options: Options,
    processes: ProcessGroup,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Raise `LearnerError` in all processes unless all see the directory in which they save checkpoints together. Other
    directories need not be shared: without checkpoints, or with checkpoints in an object store.
    """
    if processes.count == 1 or options.checkpoints is None or not isinstance(options.checkpoint_place, Path):
        return
    path = _checkpoints_elsewhere(options) or options.directory
    note = processes.run_on_primary(lambda: read_note(path))
    # In time for the meeting below, where process 0 waits.
    end = clock() + min(SECONDS_TO_SEE, processes.timeout / 2)
    while not (sees := processes.index == 0 or _sees(path, note)) and clock() < end:
        processes.raise_if_peer_failed()
        sleep(0.5)
    if blind := processes.all_reduce_json(sees, _blind, "the directory of the run"):
        raise LearnerError(
            f"{path} is not the same directory in all processes: {named_processes(blind)} cannot find the {NAME} that "
            "process 0 has written there. All processes save each checkpoint together: choose a directory on a disk "
            "that they share, or save with with_file_checkpointer(directory='gs://...'), or nothing with "
            "with_file_checkpointer(None)",
            code="directory-not-shared",
            directory=str(path),
        )


def _sees(path: Path, note: str | None) -> bool:
    """Return True if this process sees the note of process 0 in the lock."""
    try:
        with os.scandir(path) as entries:  # opening a directory makes network file systems ask their server
            next(entries, None)
        return read_note(path) == note
    except PermissionError:
        return True  # of another user, perhaps: the first save will tell
    except OSError:
        return False


def _blind(sees: Sequence[bool]) -> list[int]:
    """Return the processes that do not see the directory."""
    return [index for index, each in enumerate(sees) if not each]


def _checkpoints_elsewhere(options: Options) -> Path | None:
    """Return the directory of the checkpoints if it is on a disk, but not in the run's directory."""
    place = options.checkpoint_place
    if options.checkpoints is None or options.checkpoints.directory is None or not isinstance(place, Path):
        return None
    return None if place.resolve() in [path.resolve() for path in _directories(options)] else place


def prepare(options: Options, *, keep: bool) -> None:
    """Remove the run that a new one replaces, unless it is kept to be resumed."""
    # Read before the file with these names is removed.
    names = {member["directory"] for member in read_members(options.directory)}
    if not keep:
        for path in _directories(options):
            directory.refuse_run(path, overwrite=options.overwrite)  # a run may have begun since preflight
        _refuse_checkpoints(options)  # or it may have saved, if two runs share a directory of checkpoints
        directory.remove_members(options.directory)
        directory.remove_waves(options.directory)
    for path in _directories(options):
        directory.prepare(path, keep=keep)
    if options.population is not None:
        write_members(options.directory, options.population.to_json())
    if not keep and options.checkpoints is not None and options.checkpoints.directory is not None:
        # A direction makes the store writable; as everything is removed, either will do.
        with contextlib.closing(open_store(options, higher_is_better=False)) as store:
            store.remove_all()
        for name in names:  # members that have resumed separately
            with contextlib.closing(CheckpointStore(_place_of_member(options, name))) as store:
                store.remove_all()


def open_store(
    options: Options, higher_is_better: bool | None = None, processes: ProcessGroup = SINGLE_PROCESS
) -> CheckpointStore:
    """Return the checkpoints of a run; read-only if the direction of the monitor is not given. For a member of a
    population without its own checkpoints, return those of the population.
    """
    checkpoints, place = options.checkpoints or CheckpointOptions(), options.checkpoint_place
    if higher_is_better is None:
        store = CheckpointStore(place, once=processes.run_on_primary)
        if store.steps and not copies_follow(options.directory, store):
            return store
        return member_store(options.directory, place, processes.run_on_primary) or store
    keep = Retention(checkpoints.keep_last, checkpoints.keep_best, checkpoints.keep_every, higher_is_better)
    return CheckpointStore(place, keep, processes.run_on_primary)


def read_found(
    options: Options,
    processes: ProcessGroup,
    epoch: int | str | None,
    step: int | None,
    read: Callable[[CheckpointStore, Entry], T],
) -> T:
    """Return the result of a function that reads a checkpoint of a run, which may still train: if the run removes the
    checkpoint before it is read, find another one. `epoch`, `step`: see `CheckpointStore.find`.
    """

    def read_one(store: CheckpointStore) -> T:
        # In one process, as another process might find another checkpoint.
        chosen = processes.run_on_primary(lambda: store.find(epoch, step).step)
        if processes.index:  # process 0 may have listed the checkpoints after this process, and after another save
            store.relist()
        entry = store.find(step=chosen)
        try:
            with store.reading(entry.step):
                return read(store, entry)
        except DamagedError as error:
            raise store.damaged_error(entry.step, error) from None

    return read_of_run(options, processes, read_one)


def read_of_run(options: Options, processes: ProcessGroup, read: Callable[[CheckpointStore], T]) -> T:
    """Return the result of a function that reads the checkpoints of the builder's run; see `read_while_training`."""
    attempts = ATTEMPTS if processes.count == 1 else 1  # as another process would find others
    return read_while_training(lambda: open_store(options, processes=processes), read, attempts)


def _directories(options: Options) -> list[Path]:
    """Return the directory of the run, and those of the members of a population."""
    members = options.population.members if options.population is not None else ()
    return [options.directory, *(options.directory / member.name for member in members)]


def _place_of_member(options: Options, name: str) -> str:
    """Return the directory of the checkpoints of a member of the population that has resumed separately."""
    elsewhere = options.checkpoints is not None and options.checkpoints.directory is not None
    return f"{options.checkpoint_place}/{name}" if elsewhere else str(options.directory / name / "checkpoint")


def _refuse_members_alone(options: Options) -> None:
    """Raise `LearnerError` if a member of the population has resumed separately, as its files now have other steps."""
    for member in options.population.members if options.population is not None else ():
        place = _place_of_member(options, member.name)
        with contextlib.closing(CheckpointStore(place)) as store:
            if store.steps:
                directory = options.directory / member.name
                raise LearnerError(
                    f"{directory} was resumed alone, so the population can no longer resume as a whole: resume its "
                    f"members alone, or remove {place} to lose that training",
                    code="population-member-resumed",
                    member=member.name,
                    directory=directory,
                )


def _refuse_checkpoints(options: Options) -> None:
    """Raise `LearnerError` if the directory of the checkpoints holds those of another run."""
    if options.checkpoints is None or options.checkpoints.directory is None or options.overwrite:
        return
    with contextlib.closing(open_store(options)) as store:
        if store.steps:
            raise LearnerError(
                f"{options.checkpoint_place} holds the checkpoints of a run. To replace them, use "
                f"LearnerBuilder(directory, overwrite=True) (--overwrite=true); or choose another directory",
                code="directory-holds-checkpoints",
            )
