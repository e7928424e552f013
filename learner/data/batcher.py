"""From a list of items to a batch."""

from collections.abc import Sequence
from typing import Any, Protocol

import jax
import numpy as np

from learner.data.dataset import field_name
from learner.errors import LearnerError


class Batcher(Protocol):
    """Any function of a list of items that returns a batch: a dict (or another pytree) of arrays `[len(items), ...]`.

    It is called from other threads, and in other processes where the loader has workers.

    >>> def pad(items):
    ...     longest = max(len(item) for item in items)
    ...     return {"text": np.array([item + [0] * (longest - len(item)) for item in items])}
    >>> pad([[1, 2, 3], [4]])["text"].tolist()
    [[1, 2, 3], [4, 0, 0]]
    """

    def __call__(self, items: list[Any], /) -> Any:
        """The batch of these items."""


def stack(items: Sequence[Any]) -> Any:
    """The default batcher: items of one structure and of equal shapes, stacked along a new first axis.

    Dicts, tuples and other pytrees keep their structure; a list of numbers is an array.

    Raises:
      LearnerError: items of different structures, or of unequal shapes, which are named.

    >>> stack([{"x": [1.0, 2.0], "y": 0}, {"x": [3.0, 4.0], "y": 1}])
    {'x': array([[1., 2.],
           [3., 4.]]), 'y': array([0, 1])}
    """
    flat = [jax.tree.flatten(item, is_leaf=_is_list) for item in items]
    structure: Any = flat[0][1]
    for number, (_, other) in enumerate(flat):
        if other != structure:
            raise LearnerError(f"items of a batch differ in structure: item 0 is {structure}, item {number} is {other}")
    try:
        return structure.unflatten([_join(column) for column in zip(*(leaves for leaves, _ in flat), strict=True)])
    except ValueError:
        _check_shapes(items)
        raise


def _join(column: Sequence[Any]) -> np.ndarray:
    return np.stack(column) if np.ndim(column[0]) else np.array(column)  # np.stack is slow for numbers


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _check_shapes(items: Sequence[Any]) -> None:
    first = jax.tree_util.tree_leaves_with_path(items[0], is_leaf=_is_list)
    for number, item in enumerate(items):
        for (path, expected), leaf in zip(first, jax.tree.leaves(item, is_leaf=_is_list), strict=True):
            if np.shape(leaf) != np.shape(expected):
                raise LearnerError(
                    f"items of a batch differ in shape: {field_name(path)} is {list(np.shape(expected))} in item 0 and "
                    f"{list(np.shape(leaf))} in item {number}; give DataLoaderBuilder a batcher that pads or cuts them"
                ) from None
