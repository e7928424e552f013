"""A limit on how far the host runs ahead of the device."""

import collections
import math
import threading


class InFlightLimiter:
    """Limit the work in flight, in dispatches and in seconds. Any thread may call it.

    Args:
      most: the maximum number of dispatches in flight.
      seconds: the seconds of work in flight beyond which no dispatch begins.
      least: the number of dispatches that may be in flight regardless of their time.

    Attributes:
      most: see above.
    """

    # In seconds as well as in number: limited only by number, validations delayed saves and Ctrl-C by 5 s.
    def __init__(self, most: int = 64, seconds: float = 0.1, least: int = 2):
        self.most, self._seconds, self._least = most, seconds, least
        self._changed = threading.Condition()
        self._in_flight: collections.deque[float] = collections.deque()  # the estimated seconds of each dispatch
        self._last_release = 0.0
        self._is_open = False

    @property
    def full(self) -> bool:
        """Return True if the next dispatch would have to wait."""
        count = len(self._in_flight)
        if count < self._least or self._is_open:
            return False
        # A copy, as another thread may release slots meanwhile.
        return count >= self.most or sum(self._in_flight.copy()) >= self._seconds

    def acquire(self, seconds: float = math.inf, timeout: float | None = None) -> bool:
        """Block until a dispatch that takes `seconds` may begin, or the timeout expires. Return True if it may begin.
        Without an estimate of its seconds, at most two are in flight.
        """
        with self._changed:
            free = self._changed.wait_for(lambda: not self.full, timeout)
            if free and not self._is_open:
                self._in_flight.append(seconds)
        return free

    def release(self, count: int, now: float = 0.0) -> None:
        """Free the slots of the oldest `count` dispatches, the last of which ended at `now`."""
        with self._changed:
            # Fewer if `open` has cleared them.
            for _ in range(min(count, len(self._in_flight))):
                self._in_flight.popleft()
            self._last_release = now
            self._changed.notify()

    def idle(self, since: float, now: float, unsent: int) -> float:
        """Return the seconds after `since` in which nothing was in flight, except for the `unsent` dispatches that the
        reporter does not have yet.
        """
        with self._changed:
            return 0.0 if len(self._in_flight) > unsent else max(0.0, now - max(since, self._last_release))

    def open(self) -> None:
        """Let every dispatch through from now on. Called when the reporter fails, as nothing else frees slots."""
        with self._changed:
            self._is_open = True
            self._in_flight.clear()
            self._changed.notify_all()
