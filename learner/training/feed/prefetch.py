"""Prefetching: an iterator that runs in a thread, a few lists ahead of its consumer."""

import collections
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

from learner.util.device_threads import device_thread

DEPTH = 3  # lists that are ready or in preparation
IN_MEMORY = DEPTH + 1  # with the one in use


class Prefetcher(Iterator[Any]):
    """Run an iterator of lists in a thread, a few lists ahead, and yield their items one by one.

    An exception in the thread is raised in place of the missing list.

    Args:
      lists: the iterator; only the thread uses it until `close`.
      depth: the maximum number of lists that are ready or in preparation.
      stopped: polled while waiting; once it returns True, iteration ends.
      closed: set by `close`, for an iterator that can end within a list.
    """

    def __init__(
        self,
        lists: Iterator[list[Any]],
        depth: int = DEPTH,
        stopped: Callable[[], bool] = lambda: False,
        closed: threading.Event | None = None,
    ):
        self._lists, self._stopped = lists, stopped
        self._ready: collections.deque[Any] = collections.deque()
        self._queue: queue.Queue[tuple[bool, Any]] = queue.Queue()
        self._room = threading.Semaphore(depth)
        self._closed = threading.Event() if closed is None else closed
        # The user's code may compute with JAX, and placing a batch does.
        self._thread = device_thread(self._work, "learner-data")
        self._thread.start()

    def _work(self) -> None:
        try:
            # Before the next list is read rather than queued: a list may fill the memory of the host.
            while self._has_room():
                self._queue.put((True, next(self._lists)))
        except StopIteration:
            self._queue.put((False, None))
        # Any exception: without an entry the consumer would wait forever.
        except BaseException as error:
            self._queue.put((False, error))

    def _has_room(self) -> bool:
        """Wait until a list may be read. Return False if the consumer has closed, after which nothing makes room."""
        while not self._closed.is_set():
            if self._room.acquire(timeout=0.1):
                return True
        return False

    def __next__(self) -> Any:
        while not self._ready:
            self._ready.extend(self._next_list())
        return self._ready.popleft()

    def _next_list(self) -> list[Any]:
        # With a timeout, because a signal could not interrupt an endless wait.
        while True:
            try:
                ok, entry = self._queue.get(timeout=0.1)
            except queue.Empty:
                if self._closed.is_set() or self._stopped():
                    raise StopIteration from None
                continue
            break
        if ok:
            self._room.release()
            return entry  # type: ignore[no-any-return]
        # The end, or the error, goes back for later calls.
        self._queue.put((False, entry))
        if entry is None:
            raise StopIteration
        try:
            raise entry
        finally:
            del entry  # the error's traceback has this frame: the cycle would keep the arrays of the run alive

    def close(self) -> None:
        """End the thread and drop the lists that it has prepared."""
        self._closed.set()
        close = getattr(self._lists, "close", None)
        # The user's loader may hang, and must not block the end of the run.
        self._thread.join(timeout=5)
        # Python refuses to close a generator that runs in another thread: then the daemon thread keeps it.
        if close is not None and not self._thread.is_alive():
            close()
        self._ready.clear()
        with self._queue.mutex:
            self._queue.queue.clear()
