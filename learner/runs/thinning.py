"""Values of any number of steps in bounded memory."""

import numpy as np

from learner.runs.series import Floats, Integers, Series, merged, series_of, single

MOST = 4096
"""Points of a series, and of its newest steps."""


class Thinned:
    """Values of steps as at most `most` points: when there are more, neighbouring points are merged in pairs. The
    newest steps are also kept individually.

    Args:
      most: points, an even number.

    >>> thinned = Thinned(4)
    >>> thinned.add(np.arange(1, 8), np.array([1.0, 3, 5, 5, 9, 1, 2]))
    >>> [column.tolist() for column in (thinned.series().step, thinned.series().mean, thinned.series().high)]
    [[2, 4, 6, 7], [2.0, 5.0, 5.0, 2.0], [3.0, 5.0, 9.0, 2.0]]
    >>> thinned.series(since=5).mean.tolist()
    [9.0, 1.0, 2.0]
    """

    def __init__(self, most: int = MOST):
        self._most = most
        self._together = 1
        self._points, self._waiting, self._newest = np.zeros((5, 0)), np.zeros((5, 0)), np.zeros((5, 0))

    def add(self, steps: Integers, values: Floats) -> None:
        """Add the values of the next steps.

        Args:
          steps: int64 `[steps]`.
          values: float64 `[steps]`.
        """
        new = single(steps, values)
        self._newest = np.concatenate([self._newest, new], 1)[:, -self._most :].copy()
        self._waiting = np.concatenate([self._waiting, new], 1)
        while self._waiting.shape[1] >= self._together:
            room = self._most - self._points.shape[1]
            complete = min(room, self._waiting.shape[1] // self._together) * self._together
            self._points = np.concatenate([self._points, merged(self._waiting[:, :complete], self._together)], 1)
            self._waiting = self._waiting[:, complete:].copy()
            if self._points.shape[1] == self._most:
                self._points = merged(self._points, 2)
                self._together *= 2

    def series(self, since: float = 0) -> Series:
        """Return all points, or the individual steps from `since` on if they are still kept."""
        if self._newest.shape[1] and since >= self._newest[0, 0]:
            return series_of(self._newest[:, self._newest[0] >= since], 1)
        rest = merged(self._waiting, max(1, self._waiting.shape[1]))
        return series_of(np.concatenate([self._points, rest], 1), self._together)
