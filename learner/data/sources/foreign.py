"""Data of other libraries, known by what they can do: none of them is imported here.

    scikit-learn's bunches        `load_digits()`: the arrays that have a row for each example
    Hugging Face datasets         `load_dataset(...)["train"]`: items are dicts by column
    PyTorch datasets              with `__len__` and `__getitem__`: items are often tuples
    `tf.data`                     batches, from `as_numpy_iterator()`

PyTorch's and Grain's loaders, generators and all else that gives batches is read as it is (`learner.data.source`).
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from learner.data.dataset import ArrayDataset, Dataset
from learner.data.dataset import as_dataset as own_dataset
from learner.errors import LearnerError, near


def as_dataset(data: Any) -> Any:
    """Return data of other libraries as a `Dataset`, a dict or an array as an `ArrayDataset`, and all else that has a
    length and an index as it is.

    Raises:
      LearnerError: none of these, or nothing in it.

    >>> from sklearn.datasets import load_digits
    >>> as_dataset(load_digits())
    ArrayDataset(1797 rows: data float64 [64], images float64 [8, 8], target int64 [])
    """
    return own_dataset(adapt(data))


def adapt(data: Any) -> Any:
    """Return data of other libraries as a `Dataset` or batches of NumPy arrays, and everything else unchanged.

    Raises:
      LearnerError: several datasets in one, of which one has to be chosen; a bunch without arrays.
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
    return data


class ForeignDataset(Dataset):
    """A dataset of PyTorch or Hugging Face, or anything with a length and an index, with NumPy arrays in its items.

    Loaders make one by themselves; say it to choose or to name fields.

    Args:
      dataset: what is read.
      fields: names for the parts of items that are tuples or lists, in their order; or which ones to keep of items that
        are dicts. Default: items keep their form.

    Attributes:
      labels: the names of the labels of a Hugging Face dataset, by field.

    Raises:
      LearnerError: no length and no index, or (when an item is read) fields that it has not.

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
        self._data = _in_numpy(dataset)
        self._name = type(dataset).__name__
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
        return jax.tree.map(as_array, item if self._fields is None else self._named(item), is_leaf=_is_array)

    def _named(self, item: Any) -> dict[str, Any]:
        assert self._fields is not None
        if isinstance(item, Mapping):
            for field in self._fields:
                if field not in item:
                    raise LearnerError(
                        f"items of {self._name} have no {field!r}: {near(field, list(map(str, item)))}",
                        code="data-field-missing",
                        field=field,
                    )
            return {field: item[field] for field in self._fields}
        if not isinstance(item, tuple | list) or len(item) != len(self._fields):
            parts = f"{len(item)} parts" if isinstance(item, tuple | list) else f"one part, a {type(item).__name__}"
            raise LearnerError(
                f"items of {self._name} have {parts}; {len(self._fields)} are named: {self._fields}",
                code="data-foreign-parts-differ",
            )
        return dict(zip(self._fields, item, strict=True))

    def __repr__(self) -> str:
        return f"ForeignDataset({len(self)} items of {self._name})"


class NumpyBatches:
    """Batches of NumPy arrays from what has `as_numpy_iterator`, as `tf.data` has; anew in each epoch."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def __iter__(self) -> Any:
        return iter(self._data.as_numpy_iterator())

    def __len__(self) -> int:
        return len(self._data)


def as_array(value: Any) -> Any:
    """The leaf of an item or of a batch as NumPy has it: tensors, images and lists of numbers as arrays.

    Numbers, texts and bytes stay as they are, and so does what NumPy cannot read. A tensor of PyTorch may need its
    gradient, and may be on another device.

    >>> as_array([1, 2]), as_array(3), as_array("text")
    (array([1, 2]), 3, 'text')
    """
    if isinstance(value, np.ndarray | np.generic | int | float | complex | str | bytes | None):
        return value
    if callable(getattr(value, "detach", None)) and callable(getattr(value, "numpy", None)):
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":  # which NumPy lacks
            return value.float().numpy().astype(jnp.bfloat16)
        return value.numpy()
    if _is_array(value):
        return np.asarray(value)
    return value


def _is_array(value: Any) -> bool:
    """Return True if NumPy can make an array of it, by a protocol or from a list of numbers."""
    if isinstance(value, list):
        return bool(value) and not isinstance(value[0], dict | str | bytes) and _regular(value)
    return hasattr(value, "__array__") or hasattr(value, "__array_interface__")


def _regular(value: list[Any]) -> bool:
    try:
        return np.array(value).dtype.kind in "biufc"
    except (ValueError, TypeError, RuntimeError):
        return False


def _in_numpy(dataset: Any) -> Any:
    """A Hugging Face dataset gives NumPy arrays rather than lists, unless its user has said what it gives."""
    said = getattr(dataset, "format", None)
    if isinstance(said, Mapping) and said.get("type") is None and callable(getattr(dataset, "with_format", None)):
        return dataset.with_format("numpy")
    return dataset


def _bunch(data: Mapping[str, Any]) -> ArrayDataset:
    """The arrays of one of scikit-learn's bunches with as many rows as `data`."""
    rows = getattr(data.get("data"), "shape", (None,))[0]
    if rows is None:
        raise LearnerError(
            f"the Bunch has no array `data` (it has {', '.join(data)}): make a dict of arrays of it",
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
                f"{name!r} of the Bunch is of {column.dtype}: make a dict of arrays of numbers of it",
                code="data-bunch-dtype",
                name=name,
            )
    return ArrayDataset(table)
