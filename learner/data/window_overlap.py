"""Windows of a series that two splits share, as after a random split of overlapping windows."""

from typing import Any

import numpy as np

from learner.data.array_dataset import ArrayDataset
from learner.data.dataset import View

MOST_ROWS = 10_000_000  # which take 0.7 s


def contained_windows(train: Any, valid: Any) -> int:
    """Return the number of rows of `valid` that are windows whose values are all in windows of `train`, too.

    Windows of arrays share memory, so equal addresses identify equal values; other windows are compared by the items of
    the dataset below them. Functions of windows, such as augmentations, count as their windows. Windows that begin in
    the training part, to forecast the values after it, do not count. Other data has no such rows. Data of more than 10
    million rows is not compared.

    >>> series = ArrayDataset(np.arange(100.0))
    >>> len(series.windows(10, stride=1)), contained_windows(*series.windows(10, stride=1).split([0.8, 0.2], seed=0))
    (91, 17)
    >>> contained_windows(series.slice(0, 80).windows(10, stride=1), series.slice(75, 100).windows(10, stride=1))
    0
    """
    if not all(isinstance(data, ArrayDataset | View) for data in (train, valid)):
        return 0
    if max(len(train), len(valid)) > MOST_ROWS:
        return 0
    counts = (
        _contained(starts, size, others, other_size)
        for (series, starts, size), (other_series, others, other_size) in zip(
            train.window_spans(), valid.window_spans(), strict=False
        )
        if series == other_series
    )
    return max(counts, default=0)


def _contained(starts: np.ndarray, size: int, others: np.ndarray, other_size: int) -> int:
    """Return the number of other spans that lie within the union of the spans."""
    starts = np.sort(starts)  # NumPy 2.4 takes 18 times as long for `np.unique` of many, 11 s for 8 million
    gaps = np.flatnonzero(np.diff(starts) > size)
    firsts, ends = starts[np.r_[0, gaps + 1]], starts[np.r_[gaps, len(starts) - 1]] + size
    runs = np.searchsorted(firsts, others, side="right") - 1
    return int(((runs >= 0) & (others + other_size <= ends[runs])).sum())
