"""The names of labels that sources number."""

from collections.abc import Mapping, Sequence
from typing import Any

from learner.data.dataset import Augmented, Mapped, inner_of

SOURCES = "learner.data.sources."


def is_source(dataset: Any) -> bool:
    """Return True for a source of ours, such as a table or a folder of images."""
    return any(base.__module__.startswith(SOURCES) for base in type(dataset).__mro__)


def source_labels(dataset: Any) -> Mapping[str, Sequence[str]]:
    """Return by field the names of the labels of a source, in the order of their numbers."""
    names: Mapping[str, Sequence[str]] = getattr(dataset, "labels", {})
    return names


def label_names(dataset: Any) -> Mapping[str, Sequence[str]]:
    """Return by field the names of the labels of a source of ours, in the order of their numbers, also through views
    that select or join rows. Through functions of the user they are unknown: these would have to be called.

    The sources are found by their modules, so that none of them is imported.

    >>> from learner.data.sources.table_arrays import Table
    >>> import numpy as np
    >>> label_names(Table({"kind": np.array([0, 1, 0], np.int32)}, {"kind": ("cat", "dog")}).slice(1))
    {'kind': ('cat', 'dog')}
    """
    if is_source(dataset):
        return source_labels(dataset)
    if isinstance(dataset, Mapped | Augmented):
        return {}
    first, *others = [label_names(inner) for inner in inner_of(dataset)] or [{}]
    return {field: names for field, names in first.items() if all(other.get(field) == names for other in others)}
