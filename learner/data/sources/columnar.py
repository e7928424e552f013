"""Parquet and Arrow files, through pyarrow."""

import contextlib
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from learner.data.input_files import MemoryBudget, PathLike
from learner.data.sources.column_spec import ColumnSpec, Fields, Labels, parse_columns
from learner.data.sources.table_arrays import DATE_HINT, Table, read_files, table
from learner.errors import LearnerError
from learner.util.optional import import_optional

ARROW_MAGIC = b"ARROW1\0\0"
OBJECT_HINT = "; for images and structs, pass ForeignDataset the data set of datasets.load_dataset (Hugging Face)"
WIDEST, POINTER, NUMBER = 8, 8, 64  # bytes: of a number in an array, of an item of a list, of an item with its object


def parquet(
    path: list[PathLike] | PathLike,
    fields: Fields | None = None,
    *,
    dtypes: dict[str, str] | None = None,
    labels: Labels | None = None,
    missing: float | None = None,
    unknown: dict[str, int] | None = None,
    max_memory: int | None = None,
) -> Table:
    """Return the columns of Parquet files, in memory. Only the columns that fields need are read.

    Args:
      path: the path of the file, a pattern such as `part-*.parquet`, or a list of files; see `csv`.
      fields, labels: as for `csv`; columns of lists of numbers, all of one length, become arrays `[rows, length]`.
        Decimals are read as float64, and those without a fraction as int64.
      dtypes: types of fields by NumPy's names. Default: the columns' types; for lists, int32 and float32 if the numbers
        fit.
      missing: the number that replaces a null. Default: a null is an error.
      unknown: as for `csv`.
      max_memory: the most that the columns of a file may take, in bytes. Default: 1000 times the file's size, at least
        512 MiB.

    Returns:
      A `Table`: an `ArrayDataset` with the names of labels.

    Raises:
      LearnerError: pyarrow is not installed (extra `parquet`); a file or column does not exist; a file is damaged or
        needs too much memory; values do not fit (the message has their rows, counted from 1).

    >>> import tempfile, os, pyarrow, pyarrow.parquet
    >>> path = os.path.join(tempfile.mkdtemp(), "a.parquet")
    >>> pyarrow.parquet.write_table(pyarrow.table({"x": [1.5, 2.5], "kind": ["b", "a"]}), path)
    >>> parquet(path, labels={"kind": None})
    Table(2 rows: kind int32 [], x float64 [])
    """
    formats = import_optional("pyarrow.parquet", "parquet", "parquet")
    types = import_optional("pyarrow.types", "parquet", "parquet")
    spec_of = partial(parse_columns, fields=fields, dtypes=dtypes, labels=labels, missing=missing, unknown=unknown)

    def read(file: Path) -> Table:
        budget = MemoryBudget(file, max_memory)

        def names() -> list[str]:
            with formats.ParquetFile(file) as opened:
                return list(opened.schema_arrow.names)

        def read_columns(columns: Sequence[str]) -> Any:
            with formats.ParquetFile(file) as opened:
                budget.require(_claimed(opened, columns))
                # A text stored once in the file for millions of rows is kept once in memory.
                texts = [column.name for column in opened.schema_arrow if types.is_string(column.type)]
            with formats.ParquetFile(file, memory_map=True, read_dictionary=texts) as opened:
                content = opened.read(columns=list(columns))
            budget.reserve(content.nbytes)
            return content

        return _table(file, names, read_columns, budget, spec_of)

    return read_files(path, "parquet", read)


def arrow(
    path: list[PathLike] | PathLike,
    fields: Fields | None = None,
    *,
    dtypes: dict[str, str] | None = None,
    labels: Labels | None = None,
    missing: float | None = None,
    unknown: dict[str, int] | None = None,
    max_memory: int | None = None,
) -> Table:
    """Return the columns of Arrow files (IPC, Feather 2) or streams. Plain numbers in one chunk of one file stay on the
    disk.

    Args, Returns, Raises: as for `parquet`.

    >>> import tempfile, os, pyarrow.feather
    >>> path = os.path.join(tempfile.mkdtemp(), "a.arrow")
    >>> pyarrow.feather.write_feather(pyarrow.table({"x": [1, 2, 3]}), path, compression="uncompressed")
    >>> arrow(path).arrays["x"]
    array([1, 2, 3])
    """
    pyarrow = import_optional("pyarrow", "parquet", "arrow")
    ipc = import_optional("pyarrow.ipc", "parquet", "arrow")
    spec_of = partial(parse_columns, fields=fields, dtypes=dtypes, labels=labels, missing=missing, unknown=unknown)

    def read(file: Path) -> Table:
        budget = MemoryBudget(file, max_memory)

        def stream() -> Any:
            mapped = pyarrow.memory_map(str(file))
            # A file is a stream between a magic number and a footer. Read as a stream, it all passes the check below.
            if mapped.read(len(ARROW_MAGIC)) != ARROW_MAGIC:
                mapped.seek(0)
            return mapped

        def check() -> None:
            batches = 0
            for message in ipc.MessageReader.open_stream(stream()):
                batches += message.type == "record batch"
                if message.type in ("record batch", "dictionary"):
                    budget.reserve(_unpacked(message.metadata.to_pybytes(), message.body, message.type == "dictionary"))
            with pyarrow.memory_map(str(file)) as mapped:
                if mapped.read(len(ARROW_MAGIC)) == ARROW_MAGIC and ipc.open_file(mapped).num_record_batches != batches:
                    raise LearnerError(
                        "its footer and its content differ in the number of record batches",
                        code="data-file-inconsistent",
                    )

        def read_columns(columns: Sequence[str]) -> Any:
            check()
            return ipc.open_stream(stream()).read_all().select(list(columns))

        return _table(file, lambda: ipc.open_stream(stream()).schema.names, read_columns, budget, spec_of)

    return read_files(path, "arrow", read)


def _claimed(file: Any, columns: Sequence[str]) -> int:
    """Return the bytes that columns of a Parquet file take when decompressed, according to the file's metadata.

    pyarrow aborts the process on views of damaged metadata. Its readers raise, so each part is read before it is
    viewed.
    """
    rows = file.read(columns=[]).num_rows  # views no part of a row group but its length
    leaves = [file.schema.column(number) for number in range(len(file.schema))]
    selected = [
        number for number, leaf in enumerate(leaves) if any(f"{leaf.path}.".startswith(f"{name}.") for name in columns)
    ]
    # The length gives the size of plain numbers. Texts and lists have any size: a scan decodes them chunk by chunk.
    varied = [
        number
        for number in selected
        if leaves[number].max_repetition_level > 0 or leaves[number].physical_type == "BYTE_ARRAY"
    ]
    total = rows * WIDEST * (len(selected) - len(varied))
    if varied:
        file.scan_contents(varied)
    for group in map(file.metadata.row_group, range(file.num_row_groups)) if varied else ():
        for column in map(group.column, varied):
            total += max(column.num_values, 0) * WIDEST + max(column.total_uncompressed_size, 0)
    return int(total)


def _unpacked(metadata: bytes, body: Any, is_dictionary: bool) -> int:
    """Return the bytes that the compressed buffers of a record batch take when decompressed.

    Each buffer begins with its decompressed size, which pyarrow allocates first, and does not expose. So this follows
    the table offsets of the message (flatbuffers; Arrow's Message.fbs) to the buffers.
    """

    def number(kind: str, at: int) -> int:
        return int(struct.unpack_from(f"<{kind}", metadata, at)[0])

    def field(table: int, which: int) -> int:
        """Return the position of a table's field, 0 if it has its default."""
        fields = table - number("i", table)
        offset = number("H", fields + 4 + 2 * which) if 4 + 2 * which < number("H", fields) else 0
        return table + offset if offset else 0

    def target(at: int) -> int:
        return at + number("I", at)

    batch = target(field(target(0), 2))  # Message.header
    if is_dictionary:
        batch = target(field(batch, 1))  # DictionaryBatch.data
    if not field(batch, 3):  # RecordBatch.compression
        return 0
    total, buffers = 0, field(batch, 2)
    for number_of in range(number("I", target(buffers)) if buffers else 0):
        start, length = struct.unpack_from("<qq", metadata, target(buffers) + 4 + 16 * number_of)
        if length:
            total += max(int(struct.unpack("<q", body.slice(start, 8).to_pybytes())[0]), 0)  # -1: not compressed
    return total


def _table(
    path: Path,
    names: Callable[[], list[str]],
    read: Callable[[Sequence[str]], Any],
    budget: MemoryBudget,
    spec_of: Callable[[str, Sequence[str]], ColumnSpec],
) -> Table:
    pyarrow = import_optional("pyarrow", "parquet", "this file")
    with _readable(path):
        columns = names()
    spec = spec_of(str(path), columns)
    with _readable(path):
        content = read(spec.columns)
        # This validates that offsets, indices and texts lie within their buffers: pyarrow trusts them.
        content.validate(full=True)
        cells = {name: _cells(content.column(name), pyarrow, budget, name) for name in spec.columns}
    return table(str(path), spec, cells, lambda row: f"row {row + 1}")


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except LearnerError as error:
        message = str(error)
        raise LearnerError(
            message if str(path) in message else f"{path} cannot be read: {message}",
            code="data-file-unreadable",
            path=path,
        ) from None
    except Exception as error:  # a damaged file raises errors of many kinds
        raise LearnerError(f"{path} cannot be read: {error}", code="data-file-unreadable", path=path) from error


def _cells(column: Any, pyarrow: Any, budget: MemoryBudget, name: str) -> Any:
    """Return a column as a NumPy array of numbers, or as a list of texts, lists and `None`."""
    types = pyarrow.types
    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        budget.reserve(POINTER * len(column))
        return [text for chunk in column.chunks for text in _texts(chunk, types, budget)]
    if types.is_decimal(kind):
        kind = pyarrow.float64() if kind.scale > 0 else pyarrow.int64()
    if types.is_dictionary(column.type) or types.is_decimal(column.type):
        budget.reserve(WIDEST * len(column))
        try:
            column = column.cast(kind)
        except pyarrow.ArrowInvalid as error:
            raise LearnerError(
                f"column {name!r} has the type {column.type}, and does not fit into {kind}: {error}",
                code="data-column-type",
                name=name,
            ) from None
    while types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        kind = kind.value_type
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_null(kind)):
        hint = DATE_HINT if types.is_temporal(kind) else ""
        hint = OBJECT_HINT if types.is_struct(kind) or types.is_binary(kind) or types.is_large_binary(kind) else hint
        raise LearnerError(
            f"column {name!r} has the type {column.type}; fields are made of numbers, texts and lists of numbers{hint}",
            code="data-column-type",
            name=name,
        )
    if column.type == kind and column.null_count == 0:
        if column.num_chunks != 1 or types.is_boolean(kind):  # otherwise it is not copied, and may stay on the disk
            budget.reserve(WIDEST * len(column))
        return column.to_numpy()
    budget.reserve(sum(NUMBER * _length(chunk, types) for chunk in column.chunks))
    return column.to_pylist()


def _texts(chunk: Any, types: Any, budget: MemoryBudget) -> list[str | None]:
    """Return the texts of a chunk of a column. Equal texts are one object."""
    encoded = chunk if types.is_dictionary(chunk.type) else chunk.dictionary_encode()
    budget.reserve(NUMBER * len(encoded.dictionary) + 4 * encoded.dictionary.nbytes)
    known = encoded.dictionary.to_pylist()
    return [None if number is None else known[number] for number in encoded.indices.to_pylist()]


def _length(array: Any, types: Any) -> int:
    """Return the number of values in an array, and in all lists in it."""
    total = len(array)
    while types.is_list(array.type) or types.is_large_list(array.type) or types.is_fixed_size_list(array.type):
        array = array.values
        total += len(array)
    return total
