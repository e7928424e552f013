"""Tests of cifar10 and cifar100 with generated files."""

import gzip
import tracemalloc

import numpy as np
import pytest

from learner.data import cifar10, cifar100
from tests.support.codes import raises_code


def rows(labels, start=0):
    """Return rows in the published format (labels, then planes of red, green and blue), and their images."""
    labels = np.atleast_2d(np.asarray(labels, np.uint8).T).T
    images = np.random.default_rng(start).integers(0, 256, (len(labels), 32, 32, 3), np.uint8)
    planes = [images[..., channel].reshape(len(labels), 1024) for channel in range(3)]
    return np.concatenate([labels, *planes], axis=1).tobytes(), images


@pytest.fixture
def cifar10_files(tmp_path):
    images = []
    for number in range(1, 6):
        content, part = rows([number, 9], start=number)
        (tmp_path / f"data_batch_{number}.bin").write_bytes(content)
        images.append(part)
    content, _ = rows([7])
    (tmp_path / "test_batch.bin.gz").write_bytes(gzip.compress(content))
    return str(tmp_path), np.concatenate(images)


def test_ten_classes(cifar10_files):
    directory, images = cifar10_files
    arrays = cifar10(directory, "train", scaled=False).arrays
    np.testing.assert_array_equal(arrays["image"], images)
    assert arrays["image"].flags.c_contiguous
    assert arrays["label"].tolist() == [1, 9, 2, 9, 3, 9, 4, 9, 5, 9]
    assert arrays["label"].dtype == np.int32
    scaled = cifar10(directory, "train").arrays["image"]
    assert scaled.flags.c_contiguous
    np.testing.assert_allclose(scaled, images / 255, rtol=1e-6)
    assert cifar10(directory, "valid").arrays["label"].tolist() == [7]


def test_a_hundred_classes(tmp_path):
    content, images = rows([[19, 99], [0, 5]])
    (tmp_path / "train.bin").write_bytes(content)
    arrays = cifar100(str(tmp_path), "train", scaled=False).arrays
    assert (arrays["label"].tolist(), arrays["group"].tolist()) == ([99, 5], [19, 0])
    np.testing.assert_array_equal(arrays["image"], images)


def test_missing_files_are_listed(cifar10_files, tmp_path):
    for number in (2, 4):
        (tmp_path / f"data_batch_{number}.bin").unlink()
    with raises_code("data-files-missing", "data_batch_2.bin", "data_batch_4.bin", "//"):
        cifar10(cifar10_files[0], "train")
    with raises_code("data-files-missing", "cifar100", "test.bin", "get the files from"):
        cifar100(cifar10_files[0], "test")


@pytest.mark.parametrize(
    ("content", "code", "values"),
    [
        (b"", "data-file-size", ("3073", "0")),
        (rows([1, 2])[0][:-1], "data-file-size", ("3073", "6145")),
        (rows([1, 10])[0], "data-label-outside", ("1", "10")),
    ],
)
def test_damaged_files(tmp_path, content, code, values):
    (tmp_path / "test_batch.bin").write_bytes(content)
    with raises_code(code, *values):
        cifar10(str(tmp_path), "test")


def test_gzip_bomb(tmp_path, monkeypatch):
    """A small gzip file decompresses to more bytes than any file of CIFAR has."""
    monkeypatch.setattr("learner.data.sources.cifar.LARGEST", 2**20)
    (tmp_path / "test_batch.bin").write_bytes(gzip.compress(bytes(2**25)))
    tracemalloc.start()
    try:
        with raises_code("data-file-too-large", most=1048576):
            cifar10(str(tmp_path), "test")
        assert tracemalloc.get_traced_memory()[1] < 2**23
    finally:
        tracemalloc.stop()
