"""Statistics of the rows of a field, accumulated batch by batch."""

import collections
from typing import Any

import jax.numpy as jnp
import numpy as np

MOST_KINDS = 1000
"""The maximum number of distinct values to count; integers with more are not labels."""


class FieldStatistics:
    """One field of a dataset, row by row.

    Attributes:
      name: the name of the field.
      dtype: the dtype of its arrays, or all their dtypes if they differ.
      shape: the shape of a row, with `None` for a length that differs between rows.
      rows: the number of rows.
      low, high, mean: the minimum, maximum and mean of all finite numbers; `None` without finite numbers, and for
        complex ones.
      nans, infinities: the numbers of values that are not finite. A complex number is NaN or infinite if one of its
        parts is.
      counts: the number of occurrences of each value, if rows are integers, texts or bools; `None` for floats, for
        arrays, and if there are too many values.

    >>> field = FieldStatistics("label")
    >>> field.add(np.array([1, 0, 1]))
    >>> field.low, field.high, field.counts
    (0, 1, {0: 1, 1: 2})
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows = self.nans = self.infinities = 0
        self.low: float | None = None
        self.high: float | None = None
        self.shape: tuple[int | None, ...] | None = None
        self._dtypes: dict[str, None] = {}
        self._sum, self._finite = 0.0, 0
        self._counts: collections.Counter[Any] | None = collections.Counter()

    @property
    def dtype(self) -> str:
        """See the class."""
        return ", ".join(self._dtypes)

    @property
    def mean(self) -> float | None:
        """See the class."""
        return self._sum / self._finite if self._finite else None

    @property
    def counts(self) -> dict[Any, int] | None:
        """See the class."""
        if not self._counts:
            return None
        return dict(sorted(self._counts.items(), key=lambda each: (type(each[0]).__name__, each)))

    def add(self, rows: np.ndarray) -> None:
        """Add rows `[rows, ...]`."""
        kind = rows.dtype.kind
        self._dtypes[str(rows.dtype) if kind not in "US" else "text" if kind == "U" else "bytes"] = None
        self.rows += len(rows)
        self._merge(rows.shape[1:])
        self._count(rows)
        if jnp.issubdtype(rows.dtype, jnp.inexact) or kind in "biu":  # includes bfloat16, which has no kind in NumPy
            self._measure(rows)

    def _merge(self, shape: tuple[int, ...]) -> None:
        if self.shape is None or self.shape == shape:
            self.shape = shape
        elif len(self.shape) == len(shape):
            self.shape = tuple(a if a == b else None for a, b in zip(self.shape, shape, strict=True))
        else:
            self.shape = (None,)

    def _count(self, rows: np.ndarray) -> None:
        if self._counts is None:
            return
        if rows.ndim != 1 or rows.dtype.kind not in "biuUS":
            self._counts = None
            return
        values, counts = np.unique(rows, return_counts=True)
        self._counts.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))
        if len(self._counts) > MOST_KINDS:
            self._counts = None

    def _measure(self, rows: np.ndarray) -> None:
        numbers = rows if rows.dtype.kind in "iuc" else rows.astype(np.float64)
        finite = np.isfinite(numbers)
        if not finite.all():
            self.nans += int(np.isnan(numbers).sum())
            self.infinities += int(np.isinf(numbers).sum())
            numbers = numbers[finite]
        if not numbers.size or rows.dtype.kind == "c":
            return
        low, high = numbers.min().item(), numbers.max().item()
        self.low = low if self.low is None else min(self.low, low)
        self.high = high if self.high is None else max(self.high, high)
        self._sum += float(numbers.sum(dtype=np.float64))
        self._finite += numbers.size
