"""Fingerprints of data: facts that distinguish data sets, batch sizes and orders.

They are JSON values, need no pass over data that is not in memory, and are equal in every process. A checksum covers
arrays in memory.
"""

import functools
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from learner.data.batch_arrays import as_array, as_dicts, digest_of, field_name
from learner.data.dataset import Dataset

ADDRESS = re.compile(r" at 0x[0-9a-f]{6,}>")
LONGEST = 1000  # characters of a description
SAMPLE_BYTES = 2**24  # of the rows in a checksum, which takes about 20 ms
MOST_ELEMENTS = 100_000  # of a list in a digest
LARGE_BYTES, FEW_ROWS = 2**30, 64  # arrays that may be mapped files, where each row may be a page to read


def fields_of(batch: Any, fixed: bool = True) -> dict[str, str]:
    """Return the dtype and the shape of a row for each field of a batch.

    Args:
      batch: a pytree of arrays `[rows, ...]`.
      fixed: True if every first batch has these shapes; otherwise the lengths of axes are open.

    >>> fields_of({"x": np.zeros((4, 8, 8), np.float32), "y": np.zeros(4, np.int32)})
    {'x': 'float32 [8, 8]', 'y': 'int32 []'}
    """
    fields = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(batch):
        array = np.asarray(as_array(leaf))
        shape = ", ".join(str(length) if fixed else "?" for length in array.shape[1:])
        fields[field_name(path)] = f"{array.dtype} [{shape}]"
    return fields


def describe_dataset(dataset: Any) -> str:
    """Return the description of a dataset: for ours, including its views and their seeds; for others, the class.

    >>> from learner.data import ArrayDataset
    >>> describe_dataset(ArrayDataset({"x": np.arange(10)}).shuffle(seed=3))
    'ArrayDataset(10 rows: x int64 []).shuffle(seed=3)'
    """
    if not isinstance(dataset, Dataset):
        return type(dataset).__qualname__
    text = dataset._view_text()
    return type(dataset).__qualname__ if ADDRESS.search(text) else text[:LONGEST]


def name_of(function: Any) -> str:
    """Return the name of a function, of a partial's function, of a generator, or of an object's class.

    >>> name_of(functools.partial(describe_dataset)), name_of([1, 2])
    ('describe_dataset', 'list')
    """
    if isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def describe_iterable(data: Any) -> dict[str, Any]:
    """Return the facts of an iterable of batches, read from attributes with PyTorch's names, or from lengths.

    Seeds and states of random generators are not included: a checkpoint restores them (`learner.data.iterator_state`).

    >>> describe_iterable([{"x": np.zeros(4)}, {"x": np.zeros(3)}])["rows"]
    7
    """
    listed = isinstance(data, list | tuple)
    sampler = type(_attribute(data, "sampler")).__qualname__
    orders = {"SequentialSampler": "as given", "RandomSampler": "shuffled"}
    size, drop_last = _attribute(data, "batch_size"), _attribute(data, "drop_last")
    lengths = _lengths(data) if listed else []
    return {
        "class": name_of(data),
        "rows": sum(lengths) if lengths else _length(_attribute(data, "dataset")),
        "batch_size": lengths[0] if lengths else size if type(size) is int else None,
        "drop_last": drop_last if type(drop_last) is bool else None,
        "order": "as given" if listed else orders.get(sampler),
        "sampler": None if sampler == "NoneType" else sampler,
        **({"contents": _contents(data)} if lengths else {}),
    }


def _contents(batches: Sequence[Any]) -> str | None:
    """Return the checksum of the rows of batches; see `sampled`."""
    nbytes = sum(getattr(x, "nbytes", 0) for x in jax.tree.leaves(as_dicts(batches)))
    chosen = sampled(len(batches), nbytes // len(batches))
    return checksum_text(digest_of([batches[index] for index in chosen]))


def sampled(rows: int, nbytes: int) -> np.ndarray:
    """Return the numbers of the rows in a checksum: all rows, or evenly spaced ones of at most `SAMPLE_BYTES`, but at
    least 3; of large data only a few.

    Args:
      rows: the number of rows.
      nbytes: the size of a row.

    >>> sampled(5, 8).tolist(), sampled(5, 2**23).tolist()
    ([0, 1, 2, 3, 4], [0, 2, 4])
    """
    most = min(rows, max(3, SAMPLE_BYTES // max(1, nbytes)))
    most = min(most, FEW_ROWS) if rows * nbytes > LARGE_BYTES else most
    return np.linspace(0, rows - 1, most).astype(np.intp)


def attributes_digest(data: Any) -> dict[str, Hashable]:
    """Return a digest of each attribute of an object, and of the elements of a list, for `is_changed`. None stands for
    what may be filled later, such as a file. Dicts may be caches, which any read fills.
    """
    attributes = {"": data, **getattr(data, "__dict__", {})}
    return {f"{name}{place}": digest for name, x in attributes.items() for place, digest in _digests(x)}


def _digests(value: Any) -> Iterator[tuple[str, Hashable]]:
    if isinstance(value, bool | int | float | str | None):
        yield "", value
    elif type(value) is np.ndarray and value.dtype != object and value.ndim:
        chosen = sampled(len(value), value.nbytes // max(1, len(value)))
        yield "", (value.shape, digest_of(value[chosen]) if len(value) else None)
    elif type(value) is list:
        yield "", len(value)
        for place, x in enumerate(value[:MOST_ELEMENTS]):
            yield f"[{place}]", x if isinstance(x, bool | int | float | str | None) else id(x)
    else:
        yield "", id(value)


def is_changed(before: Mapping[str, Hashable], after: Mapping[str, Hashable]) -> bool:
    """Return True if a digest differs. New ones, and those that were None, do not count.

    >>> data = type("Data", (), {})()
    >>> data.rows, data.file = np.arange(3), None
    >>> before = attributes_digest(data)
    >>> data.file, data.cache = open, 3
    >>> is_changed(before, attributes_digest(data))
    False
    >>> data.rows[0] = 7
    >>> is_changed(before, attributes_digest(data))
    True
    """
    return any(old is not None and name in after and after[name] != old for name, old in before.items())


def checksum_text(digest: int | None) -> str | None:
    """Return a checksum as text for JSON."""
    return None if digest is None else f"{digest:08x}"


def _lengths(batches: Sequence[Any]) -> list[int]:
    """Return the rows of each batch, or an empty list if one has no first axis."""
    lengths = []
    for batch in batches:
        leaves = jax.tree.leaves(as_dicts(batch))
        shape = np.shape(leaves[0]) if leaves and hasattr(leaves[0], "shape") else ()
        if not shape:
            return []
        lengths.append(int(shape[0]))
    return lengths


def _length(data: Any) -> int | None:
    try:
        return len(data)
    except Exception:  # a user's method, which nothing else needs
        return None


def _attribute(data: Any, name: str) -> Any:
    try:
        return getattr(data, name, None)
    except Exception:  # a property of the user's
        return None
