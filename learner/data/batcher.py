"""Batchers: functions that turn a list of items into a batch."""

from collections.abc import Sequence
from typing import Any, Protocol

import jax
import numpy as np

from learner.data.batch_arrays import field_name, refuse_keys, refuse_masked
from learner.errors import LearnerError

MOST_NAMED = 5  # items of one kind, or kinds, that a message names
UNEVEN = "a list of lists of several lengths"


class Batcher(Protocol):
    """Any function of a list of items that returns a batch: a dict (or another pytree) of arrays `[len(items), ...]`.

    It is called from other threads, and in other processes if the loader has workers. A batcher whose batches have
    another number of rows, because it puts several items into a row or drops some, needs the attribute
    `any_rows = True`.

    >>> def pad(items):
    ...     longest = max(len(item) for item in items)
    ...     return {"text": np.array([item + [0] * (longest - len(item)) for item in items])}
    >>> pad([[1, 2, 3], [4]])["text"].tolist()
    [[1, 2, 3], [4, 0, 0]]
    """

    def __call__(self, items: list[Any], /) -> Any:
        """Return the batch of these items."""


class ItemError(LearnerError):
    """Raised for items that do not fit into a batch. A batcher numbers them within the batch; its caller renumbers them
    with `in_dataset`.

    Args:
      message: texts and numbers of items in the batch, to be joined.
      code: see `LearnerError`.
      fields: see `LearnerError`.

    >>> error = ItemError(["item ", 1, " has no tokens"], code="batch-item-without-tokens")
    >>> print(error)
    item 1 has no tokens
    >>> print(error.in_dataset([7, 12]))
    item 12 has no tokens
    """

    def __init__(self, message: Sequence[str | int], *, code: str, **fields: Any) -> None:
        super().__init__("", code=code, **fields)
        self.args = (message,)

    def __str__(self) -> str:
        return "".join(map(str, self.args[0]))

    def in_dataset(self, rows: Sequence[int]) -> "ItemError":
        """Return a copy with the numbers of the items in the dataset, where the batch consists of `rows`."""
        message = [rows[part] if isinstance(part, int) else part for part in self.args[0]]
        return ItemError(message, code=self.code, **self.fields)


def stack(items: Sequence[Any]) -> Any:
    """Stack items of one structure and of equal shapes along a new first axis: the default batcher.

    Dicts, tuples and other pytrees keep their structure; a list of numbers counts as an array.

    Raises:
      LearnerError: items differ in structure or shapes; the message names them.

    >>> stack([{"x": [1.0, 2.0], "y": 0}, {"x": [3.0, 4.0], "y": 1}])
    {'x': array([[1., 2.],
           [3., 4.]]), 'y': array([0, 1])}
    """
    flat = [jax.tree.flatten(item, is_leaf=_is_list) for item in items]
    structure: Any = flat[0][1]
    if not flat[0][0]:
        raise ItemError(
            ["item ", 0, f" is {items[0]!r}, which holds nothing: does a function of the data return nothing?"],
            code="batch-items-differ",
        )
    for number, (_, other) in enumerate(flat):
        if other != structure:
            first, second = _fields(items[0]), _fields(items[number])
            if first == second:
                first, second = str(structure), str(other)
            raise ItemError(
                ["items of a batch differ in structure: item ", 0, f" has {first}, item ", number, f" has {second}"],
                code="batch-items-differ",
            )
    try:
        return structure.unflatten([_join(column) for column in zip(*(leaves for leaves, _ in flat), strict=True)])
    except TypeError:
        refuse_keys(items[0])
        raise
    except ValueError:
        _check_shapes(items)
        raise


def _fields(item: Any) -> str:
    """Return the names of an item's fields for a message, with None for empty fields."""
    leaves = jax.tree_util.tree_leaves_with_path(item, is_leaf=lambda value: value is None or _is_list(value))
    return ", ".join(field_name(path) + (" = None" if leaf is None else "") for path, leaf in leaves)


def _join(column: Sequence[Any]) -> np.ndarray:
    for values in column if isinstance(column[0], np.ma.MaskedArray) else ():
        refuse_masked("an item", values)  # np.stack drops masks
    return np.stack(column) if np.ndim(column[0]) else np.array(column)  # np.stack is slow for numbers


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _check_shapes(items: Sequence[Any]) -> None:
    """Raise an `ItemError` that names the items of each shape, for the first field with several shapes."""
    fields = jax.tree_util.tree_leaves_with_path(items[0], is_leaf=_is_list)
    columns = zip(*(jax.tree.leaves(item, is_leaf=_is_list) for item in items), strict=True)
    for (path, _), column in zip(fields, columns, strict=True):
        by_shape: dict[str, list[int]] = {}
        for number, leaf in enumerate(column):
            by_shape.setdefault(_shape(leaf), []).append(number)
        if len(by_shape) > 1 or UNEVEN in by_shape:
            shapes: list[str | int] = []
            for place, (shape, numbers) in enumerate(list(by_shape.items())[:MOST_NAMED]):
                joint = "" if not place else ", and " if place == len(by_shape) - 1 else ", "
                shapes += [f"{joint}{shape} in ", *numbered(numbers)]
            more = f", and {len(by_shape) - MOST_NAMED} more shapes" if len(by_shape) > MOST_NAMED else ""
            hint = "; give DataLoaderBuilder a batcher that pads or cuts them"
            raise ItemError(
                [f"items of a batch differ in shape: {field_name(path)} is ", *shapes, more, hint],
                code="batch-item-shapes-differ",
            ) from None


def numbered(numbers: Sequence[int]) -> list[str | int]:
    """Return parts of an `ItemError`: `item 3`, or `items 3, 5 and 8`; only the first ones of many.

    >>> str(ItemError(numbered([3, 5, 8]), code="batch-items-differ"))
    'items 3, 5 and 8'
    """
    shown, more = numbers[:MOST_NAMED], len(numbers) - MOST_NAMED
    parts: list[str | int] = ["item " if len(numbers) == 1 else "items "]
    for place, number in enumerate(shown):
        last = place == len(shown) - 1 and more <= 0
        parts += [" and " if last and place else ", " if place else "", number]
    return parts + ([f" and {more} more"] if more > 0 else [])


def _shape(leaf: Any) -> str:
    try:
        return str(list(np.shape(leaf)))
    except ValueError:
        return UNEVEN
