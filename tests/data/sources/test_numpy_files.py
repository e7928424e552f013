"""Tests of numpy_arrays: files are mapped if possible, and refused if they claim more than they hold."""

import pickle
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest

from learner.data import ArrayDataset, DataLoaderBuilder, numpy_arrays
from learner.errors import LearnerError
from tests.support.codes import raises_code

X = np.arange(24, dtype=np.float32).reshape(6, 4)
Y = np.arange(6, dtype=np.int64)


def memory_of(array):
    """Return the object whose memory an array is a view of."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array.base


def is_mapped(array):
    return type(memory_of(array)).__name__ == "mmap"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "both").mkdir()
    np.save(tmp_path / "both" / "x.npy", X)
    np.save(tmp_path / "both" / "y.npy", Y)
    return tmp_path


@pytest.mark.parametrize("kind", ["directory", "paths", "file"])
def test_npy_files_are_mapped(folder, kind):
    both = folder / "both"
    path = {"directory": both, "paths": {"x": f"{both}/x.npy", "y": f"{both}/y.npy"}, "file": both / "x.npy"}[kind]
    data = numpy_arrays(path)
    assert isinstance(data, ArrayDataset)
    assert list(data.arrays) == (["x"] if kind == "file" else ["x", "y"])
    np.testing.assert_array_equal(data.arrays["x"], X)
    assert all(map(is_mapped, data.arrays.values()))
    loader = DataLoaderBuilder().batch_size(4).build(data)
    np.testing.assert_array_equal(np.concatenate([batch["x"] for batch in loader]), X)


def test_arrays_are_the_file_and_read_only(folder):
    """Arrays are the file, not a copy, and are read-only."""
    data = numpy_arrays(folder / "both")
    np.load(folder / "both" / "y.npy", mmap_mode="r+")[0] = 77
    assert data[0]["y"] == 77
    with pytest.raises(ValueError, match="read-only"):
        data.arrays["y"][0] = 1


def test_pickle_contains_the_path_only(folder):
    sent = pickle.dumps(numpy_arrays(folder / "both"))
    assert len(sent) < 1000
    np.testing.assert_array_equal(pickle.loads(sent).arrays["x"], X)


@pytest.mark.parametrize("name", ["x", "xy", "xyz", "wxyz"])
def test_uncompressed_archives_are_mapped(tmp_path, name):
    """The length of the name moves the array: NumPy needs floats at multiples of four bytes to be aligned."""
    np.savez(tmp_path / "a.npz", **{name: X, "y": Y})
    data = numpy_arrays(tmp_path / "a.npz")
    assert len(data) == 6
    np.testing.assert_array_equal(np.stack([data[i][name] for i in range(6)]), X)
    assert [data[i]["y"].item() for i in range(6)] == Y.tolist()
    arrays = data.arrays if isinstance(data, ArrayDataset) else data._rows.arrays
    assert all(map(is_mapped, arrays.values()))
    (batch,) = DataLoaderBuilder().batch_size(6).build(pickle.loads(pickle.dumps(data)))
    np.testing.assert_array_equal(batch[name], X)
    assert batch[name].flags.aligned


def test_unaligned_arrays_are_read_by_rows(tmp_path):
    """NumPy's `take` copies a whole array that is not aligned; such arrays are read row by row."""
    kinds = set()
    for name in ("x", "xy", "xyz", "wxyz"):
        np.savez(tmp_path / "a.npz", **{name: X})
        data = numpy_arrays(tmp_path / "a.npz")
        array = (data if isinstance(data, ArrayDataset) else data._rows).arrays[name]
        assert isinstance(data, ArrayDataset) == array.flags.aligned
        kinds.add(type(data).__name__)
    assert kinds == {"MappedArrays", "MappedRows"}


def test_arrays_in_fortran_order_are_read_by_rows(tmp_path):
    np.save(tmp_path / "x.npy", np.asfortranarray(X))
    data = numpy_arrays(tmp_path / "x.npy")
    assert not isinstance(data, ArrayDataset)
    assert repr(data) == "MappedRows(6 rows: x float32 [4])"
    (batch,) = DataLoaderBuilder().batch_size(6).build(data)
    np.testing.assert_array_equal(batch["x"], X)


def test_compressed_archives_are_in_memory(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", x=X, y=Y)
    data = numpy_arrays(tmp_path / "a.npz")
    np.testing.assert_array_equal(data.arrays["x"], X)
    assert not is_mapped(data.arrays["x"])


def header(shape, dtype="<f4"):
    text = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not an array of plain numbers"),
        (b"\x93NUMPY\x01\x00", "EOF: reading array header length"),
        (header((2**40,)), "claims the shape"),
        (header((2,)) + b"1234", "claims the shape .* 8 bytes, and has 4"),
        (header((2,)) + b"1234567890", "8 bytes, and has 10"),
        (header((1,), "|O") + b"12345678", "objects are not unpickled"),
        (header((0, 3)), r"has 0 rows: its shape is \[0, 3\]"),
        (header((3, 0)), r"has no values: its shape is \[3, 0\]"),
    ],
)
@pytest.mark.parametrize("packed", [True, False])
def test_damaged_files_are_refused_before_allocating(tmp_path, content, message, packed):
    path = tmp_path / ("a.npz" if packed else "a.npy")
    if packed:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.npy", content)
    else:
        path.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(LearnerError, match=message):
            numpy_arrays(path)
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


def test_wrong_files(folder):
    (folder / "notes.txt").write_text("x")
    (folder / "empty").mkdir()
    (folder / "a.npz").write_bytes(b"PK")
    for path, expected in {
        "notes.txt": ("data-file-suffix", "'.txt'"),
        "empty": ("data-files-missing", "empty"),
        "a.npz": ("npz-unreadable", "a.npz", "File is not a zip file"),
        "both/z.npy": ("data-file-missing",),
    }.items():
        with raises_code(*expected):
            numpy_arrays(folder / path)
    np.save(folder / "both" / "y.npy", Y[:5])
    with raises_code("data-file-unreadable", "[6, 4]", "[5]"):
        numpy_arrays(folder / "both")
