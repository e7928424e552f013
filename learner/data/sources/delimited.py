"""CSV files: rows of cells, with the names of the columns in the first row."""

import csv as reading
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from learner.data.sources.columns import MOST_PROBLEMS, Table, table
from learner.data.sources.files import PathLike, opened, present, undecodable
from learner.data.sources.wanted import Fields, Labels, wanted
from learner.errors import LearnerError, one_error


def csv(
    path: PathLike,
    fields: Fields | None = None,
    *,
    dtypes: dict[str, str] | None = None,
    labels: Labels | None = None,
    missing: float | None = None,
    delimiter: str = ",",
    names: list[str] | None = None,
    encoding: str = "utf-8",
) -> Table:
    """The columns of a CSV file, in memory.

    Args:
      path: of the file, plain or packed by gzip.
      fields: for each field of an item its column, or a list of columns, which become one array `[rows, columns]`;
        or a list of columns, which keep their names. Default: every column is a field.
      dtypes: types of fields by NumPy's names. Default: int32 (int64 where they need it) where all cells are whole
        numbers, otherwise float32.
      labels: fields whose cells are texts, to be numbered: the texts in their order, or `None` for all that there are,
        sorted; or a list of such fields. Give the texts where several files must agree.
      missing: the number in place of an empty cell, such as `nan`. Default: an empty cell is an error.
      delimiter: between cells, a single character.
      names: of the columns, where the file has no row of names.
      encoding: of the file.

    Returns:
      A `Table`: an `ArrayDataset` with the names of labels.

    Raises:
      LearnerError: there is no such file or column; rows that are malformed or cells that do not fit, with their lines.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp(), "iris.csv")
    >>> _ = path.write_text("length,width,kind\\n5.1,3.5,setosa\\n6.2,3.4,virginica\\n")
    >>> iris = csv(path, fields={"features": ["length", "width"], "label": "kind"}, labels={"label": None})
    >>> iris
    Table(2 rows: features float32 [2], label int32 [])
    >>> iris.labels
    {'label': ('setosa', 'virginica')}
    """
    found = present(path, "csv")
    columns, rows, lines = _rows(found, delimiter, names, encoding)
    want = wanted(str(found), columns, fields, dtypes, labels, missing)
    texts = {name for field in want.labels for name in want.of(field)}
    numbers = {name for field in want.fields if field not in want.labels for name in want.of(field)}
    if both := sorted(texts & numbers):
        raise LearnerError(f"{found}: the column {both[0]!r} is in a field with labels and in one without")
    cells = {name: [row[number] or None for row in rows] for number, name in enumerate(columns) if name in want.columns}
    parsed = {name: column if name in texts else _parsed(column) for name, column in cells.items()}
    return table(str(found), want, parsed, lambda row: f"line {lines[row]}")


def _rows(
    path: Path, delimiter: str, names: list[str] | None, encoding: str
) -> tuple[list[str], list[list[str]], list[int]]:
    """The names of the columns, the cells of each row, and the line where it ends."""
    problems: list[str] = []
    rows: list[list[str]] = []
    lines: list[int] = []
    columns = names
    try:
        reading.reader([], delimiter=delimiter)
        "".encode(encoding)
    except (TypeError, LookupError) as error:
        raise LearnerError(f"csv: delimiter={delimiter!r}, encoding={encoding!r}: {error}") from error
    with opened(path) as stream, io.TextIOWrapper(stream, encoding, newline="") as text:
        reader = reading.reader(text, delimiter=delimiter, strict=True)
        try:
            for row in reader:
                if columns is None:
                    columns = _header(path, row)
                elif len(row) == len(columns):
                    rows.append(row)
                    lines.append(reader.line_num)
                elif row and len(problems) < MOST_PROBLEMS:
                    problems.append(f"{path}, line {reader.line_num}: {len(row)} cells, not {len(columns)}")
        except reading.Error as error:
            problems.append(f"{path}, after line {reader.line_num}: {error}")
        except UnicodeDecodeError as error:  # of a piece of the file: which line it is in, the reader does not know
            problems.append(f"{path}, line {undecodable(path, encoding)}: it is no {encoding} ({error.reason})")
    if problems:
        raise one_error(problems, f"{path} is malformed")
    return columns or [], rows, lines if rows else _nothing(path)


def _header(path: Path, row: Sequence[str]) -> list[str]:
    columns = [name.removeprefix("\ufeff").strip() for name in row]
    twice = sorted({name for name in columns if columns.count(name) > 1})
    if twice or "" in columns:
        wrong = f"has {twice[0]!r} twice" if twice and twice[0] else "has a column without a name"
        raise LearnerError(f"{path}: its first row {wrong}; without a row of names, give names=")
    return columns


def _nothing(path: Path) -> list[int]:
    raise LearnerError(f"{path} has no rows")


def _parsed(column: list[str | None]) -> list[Any]:
    """Cells as numbers; as they are where some are none."""
    for kind in (int, _float):
        try:
            return [None if cell is None else kind(cell) for cell in column]
        except ValueError:
            continue
    return [_number(cell) for cell in column]


def _number(cell: str | None) -> float | str | None:
    try:
        return None if cell is None else _float(cell)
    except ValueError:
        return cell


def _float(cell: str) -> float:
    value = float(cell)
    if math.isinf(value) and any(map(str.isdigit, cell)):
        raise ValueError(f"{cell} is too large")
    return value
