"""Checkpoints on disk: each is one atomic directory, keyed by the optimizer step.

A checkpoint has one PyTree of Orbax, `state`, with the items `model`, `optim` and `scheduler`, each readable on its
own, and `in_flight` when it was made inside an epoch: the metrics' states in flight and the rows collected so far.
The JSON file `progress` has everything else that a run is. `manifest.json` makes it complete: see
`learner.checkpoint.manifest`.

Orbax's manager is not used: it removes older checkpoints before ours has its checksums, and writes nothing below its
newest step.
"""

import contextlib
import dataclasses
import errno
import functools
import json
import os
import shutil
import time
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

from learner.checkpoint.arrays import ITEMS, STATE, UNFINISHED, ArrayFiles
from learner.checkpoint.items import differences, flat, refuse_differences
from learner.checkpoint.manifest import (
    MARK,
    NAME,
    NUMBERED,
    PROGRESS,
    DamagedError,
    is_mark,
    is_ours,
    read_manifest,
    refuse_damage,
    remove_checkpoint,
    write_manifest,
)
from learner.checkpoint.records import is_record, record_name, records_of, write_record
from learner.checkpoint.retention import Retention
from learner.checkpoint.stored_files import NoAnswerError, stored_files, text_of
from learner.errors import LearnerError
from learner.util.disk import make_directory, to_disk
from learner.util.retries import Retries
from learner.util.urls import one_line

FORMAT = 2  # of a checkpoint; 1 had a PyTree for each item
FACTS = ("ends_epoch", "score", "at_stop", "at_end", "higher_is_better")  # of `progress`, in the manifest too
AGAIN = Retries(2)  # of what fails in an object store; each try takes half a minute to a minute if nobody answers
# Without these TensorStore waits for half an hour for a server that is gone without a word. It reads them once.
PATIENCE = {"TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS": "60", "TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES": "1"}
NO_ANSWER = "UNAVAILABLE", "PERMISSION_DENIED", "UNAUTHENTICATED", "DEADLINE_EXCEEDED"  # of TensorStore, in its errors
SMALL_FILES = 160 << 10  # bytes that a checkpoint takes on a disk besides its arrays
TRIES, SECONDS_BETWEEN_TRIES = 20, 0.05  # of removing what threads that outlive a failed save may write to
MOST_PACKED = 10_000  # times: as much as compression could save
Once = Callable[[Callable[[], Any]], Any]
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Entry:
    """A complete checkpoint.

    Attributes:
      step: the optimizer step.
      epoch: the epoch that it is the end of, or None if it was made inside one.
      score: the monitored metric's value, or None.
    """

    step: int
    epoch: int | None
    score: float | None


class CheckpointStore:
    """The checkpoints of one run.

    Attributes:
      damaged: the problems of checkpoints whose manifest is damaged, by step.
      warn: called with a line where an object store fails and the run goes on, by the thread that saves.
    """

    def __init__(self, directory: Any, retention: Retention | None = None, once: Once = lambda do: do()):
        """Open the checkpoints in a directory.

        Args:
          directory: of the checkpoints; any path that Orbax takes.
          retention: the rule for which are kept. Without one the store only reads.
          once: calls a function in one of several processes, and returns its result or raises its error in all of them.
            They save and read every checkpoint together.
        """
        self._directory, self._retention, self._once = directory, retention, once
        self._arrays = ArrayFiles()
        self._verified: set[int] = set()
        self._is_gone = False  # the last write to an object store has failed
        self.damaged: dict[int, str] = {}
        self.warn: Callable[[str], None] = warnings.warn

    @property
    def _writes(self) -> bool:
        """Return True in the one process that writes the files which all processes share."""
        return jax.process_index() == 0  # only here: asking for it connects the devices of all processes

    @functools.cached_property
    def _path(self) -> Any:
        if "://" not in str(self._directory):
            return Path(self._directory)
        from etils import epath

        for name, value in PATIENCE.items():
            os.environ.setdefault(name, value)
        return epath.Path(self._directory)

    @functools.cached_property
    def _table(self) -> dict[int, dict[str, Any]]:
        return self._facts()

    def _facts(self) -> dict[int, dict[str, Any]]:
        """Return the facts in the manifests, by step."""
        table = {}
        for step in self._steps():
            try:
                with self._reachable():
                    manifest = read_manifest(self.path(step))
            except DamagedError as error:
                self.damaged[step] = str(error)
                continue
            table[step] = {**dict.fromkeys(FACTS), **manifest}
        return table

    def _steps(self) -> list[int]:
        with self._reachable():
            if not self._path.exists():
                return []
            return sorted(int(path.name) for path in self._path.iterdir() if self._is_checkpoint(path))

    def _is_checkpoint(self, path: Any) -> bool:
        """Return True if a directory is a checkpoint, which may be damaged. Other programs may have files beside it."""
        named = path.name.isdecimal() and path.name == str(int(path.name))
        if self._is_local:
            return named and is_ours(path)
        if not named or not path.is_dir():
            return False
        # The mark of a save that is under way, or that was cut off.
        parts = () if is_mark(self._mark_of(int(path.name))) else ("progress", STATE, *ITEMS)
        return any((path / part).exists() for part in (NAME, *parts))

    @property
    def entries(self) -> list[Entry]:
        """Return the checkpoints that are complete by their manifests, oldest first."""
        return [Entry(step, facts["ends_epoch"], facts["score"]) for step, facts in sorted(self._table.items())]

    @property
    def steps(self) -> list[int]:
        """Return the steps of all checkpoints, damaged ones included, oldest first."""
        return sorted({*self._table, *self.damaged})

    def path(self, step: int) -> Any:
        """Return the path of a checkpoint."""
        return self._path / str(step)

    # -- writing -------------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Create the directory, and remove the remains of saves and removals that a killed process has begun.

        Raises:
          LearnerError: it cannot be made, or is in an object store where nothing can be written.
        """
        if not self._is_local:
            self._prepare_address()
            return
        make_directory(Path(self._path))
        # Before anything is removed: a complete checkpoint that lacks only its name must not be taken for a leftover.
        self.recover()
        paths = list(self._path.iterdir())
        for path in paths:
            match = NUMBERED.fullmatch(path.name)
            if match is not None and match[2] and is_ours(path):
                remove_checkpoint(path)
            elif path.suffix == ".partial" and is_record(path.name) and path.is_file() and not path.is_symlink():
                path.unlink()
        # Marks go last. A kill in between leaves a mark without directories, which the next start removes; directories
        # without their mark would stay forever.
        for path in paths:
            if is_mark(path):
                path.unlink()

    def _prepare_address(self) -> None:
        probe = self._path / f".learner-{uuid.uuid4().hex}"
        with self._reachable():
            self._path.mkdir(parents=True, exist_ok=True)
            probe.write_text("")
            probe.unlink()
            for mark in filter(is_mark, self._path.glob("*.saving")):
                step = int(mark.stem)
                if not (self.path(step) / NAME).exists():  # a complete one may have been killed before its mark went
                    self._clear(step)
                mark.unlink()

    @contextlib.contextmanager
    def _reachable(self) -> Iterator[None]:
        """Raise whatever a store's own tools raise as an error that says what to do."""
        try:
            yield
        except Exception as error:
            if self._is_local or isinstance(error, LearnerError):
                raise
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> LearnerError:
        cause = str(error) if isinstance(error, NoAnswerError) else f"{type(error).__name__}: {error}"
        return LearnerError(
            f"the checkpoints in {self._path} cannot be reached: {cause}. The bucket has to exist, and credentials are "
            "those that the store's own tools find",
            code="checkpoint-address-unreachable",
            directory=str(self._path),
        )

    def _clear(self, step: int) -> None:
        """Remove what a save has left in an object store. The manifest goes first, as without it there is nothing."""
        (self.path(step) / NAME).unlink(missing_ok=True)
        for path in self._path.glob(f"{step}*"):
            if path.name.partition(UNFINISHED)[0] == str(step):
                path.rmtree()

    def recover(self) -> None:
        """Give a checkpoint its name that was complete when its process was killed."""
        for directory in self._path.glob("*.partial") if self._is_local and self._path.exists() else ():
            name = directory.name.removesuffix(".partial")
            if name.isdecimal() and not os.path.lexists(self._path / name) and is_ours(directory):
                # The checksums prove that every byte had reached the disk before the kill. Anything less stays a
                # leftover.
                with contextlib.suppress(DamagedError, OSError):
                    refuse_damage(directory)
                    directory.rename(self._path / name)

    def save(self, step: int, items: Mapping[str, Any], progress: Mapping[str, Any]) -> None:
        """Write a checkpoint, and when it is complete, remove those that are not kept. Waits until then.

        It is written under another name, and gets its own when everything is on the disk. Only one that was made
        because the run stopped there is replaced by another of its step. In an object store a save that fails is tried
        again, if the process is alone.

        Raises:
          LearnerError: there is a checkpoint of this step, something else has its name, or the directory is gone.
        """
        assert self._retention is not None
        text = json.dumps(progress, allow_nan=False)  # which may raise: before the arrays, and once
        facts = {name: progress.get(name) for name in FACTS}
        failure = f"the checkpoint of step {step} could not be written to {self.path(step)}"
        replaced = self._try_again(lambda: self._save(step, items, facts, text), failure)
        try:
            # Only now that the checkpoint has its name: until then the mark is what lets the next start remove it.
            # Tried again by itself: a save that is complete must not begin anew because the answer to this was lost.
            if self._writes:
                mark = self._mark_of(step)
                self._try_again(lambda: _unlink([mark, *replaced]), f"{mark} could not be removed")
            # Older checkpoints go last. A kill before this point leaves one too many, never one too few.
            self.prune()
        except Exception as error:
            if not self._is_alone_in_store:
                raise
            # Raised, it would make a complete checkpoint one that could not be written, and is written again.
            text = f"{self.path(step)} is complete; what it replaces could not be removed, which the next start does"
            self.warn(f"{text}: {one_line(error)}")

    def _try_again(self, what: Callable[[], T], failure: str) -> T:
        """Return `what()`, which writes to the store. `failure` begins the warning before it is tried again."""
        if not self._is_alone_in_store:
            return what()

        def failed(error: Exception, pause: float) -> None:
            self.warn(f"{failure}; tried again in {pause:g} s: {one_line(error)}")

        # A store that is gone for long holds a run for the pauses once, and then no longer than it must.
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

    def _save(self, step: int, items: Mapping[str, Any], facts: dict[str, Any], progress: str) -> list[Any]:
        """Write a checkpoint, and return the records of the one that it replaces."""
        if self._is_local and not self._path.exists():
            raise LearnerError(
                f"the directory {self._path} is gone: somebody removed it while the run went on",
                code="checkpoint-directory-gone",
                directory=str(self._path),
            )
        if step in self.steps and not self._table.get(step, {}).get("at_stop"):
            raise LearnerError(
                f"there is a checkpoint of step {step} in {self._path}, and it is not replaced",
                code="checkpoint-step-exists",
                step=step,
            )
        # The records of a checkpoint that is replaced are listed now: afterwards the table names the new one.
        replaced = self.records(step)
        # A local checkpoint is written under another name and renamed, which is atomic. Object stores have no rename:
        # there the manifest, written last, decides whether it exists.
        directory = self._path / f"{step}.partial" if self._is_local else self.path(step)
        if self._is_local and step not in self._table and os.path.lexists(self.path(step)):
            raise _in_the_way(self.path(step))
        left_over = not self._is_local and (step in self._table or is_mark(self._mark_of(step)))
        if self._is_local and self._writes:
            self._make_room(step)
        # Before the mark, by which the next start would remove what others keep there.
        if not self._is_local and self._writes and not left_over and self.path(step).exists():
            raise _in_the_way(self.path(step))
        # The mark comes before the first byte of Orbax, so that no kill can leave a directory that nothing proves to be
        # ours, and after the checks, so that a refused save leaves nothing behind.
        try:
            if self._writes:
                self._mark(step)
            if left_over and self._writes:
                self._clear(step)
            # All processes write their shards; Orbax returns in each when all have finished. One completes it.
            self._write(directory, items)
            if self._writes:
                self._complete(directory, step, facts, progress)
        except BaseException as error:
            error.add_note(f"while writing the checkpoint {self.path(step)}")
            self._discard_partial(step)
            raise
        self._table[step] = facts
        return replaced

    def _make_room(self, step: int) -> None:
        """Remove what an earlier save or removal left under the names that this save needs, if it is ours."""
        for directory in (*self._path.glob(f"{step}.partial*"), self._path / f"{step}.removed"):
            if NUMBERED.fullmatch(directory.name) and os.path.lexists(directory):
                if not is_ours(directory):
                    raise _in_the_way(directory)
                remove_checkpoint(directory)
        mark = self._mark_of(step)
        if os.path.lexists(mark):
            if not is_mark(mark):
                raise _in_the_way(mark)
            mark.unlink()

    def _mark_of(self, step: int) -> Any:
        return self._path / f"{step}.saving"

    def _mark(self, step: int) -> None:
        """Write the mark which proves that the directories of an unfinished save are ours; it outlives a power cut."""
        if not self._is_local:
            self._mark_of(step).write_text(MARK)
            return
        # Exclusive creation follows no link that somebody else has placed there.
        with self._mark_of(step).open("x") as file:  # never through a link
            file.write(MARK)
        to_disk(self._mark_of(step))

    def records(self, step: int) -> list[Any]:
        """Return the files beside a checkpoint that hold parts of it."""
        return self._records(step, self._table.get(step))

    def _records(self, step: int, facts: Mapping[str, Any] | None) -> list[Any]:
        return [] if facts is None else list(records_of(self._path, step, facts["ends_epoch"]))

    def record(self, step: int, extension: str, write: Callable[[Any], None], item: str = "model") -> Any:
        """Write a part of a checkpoint into a file beside it, and return its path. Return None in the processes that
        write none.
        """
        facts = self._table.get(step)
        if not self._writes or facts is None:
            return None
        path = self._path / f"{record_name(step, facts['ends_epoch'], item)}{extension}"
        write_record(path, write)
        return path

    def _write(self, directory: Any, items: Mapping[str, Any]) -> None:
        if self._is_local and self._writes:
            self._refuse_full_disk(items)
        self._arrays.save(directory, items)

    def _refuse_full_disk(self, items: Mapping[str, Any]) -> None:
        """Raise before anything is written: what Orbax writes until it notices would take the room of the logs."""
        # Only with one process: each of several writes a part of the bytes, possibly to its own disk.
        needed = sum(int(x.nbytes) for x in jax.tree.leaves(dict(items)) if hasattr(x, "nbytes")) + SMALL_FILES
        usage = shutil.disk_usage(self._path)
        if jax.process_count() == 1 and usage.total and usage.free < needed:
            text = f"{os.strerror(errno.ENOSPC)}: a checkpoint needs {needed:,} bytes, and {usage.free:,} are free"
            raise OSError(errno.ENOSPC, text, str(self._path))

    def _complete(self, directory: Any, step: int, facts: Mapping[str, Any], progress: str) -> None:
        # The manifest holds the checksums of all other files, so it is written after the last of them.
        path = directory / PROGRESS
        if self._is_local:  # object stores have no directories, and gcsfs may remember those of a save that failed
            path.parent.mkdir()
        path.write_text(progress)
        write_manifest(directory, {"format": FORMAT, "step": step, **facts})
        if self._is_local:
            self._name(directory, self.path(step))

    def _name(self, directory: Path, path: Path) -> None:
        """Give a complete checkpoint its name. Another of that name is removed once the new one has it."""
        replaced = path.with_name(f"{path.name}.removed")
        if path.exists():
            path.rename(replaced)  # one of this store's table, so that it is ours
        # There is a moment without a checkpoint of this name. `recover` closes it after a kill; an error does so here.
        try:
            directory.rename(path)
        except BaseException:
            if replaced.exists():
                replaced.rename(path)
            raise
        # The new name must be on the disk before the old checkpoint goes, or a power cut could lose both.
        to_disk(self._path)
        if replaced.exists():
            with contextlib.suppress(OSError):  # what is left of it goes at the next start
                remove_checkpoint(replaced)

    def _discard_partial(self, step: int) -> None:
        self.close()  # waits for the threads that write the other items
        if not self._is_local or not self._path.exists():
            return
        # Threads that outlive a failed save may create files while the directory is being removed.
        for _ in range(TRIES):
            paths = [directory for directory in self._path.glob(f"{step}.partial*") if is_ours(directory)]
            if not paths:
                break
            for directory in paths:
                shutil.rmtree(directory, ignore_errors=True)
            time.sleep(SECONDS_BETWEEN_TRIES)
        with contextlib.suppress(OSError):
            if not paths and is_mark(self._mark_of(step)):
                self._mark_of(step).unlink()

    def prune(self) -> None:
        """Remove the checkpoints that are not kept. A kill in `save` may have left one too many."""
        assert self._retention is not None
        table = {step: (facts["ends_epoch"], facts["score"]) for step, facts in self._table.items()}
        at_stop, at_end = ([s for s, facts in self._table.items() if facts[reason]] for reason in ("at_stop", "at_end"))
        for step in sorted(table.keys() - self._retention.kept(table, at_stop, at_end)):
            self._remove(step)

    def _remove(self, step: int) -> None:
        """Remove a checkpoint. Its name goes first, so that a half-removed one is never taken for a checkpoint."""
        facts = self._table.pop(step, None)  # it knows the epoch, from which the names of records are made
        self.damaged.pop(step, None)
        if self._writes:
            failure = f"the checkpoint {self.path(step)} could not be removed"
            self._try_again(lambda: self._remove_files(step, facts), failure)

    def _remove_files(self, step: int, facts: Mapping[str, Any] | None) -> None:
        # Records first: without its checkpoint no later run would know a record's owner.
        _unlink(self._records(step, facts))
        directory = self.path(step)
        if self._is_local:
            if not is_ours(directory):
                raise _in_the_way(directory)
            removed = directory.with_name(f"{step}.removed")
            if os.path.lexists(removed):
                if not is_ours(removed):
                    raise _in_the_way(removed)
                remove_checkpoint(removed)
            # One atomic rename makes it no checkpoint any more; a kill during the slow removal is then harmless.
            directory.rename(removed)
            with contextlib.suppress(OSError):  # what is left of it goes at the next start
                remove_checkpoint(removed)
        else:
            # Without a manifest it is no checkpoint, and with a mark no damaged one: a removal that is cut off cannot
            # leave half of one, and the next start goes on with it.
            self._mark(step)
            (directory / NAME).unlink(missing_ok=True)
            directory.rmtree(missing_ok=True)  # the answer to an earlier try may have been lost
            self._mark_of(step).unlink(missing_ok=True)

    @property
    def _is_local(self) -> bool:
        return isinstance(self._path, Path)

    @property
    def _is_alone_in_store(self) -> bool:
        """Return True for an object store that one process writes to. Several would have to begin again together."""
        return not self._is_local and jax.process_count() == 1

    # -- reading -------------------------------------------------------------------------------------------------------

    def verify(self, step: int) -> None:
        """Compare every file of a checkpoint with its manifest, once.

        Raises:
          DamagedError: a file is not as it was written; the message names it.
        """
        # Hashing reads every byte, seconds for large models, and files of a complete checkpoint never change.
        if step in self._verified:
            return
        if problem := self._once(lambda: self._damage(step)):
            raise DamagedError(problem, code="checkpoint-damaged", step=step)
        self._verified.add(step)

    def _damage(self, step: int) -> str:
        """Return the damage of a checkpoint, or an empty text."""
        try:
            with self._reachable():
                refuse_damage(self.path(step))
        except DamagedError as error:
            return str(error)
        return ""

    def progress(self, step: int, verified: bool = True) -> dict[str, Any]:
        """Return the JSON item of a checkpoint. `verified`: verify the checksums of the checkpoint first."""
        if verified:
            self.verify(step)
        path = self.path(step) / PROGRESS
        try:
            progress: dict[str, Any] = dict(json.loads(text_of(path)))
        except NoAnswerError as error:
            raise self._unreachable(error) from error
        except (OSError, ValueError, TypeError, RecursionError, LearnerError) as error:
            raise DamagedError(
                f"the checkpoint {self.path(step)} is damaged: {PROGRESS} ({error})",
                code="checkpoint-progress-unreadable",
            ) from None
        # `True` is an int for `isinstance`; the file may come from anywhere.
        version = progress.get("format", FORMAT)
        if type(version) is not int:
            raise DamagedError(
                f"the checkpoint {self.path(step)} is damaged: the format in {PROGRESS} is no number",
                code="checkpoint-progress-format",
            )
        if version > FORMAT:
            raise LearnerError(
                f"the checkpoint {self.path(step)} was made by a newer version of learner",
                code="checkpoint-newer-version",
            )
        return progress

    def differences(self, step: int, items: Mapping[str, Any]) -> list[str]:
        """Return a line for each array in which a checkpoint differs from the given items."""
        self.verify(step)
        metadata = self._arrays.metadata(self.path(step))
        return differences(flat({name: metadata.get(name, {}) for name in items}), flat(items))

    def restore(self, step: int, items: Mapping[str, Any]) -> dict[str, Any]:
        """Return the named items with the shapes, dtypes and shardings of the arrays given in `items`.

        Raises:
          LearnerError: arrays of the checkpoint differ from the given ones; the message lists them all.
        """
        self.verify(step)
        metadata = self._arrays.metadata(self.path(step))
        trees = {name: metadata.get(name, {}) for name in items}
        refuse_differences(flat(trees), flat(items), f"the checkpoint {self.path(step)}")
        # With the shardings of the given arrays each process reads its own shards alone.
        return self._arrays.restore(self.path(step), {name: _abstract(item) for name, item in items.items()})

    def shapes(self, step: int, names: Iterable[str]) -> dict[str, Any]:
        """Return the named items with the shape and the dtype of each array as it was saved. No array is read.

        Raises:
          DamagedError: an item cannot be read.
        """
        self.verify(step)
        with self._readable(step):
            metadata = self._arrays.metadata(self.path(step))
            shape = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype)  # noqa: E731
            return {name: jax.tree.map(shape, dict(metadata[name])) for name in names}

    def read(self, step: int, shapes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the items of `shapes` as NumPy arrays.

        Raises:
          DamagedError: an item cannot be read.
        """
        self.verify(step)
        with self._readable(step):
            # Without these Orbax would restore the shardings that were saved, whose devices may not exist here.
            return self._arrays.restore(self.path(step), jax.tree.map(_on_host, dict(shapes)))

    @contextlib.contextmanager
    def _readable(self, step: int) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # whatever Orbax meets in files that are not what they should be
            reason = " ".join(str(error).split())
            if not self._is_local and any(answer in reason for answer in NO_ANSWER):
                raise self._unreachable(error) from error
            raise DamagedError(
                f"the checkpoint {self.path(step)} is damaged: {reason}",
                code="checkpoint-damaged",
                step=step,
            ) from error

    def metrics(self, step: int) -> dict[str, Any] | None:
        """Return the item `in_flight`, or None."""
        self.verify(step)
        saved = self._arrays.metadata(self.path(step)).get("in_flight")
        if saved is None:
            return None
        self._refuse_claims(step, saved)  # before Orbax allocates what the metadata claims
        restored = self._arrays.restore(self.path(step), {"in_flight": jax.tree.map(_on_host, dict(saved))})
        return dict(restored["in_flight"])

    def _refuse_claims(self, step: int, tree: Any) -> None:
        """Raise if the shapes of `in_flight`, which the checkpoint itself declares, claim more bytes than its files can
        hold.
        """
        item = next(path for name in (STATE, "in_flight") if (path := self.path(step) / name).exists())
        stored = sum(file.size for file in stored_files(item).values())
        claimed = sum(int(np.prod(x.shape, dtype=object)) * np.dtype(x.dtype).itemsize for x in jax.tree.leaves(tree))
        if claimed > MOST_PACKED * stored:
            raise LearnerError(
                f"{item} claims to hold {claimed} bytes in files of {stored}: it is not what a run saved",
                code="checkpoint-claims-too-much",
                place=item,
                claimed=claimed,
            )

    def find(self, epoch: int | str | None = None, step: int | None = None) -> Entry:
        """Return a checkpoint by the epoch that it ends, by its step, or the `"latest"` or `"best"`.

        Raises:
          DamagedError: its manifest is damaged, or may be: a damaged manifest does not show its epoch.
          LearnerError: there is no such checkpoint.
        """
        entries = self.entries
        self._refuse_damaged(epoch, step)
        if not entries:
            raise LearnerError(
                f"there is no checkpoint in {self._path}", code="checkpoint-missing", directory=str(self._path)
            )
        if epoch == "latest":
            return entries[-1]
        if epoch == "best":
            return self.best() or entries[-1]
        matching = [e for e in entries if (e.step == step if epoch is None else e.epoch == epoch)]
        if not matching:
            requested = f"step {step}" if epoch is None else f"the end of epoch {epoch}"
            have = ", ".join(f"step {e.step}" + (f" (epoch {e.epoch})" if e.epoch else "") for e in entries)
            raise LearnerError(
                f"there is no checkpoint of {requested} in {self._path}; there are: {have}",
                code="checkpoint-not-found",
                name=requested,
                known=have,
            )
        return matching[-1]

    def _refuse_damaged(self, epoch: int | str | None, step: int | None) -> None:
        """Raise if a checkpoint with a damaged manifest may be the one requested: its step and epoch are unknown."""
        doubt = ""
        if epoch is None or epoch == "latest":
            suspects = self.steps[-1:] if step is None else [step]
        elif any(entry.epoch == epoch for entry in self.entries):
            return
        else:
            suspects = self.steps
            doubt = f", and may be the one that was named ({epoch if epoch == 'best' else f'epoch {epoch}'})"
        for suspect in suspects:
            if suspect in self.damaged:
                others = self.others(suspect)
                raise DamagedError(
                    f"{self.damaged[suspect]}{doubt}; {others}", code="checkpoint-damaged", step=suspect, others=others
                )

    def others(self, step: int) -> str:
        """Return a sentence that lists the other checkpoints."""
        steps = [f"step={e.step}" + (f" (epoch {e.epoch})" if e.epoch else "") for e in self.entries if e.step != step]
        return f"there are also {', '.join(steps)}" if steps else "there is no other"

    def best(self) -> Entry | None:
        """Return the best checkpoint by the monitored metric, or None if none has a value. Of equal ones the earlier is
        better.
        """
        # Checkpoints without a score come last, so the first one tells whether any has a score.
        ranked = self.ranked()
        return ranked[0] if ranked and ranked[0].score is not None else None

    def ranked(self) -> list[Entry]:
        """Return all checkpoints from the best on. Those without a value of the monitored metric come last, newest
        first.
        """
        sign = -1.0 if self._higher_is_better else 1.0
        scored = [e for e in self.entries if e.score is not None]
        unscored = [e for e in self.entries if e.score is None]
        return sorted(scored, key=lambda e: (sign * (e.score or 0.0), e.step)) + unscored[::-1]

    @property
    def _higher_is_better(self) -> bool:
        if self._retention is not None:
            return self._retention.higher_is_better
        return any(facts["higher_is_better"] for facts in self._table.values())

    def remove_all(self) -> None:
        """Remove every checkpoint."""
        for step in self.steps:
            self._remove(step)

    def set_aside(self, after: int, directory: Any) -> list[int]:
        """Move the checkpoints of later steps to another directory: the run resumes from an earlier one. Return their
        steps.
        """
        newer = [step for step in self.steps if step > after]
        target = Path(directory) if self._is_local else self._path / "superseded" / Path(directory).parent.name
        for step in newer:
            target.mkdir(parents=True, exist_ok=True)
            if not self._is_local:  # no directory is there without a file
                (target / "README").write_text("checkpoints that were newer than the one from which the run resumed\n")
            for path in (*self.records(step), self.path(step)):
                if self._is_local:
                    shutil.move(path, target / path.name)  # which may be on another disk
                else:
                    path.rename(target / path.name)
            self._table.pop(step, None)
            self.damaged.pop(step, None)
        return newer

    def close(self) -> None:
        """End Orbax's threads."""
        self._arrays.close()


def _unlink(paths: Iterable[Any]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _abstract(item: Any) -> Any:
    def abstract(x: Any) -> jax.ShapeDtypeStruct:
        sharding = x.sharding if isinstance(getattr(x, "sharding", None), jax.sharding.Sharding) else None
        sharding = sharding or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    return jax.tree.map(abstract, item)


def _on_host(x: Any) -> np.ndarray:
    """Return an array from which Orbax takes the kind, and not the numbers: it needs no memory for them."""
    return np.broadcast_to(np.zeros((), x.dtype), x.shape)


def _in_the_way(path: Any) -> LearnerError:
    return LearnerError(
        f"{path} is in the way: it has a name that a checkpoint needs, and learner did not write it. Nothing was "
        "changed; move it away",
        code="checkpoint-path-in-the-way",
        path=path,
    )
