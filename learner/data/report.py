"""What data looks like, before anything is trained on it.

print(DatasetReport(train))
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from learner.data.plan import whole_number
from learner.data.sheet import contact_sheet, is_image, write_png
from learner.data.statistics import FieldStatistics
from learner.data.survey import survey
from learner.errors import LearnerError
from learner.util.text import aligned, count, duration, short

MOST_LABELS = 20  # that are listed
MOST_IMAGES = 64
MOST_NUMBERS = 8  # of an item's array that are shown


class DatasetReport:
    """Fields, shapes, types, counts of labels, ranges, a few items and the speed of data; as a text, tables for people.

    It reads one epoch, or the beginning of it. Data that can be read once (a generator) is refused: pass the function.

    Args:
      data: a loader or anything else that gives batches, whose rows per second are measured; or a dataset, a dict of
        arrays, a bunch, whose items are.
      split: its name.
      rows: read at most so many, up to the end of a batch.
      seconds: and for so long.
      items: show so many of the first ones.
      clock: seconds.

    Attributes:
      split: as given.
      fields: `FieldStatistics` by name, of the rows that were read.
      rows: how many those are.
      num_rows: how many there are in an epoch; `None` where the data does not say.
      num_batches: the same of batches; `None` for a dataset, too.
      batch_rows: how many rows the first batch has; `None` for a dataset.
      whole: whether the epoch was read to its end.
      took: seconds in which batches were waited for, of which `first` for the first one.
      items: the first ones: by field an array each.

    Raises:
      LearnerError: it is no data, holds nothing, or fails when it is read.

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
        self.whole = False
        self.batch_rows: int | None = None
        if not isinstance(seconds, int | float) or not seconds > 0:
            raise LearnerError(
                f"seconds is {seconds!r}: give a number above 0", code="data-seconds-value", seconds=seconds
            )
        self._images: dict[str, list[np.ndarray]] = {}
        self._wanted = whole_number("items", items, least=0)
        self.took = self.first = 0.0
        self._first_rows = 0
        found = survey(data, split)
        self.num_rows, self.num_batches = found.num_rows, found.num_batches
        self._name, self._label_names = found.name, found.labels
        with contextlib.closing(found.batches) as batches:
            self._read(batches, whole_number("rows", rows, least=1), seconds, clock)
        if not self.rows:
            raise LearnerError(f"the {split} data has no rows", code="data-without-rows", split=split)
        if self.whole:
            self.num_rows = self.rows

    def _read(
        self, batches: Iterator[dict[str, np.ndarray]], rows: int, seconds: float, clock: Callable[[], float]
    ) -> None:
        """Only the time in which a batch is waited for counts."""
        while self.rows < rows and self.took < seconds:
            before = clock()
            batch = next(batches, None)
            waited = clock() - before
            if batch is None:
                self.whole = True
                return
            self.took += waited
            length = len(next(iter(batch.values())))
            if not self.rows:
                self.first, self._first_rows = self.took, length
            self._add(batch, length)
        self.whole = self.rows == self.num_rows or (self.num_rows is None and next(batches, None) is None)

    def _add(self, batch: dict[str, np.ndarray], length: int) -> None:
        for name, rows in batch.items():
            self.fields.setdefault(name, FieldStatistics(name)).add(rows)
            kept = self._images.setdefault(name, [])
            if len(kept) < MOST_IMAGES and is_image(rows.shape[1:]) and rows.dtype.kind in "biuf":
                kept += [np.array(row) for row in rows[: MOST_IMAGES - len(kept)]]
        for row in range(min(length, self._wanted - len(self.items))):
            self.items.append({name: np.array(rows[row]) for name, rows in batch.items()})
        if not self.rows and self.num_batches is not None:
            self.batch_rows = length
        self.rows += length

    @property
    def rows_per_second(self) -> float:
        """Rows that were read in a second, after the first batch where there are more; without placing on a device."""
        if self.rows > self._first_rows:
            return (self.rows - self._first_rows) / max(self.took - self.first, 1e-9)
        return self.rows / max(self.took, 1e-9)

    def image_fields(self) -> list[str]:
        """The fields whose rows look like images."""
        return [name for name, images in self._images.items() if images]

    def save_images(self, path: str | os.PathLike[str], field: str | None = None, columns: int = 8) -> int:
        """Writes the first images, up to 64, side by side into a PNG file, in the order of the rows.

        Args:
          path: of the file.
          field: of the images; default: the first one that has images.
          columns: images in a row.

        Returns:
          How many there are in it.

        Raises:
          LearnerError: the field has none.
        """
        chosen = field if field is not None else next(iter(self.image_fields()), "")
        images = self._images.get(chosen) or []
        if not images:
            raise LearnerError(
                f"the {self.split} data has no images{f' in {field!r}' if field else ''}",
                code="data-without-images",
                field=field,
            )
        write_png(path, contact_sheet(images, columns))
        return len(images)

    def __str__(self) -> str:
        return "\n".join([self._heading(), "", *self._table(), *self._labels(), *self._shown(), "", self._speed()])

    def _heading(self) -> str:
        number = "unknown length" if self.num_rows is None else count(self.num_rows, "row")
        batches = (
            "" if self.num_batches is None else f", {count(self.num_batches, 'batch')}".replace("batchs", "batches")
        )
        size = "" if self.batch_rows is None else f" of {self.batch_rows}"
        part = "" if self.whole else f"; what follows is of the first {count(self.rows, 'row')}"
        return f"{self.split}: {number} of {self._name}{batches}{size}{part}"

    def _table(self) -> list[str]:
        rows = [["field", "shape", "dtype", "least", "mean", "greatest", "NaN", "infinite"]]
        for each in self.fields.values():
            numbers = ["-" if x is None else short(x) for x in (each.low, each.mean, each.high)]
            rows.append(
                [short(each.name), _shape(each.shape), each.dtype, *numbers, *map(str, (each.nans, each.infinities))]
            )
        return aligned(rows)

    def _labels(self) -> list[str]:
        lines = []
        for each in self.fields.values():
            counts = each.counts
            if counts and len(counts) <= MOST_LABELS and len(counts) < each.rows:
                said = ", ".join(f"{self._label(each.name, value)}: {number:,}" for value, number in counts.items())
                lines.append(f"{short(each.name)}: {said}")
            elif counts and len(counts) < each.rows / 2:
                least, most = min(counts.values()), max(counts.values())
                lines.append(f"{short(each.name)}: {len(counts)} values, each {least:,} to {most:,} times")
        return ["", *lines] if lines else []

    def _label(self, field: str, value: Any) -> str:
        names = self._label_names.get(field, ())
        name = f" ({short(names[value])})" if isinstance(value, int) and 0 <= value < len(names) else ""
        return f"{short(str(value))}{name}"

    def _shown(self) -> list[str]:
        lines = [
            f"item {number}: " + "; ".join(f"{short(name)} {_said(value)}" for name, value in item.items())
            for number, item in enumerate(self.items)
        ]
        return ["", *lines] if lines else []

    def _speed(self) -> str:
        rate = f"{self.rows_per_second:,.0f} rows per second"
        return f"read in {duration(self.took)}: {rate}; {duration(self.first)} to the first batch"


def _shape(shape: Sequence[int | None] | None) -> str:
    return str(list(shape or ())).replace("None", "?")


def _said(value: np.ndarray) -> str:
    """A number or a text as it is, of an array its first numbers."""
    if value.ndim == 0:
        return short(value.item()) if value.dtype.kind in "fUbiu" else short(str(value.item()))
    first = [short(x) if isinstance(x, float | str) else str(x) for x in value.ravel()[:MOST_NUMBERS].tolist()]
    return f"[{', '.join(first)}{', ...' if value.size > len(first) else ''}]"
