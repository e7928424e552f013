"""Tests of Parquet and Arrow files written by pyarrow."""

import datetime
import decimal
import struct
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from learner.data import DataLoaderBuilder, arrow, parquet
from learner.util.distribution import install_hint
from tests.support.codes import raises_code

COLUMNS = {
    "i": pa.array([1, 2, 3], pa.int16()),
    "f": pa.array([0.5, 1.5, 2.5], pa.float64()),
    "b": pa.array([True, False, True]),
    "s": pa.array(["y", "x", "y"]),
    "d": pa.array(["q", "p", "q"]).dictionary_encode(),
    "v": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.float32())),
    "w": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int64(), 2)),
    "m": pa.array([decimal.Decimal("0.50"), decimal.Decimal("-1.25"), decimal.Decimal("1000.00")]),
}
ARRAYS = {
    "i": np.array([1, 2, 3], np.int16),
    "f": np.array([0.5, 1.5, 2.5]),
    "b": np.array([True, False, True]),
    "s": np.array([1, 0, 1], np.int32),
    "d": np.array([1, 0, 1], np.int32),
    "v": np.array([[1, 2], [3, 4], [5, 6]], np.float32),
    "w": np.array([[1, 2], [3, 4], [5, 6]], np.int32),
    "m": np.array([0.5, -1.25, 1000.0]),
}


def stream(table, path):
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)


WRITERS = {
    "parquet": (parquet, lambda table, path: pa.parquet.write_table(table, path, row_group_size=2)),
    "feather": (arrow, pa.feather.write_feather),
    "stream": (arrow, stream),
}


@pytest.fixture(params=WRITERS)
def kind(request, tmp_path):
    """Return a function that reads a file, and one that writes columns and returns the path."""
    read, write = WRITERS[request.param]

    def write_columns(**columns):
        write(pa.table(columns), tmp_path / "a.file")
        return str(tmp_path / "a.file")

    return read, write_columns


def test_columns_round_trip(kind):
    read, write_columns = kind
    table = read(write_columns(**COLUMNS), labels={"s": None, "d": None})
    assert set(table.arrays) == set(ARRAYS)
    for name, array in table.arrays.items():
        assert array.dtype == ARRAYS[name].dtype, name
        np.testing.assert_array_equal(array, ARRAYS[name])
    assert table.labels == {"s": ("x", "y"), "d": ("p", "q")}


def test_rows_of_several_files(kind, tmp_path):
    read, write_columns = kind
    for number, text in enumerate("yx"):
        Path(write_columns(i=COLUMNS["i"], s=pa.array([text] * 3))).rename(tmp_path / f"part-{number}.file")
    for paths in (tmp_path / "part-*.file", [tmp_path / "part-0.file", str(tmp_path / "part-1.file")]):
        table = read(paths, labels=["s"])
        assert table.labels == {"s": ("x", "y")}
        assert {name: array.tolist() for name, array in table.arrays.items()} == {
            "i": [1, 2, 3] * 2,
            "s": [1, 1, 1, 0, 0, 0],
        }
        assert table.arrays["i"].dtype == np.int16


def test_types_of_several_files(kind, tmp_path):
    """float64 is kept, and integers are never rounded."""
    read, write_columns = kind
    types = {"i": (pa.int64(), pa.uint64()), "f": (pa.float64(), pa.float32()), "m": (pa.int32(), pa.float32())}
    for name, pair in types.items():
        for number, dtype in enumerate(pair):
            Path(write_columns(x=pa.array([1, 2], dtype))).rename(tmp_path / f"{name}-{number}.file")
    assert read(tmp_path / "f-*.file").arrays["x"].dtype == np.float64
    assert read(tmp_path / "m-*.file").arrays["x"].dtype == np.float32
    with raises_code("data-files-differ", "int64", "uint64"):
        read(tmp_path / "i-*.file")
    assert read(tmp_path / "i-*.file", dtypes={"x": "int64"}).arrays["x"].tolist() == [1, 2, 1, 2]


def test_fields_types_and_nulls(kind):
    read, write_columns = kind
    path = write_columns(**COLUMNS, n=pa.array([1, None, 3]))
    arrays = read(path, {"x": ["i", "f"], "n": "n"}, dtypes={"x": "float32"}, missing=0).arrays
    assert arrays["x"].tolist() == [[1, 0.5], [2, 1.5], [3, 2.5]]
    assert arrays["x"].dtype == np.float32
    assert arrays["n"].tolist() == [1, 0, 3]
    loader = DataLoaderBuilder().batch_size(2).build(read(path, {"i": "i"}))
    assert [batch["i"].tolist() for batch in loader] == [[1, 2], [3]]


def test_a_column_without_values_in_one_of_several_files(kind, tmp_path):
    read, write_columns = kind
    Path(write_columns(x=pa.nulls(2), s=pa.nulls(2))).rename(tmp_path / "part-0.file")
    Path(write_columns(x=pa.array([0.5]), s=pa.array(["y"]))).rename(tmp_path / "part-1.file")
    table = read(tmp_path / "part-*.file", labels=["s"], missing=-1)
    assert {name: array.tolist() for name, array in table.arrays.items()} == {"x": [-1, -1, 0.5], "s": [0, 0, 1]}
    assert table.labels == {"s": ("", "y")}


def test_views_of_texts_are_texts(tmp_path):
    # Such as polars writes; for Parquet files, pyarrow has none.
    views = pa.array(["y", "x", None], pa.string_view())
    codes = pa.DictionaryArray.from_arrays(pa.array([1, 0, 1]), views[:2])
    pa.feather.write_feather(pa.table({"s": views, "d": codes}), tmp_path / "a.file")
    table = arrow(tmp_path / "a.file", labels=["s", "d"], missing=0)
    assert {name: array.tolist() for name, array in table.arrays.items()} == {"s": [2, 1, 0], "d": [0, 1, 0]}
    assert table.labels == {"s": ("", "x", "y"), "d": ("x", "y")}


def test_views_of_one_text_take_the_memory_of_one(tmp_path):
    length, rows = 2**20, 100
    view = struct.pack("<i4sii", length, b"xxxx", 0, 0)
    texts = pa.Array.from_buffers(
        pa.string_view(), rows, [None, pa.py_buffer(view * rows), pa.py_buffer(b"x" * length)]
    )
    pa.feather.write_feather(pa.table({"s": texts}), tmp_path / "a.file", compression="uncompressed")
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    try:
        table = arrow(tmp_path / "a.file", labels=["s"])
    finally:
        pa.set_memory_pool(before)
    assert table.arrays["s"].tolist() == [0] * rows
    assert pool.max_memory() < 10 * length


@pytest.mark.parametrize("dictionary", [False, True], ids=["plain", "dictionary"])
def test_decimals_without_fractions_are_integers(kind, dictionary):
    read, write_columns = kind
    column = pa.array([decimal.Decimal(2**53 + 1), decimal.Decimal(0)], pa.decimal128(38, 0))
    column = column.dictionary_encode() if dictionary else column
    assert read(write_columns(id=column)).arrays["id"].tolist() == [2**53 + 1, 0]
    table = read(write_columns(y=pa.array([decimal.Decimal(1), None])), missing=0)
    assert (table.arrays["y"].dtype, table.arrays["y"].tolist()) == (np.int32, [1, 0])
    with raises_code("data-file-unreadable", "'big'", "int64"):
        read(write_columns(big=pa.array([decimal.Decimal(10) ** 30])))


def test_wrong_columns(kind):
    read, write_columns = kind
    path = write_columns(**COLUMNS, n=pa.array([1, None, 3]), t=pa.array([datetime.datetime(2020, 1, 1)] * 3))
    for fields, expected in {
        "q": ("data-columns-unreadable", "a.file", "'q'"),
        "s": ("data-columns-unreadable", "a.file", "1", "'s'", "'y'"),
        "n": ("data-columns-unreadable", "a.file", "2", "'n'"),
        "t": ("data-file-unreadable", "'t'", "timestamp[us]", "of dates make numbers"),
    }.items():
        with raises_code(*expected):
            read(path, {"x": fields})
    with raises_code("data-columns-unreadable", "1", "'f'", "0.5", "int8"):
        read(path, {"x": "f"}, dtypes={"x": "int8"})
    with raises_code("data-columns-unreadable", "2", "'u'", "[1]"):
        read(write_columns(u=pa.array([[1, 2], [3]])))
    with raises_code("data-columns-unreadable", "row 2", "'u'", "one in each row") as raised:
        read(write_columns(u=pa.array([[1, 2], None, [3, 4]])), missing=0)
    assert "row 1" not in str(raised.value)
    for image in ({"bytes": b"a", "path": "a.png"}, b"a"):
        with raises_code("data-file-unreadable", "'image'", "ForeignDataset"):
            read(write_columns(image=pa.array([image])))


def test_damaged_files(kind, tmp_path):
    read, write_columns = kind
    content = Path(write_columns(**COLUMNS)).read_bytes()
    for damaged in (b"", b"no such format", content[: len(content) // 2]):
        (tmp_path / "b.file").write_bytes(damaged)
        with raises_code("data-file-unreadable", "b.file"):
            read(tmp_path / "b.file")
    with raises_code("data-file-missing", "c.file"):
        read(tmp_path / "c.file")


@pytest.mark.parametrize("read", [parquet, arrow])
def test_missing_package_raises_with_install_command(read, monkeypatch, tmp_path):
    for name in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, None)
    with raises_code("package-missing", install_hint("parquet")):
        read(tmp_path / "a")
