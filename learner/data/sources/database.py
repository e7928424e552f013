"""Tables of SQLite databases, read row by row."""

import contextlib
import operator
import os
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from learner.data.dataset import Dataset
from learner.data.indices import item_number
from learner.data.input_files import MemoryBudget, PathLike, present
from learner.data.sources.column_spec import ColumnSpec, Fields, Labels, parse_columns
from learner.data.sources.table_arrays import Column, RowProblems, names_in, unknown_hint
from learner.errors import LearnerError, near
from learner.util.user_warnings import warn

ROWID = ("rowid", "_rowid_", "oid")
ROWS = 10_000  # the first ones, in which it looks for numbers that float32 changes
CELLS = 2**20  # of them, at most
KEY = 64  # bytes of a key's value in Python


class SQLiteTable(Dataset):
    """The rows of a table or view in an SQLite database, each read on access.

    Rows are in the order of their `rowid`, of the primary key in a table `WITHOUT ROWID`, or of `key`. These keys are
    read once and stay in memory, 8 bytes a row if they are integers. The database is opened read-only, once per thread
    and process. Rows that are added later are ignored; accessing a removed row is an error.

    Args:
      path: the path of the database.
      table: the name of the table, or of the view, which needs `key`.
      fields: for each field of an item its column, or a list of columns, which become one array. Default: every column
        is a field.
      dtypes: types of fields by NumPy's names. A column of blobs with a type becomes an array of such numbers. Default:
        by the column's declared type, int32 (INT), float32 (other numbers), bytes (BLOB) or text (CHAR, CLOB, TEXT). A
        number that does not fit is an error; a warning names ids and times in the first rows that float32 changes.
      labels: text fields to be numbered: the texts in the order of their numbers, or `None` for all texts, sorted; an
        empty text among them stands for NULL.
      missing: the number that replaces NULL; in labels, NULL becomes an empty text. Default: NULL is an error.
      unknown: for fields with labels, the number of texts that are none of them. Default: such a text is an error.
      where: selects rows: an SQL expression, such as `split = 'train'`.
      key: the column, or columns, whose values identify a row, and define the order of the rows. The values must be
        unique, and not NULL. Default: the rowid, or the primary key if there is no rowid.
      max_memory: the most that the keys of all rows, or a single cell, may take, in bytes. Default: 1000 times the
        database's size, at least 512 MiB.

    Attributes:
      labels: for each field with labels the texts, in the order of their numbers.

    Raises:
      LearnerError: the database, table or column does not exist; there are no rows, or too many; nothing identifies the
        rows; or a cell does not fit (when it is read).

    >>> import tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "a.db")
    >>> with contextlib.closing(sqlite3.connect(path)) as database, database:
    ...     _ = database.execute("CREATE TABLE houses (rooms INT, area REAL, kind TEXT)")
    ...     _ = database.executemany("INSERT INTO houses VALUES (?, ?, ?)", [(3, 70.5, "flat"), (5, 120, "house")])
    >>> houses = SQLiteTable(path, "houses", fields={"x": ["rooms", "area"], "kind": "kind"}, labels={"kind": None})
    >>> len(houses), houses[1]["x"].tolist(), houses[1]["kind"].item(), houses.labels
    (2, [5.0, 120.0], 1, {'kind': ('flat', 'house')})
    """

    def __init__(
        self,
        path: PathLike,
        table: str,
        fields: Fields | None = None,
        *,
        dtypes: dict[str, str] | None = None,
        labels: Labels | None = None,
        missing: float | None = None,
        unknown: dict[str, int] | None = None,
        where: str | None = None,
        key: str | list[str] | None = None,
        max_memory: int | None = None,
    ) -> None:
        self._path = present(path, "SQLiteTable").absolute()
        self._name = f"{self._path}, table {table!r}"
        budget = MemoryBudget(self._path, max_memory)
        self._opened = _Connections(self._path, budget.limit)
        with self._readable():
            types = self._columns(table)
            self._spec = parse_columns(self._name, list(types), fields, dtypes, labels, missing, unknown)
            self._dtypes = {field: _dtype(self._spec, field, types) for field in self._spec.fields}
            self._key = self._default_key(table) if key is None else self._given_key(table, key, list(types), budget)
            self._keys = self._read_keys(table, where, budget)
            self.labels = {field: self._names(table, field) for field in self._spec.labels}
            self._codes = {f: {name: i for i, name in enumerate(names)} for f, names in self.labels.items()}
        for field, names in self.labels.items():
            numbers = {f"the number of {names[-1]!r}": len(names) - 1} if names else {}
            if field in self._spec.unknown:
                numbers[f"unknown.{field}"] = self._spec.unknown[field]
            for what, number in numbers.items():
                with np.errstate(over="ignore"):
                    value = np.array(number).astype(self._dtypes[field])
                if float(value) != number:
                    raise LearnerError(
                        f"{self._name}: {what} is {number}, which does not fit into {self._dtypes[field]}",
                        code="data-columns-unreadable",
                    )
        if not len(self._keys):
            raise LearnerError(
                f"{self._name} has no rows" + (f" where {where}" if where else ""), code="data-without-rows"
            )
        with self._readable():
            self._warn_of_rounding(table, where)
        columns = ", ".join(map(_quoted, self._spec.columns))
        condition = " AND ".join(f"{column} = ?" for column in self._key)
        self._query = f"SELECT {columns} FROM {_quoted(table)} WHERE {condition}"

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, index: int) -> dict[str, Any]:
        key = self._keys[item_number(index, len(self), "SQLiteTable")]
        values = key if isinstance(key, tuple) else (int(key),)
        place = f"{', '.join(self._key)} {', '.join(map(repr, values))}"
        with self._readable():
            row = self._opened.get().execute(self._query, values).fetchone()
        if row is None:
            raise LearnerError(f"{self._name}: the row with {place} was deleted", code="data-row-gone", place=place)
        cells = dict(zip(self._spec.columns, row, strict=True))
        return {field: self._item(field, cells, place) for field in self._spec.fields}

    def _item(self, field: str, cells: dict[str, Any], row: str) -> Any:
        parts = [self._value(field, name, cells[name], row) for name in self._spec.of(field)]
        if isinstance(self._spec.fields[field], str):
            return parts[0]
        try:
            return np.stack(parts, axis=-1)
        except ValueError as error:
            raise LearnerError(
                f"{self._name}, {row}: the field {field!r}: {error}", code="data-cell-unreadable", row=row, field=field
            ) from error

    def _value(self, field: str, name: str, cell: Any, row: str) -> Any:
        place = f"{self._name}, {row}, column {name!r}"
        dtype = self._dtypes[field]
        if field in self._codes:
            return np.array(self._code(field, cell, place), dtype)
        cell = self._spec.missing if cell is None else cell
        if cell is None:
            raise LearnerError(
                f"{place} is NULL (missing= sets the number that replaces it)", code="data-cell-null", place=place
            )
        try:
            return cell if dtype is None else _numbers(cell, dtype)
        except (TypeError, ValueError, OverflowError) as error:
            raise LearnerError(
                f"{place} does not fit into {dtype}: {error}", code="data-cell-too-large", place=place, dtype=dtype
            ) from error

    def _code(self, field: str, cell: Any, place: str) -> int:
        """Return the number of a label's text; NULL is the empty text."""
        text = "" if cell is None else str(cell)
        if (code := self._codes[field].get(text)) is not None:
            return code
        if cell is None:
            listed = self._spec.labels[field] is not None
            remedy = f"labels={{{field!r}: ['', ...]}}" if listed else "missing=-1, or a list with '',"
            raise LearnerError(f"{place} is NULL; {remedy} gives NULL a number", code="data-cell-null", place=place)
        if field in self._spec.unknown:
            return self._spec.unknown[field]
        hint = near(text[:40], self.labels[field][:20]).removesuffix("?")
        raise LearnerError(
            f"{place}: {text[:40]!r} is none of its labels: {hint}, or {unknown_hint(field)}",
            code="data-label-unknown",
            place=place,
        )

    def _columns(self, table: str) -> dict[str, str]:
        """Return the declared types of the columns by name."""
        database = self._opened.get()
        types = {row[1]: str(row[2]).upper() for row in database.execute(f"PRAGMA table_info({_quoted(table)})")}
        if not types:
            names = [
                row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
            ]
            raise LearnerError(
                f"{self._path} has no table {table!r}: {near(table, names)}", code="data-table-unknown", table=table
            )
        return types

    def _default_key(self, table: str) -> list[str]:
        """Return the columns, as SQL, that identify the rows of a table by default: its rowid, or its primary key."""
        database = self._opened.get()
        kinds = "SELECT type FROM sqlite_master WHERE name = ? COLLATE NOCASE AND type = 'view'"
        if not database.execute(kinds, (table,)).fetchall():
            columns = database.execute(f"PRAGMA table_info({_quoted(table)})").fetchall()
            # A column of that name hides the rowid, and its values need not be unique.
            hidden = {row[1].lower() for row in columns}
            for name in (name for name in ROWID if name not in hidden):
                with contextlib.suppress(sqlite3.OperationalError):  # WITHOUT ROWID
                    database.execute(f"SELECT {name} FROM {_quoted(table)} LIMIT 0")
                    return [name]
            primary = [_quoted(row[1]) for row in sorted(columns, key=lambda row: int(row[5])) if row[5]]
            if primary:
                return primary
        raise LearnerError(
            f"{self._name} has no rowid (it is a view, or columns hide it): "
            "give key=, the column or columns whose values identify a row",
            code="data-table-without-rowid",
        )

    def _given_key(self, table: str, key: str | list[str], columns: list[str], budget: MemoryBudget) -> list[str]:
        names = [key] if isinstance(key, str) else key
        if not isinstance(names, list | tuple) or not names:
            raise LearnerError(
                f"key is {key!r}: it needs a column, or a list of columns", code="data-key-type", key=key
            )
        for name in names:
            if name not in columns:
                raise LearnerError(
                    f"key: {self._name} has no column {name!r}: {near(str(name), columns)}",
                    code="data-column-unknown",
                    name=name,
                )
        quoted = list(map(_quoted, names))
        listed, source = ", ".join(quoted), _quoted(table)
        # A view may have more rows than fit in memory, or infinitely many. So they are counted before they are sorted.
        limit = budget.limit // KEY + 1
        ((count,),) = self._opened.get().execute(f"SELECT count(*) FROM (SELECT 1 FROM {source} LIMIT {limit})")
        budget.require(count * KEY)
        # In all rows, including those that `where` excludes: an item is looked up by its key alone.
        twice = f"SELECT {listed} FROM {source} GROUP BY {listed} HAVING count(*) > 1 LIMIT 1"
        for values in self._opened.get().execute(twice):
            raise LearnerError(
                f"{self._name}: several rows have the key {', '.join(map(repr, values))} ({listed})",
                code="data-key-twice",
            )
        return quoted

    def _read_keys(self, table: str, where: str | None, budget: MemoryBudget) -> Any:
        """Return the keys of all rows in their order: an array of integers, or a list of tuples."""
        listed, condition = ", ".join(self._key), f" WHERE {where}" if where is not None else ""
        query = f"SELECT {listed} FROM {_quoted(table)}{condition} ORDER BY {listed}"
        if len(self._key) == 1:
            with contextlib.suppress(TypeError):  # not integers
                return np.fromiter((operator.index(row[0]) for row in self._opened.get().execute(query)), np.int64)
        keys = []
        for row in self._opened.get().execute(query):
            if None in row:
                raise LearnerError(
                    f"{self._name}: the key of a row is NULL ({listed}); give another key=", code="data-key-null"
                )
            budget.reserve(
                KEY * (1 + len(row)) + 4 * sum(len(value) for value in row if isinstance(value, str | bytes))
            )
            keys.append(row)
        return keys

    def _warn_of_rounding(self, table: str, where: str | None) -> None:
        """Warn about columns of which float32, by default, loses numbers in the first rows."""
        fields = [
            field for field, dtype in self._dtypes.items() if dtype == np.float32 and field not in self._spec.dtypes
        ]
        field_of = {name: field for field in fields for name in self._spec.of(field)}
        if not field_of:
            return
        condition = f" WHERE {where}" if where is not None else ""
        limit = min(ROWS, CELLS // len(field_of))
        query = f"SELECT {', '.join(map(_quoted, field_of))} FROM {_quoted(table)}{condition} LIMIT {limit}"
        cells: dict[str, list[int | float]] = {name: [] for name in field_of}
        for row in self._opened.get().execute(query):
            for values, cell in zip(cells.values(), row, strict=True):
                if type(cell) in (int, float):  # texts and blobs are not kept
                    values.append(cell)
        rounded: dict[str, str] = {}
        for name, values in cells.items():
            Column(name, field_of[name], values, str, RowProblems(), rounded).narrowed(np.array(values, np.float64))
        for text in rounded.values():
            warn(text)

    def _names(self, table: str, field: str) -> tuple[str, ...]:
        labels = self._spec.labels[field]
        if labels is not None:
            return tuple(map(str, labels))
        texts: set[Any] = set()
        for name in map(_quoted, self._spec.of(field)):
            texts |= {row[0] for row in self._opened.get().execute(f"SELECT DISTINCT {name} FROM {_quoted(table)}")}
        return tuple(names_in([list(texts)], self._spec.missing is not None))

    @contextlib.contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise LearnerError(f"{self._name} cannot be read: {error}", code="data-file-unreadable") from error


class _Connections:
    """A connection for each thread of each process: SQLite connections must not be shared."""

    def __init__(self, path: Path, longest: int) -> None:
        self._path, self._longest = path, longest
        self._own = threading.local()

    def get(self) -> sqlite3.Connection:
        if getattr(self._own, "process", None) != os.getpid():
            self._own.open = _Connection(self._path, self._longest)
            self._own.process = os.getpid()
        connection: sqlite3.Connection = self._own.open.connection
        return connection

    def __reduce__(self) -> Any:
        return type(self), (self._path, self._longest)


class _Connection:
    """A connection that is closed with its last reference, possibly by another thread."""

    def __init__(self, path: Path, longest: int) -> None:
        self.connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, check_same_thread=False)
        self.connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, min(longest, 2**31 - 1))  # bytes of a cell, or of a row
        self.connection.execute("PRAGMA trusted_schema = OFF")  # views must not call functions with side effects

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # not opened
            self.connection.close()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _dtype(spec: ColumnSpec, field: str, types: dict[str, str]) -> np.dtype[Any] | None:
    """Return the type of a field, None for texts and bytes, by SQLite's rules for declared types."""
    declared = [types[name] for name in spec.of(field)]
    if field in spec.dtypes:
        return spec.dtypes[field]
    if field in spec.labels or all("INT" in name for name in declared):
        return np.dtype(np.int32)
    if any(part in name for name in declared for part in ("CHAR", "CLOB", "TEXT", "BLOB")):
        return None
    return np.dtype(np.float32)


def _numbers(cell: Any, dtype: np.dtype[Any]) -> np.ndarray:
    if isinstance(cell, bytes):
        return np.frombuffer(cell, dtype)
    if isinstance(cell, str):
        raise TypeError(f"{cell[:40]!r} is a text")
    with np.errstate(over="ignore"):
        array = np.array(cell, dtype)
    if (array != cell) if dtype.kind != "f" else (np.isinf(array) and not np.isinf(cell)):
        raise ValueError(f"{cell!r}")
    return array
