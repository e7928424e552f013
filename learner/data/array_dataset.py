"""Arrays in memory, and their views that stay arrays: these store row numbers, and gather rows from the arrays."""

import collections
import os
from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex

import jax
import numpy as np

from learner.data.batch_arrays import MOST_NAMED, field_name, refuse_keys, refuse_masked
from learner.data.dataset import Dataset, WindowSpans, adapter
from learner.data.indices import item_number
from learner.data.input_files import refuse_path
from learner.data.label_names import label_names
from learner.errors import LearnerError
from learner.util.text import join_names


class ArrayDataset(Dataset):
    """Arrays in memory, one row per item along their common first axis.

    Args:
      arrays: a dict (or another pytree) of arrays `[rows, ...]` of any dtypes, or a data frame, which is a dict of its
        columns. Memory-mapped arrays stay on the disk. Arrays are not copied: do not change them during training.

    Raises:
      LearnerError: the argument is a path or a lazy frame, or has no arrays, no rows, a scalar, masked values,
        arrays of different lengths, or several columns of one name.

    >>> data = ArrayDataset({"image": np.zeros((3, 8, 8), np.float32), "label": np.array([4, 0, 7])})
    >>> data
    ArrayDataset(3 rows: image float32 [8, 8], label int64 [])
    >>> data[2]["label"].item()
    7
    """

    def __init__(self, arrays: Any) -> None:
        if isinstance(arrays, str | os.PathLike):
            refuse_path(arrays, "ArrayDataset")
        if _is_lazy_frame(arrays):
            raise LearnerError(
                f"a {type(arrays).__name__} has no rows until it is collected: pass frame.collect()",
                code="data-frame-lazy",
            )
        if is_data_frame(arrays):
            arrays = _columns(arrays)
        refuse_keys(arrays)
        for path, leaf in jax.tree_util.tree_leaves_with_path(arrays):
            refuse_masked(field_name(path), leaf)
        self._leaves: list[np.ndarray]
        self._structure: Any
        self._leaves, self._structure = jax.tree.flatten(jax.tree.map(np.asarray, arrays))
        self._rows = _common_length(self._structure.unflatten(self._leaves))

    @property
    def arrays(self) -> Any:
        """Return the NumPy arrays in their structure. A view gathers them at each access."""
        return self._structure.unflatten(self._leaves)

    @property
    def nbytes(self) -> int:
        """Return the size of `arrays`."""
        return sum(leaf.nbytes for leaf in self._leaves)

    def take(self, rows: np.ndarray) -> Any:
        """Return a batch: copies of the rows with these numbers (0 or more), int `[batch]`, in the arrays' structure.

        >>> ArrayDataset({"x": np.arange(5) * 10}).take(np.array([4, 0]))
        {'x': array([40,  0])}
        """
        return self._structure.unflatten(self._take(rows))

    def window_spans(self) -> list[WindowSpans]:
        """Return the spans of each array whose rows are windows that overlap. Addresses in memory number the values."""
        spans = []
        for leaf in self._leaves:
            row, item = (*leaf.strides, 0)[:2]
            # Rows of other arrays lie one behind the other, or item by item in columns.
            if item > 0 and row % item == 0 and 0 < row < leaf.shape[1] * item:
                first, offset = divmod(leaf.__array_interface__["data"][0], item)  # the offset tells columns apart
                spans.append(WindowSpans((item, offset), first + row // item * np.arange(len(leaf)), leaf.shape[1]))
        return spans

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, index: SupportsIndex) -> Any:
        row = item_number(index, self._rows, "an ArrayDataset")
        return self._structure.unflatten([leaf[row] for leaf in self._leaves])

    def __repr__(self) -> str:
        return f"ArrayDataset({self._rows} rows: {', '.join(f'{name} {kind}' for name, kind in self._kinds().items())})"

    def _kinds(self) -> dict[str, str]:
        """Return the dtype and shape of each field, for messages."""
        return {name: f"{array.dtype} {list(array.shape[1:])}" for name, array in _fields(self.arrays)}

    def _take(self, rows: np.ndarray) -> list[np.ndarray]:
        # `take` is faster, but would first copy all of an array that is not contiguous.
        return [leaf.take(rows, axis=0) if leaf.flags.c_contiguous else leaf[rows] for leaf in self._leaves]

    def _view_rows(self, rows: np.ndarray, call: str) -> Dataset:
        if (np.diff(rows) == 1).all():  # a slice, which needs no index
            return self._view_slice(slice(int(rows[0]), int(rows[-1]) + 1), call)
        return ArrayRows(self, rows, call)

    def _view_slice(self, rows: slice, call: str) -> Dataset:
        return self._with_leaves([leaf[rows] for leaf in self._leaves])

    def _view_concat(self, others: list[Dataset]) -> Dataset:
        arrays = [other for other in others if isinstance(other, ArrayDataset)]
        return ArrayConcat([self, *arrays]) if len(arrays) == len(others) else super()._view_concat(others)

    def _view_windows(self, size: int, stride: int, count: int) -> Dataset:
        def windows(leaf: np.ndarray) -> np.ndarray:
            return np.moveaxis(np.lib.stride_tricks.sliding_window_view(leaf, size, axis=0)[::stride], -1, 1)

        return self._with_leaves([windows(leaf) for leaf in self._leaves])

    def _with_leaves(self, leaves: list[np.ndarray]) -> Dataset:
        """Return a dataset of views of the arrays."""
        return ArrayDataset(self._structure.unflatten(leaves))


class _ArrayView(ArrayDataset):
    """Rows of other arrays."""

    @property
    def labels(self) -> Mapping[str, Sequence[str]]:
        """See `View`."""
        return label_names(self)

    def __repr__(self) -> str:
        return f"{self._view_text()}: {len(self)} rows"

    def _view_slice(self, rows: slice, call: str) -> Dataset:
        return ArrayRows(self, np.arange(rows.start, rows.stop, rows.step), call)

    def _view_windows(self, size: int, stride: int, count: int) -> Dataset:
        return Dataset._view_windows(self, size, stride, count)  # windows of copies would need `size` times the memory


class ArrayRows(_ArrayView):
    """Rows of other arrays, by their numbers."""

    def __init__(self, data: ArrayDataset, rows: np.ndarray, call: str) -> None:
        self._structure = data._structure
        self._data, self._index, self._call = data, rows, call
        if isinstance(data, ArrayRows):  # one index is enough, however many views
            self._data, self._index, self._call = data._data, data._index[rows], f"{data._call}{call}"
        self._viewed = (self._data,)
        self._rows = len(rows)

    @property
    def arrays(self) -> Any:
        """See `ArrayDataset`; returns copies."""
        return self.take(np.arange(len(self)))

    @property
    def nbytes(self) -> int:
        """See `ArrayDataset`."""
        return self._data.nbytes // len(self._data) * len(self)

    def window_spans(self) -> list[WindowSpans]:
        """See `ArrayDataset`."""
        return [spans.take(self._index) for spans in self._data.window_spans()]

    def __getitem__(self, index: SupportsIndex) -> Any:
        return self._data[int(self._index[item_number(index, len(self), "an ArrayDataset")])]

    def _view_text(self) -> str:
        return f"{self._data._view_text()}{self._call}"

    def _kinds(self) -> dict[str, str]:
        return self._data._kinds()

    def _take(self, rows: np.ndarray) -> list[np.ndarray]:
        return self._data._take(self._index[rows])


class ArrayConcat(_ArrayView):
    """Rows of several datasets, one after another.

    A batch is gathered from each dataset separately, which takes longer than from one. `ArrayDataset(data.arrays)`
    copies all rows into one.

    Raises:
      LearnerError: the datasets differ in structure, shapes or dtypes.
    """

    def __init__(self, parts: Sequence[ArrayDataset]) -> None:
        self._structure = parts[0]._structure
        self._parts: tuple[ArrayDataset, ...] = tuple(parts)
        self._viewed = self._parts
        self._starts = np.cumsum([0, *map(len, parts)])
        self._rows = int(self._starts[-1])
        for number, part in enumerate(parts[1:], 1):
            _refuse_others(parts[0], part, number)

    @property
    def arrays(self) -> Any:
        """See `ArrayDataset`; returns copies."""
        return jax.tree.map(lambda *arrays: np.concatenate(arrays), *(part.arrays for part in self._parts))

    @property
    def nbytes(self) -> int:
        """See `ArrayDataset`."""
        return sum(part.nbytes for part in self._parts)

    def window_spans(self) -> list[WindowSpans]:
        """See `ArrayDataset`; those of several datasets are not compared."""
        return []

    def __getitem__(self, index: SupportsIndex) -> Any:
        row = item_number(index, len(self), "an ArrayDataset")
        which = int(np.searchsorted(self._starts, row, side="right")) - 1
        return self._parts[which][row - int(self._starts[which])]

    def _view_text(self) -> str:
        return f"{self._parts[0]._view_text()}.concat({', '.join(part._view_text() for part in self._parts[1:])})"

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


def _refuse_others(first: ArrayDataset, other: ArrayDataset, number: int) -> None:
    a, b = first._kinds(), other._kinds()
    names = [name for name in {**a, **b} if a.get(name) != b.get(name)]
    if names or first._structure != other._structure:
        listed = "; ".join(f"{n} is {a.get(n, 'not there')} and {b.get(n, 'not there')}" for n in names)
        raise LearnerError(
            f"concat needs arrays of the same names, shapes and dtypes; in dataset 0 and dataset {number} "
            f"{listed or f'the structures are {first._structure} and {other._structure}'}",
            code="data-concat-differs",
            number=number,
        )


@adapter
def adapt_arrays(data: Any) -> Any:
    """Return a dict of arrays, an array, a data frame or one of its columns as an `ArrayDataset`, and everything else
    unchanged.
    """
    is_column = hasattr(data, "to_numpy") and hasattr(data, "__array__") and not isinstance(data, Dataset)
    if isinstance(data, Mapping | np.ndarray | jax.Array) or is_data_frame(data) or is_column:
        return ArrayDataset(dict(data) if isinstance(data, Mapping) else data)
    return data


def is_data_frame(data: Any) -> bool:
    """Return True for a data frame of pandas or polars, or a table of PyArrow, without importing these packages. This
    includes lazy frames, which `ArrayDataset` rejects.
    """
    if _is_lazy_frame(data):
        return True
    frame = hasattr(data, "to_numpy") and hasattr(data, "columns")
    return hasattr(data, "__getitem__") and (frame or (hasattr(data, "column_names") and hasattr(data, "to_pydict")))


def _columns(frame: Any) -> dict[str, np.ndarray]:
    """Return the columns of a data frame by name."""
    names = list(frame.column_names if hasattr(frame, "column_names") else frame.columns)
    texts = list(map(str, names))
    if len({*texts}) < len(texts):
        name, number = collections.Counter(texts).most_common(1)[0]
        raise LearnerError(
            f"the {type(frame).__name__} has {number} columns with the name {name!r}, which would be one field: rename "
            "them",
            code="data-columns-twice",
            name=name,
        )
    return {text: np.asarray(frame[name]) for text, name in zip(texts, names, strict=True)}


def _is_lazy_frame(data: Any) -> bool:
    """Return True for a lazy frame of polars."""
    return hasattr(data, "collect") and hasattr(data, "collect_schema")


def _fields(arrays: Any) -> list[tuple[str, np.ndarray]]:
    return [(field_name(path), array) for path, array in jax.tree_util.tree_leaves_with_path(arrays)]


def _common_length(arrays: Any) -> int:
    fields = _fields(arrays)
    if not fields:
        raise LearnerError(
            "an ArrayDataset got no arrays: give a dict of arrays with a common first axis", code="data-arrays-missing"
        )
    shapes = join_names([f"{name} {list(array.shape)}" for name, array in fields], MOST_NAMED)
    if any(array.ndim == 0 for _, array in fields):
        raise LearnerError(
            f"an ArrayDataset needs arrays [rows, ...], not scalars or lists; it got {shapes}; convert a list with "
            "np.asarray(values)",
            code="data-arrays-type",
        )
    lengths = {len(array) for _, array in fields}
    if len(lengths) > 1:
        raise LearnerError(
            f"an ArrayDataset needs arrays with a common first axis; it got {shapes}", code="data-arrays-axes-differ"
        )
    if lengths == {0}:
        raise LearnerError(f"an ArrayDataset needs at least one row; it got {shapes}", code="data-dataset-empty")
    return lengths.pop()
