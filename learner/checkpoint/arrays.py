"""The arrays of a checkpoint: one PyTree of Orbax, `state`, whose branches are the items of a run.

Each item can be read separately by name. `learner.checkpoint.pytree` writes the files of one process; Orbax writes
those of several processes, and reads all. Checkpoints of format 1, with a tree for each item, can still be read.
"""

import contextlib
import functools
import gc
import logging
import os
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax

from learner.checkpoint.manifest import ITEMS
from learner.checkpoint.pytree import write_pytree
from learner.checkpoint.quiet import quiet_orbax
from learner.util.disk import error_number

STATE = "state"
UNFINISHED = ".orbax-checkpoint-tmp"
WAIT_FOR_ORBAX = 30.0  # seconds, for the threads of a save that failed


class ArrayFiles:
    """Write and read the arrays of checkpoints. Every method may raise any error of Orbax."""

    @functools.cached_property
    def _ocp(self) -> Any:
        """Import Orbax at the first use, as this takes a second, which would delay the first steps of a run."""
        _silence_orbax()
        with quiet_orbax():  # importing it logs, too
            import orbax.checkpoint

        return orbax.checkpoint

    @functools.cached_property
    def _writer(self) -> Any:
        """The checkpointer that all processes of a run save with, together."""
        return self._checkpointer([STATE], range(jax.process_count()))

    # With a barrier, a process that cannot read would let the others wait, and none could read alone.
    @functools.cached_property
    def _reader(self) -> Any:
        """The checkpointer that this process reads with, alone: no process sends another what it reads."""
        return self._checkpointer([STATE], [jax.process_index()])

    @functools.cached_property
    def _format_1(self) -> Any:
        return self._checkpointer(ITEMS, [jax.process_index()])

    def _checkpointer(self, names: Iterable[str], processes: Sequence[int]) -> Any:
        several = self._several(processes)
        composite = {"composite_options": self._ocp.CompositeOptions(**several)} if several else {}
        handlers = {name: self._ocp.PyTreeCheckpointHandler(**several) for name in names}
        return self._ocp.Checkpointer(self._ocp.CompositeCheckpointHandler(**composite, **handlers), **several)

    def _several(self, processes: Sequence[int]) -> dict[str, Any]:
        """Return the options of these processes of a run; none for the only process."""
        if jax.process_count() == 1:
            return {}
        # With these, processes do not wait for each other on the devices, which are in use during a save.
        options = self._ocp.options.MultiprocessingOptions(
            primary_host=processes[0], active_processes=set(processes), barrier_sync_key_prefix="learner"
        )
        return {"multiprocessing_options": options}

    def save(self, directory: Any, items: Mapping[str, Any]) -> None:
        """Write the items to a new directory. Return when every process has written its shards.

        Raises:
          OSError: the disk is full, read-only or the like.
        """
        try:
            if jax.process_count() == 1:
                write_pytree(directory, STATE, items)
            else:
                self._save_with_orbax(directory, items)
        except Exception as error:
            if (number := error_number(error)) is None or isinstance(error, OSError):
                raise
            # TensorStore's message has several kilobytes, too much for a log on a full disk.
            raise OSError(number, os.strerror(number), str(directory)) from None

    def _save_with_orbax(self, directory: Any, items: Mapping[str, Any]) -> None:
        args = self._ocp.args
        # Orbax has no handle for its threads; after a failure, wait for those that are new.
        before = {*threading.enumerate()}
        with quiet_orbax():
            try:
                self._writer.save(directory, args=args.Composite(**{STATE: args.PyTreeSave(dict(items))}))
            except BaseException:
                # Threads of a failed save still write. They must end before their directory is removed.
                self.close()
                _end_threads(before)
                raise

    def metadata(self, directory: Any) -> dict[str, Any]:
        """Return the tree of each item of a checkpoint. Its leaves have a `shape` and a `dtype`."""
        with quiet_orbax():
            if (directory / STATE).exists():
                return dict(self._reader.metadata(directory).item_metadata[STATE].tree)
            trees = self._format_1.metadata(directory).item_metadata
            return {name: trees[name].tree for name in ITEMS if (directory / name).exists()}

    def restore(self, directory: Any, items: Mapping[str, Any]) -> dict[str, Any]:
        """Return the named items. Each leaf is placed like the given one: a `jax.ShapeDtypeStruct` with a sharding
        yields a `jax.Array`, of which each process reads only its own shards; a NumPy array yields a NumPy array.
        """
        targets = dict(items)
        with quiet_orbax():
            if (directory / STATE).exists():
                args = self._ocp.args.Composite(**{STATE: self._restored(targets)})
                return dict(self._reader.restore(directory, args=args)[STATE])
            args = self._ocp.args.Composite(**{name: self._restored(tree) for name, tree in targets.items()})
            return dict(self._format_1.restore(directory, args=args))

    def _restored(self, tree: Any) -> Any:
        like = self._ocp.checkpoint_utils.construct_restore_args(tree)
        return self._ocp.args.PyTreeRestore(tree, restore_args=like, partial_restore=True)

    def close(self) -> None:
        """End Orbax's threads."""
        # Popped, so that a later save gets a new checkpointer: a closed one cannot be used again.
        for name in ("_writer", "_reader", "_format_1"):
            checkpointer = vars(self).pop(name, None)
            if checkpointer is not None:
                with quiet_orbax():
                    checkpointer.close()


def _end_threads(before: set[threading.Thread]) -> None:
    """Wait for the threads of a failed save, as they still write to a directory that is about to be removed."""
    until = time.monotonic() + WAIT_FOR_ORBAX
    while remaining := [thread for thread in threading.enumerate() if thread not in before and _is_of_orbax(thread)]:
        with contextlib.suppress(Exception):  # Orbax's threads raise the error that the save has raised
            remaining[0].join(max(0.0, until - time.monotonic()))  # it may begin further ones
        if time.monotonic() >= until:
            break
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        gc.collect()  # tasks that were not awaited warn when they are collected: do it here


def _is_of_orbax(thread: threading.Thread) -> bool:
    return type(thread).__module__.startswith("orbax.")


class _FailureFilter(logging.Filter):
    """Drops the reports of Orbax's threads and tasks about a failed save or read, also late ones: its error was raised
    already.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True if the record is about something else."""
        error = record.exc_info[1] if record.exc_info else None
        return not _is_from_orbax(error) and UNFINISHED not in f"{record.getMessage()} {error}"


_failure_filter = _FailureFilter()


def _is_from_orbax(error: BaseException | None) -> bool:
    """Return True for an error that was raised in a task of Orbax, or by TensorStore in a future without a task."""
    frames = traceback.walk_tb(None if error is None else error.__traceback__)
    modules = [frame.f_globals.get("__name__", "") for frame, _ in frames]
    return "tensorstore_spec" in str(error) or any(name.startswith("orbax.") for name in modules)


def _is_of_closed_loop(unraisable: Any) -> bool:
    """Return True if a thread of TensorStore has an answer for a loop of Orbax that a failure has closed. It calls from
    C++, without an object; Python's own transports, which also raise this, are named.
    """
    return unraisable.object is None and str(unraisable.exc_value) == "Event loop is closed"


@functools.cache
def _silence_orbax() -> None:
    """Hide the reports of Orbax's and TensorStore's threads about failed saves and reads, from now on: some of these
    threads outlive the call and cannot be awaited.
    """

    def hook(unraisable: Any) -> None:
        if not (_is_from_orbax(unraisable.exc_value) or _is_of_closed_loop(unraisable)):
            shown(unraisable)

    shown, sys.unraisablehook = sys.unraisablehook, hook
    for name in ("absl", "asyncio"):
        logging.getLogger(name).addFilter(_failure_filter)
