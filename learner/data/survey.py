"""Data of any kind, batch by batch, for whoever only looks at it."""

import contextlib
import dataclasses
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from learner.data.dataset import field_name
from learner.data.lazy import Augmented, Mapped, inner_of
from learner.data.loader import DataLoader, DataLoaderBuilder
from learner.data.parts import PerProcess
from learner.data.source import Source, source_of
from learner.data.sources.columns import Table
from learner.data.sources.database import SQLiteTable
from learner.data.sources.foreign import ForeignDataset, adapt, as_array, as_dataset
from learner.data.sources.images import ImageFolder
from learner.errors import LearnerError

AT_ONCE = 64  # items of a dataset that are looked at together
LOOKED_AT = 8  # to find out whether a view changes a field

Batches = Generator[dict[str, np.ndarray], None, None]


@dataclasses.dataclass(frozen=True)
class Survey:
    """Data that is about to be looked at.

    Attributes:
      name: what kind of data it is.
      batches: of one epoch, each a dict of arrays `[rows, ...]` by field.
      num_rows, num_batches: in an epoch; `None` where that is not known. Datasets have no batches.
      labels: the names of labels by field, where a source of ours knows them.
    """

    name: str
    batches: Batches
    num_rows: int | None
    num_batches: int | None
    labels: Mapping[str, Sequence[str]]


def survey(data: Any, split: str) -> Survey:
    """How to look at data: at the batches of an epoch, or at the items of a dataset, some of them together.

    Raises:
      LearnerError: it is no data, or can be read only once.

    >>> found = survey({"x": np.zeros((3, 2))}, "train")
    >>> found.name, found.num_rows, [batch["x"].shape for batch in found.batches]
    ('ArrayDataset', 3, [(3, 2)])
    """
    data = adapt(data)
    if isinstance(data, DataLoader):
        batches = _batches(source_of(data, split))
        return Survey(type(data.dataset).__name__, batches, data.num_items(), len(data), _labels(data.dataset))
    if _has_items(data):
        dataset = as_dataset(data)
        return Survey(type(dataset).__name__, _items(dataset), len(dataset), None, _labels(dataset))
    source = source_of(data, split)
    if not source.repeats:
        raise LearnerError(
            f"the {split} data is an iterator (or generator) that can be read once, and a report would use it up: pass "
            "a loader, a list, or the generator function itself",
            code="data-iterator-used-up",
            split=split,
        )
    name = type(data.data if isinstance(data, PerProcess) else data).__name__
    return Survey(name, _batches(source), None, source.batches, {})


def _has_items(data: Any) -> bool:
    """Whether data is a dataset, rather than batches: lists and Grain's datasets hold those."""
    if isinstance(data, list | tuple | DataLoaderBuilder | PerProcess):
        return False
    grain = any(base.__module__.partition(".")[0] == "grain" for base in type(data).__mro__)
    return hasattr(data, "__getitem__") and hasattr(data, "__len__") and not grain


def _items(dataset: Any) -> Batches:
    """Items as batches: of some of them at once where they are alike."""
    for first in range(0, len(dataset), AT_ONCE):
        items = [_leaves(dataset[index]) for index in range(first, min(first + AT_ONCE, len(dataset)))]
        kinds = {tuple((name, leaf.shape, leaf.dtype) for name, leaf in item.items()) for item in items}
        for group in [items] if len(kinds) == 1 else [[item] for item in items]:
            yield {name: np.stack([item[name] for item in group]) for name in group[0]}


def _leaves(item: Any) -> dict[str, np.ndarray]:
    made = jax.tree.map(as_array, item, is_leaf=lambda x: isinstance(x, list))
    return {field_name(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(made)}


def _batches(source: Source) -> Batches:
    from learner.data.batch_arrays import batch_arrays

    try:
        for batch in source.open(1):
            arrays = batch_arrays(batch, source.split)
            yield {field_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(arrays)}
    finally:
        source.close()


def _labels(dataset: Any) -> Mapping[str, Sequence[str]]:
    """The names of labels, also of those that views choose, join, or leave as they are."""
    if isinstance(dataset, ImageFolder):
        return {"label": dataset.classes}
    if isinstance(dataset, Table | SQLiteTable):
        return dataset.labels
    if isinstance(dataset, ForeignDataset):
        return dataset.labels
    below = inner_of(dataset)
    found = [{field: tuple(names) for field, names in _labels(each).items()} for each in below]
    if not found or not found[0]:
        return {}
    same = {field: names for field, names in found[0].items() if all(each.get(field) == names for each in found)}
    if isinstance(dataset, Mapped | Augmented):
        return {field: names for field, names in same.items() if _is_kept(field, dataset, below[0])}
    return same


def _is_kept(field: str, dataset: Any, below: Any) -> bool:
    """Whether a function of the user's leaves a field as it is, as far as some items show."""
    with contextlib.suppress(Exception):  # what it raises is told when the items are looked at
        pairs = [(_leaves(dataset[i]), _leaves(below[i])) for i in range(min(len(dataset), LOOKED_AT))]
        return all(np.array_equal(after[field], before[field]) for after, before in pairs)
    return False
