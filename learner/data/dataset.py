"""Data with a length and an index."""

import abc
import operator
from collections.abc import Mapping
from typing import Any, SupportsIndex

import jax
import numpy as np

from learner.errors import LearnerError


class Dataset(abc.ABC):
    """Items by number: `__len__` and `__getitem__(index)` for 0 ≤ index < len.

    A base class to write one's own with; loaders take whatever has the two methods. An item is a dict (or another
    pytree) of arrays and numbers, unless a batcher makes something of it. `__getitem__` is called from other threads,
    and from other processes where the loader has workers, so it should depend on nothing but the index.

    >>> class Squares(Dataset):
    ...     def __len__(self):
    ...         return 5
    ...     def __getitem__(self, index):
    ...         return {"x": np.float32(index), "y": np.float32(index**2)}
    >>> len(Squares()), Squares()[3]["y"].item()
    (5, 9.0)
    """

    @abc.abstractmethod
    def __len__(self) -> int:
        """How many items there are."""

    @abc.abstractmethod
    def __getitem__(self, index: int) -> Any:
        """The item with that number."""


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
        self._rows = _common_length(self.arrays)

    @property
    def arrays(self) -> Any:
        """The NumPy arrays, in the structure they were given in."""
        return self._structure.unflatten(self._leaves)

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, index: SupportsIndex) -> Any:
        row = operator.index(index)
        if not -self._rows <= row < self._rows:
            raise IndexError(f"row {row} of an ArrayDataset of {self._rows} rows")
        return self._structure.unflatten([leaf[row] for leaf in self._leaves])

    def __repr__(self) -> str:
        fields = (f"{name} {array.dtype} {list(array.shape[1:])}" for name, array in _fields(self.arrays))
        return f"ArrayDataset({self._rows} rows: {', '.join(fields)})"


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
