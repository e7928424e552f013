"""The saves of a run that are not written yet."""

import dataclasses
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

from learner.checkpoint.best import Snapshot

MOST_PENDING = 2  # one in progress and one waiting: this limits the number of copies of the state
POLL_SECONDS = 1.0


@dataclasses.dataclass(frozen=True)
class SaveRequest:
    """A save in the saver's queue.

    Attributes:
      snapshots: called on the saver's thread with the answer; returns the snapshots to write, in order. Their states
        are on the devices.
      answer: the part of the save from another thread. If it fails or is cancelled, nothing is written: the other
        thread raises the error.
      requested_at: the time of the request, by `time.monotonic`.
    """

    snapshots: Callable[[Any], Iterable[Snapshot]]
    answer: "Future[Any]" = dataclasses.field(default_factory=Future)
    requested_at: float = dataclasses.field(default_factory=lambda: time.monotonic())

    @property
    def is_answered(self) -> bool:
        """Return True if only writing remains of the save."""
        return self.answer.done()


class SaveQueue:
    """The saves of a run, from their request until they are written. Any thread may call it.

    It is created before the reporter and the saver, as both need it: the saver takes saves from it, and the reporter
    waits for it if the disk is full.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()  # guards `_pending`
        self._pending: deque[SaveRequest] = deque()  # the first one is being written
        self._closed = threading.Event()

    def put(self, request: SaveRequest, check: Callable[[], None] = lambda: None) -> None:
        """Append a save once at most one other is pending. Until then `check` is called now and then; it may raise.

        Raises:
          RuntimeError: the queue is closed, so the save would never be written.
        """
        while True:
            with self._changed:
                # Under the lock, so that `close` cannot come in between: the saver ends once the queue is empty.
                if self._closed.is_set():
                    raise RuntimeError("the saver is closed")
                if self._changed.wait_for(lambda: len(self._pending) < MOST_PENDING, POLL_SECONDS):
                    self._pending.append(request)
                    self._changed.notify_all()
                    return
            check()  # without the lock: it may take a while to ask other processes

    def first(self) -> SaveRequest | None:
        """Block until there is a save, and return it. Return None if the queue is closed and empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._closed.is_set())
            return self._pending[0] if self._pending else None

    def remove_first(self) -> None:
        """Remove the first save after it ends. Until then it counts as pending, for `wait` and the limit on copies."""
        with self._changed:
            self._pending.popleft()
            self._changed.notify_all()

    def wait(self) -> None:
        """Block until every save is written, or has failed."""
        # Without a timeout: the saver's thread empties the queue, even after a failed save.
        with self._changed:
            self._changed.wait_for(lambda: not self._pending)

    def wait_for_answered(self) -> None:
        """Block until every answered save is written, or has failed. The thread that answers may call it.

        Answers come in the order of requests, so all saves before an answered one are answered, too, and the saver
        needs no further answer for them.
        """
        with self._changed:
            self._changed.wait_for(lambda: not any(request.is_answered for request in self._pending))

    def close(self) -> None:
        """Refuse further saves."""
        with self._changed:
            self._closed.set()
            self._changed.notify_all()
