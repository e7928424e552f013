"""Tests of sources in worker processes, which open the files themselves."""

import contextlib
import pickle
import sqlite3

import jax
import numpy as np
import pytest
from PIL import Image

from learner.data import DataLoaderBuilder, ImageFolder, SQLiteTable, TextWindows, numpy_arrays


def images(folder):
    (folder / "a").mkdir()
    for number in range(6):
        Image.new("RGB", (5, 4), (number, 2 * number, 3 * number)).save(folder / "a" / f"{number}.png")
    return ImageFolder(folder)


def rows(folder):
    with contextlib.closing(sqlite3.connect(folder / "a.db")) as database, database:
        database.execute("CREATE TABLE t (a INT, b REAL)")
        database.executemany("INSERT INTO t VALUES (?, ?)", [(number, number / 2) for number in range(6)])
    return SQLiteTable(folder / "a.db", "t")


def arrays(folder):
    np.save(folder / "x.npy", np.arange(12.0).reshape(6, 2))
    return numpy_arrays(str(folder / "x.npy"))


def text(folder):
    (folder / "a.txt").write_text("some text that has several rows")
    return TextWindows(folder / "a.txt", 4, level="characters")


@pytest.mark.parametrize("make", [images, rows, arrays, text])
def test_pickling(tmp_path, make):
    """A worker unpickles its dataset."""
    data = make(tmp_path)
    copy = pickle.loads(pickle.dumps(data))
    jax.tree.map(
        np.testing.assert_array_equal, [copy[i] for i in range(len(data))], [data[i] for i in range(len(data))]
    )


@pytest.mark.full
@pytest.mark.parametrize("make", [images, rows, arrays, text])
def test_workers_read_the_same_batches(tmp_path, make):
    data = make(tmp_path)
    builder = DataLoaderBuilder().batch_size(2).shuffle(3)
    expected = list(builder.build(data))
    loader = builder.num_workers(1).build(data)
    try:
        actual = list(loader)
    finally:
        loader.close()
    assert len(actual) == len(expected)
    jax.tree.map(np.testing.assert_array_equal, actual, expected)
