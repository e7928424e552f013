"""Checkpoints on disk, through Orbax: each is one atomic directory, keyed by the optimizer step.

A checkpoint has the items `model`, `optim` and `scheduler`, each readable on its own, and `progress`: everything else
that a run is, as JSON. `in_flight` is there when it was made inside an epoch: the metrics' states in flight and the
rows collected so far. `manifest.json` makes it complete: see `learner.checkpoint.manifest`.

Orbax's manager is not used: it removes older checkpoints before ours has its checksums, and writes nothing below its
newest step.
"""

import contextlib
import dataclasses
import errno
import functools
import gc
import json
import logging
import os
import shutil
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from learner.checkpoint.items import differences, flat, refuse_differences
from learner.checkpoint.manifest import (
    ITEMS,
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
from learner.checkpoint.options import Retention
from learner.checkpoint.quiet import quiet_orbax
from learner.checkpoint.records import is_record, record_name, records_of, write_record
from learner.errors import LearnerError
from learner.util.disk import FULL, is_full, read_text, to_disk

FORMAT = 1  # of the item `progress` and of the manifest
FACTS = ("ends_epoch", "score", "at_stop", "at_end", "higher_is_better")  # of `progress`, in the manifest too
SMALL_FILES = 160 << 10  # bytes that a checkpoint takes on a disk besides its arrays
UNFINISHED = ".orbax-checkpoint-tmp"
TRIES, SECONDS_BETWEEN_TRIES = 20, 0.05  # of removing what threads that outlive a failed save may write to
WAIT_FOR_ORBAX = 30.0  # seconds, for the threads of a save that failed
MOST_PACKED = 10_000  # times: as much as compression could save
Once = Callable[[Callable[[], Any]], Any]


@dataclasses.dataclass(frozen=True)
class Entry:
    """A complete checkpoint.

    Attributes:
      step: the optimizer step.
      epoch: the epoch that it is the end of, or `None` when it was made inside of one.
      score: the monitored metric's value, or `None`.
    """

    step: int
    epoch: int | None
    score: float | None


class CheckpointStore:
    """The checkpoints of one run.

    Attributes:
      damaged: what is wrong with those whose manifest is damaged, by step.
    """

    def __init__(self, directory: Any, retention: Retention | None = None, once: Once = lambda do: do()):
        """`retention` says what is kept; without one the store only reads. `once` calls a function in one of several
        processes, and returns or raises in all of them what it did there; they save and read every checkpoint together.
        """
        self._place, self._retention, self._once = directory, retention, once
        self._verified: set[int] = set()
        self.damaged: dict[int, str] = {}

    @functools.cached_property
    def _ocp(self) -> Any:
        """Orbax, which takes a second to import: a run has made its first steps before it needs it."""
        with quiet_orbax():  # importing it logs, too
            import orbax.checkpoint

        return orbax.checkpoint

    @property
    def _writes(self) -> bool:
        """Return True in the one process that writes the files which all processes share."""
        return jax.process_index() == 0  # only here: asking for it connects the devices of all processes

    @functools.cached_property
    def _path(self) -> Any:
        if "://" not in str(self._place):
            return Path(self._place)
        from etils import epath

        return epath.Path(self._place)

    @functools.cached_property
    def _orbax(self) -> Any:
        ocp = self._ocp
        several: dict[str, Any] = {}
        if jax.process_count() > 1:
            # By these they wait for each other outside of the devices, which are in use while a checkpoint is written.
            processes = set(range(jax.process_count()))
            options = ocp.options.MultiprocessingOptions(
                primary_host=0, active_processes=processes, barrier_sync_key_prefix="learner"
            )
            several = {"multiprocessing_options": options}
        handlers = {name: ocp.StandardCheckpointHandler(**several) for name in ITEMS}
        composite: dict[str, Any] = {}
        if several:
            composite = {"composite_options": ocp.CompositeOptions(**several)}
        return ocp.Checkpointer(ocp.CompositeCheckpointHandler(**composite, **handlers), **several)

    @functools.cached_property
    def _table(self) -> dict[int, dict[str, Any]]:
        """The facts in the manifests, by step."""
        table = {}
        for step in self._steps():
            try:
                manifest = read_manifest(self.path(step))
            except DamagedError as error:
                self.damaged[step] = str(error)
                continue
            table[step] = {**dict.fromkeys(FACTS), **manifest}
        return table

    def _steps(self) -> list[int]:
        if not self._path.exists():
            return []
        return sorted(int(path.name) for path in self._path.iterdir() if self._is_checkpoint(path))

    def _is_checkpoint(self, path: Any) -> bool:
        """Return whether a directory is a checkpoint, which may be damaged; others may have theirs beside them."""
        named = path.name.isdecimal() and path.name == str(int(path.name))
        if self._is_local:
            return named and is_ours(path)
        return named and path.is_dir() and any((path / part).exists() for part in (NAME, "progress", *ITEMS))

    @property
    def entries(self) -> list[Entry]:
        """The checkpoints that are complete by their manifests, oldest first."""
        return [Entry(step, facts["ends_epoch"], facts["score"]) for step, facts in sorted(self._table.items())]

    @property
    def steps(self) -> list[int]:
        """The steps of all checkpoints, also of those that are damaged, oldest first."""
        return sorted({*self._table, *self.damaged})

    def path(self, step: int) -> Any:
        """Where a checkpoint lies."""
        return self._path / str(step)

    # -- writing -------------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Makes the directory, and removes what a process that was killed has left of a save or of a removal."""
        # Before anything is removed: a complete checkpoint that lacks only its name must not be taken for a leftover.
        self._path.mkdir(parents=True, exist_ok=True)
        self.recover()
        if not self._is_local:
            return
        places = list(self._path.iterdir())
        for place in places:
            match = NUMBERED.fullmatch(place.name)
            if match is not None and match[2] and is_ours(place):
                remove_checkpoint(place)
            elif place.suffix == ".partial" and is_record(place.name) and place.is_file() and not place.is_symlink():
                place.unlink()
        # Marks go last. A kill in between leaves a mark without directories, which the next start removes; directories
        # without their mark would stay forever.
        for place in places:  # behind the directories, which they prove to be ours
            if is_mark(place):
                place.unlink()

    def recover(self) -> None:
        """Ends what a process that was killed has begun: a checkpoint that was complete, and was just to get its
        name.
        """
        for place in self._path.glob("*.partial") if self._is_local and self._path.exists() else ():
            name = place.name.removesuffix(".partial")
            if name.isdecimal() and not os.path.lexists(self._path / name) and is_ours(place):
                # The checksums prove that every byte had reached the disk before the kill. Anything less stays a
                # leftover.
                with contextlib.suppress(DamagedError, OSError):
                    refuse_damage(place)
                    place.rename(self._path / name)

    def save(self, step: int, items: Mapping[str, Any], progress: Mapping[str, Any]) -> None:
        """Writes a checkpoint, and removes those that need not stay once it is complete. Waits until then.

        It is written under another name, and gets its own when everything is on the disk. Only one that was made
        because the run stopped there is replaced by another of its step.

        Raises:
          LearnerError: there is a checkpoint of this step, something else has its name, or the directory is gone.
        """
        assert self._retention is not None
        if not self._path.exists():
            raise LearnerError(
                f"the directory {self._path} is gone: somebody removed it while the run went on",
                code="checkpoint-directory-gone",
            )
        if step in self.steps and not self._table.get(step, {}).get("at_stop"):
            raise LearnerError(
                f"there is a checkpoint of step {step} in {self._path}, and it is not replaced",
                code="checkpoint-step-exists",
                step=step,
            )
        # The records of a checkpoint that is replaced are listed now: afterwards the table names the new one.
        facts = {name: progress.get(name) for name in FACTS}
        replaced = self.records(step)
        # A local checkpoint is written under another name and renamed, which is atomic. Object stores have no rename:
        # there the manifest, written last, decides whether it exists.
        place = self._path / f"{step}.partial" if self._is_local else self.path(step)
        if self._is_local and step not in self._table and os.path.lexists(self.path(step)):
            raise _in_the_way(self.path(step))
        if self._is_local and self._writes:
            self._make_room(step)
        # The mark comes before the first byte of Orbax, so that no kill can leave a directory that nothing proves to be
        # ours, and after the checks, so that a refused save leaves nothing behind.
        try:
            if self._is_local and self._writes:
                self._mark(step)
            # All processes write their shards; Orbax returns in each when all have finished. One completes it.
            self._write(place, items)
            if self._writes:
                self._complete(place, step, facts, progress)
        except BaseException as error:
            error.add_note(f"while writing the checkpoint {self.path(step)}")
            self._discard_partial(step)
            raise
        # Only now that the checkpoint has its name: until then the mark is what lets the next start remove it.
        if self._is_local and self._writes:
            self._mark_of(step).unlink(missing_ok=True)
        for path in replaced if self._writes else ():
            path.unlink(missing_ok=True)
        # Older checkpoints go last. A kill before this point leaves one too many, never one too few.
        self._table[step] = facts
        self._prune()

    def _make_room(self, step: int) -> None:
        """Remove what an earlier save or removal left under the names that this save needs, if it is ours."""
        for place in (*self._path.glob(f"{step}.partial*"), self._path / f"{step}.removed"):
            if NUMBERED.fullmatch(place.name) and os.path.lexists(place):
                if not is_ours(place):
                    raise _in_the_way(place)
                remove_checkpoint(place)
        mark = self._mark_of(step)
        if os.path.lexists(mark):
            if not is_mark(mark):
                raise _in_the_way(mark)
            mark.unlink()

    def _mark_of(self, step: int) -> Path:
        path: Path = self._path / f"{step}.saving"
        return path

    def _mark(self, step: int) -> None:
        """Write the mark which proves that the directories of an unfinished save are ours; it outlives a power cut."""
        # Exclusive creation follows no link that somebody else has placed there.
        with self._mark_of(step).open("x") as file:  # never through a link
            file.write(MARK)
        to_disk(self._mark_of(step))

    def records(self, step: int) -> list[Any]:
        """The files beside a checkpoint that hold its model."""
        facts = self._table.get(step)
        return [] if facts is None else list(records_of(self._path, step, facts["ends_epoch"]))

    def record(self, step: int, extension: str, write: Callable[[Any], None], item: str = "model") -> Any:
        """Writes a part of a checkpoint into a file beside it, and returns its path; `None` in the processes that
        write none.
        """
        facts = self._table.get(step)
        if not self._writes or facts is None:
            return None
        path = self._path / f"{record_name(step, facts['ends_epoch'], item)}{extension}"
        write_record(path, write)
        return path

    def _write(self, place: Any, items: Mapping[str, Any]) -> None:
        if self._is_local and self._writes:
            self._refuse_full_disk(items)
        args = self._ocp.args
        parts = {name: args.StandardSave(item) for name, item in items.items()}
        # Orbax gives no handle to its threads; those that are new after a failure are the ones to wait for.
        before = {*threading.enumerate()}
        _silence_orbax()
        with quiet_orbax():
            try:
                self._orbax.save(place, args=args.Composite(**parts))
            except BaseException as error:
                # Threads of a failed save still write. They must end before their directory is removed.
                self.close()
                _end_threads(before)
                for code in FULL:  # TensorStore says it in several kilobytes, for which a log has no room then
                    if os.strerror(code) in str(error):
                        raise OSError(code, os.strerror(code), str(place)) from None
                raise

    def _refuse_full_disk(self, items: Mapping[str, Any]) -> None:
        """Raise before anything is written: what Orbax writes until it notices would take the room of the logs."""
        # Only with one process: each of several writes a part of the bytes, possibly to its own disk.
        needed = sum(int(x.nbytes) for x in jax.tree.leaves(dict(items)) if hasattr(x, "nbytes")) + SMALL_FILES
        usage = shutil.disk_usage(self._path)
        if jax.process_count() == 1 and usage.total and usage.free < needed:
            text = f"{os.strerror(errno.ENOSPC)}: a checkpoint needs {needed:,} bytes, and {usage.free:,} are free"
            raise OSError(errno.ENOSPC, text, str(self._path))

    def _complete(self, place: Any, step: int, facts: Mapping[str, Any], progress: Mapping[str, Any]) -> None:
        # The manifest holds the checksums of all other files, so it is written after the last of them.
        path = place / PROGRESS
        path.parent.mkdir()
        path.write_text(json.dumps(progress, allow_nan=False))
        write_manifest(place, {"format": FORMAT, "step": step, **facts})
        if self._is_local:
            self._name(place, self.path(step))

    def _name(self, place: Path, path: Path) -> None:
        """Gives a complete checkpoint its name; another of that name goes, once the new one has it."""
        replaced = path.with_name(f"{path.name}.removed")
        if path.exists():
            path.rename(replaced)  # one of this store's table, so that it is ours
        # There is a moment without a checkpoint of this name. `recover` closes it after a kill; an error does so here.
        try:
            place.rename(path)
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
            places = [place for place in self._path.glob(f"{step}.partial*") if is_ours(place)]
            if not places:
                break
            for place in places:
                shutil.rmtree(place, ignore_errors=True)
            time.sleep(SECONDS_BETWEEN_TRIES)
        with contextlib.suppress(OSError):
            if not places and is_mark(self._mark_of(step)):
                self._mark_of(step).unlink()

    def _prune(self) -> None:
        assert self._retention is not None
        table = {step: (facts["ends_epoch"], facts["score"]) for step, facts in self._table.items()}
        at_stop, at_end = ([s for s, facts in self._table.items() if facts[why]] for why in ("at_stop", "at_end"))
        for step in sorted(table.keys() - self._retention.kept(table, at_stop, at_end)):
            self._remove(step)

    def _remove(self, step: int) -> None:
        """Remove a checkpoint. Its name goes first, so that a half-removed one is never taken for a checkpoint."""
        # The table knows the epoch, from which the names of records are made; it is read before the entry goes.
        records = self.records(step)
        self._table.pop(step, None)
        self.damaged.pop(step, None)
        place = self.path(step)
        if not self._writes:
            return
        # Records first: without its checkpoint no later run would know a record's owner.
        for path in records:
            path.unlink(missing_ok=True)
        if self._is_local:
            if not is_ours(place):
                raise _in_the_way(place)
            removed = place.with_name(f"{step}.removed")
            if os.path.lexists(removed):
                if not is_ours(removed):
                    raise _in_the_way(removed)
                remove_checkpoint(removed)
            # One atomic rename makes it no checkpoint any more; a kill during the slow removal is then harmless.
            place.rename(removed)
            with contextlib.suppress(OSError):  # what is left of it goes at the next start
                remove_checkpoint(removed)
        else:
            # Without a manifest it is no checkpoint, so that a removal that is cut off cannot leave half of one.
            (place / NAME).unlink(missing_ok=True)
            place.rmtree()

    @property
    def _is_local(self) -> bool:
        return isinstance(self._path, Path)

    # -- reading -------------------------------------------------------------------------------------------------------

    def verify(self, step: int) -> None:
        """Reads every file of a checkpoint, once.

        Raises:
          DamagedError: one of them is not as it was written; it names it.
        """
        # Hashing reads every byte, seconds for large models, and files of a complete checkpoint never change.
        if step in self._verified:
            return
        if problem := self._once(lambda: _damage(self.path(step))):
            raise DamagedError(problem, code="checkpoint-damaged")
        self._verified.add(step)

    def progress(self, step: int, verified: bool = True) -> dict[str, Any]:
        """The JSON item of a checkpoint; without a look at its checksums, if it need not be `verified`."""
        if verified:
            self.verify(step)
        path = self.path(step) / PROGRESS
        try:
            text = read_text(path) if self._is_local else path.read_text()
            progress: dict[str, Any] = dict(json.loads(text))
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
        """The arrays of the named items in which a checkpoint differs from those given, a line for each."""
        self.verify(step)
        with quiet_orbax():
            metadata = self._metadata(step)
        return differences(flat({name: metadata[name].tree for name in items}), flat(items))

    def restore(self, step: int, items: Mapping[str, Any]) -> dict[str, Any]:
        """The named items with the shapes, dtypes and shardings of the arrays given in `items`.

        Raises:
          LearnerError: an array of the checkpoint differs from the one given; it lists them all.
        """
        self.verify(step)
        args = self._ocp.args
        with quiet_orbax():
            trees = {name: self._metadata(step)[name].tree for name in items}
            refuse_differences(flat(trees), flat(items), f"the checkpoint {self.path(step)}")
            parts = {name: args.StandardRestore(_abstract(item)) for name, item in items.items()}
            # With the shardings of the given arrays each process reads its own shards alone.
            return dict(self._orbax.restore(self.path(step), args=args.Composite(**parts)))

    def shapes(self, step: int, names: Iterable[str]) -> dict[str, Any]:
        """The named items with a shape and a dtype for each array, as they were saved; no array is read.

        Raises:
          DamagedError: one of them cannot be read.
        """
        self.verify(step)
        with self._readable(step):
            metadata = self._metadata(step)
            shape = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype)  # noqa: E731
            return {name: jax.tree.map(shape, dict(metadata[name].tree)) for name in names}

    def read(self, step: int, shapes: Mapping[str, Any]) -> dict[str, Any]:
        """The items of `shapes` as NumPy arrays.

        Raises:
          DamagedError: one of them cannot be read.
        """
        self.verify(step)
        with self._readable(step):
            # Without these Orbax would restore the shardings that were saved, whose devices may not exist here.
            host = jax.tree.map(_on_host, dict(shapes))
            parts = {name: self._ocp.args.StandardRestore(item) for name, item in host.items()}
            return dict(self._orbax.restore(self.path(step), args=self._ocp.args.Composite(**parts)))

    @contextlib.contextmanager
    def _readable(self, step: int) -> Iterator[None]:
        try:
            with quiet_orbax():
                yield
        except Exception as error:  # whatever Orbax meets in files that are not what they should be
            reason = " ".join(str(error).split())
            raise DamagedError(
                f"the checkpoint {self.path(step)} is damaged: {reason}", code="checkpoint-damaged"
            ) from error

    def metrics(self, step: int) -> dict[str, Any] | None:
        """The item `in_flight`, or `None`."""
        self.verify(step)
        if not (self.path(step) / "in_flight").exists():
            return None
        with quiet_orbax():
            saved = self._metadata(step)["in_flight"].tree
            # Before Orbax allocates what the metadata claims.
            self._refuse_claims(step, saved)
            host = jax.tree.map(_on_host, dict(saved))
            args = self._ocp.args.Composite(in_flight=self._ocp.args.StandardRestore(host))
            return dict(self._orbax.restore(self.path(step), args=args)["in_flight"])

    def _refuse_claims(self, step: int, tree: Any) -> None:
        """Raise if the shapes of `in_flight`, which the checkpoint itself declares, claim more bytes than its files can
        hold.
        """
        place = self.path(step) / "in_flight"
        held = sum(path.stat().st_size if self._is_local else path.stat().length for path in place.rglob("*"))
        claimed = sum(int(np.prod(x.shape, dtype=object)) * np.dtype(x.dtype).itemsize for x in jax.tree.leaves(tree))
        if claimed > MOST_PACKED * held:
            raise LearnerError(
                f"{place} claims to hold {claimed} bytes in files of {held}: it is not what a run saved",
                code="checkpoint-claims-too-much",
                place=place,
            )

    def _metadata(self, step: int) -> Any:
        return self._orbax.metadata(self.path(step)).item_metadata

    def find(self, epoch: int | str | None = None, step: int | None = None) -> Entry:
        """A checkpoint by the epoch that it ends, by its step, or the `"latest"` or `"best"`.

        Raises:
          DamagedError: its manifest is damaged, or it may be one whose manifest is.
          LearnerError: there is none.
        """
        entries = self.entries
        self._refuse_damaged(epoch, step)
        if not entries:
            raise LearnerError(f"there is no checkpoint in {self._path}", code="checkpoint-missing")
        if epoch == "latest":
            return entries[-1]
        if epoch == "best":
            return self.best() or entries[-1]
        wanted = [e for e in entries if (e.step == step if epoch is None else e.epoch == epoch)]
        if not wanted:
            asked = f"step {step}" if epoch is None else f"the end of epoch {epoch}"
            have = ", ".join(f"step {e.step}" + (f" (epoch {e.epoch})" if e.epoch else "") for e in entries)
            raise LearnerError(
                f"there is no checkpoint of {asked} in {self._path}; there are: {have}", code="checkpoint-not-found"
            )
        return wanted[-1]

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
                raise DamagedError(f"{self.damaged[suspect]}{doubt}; {self.others(suspect)}", code="checkpoint-damaged")

    def others(self, step: int) -> str:
        """Return a sentence that lists the other checkpoints."""
        others = [f"step={e.step}" + (f" (epoch {e.epoch})" if e.epoch else "") for e in self.entries if e.step != step]
        return f"there are also {', '.join(others)}" if others else "there is no other"

    def best(self) -> Entry | None:
        """The best by the monitored metric; the earlier one of equals; `None` when none has a value."""
        # Checkpoints without a score come last, so the first one tells whether any has a score.
        ranked = self.ranked()
        return ranked[0] if ranked and ranked[0].score is not None else None

    def ranked(self) -> list[Entry]:
        """All of them from the best on; those without a value of the monitored metric come last, newest first."""
        sign = -1.0 if self._higher_is_better else 1.0
        scored = [e for e in self.entries if e.score is not None]
        others = [e for e in self.entries if e.score is None]
        return sorted(scored, key=lambda e: (sign * (e.score or 0.0), e.step)) + others[::-1]

    @property
    def _higher_is_better(self) -> bool:
        if self._retention is not None:
            return self._retention.higher_is_better
        return any(facts["higher_is_better"] for facts in self._table.values())

    def remove_all(self) -> None:
        """Removes every checkpoint."""
        for step in self.steps:
            self._remove(step)

    def set_aside(self, after: int, directory: Any) -> list[int]:
        """Moves the checkpoints of later steps to another directory: the run goes on below them."""
        newer = [step for step in self.steps if step > after]
        target = Path(directory) if self._is_local else self._path / "superseded" / Path(directory).parent.name
        for step in newer:
            target.mkdir(parents=True, exist_ok=True)
            for path in (*self.records(step), self.path(step)):
                if self._is_local:
                    shutil.move(path, target / path.name)  # which may be on another disk
                else:
                    path.rename(target / path.name)
            self._table.pop(step, None)
            self.damaged.pop(step, None)
        return newer

    def close(self) -> None:
        """Gives Orbax's threads back."""
        # Popped, so that a later save gets a new checkpointer: a closed one cannot be used again.
        orbax = vars(self).pop("_orbax", None)
        if orbax is not None:
            with quiet_orbax():
                orbax.close()


def _damage(path: Any) -> str:
    """Return the damage of a checkpoint, or an empty text."""
    try:
        refuse_damage(path)
    except DamagedError as error:
        return str(error)
    return ""


def _abstract(item: Any) -> Any:
    def abstract(x: Any) -> jax.ShapeDtypeStruct:
        sharding = x.sharding if isinstance(getattr(x, "sharding", None), jax.sharding.Sharding) else None
        sharding = sharding or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    return jax.tree.map(abstract, item)


def _on_host(x: Any) -> np.ndarray:
    """Orbax takes the kind of the array from it, and not its numbers."""
    return np.broadcast_to(np.zeros((), x.dtype), x.shape)


def _in_the_way(path: Path) -> LearnerError:
    return LearnerError(
        f"{path} is in the way: it has a name that a checkpoint needs, and learner did not write it. Nothing was "
        "changed; move it away",
        code="checkpoint-path-in-the-way",
        path=path,
    )


def _end_threads(before: set[threading.Thread]) -> None:
    """Wait for the threads of a save that failed: they go on to write, into a directory that is to be removed."""
    until = time.monotonic() + WAIT_FOR_ORBAX
    while left := [thread for thread in threading.enumerate() if thread not in before and _is_of_orbax(thread)]:
        with contextlib.suppress(Exception):  # Orbax's threads raise what they died of, which is known
            left[0].join(max(0.0, until - time.monotonic()))  # it may begin further ones
        if time.monotonic() >= until:
            break
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        gc.collect()  # tasks that nobody waited for complain when they are collected, which is now


def _is_of_orbax(thread: threading.Thread) -> bool:
    return type(thread).__module__.startswith("orbax.")


class _OfFailedSaves(logging.Filter):
    """Drops what threads of Orbax report of a save that failed, at whatever time: its error has said it."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is about something else."""
        error = record.exc_info[1] if record.exc_info else None
        return UNFINISHED not in f"{record.getMessage()} {error}" and not _says_full(error)


def _says_full(error: BaseException | None) -> bool:
    return error is not None and is_full(error)


_of_failed_saves = _OfFailedSaves()


@functools.cache
def _silence_orbax() -> None:
    """Keep what Orbax's and TensorStore's threads report of saves that failed off the screen, from now on: some outlive
    the save, and nobody can wait for them.
    """

    def hook(unraisable: Any) -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            shown(unraisable)

    shown, sys.unraisablehook = sys.unraisablehook, hook
    for name in ("absl", "asyncio"):
        logging.getLogger(name).addFilter(_of_failed_saves)
