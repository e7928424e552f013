"""Tables of SQLite databases, read row by row."""

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from learner.data.choose import item_number
from learner.data.dataset import Dataset
from learner.data.sources.files import PathLike, present
from learner.data.sources.wanted import Fields, Labels, Wanted, wanted
from learner.errors import LearnerError, near


class SQLiteTable(Dataset):
    """The rows of a table in an SQLite database, in the order of their `rowid`, each read when it is asked for.

    The database is opened for reading only, once in each thread and each process. Rows that are added later are not
    seen; one that is removed is an error when it is asked for.

    Args:
      path: of the database.
      table: its name.
      fields: for each field of an item its column, or a list of columns, which become one array. Default: every column
        is a field.
      dtypes: types of fields by NumPy's names. A column of blobs with a type is an array of such numbers. Default: by
        the column's declared type int32 (INT), float32 (other numbers), bytes (BLOB) and texts (CHAR, CLOB, TEXT).
      labels: fields whose cells are texts, to be numbered: the texts in their order, or `None` for all that there are,
        sorted.
      missing: the number in place of NULL. Default: NULL is an error.
      where: which rows: an SQL expression, such as `split = 'train'`.

    Attributes:
      labels: for each field with labels the texts, in the order of their numbers.

    Raises:
      LearnerError: there is no such database, table or column, no row, or a cell that does not fit (when it is read).

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
        where: str | None = None,
    ) -> None:
        self._path = present(path, "SQLiteTable").absolute()
        self._name = f"{self._path}, table {table!r}"
        self._opened = _Connections(self._path)
        with self._told():
            types = self._columns(table)
            self._want = wanted(self._name, list(types), fields, dtypes, labels, missing)
            self._dtypes = {field: _dtype(self._want, field, types) for field in self._want.fields}
            self.labels = {field: self._names(table, field) for field in self._want.labels}
            self._codes = {f: {name: i for i, name in enumerate(names)} for f, names in self.labels.items()}
            condition = f" WHERE {where}" if where is not None else ""
            rows = self._opened.get().execute(f"SELECT rowid FROM {_quoted(table)}{condition} ORDER BY rowid")
            self._rows = np.fromiter((row[0] for row in rows), np.int64)
        if not len(self._rows):
            raise LearnerError(f"{self._name} has no rows" + (f" where {where}" if where else ""))
        columns = ", ".join(map(_quoted, self._want.columns))
        self._query = f"SELECT {columns} FROM {_quoted(table)} WHERE rowid = ?"

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = int(self._rows[item_number(index, len(self), "SQLiteTable")])
        with self._told():
            found = self._opened.get().execute(self._query, (row,)).fetchone()
        if found is None:
            raise LearnerError(f"{self._name}: the row with rowid {row} is gone")
        cells = dict(zip(self._want.columns, found, strict=True))
        return {field: self._item(field, cells, row) for field in self._want.fields}

    def _item(self, field: str, cells: dict[str, Any], row: int) -> Any:
        parts = [self._value(field, name, cells[name], row) for name in self._want.of(field)]
        if isinstance(self._want.fields[field], str):
            return parts[0]
        try:
            return np.stack(parts, axis=-1)
        except ValueError as error:
            raise LearnerError(f"{self._name}, rowid {row}: the field {field!r}: {error}") from error

    def _value(self, field: str, name: str, cell: Any, row: int) -> Any:
        place = f"{self._name}, rowid {row}, column {name!r}"
        cell = self._want.missing if cell is None else cell
        dtype = self._dtypes[field]
        if cell is None:
            raise LearnerError(f"{place} is NULL (missing= says which number takes its place)")
        if field in self._codes:
            if str(cell) not in self._codes[field]:
                raise LearnerError(
                    f"{place}: {cell!r} is none of its labels: {near(str(cell), self.labels[field][:20])}"
                )
            return np.array(self._codes[field][str(cell)], dtype)
        try:
            return cell if dtype is None else _numbers(cell, dtype)
        except (TypeError, ValueError, OverflowError) as error:
            raise LearnerError(f"{place} does not fit into {dtype}: {error}") from error

    def _columns(self, table: str) -> dict[str, str]:
        """Their declared types by name."""
        database = self._opened.get()
        types = {row[1]: str(row[2]).upper() for row in database.execute(f"PRAGMA table_info({_quoted(table)})")}
        if not types:
            names = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            raise LearnerError(f"{self._path} has no table {table!r}: {near(table, names)}")
        return types

    def _names(self, table: str, field: str) -> tuple[str, ...]:
        said = self._want.labels[field]
        if said is not None:
            return tuple(map(str, said))
        found: set[str] = set()
        for name in map(_quoted, self._want.of(field)):
            query = f"SELECT DISTINCT {name} FROM {_quoted(table)} WHERE {name} IS NOT NULL"
            found |= {str(row[0]) for row in self._opened.get().execute(query)}
        return tuple(sorted(found))

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise LearnerError(f"{self._name} cannot be read: {error}") from error


class _Connections:
    """A connection for each thread of each process: SQLite's may be used by one alone."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._own = threading.local()

    def get(self) -> sqlite3.Connection:
        if getattr(self._own, "process", None) != os.getpid():
            self._own.open = _Connection(self._path)
            self._own.process = os.getpid()
        found: sqlite3.Connection = self._own.open.connection
        return found

    def __reduce__(self) -> Any:
        return type(self), (self._path,)


class _Connection:
    """Closed when it is not needed any more, which may be by another thread."""

    def __init__(self, path: Path) -> None:
        self.connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, check_same_thread=False)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # it was not opened
            self.connection.close()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _dtype(want: Wanted, field: str, types: dict[str, str]) -> np.dtype[Any] | None:
    """Of a field; `None` where its cells stay texts or bytes. The rules are SQLite's for declared types."""
    declared = [types[name] for name in want.of(field)]
    if field in want.dtypes:
        return want.dtypes[field]
    if field in want.labels or all("INT" in each for each in declared):
        return np.dtype(np.int32)
    if any(part in each for each in declared for part in ("CHAR", "CLOB", "TEXT", "BLOB")):
        return None
    return np.dtype(np.float32)


def _numbers(cell: Any, dtype: np.dtype[Any]) -> np.ndarray:
    if isinstance(cell, bytes):
        return np.frombuffer(cell, dtype)
    if isinstance(cell, str):
        raise TypeError(f"{cell[:40]!r} is a text")
    made = np.array(cell, dtype)
    if dtype.kind != "f" and made != cell:
        raise ValueError(f"{cell!r}")
    return made
