"""The thread that writes checkpoints, so that the loop does not wait for the disk."""

import time
from collections.abc import Callable

from learner.checkpoint.best import Snapshot
from learner.checkpoint.items import to_items
from learner.checkpoint.save_queue import SaveQueue, SaveRequest
from learner.checkpoint.store import CheckpointStore
from learner.util.device_threads import device_thread
from learner.util.ownership import ThreadOwned


class Saver(ThreadOwned):
    """Write one checkpoint after another, in a thread that owns its attributes.

    Args:
      store: the store to write checkpoints to.
      queue: the queue of saves.
      complete: called with a snapshot and the seconds of writing it when its checkpoint is complete.
      failed: called with a snapshot and the error if it could not be written. If None, `check` raises the error, and
        nothing more is saved.
      before: called with each snapshot before it is written.
      after: called with each snapshot after it is written, before `complete`. `check` raises its errors.

    Attributes:
      longest: seconds of the longest save so far, from its request until its checkpoint was complete.
    """

    def __init__(
        self,
        store: CheckpointStore,
        queue: SaveQueue,
        complete: Callable[[Snapshot, float], None],
        failed: Callable[[Snapshot, Exception], None] | None = None,
        before: Callable[[Snapshot], None] = lambda snapshot: None,
        after: Callable[[Snapshot], None] = lambda snapshot: None,
    ):
        self._store, self._queue = store, queue
        self._complete, self._failed, self._before, self._after = complete, failed, before, after
        self.longest = 0.0
        self._error: BaseException | None = None
        self._thread = device_thread(self._work, "learner-saver")
        self._thread.start()

    # -- any thread ----------------------------------------------------------------------------------------------------

    def submit(self, request: SaveRequest, check: Callable[[], None] = lambda: None) -> None:
        """Queue a save once at most one other is pending. Until then `check` is called now and then; it may raise. The
        arrays of the snapshots belong to the save and must not be donated.

        Raises:
          RuntimeError: the saver is closed, so the save would never be written.
        """

        def check_all() -> None:
            self.check()
            check()

        # Before the request is queued: once it has failed, the thread would only drop it.
        self.check()
        self._queue.put(request, check_all)

    def check(self) -> None:
        """Raise the error of the saver's thread, with its own traceback."""
        if self._error is not None:
            raise self._error

    def wait(self) -> None:
        """Block until everything submitted is written, or has failed."""
        self._queue.wait()

    def close(self, seconds: float | None = None) -> None:
        """Write everything submitted, and end the thread. Raises nothing. If the disk hangs, the thread is abandoned
        after `seconds`.
        """
        self._queue.close()
        self._thread.join(seconds)

    # -- the saver's thread --------------------------------------------------------------------------------------------

    def _work(self) -> None:
        self.claim()
        while (request := self._queue.first()) is not None:
            try:
                if self._error is None:
                    self._write(request)
            # The thread stays alive and drains the queue: a loop that waits in `submit` or `wait` must not hang.
            except BaseException as error:
                self._error = error
            finally:
                del request  # before the queue accepts another copy of the state
                self._queue.remove_first()

    def _write(self, request: SaveRequest) -> None:
        try:
            answer = request.answer.result()
        except BaseException:  # the error of another thread, which raises it itself
            return
        for snapshot in request.snapshots(answer):
            self._save(snapshot, request.requested_at)

    def _save(self, snapshot: Snapshot, requested_at: float) -> None:
        began = time.perf_counter()
        try:
            self._before(snapshot)
            self._store.save(snapshot.step, {**to_items(snapshot.state), **snapshot.further}, snapshot.full_progress)
        except Exception as error:
            if self._failed is None:
                raise
            self._failed(snapshot, error)
        else:
            # `complete` reports the checkpoint, so it comes after the files that `after` writes beside it.
            self._after(snapshot)
            # Any thread may read this number, which is replaced atomically.
            self.longest = max(self.longest, time.monotonic() - requested_at)
            self._complete(snapshot, time.perf_counter() - began)
