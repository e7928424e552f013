"""Sources in worker processes, which open the files anew."""

import contextlib
import pickle
import sqlite3

import jax
import numpy as np
import pytest
from PIL import Image

from learner.data import DataLoaderBuilder, ImageFolder, SQLiteTable, TextWindows, numpy_arrays


def images(place):
    (place / "a").mkdir()
    for number in range(6):
        Image.new("RGB", (5, 4), (number, 2 * number, 3 * number)).save(place / "a" / f"{number}.png")
    return ImageFolder(place)


def rows(place):
    with contextlib.closing(sqlite3.connect(place / "a.db")) as database, database:
        database.execute("CREATE TABLE t (a INT, b REAL)")
        database.executemany("INSERT INTO t VALUES (?, ?)", [(number, number / 2) for number in range(6)])
    return SQLiteTable(place / "a.db", "t")


def arrays(place):
    np.save(place / "x.npy", np.arange(12.0).reshape(6, 2))
    return numpy_arrays(str(place / "x.npy"))


def text(place):
    (place / "a.txt").write_text("some text that has several rows")
    return TextWindows(place / "a.txt", 4, level="characters")


@pytest.mark.parametrize("make", [images, rows, arrays, text])
def test_they_travel_as_pickles(tmp_path, make):
    """A worker unpickles them; `test_loader.py` starts workers by default, too."""
    data = make(tmp_path)
    copy = pickle.loads(pickle.dumps(data))
    jax.tree.map(
        np.testing.assert_array_equal, [copy[i] for i in range(len(data))], [data[i] for i in range(len(data))]
    )


@pytest.mark.full
@pytest.mark.parametrize("make", [images, rows, arrays, text])
def test_workers_give_the_same_batches(tmp_path, make):
    data = make(tmp_path)
    builder = DataLoaderBuilder().batch_size(2).shuffle(3)
    expected = list(builder.build(data))
    loader = builder.num_workers(1).build(data)
    try:
        found = list(loader)
    finally:
        loader.close()
    assert len(found) == len(expected)
    jax.tree.map(np.testing.assert_array_equal, found, expected)
