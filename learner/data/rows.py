"""Views of arrays in memory that are arrays in memory again: they hold row numbers, and gather from those below."""

from typing import Any, SupportsIndex

import jax
import numpy as np

from learner.data.choose import item_number
from learner.data.dataset import ArrayDataset, Dataset
from learner.errors import LearnerError


class ArrayRows(ArrayDataset):
    """Rows of other arrays, by their numbers."""

    def __init__(self, data: ArrayDataset, rows: np.ndarray, told: str) -> None:
        self._structure = data._structure
        self._data, self._index, self._told = data, rows, told
        if isinstance(data, ArrayRows):  # one index is enough, however many views
            self._data, self._index, self._told = data._data, data._index[rows], f"{data._told}{told}"
        self._rows = len(rows)

    @property
    def inner(self) -> tuple[ArrayDataset, ...]:
        """What the rows are of."""
        return (self._data,)

    @property
    def arrays(self) -> Any:
        """See `ArrayDataset`; copies."""
        return self.take(np.arange(len(self)))

    @property
    def nbytes(self) -> int:
        """See `ArrayDataset`."""
        return self._data.nbytes // len(self._data) * len(self)

    def __getitem__(self, index: SupportsIndex) -> Any:
        return self._data[int(self._index[item_number(index, len(self), "an ArrayDataset")])]

    def __repr__(self) -> str:
        return f"{self._chain()}: {len(self)} rows"

    def _chain(self) -> str:
        return f"{self._data._chain()}{self._told}"

    def _kinds(self) -> dict[str, str]:
        return self._data._kinds()

    def _take(self, rows: np.ndarray) -> list[np.ndarray]:
        return self._data._take(self._index[rows])

    def _sliced(self, rows: slice, told: str) -> Dataset:
        return ArrayRows(self, np.arange(rows.start, rows.stop, rows.step), told)

    def _windowed(self, size: int, stride: int, count: int) -> Dataset:
        return super(ArrayDataset, self)._windowed(size, stride, count)


class ArrayConcat(ArrayDataset):
    """Rows of several datasets, one after another.

    A batch is gathered from each by itself, which takes longer than from one; `ArrayDataset(data.arrays)` is one copy.

    Raises:
      LearnerError: they have other structures, shapes or dtypes.
    """

    def __init__(self, *parts: ArrayDataset) -> None:
        self._structure = parts[0]._structure
        self._parts = parts
        self._starts = np.cumsum([0, *map(len, parts)])
        self._rows = int(self._starts[-1])
        for number, part in enumerate(parts[1:], 1):
            _refuse_others(parts[0], part, number)

    @property
    def inner(self) -> tuple[ArrayDataset, ...]:
        """Whose rows they are."""
        return self._parts

    @property
    def arrays(self) -> Any:
        """See `ArrayDataset`; copies."""
        return jax.tree.map(lambda *arrays: np.concatenate(arrays), *(part.arrays for part in self._parts))

    @property
    def nbytes(self) -> int:
        """See `ArrayDataset`."""
        return sum(part.nbytes for part in self._parts)

    def __getitem__(self, index: SupportsIndex) -> Any:
        row = item_number(index, len(self), "an ArrayDataset")
        which = int(np.searchsorted(self._starts, row, side="right")) - 1
        return self._parts[which][row - int(self._starts[which])]

    def __repr__(self) -> str:
        return f"{self._chain()}: {len(self)} rows"

    def _chain(self) -> str:
        return f"{self._parts[0]._chain()}.concat({', '.join(part._chain() for part in self._parts[1:])})"

    def _kinds(self) -> dict[str, str]:
        return self._parts[0]._kinds()

    def _take(self, rows: np.ndarray) -> list[np.ndarray]:
        which = np.searchsorted(self._starts, rows, side="right") - 1
        order = np.argsort(which, kind="stable")
        ends = np.cumsum(np.bincount(which, minlength=len(self._parts)))
        pieces: list[list[np.ndarray]] = []
        for part, start, at in zip(self._parts, self._starts, np.split(order, ends[:-1]), strict=False):
            if len(at) == len(rows):
                return part._take(rows - start)
            pieces.append(part._take(rows[at] - start) if len(at) else [])
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return [np.concatenate(leaves).take(back, axis=0) for leaves in zip(*filter(None, pieces), strict=True)]

    def _sliced(self, rows: slice, told: str) -> Dataset:
        return ArrayRows(self, np.arange(rows.start, rows.stop, rows.step), told)

    def _windowed(self, size: int, stride: int, count: int) -> Dataset:
        return super(ArrayDataset, self)._windowed(size, stride, count)


def _refuse_others(first: ArrayDataset, other: ArrayDataset, number: int) -> None:
    a, b = first._kinds(), other._kinds()
    names = [name for name in {**a, **b} if a.get(name) != b.get(name)]
    if names or first._structure != other._structure:
        listed = "; ".join(f"{n} is {a.get(n, 'not there')} and {b.get(n, 'not there')}" for n in names)
        raise LearnerError(
            f"concat needs arrays of the same names, shapes and dtypes; in dataset 0 and dataset {number} "
            f"{listed or f'the structures are {first._structure} and {other._structure}'}"
        )
