"""Parquet and Arrow files, through pyarrow."""

from collections.abc import Callable, Sequence
from typing import Any

from learner.data.sources.columns import Table, table
from learner.data.sources.files import PathLike, needed, present
from learner.data.sources.wanted import Fields, Labels, wanted
from learner.errors import LearnerError


def parquet(
    path: PathLike,
    fields: Fields | None = None,
    *,
    dtypes: dict[str, str] | None = None,
    labels: Labels | None = None,
    missing: float | None = None,
) -> Table:
    """The columns of a Parquet file, in memory. Columns that no field needs are not read.

    Args:
      path: of the file.
      fields, labels: as for `csv`; columns of lists of numbers, all of one length, become arrays `[rows, length]`.
      dtypes: types of fields by NumPy's names. Default: those of the columns.
      missing: the number in place of a null. Default: a null is an error.

    Returns:
      A `Table`: an `ArrayDataset` with the names of labels.

    Raises:
      LearnerError: pyarrow is not there (`pip install "learner[parquet]"`); there is no such file or column; the
        file is damaged; values that do not fit, with their rows, counted from 1.

    >>> import tempfile, os, pyarrow, pyarrow.parquet
    >>> path = os.path.join(tempfile.mkdtemp(), "a.parquet")
    >>> pyarrow.parquet.write_table(pyarrow.table({"x": [1.5, 2.5], "kind": ["b", "a"]}), path)
    >>> parquet(path, labels={"kind": None})
    Table(2 rows: kind int32 [], x float64 [])
    """
    pyarrow = needed("pyarrow.parquet", "pyarrow", "parquet", "parquet")
    found = str(present(path, "parquet"))

    def read(columns: Sequence[str]) -> Any:
        return pyarrow.read_table(found, columns=list(columns), memory_map=True)

    return _table(found, lambda: pyarrow.read_schema(found).names, read, fields, dtypes, labels, missing)


def arrow(
    path: PathLike,
    fields: Fields | None = None,
    *,
    dtypes: dict[str, str] | None = None,
    labels: Labels | None = None,
    missing: float | None = None,
) -> Table:
    """The columns of an Arrow file (IPC, Feather 2) or stream. Plain numbers in one piece stay on the disk.

    Args, Returns, Raises: as for `parquet`.

    >>> import tempfile, os, pyarrow.feather
    >>> path = os.path.join(tempfile.mkdtemp(), "a.arrow")
    >>> pyarrow.feather.write_feather(pyarrow.table({"x": [1, 2, 3]}), path, compression="uncompressed")
    >>> arrow(path).arrays["x"]
    array([1, 2, 3])
    """
    pyarrow = needed("pyarrow", "pyarrow", "parquet", "arrow")
    ipc = needed("pyarrow.ipc", "pyarrow", "parquet", "arrow")
    found = str(present(path, "arrow"))

    def opened() -> Any:
        mapped = pyarrow.memory_map(found)
        try:
            return ipc.open_file(mapped)
        except pyarrow.ArrowInvalid:
            mapped.seek(0)
            return ipc.open_stream(mapped)

    def read(columns: Sequence[str]) -> Any:
        return opened().read_all().select(list(columns))

    return _table(found, lambda: opened().schema.names, read, fields, dtypes, labels, missing)


def _table(
    path: str,
    names: Callable[[], list[str]],
    read: Callable[[Sequence[str]], Any],
    fields: Fields | None,
    dtypes: dict[str, str] | None,
    labels: Labels | None,
    missing: float | None,
) -> Table:
    pyarrow = needed("pyarrow", "pyarrow", "parquet", "this file")
    try:
        columns = names()
        want = wanted(path, columns, fields, dtypes, labels, missing)
        content = read(want.columns)
        cells = {name: _cells(content.column(name), pyarrow, f"{path}: column {name!r}") for name in want.columns}
    except (pyarrow.ArrowException, OSError) as error:
        raise LearnerError(f"{path} cannot be read: {error}") from error
    return table(path, want, cells, lambda row: f"row {row + 1}")


def _cells(column: Any, pyarrow: Any, what: str) -> Any:
    """A column as a NumPy array of numbers, or as a list of texts, lists and `None`."""
    kind, types = column.type, pyarrow.types
    if types.is_dictionary(kind):
        kind = kind.value_type
        column = column.cast(kind)
    plain = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
    if plain and column.null_count == 0:
        return column.to_numpy()
    texts = types.is_string(kind) or types.is_large_string(kind)
    lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    if not (plain or texts or lists):
        raise LearnerError(f"{what} has the type {kind}; fields are made of numbers, texts and lists of numbers")
    return column.to_pylist()
