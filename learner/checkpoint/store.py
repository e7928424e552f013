"""Checkpoints on disk: each is one atomic directory, keyed by the optimizer step.

A checkpoint has one PyTree of Orbax, `state`, with the items `model`, `optim` and `scheduler`, each separately
readable, and `in_flight` if it was made inside an epoch: the metrics' states in flight and the rows collected so far.
The JSON file `progress` has the rest of a run's state. `manifest.json` makes the checkpoint complete: see
`learner.checkpoint.manifest`.

Orbax's manager is not used: it removes older checkpoints before ours has its checksums, and writes no step below its
newest.
"""

import contextlib
import dataclasses
import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import jax
import numpy as np

from learner.checkpoint.arrays import STATE, ArrayFiles
from learner.checkpoint.items import differences, flat, refuse_differences
from learner.checkpoint.manifest import (
    PROGRESS,
    DamagedError,
    RemovedError,
    read_manifest,
    refuse_damage,
)
from learner.checkpoint.places import open_place
from learner.checkpoint.records import record_name, records_of, write_record
from learner.checkpoint.retention import Retention
from learner.checkpoint.stored_files import NoAnswerError, read_text, stored_files
from learner.errors import LearnerError
from learner.util.default_device import default_device
from learner.util.disk import is_of_process
from learner.util.text import first_and_last
from learner.util.urls import one_line

T = TypeVar("T")
ATTEMPTS = 10  # to read a checkpoint of a run that removes some
FORMAT = 2  # of a checkpoint; 1 had a PyTree for each item
FACTS = ("ends_epoch", "score", "monitor", "at_stop", "at_end", "higher_is_better")
"""The fields of `progress` that are also in the manifest."""
PERMANENT = "permanent"
"""A fact of the manifest alone: True if `keep_every` keeps the checkpoint, also once the option has changed."""
MOST_PACKED = 10_000  # the largest plausible compression factor
Once = Callable[[Callable[[], Any]], Any]


@dataclasses.dataclass(frozen=True)
class Entry:
    """A complete checkpoint.

    Attributes:
      step: the optimizer step.
      epoch: the epoch that ends at the checkpoint, or None if it was made inside one.
      score: the monitored metric's value, or None.
    """

    step: int
    epoch: int | None
    score: float | None


class CheckpointStore:
    """The checkpoints of one run.

    Attributes:
      damaged: the problems of checkpoints whose manifest is damaged, by step.
      place: the place of the checkpoints.
    """

    def __init__(self, directory: Any, retention: Retention | None = None, once: Once = lambda do: do()):
        """Open the checkpoints in a directory.

        Args:
          directory: the directory of the checkpoints; any path that Orbax accepts.
          retention: the rule for which to keep. Without it, the store is read-only.
          once: calls a function in one of several processes, and returns its result or raises its error in all of them,
            which then verify every checkpoint together. Processes save together, and each reads alone.
        """
        self.place = open_place(directory)
        self._retention, self._once = retention, once
        self._arrays = ArrayFiles()
        self._verified: set[int] = set()
        self.damaged: dict[int, str] = {}

    @property
    def _writes(self) -> bool:
        """Return True in the one process that writes the shared files."""
        return jax.process_index() == 0  # only here: this call connects the devices of all processes

    # It belongs to the saver's thread while the run trains: the loop's reads it before the first save, and once the
    # saver is closed.
    @functools.cached_property
    def _table(self) -> dict[int, dict[str, Any]]:
        return self._facts()

    def _facts(self) -> dict[int, dict[str, Any]]:
        """Return the facts in the manifests, by step."""
        table = {}
        for step in self.place.steps():
            try:
                with self.place.reachable():
                    manifest = read_manifest(self.path(step))
            except DamagedError as error:
                # The run that trains may have removed it since it was listed, its manifest first.
                if self.place.holds(step):
                    self.damaged[step] = str(error)
                continue
            table[step] = {**dict.fromkeys((*FACTS, PERMANENT)), **manifest}
        return table

    def relist(self) -> None:
        """List the checkpoints again, as a run may have saved or removed some."""
        self.__dict__.pop("_table", None)
        self.damaged.clear()

    @property
    def entries(self) -> list[Entry]:
        """Return the checkpoints that are complete by their manifests, oldest first. A run may resume with another
        monitor: only checkpoints with the same monitor as the newest scored one have a score.
        """
        monitor = (self._newest_scored or {}).get("monitor")
        entries = []
        for step, facts in sorted(self._table.items()):
            is_comparable = None in (monitor, facts["monitor"]) or facts["monitor"] == monitor  # older ones name none
            entries.append(Entry(step, facts["ends_epoch"], facts["score"] if is_comparable else None))
        return entries

    @property
    def _newest_scored(self) -> Mapping[str, Any] | None:
        """Return the facts of the newest checkpoint with a score that counts, or None. After a change of the monitor,
        the former monitor determines the best until a checkpoint has a score of the new one.
        """
        facts = (self._table[step] for step in sorted(self._table, reverse=True))
        return next((each for each in facts if each["score"] is not None and not each["at_stop"]), None)

    @property
    def steps(self) -> list[int]:
        """Return the steps of all checkpoints, including damaged ones, oldest first."""
        return sorted({*self._table, *self.damaged})

    def path(self, step: int) -> Any:
        """Return the path of a checkpoint."""
        return self.place.path(step)

    # -- writing -------------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Create the directory, and remove the remains of saves and removals of a killed process.

        Raises:
          LearnerError: it cannot be created, or it is in an object store that cannot be written to.
        """
        self.place.prepare()

    def recover(self) -> None:
        """Rename a checkpoint that was complete when its process was killed."""
        self.place.recover()

    def save(self, step: int, items: Mapping[str, Any], progress: Mapping[str, Any]) -> None:
        """Write a checkpoint, and when it is complete, remove those that are no longer kept. Waits until then.

        It is written under a temporary name, and renamed when everything is on the disk. Only a checkpoint made because
        the run stopped can be replaced by another of the same step. In an object store, a single process retries a
        failed save.

        Raises:
          LearnerError: there is a checkpoint of this step, something else has its name, or the directory is missing.
        """
        assert self._retention is not None
        text = json.dumps(progress, allow_nan=False)  # which may raise: before the arrays, and once
        facts = {name: progress.get(name) for name in FACTS}
        facts[PERMANENT] = not facts["at_stop"] and self._retention.is_permanent(facts["ends_epoch"])
        failure = f"the checkpoint of step {step} could not be written to {self.path(step)}"
        replaced = self.place.retry(lambda: self._save(step, items, facts, text), failure)
        try:
            # Only now that the checkpoint has its name: until then, the next start needs the mark to remove it.
            # Retried separately: a complete save must not start over because the answer to this was lost.
            if self._writes:
                mark = self.place.mark_of(step)
                self.place.retry(lambda: _unlink([mark, *replaced]), f"{mark} could not be removed")
            # Older checkpoints go last. A kill before this point leaves one too many, never one too few.
            self.prune()
        except Exception as error:
            if not self.place.retries:
                raise
            # If raised, the complete checkpoint would count as failed, and be written again.
            text = f"{self.path(step)} is complete; what it replaces could not be removed, which the next start does"
            self.place.warn(f"{text}: {one_line(error)}")

    def _save(self, step: int, items: Mapping[str, Any], facts: dict[str, Any], progress: str) -> list[Any]:
        """Write a checkpoint, and return the records of the checkpoint that it replaces."""
        if step in self.steps and not self._table.get(step, {}).get("at_stop"):
            raise LearnerError(
                f"there is a checkpoint of step {step} in {self.place.root}, and it is not replaced",
                code="checkpoint-step-exists",
                step=step,
            )
        is_known = step in self._table
        self.place.refuse_obstacle(step, is_known)
        # The records of a replaced checkpoint are listed now: afterwards the table names the new one.
        replaced = self.records(step)
        try:
            # The mark comes before the first byte of Orbax, so that no kill can leave a directory without a proof that
            # it is ours.
            if self._writes:
                self.place.begin(step, is_known, items)
            # All processes write their shards; Orbax returns in each when all have finished. One completes it.
            self._arrays.save(self.place.target(step), items)
            if self._writes:
                self.place.complete(step, progress, {"format": FORMAT, "step": step, **facts})
        except BaseException as error:
            error.add_note(f"while writing the checkpoint {self.path(step)}")
            self.close()  # waits for the threads that write the other items
            self.place.discard(step)
            raise
        # Once it has its name: a failed save must not count among the kept checkpoints.
        self._table[step] = facts
        return replaced

    def records(self, step: int) -> list[Any]:
        """Return the files next to a checkpoint that hold parts of it."""
        return self._records(step, self._table.get(step))

    def _records(self, step: int, facts: Mapping[str, Any] | None) -> list[Any]:
        return [] if facts is None else list(records_of(self.place.root, step, facts["ends_epoch"]))

    def record(self, step: int, extension: str, write: Callable[[Any], None], item: str = "model") -> Any:
        """Write a part of a checkpoint to a file next to it, and return its path. Return None in processes that do not
        write.
        """
        facts = self._table.get(step)
        if not self._writes or facts is None:
            return None
        path = self.place.root / f"{record_name(step, facts['ends_epoch'], item)}{extension}"
        write_record(path, write)
        return path

    def prune(self) -> None:
        """Remove the checkpoints that are no longer kept. A kill in `save` may have left one too many."""
        assert self._retention is not None
        table = {entry.step: (entry.epoch, entry.score) for entry in self.entries}
        at_stop, at_end, permanent = (
            {step for step, facts in self._table.items() if facts[name]} for name in ("at_stop", "at_end", PERMANENT)
        )
        retention = dataclasses.replace(self._retention, higher_is_better=self._higher_is_better)
        for step in sorted(table.keys() - permanent - retention.kept(table, at_stop, at_end)):
            self.remove(step)

    def remove(self, step: int) -> None:
        """Remove a checkpoint. Its name goes first, so that a half-removed one is never taken for a checkpoint."""
        facts = self._table.pop(step, None)  # it knows the epoch, from which the names of records are made
        self.damaged.pop(step, None)
        if self._writes:
            failure = f"the checkpoint {self.path(step)} could not be removed"
            self.place.retry(lambda: self._remove_files(step, facts), failure)

    def _remove_files(self, step: int, facts: Mapping[str, Any] | None) -> None:
        # Records first: without its checkpoint no later run would know a record's owner.
        _unlink(self._records(step, facts))
        self.place.remove(step)

    # -- reading -------------------------------------------------------------------------------------------------------

    def verify(self, step: int) -> None:
        """Compare every file of a checkpoint with its manifest, once.

        Raises:
          DamagedError: a file is damaged; the message names it.
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
            with self.place.reachable():
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
            progress: dict[str, Any] = dict(json.loads(read_text(path)))
        except NoAnswerError as error:
            raise self.place.unreachable(error) from error
        except (OSError, ValueError, TypeError, RecursionError, LearnerError) as error:
            if is_of_process(error):
                raise
            raise DamagedError(
                f"the checkpoint {self.path(step)} is damaged: {PROGRESS} ({error})",
                code="checkpoint-progress-unreadable",
            ) from None
        # `True` is an int for `isinstance`; the file may come from anywhere.
        version = progress.get("format", FORMAT)
        if type(version) is not int:
            raise DamagedError(
                f"the checkpoint {self.path(step)} is damaged: the format in {PROGRESS} is not a number",
                code="checkpoint-progress-format",
            )
        if version > FORMAT:
            raise LearnerError(
                f"the checkpoint {self.path(step)} was made by a newer version of learner",
                code="checkpoint-newer-version",
            )
        return progress

    def differences(self, step: int, items: Mapping[str, Any]) -> list[str]:
        """Return a line for each array that differs between a checkpoint and the given items."""
        self.verify(step)
        metadata = self._arrays.metadata(self.path(step))
        return differences(flat({name: metadata.get(name, {}) for name in items}), flat(items))

    def restore(self, step: int, items: Mapping[str, Any]) -> dict[str, Any]:
        """Return the named items with the shapes, dtypes and shardings of the arrays given in `items`; NumPy arrays for
        NumPy arrays.

        Raises:
          LearnerError: arrays of the checkpoint differ from the given ones; the message lists them all.
        """
        self.verify(step)
        metadata = self._arrays.metadata(self.path(step))
        trees = {name: metadata.get(name, {}) for name in items}
        refuse_differences(flat(trees), flat(items), f"the checkpoint {self.path(step)}")
        # Orbax refuses an empty part for one that is not empty, such as a model state of random streams.
        filled = {
            name: {part: leaves for part, leaves in item.items() if leaves or not trees[name].get(part)}
            for name, item in items.items()
        }
        # With the shardings of the given arrays, each process reads only its own shards.
        return self._arrays.restore(self.path(step), {name: _abstract(item) for name, item in filled.items()})

    def shapes(self, step: int, names: Iterable[str]) -> dict[str, Any]:
        """Return the named items with the saved shape and dtype of each array. No array is read.

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
            # Without these, Orbax would restore the saved shardings, whose devices may not exist here.
            return self._arrays.restore(self.path(step), jax.tree.map(_on_host, dict(shapes)))

    @contextlib.contextmanager
    def _readable(self, step: int) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # any error of Orbax about malformed files
            if self.place.is_unreachable(error):
                raise self.place.unreachable(error) from error
            if is_of_process(error):
                raise
            raise DamagedError(
                f"the checkpoint {self.path(step)} is damaged: {' '.join(str(error).split())}",
                code="checkpoint-damaged",
                step=step,
            ) from error

    def metrics(self, step: int) -> dict[str, Any] | None:
        """Return the item `in_flight`, or None."""
        self.verify(step)
        saved = self._arrays.metadata(self.path(step)).get("in_flight")
        if saved is None:
            return None
        self._refuse_claims(step, saved)  # before Orbax allocates the claimed shapes
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
        """Return a checkpoint by its epoch, by its step, or the `"latest"` or `"best"`.

        Raises:
          DamagedError: its manifest is damaged, or may be, as a damaged manifest does not show its epoch.
          LearnerError: there is no such checkpoint.
        """
        entries = self.entries
        self._refuse_damaged(epoch, step)
        if not entries:
            raise LearnerError(
                f"there is no checkpoint in {self.place.root}",
                code="checkpoint-missing",
                directory=str(self.place.root),
            )
        if epoch == "latest":
            return entries[-1]
        if epoch == "best":
            return self.best() or entries[-1]
        matching = [e for e in entries if (e.step == step if epoch is None else e.epoch == epoch)]
        if not matching:
            requested = f"step {step}" if epoch is None else f"the end of epoch {epoch}"
            have = first_and_last([f"step {e.step}" + (f" (epoch {e.epoch})" if e.epoch else "") for e in entries])
            raise LearnerError(
                f"there is no checkpoint of {requested} in {self.place.root}; available: {have}",
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
            doubt = f", and may be the requested one ({epoch if epoch == 'best' else f'epoch {epoch}'})"
        for suspect in suspects:
            if suspect in self.damaged:
                raise self.damaged_error(suspect, f"{self.damaged[suspect]}{doubt}")

    def damaged_error(self, step: int, problem: Any) -> DamagedError:
        """Return the error for a problem of a damaged checkpoint, which names others."""
        steps = [f"step={e.step}" + (f" (epoch {e.epoch})" if e.epoch else "") for e in self.entries if e.step != step]
        others = f"there are also {first_and_last(steps)}" if steps else "there is no other"
        return DamagedError(f"{problem}; {others}", code="checkpoint-damaged", step=step, others=others)

    def best(self) -> Entry | None:
        """Return the best checkpoint by the monitored metric, or None if none has a value. Of equal values, the earlier
        is better.
        """
        # Checkpoints without a score come last, so the first one tells whether any has a score.
        ranked = self.ranked()
        return ranked[0] if ranked and ranked[0].score is not None else None

    def ranked(self) -> list[Entry]:
        """Return all checkpoints, best first. Those without a value of the monitored metric come last, newest first."""
        sign = -1.0 if self._higher_is_better else 1.0
        scored = [e for e in self.entries if e.score is not None]
        unscored = [e for e in self.entries if e.score is None]
        return sorted(scored, key=lambda e: (sign * (e.score or 0.0), e.step)) + unscored[::-1]

    @property
    def _higher_is_better(self) -> bool:
        of_scores = (self._newest_scored or {}).get("higher_is_better")
        if of_scores is None:
            return self._retention is not None and self._retention.higher_is_better
        return bool(of_scores)

    @contextlib.contextmanager
    def reading(self, step: int) -> Iterator[None]:
        """Raise `RemovedError` in place of any error of the block if the checkpoint is gone: that of a missing file
        comes in many forms.
        """
        try:
            yield
        except Exception as error:
            if self.place.holds(step):
                raise
            raise RemovedError(
                f"{self.path(step)} was removed while it was read: the run that trains keeps few checkpoints and saves "
                "often. Keep more, with_file_checkpointer(keep_last=10), or name one that it keeps, such as the best",
                code="checkpoint-removed-while-read",
                step=step,
            ) from error

    def remove_all(self) -> None:
        """Remove every checkpoint."""
        for step in self.steps:
            self.remove(step)

    def set_aside(self, after: int, directory: Any) -> list[int]:
        """Move the checkpoints of later steps to another directory: the run resumes from an earlier one. Return their
        steps.
        """
        newer = [step for step in self.steps if step > after]
        for step in newer:
            self.place.set_aside([*self.records(step), self.path(step)], directory)
            self._table.pop(step, None)
            self.damaged.pop(step, None)
        return newer

    def close(self) -> None:
        """End Orbax's threads."""
        self._arrays.close()


def read_while_training(
    open_store: Callable[[], CheckpointStore], read: Callable[[CheckpointStore], T], attempts: int = ATTEMPTS
) -> T:
    """Return what a function reads of the checkpoints of a run. They are listed anew, by another store, where the run,
    which may train meanwhile, has removed one before it was read (`RemovedError`).
    """
    with contextlib.closing(open_store()) as store:
        try:
            return read(store)
        except RemovedError:
            if attempts == 1:
                raise
    return read_while_training(open_store, read, attempts - 1)


def _unlink(paths: Iterable[Any]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _abstract(item: Any) -> Any:
    def abstract(x: Any) -> Any:
        if isinstance(x, np.ndarray | np.generic):
            return _on_host(x)  # on a device 64-bit numbers would become 32-bit ones
        sharding = x.sharding if isinstance(getattr(x, "sharding", None), jax.sharding.Sharding) else None
        sharding = sharding or jax.sharding.SingleDeviceSharding(default_device())
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    return jax.tree.map(abstract, item)


def _on_host(x: Any) -> np.ndarray:
    """Return an array from which Orbax takes the kind, and not the numbers: it needs no memory for them."""
    return np.broadcast_to(np.zeros((), x.dtype), x.shape)
