"""The place of a run's checkpoints: how a checkpoint is written atomically, and removed.

On a disk it is written under a temporary name, and one rename makes it a checkpoint. Object stores have no rename:
there the manifest, written last, decides. In both, a mark next to it proves that leftovers of a save are ours.
"""

import abc
import contextlib
import errno
import functools
import itertools
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax

from learner.checkpoint.arrays import STATE, UNFINISHED
from learner.checkpoint.manifest import (
    ITEMS,
    MARK,
    NAME,
    NUMBERED,
    PROGRESS,
    DamagedError,
    is_mark,
    is_ours,
    refuse_damage,
    remove_checkpoint,
    write_manifest,
)
from learner.checkpoint.records import is_record
from learner.checkpoint.stored_files import NoAnswerError, is_local
from learner.errors import LearnerError
from learner.util.disk import make_directory, problem_with_name, to_disk
from learner.util.retries import Retries
from learner.util.urls import one_line
from learner.util.user_warnings import warn

AGAIN = Retries(2)  # for failures in an object store; each try takes 30 to 60 s if the store does not answer
# Without these TensorStore waits half an hour for a server that disappears silently. It reads them once.
PATIENCE = {"TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS": "60", "TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES": "1"}
NO_ANSWER = "UNAVAILABLE", "PERMISSION_DENIED", "UNAUTHENTICATED", "DEADLINE_EXCEEDED"  # of TensorStore, in its errors
SMALL_FILES = 160 << 10  # bytes of a checkpoint on a disk in addition to its arrays
TRIES, SECONDS_BETWEEN_TRIES = 20, 0.05  # to remove a directory that threads of a failed save may still write to
T = TypeVar("T")


class Place(abc.ABC):
    """A directory of checkpoints, each named by its step.

    All processes of a run have a `Place`. One process changes files; `refuse_obstacle` and `discard` are called in all.

    Attributes:
      warn: called with a line if something fails and the run continues, by the thread that saves.
    """

    def __init__(self, directory: Any):
        self._directory = directory
        self.warn: Callable[[str], None] = warn

    @functools.cached_property
    @abc.abstractmethod
    def root(self) -> Any:
        """The directory, a `pathlib.Path` or one of `etils.epath`."""

    def path(self, step: int) -> Any:
        """Return the path of a checkpoint."""
        return self.root / str(step)

    def mark_of(self, step: int) -> Any:
        """Return the path of the mark, which proves that the leftovers of an unfinished save are ours."""
        return self.root / f"{step}.saving"

    def steps(self) -> list[int]:
        """Return the steps of all checkpoints, oldest first."""
        with self.reachable():
            self._forget_listings()
            if not self.root.exists():
                return []
            paths = (path for path in self.root.iterdir() if self._is_named(path.name) and self._is_checkpoint(path))
            return sorted(int(path.name) for path in paths)

    def holds(self, step: int) -> bool:
        """Return True if there is a checkpoint of this step now: a run that trains may remove it at any time."""
        with self.reachable():
            self._forget_listings()
            return self._is_checkpoint(self.path(step))

    def _forget_listings(self) -> None:  # noqa: B027  # those of a disk are always read
        """Let the next listing show what other processes have written and removed."""

    def _is_named(self, name: str) -> bool:
        return name.isdecimal() and name == str(int(name))

    @abc.abstractmethod
    def _is_checkpoint(self, path: Any) -> bool:
        """Return True if a directory is a checkpoint, even a damaged one. Other programs may have files next to it."""

    @contextlib.contextmanager
    def reachable(self) -> Iterator[None]:
        """Turn the errors of an object store's tools into errors with a remedy."""
        yield

    def is_unreachable(self, error: Exception) -> bool:
        """Return True if an error is about the place, and proves nothing about a checkpoint."""
        return isinstance(error, NoAnswerError)

    def unreachable(self, error: Exception) -> LearnerError:
        """Return an error with a remedy for an error about the place."""
        cause = str(error) if isinstance(error, NoAnswerError) else one_line(error)
        return LearnerError(
            f"the checkpoints in {self.root} cannot be reached: {cause}. The bucket has to exist, and credentials are "
            "those that the store's own tools find",
            code="checkpoint-address-unreachable",
            directory=str(self.root),
        )

    @property
    def retries(self) -> bool:
        """Return True if `retry` repeats failed calls."""
        return False

    def retry(self, what: Callable[[], T], failure: str) -> T:
        """Return `what()`, which changes files. `failure`: the beginning of the warning before a retry."""
        return what()

    def refuse_unwritable(self) -> None:  # noqa: B027  # a disk is tried where its directory is created
        """Raise `LearnerError` unless this process can write to the place. Each process has credentials of its own."""

    @abc.abstractmethod
    def prepare(self) -> None:
        """Create the directory, and remove the remains of saves and removals of a killed process.

        Raises:
          LearnerError: it cannot be created, or it is in an object store that cannot be written to.
        """

    def recover(self) -> None:  # noqa: B027  # object stores have no names to give
        """Rename a checkpoint that was complete when its process was killed."""

    def refuse_obstacle(self, step: int, is_known: bool) -> None:  # noqa: B027  # `begin` does it in object stores
        """Raise in all processes if a save cannot begin. `is_known`: the run has a checkpoint with this name."""

    @abc.abstractmethod
    def target(self, step: int) -> Any:
        """Return the directory to which a save writes."""

    @abc.abstractmethod
    def begin(self, step: int, is_known: bool, arrays: Mapping[str, Any]) -> None:
        """Remove obstacles to a save, and mark it. See `refuse_obstacle`; `arrays`: the arrays to be written."""

    @abc.abstractmethod
    def complete(self, step: int, progress: str, facts: Mapping[str, Any]) -> None:
        """Complete the checkpoint of the written arrays; see `learner.checkpoint.manifest`."""

    def discard(self, step: int) -> None:  # noqa: B027  # in object stores a new try does it, or the next start
        """Remove the leftovers of a failed save."""

    @abc.abstractmethod
    def remove(self, step: int) -> None:
        """Remove a checkpoint. Its name goes first, so that a half-removed one is never taken for a checkpoint."""

    @abc.abstractmethod
    def set_aside(self, paths: Iterable[Any], directory: Any) -> None:
        """Move some paths to another directory, or in an object store below this one."""


class DiskPlace(Place):
    """A directory on a disk."""

    @functools.cached_property
    def root(self) -> Path:
        """See `Place`."""
        return Path(self._directory)

    def _is_checkpoint(self, path: Any) -> bool:
        return is_ours(path)

    def prepare(self) -> None:
        """See `Place`."""
        if problem := problem_with_name(self.root):
            raise LearnerError(
                f"the directory {os.fspath(self.root)!a} cannot be made: {problem}", code="checkpoint-directory-name"
            )
        make_directory(self.root)
        # Before anything is removed: a complete checkpoint that lacks only its name must not be taken for a leftover.
        self.recover()
        paths = list(self.root.iterdir())
        for path in paths:
            match = NUMBERED.fullmatch(path.name)
            if match is not None and match[2] and is_ours(path):
                self._remove_leftover(path)
            elif path.suffix == ".partial" and is_record(path.name) and path.is_file() and not path.is_symlink():
                path.unlink()
        # Marks go last. A kill in between leaves a mark without directories, which the next start removes; directories
        # without their mark would stay forever.
        for path in paths:
            if is_mark(path):
                path.unlink()

    def recover(self) -> None:
        """See `Place`."""
        for directory in self.root.glob("*.partial") if self.root.exists() else ():
            name = directory.name.removesuffix(".partial")
            if name.isdecimal() and not os.path.lexists(self.root / name) and is_ours(directory):
                # The checksums prove that every byte had reached the disk before the kill. Anything less stays a
                # leftover.
                with contextlib.suppress(DamagedError, OSError):
                    refuse_damage(directory)
                    directory.rename(self.root / name)

    def refuse_obstacle(self, step: int, is_known: bool) -> None:
        """See `Place`."""
        if not self.root.exists():
            raise LearnerError(
                f"the directory {self.root} was removed while the run was training, or is not on a disk that all "
                "processes of the run share",
                code="checkpoint-directory-gone",
                directory=str(self.root),
            )
        if not is_known and os.path.lexists(self.path(step)):
            raise _in_the_way(self.path(step))

    def target(self, step: int) -> Path:
        """See `Place`."""
        root = self.root.resolve() if ".." in self.root.parts else self.root  # TensorStore writes to no path with ".."
        return root / f"{step}.partial"

    def begin(self, step: int, is_known: bool, arrays: Mapping[str, Any]) -> None:
        """See `Place`."""
        # What an earlier save or removal left under the names that this save needs goes, if it is ours.
        for directory in self.root.glob(f"{step}.partial*"):
            if NUMBERED.fullmatch(directory.name) and os.path.lexists(directory):
                if not is_ours(directory):
                    raise _in_the_way(directory)
                remove_checkpoint(directory)
        self._name_of_removed(step)
        mark = self.mark_of(step)
        if os.path.lexists(mark):
            if not is_mark(mark):
                raise _in_the_way(mark)
            mark.unlink()
        # Exclusive creation follows no link that another user has placed there. The mark survives a power loss.
        with mark.open("x") as file:
            file.write(MARK)
        to_disk(mark)
        # Last, as the leftovers of earlier saves are removed by now, and need no space.
        self._refuse_full(arrays)

    def _refuse_full(self, arrays: Mapping[str, Any]) -> None:
        """Raise before anything is written, as a partial save on a full disk would take the space of the logs."""
        # Only with one process: each of several writes a part of the bytes, possibly to its own disk.
        needed = sum(int(x.nbytes) for x in jax.tree.leaves(dict(arrays)) if hasattr(x, "nbytes")) + SMALL_FILES
        usage = shutil.disk_usage(self.root)
        if jax.process_count() == 1 and usage.total and usage.free < needed:
            text = f"{os.strerror(errno.ENOSPC)}: a checkpoint needs {needed:,} bytes, and {usage.free:,} are free"
            raise OSError(errno.ENOSPC, text, str(self.root))

    def complete(self, step: int, progress: str, facts: Mapping[str, Any]) -> None:
        """See `Place`."""
        directory = self.target(step)
        (directory / PROGRESS).parent.mkdir()
        _write_manifest(directory, progress, facts)
        self._name(directory, self.path(step))

    def _name(self, directory: Path, path: Path) -> None:
        """Rename a complete checkpoint. Another checkpoint with that name is then removed."""
        replaced = self._name_of_removed(int(path.name))
        if path.exists():
            path.rename(replaced)  # the store knows this checkpoint, so it is ours
        # There is a moment without a checkpoint of this name. `recover` closes it after a kill; an error does so here.
        try:
            directory.rename(path)
        except BaseException:
            if replaced.exists():
                replaced.rename(path)
            raise
        # The new name must be on the disk before the old checkpoint is removed, or a power loss could lose both.
        to_disk(self.root)
        if replaced.exists():
            self._remove_leftover(replaced)

    def discard(self, step: int) -> None:
        """See `Place`."""
        if not self.root.exists():
            return
        # Threads that outlive a failed save may create files while the directory is being removed.
        for _ in range(TRIES):
            paths = [directory for directory in self.root.glob(f"{step}.partial*") if is_ours(directory)]
            if not paths:
                break
            for directory in paths:
                shutil.rmtree(directory, ignore_errors=True)
            time.sleep(SECONDS_BETWEEN_TRIES)
        # The error of the save is the one to raise.
        with contextlib.suppress(OSError):
            if not paths and is_mark(self.mark_of(step)):
                self.mark_of(step).unlink()

    def remove(self, step: int) -> None:
        """See `Place`."""
        directory = self.path(step)
        if not is_ours(directory):
            raise _in_the_way(directory)
        removed = self._name_of_removed(step)
        # After one atomic rename it is no longer a checkpoint; a kill during the slow removal is then harmless.
        directory.rename(removed)
        self._remove_leftover(removed)

    def _name_of_removed(self, step: int) -> Path:
        """Return a free name for a checkpoint whose files are removed next, after those of an earlier one."""
        name = self.root / f"{step}.removed"
        if os.path.lexists(name):
            if not is_ours(name):
                raise _in_the_way(name)
            self._remove_leftover(name)
        further = (self.root / f"{step}.removed.{number}" for number in itertools.count(1))
        return next(path for path in itertools.chain([name], further) if not os.path.lexists(path))

    def _remove_leftover(self, directory: Path) -> None:
        """Remove a directory that has no name of a checkpoint any more. If that fails, the next start tries it again:
        it may belong to another user, or be in use on a network's disk.
        """
        try:
            remove_checkpoint(directory)
        except OSError as error:
            reason = error.strerror or str(error)
            self.warn(f"{directory}, which is left of a checkpoint, could not be removed: {reason}. It takes up space")

    def set_aside(self, paths: Iterable[Any], directory: Any) -> None:
        """See `Place`."""
        target = Path(directory)
        target.mkdir(parents=True, exist_ok=True)
        for path in paths:
            shutil.move(path, target / path.name)  # which may be on another disk


class ObjectPlace(Place):
    """An address in an object store. With a single process, failures are retried; several processes would have to retry
    together.
    """

    def __init__(self, directory: Any):
        super().__init__(directory)
        self._is_gone = False  # the last write has failed

    @functools.cached_property
    def root(self) -> Any:
        """See `Place`."""
        from etils import epath

        for name, value in PATIENCE.items():
            os.environ.setdefault(name, value)
        return epath.Path(self._directory)

    def _forget_listings(self) -> None:
        # gcsfs keeps them for as long as the process lives.
        from etils import epath

        epath.backend.fsspec_backend.fs(self.root).invalidate_cache()

    def _is_checkpoint(self, path: Any) -> bool:
        if not path.is_dir():
            return False
        # The mark of a save in progress, or of an interrupted save.
        parts = () if is_mark(self.mark_of(int(path.name))) else ("progress", STATE, *ITEMS)
        return any((path / part).exists() for part in (NAME, *parts))

    @contextlib.contextmanager
    def reachable(self) -> Iterator[None]:
        """See `Place`."""
        try:
            yield
        except LearnerError:
            raise
        except Exception as error:
            raise self.unreachable(error) from error

    def is_unreachable(self, error: Exception) -> bool:
        """See `Place`."""
        return super().is_unreachable(error) or any(answer in str(error) for answer in NO_ANSWER)

    @property
    def retries(self) -> bool:
        """See `Place`."""
        return bool(jax.process_count() == 1)

    def retry(self, what: Callable[[], T], failure: str) -> T:
        """See `Place`."""
        if not self.retries:
            return what()

        def failed(error: Exception, pause: float) -> None:
            self.warn(f"{failure}; tried again in {pause:g} s: {one_line(error)}")

        # A store that is unreachable for long delays a run by the pauses only once.
        times = Retries(0) if self._is_gone else AGAIN
        try:
            answer = times.call(what, lambda error: not isinstance(error, LearnerError), failed)
        except LearnerError:
            raise  # it is about the checkpoint, and not about the store
        except Exception:
            self._is_gone = True
            raise
        self._is_gone = False
        return answer

    def refuse_unwritable(self) -> None:
        """See `Place`."""
        probe = self.root / f".learner-{uuid.uuid4().hex}"
        with self.reachable():
            probe.write_text("")
            probe.unlink()

    def prepare(self) -> None:
        """See `Place`."""
        with self.reachable():
            self.root.mkdir(parents=True, exist_ok=True)
        self.refuse_unwritable()
        with self.reachable():
            for mark in filter(is_mark, self.root.glob("*.saving")):
                step = int(mark.stem)
                if not (self.path(step) / NAME).exists():  # a complete one may have been killed before its mark went
                    self._clear(step)
                mark.unlink()

    def _clear(self, step: int) -> None:
        """Remove the leftovers of a save. The manifest goes first, as without it there is no checkpoint."""
        (self.path(step) / NAME).unlink(missing_ok=True)
        for path in self.root.glob(f"{step}*"):
            if path.name.partition(UNFINISHED)[0] == str(step):
                path.rmtree()

    def target(self, step: int) -> Any:
        """See `Place`."""
        return self.path(step)

    def begin(self, step: int, is_known: bool, arrays: Mapping[str, Any]) -> None:
        """See `Place`."""
        is_left_over = is_known or is_mark(self.mark_of(step))
        # Before the mark, because of which the next start would remove the files of others.
        if not is_left_over and self.path(step).exists():
            raise _in_the_way(self.path(step))
        self.mark_of(step).write_text(MARK)
        if is_left_over:
            self._clear(step)

    def complete(self, step: int, progress: str, facts: Mapping[str, Any]) -> None:
        """See `Place`."""
        # The directory of `PROGRESS` is not created: a store has none, and gcsfs may cache those of a failed save.
        _write_manifest(self.path(step), progress, facts)

    def remove(self, step: int) -> None:
        """See `Place`."""
        # Without a manifest it is not a checkpoint, and with a mark it is not damaged: after an interrupted removal, no
        # half of a checkpoint counts, and the next start completes the removal.
        self.mark_of(step).write_text(MARK)
        (self.path(step) / NAME).unlink(missing_ok=True)
        self.path(step).rmtree(missing_ok=True)  # the answer to an earlier try may have been lost
        self.mark_of(step).unlink(missing_ok=True)

    def set_aside(self, paths: Iterable[Any], directory: Any) -> None:
        """See `Place`."""
        target = self.root / "superseded" / Path(directory).parent.name
        target.mkdir(parents=True, exist_ok=True)
        # In an object store, a directory exists only with a file.
        (target / "README").write_text("checkpoints that were newer than the one from which the run resumed\n")
        for path in paths:
            path.rename(target / path.name)


def open_place(directory: Any) -> Place:
    """Return the place of checkpoints at a path or an address. Nothing is read or written."""
    return DiskPlace(directory) if is_local(directory) else ObjectPlace(directory)


def _write_manifest(directory: Any, progress: str, facts: Mapping[str, Any]) -> None:
    # The manifest holds the checksums of all other files, so it is written after the last of them.
    (directory / PROGRESS).write_text(progress)
    write_manifest(directory, facts)


def _in_the_way(path: Any) -> LearnerError:
    return LearnerError(
        f"{path} is in the way: it has a name that a checkpoint needs, and learner did not write it. Nothing was "
        "changed; move it away",
        code="checkpoint-path-in-the-way",
        path=path,
    )
