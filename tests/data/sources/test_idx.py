"""Tests of mnist, fashion_mnist and read_idx with generated and damaged files."""

import gzip
import struct
import tracemalloc

import numpy as np
import pytest

from learner.data import fashion_mnist, mnist, read_idx
from tests.support.codes import raises_code

IMAGES = np.arange(5 * 28 * 28).reshape(5, 28, 28).astype(np.uint8)
LABELS = np.array([3, 0, 9, 1, 3], np.uint8)
CODES = {"u1": 8, "i1": 9, "i2": 11, "i4": 12, "f4": 13, "f8": 14}
MEGABYTE = 2**20


def idx(array):
    """Return the bytes of an IDX file."""
    array = np.asarray(array)
    header = bytes([0, 0, CODES[array.dtype.str[1:]], array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


def write(directory, split="train", images=IMAGES, labels=LABELS, packed=True):
    for name, array in (("images-idx3-ubyte", images), ("labels-idx1-ubyte", labels)):
        content = array if isinstance(array, bytes) else idx(array)
        path = directory / f"{split}-{name}{'.gz' if packed else ''}"
        path.write_bytes(gzip.compress(content) if packed else content)


@pytest.mark.parametrize("read", [mnist, fashion_mnist])
@pytest.mark.parametrize("packed", [True, False])
def test_images_and_labels_round_trip(tmp_path, read, packed):
    write(tmp_path, packed=packed)
    write(tmp_path, "t10k", IMAGES[:2], LABELS[:2], packed=packed)
    arrays = read(str(tmp_path), "train").arrays
    assert arrays["image"].dtype == np.float32
    np.testing.assert_array_equal(arrays["image"] * 255, IMAGES)
    assert arrays["label"].dtype == np.int32
    assert arrays["label"].tolist() == [3, 0, 9, 1, 3]
    for split in ("valid", "test"):
        assert len(read(str(tmp_path), split)) == 2
    bare = read(str(tmp_path), "train", scaled=False).arrays["image"]
    assert bare.dtype == np.uint8
    assert bare.tolist() == IMAGES.tolist()


def test_other_file_names(tmp_path):
    (tmp_path / "train-images.idx3-ubyte").write_bytes(idx(IMAGES))
    (tmp_path / "train-labels.idx1-ubyte").write_bytes(idx(LABELS))
    assert len(mnist(str(tmp_path), "train")) == 5


@pytest.mark.parametrize("dtype", CODES)
def test_every_dtype(tmp_path, dtype):
    array = np.array([[0, 1, 100], [7, 5, 3]], dtype)
    (tmp_path / "a.idx").write_bytes(idx(array))
    read = read_idx(tmp_path / "a.idx")
    assert read.dtype == array.dtype
    assert read.tolist() == array.tolist()


def test_missing_files_are_named_with_their_address(tmp_path):
    write(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte.gz").unlink()
    with raises_code("data-files-missing", "train-labels-idx1-ubyte.gz", "//ossci-datasets.s3.amazonaws.com/mnist/"):
        mnist(str(tmp_path), "train")
    expected = (
        "data-files-missing",
        "t10k-images-idx3-ubyte.gz",
        "t10k-labels-idx1-ubyte.gz",
        "//github.com/zalandoresearch/fashion",
    )
    with raises_code(*expected):
        fashion_mnist(str(tmp_path), "valid")
    with raises_code("data-directory-missing", "no", "get the files from"):
        mnist(str(tmp_path / "no"), "train")


def test_images_and_labels_that_do_not_match(tmp_path):
    for images, labels, expected in [
        (IMAGES, LABELS[:4], ("data-idx-counts-differ", "5", "train-labels-idx1-ubyte.gz", "4")),
        (LABELS, LABELS, ("data-idx-shape", "mnist", "3", "uint8", "[5]")),
        (IMAGES, LABELS.astype(np.int32), ("data-idx-shape", "mnist", "1", "int32", "[5]")),
        (IMAGES, np.uint8([1, 2, 10, 3, 4]), ("data-label-outside", "2", "10")),
        (IMAGES[:0], LABELS[:0], ("data-dataset-empty",)),
    ]:
        write(tmp_path, images=images, labels=labels)
        with raises_code(*expected):
            mnist(str(tmp_path), "train")


def test_unknown_split(tmp_path):
    with raises_code("data-split-unknown", "'train'", name="mnist", split="tran"):
        mnist(str(tmp_path), "tran")


HEADER = bytes([0, 0, 8, 3])
DAMAGED = {
    "nothing": (b"", ("data-idx-magic", "nothing")),
    "another file": (b"\x89PNG\r\n\x1a\n", ("data-idx-magic", "89", "50", "4e", "47")),
    "another type": (bytes([0, 0, 10, 1, 0, 0, 0, 0]), ("data-idx-magic", "00", "0a", "01")),
    "no axes": (bytes([0, 0, 8, 0]), ("data-idx-magic", "00", "08")),
    "many axes": (bytes([0, 0, 8, 255]), ("data-idx-magic", "00", "08")),
    "a header that is cut off": (HEADER + b"\0\0", ("data-idx-cut-off",)),
    "rows that are cut off": (idx(IMAGES)[:-1], ("data-idx-size", "[5, 28, 28]", "uint8", "3920")),
    "rows too many": (idx(IMAGES) + b"\0", ("data-idx-size", "3920", "more")),
    "gigabytes": (HEADER + struct.pack(">3I", 2**31, 28, 28) + b"12", ("data-idx-claims-too-much",)),
    "more than any number": (
        HEADER + struct.pack(">3I", 2**32 - 1, 2**32 - 1, 2**32 - 1),
        ("data-idx-claims-too-much",),
    ),
}


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_files_are_refused_before_allocating(tmp_path, damage, packed):
    content, expected = DAMAGED[damage]
    (tmp_path / "a").write_bytes(gzip.compress(content) if packed else content)
    tracemalloc.start()
    try:
        with raises_code(*expected):
            read_idx(tmp_path / "a")
        assert tracemalloc.get_traced_memory()[1] < 4 * MEGABYTE
    finally:
        tracemalloc.stop()


def test_plausible_gzip_size_does_not_preallocate(tmp_path):
    """The header claims 60 MB, which gzip could hold in a file of this size; the file holds 1 MB."""
    content = HEADER + struct.pack(">3I", 60, MEGABYTE, 1) + np.random.default_rng(0).bytes(MEGABYTE)
    (tmp_path / "a").write_bytes(gzip.compress(content))
    tracemalloc.start()
    try:
        with raises_code("data-idx-size", str(60 * MEGABYTE), str(MEGABYTE)):
            read_idx(tmp_path / "a")
        assert tracemalloc.get_traced_memory()[1] < 8 * MEGABYTE
    finally:
        tracemalloc.stop()


def test_damaged_gzip(tmp_path):
    packed = bytearray(gzip.compress(idx(IMAGES)))
    (tmp_path / "cut").write_bytes(packed[:-20])
    packed[40] ^= 0xFF
    (tmp_path / "changed").write_bytes(packed)
    for name in ("cut", "changed"):
        with raises_code("data-file-unreadable", name):
            read_idx(tmp_path / name)


def test_missing_file(tmp_path):
    (tmp_path / "labels-idx1").write_bytes(idx(LABELS))
    with raises_code("data-file-missing", "labels-idx2", "labels-idx1"):
        read_idx(tmp_path / "labels-idx2")
    with raises_code("data-path-is-directory"):
        read_idx(tmp_path)
