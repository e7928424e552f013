"""A batcher that packs token sequences of different lengths into rows of one length."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from learner.data.batcher import ItemError
from learner.data.padding import arrays, check_dicts, check_fields, filled, names_of, value_for
from learner.errors import LearnerError
from learner.util.number_checks import check_int

ADDED = ("segments", "positions", "mask")  # the fields that `Pack` adds


class Pack:
    """A batcher that puts several token sequences, one after another, into each row, so that there is little padding.

    Items are put, in order, into the first row with room for them. `segments` mark the tokens of one item: attention
    must be masked by `segments[:, :, None] == segments[:, None, :]`.

    Args:
      length: the length of a row, in tokens.
      rows: rows of a batch, so that all batches have one shape; unused rows are padding. In several processes, each
        packs its share of the items into as many rows. Default: as many as needed, for which each process reads and
        packs all items of a batch.
      value: the padding value, or a mapping with one for each field.
      fields: the names of the fields to pack, equally long within an item; default: all. Other fields are dropped.

    Returns:
      The fields `[rows, length, ...]`, and `segments` int32 `[rows, length]` (1 for the first item of a row, 2 for the
      next, 0 for padding), `positions` int32 (from 0 within each item) and `mask` bool (false for padding).

    Raises:
      LearnerError: a size is below 1. When called: an item is not a dict, has no tokens or is longer than a row; fields
        are missing, differ in length, or have the name of an added one; or the items do not fit into `rows`.

    >>> batch = Pack(length=5)([{"text": [1, 2, 3]}, {"text": [4, 5, 6, 7]}, {"text": [8, 9]}])
    >>> batch["text"].tolist()
    [[1, 2, 3, 8, 9], [4, 5, 6, 7, 0]]
    >>> batch["segments"].tolist(), batch["positions"].tolist()
    ([[1, 1, 1, 2, 2], [1, 1, 1, 1, 0]], [[0, 1, 2, 0, 1], [0, 1, 2, 3, 0]])
    """

    any_rows = True

    def __init__(
        self,
        length: int,
        rows: int | None = None,
        value: float | Mapping[str, float] = 0,
        fields: Sequence[str] | None = None,
    ) -> None:
        self._length = check_int("the length of Pack", length, least=1)
        self._rows = None if rows is None else check_int("the rows of Pack", rows, least=1)
        self._fields = None if fields is None else names_of("Pack", fields)
        self._value = value
        self.needs_all_rows = rows is None

    def __call__(self, items: Sequence[Any]) -> dict[str, Any]:
        """Return the batch of these items."""
        check_dicts("Pack", items)
        names = list(items[0]) if self._fields is None else check_fields("Pack", self._fields, items[0])
        if conflicts := [name for name in ADDED if name in names]:
            raise LearnerError(
                f"the items have a field {conflicts[0]!r} themselves, and Pack adds one of this name: rename it (as in "
                "dataset.map). For a mask of the loss, call it loss_mask, and combine it with mask in the step",
                code="data-pack-field-exists",
                field=conflicts[0],
            )
        columns = {name: arrays("Pack", name, [item[name] for item in items]) for name in names}
        places, count = self._places(common_lengths(columns))
        shape = (count, self._length)
        batch = {
            name: filled("Pack", name, shape, column, value_for(name, self._value)) for name, column in columns.items()
        }
        segments, positions = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
        for number, (row, start, segment) in enumerate(places):
            end = start + len(columns[names[0]][number])
            for name, column in columns.items():
                batch[name][row, start:end] = column[number]
            segments[row, start:end] = segment
            positions[row, start:end] = np.arange(end - start)
        return batch | {"segments": segments, "positions": positions, "mask": segments > 0}

    def __repr__(self) -> str:
        return f"Pack(length={self._length}{'' if self._rows is None else f', rows={self._rows}'})"

    def _places(self, lengths: Sequence[int]) -> tuple[list[tuple[int, int, int]], int]:
        """Return the row, the start in the row and the segment of each item, and the number of rows."""
        used: list[tuple[int, int]] = []  # tokens and items of each row
        places = []
        for number, length in enumerate(lengths):
            if not 0 < length <= self._length:
                what = f"{length} tokens, and a row of {self!r} has {self._length}: cut it" if length else "no tokens"
                raise ItemError(
                    ["item ", number, f" has {what}; fix that first (dataset.map, dataset.filter)"],
                    code="batch-items-differ",
                )
            row = next((r for r, (tokens, _) in enumerate(used) if tokens + length <= self._length), len(used))
            tokens, segment = used[row] if row < len(used) else (0, 0)
            used[row : row + 1] = [(tokens + length, segment + 1)]
            places.append((row, tokens, segment + 1))
        if self._rows is not None and len(used) > self._rows:
            raise LearnerError(
                f"{len(lengths)} items with {sum(lengths)} tokens take {len(used)} rows, and {self!r} has "
                f"{self._rows}: give more rows, or a smaller batch_size",
                code="data-pack-rows-exceeded",
            )
        return places, self._rows or len(used)


def common_lengths(columns: Mapping[str, list[np.ndarray]]) -> list[int]:
    """Return the number of tokens of each item, which must be the same in all its fields."""
    (first, *others) = columns
    for name in others:
        for number, (a, b) in enumerate(zip(columns[first], columns[name], strict=True)):
            if len(a) != len(b):
                lengths = f" has {len(a)} tokens in {first} and {len(b)} in {name}"
                hint = ": give fields= with those that are equally long"
                raise ItemError(["Pack: item ", number, lengths, hint], code="data-pack-item-unfit")
    return [len(array) for array in columns[first]]
