"""Curves with fewer points, made by merging neighbouring values. All plots, pages and renderers thin and smooth their
curves here.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

MOST = 4096
"""Points of a series, and of its newest steps."""
Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Series:
    """The values of a metric over optimizer steps, where neighbouring steps may be merged.

    Attributes:
      step: int64 `[points]`, the last step of each point.
      mean: float64 `[points]`, the value if a point is one step, else the mean of the finite values, or NaN.
      low: float64 `[points]`, their minimum.
      high: float64 `[points]`, their maximum.
      together: the number of steps in a point; the last point may have fewer.
    """

    step: Integers
    mean: Floats
    low: Floats
    high: Floats
    together: int = 1

    def __len__(self) -> int:
        return len(self.step)

    def after(self, step: int) -> "Series":
        """Return the points that end after a step."""
        kept = self.step > step
        return Series(self.step[kept], self.mean[kept], self.low[kept], self.high[kept], self.together)


def group_size(count: int, most: int) -> int:
    """Return how many of `count` neighbours to merge into one for at most `most` points."""
    return max(1, -(-count // most))


def thin(steps: npt.ArrayLike, values: npt.ArrayLike, size: int) -> Series:
    """Merge each `size` neighbours into one point; the last point may have fewer. Single values are unchanged,
    including infinities.

    >>> series = thin([1, 2, 3, 4, 5], [1.0, 3, 5, 5, 9], 2)
    >>> [column.tolist() for column in (series.step, series.mean, series.low, series.high)]
    [[2, 4, 5], [2.0, 5.0, 9.0], [1.0, 5.0, 9.0], [3.0, 5.0, 9.0]]
    """
    if size == 1:
        step, value = np.asarray(steps, np.int64), np.asarray(values, np.float64)
        return Series(step, value, value, value)
    return series_of(merged(single(steps, values), size), size)


def single(steps: npt.ArrayLike, values: npt.ArrayLike) -> Floats:
    """Return each value as a point; see `merged`."""
    value = np.asarray(values, np.float64)
    finite = np.isfinite(value)
    edges = np.where(finite, value, np.inf), np.where(finite, value, -np.inf)
    return np.stack([np.asarray(steps, np.float64), finite, np.where(finite, value, 0), *edges])


def merged(points: Floats, size: int) -> Floats:
    """Merge each `size` neighbours, float64 `[5, points]`, into one point: the last step, the number of finite values,
    their sum, minimum and maximum. The last point may have fewer.
    """
    count = points.shape[1]
    if size == 1 or not count:
        return points
    first = np.arange(0, count, size)
    with np.errstate(over="ignore", invalid="ignore"):  # an infinite sum, and NaN of two
        sums = np.add.reduceat(points[1:3], first, axis=1)
    low, high = np.minimum.reduceat(points[3], first), np.maximum.reduceat(points[4], first)
    return np.stack([points[0, np.minimum(first + size, count) - 1], *sums, low, high])


def series_of(points: Floats, together: int) -> Series:
    """Return the points as a series; `together` is the number of steps in each."""
    step, count, total, low, high = points
    mean, low, high = (np.where(count > 0, column, np.nan) for column in (total / np.maximum(count, 1), low, high))
    return Series(step.astype(np.int64), mean, low, high, together)


def joined(parts: Sequence[Series], together: int) -> Series:
    """Return consecutive parts as one series."""
    step, mean, low, high = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("step", "mean", "low", "high")
    )
    return Series(step, mean, low, high, together)


def smoothed(values: npt.ArrayLike, weight: float) -> Floats:
    """Return an exponential moving average with the bias correction of Adam: the weights of each mean sum to 1. Values
    that are not finite are unchanged, and later means omit them.

    >>> smoothed([1.0, 2.0, np.nan, 4.0], 0.5).round(3).tolist()
    [1.0, 1.667, nan, 3.0]
    """
    means, average, total = np.array(values, np.float64), 0.0, 0.0
    for index in np.flatnonzero(np.isfinite(means)).tolist():
        average, total = weight * average + (1 - weight) * means[index], weight * total + 1 - weight
        means[index] = average / total
    return means


class Thinned:
    """A series of any length as at most `most` points, in bounded memory: if there are more, neighbouring points are
    merged in pairs. The newest values are also kept individually.

    Args:
      most: the largest number of points, an even number.

    >>> thinned = Thinned(4)
    >>> thinned.add(np.arange(1, 8), np.array([1.0, 3, 5, 5, 9, 1, 2]))
    >>> [column.tolist() for column in (thinned.series().step, thinned.series().mean, thinned.series().high)]
    [[2, 4, 6, 7], [2.0, 5.0, 5.0, 2.0], [3.0, 5.0, 9.0, 2.0]]
    >>> thinned.series(since=5).mean.tolist()
    [9.0, 1.0, 2.0]
    >>> thinned.series(most=2).mean.tolist()
    [3.5, 4.0]
    """

    def __init__(self, most: int = MOST):
        self._most = most
        self._together = 1
        self._count = self._unread = 0
        self._points, self._waiting, self._newest = np.zeros((5, 0)), np.zeros((5, 0)), np.zeros((5, 0))
        self._added: list[Floats] = []

    def __len__(self) -> int:
        return self._count

    def add(self, steps: npt.ArrayLike, values: npt.ArrayLike) -> None:
        """Add the values of the next steps, float64 `[steps]`."""
        self._added.append(np.array([steps, values], np.float64))
        size = self._added[-1].shape[1]
        self._count, self._unread = self._count + size, self._unread + size
        if self._unread >= self._most:  # merging costs as much for one value as for thousands
            self._merge()

    def _merge(self) -> None:
        new = single(*np.concatenate([np.zeros((2, 0)), *self._added], 1))
        self._added, self._unread = [], 0
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

    def series(self, since: float = 0, most: int | None = None) -> Series:
        """Return at most `most` points, or the individual steps from `since` on if they are still kept."""
        self._merge()
        if self._newest.shape[1] and since >= self._newest[0, 0]:
            return series_of(self._newest[:, self._newest[0] >= since], 1)
        points = np.concatenate([self._points, merged(self._waiting, max(1, self._waiting.shape[1]))], 1)
        size = 1 if most is None else group_size(points.shape[1], most)
        return series_of(merged(points, size), size * self._together)
