"""CSV files: rows of cells, with the names of the columns in the first row."""

import collections
import csv as reading
import io
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from learner.data.input_files import MemoryBudget, PathLike, opened, undecodable
from learner.data.sources.column_spec import Fields, Labels, are_texts, parse_columns
from learner.data.sources.table_arrays import MOST_PROBLEMS, Table, read_files, table
from learner.errors import LearnerError, one_error

LONGEST = 2**26  # characters of a line
ROW, POINTER, CELL = 88, 8, 88  # bytes: of a list and its entries, of an item, of a text and the number parsed from it


def csv(
    path: list[PathLike] | PathLike,
    fields: Fields | None = None,
    *,
    dtypes: dict[str, str] | None = None,
    labels: Labels | None = None,
    missing: float | None = None,
    unknown: dict[str, int] | None = None,
    null_values: list[str] | None = None,
    delimiter: str = ",",
    names: list[str] | None = None,
    encoding: str = "utf-8",
    max_memory: int | None = None,
) -> Table:
    """Return the columns of CSV files, in memory.

    Blank lines are skipped. In a file of one column, `missing` replaces them as empty cells, except at its end.

    Args:
      path: the path of the file, plain or gzip; a pattern such as `part-*.csv`, whose files are sorted by name; or a
        list of files, whose rows are concatenated.
      fields: for each field of an item its column, or a list of columns, which become one array `[rows, columns]`;
        or a list of columns, which keep their names. Default: every column is a field.
      dtypes: types of fields by NumPy's names. Default: int32 (int64 if they need it) if all cells are integers,
        otherwise float32.
      labels: text fields to be numbered: the texts in the order of their numbers, or `None` for all texts, sorted; or a
        list of such fields. Pass the texts if several splits must agree; an empty text among them stands for empty
        cells.
      missing: the number that replaces an empty cell, such as `nan` (in YAML `.nan`); for labels, use an empty text.
        Default: an empty cell is an error.
      unknown: for fields with labels, the number of texts that are none of them, such as `{"item": 1000}` for the place
        after 1000 labels. Default: such a text is an error.
      null_values: texts that stand for an empty cell, such as `["NA", "?"]`.
      delimiter: the character between cells.
      names: the names of the columns, if the file has no row of names.
      encoding: the encoding of the file.
      max_memory: the most that the cells of a file may take, in bytes. Default: 1000 times the file's size, at least
        512 MiB.

    Returns:
      A `Table`: an `ArrayDataset` with the names of labels.

    Raises:
      LearnerError: a file or column does not exist; a file needs too much memory; files differ in their fields; rows
        are malformed or cells do not fit (the message has their lines).

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp(), "iris.csv")
    >>> _ = path.write_text("length,width,kind\\n5.1,3.5,setosa\\n6.2,3.4,virginica\\n")
    >>> iris = csv(path, fields={"features": ["length", "width"], "label": "kind"}, labels={"label": None})
    >>> iris
    Table(2 rows: features float32 [2], label int32 [])
    >>> iris.labels
    {'label': ('setosa', 'virginica')}
    """

    nulls = () if null_values is None else null_values
    if not are_texts(nulls):
        raise LearnerError(f"null_values is {nulls!r}; it needs a list of texts", code="data-csv-null-values")
    if names is not None and (not are_texts(names) or len({*names}) < len(names)):
        raise LearnerError(f"names is {names!r}; it needs a list of texts, each once", code="data-csv-names")

    def read(file: Path) -> Table:
        budget = MemoryBudget(file, max_memory)
        columns, rows, lines = _rows(file, delimiter, names, encoding, budget, keeps_blank=missing is not None)
        spec = parse_columns(str(file), columns, fields, dtypes, labels, missing, unknown)
        texts = {name for field in spec.labels for name in spec.of(field)}
        numbers = {name for field in spec.fields if field not in spec.labels for name in spec.of(field)}
        if both := sorted(texts & numbers):
            raise LearnerError(
                f"{file}: the column {both[0]!r} is in a field with labels and in one without",
                code="data-column-labels-mixed",
            )
        needed, empty = set(spec.columns), {"", *nulls}
        cells = {
            name: [None if row[number] in empty else row[number] for row in rows]
            for number, name in enumerate(columns)
            if name in needed
        }
        parsed = {name: column if name in texts else _parsed(column) for name, column in cells.items()}
        return table(str(file), spec, parsed, lambda row: f"line {lines[row]}")

    return read_files(path, "csv", read)


def _rows(
    path: Path, delimiter: str, names: list[str] | None, encoding: str, budget: MemoryBudget, keeps_blank: bool
) -> tuple[list[str], list[list[str]], list[int]]:
    """Return the names of the columns, and for each row its cells and the line in which it ends. `keeps_blank`: blank
    lines are cells if there is one column.
    """
    blank = [""] if keeps_blank else []
    problems: list[str] = []
    rows: list[list[str]] = []
    lines: list[int] = []
    columns = names
    count = 0  # of rows up to the last line that is not blank
    try:
        reading.reader([], delimiter=delimiter)
        "".encode(encoding)
    except (TypeError, LookupError) as error:
        raise LearnerError(
            f"csv: delimiter={delimiter!r}, encoding={encoding!r}: {error}",
            code="data-csv-option-value",
            encoding=encoding,
        ) from error
    with opened(path) as stream, io.TextIOWrapper(stream, encoding, newline="") as text:
        limited = _Lines(text, path, budget)
        reader = reading.reader(limited, delimiter=delimiter, strict=True)
        try:
            for row in reader:
                characters, limited.characters = limited.characters, 0
                if columns is None:
                    columns = _header(path, row)
                elif len(row or blank) == len(columns):
                    budget.reserve(_bytes_of(row or blank, characters))
                    rows.append(row or blank)
                    lines.append(reader.line_num)
                    count = len(rows) if row else count
                elif row and len(problems) < MOST_PROBLEMS:
                    problems.append(f"{path}, line {reader.line_num}: {len(row)} cells, not {len(columns)}")
        except reading.Error as error:
            problems.append(f"{path}, after line {reader.line_num}: {error}")
        except UnicodeDecodeError as error:  # of a piece of the file: its line is unknown here
            problems.append(f"{path}, line {undecodable(path, encoding)}: it is not {encoding} ({error.reason})")
        except UnicodeError as error:  # such as UTF-16 without its mark
            problems.append(f"{path}: it is not {encoding} ({error})")
    if problems:
        raise one_error(problems, f"{path} is malformed", code="data-file-malformed")
    if not count:
        raise LearnerError(f"{path} has no rows", code="data-without-rows", path=path)
    del rows[count:], lines[count:]
    return columns or [], rows, lines


class _Lines:
    """Yields the lines of a file, without its byte order mark. Quoted cells may contain line ends, so the length is
    limited by row.

    Attributes:
      characters: the number of characters read of the current row; the reader of rows resets it after each row.
    """

    def __init__(self, text: io.TextIOWrapper, path: Path, budget: MemoryBudget) -> None:
        self._text, self._path, self._budget = text, path, budget
        self._longest = min(LONGEST, budget.limit // CELL)
        self._mark = "\ufeff"  # of the byte order, which some encodings leave in the text
        self.characters = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._text.readline(self._longest - self.characters + 1).removeprefix(self._mark)
        self._mark = ""  # only the first line begins with it
        if not line:
            raise StopIteration
        self.characters += len(line)
        if self.characters > self._longest:
            self._budget.require(CELL * self.characters)
            raise LearnerError(f"{self._path} has a row of more than {LONGEST} characters", code="data-row-too-long")
        return line


def _bytes_of(row: Sequence[str], characters: int) -> int:
    """Return the memory that a row takes, at most: its list, its cells, and the columns and numbers made from them.

    Empty cells and cells of one character are objects that Python shares. Others have two characters or more, so their
    number is at most the number of characters beyond one per cell and the delimiter after it.
    """
    count = len(row)
    return ROW + 3 * POINTER * count + 4 * characters + CELL * min(count, characters - 2 * count + 1 + row.count(""))


def _header(path: Path, row: Sequence[str]) -> list[str]:
    columns = [name.strip() for name in row]
    twice = sorted(name for name, count in collections.Counter(columns).items() if count > 1)
    if twice or "" in columns:
        problem = f"has {twice[0]!r} twice" if twice and twice[0] else "has a column without a name"
        raise LearnerError(
            f"{path}: its first row {problem}; without a row of names, give names=", code="data-csv-header", path=path
        )
    return columns


def _parsed(column: list[str | None]) -> list[Any]:
    """Return cells as numbers, where they are numbers."""
    for kind in (_int, _float):
        try:
            return [None if cell is None else kind(cell) for cell in column]
        except ValueError:
            continue
    return [_number(cell) for cell in column]


def _numeral(cell: str) -> str:
    """Return the cell, unless it is a number only in Python's syntax, such as `1_000`."""
    if "_" in cell or not cell.isascii():
        raise ValueError(f"{cell} is not a number")
    return cell


def _number(cell: str | None) -> float | str | None:
    try:
        return None if cell is None else _float(cell)
    except ValueError:
        return cell


def _int(cell: str) -> int:
    return int(_numeral(cell))


def _float(cell: str) -> float:
    value = float(_numeral(cell))
    if math.isinf(value) and any(map(str.isdigit, cell)):
        raise ValueError(f"{cell} is too large")
    # Large ids beside fractions stay integers, to be told from large measurements.
    return int(cell) if abs(value) >= 2**53 and cell.strip().lstrip("+-").isdigit() else value
