"""Tests of stacking items into batches."""

import collections
import itertools
import pickle

import jax
import numpy as np
import pytest

from learner.data import stack
from learner.data.batcher import ItemError
from learner.errors import LearnerError
from tests.support.codes import raises_code


def test_items_are_stacked_leaf_by_leaf():
    batch = stack([{"x": np.float32([1, 2]), "y": (1, [3.0, 4.0])}, {"x": np.float32([5, 6]), "y": (0, [7.0, 8.0])}])
    assert batch["x"].dtype == np.float32
    assert batch["x"].tolist() == [[1, 2], [5, 6]]
    assert batch["y"][0].tolist() == [1, 0]
    assert batch["y"][1].tolist() == [[3, 4], [7, 8]]


@pytest.mark.parametrize("item", [3, np.int8(3), np.full((2, 1), 3, np.int8), [[3], [3]]])
def test_stacking_equals_numpy(item):
    expected = np.stack([np.asarray(item)] * 4)
    batch = stack([item] * 4)
    assert (batch.dtype, batch.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(batch, expected)


def test_batch_of_one_item():
    assert stack([{"x": np.ones((2, 3))}])["x"].shape == (1, 2, 3)


@pytest.mark.parametrize(
    ("items", "code", "values"),
    [
        (
            [{"text": np.ones(5)}] * 3 + [{"text": np.ones(7)}],
            "batch-item-shapes-differ",
            ("text", "[5]", "0", "1", "2", "[7]", "3", "pads"),
        ),
        ([{"text": [1, 2]}, {"text": [1]}], "batch-item-shapes-differ", ("text", "[2]", "0", "[1]", "1")),
        ([1, np.ones(2)], "batch-item-shapes-differ", ("the array", "[]", "0", "[2]", "1")),
        ([{"x": 1}, {"x": 1, "y": 1}], "batch-items-differ", ("item 0 has x, item 1 has x, y",)),
        ([{"x": 1}, {"x": None}], "batch-items-differ", ("item 0 has x, item 1 has x = None",)),
        ([(1,), {"0": 1}], "batch-items-differ", ("item 0 has PyTreeDef((*,)), item 1 has PyTreeDef({'0': *})",)),
        ([None, None], "batch-items-differ", ("0", "None")),
        (
            [np.ones(i % 3) for i in range(9)],
            "batch-item-shapes-differ",
            ("[0]", "0", "3", "6", "[1]", "1", "4", "7", "[2]", "2"),
        ),
        ([1] * 9 + [[1, 2]], "batch-item-shapes-differ", ("[]", "0", "1", "2", "3", "4", "[2]", "9")),
        ([np.ones(i) for i in range(9)], "batch-item-shapes-differ", ("[4]", "4")),
        ([{"k": jax.random.key(0)}, {"k": jax.random.key(1)}], "batch-random-keys", ("k", "jax.random.key_data")),
        (
            [{"id": np.uint64(2**63 + 1)}, {"id": np.int64(3)}],
            "batch-item-types-differ",
            ("id is uint64 in item 0, and int64 in item 1",),
        ),
        ([2**63, -1], "batch-item-types-differ", ("uint64", "int64")),
        ([np.uint64([1, 2]), np.int64([1, 2])], "batch-item-types-differ", ("uint64", "int64")),
        (
            [{"a": 1, "b": "x"}, {"a": 2, "b": 7}],
            "batch-item-types-differ",
            ("b is str in item 0, and int64 in item 1",),
        ),
        ([3, "x", "y"], "batch-item-types-differ", ("int64 in item 0, and str in items 1 and 2",)),
        ([b"x", "y"], "batch-item-types-differ", ("bytes in item 0, and str in item 1",)),
        ([[1, 2], ["x", "y"]], "batch-item-types-differ", ("int64", "str")),
        ([{"s": b"a"}, {"s": b"b\0"}], "batch-item-ends-in-nul", ("s of item 1",)),
        (["a\0", "b"], "batch-item-ends-in-nul", ("the array of item 0",)),
        ([{"a": 1}, {"a": 1, 2: 2}], "batch-item-keys-differ", ("item 1", "{'a': 1, 2: 2}")),
        ([{"a": 1}, collections.UserDict(b=2)], "batch-items-differ", ("item 0 has a, item 1 has b",)),
        ([[[1, 2], [3]], [[1, 2], [3]]], "batch-item-shapes-differ", ("the array", "0", "1")),
    ],
)
def test_items_that_differ_are_named(items, code, values):
    with raises_code(code, *values):
        stack(items)


@pytest.mark.parametrize(
    ("items", "dtype"),
    [
        ([1, 2.5], np.float64),
        ([np.int8(1), np.float32(2)], np.float32),
        ([True, 2], np.int64),
        ([np.uint8(1), np.int8(-1)], np.int16),
        (["a", "bcd"], "<U3"),
        ([b"a\0b", b"c"], "S3"),
    ],
)
def test_types_that_numpy_joins(items, dtype):
    assert stack(items).dtype == dtype
    assert stack(items).tolist() == items


@pytest.mark.parametrize("kinds", [*itertools.product([dict, collections.UserDict], repeat=3)])
def test_mappings_of_any_items_become_dicts(kinds):
    batch = stack([kind(x=number, y=kind(z=[number, 1])) for number, kind in enumerate(kinds)])
    assert type(batch) is type(batch["y"]) is dict
    assert (batch["x"].tolist(), batch["y"]["z"].tolist()) == ([0, 1, 2], [[0, 1], [1, 1], [2, 1]])


def test_other_errors_are_not_replaced():
    class Broken:
        shape, ndim = (), 0

        def __array__(self, dtype=None, copy=None):
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine") as raised:
        stack([Broken(), Broken()])
    assert not isinstance(raised.value, LearnerError)


def test_errors_may_name_rows_of_the_dataset():
    """The error keeps them when it is pickled in a worker process."""
    with pytest.raises(ItemError) as raised:
        stack([1, [2, 3], 4, [5]])
    sent = pickle.loads(pickle.dumps(raised.value))
    message = "items of a batch differ in shape: the array is [] in items 70 and 5, [2] in item 8, and [1] in item 6;"
    assert str(sent.in_dataset([70, 8, 5, 6])).startswith(message)
    assert str(sent) == str(raised.value)
