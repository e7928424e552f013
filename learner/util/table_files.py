"""Tables as files for other programs: CSV, JSON lines and Parquet."""

import contextlib
import csv
import io
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np

from learner.util.disk import replacing
from learner.util.json_values import encode
from learner.util.optional import import_optional

BATCH = 65_536
"""Rows written to a Parquet file at once."""
Columns = Mapping[str, Any]  # `str` or a NumPy dtype, by name
Rows = Iterable[Sequence[Any]]


def write_rows(path: str | os.PathLike[str], kind: str, columns: Columns, rows: Rows) -> int:
    """Write a table to a file, atomically, and return the number of rows.

    Args:
      path: the path of the file, which is replaced.
      kind: `csv`, `jsonl` (one JSON object per line) or `parquet`. Only Parquet stores numbers that are not finite as
        such; the other formats write NaN, Infinity and -Infinity, in JSON as texts.
      columns: the type of each column. In JSON lines, cells may be lists.
      rows: the cells of each row. None is an empty cell.

    Raises:
      LearnerError: pyarrow, which Parquet needs, is not installed.
      OSError: the file cannot be written.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "table.csv")
    >>> write_rows(path, "csv", {"name": str, "value": np.float32}, [("a", 0.5), ("b", float("nan"))])
    2
    >>> path.read_text().splitlines()
    ['name,value', 'a,0.5', 'b,NaN']
    """
    counter = itertools.count()
    counted = (row for row, _ in zip(rows, counter, strict=False))
    with replacing(path, flushes=False) as file:
        KINDS[kind](file, columns, counted)
    return next(counter)


@contextlib.contextmanager
def _texts(file: BinaryIO) -> Iterator[io.TextIOWrapper]:
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    try:
        yield text
    finally:
        text.detach()  # the file stays open


def _csv(file: BinaryIO, columns: Columns, rows: Rows) -> None:
    with _texts(file) as text:
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([encode(cell) for cell in row] for row in rows)


def _jsonl(file: BinaryIO, columns: Columns, rows: Rows) -> None:
    with _texts(file) as text:
        for row in rows:
            values = {name: encode(cell) for name, cell in zip(columns, row, strict=True) if cell is not None}
            text.write(json.dumps(values, allow_nan=False) + "\n")


def _parquet(file: BinaryIO, columns: Columns, rows: Rows) -> None:
    pyarrow, parquet = (import_optional(name, "parquet", "Parquet") for name in ("pyarrow", "pyarrow.parquet"))
    types = {
        name: pyarrow.string() if kind is str else pyarrow.from_numpy_dtype(np.dtype(kind))
        for name, kind in columns.items()
    }
    schema, iterator = pyarrow.schema(types.items()), iter(rows)
    with parquet.ParquetWriter(file, schema) as writer:
        while batch := list(itertools.islice(iterator, BATCH)):
            by_name = dict(zip(columns, map(list, zip(*batch, strict=True)), strict=True))
            writer.write_table(pyarrow.table(by_name, schema=schema))


KINDS: dict[str, Callable[[BinaryIO, Columns, Rows], None]] = {"csv": _csv, "jsonl": _jsonl, "parquet": _parquet}
"""Writers by the name of their format, which is also the file extension."""
