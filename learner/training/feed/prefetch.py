"""Prefetching: an iterator that runs in a thread, a few lists ahead of its consumer."""

import collections
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

from learner.util.device_threads import with_precision

DEPTH = 2  # lists that wait
IN_MEMORY = DEPTH + 2  # with the one that is made, and the one that is used


class Prefetcher(Iterator[Any]):
    """Runs an iterator of lists in a thread, a few lists ahead, and yields their items one by one.

    An exception in the thread is raised in place of the list that it prevented.

    Args:
      lists: the iterator; only the thread uses it until `close`.
      depth: the largest number of lists that wait.
      stopped: polled while waiting; once it returns True, iteration ends.
    """

    def __init__(self, lists: Iterator[list[Any]], depth: int = DEPTH, stopped: Callable[[], bool] = lambda: False):
        self._lists, self._stopped = lists, stopped
        self._ready: collections.deque[Any] = collections.deque()
        self._queue: queue.Queue[tuple[bool, Any]] = queue.Queue(depth)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=with_precision(self._work), name="learner-data", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            for items in self._lists:
                if not self._put((True, items)):
                    return
            self._put((False, None))
        # Whatever it is: without an entry the consumer would wait for ever.
        except BaseException as error:
            self._put((False, error))

    def _put(self, entry: tuple[bool, Any]) -> bool:
        # With a timeout, because nobody empties a full queue once the consumer has closed.
        while not self._closed.is_set():
            try:
                self._queue.put(entry, timeout=0.1)
            except queue.Full:
                continue
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
            return entry  # type: ignore[no-any-return]
        # The end, or the error, goes back for later calls. The thread puts nothing after it, so the queue has room.
        self._queue.put((False, entry))
        if entry is None:
            raise StopIteration
        raise entry

    def close(self) -> None:
        """End the thread and drop the lists that it has prepared."""
        self._closed.set()
        close = getattr(self._lists, "close", None)
        # A loader of the user's may hang, and must not hold the end of the run.
        self._thread.join(timeout=5)
        # Python refuses to close a generator that runs in another thread: then the daemon thread keeps it.
        if close is not None and not self._thread.is_alive():
            close()
