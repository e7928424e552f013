"""Batches through Grain: any dataset, any batcher, worker processes.

Grain's elements are batches here, numbered over all epochs. Grain prefetches them, distributes them to worker processes
and restores their order. In a pipeline of single items (`source.shuffle.batch`) every item passes all stages, which
took 1.2 ms for a batch of 32 small rows, against 0.06 ms here.

Importing this module imports Grain.
"""

import atexit
import contextlib
import functools
import sys
import traceback
import weakref
from collections.abc import Callable, Generator, Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import grain
import jax
import numpy as np

from learner.data.batch_arrays import as_dicts, field_name
from learner.data.batcher import Batcher, ItemError, declares
from learner.data.dataset import is_epoch_dependent, read_item
from learner.data.plan import Plan
from learner.data.sharding import ProcessShard
from learner.data.workers import allow_grain_workers, check_main_script, check_semaphores, end_with_parent
from learner.errors import LearnerError


class Pipeline:
    """Prefetches the batches of a plan from `dataset`, in a thread or in `num_workers` processes."""

    def __init__(self, dataset: Any, batcher: Batcher, plan: Plan, num_workers: int, prefetch: int) -> None:
        self._batches = _Batches(dataset, batcher, plan, sent=num_workers > 0)
        self._plan = plan
        self._random = plan.seed is not None or is_epoch_dependent(dataset)
        self.num_workers = num_workers
        self._prefetch = prefetch
        # Idle workers after an epoch: the batch that they return next, and its share.
        self._waiting: tuple[int, ProcessShard | None, _Workers] | None = None

    def read(self, epoch: int, start: int, share: ProcessShard | None = None) -> Generator[Any, None, None]:
        """See `Reader`."""
        first, end = (epoch - 1) * self._plan.num_batches + start, epoch * self._plan.num_batches
        if self.num_workers:
            return self._from_workers(first, end, share)
        return self._from_thread(first, end, share)

    def close(self) -> None:
        """End the workers that wait for the next epoch."""
        if self._waiting:
            self._waiting[2].close()
        self._waiting = None

    def _from_thread(self, first: int, end: int, share: ProcessShard | None) -> Generator[Any, None, None]:
        options = grain.ReadOptions(num_threads=min(1, self._prefetch), prefetch_buffer_size=self._prefetch)
        batches = grain.MapDataset.range(first, end).map(self._batch_maker(share)).to_iter_dataset(options)
        with contextlib.closing(iter(batches)) as reading, _without_grains_note():
            yield from reading

    def _from_workers(self, first: int, end: int, share: ProcessShard | None) -> Generator[Any, None, None]:
        workers = self._workers_at(first, share)
        try:
            with _without_grains_note():
                for _ in range(first, end):
                    yield workers.next_batch()
        except BaseException:
            workers.close()
            raise
        self.close()
        self._waiting = (end, share, workers)

    def _workers_at(self, first: int, share: ProcessShard | None) -> "_Workers":
        """Return workers that read from batch `first` on, reusing the last epoch's if possible, to save seconds."""
        if self._waiting and self._waiting[1] == share and self._follows(self._waiting[0], first):
            waiting, self._waiting = self._waiting[2], None
            return waiting
        check_semaphores()
        check_main_script()
        allow_grain_workers()
        no_threads = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
        workers = grain.MultiprocessingOptions(self.num_workers, per_worker_buffer_size=max(1, self._prefetch))
        endless = grain.MapDataset.range(first, sys.maxsize).map(self._batch_maker(share))
        return _Workers(endless.to_iter_dataset(no_threads).mp_prefetch(workers))

    def _batch_maker(self, share: ProcessShard | None) -> Callable[[int], Any]:
        """Return a function that makes the batch with a number."""
        # One object for all epochs, because it caches the order of the latest epoch.
        return functools.partial(self._batches, share=share)

    def _follows(self, end: int, first: int) -> bool:
        """Return True if workers at batch `end` may continue with `first`. Without randomness all epochs are equal."""
        return first == end or (not self._random and first % self._plan.num_batches == 0)


class _Workers:
    """Worker processes and the iterator of their batches."""

    def __init__(self, dataset: Any) -> None:
        self._batches: Any = iter(dataset)
        _running.add(self)

    def next_batch(self) -> Any:
        try:
            batch = next(self._batches)
        except BaseException as error:
            self.close()
            _clear_frames(error)
            raise
        return jax.tree.map(_copy_shared, batch)

    def close(self) -> None:
        if self._batches is not None:
            self._batches.close()
        self._batches = None


_running: weakref.WeakSet[_Workers] = weakref.WeakSet()


@atexit.register
def _end_workers() -> None:
    """End all workers before Python exits."""
    # Otherwise Grain ends them while modules are torn down, and prints errors.
    for workers in list(_running):
        workers.close()
    arrays = getattr(sys.modules.get("grain._src.python.ipc.shared_memory_array"), "SharedMemoryArray", None)
    releasing = getattr(arrays, "_del_thread_pool", None)
    if releasing is not None:
        # A daemon thread releases shared memory, one task after another: wait for a final no-op task.
        releasing.apply(int)


class _Batches:
    """Makes batch number `index`, counted over all epochs. `sent`: it runs in a worker, so errors must be pickled."""

    def __init__(self, dataset: Any, batcher: Batcher, plan: Plan, sent: bool) -> None:
        self._dataset = dataset
        self._batcher = batcher
        self._plan = plan
        self._sent = sent
        # A user's batcher may reuse its arrays, and batches are read ahead. What is sent is a copy already.
        self._copies = not (sent or str(getattr(batcher, "__module__", None)).startswith("learner."))
        self._latest: tuple[int, np.ndarray] | None = None

    def __call__(self, index: int, share: ProcessShard | None = None) -> Any:
        epoch, number = divmod(index, self._plan.num_batches)
        rows = self._order(epoch + 1)[self._plan.rows_of(number, share)].tolist()
        try:
            return self._batch(rows, epoch + 1)
        except StopIteration as error:
            # The iterators above would take it as the end of the epoch, without the remaining rows.
            raise RuntimeError(", ".join(["StopIteration was raised", *error.__notes__])) from error
        except Exception as error:
            if not self._sent or _can_be_sent(error):
                raise
            raise RuntimeError("in a worker process:\n" + "".join(traceback.format_exception(error))) from error

    def _order(self, epoch: int) -> np.ndarray:
        if self._latest is None and self._sent:
            end_with_parent()  # at the first batch of a worker
        if self._latest is None or self._latest[0] != epoch:
            self._latest = (epoch, self._plan.order(epoch))
        return self._latest[1]

    def _batch(self, rows: list[int], epoch: int) -> Any:
        items = [self._item(row, epoch) for row in rows]
        try:
            batch = as_dicts(self._batcher(items))
            if self._copies:
                batch = jax.tree.map(lambda x: x.copy() if isinstance(x, np.ndarray) else x, batch)
            _check(batch, self._batcher, len(rows))
        except Exception as error:
            named = error.in_dataset(rows) if isinstance(error, ItemError) else error
            named.add_note(f"while making a batch of the rows {rows}")
            if named is error:
                raise
            raise named.with_traceback(error.__traceback__) from None
        return batch

    def _item(self, row: int, epoch: int) -> Any:
        try:
            return read_item(self._dataset, row, epoch)
        except Exception as error:
            error.add_note(f"while reading row {row} of {type(self._dataset).__name__}")
            raise


@contextlib.contextmanager
def _without_grains_note() -> Iterator[None]:
    """Remove Grain's note from errors, which advises to set one of its flags to see its internal frames. Raise
    `LearnerError` for a dataset that cannot be sent to workers (Grain's error shows its own wrapper), and for a worker
    that was killed.
    """
    try:
        yield
    except Exception as error:
        notes = getattr(error, "__notes__", [])
        if any(note.endswith("cannot be pickled!") for note in notes):
            raise LearnerError(
                f"num_workers sends the dataset to other processes, and this one cannot be sent: {error}. Open files, "
                "locks and connections when an item is read, or read with num_workers(0)",
                code="worker-dataset-unpicklable",
            ) from error
        if "terminated unexpectedly with exit code -9" in str(error):
            raise LearnerError(
                "a worker process of num_workers was killed, most often by the system because memory ran out: use "
                "fewer workers, a smaller prefetch or smaller batches",
                code="worker-killed",
            ) from error
        notes[:] = [note for note in notes if "Grain has removed its internal frames" not in note]
        raise


def _check(batch: Any, batcher: Batcher, rows: int) -> None:
    """Raise `LearnerError` unless a batch consists of arrays with a row for each item: dropped rows would be missing
    from means and predictions unnoticed.
    """
    # Grain would skip a batch that is `None`, and wait forever for one that cannot be pickled.
    leaves = jax.tree_util.tree_leaves_with_path(batch)
    if not leaves:
        raise LearnerError(
            f"a batcher must return a dict (or another pytree) of arrays; it returned {batch!r}",
            code="data-batcher-returns-no-arrays",
        )
    for path, leaf in leaves:
        if not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
            raise LearnerError(
                f"a batcher must return arrays; {field_name(path)} is a {type(leaf).__name__}",
                code="data-batcher-returns-no-arrays",
            )
    if any(leaf.shape and leaf.shape[0] != rows for _, leaf in leaves) and not declares(batcher, "any_rows"):
        shapes = ", ".join(f"{field_name(path)} {list(leaf.shape)}" for path, leaf in leaves)
        raise LearnerError(
            f"a batcher must return a row for each item: it got {rows}, and returned {shapes}. A batcher that puts "
            "several items into a row, or leaves some out, declares it with an attribute: any_rows = True",
            code="data-batcher-row-count",
            rows=rows,
        )


def _can_be_sent(error: Exception) -> bool:
    """Return True if an exception can be pickled. Otherwise the other process would wait for it forever."""
    try:
        ForkingPickler.loads(ForkingPickler.dumps(error))
    except Exception:
        return False
    return True


def _clear_frames(error: BaseException) -> None:
    """Clear the frames of an error's traceback."""
    # Grain's frames reference the previous batch, in shared memory. Python keeps them with the error, and if the error
    # lives until Python exits, nothing frees the memory.
    for frame, _ in traceback.walk_tb(error.__traceback__):
        for caller, _ in traceback.walk_stack(frame):
            with contextlib.suppress(RuntimeError):  # it is running
                caller.clear()


def _copy_shared(leaf: Any) -> Any:
    """Return a copy of Grain's view of shared memory, which can then be freed; other leaves unchanged."""
    return np.array(leaf) if isinstance(leaf, np.ndarray) and type(leaf) is not np.ndarray else leaf
