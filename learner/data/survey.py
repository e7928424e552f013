"""Data of any kind, batch by batch, for reports."""

import contextlib
import dataclasses
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from learner.data.abstract_source import Source
from learner.data.batch_arrays import as_array, as_dicts, batch_arrays, field_name
from learner.data.dataset import Augmented, Mapped, as_dataset, inner_of
from learner.data.label_names import is_source, source_labels
from learner.data.loader import DataLoader, DataLoaderBuilder
from learner.data.mixture import Mixture, mixtures_in
from learner.data.sharding import PerProcess
from learner.data.source import source_of
from learner.data.sources.foreign import adapt
from learner.errors import LearnerError

AT_ONCE = 64  # items of a dataset per batch
COMPARED = 8  # items compared to find out if a view changes a field

Batches = Generator[dict[str, np.ndarray], None, None]


@dataclasses.dataclass(frozen=True)
class Survey:
    """Data to report on.

    Attributes:
      name: the kind of data.
      batches: the batches of one epoch, each a dict of arrays `[rows, ...]` by field.
      num_rows, num_batches: the numbers of rows and batches in an epoch; `None` if unknown. Datasets have no batches.
      labels: the names of labels by field, if a source of ours provides them.
      notes: lines about the rows of the epoch.
    """

    name: str
    batches: Batches
    num_rows: int | None
    num_batches: int | None
    labels: Mapping[str, Sequence[str]]
    notes: Sequence[str] = ()


def survey(data: Any, split: str) -> Survey:
    """Return the survey of the batches of an epoch, or of the items of a dataset, grouped into batches.

    Raises:
      LearnerError: the argument is not data, or can be read only once.

    >>> surveyed = survey({"x": np.zeros((3, 2))}, "train")
    >>> surveyed.name, surveyed.num_rows, [batch["x"].shape for batch in surveyed.batches]
    ('ArrayDataset', 3, [(3, 2)])
    """
    data = adapt(data)
    if isinstance(data, DataLoader):
        dataset, batches = data.dataset, _batches(source_of(data, split))
        labels, notes = _labels(dataset), _notes(dataset)
        return Survey(type(dataset).__name__, batches, data.num_items(), len(data), labels, notes)
    if _has_items(data):
        dataset = as_dataset(data)
        return Survey(type(dataset).__name__, _items(dataset), len(dataset), None, _labels(dataset), _notes(dataset))
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
    """Return True for a dataset of items. Lists and Grain's datasets contain batches."""
    if isinstance(data, list | tuple | DataLoaderBuilder | PerProcess):
        return False
    grain = any(base.__module__.partition(".")[0] == "grain" for base in type(data).__mro__)
    return hasattr(data, "__getitem__") and hasattr(data, "__len__") and not grain


def _items(dataset: Any) -> Batches:
    """Yield items as batches: several at once if they have equal shapes and dtypes."""
    for first in range(0, len(dataset), AT_ONCE):
        items = [_leaves(dataset[index]) for index in range(first, min(first + AT_ONCE, len(dataset)))]
        kinds = {tuple((name, leaf.shape, leaf.dtype) for name, leaf in item.items()) for item in items}
        for group in [items] if len(kinds) == 1 else [[item] for item in items]:
            yield {name: np.stack([item[name] for item in group]) for name in group[0]}


def _leaves(item: Any) -> dict[str, np.ndarray]:
    arrays = jax.tree.map(as_array, as_dicts(item), is_leaf=lambda x: isinstance(x, list))
    return {field_name(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(arrays)}


def _batches(source: Source) -> Batches:
    try:
        for batch in source.open(1):
            arrays = batch_arrays(batch, source.split, source.batchable)
            yield {field_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(arrays)}
    finally:
        source.close()


def _notes(dataset: Any) -> list[str]:
    return [f"a mixture of {mixture.describe()}" for mixture in mixtures_in(dataset)]


def _labels(dataset: Any) -> Mapping[str, Sequence[str]]:
    """Return the names of labels, also behind views that select or join rows, or do not change the field."""
    if is_source(dataset):
        return source_labels(dataset)
    below = inner_of(dataset)
    labels = [{field: tuple(names) for field, names in _labels(inner).items()} for inner in below]
    if not labels:
        return {}
    same = {field: names for field, names in labels[0].items() if all(other.get(field) == names for other in labels)}
    if isinstance(dataset, Mixture) and dataset.source_field is not None:
        return {**same, dataset.source_field: dataset.names}
    if isinstance(dataset, Mapped | Augmented):
        return {field: names for field, names in same.items() if _is_kept(field, dataset, below[0])}
    return same


def _is_kept(field: str, dataset: Any, below: Any) -> bool:
    """Return True if a user's function leaves a field unchanged in the first items."""
    with contextlib.suppress(Exception):  # reading the items for the report raises it again
        pairs = [(_leaves(dataset[i]), _leaves(below[i])) for i in range(min(len(dataset), COMPARED))]
        return all(np.array_equal(after[field], before[field]) for after, before in pairs)
    return False
