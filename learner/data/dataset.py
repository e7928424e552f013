"""Data with a length and an index."""

import abc
from collections.abc import Iterator, Mapping
from typing import Any, SupportsIndex

import jax
import numpy as np

from learner.data.choose import item_number
from learner.data.views import Slice, Views
from learner.errors import LearnerError


class Dataset(Views):
    """Items by number: `__len__` and `__getitem__(index)` for 0 ≤ index < len.

    A base class to write one's own with; loaders take whatever has the two methods, and `learner.data.view` makes a
    dataset of it. An item is a dict (or another pytree) of arrays and numbers, unless a batcher makes something of it.
    `__getitem__` is called from other threads, and from other processes where the loader has workers, so it should
    depend on nothing but the index. The methods of `Views`, such as `map` and `split`, make other datasets of it.

    >>> class Squares(Dataset):
    ...     def __len__(self):
    ...         return 5
    ...     def __getitem__(self, index):
    ...         return {"x": np.float32(index), "y": np.float32(index**2)}
    >>> len(Squares()), Squares()[3]["y"].item()
    (5, 9.0)
    >>> [item["x"].item() for item in Squares().slice(1, 4)]
    [1.0, 2.0, 3.0]
    """

    @abc.abstractmethod
    def __len__(self) -> int:
        """How many items there are."""

    @abc.abstractmethod
    def __getitem__(self, index: int) -> Any:
        """The item with that number."""

    def item_at(self, index: int, epoch: int) -> Any:
        """The item in an epoch (from 1): what loaders ask for. Override it where items are others in each epoch."""
        return self[index]

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} items)"

    def _chain(self) -> str:
        """How the `repr` of a view calls the data below it."""
        return repr(self)


class ArrayDataset(Dataset):
    """Arrays in memory, one row per item along their common first axis.

    Args:
      arrays: a dict (or another pytree) of arrays `[rows, ...]` of any dtypes; memory-mapped ones stay on the disk.
        They are not copied: do not change them while they are trained on.

    Raises:
      LearnerError: no arrays, no rows, a scalar among the arrays, or arrays of different lengths.

    >>> data = ArrayDataset({"image": np.zeros((3, 8, 8), np.float32), "label": np.array([4, 0, 7])})
    >>> data
    ArrayDataset(3 rows: image float32 [8, 8], label int64 [])
    >>> data[2]["label"].item()
    7
    """

    def __init__(self, arrays: Any) -> None:
        self._leaves: list[np.ndarray]
        self._structure: Any
        self._leaves, self._structure = jax.tree.flatten(jax.tree.map(np.asarray, arrays))
        self._rows = _common_length(self._structure.unflatten(self._leaves))

    @property
    def arrays(self) -> Any:
        """The NumPy arrays, in the structure they were given in. Those of a view are put together when asked for."""
        return self._structure.unflatten(self._leaves)

    @property
    def nbytes(self) -> int:
        """The size of `arrays`."""
        return sum(leaf.nbytes for leaf in self._leaves)

    def take(self, rows: np.ndarray) -> Any:
        """A batch: copies of the rows with these numbers (0 or more), int `[batch]`, in the structure of the arrays.

        >>> ArrayDataset({"x": np.arange(5) * 10}).take(np.array([4, 0]))
        {'x': array([40,  0])}
        """
        return self._structure.unflatten(self._take(rows))

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, index: SupportsIndex) -> Any:
        row = item_number(index, self._rows, "an ArrayDataset")
        return self._structure.unflatten([leaf[row] for leaf in self._leaves])

    def __repr__(self) -> str:
        return f"ArrayDataset({self._rows} rows: {', '.join(f'{name} {kind}' for name, kind in self._kinds().items())})"

    def _kinds(self) -> dict[str, str]:
        """The fields, and the dtype and shape of each."""
        return {name: f"{array.dtype} {list(array.shape[1:])}" for name, array in _fields(self.arrays)}

    def _take(self, rows: np.ndarray) -> list[np.ndarray]:
        # `take` is the faster one, and would first copy all of an array that is not in one piece.
        return [leaf.take(rows, axis=0) if leaf.flags.c_contiguous else leaf[rows] for leaf in self._leaves]

    def _chosen(self, rows: np.ndarray, told: str) -> Dataset:
        from learner.data.rows import ArrayRows

        if (np.diff(rows) == 1).all():  # a slice, which needs no index
            return self._sliced(slice(int(rows[0]), int(rows[-1]) + 1), told)
        return ArrayRows(self, rows, told)

    def _sliced(self, rows: Slice, told: str) -> Dataset:
        return ArrayDataset(self._structure.unflatten([leaf[rows] for leaf in self._leaves]))

    def _joined(self, others: list[Dataset]) -> Dataset:
        from learner.data.rows import ArrayConcat

        arrays = [other for other in others if isinstance(other, ArrayDataset)]
        return ArrayConcat(self, *arrays) if len(arrays) == len(others) else super()._joined(others)

    def _windowed(self, size: int, stride: int, count: int) -> Dataset:
        def windows(leaf: np.ndarray) -> np.ndarray:
            found = np.lib.stride_tricks.sliding_window_view(leaf, size, axis=0)[::stride]
            return np.moveaxis(found, -1, 1)

        return ArrayDataset(self._structure.unflatten([windows(leaf) for leaf in self._leaves]))


def as_dataset(data: Any) -> Any:
    """What a loader reads: `data` itself where it has a length and an index, an `ArrayDataset` of a dict or an array.

    Raises:
      LearnerError: something else, or nothing in it.

    >>> as_dataset({"x": np.zeros((2, 3))})
    ArrayDataset(2 rows: x float64 [3])
    """
    if isinstance(data, Mapping | np.ndarray | jax.Array):
        return ArrayDataset(dict(data) if isinstance(data, Mapping) else data)
    if isinstance(data, tuple | str | bytes) or not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise LearnerError(
            f"a loader cannot read a {type(data).__name__}: give a dict of arrays, an ArrayDataset, a list of items or "
            "an object with __len__ and __getitem__ (iterables of batches need no loader: fit takes them as they are)"
        )
    if len(data) == 0:
        raise LearnerError(f"the {type(data).__name__} is empty: a loader needs at least one row")
    return data


def field_name(path: tuple[Any, ...]) -> str:
    """How messages call the leaf of a pytree at `path`: `image`, `meta/id`, or `the array` where it is all there is."""
    return jax.tree_util.keystr(path, simple=True, separator="/") or "the array"


def _fields(arrays: Any) -> list[tuple[str, np.ndarray]]:
    return [(field_name(path), array) for path, array in jax.tree_util.tree_leaves_with_path(arrays)]


def _common_length(arrays: Any) -> int:
    fields = _fields(arrays)
    if not fields:
        raise LearnerError("an ArrayDataset got no arrays: give a dict of arrays with a common first axis")
    shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in fields)
    if any(array.ndim == 0 for _, array in fields):
        raise LearnerError(f"an ArrayDataset needs arrays [rows, ...], no scalars and no lists; it got {shapes}")
    lengths = {len(array) for _, array in fields}
    if len(lengths) > 1:
        raise LearnerError(f"an ArrayDataset needs arrays with a common first axis; it got {shapes}")
    if lengths == {0}:
        raise LearnerError(f"an ArrayDataset needs at least one row; it got {shapes}")
    return lengths.pop()
