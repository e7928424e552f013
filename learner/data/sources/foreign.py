"""Adapters for data of other libraries, recognized without importing them.

    scikit-learn's bunches        `load_digits()`: the arrays with a row for each example
    Hugging Face datasets         `load_dataset(...)["train"]`: items are dicts by column; streamed datasets in batches
    PyTorch datasets              with `__len__` and `__getitem__`: items are often tuples
    `tf.data`                     batches, from `as_numpy_iterator()`

Iterables of batches, such as PyTorch's and Grain's loaders and generators, need no adapter (`learner.data.source`).
"""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from learner.data.array_dataset import ArrayDataset
from learner.data.batch_arrays import as_array, is_array
from learner.data.dataset import Dataset, adapter
from learner.data.hugging_face import is_stream
from learner.errors import LearnerError, near


@adapter
def adapt(data: Any) -> Any:
    """Return data of other libraries as a `Dataset` or batches of NumPy arrays, and everything else unchanged.

    Raises:
      LearnerError: the data contains several datasets, one of which must be chosen; or it is a bunch without arrays.
    """
    libraries = {base.__module__.partition(".")[0] for base in type(data).__mro__}
    if "sklearn" in libraries and isinstance(data, Mapping):
        return _bunch(data)
    if "datasets" in libraries and isinstance(data, Mapping):
        splits = ", ".join(map(repr, data))
        raise LearnerError(
            f"the {type(data).__name__} has the splits {splits}: pass one of them, as data[name]",
            code="data-split-missing",
        )
    indexed = hasattr(data, "__len__") and hasattr(data, "__getitem__")
    if indexed and libraries & {"datasets", "torch"} and not isinstance(data, Dataset):
        return ForeignDataset(data)
    if callable(getattr(data, "as_numpy_iterator", None)):
        return NumpyBatches(data)
    return _in_numpy(data) if is_stream(data) else data


class ForeignDataset(Dataset):
    """A dataset of PyTorch or Hugging Face, or any object with a length and an index, with NumPy arrays in its items.

    Loaders create one automatically; create it yourself to select or name fields.

    Args:
      dataset: the data.
      fields: names for the parts of items that are tuples or lists, in order; or the fields of dict items to keep.
        Default: items keep their form.

    Attributes:
      labels: the names of the labels of a Hugging Face dataset, by field.

    Raises:
      LearnerError: the dataset has no length or no index, a name is given twice, or (when an item is read) fields are
        missing.

    >>> pairs = ForeignDataset([([1.0, 2.0], 0), ([3.0, 4.0], 1)], fields=["x", "label"])
    >>> pairs[1]
    {'label': 1, 'x': array([3., 4.])}
    """

    def __init__(self, dataset: Any, fields: list[str] | None = None) -> None:
        if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            raise LearnerError(
                f"ForeignDataset: a {type(dataset).__name__} has no length and no index",
                code="data-foreign-not-indexable",
            )
        if fields is not None and len({*fields}) < len(fields):
            raise LearnerError(
                f"the fields of ForeignDataset are {fields}: give each name once", code="data-fields-value"
            )
        self._data = _in_numpy(dataset)
        self.name = type(dataset).__name__
        self._fields = fields
        kinds = getattr(dataset, "features", None)
        named = kinds.items() if isinstance(kinds, Mapping) else ()
        self.labels = {
            name: tuple(kind.names) for name, kind in named if isinstance(getattr(kind, "names", None), list)
        }

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> Any:
        item = self._data[int(index)]
        return _in_arrays(item if self._fields is None else self._named(item))

    def _named(self, item: Any) -> dict[str, Any]:
        assert self._fields is not None
        if isinstance(item, Mapping):
            for field in self._fields:
                if field not in item:
                    raise LearnerError(
                        f"items of {self.name} have no {field!r}: {near(field, list(map(str, item)))}",
                        code="data-field-missing",
                        field=field,
                    )
            return {field: item[field] for field in self._fields}
        if not isinstance(item, tuple | list) or len(item) != len(self._fields):
            parts = f"{len(item)} parts" if isinstance(item, tuple | list) else f"one part, a {type(item).__name__}"
            raise LearnerError(
                f"items of {self.name} have {parts}; {len(self._fields)} are named: {self._fields}",
                code="data-foreign-parts-differ",
            )
        return dict(zip(self._fields, item, strict=True))

    def __repr__(self) -> str:
        return f"ForeignDataset({len(self)} items of {self.name})"


def _in_arrays(item: Any) -> Any:
    """Return an item with NumPy arrays, and with dicts in place of other mappings."""
    return jax.tree.map(
        lambda x: _in_arrays(dict(x)) if isinstance(x, Mapping) else as_array(x), item, is_leaf=is_array
    )


class NumpyBatches:
    """Batches of NumPy arrays from data with `as_numpy_iterator`, such as `tf.data`, with a new iterator per epoch."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def __iter__(self) -> Any:
        return iter(self._data.as_numpy_iterator())

    def __len__(self) -> int:
        return len(self._data)


def _in_numpy(dataset: Any) -> Any:
    """Set a Hugging Face dataset to return NumPy arrays rather than lists, unless the user has set a format."""
    if is_stream(dataset):
        has_lists = getattr(dataset, "_formatting", None) is None
    else:
        settings = getattr(dataset, "format", None)
        has_lists = isinstance(settings, Mapping) and settings.get("type") is None
    return dataset.with_format("numpy") if has_lists and callable(getattr(dataset, "with_format", None)) else dataset


def _bunch(data: Mapping[str, Any]) -> ArrayDataset:
    """Return the arrays of a scikit-learn bunch that have as many rows as `data`."""
    rows = getattr(data.get("data"), "shape", (None,))[0]
    if rows is None:
        raise LearnerError(
            f"the Bunch has no array `data` (it has {', '.join(data)}): convert it to a dict of arrays",
            code="data-bunch-without-data",
        )
    table = {
        name: np.asarray(column)
        for name, column in data.items()
        if getattr(column, "shape", ())[:1] == (rows,) and not name.endswith("_names") and name != "frame"
    }
    for name, column in table.items():
        if column.dtype.kind not in "biuf":
            raise LearnerError(
                f"{name!r} of the Bunch has dtype {column.dtype}: convert it to a dict of numeric arrays",
                code="data-bunch-dtype",
                name=name,
            )
    return ArrayDataset(table)
