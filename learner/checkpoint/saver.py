"""The thread that saves, so that the loop does not wait for the disk."""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from learner.checkpoint.items import to_items
from learner.checkpoint.store import CheckpointStore
from learner.steps.state import TrainState


class Saver:
    """Writes one checkpoint after another. A second save waits until the first is done."""

    def __init__(
        self,
        store: CheckpointStore,
        done: Callable[[Mapping[str, Any], float], None],
        failed: Callable[[Mapping[str, Any], Exception], None] | None = None,
        before: Callable[[Mapping[str, Any]], None] = lambda progress: None,
        after: Callable[[TrainState, Mapping[str, Any]], None] = lambda state, progress: None,
    ):
        """`done(progress, seconds)` is called from the thread when a checkpoint is complete, `failed(progress, error)`
        when one could not be written; without `failed` the error is raised by `check`, and nothing more is saved.
        `before(progress)` is called before each, and `after(state, progress)` when it is complete; what that raises is
        raised by `check`.
        """
        self._store, self._done, self._failed, self._before, self._after = store, done, failed, before, after
        self._error: BaseException | None = None
        self._closed = False
        # One place: a third save waits in `submit`, which bounds how many copies of the state exist.
        self._queue: queue.Queue[tuple[TrainState, dict[str, Any], Mapping[str, Any]] | None] = queue.Queue(1)
        self._thread = threading.Thread(target=self._work, name="learner-saver", daemon=True)
        self._thread.start()

    def submit(self, state: TrainState, progress: dict[str, Any], further: Mapping[str, Any]) -> None:
        """Queues a save. `state` belongs to it: nobody may donate it. `further` has items besides the state's.

        Raises:
          RuntimeError: it is closed. Nobody would take the save from the queue.
        """
        self.check()
        if self._closed:
            raise RuntimeError("the saver is closed")
        self._queue.put((state, progress, further))

    def check(self) -> None:
        """Raises what went wrong in the thread, with its own traceback."""
        if self._error is not None:
            raise self._error

    def wait(self) -> None:
        """Until everything that was submitted is written, or has failed."""
        self._queue.join()

    def close(self, seconds: float | None = None) -> None:
        """Waits until everything is written; raises nothing. A disk that hangs is left behind after `seconds`."""
        # Before the end is queued, so that no later `submit` can be queued behind it and never be written.
        self._closed = True
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=seconds)
        self._thread.join(seconds)

    def _work(self) -> None:
        while True:
            job = self._queue.get()
            try:
                if job is None:
                    return
                if self._error is None:
                    self._save(*job)
            # The thread stays alive and drains the queue: a loop that waits in `submit` or `wait` must not hang.
            except BaseException as error:
                self._error = error
            finally:
                self._queue.task_done()

    def _save(self, state: TrainState, progress: dict[str, Any], further: Mapping[str, Any]) -> None:
        start = time.perf_counter()
        try:
            self._before(progress)
            self._store.save(progress["step"], {**to_items(state), **further}, progress)
        except Exception as error:
            if self._failed is None:
                raise
            self._failed(progress, error)
        else:
            # `done` reports the checkpoint, so it comes after the files that `after` writes beside it.
            self._after(state, progress)
            self._done(progress, time.perf_counter() - start)
