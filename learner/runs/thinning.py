"""Values of any number of steps in bounded memory."""

import numpy as np

from learner.runs.series import Floats, Series, Whole

MOST = 4096
"""Points of a series, and of its newest steps."""


class Thinned:
    """Values of steps as at most so many points: where they become more, each two are put together. The newest steps
    are kept one by one as well.

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

    def add(self, steps: Whole, values: Floats) -> None:
        """Adds the values of the next steps.

        Args:
          steps: int64 `[steps]`.
          values: float64 `[steps]`.
        """
        new = single(steps, values)
        self._newest = np.concatenate([self._newest, new], 1)[:, -self._most :].copy()
        self._waiting = np.concatenate([self._waiting, new], 1)
        while self._waiting.shape[1] >= self._together:
            room = self._most - self._points.shape[1]
            whole = min(room, self._waiting.shape[1] // self._together) * self._together
            self._points = np.concatenate([self._points, merged(self._waiting[:, :whole], self._together)], 1)
            self._waiting = self._waiting[:, whole:].copy()
            if self._points.shape[1] == self._most:
                self._points = merged(self._points, 2)
                self._together *= 2

    def series(self, since: float = 0) -> Series:
        """All of it, or the steps from `since` on one by one, if they are still kept."""
        if self._newest.shape[1] and since >= self._newest[0, 0]:
            return series_of(self._newest[:, self._newest[0] >= since], 1)
        rest = merged(self._waiting, max(1, self._waiting.shape[1]))
        return series_of(np.concatenate([self._points, rest], 1), self._together)


def single(steps: Whole, values: Floats) -> Floats:
    """Each value as a point of its own: see `merged`."""
    fine = np.isfinite(values)
    edges = np.where(fine, values, np.inf), np.where(fine, values, -np.inf)
    return np.stack([steps, fine, np.where(fine, values, 0), *edges])


def merged(points: Floats, size: int) -> Floats:
    """Each `size` neighbours as one: the last step, how many are finite, their sum, the least and the greatest."""
    grouped = points.reshape(5, -1, size)
    step, count, total, low, high = grouped
    return np.stack([step[:, -1], count.sum(1), total.sum(1), low.min(1), high.max(1)])


def series_of(points: Floats, together: int) -> Series:
    """The points as a series; `together`: how many steps each has."""
    step, count, total, low, high = points
    mean, low, high = (np.where(count > 0, column, np.nan) for column in (total / np.maximum(count, 1), low, high))
    return Series(step.astype(np.int64), mean, low, high, together)
