"""Tests of ArrayDataset and Dataset."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from learner.data import ArrayDataset, DataLoaderBuilder, Dataset, view
from learner.data.source import source_of
from tests.support.codes import raises_code


def test_rows_are_items_in_the_structure_of_the_arrays():
    data = ArrayDataset({"x": np.arange(6).reshape(3, 2), "more": (np.array([1.5, 2.5, 3.5]),)})
    assert len(data) == 3
    item = data[1]
    assert item["x"].tolist() == [2, 3]
    assert item["more"][0] == 2.5
    assert data[-1]["x"].tolist() == [4, 5]
    assert data[np.int64(2)]["x"].tolist() == [4, 5]
    assert [row["x"].tolist() for row in data] == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("index", [3, -4])
def test_rows_outside_raise(index):
    with pytest.raises(IndexError, match=f"item {index} of an ArrayDataset, which has 3: give 0 to 2, or -3 to -1"):
        ArrayDataset(np.zeros(3))[index]


def test_datasets_have_private_attributes_of_any_name():
    class Wrapped(Dataset):
        def __init__(self, inner):
            self._inner = inner
            self._select, self._slice, self._window, self._concat, self._chain = range(5)

        def __len__(self):
            return len(self._inner)

        def __getitem__(self, index):
            return self._inner[index] * 10

    data = Wrapped(np.arange(4))
    (batch,) = DataLoaderBuilder().batch_size(4).build(data)
    assert batch.tolist() == [0, 10, 20, 30]
    assert source_of(data, "train", batch_size=2).peek(1).tolist() == [0, 10]
    assert list(data.select([3]).concat(data.slice(stop=1))) == [30, 0]
    assert [window.tolist() for window in data.windows(2)] == [[0, 10], [20, 30]]
    assert view(data).shuffle().labels == {}


def test_several_rows_have_a_method():
    data = ArrayDataset(np.arange(3))
    with pytest.raises(TypeError, match=r"its method slice\(start, stop, step\)"):
        data[:2]
    assert list(data.slice(stop=2)) == [0, 1]
    for rows in ([0, 1], np.array([0, 1])):
        with pytest.raises(TypeError, match=r"its method select\(rows\)"):
            data[rows]


def test_fractional_row_raises():
    with pytest.raises(TypeError):
        ArrayDataset(np.zeros(3))[1.0]


def test_arrays_are_not_copied_except_from_devices(tmp_path):
    x = np.zeros((4, 2), np.float16)
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    data = ArrayDataset({"x": x, "mapped": mapped, "device": jnp.arange(4)})
    assert data.arrays["x"] is x
    assert np.shares_memory(data.arrays["mapped"], mapped)
    assert isinstance(data.arrays["device"], np.ndarray)
    assert repr(data) == "ArrayDataset(4 rows: device int32 [], mapped float16 [2], x float16 [2])"


@pytest.mark.parametrize(
    ("arrays", "code", "values"),
    [
        ({"x": np.zeros((3, 2)), "y": np.zeros(4)}, "data-arrays-axes-differ", ("[3, 2]", "[4]")),
        ({"x": np.zeros((3, 2)), "meta": {"id": np.int32(1)}}, "data-arrays-type", ("meta/id", "[]", "[3, 2]")),
        ({"x": [1, 2]}, "data-arrays-type", ("x/0", "[]", "x/1")),
        ({"x": [0] * 500}, "data-arrays-type", ("x/7 [] and 492 more", "np.asarray")),
        (np.float32(1), "data-arrays-type", ("[]",)),
        ({"x": np.zeros((0, 2))}, "data-dataset-empty", ("[0, 2]",)),
        ({}, "data-arrays-missing", ()),
        ("nowhere/nope.npz", "data-file-missing", ("nowhere/nope.npz",)),
        (Path(__file__), "data-path-unread", ("test_dataset.py",)),
        (None, "data-arrays-missing", ()),
        ({"x": np.zeros(2), "k": jax.random.split(jax.random.key(0))}, "batch-random-keys", ("k holds", "key_data")),
        ({"x": np.ma.masked_less(np.arange(5), 2)}, "data-masked-values", ("x has", "(2 of 5)")),
    ],
)
def test_wrong_arrays(arrays, code, values):
    with raises_code(code, *values):
        ArrayDataset(arrays)


def test_masked_array_without_masked_values():
    assert ArrayDataset({"x": np.ma.masked_less(np.arange(3), 0)}).arrays["x"].tolist() == [0, 1, 2]


def test_masked_values_of_items_are_refused():
    items = [np.ma.masked_less(np.arange(3), 2)] * 4
    with raises_code("data-masked-values"):
        list(DataLoaderBuilder().batch_size(2).build(items))


def test_dataset_with_to_numpy_is_no_frame():
    class UserDataset(Dataset):
        def __len__(self):
            return 3

        def __getitem__(self, index):
            return {"x": np.float32(index)}

        def to_numpy(self):
            raise AssertionError

    assert [item["x"] for item in view(UserDataset())] == [0, 1, 2]


def test_dataset_needs_both_methods():
    class NoLength(Dataset):
        def __getitem__(self, index):
            return index

    with pytest.raises(TypeError, match="__len__"):
        NoLength()
