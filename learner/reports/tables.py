"""The numbers of a run as one table for other programs."""

import bisect
import contextlib
import csv
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from learner.errors import LearnerError, near
from learner.runs.run_reader import RunReader
from learner.util.json_values import encode
from learner.util.optional import import_optional
from learner.util.text import utf8_safe

COLUMNS = ("split", "metric", "level", "epoch", "step", "value", "text")
BATCH = 65_536
"""Rows written to a Parquet file at once."""
Row = tuple[str, str, str, int, int, float | None, str | None]


def rows(run: RunReader) -> Iterator[Row]:
    """Yield every number in the files of a run.

    Yields:
      `split`; `metric`, its name; `level`: `step` for the value of one optimizer step, or `split` for the value of a
      whole split; `epoch` and `step`, during and after which it was measured; `value`; and `text`, if the value is not
      a number.
    """
    epochs, ends = list(run.ends), list(run.ends.values())
    epochs.append(run.epochs + 1)  # has not ended
    for key in run.keys:
        split, name = utf8_safe(key).split("/", 1)
        if split == "train":
            series = run.steps(key)
            for step, value in zip(series.step.tolist(), series.mean.tolist(), strict=True):
                yield split, name, "step", epochs[bisect.bisect_left(ends, step)], step, value, None
        for point in run.points(key) if key in run.history else ():
            if isinstance(point.value, str):
                yield split, name, "split", point.epoch, point.step, None, utf8_safe(point.value)
            else:
                yield split, name, "split", point.epoch, point.step, float(point.value), None


def write_table(path: str | os.PathLike[str], run: RunReader, kind: str) -> int:
    """Write the numbers of a run to a file, atomically.

    Args:
      path: the path of the file.
      run: the run to export.
      kind: `csv`, `jsonl` (one JSON object per line) or `parquet`. Only Parquet stores numbers that are not finite as
        such; the other formats write NaN, Infinity and -Infinity, in JSON as texts.

    Returns:
      The number of rows.

    Raises:
      LearnerError: the kind is unknown, the run has no numbers, the file cannot be written, or pyarrow, which Parquet
        needs, is not installed.
    """
    if kind not in KINDS:
        raise LearnerError(
            f"the format is {kind!r}: {near(kind, list(KINDS))}", code="report-format-unknown", kind=kind
        )
    if not run.keys:
        raise LearnerError(f"{run.directory} has no numbers yet", code="report-without-numbers")
    partial = Path(f"{os.fspath(path)}.partial")
    counted = _Counted(rows(run))
    try:
        partial.unlink(missing_ok=True)  # it may be a link, which would be written through
        KINDS[kind](partial, counted)
        partial.replace(path)
    except OSError as error:
        raise LearnerError(
            f"the numbers cannot be written to {os.fspath(path)}: {error}", code="report-not-written"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
    return counted.count


class _Counted:
    def __init__(self, given: Iterable[Row]):
        self._given, self.count = given, 0

    def __iter__(self) -> Iterator[Row]:
        for row in self._given:
            self.count += 1
            yield row


def _csv(path: Path, given: Iterable[Row]) -> None:
    with path.open("x", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows([encode(cell) for cell in row] for row in given)


def _jsonl(path: Path, given: Iterable[Row]) -> None:
    with path.open("x", encoding="utf-8") as file:
        for row in given:
            values = {name: encode(cell) for name, cell in zip(COLUMNS, row, strict=True) if cell is not None}
            file.write(json.dumps(values, allow_nan=False) + "\n")


def _parquet(path: Path, given: Iterable[Row]) -> None:
    pyarrow, parquet = (import_optional(name, "parquet", "Parquet") for name in ("pyarrow", "pyarrow.parquet"))
    types = {"epoch": pyarrow.int64(), "step": pyarrow.int64(), "value": pyarrow.float64()}
    schema = pyarrow.schema([(name, types.get(name, pyarrow.string())) for name in COLUMNS])
    iterator = iter(given)
    with path.open("xb") as file, parquet.ParquetWriter(file, schema) as writer:
        while batch := list(itertools.islice(iterator, BATCH)):
            columns = dict(zip(COLUMNS, zip(*batch, strict=True), strict=True))
            writer.write_table(pyarrow.table({name: list(column) for name, column in columns.items()}, schema=schema))


KINDS: dict[str, Callable[[Path, Iterable[Row]], None]] = {"csv": _csv, "jsonl": _jsonl, "parquet": _parquet}
"""Writers by the name of their format, which is also the file extension."""
