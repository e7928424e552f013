"""Tests of the bundled datasets: digits, diabetes and stdlib_text."""

import itertools
import os
import re
import sys

import numpy as np
import pytest

from learner.data import diabetes, digits, stdlib_text
from learner.data.bundled import TEXT_TRAIN, TEXT_VALID
from learner.errors import LearnerError
from learner.util.distribution import install_hint
from tests.support.codes import raises_code
from tests.support.stopped import some


def test_digits_equal_scikit_learn():
    from sklearn.datasets import load_digits

    train, valid = digits("train"), digits("valid")
    assert (len(train), len(valid)) == (1437, 360)
    for data in (train, valid):
        assert data.arrays["image"].dtype == np.float32
        assert data.arrays["image"].shape[1:] == (8, 8)
        assert (data.arrays["image"].min(), data.arrays["image"].max()) == (0, 1)
        assert data.arrays["label"].dtype == np.int32
    both = sorted((*(row["image"].ravel() * 16).tolist(), row["label"]) for data in (train, valid) for row in data)
    original = load_digits()
    assert both == sorted((*x.ravel(), y) for x, y in zip(original.images, original.target, strict=True))


def test_digits_are_stratified_and_deterministic():
    counts = {split: np.bincount(digits(split).arrays["label"]) for split in ("train", "valid")}
    assert np.all(np.abs(counts["valid"] - (counts["train"] + counts["valid"]) * 0.2) < 1)
    np.testing.assert_array_equal(digits("valid").arrays["image"], digits("valid").arrays["image"])
    assert not np.array_equal(digits("valid", seed=1).arrays["image"], digits("valid").arrays["image"])
    assert len(digits("valid", valid_fraction=0.5)) == 899


@pytest.mark.parametrize(
    ("fraction", "seed"), some(itertools.product([0.2, 0.1, 0.33, 0.5], [0, 1, 7]), [(0.2, 0), (0.33, 7)])
)
def test_rows_equal_train_test_split(fraction, seed):
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits().images, load_digits().target
    train, valid = train_test_split(np.arange(1797), test_size=fraction, random_state=seed, stratify=labels)
    for split, rows in (("train", train), ("valid", valid)):
        actual = digits(split, valid_fraction=fraction, seed=seed).arrays
        np.testing.assert_array_equal(actual["image"] * 16, images[np.sort(rows)])
        np.testing.assert_array_equal(actual["label"], labels[np.sort(rows)])
    lengths = [len(diabetes(split, valid_fraction=fraction, seed=seed)) for split in ("train", "valid")]
    assert lengths == [*map(len, train_test_split(np.arange(442), test_size=fraction, random_state=seed))]


def test_diabetes_is_standardized_by_the_training_rows():
    from sklearn.datasets import load_diabetes
    from sklearn.model_selection import train_test_split

    train, valid = diabetes("train").arrays, diabetes("valid").arrays
    assert (len(train["target"]), len(valid["target"])) == (353, 89)
    assert {x.dtype for data in (train, valid) for x in data.values()} == {np.dtype(np.float32)}
    for name in ("features", "target"):
        np.testing.assert_allclose(train[name].mean(0, dtype=np.float64), 0, atol=1e-6)
        np.testing.assert_allclose(train[name].std(0, dtype=np.float64), 1, atol=1e-6)
    rows = train_test_split(np.arange(442), test_size=0.2, random_state=0)
    for data, split_rows in zip((train, valid), rows, strict=True):
        raw = load_diabetes(scaled=False).data
        standard = (raw - raw[rows[0]].mean(0)) / raw[rows[0]].std(0)
        np.testing.assert_allclose(data["features"], standard[np.sort(split_rows)], rtol=1e-5, atol=1e-6)
    original = load_diabetes(scaled=False).target
    target = np.concatenate([train["target"], valid["target"]]).astype(np.float64)
    slope, offset = np.polyfit(np.sort(target), np.sort(original), 1)
    np.testing.assert_allclose(np.sort(target) * slope + offset, np.sort(original), rtol=1e-5)
    assert 75 < slope < 79


@pytest.fixture
def fake_python(tmp_path, monkeypatch):
    for name in TEXT_TRAIN + TEXT_VALID:
        (tmp_path / name).write_bytes(b"")
    (tmp_path / TEXT_VALID[0]).write_bytes(b"abc\r\n")
    (tmp_path / TEXT_VALID[1]).write_bytes("dé".encode())
    (tmp_path / TEXT_VALID[2]).write_bytes(b"fgh")
    monkeypatch.setattr(os, "__file__", str(tmp_path / "os.py"))
    return tmp_path


def decoded(windows):
    return ["".join(map(chr, row)) for row in windows]


def test_targets_of_text_are_shifted_by_one(fake_python):
    arrays = stdlib_text("valid", length=3).arrays  # abc⏎d??fgh
    assert decoded(arrays["text"]) == ["abc", "\nd\0", "\0fg"]
    assert decoded(arrays["target"]) == ["bc\n", "d\0\0", "fgh"]
    assert arrays["text"].dtype == arrays["target"].dtype == np.int32
    assert decoded(stdlib_text("valid", length=4, stride=3).arrays["text"]) == ["abc\n", "\nd\0\0"]
    assert decoded(stdlib_text("valid", length=9).arrays["target"]) == ["bc\nd\0\0fgh"]
    assert len(stdlib_text("valid", length=2, max_rows=1)) == 1


def test_text_of_the_standard_library():
    train, valid = stdlib_text("train"), stdlib_text("valid")
    assert len(train) > 5000
    assert len(valid) > 400
    assert train.arrays["text"].shape[1:] == train.arrays["target"].shape[1:] == (128,)
    assert train.arrays["text"].max() < 128
    assert not set(TEXT_TRAIN) & set(TEXT_VALID)


def test_missing_text_files(fake_python):
    (fake_python / TEXT_TRAIN[3]).unlink()
    with raises_code("data-source-files-missing", TEXT_TRAIN[3]):
        stdlib_text("train")


def test_text_shorter_than_a_row(fake_python):
    with raises_code("data-length-too-large", length=10, split="valid"):
        stdlib_text("valid", length=10)


@pytest.mark.parametrize("source", [digits, diabetes, stdlib_text])
def test_unknown_split(source):
    with raises_code("data-split-unknown", source.__name__, "'validd'", "'valid'"):
        source("validd")


@pytest.mark.parametrize(
    ("source", "fraction"),
    [(digits, 0), (diabetes, 1), (digits, 1.5), (diabetes, -0.1), (digits, "half"), (digits, 0.001)],
)
def test_wrong_fraction(source, fraction):
    with raises_code("data-valid-fraction-value", "valid_fraction", repr(fraction)):
        source("train", valid_fraction=fraction)


@pytest.mark.parametrize(("option", "value"), [("length", 0), ("stride", 0), ("max_rows", 0), ("length", 1.5)])
def test_wrong_sizes(option, value):
    with raises_code("data-number-value", option, str(value), "1"):
        stdlib_text("valid", **{option: value})


@pytest.mark.parametrize("source", [digits, diabetes])
def test_missing_package_raises_with_install_command(source, monkeypatch):
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, "sklearn", raising=False)
    with pytest.raises(LearnerError, match=re.escape(install_hint("examples"))):
        source("train")
