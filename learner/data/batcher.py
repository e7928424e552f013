"""Batchers: functions that turn a list of items into a batch."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from learner.data.batch_arrays import as_dicts, field_name, refuse_keys, refuse_masked
from learner.errors import LearnerError

MOST_NAMED = 5  # items of one kind, or kinds, that a message names
SHOWN = 80  # characters of an item in a message
UNEVEN = "a list of lists of several lengths"


class Batcher(Protocol):
    """Any function of a list of items that returns a batch: a dict (or another pytree) of arrays `[len(items), ...]`.

    It is called from other threads, and in other processes if the loader has workers. A batcher whose batches have
    another number of rows, because it puts several items into a row or drops some, needs the attribute
    `any_rows = True`. In several processes it gets the items of one process's share of a batch; if the shapes of its
    batches depend on the items, as those of `pad` below, it needs the attribute `needs_all_rows = True`, and gets all.

    >>> def pad(items):
    ...     longest = max(len(item) for item in items)
    ...     return {"text": np.array([item + [0] * (longest - len(item)) for item in items])}
    >>> pad([[1, 2, 3], [4]])["text"].tolist()
    [[1, 2, 3], [4, 0, 0]]
    """

    def __call__(self, items: list[Any], /) -> Any:
        """Return the batch of these items."""


def declares(batcher: Batcher, name: str) -> bool:
    """Return True if a batcher, or the function of a `functools.partial`, has an attribute that is true."""
    return any(getattr(function, name, False) for function in (batcher, getattr(batcher, "func", None)))


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
    """Stack items of one structure, of equal shapes and of one kind along a new first axis: the default batcher.

    Dicts, tuples and other pytrees keep their structure, and other mappings become dicts; a list of numbers counts as
    an array.

    Raises:
      LearnerError: items differ in structure, shapes, or types such that NumPy would change them; the message names
        them.

    >>> stack([{"x": [1.0, 2.0], "y": 0}, {"x": [3.0, 4.0], "y": 1}])
    {'x': array([[1., 2.],
           [3., 4.]]), 'y': array([0, 1])}
    """
    try:
        flat = [jax.tree.flatten(item, is_leaf=_is_list) for item in items]
    except ValueError:  # from sorting the keys of a dict
        _check_keys(items)
        raise
    structure: Any = flat[0][1]
    other = next((number for number, (_, other) in enumerate(flat) if other != structure), None)
    if any(isinstance(leaf, Mapping) for leaves, _ in flat[: 1 if other is None else None] for leaf in leaves):
        return stack([as_dicts(item) for item in items])
    if not flat[0][0]:
        raise ItemError(
            ["item ", 0, f" is {items[0]!r}, which holds nothing: does a function of the data return nothing?"],
            code="batch-items-differ",
        )
    if other is not None:
        first, second = _fields(items[0]), _fields(items[other])
        if first == second:
            first, second = str(structure), str(flat[other][1])
        raise ItemError(
            ["items of a batch differ in structure: item ", 0, f" has {first}, item ", other, f" has {second}"],
            code="batch-items-differ",
        )
    try:
        return structure.unflatten([_join(column) for column in zip(*(leaves for leaves, _ in flat), strict=True)])
    except TypeError:
        refuse_keys(items[0])
        raise
    except ValueError:
        _check_columns(items)
        raise


def _check_keys(items: Sequence[Any]) -> None:
    """Raise an `ItemError` for a dict with keys that cannot be sorted."""
    for number, item in enumerate(items):
        try:
            jax.tree.structure(item)
        except ValueError:
            problem = f" has a dict with keys of several types, {repr(item)[:SHOWN]}: name its fields by texts"
            raise ItemError(["item ", number, problem], code="batch-item-keys-differ") from None


def _fields(item: Any) -> str:
    """Return the names of an item's fields for a message, with None for empty fields."""
    leaves = jax.tree_util.tree_leaves_with_path(item, is_leaf=lambda value: value is None or _is_list(value))
    return ", ".join(field_name(path) + (" = None" if leaf is None else "") for path, leaf in leaves)


def _join(column: Sequence[Any]) -> np.ndarray:
    for values in column if isinstance(column[0], np.ma.MaskedArray) else ():
        refuse_masked("an item", values)  # np.stack drops masks
    joined = np.stack(column) if np.ndim(column[0]) else np.array(column)  # np.stack is slow for numbers
    if joined.dtype.kind in "USf" and _is_changed(column, joined.dtype.kind):
        raise ValueError("the items of a batch differ in type")  # `_check_columns` names them
    return joined


def _is_changed(column: Sequence[Any], kind: str) -> bool:
    """Return True if NumPy has changed values: numbers to texts, or integers without a common type to floats; or if it
    dropped the last characters of texts.
    """
    if kind == "f":
        return _kind(column[0]) in "biu" and {*map(_kind, column)} <= {"b", "i", "u"}
    return {*map(_kind, column)} != {kind} or any(map(_ends_in_nul, column))


def _kind(value: Any) -> str:
    return np.asarray(value).dtype.kind


def _ends_in_nul(value: Any) -> bool:
    return isinstance(value, str | bytes) and value[-1:] in ("\0", b"\0")


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _check_columns(items: Sequence[Any]) -> None:
    """Raise an `ItemError` that names items, for the first field with several shapes, or types that NumPy changes."""
    fields = jax.tree_util.tree_leaves_with_path(items[0], is_leaf=_is_list)
    columns = zip(*(jax.tree.leaves(item, is_leaf=_is_list) for item in items), strict=True)
    for (path, _), column in zip(fields, columns, strict=True):
        name, by_shape = field_name(path), _numbers_by(_shape, column)
        if len(by_shape) > 1 or UNEVEN in by_shape:
            hint = "; give DataLoaderBuilder a batcher that pads or cuts them"
            raise ItemError(
                [f"items of a batch differ in shape: {name} is ", *_named(by_shape, "shapes"), hint],
                code="batch-item-shapes-differ",
            ) from None
        by_kind = _numbers_by(_type_name, column)
        if len(by_kind) > 1 and _is_changed(column, np.array(column).dtype.kind):
            hint = "; convert them to one type, as in learner.data.view(items).map(fn)"
            raise ItemError(
                [f"items of a batch differ in type: {name} is ", *_named(by_kind, "types"), hint],
                code="batch-item-types-differ",
            ) from None
        if ends := [number for number, value in enumerate(column) if _ends_in_nul(value)]:
            hint = " ends in a NUL, which NumPy's arrays of texts drop: encode it as numbers"
            raise ItemError([f"{name} of ", *numbered(ends), hint], code="batch-item-ends-in-nul") from None


def _numbers_by(key: Callable[[Any], str], column: Sequence[Any]) -> dict[str, list[int]]:
    """Return the numbers of the values by their keys."""
    numbers: dict[str, list[int]] = {}
    for number, value in enumerate(column):
        numbers.setdefault(key(value), []).append(number)
    return numbers


def _named(by_key: dict[str, list[int]], what: str) -> list[str | int]:
    """Return parts of an `ItemError`: each key with its items."""
    parts: list[str | int] = []
    for place, (key, numbers) in enumerate(list(by_key.items())[:MOST_NAMED]):
        joint = "" if not place else ", and " if place == len(by_key) - 1 else ", "
        parts += [f"{joint}{key} in ", *numbered(numbers)]
    return parts + ([f", and {len(by_key) - MOST_NAMED} more {what}"] if len(by_key) > MOST_NAMED else [])


def _type_name(value: Any) -> str:
    """Return the name of a dtype, without the lengths of texts."""
    dtype = np.asarray(value).dtype
    return {"U": "str", "S": "bytes"}.get(dtype.kind, str(dtype))


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
