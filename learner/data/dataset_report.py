"""Reports on data: its fields, values and speed, before a model is trained on it.

print(DatasetReport(train))
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from learner.data.iterable_source import rewinder
from learner.data.sheet import contact_sheet, is_image
from learner.data.statistics import FieldStatistics
from learner.data.survey import survey
from learner.errors import LearnerError
from learner.util.number_checks import check_int
from learner.util.png import png
from learner.util.text import aligned, count, duration, short

MOST_LABELS = 20  # that are listed
MOST_IMAGES = 64
MOST_NUMBERS = 8  # of an item's array that are shown


class DatasetReport:
    """Fields, shapes, types, counts of labels, ranges, a few items and the speed of data; `str` returns tables.

    It reads one epoch, or its beginning, and then puts random generators of the data, and a state of its own, back to
    where they were. Data that can be read only once (a generator) is an error: pass the generator function.

    Args:
      data: a loader or any other iterable of batches, or a dataset, a dict of arrays, a bunch. The rows per second are
        measured for the batches, or for the items.
      split: the name of the split.
      rows: stop reading after the batch that reaches this number of rows.
      seconds: stop reading after this time.
      items: the number of first items to show.
      clock: a function that returns seconds.

    Attributes:
      split: the name of the split.
      fields: `FieldStatistics` by name, for the rows that were read.
      rows: the number of rows that were read.
      num_rows: rows in an epoch; `None` if unknown.
      num_batches: batches in an epoch; `None` if unknown, and for a dataset.
      batch_rows: rows of the first batch; `None` for a dataset.
      is_complete: True if the epoch was read to its end.
      seconds: the time spent waiting for batches, of which `first_seconds` for the first one.
      items: the first items: an array for each field.

    Raises:
      LearnerError: the argument is not data, is empty, or fails when it is read.

    >>> report = DatasetReport({"x": np.float32([[0, 1], [2, 5]]), "label": np.array([3, 3])}, split="train")
    >>> print(str(report).splitlines()[0])
    train: 2 rows of ArrayDataset
    >>> report.fields["x"].mean, report.fields["label"].counts
    (2.0, {3: 2})
    """

    def __init__(
        self,
        data: Any,
        split: str = "data",
        *,
        rows: int = 100_000,
        seconds: float = 20.0,
        items: int = 3,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.split = split
        self.fields: dict[str, FieldStatistics] = {}
        self.items: list[dict[str, np.ndarray]] = []
        self.rows = 0
        self.is_complete = False
        self.batch_rows: int | None = None
        if not isinstance(seconds, int | float) or not seconds > 0:
            raise LearnerError(
                f"seconds is {seconds!r}: give a number above 0", code="data-seconds-value", seconds=seconds
            )
        self._images: dict[str, list[np.ndarray]] = {}
        self._num_items = check_int("items", items, least=0)
        self.seconds = self.first_seconds = 0.0
        self._first_rows = 0
        with contextlib.ExitStack() as stack:
            stack.callback(rewinder(data))
            surveyed = survey(data, split)
            self.num_rows, self.num_batches = surveyed.num_rows, surveyed.num_batches
            self._survey = surveyed
            batches = stack.enter_context(contextlib.closing(surveyed.batches))
            self._read(batches, check_int("rows", rows, least=1), seconds, clock)
        if not self.rows:
            raise LearnerError(f"the {split} data has no rows", code="data-without-rows", split=split)
        if self.is_complete:
            self.num_rows = self.rows

    def _read(
        self, batches: Iterator[dict[str, np.ndarray]], rows: int, seconds: float, clock: Callable[[], float]
    ) -> None:
        """Read batches up to a number of rows, or up to a time spent waiting for batches."""
        while self.rows < rows and self.seconds < seconds:
            before = clock()
            batch = next(batches, None)
            waited = clock() - before
            if batch is None:
                self.is_complete = True
                return
            self.seconds += waited
            length = len(next(iter(batch.values())))
            if not self.rows:
                self.first_seconds, self._first_rows = self.seconds, length
            self._add(batch, length)
        self.is_complete = self.rows == self.num_rows or (self.num_rows is None and next(batches, None) is None)

    def _add(self, batch: dict[str, np.ndarray], length: int) -> None:
        for name, rows in batch.items():
            self.fields.setdefault(name, FieldStatistics(name)).add(rows)
            kept = self._images.setdefault(name, [])
            if len(kept) < MOST_IMAGES and is_image(rows.shape[1:]) and rows.dtype.kind in "biuf":
                kept += [np.array(row) for row in rows[: MOST_IMAGES - len(kept)]]
        for row in range(min(length, self._num_items - len(self.items))):
            self.items.append({name: np.array(rows[row]) for name, rows in batch.items()})
        if not self.rows and self.num_batches is not None:
            self.batch_rows = length
        self.rows += length

    @property
    def rows_per_second(self) -> float:
        """Return the rows read per second, without the first batch if there are more. This excludes device transfer."""
        if self.rows > self._first_rows:
            return (self.rows - self._first_rows) / max(self.seconds - self.first_seconds, 1e-9)
        return self.rows / max(self.seconds, 1e-9)

    def image_fields(self) -> list[str]:
        """Return the fields whose rows look like images."""
        return [name for name, images in self._images.items() if images]

    def save_images(self, path: str | os.PathLike[str], field: str | None = None, columns: int = 8) -> int:
        """Write the first images, up to 64, side by side into a PNG file, in the order of the rows.

        Args:
          path: the path of the file.
          field: the field of the images; default: the first field that has images.
          columns: images per row.

        Returns:
          The number of images in the file.

        Raises:
          LearnerError: the field has no images, or `columns` is below 1.
        """
        columns = check_int("columns", columns, least=1)
        name = field if field is not None else next(iter(self.image_fields()), "")
        images = self._images.get(name) or []
        if not images:
            raise LearnerError(
                f"the {self.split} data has no images{f' in {field!r}' if field else ''}",
                code="data-without-images",
                field=field,
            )
        Path(path).write_bytes(png(contact_sheet(images, columns)))
        return len(images)

    def __str__(self) -> str:
        head = [self._heading(), *self._survey.notes]
        return "\n".join([*head, "", *self._table(), *self._labels(), *self._shown(), "", self._speed()])

    def _heading(self) -> str:
        number = "unknown length" if self.num_rows is None else count(self.num_rows, "row")
        batches = "" if self.num_batches is None else f", {count(self.num_batches, 'batch')}"
        size = "" if self.batch_rows is None else f" of {self.batch_rows}"
        part = "" if self.is_complete else f"; what follows is of the first {count(self.rows, 'row')}"
        return f"{self.split}: {number} of {self._survey.name}{batches}{size}{part}"

    def _table(self) -> list[str]:
        rows = [["field", "shape", "dtype", "least", "mean", "greatest", "NaN", "infinite"]]
        for field in self.fields.values():
            numbers = ["-" if x is None else short(x) for x in (field.low, field.mean, field.high)]
            rows.append(
                [
                    short(field.name),
                    _shape(field.shape),
                    field.dtype,
                    *numbers,
                    *map(str, (field.nans, field.infinities)),
                ]
            )
        return aligned(rows)

    def _labels(self) -> list[str]:
        lines = []
        for field in self.fields.values():
            counts = field.counts
            if counts and len(counts) <= MOST_LABELS and len(counts) < field.rows:
                listed = ", ".join(f"{self._label(field.name, value)}: {number:,}" for value, number in counts.items())
                lines.append(f"{short(field.name)}: {listed}")
            elif counts and len(counts) < field.rows / 2:
                least, most = min(counts.values()), max(counts.values())
                lines.append(f"{short(field.name)}: {len(counts)} values, each {least:,} to {most:,} times")
        return ["", *lines] if lines else []

    def _label(self, field: str, value: Any) -> str:
        names = self._survey.labels.get(field, ())
        name = f" ({short(names[value])})" if isinstance(value, int) and 0 <= value < len(names) else ""
        return f"{short(str(value))}{name}"

    def _shown(self) -> list[str]:
        lines = [
            f"item {number}: " + "; ".join(f"{short(name)} {_value_text(value)}" for name, value in item.items())
            for number, item in enumerate(self.items)
        ]
        return ["", *lines] if lines else []

    def _speed(self) -> str:
        rate = f"{self.rows_per_second:,.0f} rows per second"
        return f"read in {duration(self.seconds)}: {rate}; {duration(self.first_seconds)} to the first batch"


def _shape(shape: Sequence[int | None] | None) -> str:
    return str(list(shape or ())).replace("None", "?")


def _value_text(value: np.ndarray) -> str:
    """Return the text of a value: a number, a text, or the first numbers of an array."""
    if value.ndim == 0:
        return short(value.item()) if value.dtype.kind in "fUbiu" else short(str(value.item()))
    first = [short(x) if isinstance(x, float | str) else str(x) for x in value.ravel()[:MOST_NUMBERS].tolist()]
    return f"[{', '.join(first)}{', ...' if value.size > len(first) else ''}]"
