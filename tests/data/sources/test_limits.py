"""Tests that small files of large contents are refused before they take memory, and special files before they block."""

import contextlib
import gzip
import os
import socket
import struct
import tracemalloc
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
from PIL import Image

from learner.data import ImageFolder, Lines, SQLiteTable, TextWindows, input_files, sources
from learner.data.input_files import MemoryBudget
from learner.data.npz import read_npz
from learner.data.sources import delimited, ndjson
from learner.errors import LearnerError
from tests.support.codes import raises_code

MEGABYTE = 2**20
LIMIT = MEGABYTE


def write_gzip(path, *parts):
    with gzip.open(path, "wb") as file:
        for part in parts:
            file.write(part)
    return path


# -- texts -------------------------------------------------------------------------------------------------------------

CSV = {
    "a line without an end": [b"a\n", *[b"x" * MEGABYTE] * 64],
    "a row without an end": [b"a\n", *[b'"x\n",' * 50_000] * 64],
    "very many cells": [b"," * MEGABYTE] * 64,
    "very many rows": [b"a,b\n", *[b"10,20\n" * 50_000] * 64],
    "very many empty rows": [b"a,b\n", *[b",\n" * 100_000] * 64],
}
JSON = {
    "a line without an end": [b'{"a": "', *[b"x" * MEGABYTE] * 63, b'"}'],
    "empty lists": [b'{"a": [', *[b"[]," * 100_000] * 64, b"1]}"],
    "empty mappings": [b'{"a": [', *[b"{}," * 100_000] * 64, b"1]}"],
    "very many lines": [b'{"a": 1}\n' * 100_000] * 8,
    "another key in each line": [b'{"k%d": 1}\n' % number for number in range(4000)],
}


@pytest.mark.parametrize("limit", ["an argument", pytest.param("the default", marks=pytest.mark.full)])
@pytest.mark.parametrize(
    ("read", "parts"),
    [(sources.csv, parts) for parts in CSV.values()] + [(sources.json_lines, parts) for parts in JSON.values()],
    ids=[*CSV, *(f"JSON, {name}" for name in JSON)],
)
def test_large_texts_are_refused(tmp_path, monkeypatch, read, parts, limit):
    path = write_gzip(tmp_path / "a.gz", *parts)
    monkeypatch.setattr(input_files, "LEAST_MEMORY", LIMIT)
    monkeypatch.setattr(input_files, "MEMORY_RATIO", 1)
    tracemalloc.start()
    try:
        with raises_code("data-file-too-large", str(LIMIT), "max_memory="):
            read(path, **({"max_memory": LIMIT} if limit == "an argument" else {}))
        assert tracemalloc.get_traced_memory()[1] < LIMIT + 2 * MEGABYTE
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("module", "content"),
    [
        (delimited, b"a,b,c\n" + b"0,1,0\n" * 5_000),
        pytest.param(delimited, b"a,b\n" + b"10,0.5\n" * 5_000, marks=pytest.mark.full),
        pytest.param(delimited, b"a,b\n" + b",0.123456789\n" * 5_000, marks=pytest.mark.full),
        (delimited, b"a,b\n" + b"123456789012345678,%s\n" % (b"1" * 100) * 2_000),
        (delimited, ("a\n" + "𝄞𝄞\n" * 5_000).encode()),
        (ndjson, b'{"a": 1}\n' * 5_000),
        pytest.param(ndjson, b'{"a": [1000, 0.25, 2000], "b": 1e9, "c": -300}\n' * 2_500, marks=pytest.mark.full),
        (ndjson, b'{"a": [%s]}\n' % b",".join([b"[1000,2]"] * 50) * 100),
        (ndjson, b'{"a": [%s]}\n' % b",".join([b"{}", b"[]"] * 20_000)),
        (ndjson, ('{"a": "x\U0001d11e' + "x" * 20_000 + '"}\n').encode()),
    ],
)
def test_reserved_memory_suffices(tmp_path, monkeypatch, module, content):
    budgets = []

    class Budget(MemoryBudget):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            budgets.append(self)

    monkeypatch.setattr(module, "MemoryBudget", Budget)
    path = tmp_path / "a"

    def read():
        with contextlib.suppress(LearnerError):  # a column of texts raises after the whole file is read
            (sources.csv if module is delimited else sources.json_lines)(path, missing=0, max_memory=2**40)

    path.write_bytes(content[:100])
    read()  # imports
    path.write_bytes(content)
    tracemalloc.start()
    try:
        read()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < budgets[1]._reserved + MEGABYTE // 4
    assert budgets[1]._reserved < 80 * len(content)  # files without compression are never refused


@pytest.mark.parametrize("limit", [5 * MEGABYTE, 8 * MEGABYTE, 10 * MEGABYTE])
def test_a_long_line_takes_no_more_than_the_limit(tmp_path, limit):
    """A wide character makes a text of 4 bytes a character, which exists twice while the line is parsed."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": "x\U0001d11e' + "x" * MEGABYTE + '"}\n')
    tracemalloc.start()
    try:
        with pytest.raises(LearnerError) as caught:
            sources.json_lines(path, max_memory=limit)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (peak < limit, caught.value.code == "data-file-too-large") == (True, limit < 9 * MEGABYTE)


def test_max_memory(tmp_path):
    path = write_gzip(tmp_path / "a.csv.gz", b"a,b\n", b"10,20\n" * 10_000)
    with raises_code("data-file-too-large", "a.csv"):
        sources.csv(path, max_memory=LIMIT)
    assert len(sources.csv(path, max_memory=20 * LIMIT)) == 10_000
    assert len(sources.csv(path)) == 10_000
    with raises_code("data-number-value", name="max_memory", value=0):
        sources.csv(path, max_memory=0)


# -- columns -----------------------------------------------------------------------------------------------------------


def parquet(path, table):
    pa.parquet.write_table(table, path, compression="zstd")


def feather(compression):
    return lambda path, table: pa.feather.write_feather(table, str(path), compression=compression)


def zeros(count):
    return pa.array(np.zeros(count, np.int64))


def texts(count):
    """Return texts of a kilobyte each."""
    return pa.array(["x" * 1000]).take(zeros(count))


def one_text(count):
    return pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), ["x" * count])


def lists(count):
    return pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), zeros(count))


@pytest.mark.parametrize(
    ("read", "write", "make", "count"),
    [
        (sources.parquet, parquet, zeros, 8 * MEGABYTE),
        (sources.parquet, parquet, lists, MEGABYTE),
        pytest.param(sources.parquet, parquet, texts, MEGABYTE, marks=pytest.mark.full),
        pytest.param(sources.arrow, feather("lz4"), zeros, 8 * MEGABYTE, marks=pytest.mark.full),
        pytest.param(sources.arrow, feather("zstd"), zeros, 8 * MEGABYTE, marks=pytest.mark.full),
        (sources.arrow, feather("zstd"), lists, 8 * MEGABYTE),
        (sources.arrow, feather("zstd"), one_text, 2**26),
    ],
)
def test_large_columns_are_refused(tmp_path, read, write, make, count):
    path = tmp_path / "a.file"
    write(path, pa.table({"x": make(count)}))
    assert path.stat().st_size < MEGABYTE
    whole, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    try:
        with raises_code("data-file-unreadable", "a.file", str(LIMIT), "max_memory="):
            read(path, labels=["x"], max_memory=LIMIT)
    finally:
        pa.set_memory_pool(whole)
    assert pool.max_memory() < LIMIT + 2 * MEGABYTE


def test_equal_texts_share_memory(tmp_path):
    parquet(tmp_path / "a.file", pa.table({"x": ["cat" * 1000, "dog"] * 10_000}))
    tracemalloc.start()
    try:
        table = sources.parquet(tmp_path / "a.file", labels=["x"])
        assert tracemalloc.get_traced_memory()[1] < 2 * MEGABYTE
    finally:
        tracemalloc.stop()
    assert table.arrays["x"].tolist() == [0, 1] * 10_000


def test_truncated_arrow_file(tmp_path):
    """Read as a stream, an Arrow file could lack whole batches at its end."""
    table = pa.table({"x": np.arange(100)})
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write_table(table, 10)
    content = (tmp_path / "a.arrow").read_bytes()
    assert len(sources.arrow(tmp_path / "a.arrow")) == 100
    batch = content.rindex(b"\xff\xff\xff\xff", 0, content.rindex(b"\xff\xff\xff\xff"))
    (tmp_path / "b.arrow").write_bytes(content[:batch] + b"\xff\xff\xff\xff\0\0\0\0" + content[batch + 8 :])
    with raises_code("data-file-unreadable", "b.arrow"):
        sources.arrow(tmp_path / "b.arrow")


# -- special files -----------------------------------------------------------------------------------------------------

READERS = {
    "a.csv": sources.csv,
    "a.jsonl": sources.json_lines,
    "a.parquet": sources.parquet,
    "a.arrow": sources.arrow,
    "a.npy": lambda path: sources.numpy_arrays(str(path)),
    "directory/a.npy": lambda path: sources.numpy_arrays(str(path.parent)),
    "a.npz": lambda path: sources.numpy_arrays(str(path)),
    "b.npz": read_npz,
    "a.idx": sources.read_idx,
    "test_batch.bin": lambda path: sources.cifar10(str(path.parent), "test"),
    "t10k-images-idx3-ubyte": lambda path: sources.mnist(str(path.parent), "test"),
    "class/a.png": lambda path: ImageFolder(path.parent.parent)[0],
    "a.db": lambda path: SQLiteTable(path, "t"),
    "a.txt": Lines,
    "b.txt": lambda path: TextWindows(path, 5),
}


@pytest.mark.parametrize("name", READERS)
def test_pipes_and_devices_are_refused(tmp_path, name):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    os.mkfifo(path)
    with pytest.raises(LearnerError, match=r"is a named pipe; it needs a regular file|it is not a regular file"):
        READERS[name](path)
    path.unlink()
    os.symlink("/dev/zero", path)
    with pytest.raises(LearnerError, match=r"is a device; it needs a regular file|it is not a regular file"):
        READERS[name](path)


def test_socket_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # paths of sockets are limited
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind("a.csv")
        with raises_code("data-file-not-regular", "csv", path="a.csv", kind="a socket"):
            sources.csv("a.csv")


@pytest.mark.parametrize("name", READERS)
def test_too_long_name(tmp_path, name):
    path = Path(f"{tmp_path / ('long' * 100)}{Path(name).suffix}")
    with pytest.raises(
        LearnerError, match=r"longlong.* (cannot be read|is not a directory)|there is no file .*longlong"
    ):
        READERS[name](path / "class" / "a" if "/" in name or "-" in name or "_" in name else path)


def test_unknown_home_and_names_in_bytes(tmp_path):
    with raises_code("data-path-not-found", "csv", "Could not determine home", path="~no-such-user/a.csv"):
        sources.csv("~no-such-user/a.csv")

    class InBytes:
        def __fspath__(self):
            return os.fsencode(tmp_path / "a.csv")

    with raises_code("data-file-missing", "a.csv"):
        sources.csv(InBytes())


# -- regressions -------------------------------------------------------------------------------------------------------


def test_arrays_of_no_dataset(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w"):
        pass
    with raises_code("data-file-unreadable", "a.npz", "ArrayDataset"):
        sources.numpy_arrays(str(tmp_path / "a.npz"))
    np.savez(tmp_path / "b.npz", x=np.zeros(3), y=np.zeros(4))
    with raises_code("data-file-unreadable", "b.npz", "ArrayDataset"):
        sources.numpy_arrays(str(tmp_path / "b.npz"))


def test_wrong_encoding(tmp_path):
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    with raises_code("data-file-malformed", "a.csv", "utf-16"):
        sources.csv(tmp_path / "a.csv", encoding="utf-16")


def test_many_wrong_cells_take_little_memory(tmp_path):
    (tmp_path / "a.csv").write_text("a\n" + "x\n" * 10_000)
    tracemalloc.start()
    try:
        with raises_code("data-columns-unreadable", "2"):
            sources.csv(tmp_path / "a.csv", labels={"a": ["y"]})
        assert tracemalloc.get_traced_memory()[1] < 3 * MEGABYTE
    finally:
        tracemalloc.stop()


def test_image_bomb_is_refused(tmp_path):
    (tmp_path / "class").mkdir()
    path = tmp_path / "class" / "a.png"
    Image.new("L", (1, 1)).save(path)
    header = b"IHDR" + struct.pack(">II", 20_000, 10_000) + path.read_bytes()[24:29]
    path.write_bytes(path.read_bytes()[:12] + header + struct.pack(">I", zlib.crc32(header)) + path.read_bytes()[33:])
    data = ImageFolder(tmp_path)
    with raises_code("data-image-unreadable", "a.png", "exceeds limit"):
        data[0]
    tracemalloc.start()
    try:
        with raises_code("data-image-unreadable", "a.png", "exceeds limit"):
            data[0]
        assert tracemalloc.get_traced_memory()[1] < MEGABYTE
    finally:
        tracemalloc.stop()


def test_long_texts_in_lists_are_refused(tmp_path):
    """Arrays of texts are as wide as the longest text: 40 GB here."""
    (tmp_path / "a.jsonl").write_text('{"a": ["' + "x" * 1_000_000 + '"' + ', ""' * 10_000 + "]}\n")
    with raises_code("data-columns-unreadable", "1", "'a'"):
        sources.json_lines(tmp_path / "a.jsonl")


def test_wrong_lists(tmp_path):
    for content in ('[1, "b"]', "[1, null]", "[{}]", "[" * 40 + "]" * 40, "[[1], 2]", "[[1, 2], [3]]", f"[{10**30}]"):
        (tmp_path / "a.jsonl").write_text(f'{{"a": {content}}}\n')
        with raises_code("data-columns-unreadable", "a.jsonl", "1", "'a'"):
            sources.json_lines(tmp_path / "a.jsonl")


def test_contiguous_columns_are_mapped_without_a_limit(tmp_path):
    for chunk, path in ((MEGABYTE, tmp_path / "a.arrow"), (MEGABYTE // 2, tmp_path / "b.arrow")):
        table = pa.table({"x": np.arange(MEGABYTE)})
        pa.feather.write_feather(table, str(path), compression="uncompressed", chunksize=chunk)
    assert sources.arrow(tmp_path / "a.arrow", max_memory=100).arrays["x"][-1] == MEGABYTE - 1
    with raises_code("data-file-unreadable", "b.arrow", "100"):
        sources.arrow(tmp_path / "b.arrow", max_memory=100)
