"""A bound on how far the host runs ahead of the device."""

import threading


class InFlightLimiter:
    """Bounds the work in flight: in dispatches, and in seconds. Any thread may call it."""

    def __init__(self, most: int = 64, seconds: float = 0.1, least: int = 2):
        self._most, self._seconds, self._least = most, seconds, least
        self._changed = threading.Condition()
        self._in_flight, self._per_dispatch, self._last_release = 0, 1.0, 0.0

    @property
    def full(self) -> bool:
        """Return True if the next dispatch would have to wait."""
        return self._in_flight >= max(self._least, min(self._most, int(self._seconds / self._per_dispatch)))

    @property
    def read_batch_size(self) -> int:
        """Return how many dispatches are best read at once: those of some 5 ms, but only a few of short ones."""
        return max(1, min(self._most // 4, int(self._seconds / 20 / self._per_dispatch)))

    def acquire(self, seconds: float | None = None) -> bool:
        """Block until a dispatch slot is free or the timeout expires. Return True if a slot was acquired."""
        with self._changed:
            free = self._changed.wait_for(lambda: not self.full, seconds)
            self._in_flight += free
        return free

    def release(self, count: int, seconds: float, now: float = 0.0) -> None:
        """Free the slots of `count` dispatches that ended within `seconds`, the last of them at `now`."""
        with self._changed:
            self._in_flight -= count
            self._per_dispatch = max(seconds / count, 1e-6)
            self._last_release = now
            self._changed.notify()

    def idle(self, since: float, now: float, unsent: int) -> float:
        """Return the seconds since then in which nothing was in flight but the `unsent` dispatches, which the reporter
        does not have yet.
        """
        with self._changed:
            return 0.0 if self._in_flight > unsent else max(0.0, now - max(since, self._last_release))

    def open(self) -> None:
        """Let every dispatch through from now on. The reporter has failed, and nobody else would free a slot."""
        with self._changed:
            self._most, self._in_flight = 1 << 30, -(1 << 30)
            self._changed.notify_all()
