"""Tables in memory: columns as arrays, and texts as numbers of labels."""

import collections
import dataclasses
import datetime
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from learner.data.array_dataset import ArrayDataset
from learner.data.dataset import Dataset
from learner.data.input_files import PathLike, present_files
from learner.data.rounding import equal_as_float32
from learner.data.sources.column_spec import ColumnSpec
from learner.errors import LearnerError, near, one_error
from learner.util.text import count
from learner.util.user_warnings import warn

MOST_PROBLEMS = 5
MOST_COUNTED = 100_000
FLOAT32, UINT64 = np.dtype(np.float32), np.dtype(np.uint64)
DEEPEST = 32  # nested lists, which are the axes of an array

LONGEST_NUMERAL = 1000  # longer texts would be copied
SHOWN = 40  # characters of a text in an error, enough for a date
DATE_HINT = ": of dates make numbers first, such as the days since the first one"

Place = Callable[[int], str]


class Table(ArrayDataset):
    """Columns of a table, in memory.

    Attributes:
      labels: for each field with labels the texts, in the order of their numbers. Views that select or join rows have
        the attribute, too.
      rounded: for columns of which float32 loses whole numbers, or most differences, a warning.

    >>> table = Table({"label": np.array([1, 0], np.int32)}, {"label": ("cat", "dog")})
    >>> table.labels["label"][table[0]["label"]]
    'dog'
    """

    def __init__(self, arrays: Any, labels: Mapping[str, Sequence[str]]) -> None:
        super().__init__(arrays)
        self.rounded: dict[str, str] = {}
        self.labels = {field: tuple(names) for field, names in labels.items()}

    def __repr__(self) -> str:
        return super().__repr__().replace("ArrayDataset", "Table", 1)

    def _with_leaves(self, leaves: list[np.ndarray]) -> Dataset:
        return Table(self._structure.unflatten(leaves), self.labels)


def table(what: str, spec: ColumnSpec, cells: Mapping[str, Any], place: Place) -> Table:
    """Return columns as a table.

    Args:
      what: the table, for messages.
      spec: the fields of the table.
      cells: the values of each column, one for each row: numbers, texts, lists of numbers, `None` if missing; or an
        array.
      place: returns the place of row number i (from 0) in the file, for messages.

    Raises:
      LearnerError: values are missing, of the wrong type, unknown or uneven (the message has the first places).

    >>> from learner.data.sources.column_spec import parse_columns
    >>> spec = parse_columns("a.csv", ["size", "kind"], None, None, {"kind": None}, None)
    >>> rows = table("a.csv", spec, {"size": [1, 2.5], "kind": ["dog", "cat"]}, place=lambda row: f"line {row + 2}")
    >>> rows.arrays["size"], rows.arrays["kind"], rows.labels
    (array([1. , 2.5], dtype=float32), array([1, 0], dtype=int32), {'kind': ('cat', 'dog')})
    """
    if not len(next(iter(cells.values()))):
        raise LearnerError(f"{what} has no rows", code="data-without-rows")
    problems = RowProblems()
    rounded: dict[str, str] = {}
    arrays: dict[str, np.ndarray] = {}
    labels: dict[str, Sequence[str]] = {}
    for field in spec.fields:
        columns = spec.of(field)
        if field in spec.labels:
            names = spec.labels[field]
            texts = [cells[name] for name in columns]
            labels[field] = names_in(texts, spec.missing is not None) if names is None else list(map(str, names))
        parts = []
        for name in columns:
            column = Column(name, field, cells[name], place, problems, rounded)
            if field in labels:
                part = column.codes(labels[field], spec.labels[field] is not None, spec.unknown.get(field))
            else:
                part = column.numbers(spec.missing, spec.dtypes.get(field))
            parts.append(column.converted(part, spec.dtypes.get(field)))
        if not problems:
            is_one = isinstance(spec.fields[field], str)
            arrays[field] = parts[0] if is_one else _side_by_side(what, field, columns, parts, rounded)
    if problems:
        raise one_error(
            [f"{what}, {problem}" for problem in problems.texts()],
            f"{what} cannot be read",
            code="data-columns-unreadable",
            more=problems.further,
        )
    result = Table(arrays, labels)
    result.rounded = rounded
    return result


def read_files(paths: list[PathLike] | PathLike, what: str, read: Callable[[Path], Table]) -> Table:
    """Return the rows of one or several files, concatenated; see `present_files`. Warn once for each column of which
    float32 loses whole numbers, or most differences.
    """
    files = present_files(paths, what)
    named: list[tuple[str, Table]] = []
    for file in files:
        try:
            named.append((str(file), read(file)))
        except LearnerError as error:
            # Programs that write a table in parts also write empty ones.
            if error.code != "data-without-rows" or (file == files[-1] and not named):
                raise
    joined = join_tables(named)
    for text in joined.rounded.values():
        warn(text)
    return joined


def join_tables(named: Sequence[tuple[str, Table]]) -> Table:
    """Return the rows of tables, concatenated. Labels are renumbered if the tables' texts differ.

    Args:
      named: the tables with their names, for messages. Their labels are either given, or all texts of each table,
        sorted.

    Raises:
      LearnerError: their fields or shapes differ.

    >>> a = Table({"x": np.array([1, 2], np.int32), "kind": np.array([0, 0], np.int32)}, {"kind": ["dog"]})
    >>> b = Table({"x": np.array([0.5], np.float32), "kind": np.array([0], np.int32)}, {"kind": ["cat"]})
    >>> both = join_tables([("a.csv", a), ("b.csv", b)])
    >>> both.arrays["x"], both.arrays["kind"], both.labels
    (array([1. , 2. , 0.5], dtype=float32), array([1, 1, 0], dtype=int32), {'kind': ('cat', 'dog')})
    """
    names, tables = [name for name, _ in named], [table for _, table in named]
    if len(tables) == 1:
        return tables[0]
    shapes = [{field: array.shape[1:] for field, array in table.arrays.items()} for table in tables]
    for name, fields in zip(names, shapes, strict=True):
        if fields != shapes[0]:
            raise LearnerError(
                f"{name} has other fields than {names[0]}: {_fields_text(fields)}, and {_fields_text(shapes[0])}; "
                "fields= reads only those that all files have",
                code="data-files-differ",
            )
    labels, arrays = {}, {}
    rounded: dict[str, str] = {}
    for table in tables:
        rounded = {**table.rounded, **rounded}  # of the first file
    for field in shapes[0]:
        parts = [table.arrays[field] for table in tables]
        texts = [table.labels[field] for table in tables if field in table.labels]
        if texts:
            labels[field] = texts[0]
        if any(one != texts[0] for one in texts):
            labels[field] = tuple(sorted(set(itertools.chain(*texts))))
            parts = [_renumbered(field, *pair, labels[field]) for pair in zip(parts, texts, strict=True)]
        arrays[field] = _of_one_type(field, "files", parts, np.concatenate(parts))
        for part in parts:
            _note_integers(field, field, part, arrays[field].dtype, rounded)
    result = Table(arrays, labels)
    result.rounded = rounded
    return result


def _renumbered(field: str, codes: np.ndarray, texts: Sequence[str], names: Sequence[str]) -> np.ndarray:
    """Return the numbers that the texts of labels have in `names`, in the dtype of `codes`."""
    numbers = {name: number for number, name in enumerate(names)}
    new = np.array([numbers[text] for text in texts], np.int32)[codes.astype(np.intp)]
    result = new.astype(codes.dtype)
    if not np.array_equal(result, new):
        raise LearnerError(
            f"the {len(names)} labels of {field!r} in all files do not fit into {codes.dtype} (dtypes)",
            code="data-labels-dtype",
        )
    return result


def unknown_hint(field: str) -> str:
    """Return the remedy for texts that are none of a field's labels."""
    return f"give such texts a number, unknown={{{field!r}: ...}}"


def _of_one_type(field: str, sources: str, parts: Sequence[np.ndarray], joined: np.ndarray) -> np.ndarray:
    """Return the array joined of the parts of a field in its type: some parts may be integers, and others floats.
    `sources`: the origins of the parts, for messages.
    """
    kinds = {part.dtype.kind for part in parts}
    if joined.dtype.kind == "f" and "f" not in kinds:
        types = ", ".join(sorted({str(part.dtype) for part in parts}))
        raise LearnerError(
            f"the field {field!r} has the types {types} in its {sources}, and no integer type holds all of them: give "
            "dtypes=",
            code="data-files-differ",
        )
    # int32 and float32 become float64, but a single column with both kinds of numbers has float32.
    widest = max(part.dtype.itemsize for part in parts if part.dtype.kind == joined.dtype.kind)
    return _narrow(joined) if joined.dtype.itemsize > widest else joined


def _fields_text(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{field} {list(shape)}" for field, shape in shapes.items())


def names_in(columns: Sequence[Sequence[Any]], has_empty: bool) -> list[str]:
    """Return the texts of columns, sorted. `has_empty`: missing ones count as empty texts."""
    texts = {
        "" if value is None else str(value) for column in columns for value in column if has_empty or value is not None
    }
    return sorted(texts)


def _side_by_side(
    what: str, field: str, names: Sequence[str], parts: Sequence[np.ndarray], rounded: dict[str, str]
) -> np.ndarray:
    """Return the columns of a field as the last axis of one array. Note integers that its type changes in `rounded`."""
    shapes = {part.shape for part in parts}
    if len(shapes) > 1:
        raise LearnerError(
            f"{what}: the columns of the field {field!r} differ in shape: {sorted(shapes)}",
            code="data-column-shapes-differ",
            field=field,
        )
    array = _of_one_type(field, "columns", parts, np.stack(parts, axis=-1))
    for name, part in zip(names, parts, strict=True):
        _note_integers(name, field, part, array.dtype, rounded)
    return array


@dataclasses.dataclass
class RowProblems:
    """The problems of the rows of a table; the same problem of one column is one, however many rows have it. Only the
    first ones are stored, as the messages of millions of rows would take more memory than the rows.
    """

    _further: set[int] = dataclasses.field(default_factory=set)  # hashes of the others
    _rows: dict[str, int] = dataclasses.field(default_factory=dict)
    _places: dict[str, str] = dataclasses.field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self._rows)

    @property
    def is_full(self) -> bool:
        """True if further problems are only counted."""
        return len(self._rows) >= MOST_PROBLEMS

    @property
    def further(self) -> int:
        """The number of problems that are not stored, at most `MOST_COUNTED`."""
        return len(self._further)

    def add(self, text: str, place: Callable[[], str], rows: int) -> None:
        """Add a problem. `place`: returns the place of its first row."""
        if text not in self._rows and self.is_full:
            if len(self._further) < MOST_COUNTED:
                self._further.add(hash(text))
            return
        if text not in self._rows:
            self._places[text] = place()
        self._rows[text] = self._rows.get(text, 0) + rows

    def texts(self) -> list[str]:
        """Return each problem with the place of its first row, and the number of the others."""
        more = {text: f" (and {count(rows - 1, 'more row')})" if rows > 1 else "" for text, rows in self._rows.items()}
        return [f"{place}: {text}{more[text]}" for text, place in self._places.items()]


@dataclasses.dataclass
class Column:
    """A column of a table, to be converted to an array. Errors in its values are added to `problems`."""

    name: str
    field: str
    values: Any
    place: Place
    problems: RowProblems
    rounded: dict[str, str]

    def codes(self, names: Sequence[str], listed: bool, unknown: int | None) -> np.ndarray:
        """Return the number of each text in `names`, int32, and `unknown` for others, if given. `listed`: the user has
        listed them.
        """
        numbers: dict[str, int] = {name: number for number, name in enumerate(names)}
        codes = [numbers.get("" if value is None else str(value)) for value in self.values]
        if None in codes:
            rows_of: dict[str | None, list[int]] = {}
            for row in [row for row, code in enumerate(codes) if code is None]:
                value = self.values[row]
                if value is not None and unknown is not None:
                    codes[row] = unknown
                else:
                    rows_of.setdefault(None if value is None else str(value)[:SHOWN], []).append(row)
            for text, rows in rows_of.items():
                # The distances of texts that are only counted would take minutes.
                problem = repr(text) if self.problems.is_full else self._no_label(text, list(numbers)[:20], listed)
                self._add_problem(rows[0], problem, len(rows))
        return np.array([-1 if code is None else code for code in codes], np.int32)

    def _no_label(self, text: str | None, known: Sequence[str], listed: bool) -> str:
        if text is None:
            remedy = f"labels={{{self.field!r}: ['', ...]}}" if listed else "missing=-1, or a list with '',"
            return f"it is missing; {remedy} gives empty cells a number"
        hint = near(text, known).removesuffix("?")
        return f"{text!r} is none of its labels: {hint}, or {unknown_hint(self.field)}"

    def numbers(self, missing: float | None, dtype: np.dtype[Any] | None) -> np.ndarray:
        """Return the values as an array, bool, int64 or float64, or uint64 if that is the field's `dtype`; arrays are
        returned unchanged.
        """
        if isinstance(self.values, np.ndarray) and self.values.dtype.kind in "biuf":
            return self.values
        values = list(self.values)
        kinds = set(map(type, values))
        if missing is not None and type(None) in kinds and list not in kinds:  # no number replaces a list
            values = [missing if value is None else value for value in values]
            kinds = set(map(type, values))
        if not kinds <= {bool, int, float, list} or (list in kinds and len(kinds) > 1):
            self._no_numbers(values)
            return np.zeros(0)
        if list in kinds:
            return self._nested(values)
        if float in kinds or kinds == {bool}:
            return np.array(values, np.float64 if float in kinds else np.bool_)
        return self._integers(values, dtype)

    def converted(self, array: np.ndarray, dtype: np.dtype[Any] | None) -> np.ndarray:
        """Return an array converted to a dtype, which must preserve its numbers (but floats may be rounded). Default:
        int32 and float32 if the numbers fit, or the array unchanged if the column was an array.
        """
        if dtype is None:
            return array if array is self.values else self.narrowed(array)
        if array.dtype == dtype or self.problems:
            return array
        with np.errstate(invalid="ignore", over="ignore"):
            result = array.astype(dtype)
            same = result == array if dtype.kind != "f" else np.isfinite(result) == np.isfinite(array)
        for row in np.flatnonzero(~same.reshape(len(same), -1).all(axis=1)):
            self._add_problem(int(row), f"{array[row].tolist()} does not fit into {dtype}")
        return result

    def narrowed(self, array: np.ndarray) -> np.ndarray:
        """Return the values in 32 bits if they fit. Note values that float32 changes."""
        narrow = _narrow(array)
        if narrow.dtype == np.float32 and not self.problems:
            self._note_rounded(array.ravel(), narrow.ravel())
            if self.name not in self.rounded and array.size:
                self._note_equal(array)
        return narrow

    def _note_equal(self, wide: np.ndarray) -> None:
        """Note two values that are equal as float32, as are most of the first ones."""
        if (pair := equal_as_float32(wide)) is not None:
            self.rounded[self.name] = (
                f"column {self.name!r} holds {pair[0]} and {pair[1]}, which are equal as float32, as are most of its "
                f"values: read times with dtypes={{{self.field!r}: 'float64'}}, and subtract the first time. For "
                f"measurements, dtypes={{{self.field!r}: 'float32'}} hides this warning"
            )

    def _note_rounded(self, wide: np.ndarray, narrow: np.ndarray) -> None:
        """Note whole numbers that differ as float32. Beyond 2**53 each float64 is one: there only integers count."""
        rows = np.flatnonzero((np.abs(wide) > 2**24) & (wide == np.rint(wide)) & np.isfinite(wide))
        rows = rows[(narrow[rows] != wide[rows]) | (np.abs(wide[rows]) >= 2**53)]
        if not len(rows):
            return
        values = np.array(self.values, object).ravel()[rows]
        whole = [x for x in values if type(x) is int or (type(x) is float and abs(x) < 2**53)]
        _note_rounded(self.name, self.field, whole, self.rounded)

    def _no_numbers(self, values: Sequence[Any]) -> None:
        any_number = any(isinstance(value, int | float) for value in values)
        any_list = any(isinstance(value, list) for value in values)
        for row, value in enumerate(values):
            if value is None:
                no_number = "a column of lists needs one in each row"
                remedy = no_number if any_list else "missing= sets the number that replaces it"
                self._add_problem(row, f"it is missing: {remedy}")
            elif isinstance(value, str) and _is_infinite(value):
                self._add_problem(row, f"{value[:SHOWN]!r} is too large for a number of 64 bits")
            elif isinstance(value, str):
                hint = "" if any_number else f" (labels={{{self.field!r}: None}} numbers the texts; null in YAML)"
                hint = DATE_HINT if _is_date(value[:SHOWN]) else hint
                self._add_problem(row, f"{value[:SHOWN]!r} is not a number{hint}")
            elif type(value) not in (bool, int, float) and (any_number or not isinstance(value, list)):
                self._add_problem(row, f"a {type(value).__name__} is not a number")

    def _integers(self, values: list[int], dtype: np.dtype[Any] | None) -> np.ndarray:
        """Return integers in the type of 64 bits for the field's `dtype`."""
        is_float = dtype is not None and dtype.kind == "f"
        wide = np.dtype(np.float64) if is_float else UINT64 if dtype == UINT64 else np.dtype(np.int64)
        limits: Any = np.finfo(wide) if is_float else np.iinfo(wide)
        least, most = int(limits.min), int(limits.max)
        for row in [row for row, value in enumerate(values) if not least <= value <= most]:
            self._add_problem(row, f"{values[row]} does not fit into {wide}")
            values[row] = 0
        return np.array(values, wide)

    def _nested(self, values: Sequence[Any]) -> np.ndarray:
        """Return lists of numbers as an array, if all have one shape."""
        shapes: list[Any] = []
        for value in values:
            if not _all_numbers(value, DEEPEST):  # NumPy would make all texts as long as the longest one
                shapes.append("its list holds other values than numbers")
                continue
            try:
                array = np.array(value)
                shapes.append(array.shape if array.dtype.kind in "biuf" else "a number in its list takes over 64 bits")
            except (ValueError, OverflowError):
                shapes.append("its list mixes numbers and lists, or lists of different lengths")
        usual = collections.Counter(shape for shape in shapes if not isinstance(shape, str)).most_common(1)
        for row, shape in enumerate(shapes):
            if isinstance(shape, str):
                self._add_problem(row, shape)
            elif shape != usual[0][0]:
                self._add_problem(row, f"its list has the shape {list(shape)}, and most have {list(usual[0][0])}")
        return np.zeros(0) if self.problems else np.array(values)

    def _add_problem(self, row: int, problem: str, rows: int = 1) -> None:
        """Add a problem of the first of some rows."""
        self.problems.add(f"column {self.name!r}: {problem}", lambda: self.place(row), rows)


def _is_infinite(text: str) -> bool:
    """Return True for numerals beyond the largest float64, but not for `inf`."""
    try:
        return len(text) < LONGEST_NUMERAL and math.isinf(float(text)) and any(map(str.isdigit, text))
    except ValueError:
        return False


def _is_date(text: str) -> bool:
    try:
        return bool(datetime.datetime.fromisoformat(text))
    except ValueError:
        return False


def _all_numbers(value: list[Any], depth: int) -> bool:
    """Return True if a list contains only numbers, or lists of numbers nested at most `depth` deep."""
    kinds = set(map(type, value))
    if list in kinds:
        return depth > 1 and all(_all_numbers(item, depth - 1) for item in value if isinstance(item, list))
    return kinds <= {bool, int, float}


def _note_integers(name: str, field: str, part: np.ndarray, dtype: np.dtype[Any], rounded: dict[str, str]) -> None:
    """Add a warning for a part of a field if the field's type changes one of its integers."""
    if part.dtype.kind in "iu" and dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            differs = part.astype(dtype).astype(part.dtype) != part
        _note_rounded(name, field, part[differs], rounded, dtype)


def _note_rounded(
    name: str, field: str, whole: Iterable[Any], rounded: dict[str, str], dtype: np.dtype[Any] = FLOAT32
) -> None:
    """Add a warning for a column if one of its whole numbers differs in a type of floats."""
    first = next((int(x) for x in whole if int(dtype.type(x)) != int(x)), None)
    if first is not None:
        rounded[name] = (
            f"column {name!r} holds {first}, which is {dtype.type(first):.0f} as {dtype}, the type of a field with "
            "fractions: give ids as integers, in a separate field, and subtract the first time from times. For "
            f"measurements, dtypes={{{field!r}: {str(dtype)!r}}} hides this warning"
        )


def _narrow(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):
            narrow = array.astype(np.float32)
        return narrow if np.array_equal(np.isinf(narrow), np.isinf(array)) else array
    limits = np.iinfo(np.int32)
    fits = array.dtype.kind == "i" and array.size and limits.min <= array.min() and array.max() <= limits.max
    return array.astype(np.int32) if fits else array
