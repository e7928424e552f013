"""Tests of read_npz: archives of NumPy round-trip, and false claims are refused before memory is allocated."""

import io
import os
import pickle
import struct
import tracemalloc
import warnings
import zipfile

import numpy as np
import pytest

from learner.data.npz import read_npz
from learner.data.sources.numpy_files import numpy_arrays
from learner.errors import LearnerError
from tests.support.codes import raises_code

ARRAYS = {
    "x": np.arange(24, dtype=np.float32).reshape(4, 3, 2),
    "columns": np.asfortranarray(np.arange(12, dtype=np.int64).reshape(4, 3)),
    "big endian": np.arange(4, dtype=">i2"),
    "flags": np.array([True, False]),
    "half": np.float16([0.5, np.nan]),
    "one": np.float64(3.5),
    "texts": np.array(["a", "bc"]),
    "a/b": np.uint8([1]),
    "complex": np.complex64([1j]),
}
MEGABYTE = 2**20


def npy(array=None, *, header=None, version=1, data=b"", length=None):
    """Return the bytes of an `.npy` file, of an array or with any header."""
    if array is not None:
        stream = io.BytesIO()
        np.save(stream, array, allow_pickle=True)
        return stream.getvalue()
    text = header.encode("latin1")
    size = struct.pack("<H" if version == 1 else "<I", len(text) if length is None else length)
    return b"\x93NUMPY" + bytes([version, 0]) + size + text + data


def header_of(shape, descr="<f4"):
    return f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, }}\n"


@pytest.fixture
def archive(tmp_path):
    """Return a function that writes an archive of the given members, and returns its path."""

    def write(method=zipfile.ZIP_STORED, **members):
        with zipfile.ZipFile(tmp_path / "a.npz", "w", method) as file:
            for name, content in members.items():
                file.writestr(f"{name}.npy", content)
        return tmp_path / "a.npz"

    return write


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_archives_of_numpy_round_trip(tmp_path, save):
    save(tmp_path / "a.npz", **ARRAYS)
    read = read_npz(tmp_path / "a.npz")
    assert list(read) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert read[name].dtype == array.dtype
        assert read[name].shape == array.shape
        assert read[name].tobytes() == array.tobytes()


def test_high_compression_of_equal_values(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros((64, MEGABYTE // 64), np.float32))
    assert os.path.getsize(tmp_path / "a.npz") < 10_000
    assert read_npz(tmp_path / "a.npz")["x"].shape == (64, MEGABYTE // 64)


CLAIMS = {
    "a large shape": npy(header=header_of((2**60,)), data=b"1234"),
    "a shape of terabytes that could be had": npy(header=header_of((2**40,))),
    "a number too few": npy(header=header_of((2,)), data=b"1234"),
    "a number too many": npy(header=header_of((2,)), data=b"123456789012"),
    "no number at all": npy(header=header_of((0,))),
    "very many rows of nothing": npy(header=header_of((2**60, 0))),
    "very many rows of no width": npy(header=header_of((2**60,), "<U0")),
    "sizes below zero": npy(header=header_of((-1, -1)), data=b"1234"),
    "a size that overflows": npy(header=header_of((2**33, 2**33))),
    "a very large element": npy(header=header_of((1,), "<U536870911")),
    "a header of gigabytes": npy(header=header_of((1,)), version=2, length=2**32 - 1),
    "a header that unpacks to very much": npy(header=" " * 16 * MEGABYTE, version=2),
    "a header that is cut off": npy(header="{'descr': '<f4', 'sha", length=5000),
    "a header that is deep": npy(header="(" * 2000),
    "a header that is deep in another way": npy(header="-" * 9000 + "1"),
    "a header that is code": npy(header="__import__('os').mkdir('made')"),
    "a dtype that is code": npy(header=header_of((1,), "__import__('os').mkdir('made')")),
    "a later format": npy(header=header_of((1,)), version=3, data=b"1234"),
    "no header": b"\x93NUMPY",
    "another file": b"\x00" * 100,
    "nothing": b"",
    "a pickle": pickle.dumps([1, 2]),
    "an array of objects": npy(np.array([{"a": 1}, None])),
    "records with objects": npy(np.zeros(2, [("a", "f4"), ("b", object)])),
}


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, pytest.param(zipfile.ZIP_DEFLATED, marks=pytest.mark.full)])
@pytest.mark.parametrize("claim", CLAIMS)
def test_false_claims_are_refused_before_allocating(archive, monkeypatch, claim, method):
    path = archive(method, good=npy(np.zeros(3)), bad=CLAIMS[claim])
    monkeypatch.chdir(path.parent)
    with warnings.catch_warnings(action="ignore"):  # NumPy warns of headers that it reads a second time
        tracemalloc.start()
        try:
            with raises_code("npz-unreadable", "a.npz"):
                read_npz(path)
            assert tracemalloc.get_traced_memory()[1] < 8 * MEGABYTE
        finally:
            tracemalloc.stop()
    assert os.listdir() == ["a.npz"]


@pytest.mark.parametrize(("shape", "shown"), [((0, 3), "has 0 rows"), ((3, 0), "has no values")])
@pytest.mark.parametrize("read", [read_npz, numpy_arrays])
def test_empty_arrays_are_named_in_an_intact_file(tmp_path, read, shape, shown):
    np.savez(tmp_path / "a.npz", y=np.ones(3), x=np.zeros(shape))
    with raises_code("npz-unreadable", f"a.npz: 'x.npy' {shown}: its shape is {list(shape)}") as error:
        read(tmp_path / "a.npz")
    assert "cannot be read" not in str(error.value)


def test_numpy_allocates_the_claimed_memory(archive):
    """Negative control of the limit above: NumPy allocates the 64 MB that the header claims."""
    path = archive(bad=npy(header=header_of((16 * MEGABYTE,)), data=b"1234"))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="EOF"), np.load(path, allow_pickle=False) as content:
            content["bad"]
        assert tracemalloc.get_traced_memory()[1] > 60 * MEGABYTE
    finally:
        tracemalloc.stop()
    with raises_code("npz-unreadable", "[16777216]", "float32", "67108864", "4"):
        read_npz(path)


def test_memory_limit(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros(8 * MEGABYTE, np.int8), y=np.zeros(8 * MEGABYTE, np.int8))
    tracemalloc.start()
    try:
        with raises_code("npz-unreadable", "16777216", "16777215"):
            read_npz(tmp_path / "a.npz", memory=16 * MEGABYTE - 1)
        assert tracemalloc.get_traced_memory()[1] < MEGABYTE
    finally:
        tracemalloc.stop()
    assert set(read_npz(tmp_path / "a.npz", memory=16 * MEGABYTE)) == {"x", "y"}


def test_default_limit_is_the_memory_of_the_machine(archive, monkeypatch):
    path = archive(x=npy(np.zeros(1000)))
    sizes = {"SC_PAGE_SIZE": 1000, "SC_PHYS_PAGES": 7}
    monkeypatch.setattr(os, "sysconf", sizes.__getitem__)
    with raises_code("npz-unreadable", "8000", "7000"):
        read_npz(path)
    sizes["SC_PHYS_PAGES"] = 8
    assert read_npz(path)["x"].shape == (1000,)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compression_methods_are_refused(archive, method):
    with raises_code("npz-unreadable", "NumPy"):
        read_npz(archive(method, x=npy(np.zeros(3))))


def patch(path, find, offset, value):
    """Write a number of four bytes into each central record of the archive."""
    content = bytearray(path.read_bytes())
    position = content.find(find)
    while position >= 0:
        content[position + offset : position + offset + 4] = struct.pack("<I", value)
        position = content.find(find, position + 4)
    path.write_bytes(content)


def test_size_beyond_the_ratio_of_deflate(archive):
    path = archive(zipfile.ZIP_DEFLATED, x=npy(np.zeros(1000)))
    patch(path, b"PK\x01\x02", 24, 2**31)  # the decompressed size
    with raises_code("npz-unreadable", "'x.npy'"):
        read_npz(path)


def test_overlapping_members(archive):
    """A small file whose members overlap decompresses to a large size."""
    path = archive(a=npy(np.zeros(1000)), b=npy(np.ones(1000)))
    patch(path, b"PK\x01\x02", 20, os.path.getsize(path) - 100)  # the compressed size
    with raises_code("npz-unreadable", "'b.npy'"):
        read_npz(path)


def test_duplicate_and_foreign_names(tmp_path):
    wrong = {
        ("x.npy", "x.npy"): ("npz-unreadable", "there twice"),
        ("x.npy", "evil.pkl"): ("npz-unreadable", "'evil.pkl'"),
    }
    for names, expected in wrong.items():
        with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(tmp_path / "a.npz", "w") as file:
            for name in names:
                file.writestr(name, npy(np.zeros(3)))
        with raises_code(*expected):
            read_npz(tmp_path / "a.npz")


def test_names_are_not_used_as_paths(archive):
    path = archive(**{"../../outside": npy(np.zeros(3)), "/absolute": npy(np.ones(3))})
    assert list(read_npz(path)) == ["../../outside", "/absolute"]
    assert os.listdir(path.parent) == ["a.npz"]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_damaged_files(tmp_path, save):
    """Each byte is changed in turn: reading returns the right arrays or raises a LearnerError."""
    save(tmp_path / "a.npz", x=np.arange(5, dtype=np.float32))
    content = (tmp_path / "a.npz").read_bytes()
    refused = 0
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 0xFF
        (tmp_path / "b.npz").write_bytes(damaged)
        try:
            read = read_npz(tmp_path / "b.npz")
        except LearnerError:
            refused += 1
        else:
            assert [array.tolist() for array in read.values()] in ([], [[0, 1, 2, 3, 4]])
    assert refused > len(content) / 2
    for length in range(len(content)):
        (tmp_path / "b.npz").write_bytes(content[:length])
        with raises_code("npz-unreadable"):
            read_npz(tmp_path / "b.npz")


def test_missing_file(tmp_path):
    for path in (tmp_path / "no.npz", tmp_path):
        with raises_code("npz-unreadable", str(path), ".npz"):
            read_npz(path)
