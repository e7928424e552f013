"""A batcher that pads items of different lengths to one length."""

import bisect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from learner.data.batcher import ItemError, stack
from learner.errors import LearnerError, near
from learner.util.number_checks import check_int


class Pad:
    """A batcher that pads arrays along their first axis to one length.

    Each new length is a new shape, which is compiled once: a `length`, a `multiple` or a few `buckets` keep the number
    of shapes small. Without any of the three, items are padded to the longest one of the batch. In several processes,
    each reads all rows of a batch to find that one, unless there is a `length` or a single bucket.

    Args:
      length: the length.
      multiple: pad to the smallest multiple of this number that fits the longest item of the batch.
      buckets: pad to the smallest of these lengths that fits the longest item of the batch.
      value: the padding value, or a mapping with one for each field.
      fields: the names of the fields to pad; default: all that have an axis. Other fields are stacked.
      mask: the name of the mask: bool `[batch, length]`, true for items, false for padding. Fields of different lengths
        need separate masks: `"{field}_mask"`. `None`: no mask.

    Raises:
      LearnerError: more than one of the three is given, or a size is below 1. When called: an item is not a dict, lacks
        a field or is longer than the length; shapes differ in another axis; or the dtype cannot represent the value.

    >>> batch = Pad(multiple=4)([{"text": [5, 6, 7], "label": 1}, {"text": [8], "label": 0}])
    >>> batch["text"].tolist(), batch["label"].tolist()
    ([[5, 6, 7, 0], [8, 0, 0, 0]], [1, 0])
    >>> batch["mask"].astype(int).tolist()
    [[1, 1, 1, 0], [1, 0, 0, 0]]
    """

    def __init__(
        self,
        length: int | None = None,
        multiple: int | None = None,
        buckets: Sequence[int] | None = None,
        value: float | Mapping[str, float] = 0,
        fields: Sequence[str] | None = None,
        mask: str | None = "mask",
    ) -> None:
        given = {"length": length, "multiple": multiple, "buckets": buckets}
        sizes = [name for name, size in given.items() if size is not None]
        if len(sizes) > 1:
            raise LearnerError(
                f"Pad got {' and '.join(sizes)}: give one of length, multiple and buckets", code="data-pad-choice"
            )
        self._length = None if length is None else check_int("the length of Pad", length, least=1)
        self._multiple = None if multiple is None else check_int("the multiple of Pad", multiple, least=1)
        self._buckets = None if buckets is None else _buckets(buckets)
        self._fields = None if fields is None else names_of("Pad", fields)
        if mask is not None and not isinstance(mask, str):
            raise LearnerError(
                f"the mask of Pad is {mask!r}: give a name, or None for no mask", code="data-pad-mask-type"
            )
        self._value = value
        self._mask = mask
        self.needs_all_rows = length is None and len(self._buckets or ()) != 1

    def __call__(self, items: Sequence[Any]) -> dict[str, Any]:
        """Return the batch of these items."""
        check_dicts("Pad", items)
        columns = {name: [item[name] for item in items] for name in items[0]}
        padded = {name: arrays("Pad", name, columns[name]) for name in self._padded(columns)}
        rest = [{name: value for name, value in item.items() if name not in padded} for item in items]
        batch = stack(rest) if rest[0] else {}
        masks: dict[str, np.ndarray] = {}
        for name, column in padded.items():
            lengths = np.array([len(array) for array in column])
            size = self._size(lengths, name)
            batch[name] = filled("Pad", name, (len(items), size), column, value_for(name, self._value))
            for number, array in enumerate(column):
                batch[name][number, : len(array)] = array
            self._note(masks, name, np.arange(size) < lengths[:, None])
        conflicts = sorted(set(masks) & set(columns))
        if conflicts:
            raise LearnerError(
                f"the items have a field {conflicts[0]!r} themselves: give Pad(mask=...) another name",
                code="data-pad-mask-exists",
            )
        return {**batch, **masks}

    def __repr__(self) -> str:
        sizes = {"length": self._length, "multiple": self._multiple, "buckets": self._buckets, "fields": self._fields}
        return f"Pad({', '.join(f'{name}={size}' for name, size in sizes.items() if size is not None)})"

    def _padded(self, columns: Mapping[str, Any]) -> list[str]:
        if self._fields is not None:
            return check_fields("Pad", self._fields, columns)
        return [name for name, (first, *_) in columns.items() if not isinstance(first, Mapping) and np.ndim(first)]

    def _size(self, lengths: np.ndarray, name: str) -> int:
        longest = int(lengths.max())
        sizes = [self._length] if self._length is not None else self._buckets
        if self._multiple is not None:
            return max(1, -(-longest // self._multiple)) * self._multiple
        if sizes is None:
            return longest
        if longest > sizes[-1]:
            limit = f" has length {longest}, and {self!r} has {sizes[-1]} at most"
            hint = ": cut it before (dataset.map), or give more"
            raise ItemError(
                [f"{name} of item ", int(lengths.argmax()), limit, hint], code="data-pad-item-unfit", name=name
            )
        return sizes[bisect.bisect_left(sizes, longest)]

    def _note(self, masks: dict[str, np.ndarray], name: str, mask: np.ndarray) -> None:
        if self._mask is None:
            return
        key = self._mask.replace("{field}", name)
        if key in masks and not np.array_equal(masks[key], mask):
            raise LearnerError(
                f"{name} has other lengths than the field before it, so one mask does not fit both: give Pad "
                "mask='{field}_mask', or fields= with those that are equally long",
                code="data-pad-lengths-differ",
                name=name,
            )
        masks[key] = mask


def check_dicts(who: str, items: Sequence[Any]) -> None:
    """Raise `LearnerError` unless all items are dicts with the same fields."""
    for number, item in enumerate(items):
        if not isinstance(item, Mapping):
            hint = f" is a {type(item).__name__}: name it, such as dataset.map(lambda tokens: {{'text': tokens}})"
            raise ItemError(
                [f"{who} needs items that are dicts, and item ", number, hint], code="batch-items-not-dicts"
            )
        if set(item) != set(items[0]):
            raise ItemError(
                [
                    "items of a batch differ in fields: item ",
                    0,
                    f" has {list(items[0])}, and item ",
                    number,
                    f" has {list(item)}",
                ],
                code="batch-items-differ",
            )
    if not items[0]:
        raise LearnerError(f"{who} got items without fields", code="batch-items-without-fields")


def check_fields(who: str, names: list[str], item: Mapping[str, Any]) -> list[str]:
    """Return `names`. Raise `LearnerError` unless items have all these fields."""
    for name in names:
        if name not in item:
            raise LearnerError(
                f"{who}: the items have no field {name!r}: {near(name, list(item))}",
                code="data-field-missing",
                name=name,
            )
    return names


def arrays(who: str, name: str, column: Sequence[Any]) -> list[np.ndarray]:
    """Return the values of a field as arrays `[length, ...]`, which differ only in length."""
    values = [np.asarray(value) for value in column]
    for number, array in enumerate(values):
        if array.ndim == 0:
            raise ItemError(
                [f"{who}: {name} of item ", number, f" is {array.dtype} [], which has no axis to go along"],
                code="data-item-field-unfit",
                name=name,
            )
        if array.shape[1:] != values[0].shape[1:]:
            first, other = list(values[0].shape), list(array.shape)
            hint = ": they may differ in the first axis only"
            raise ItemError(
                [f"{who}: {name} is {first} in item ", 0, f" and {other} in item ", number, hint],
                code="data-item-field-unfit",
                name=name,
            )
    return values


def filled(who: str, name: str, shape: tuple[int, int], column: Sequence[np.ndarray], value: Any) -> np.ndarray:
    """Return an array `[*shape, ...]` for the values of a field, filled with `value`."""
    dtype = np.result_type(*([array.dtype for array in column if array.size] or [column[0].dtype]))
    try:
        rest = np.asarray(value, dtype)
        fits = rest.ndim == 0 and (dtype.kind in "fc" or rest == value)
    except (OverflowError, TypeError, ValueError):
        fits = False
    if not fits:
        raise LearnerError(
            f"{who} fills {name} with {value!r}, which is not {dtype}: give another value",
            code="data-fill-value",
            name=name,
            value=value,
            dtype=dtype,
        )
    return np.full((*shape, *column[0].shape[1:]), rest)


def value_for(name: str, value: Any) -> Any:
    """Return the number that pads a field: `value`, or the field's own in a mapping, 0 by default."""
    return value.get(name, 0) if isinstance(value, Mapping) else value


def _buckets(buckets: Any) -> list[int]:
    if isinstance(buckets, str) or not isinstance(buckets, Sequence | np.ndarray) or not len(buckets):
        raise LearnerError(f"the buckets of Pad are {buckets!r}: give a list of lengths", code="data-buckets-value")
    return sorted({check_int("a bucket of Pad", size, least=1) for size in buckets})


def names_of(who: str, names: Any) -> list[str]:
    """Return `names` as a list. Raise `LearnerError` unless they are names of fields."""
    if isinstance(names, str) or not names or not all(isinstance(name, str) for name in names):
        raise LearnerError(
            f"the fields of {who} are {names!r}: give a list of the names of fields", code="data-fields-value"
        )
    return list(names)
