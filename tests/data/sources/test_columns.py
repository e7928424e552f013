"""Columns of values that have types, and rows of lists."""

import numpy as np
import pytest

from learner.data.sources.column_spec import parse_columns
from learner.data.sources.columns import Table, table
from learner.errors import LearnerError


def made(cells, missing=None, **options):
    options = {"fields": None, "dtypes": None, "labels": None, "missing": missing} | options
    return table("t", parse_columns("t", list(cells), **options), cells, lambda row: f"row {row}")


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([1, 2], np.int32),
        ([1, 2**31], np.int64),
        ([-(2**31), 2**31 - 1], np.int32),
        ([1, 2.5], np.float32),
        ([1.0, 1e39], np.float64),
        ([1.0, float("inf")], np.float32),
        ([True, False], np.bool_),
        ([True, 2], np.int32),
        ([[1, 2], [3, 4]], np.int32),
        ([[[0.5], [1]], [[2], [3]]], np.float32),
        (np.array([1, 2], np.int8), np.int8),
        (np.array([1, 2.5]), np.float64),
    ],
)
def test_types_follow_the_values(values, dtype):
    array = made({"a": values}).arrays["a"]
    assert array.dtype == dtype
    np.testing.assert_array_equal(array, np.array(values, dtype))


def test_several_columns_are_the_last_axis():
    arrays = made(
        {"a": [1, 2], "b": [3, 4], "c": [[1, 2], [3, 4]], "d": [[5, 6], [7, 8]]},
        fields={"x": ["b", "a"], "y": ["c", "d"]},
    ).arrays
    assert arrays["x"].tolist() == [[3, 1], [4, 2]]
    assert arrays["y"].tolist() == [[[1, 5], [2, 6]], [[3, 7], [4, 8]]]


def test_labels_of_several_columns_are_one_list():
    made_of = made({"a": ["x", "z"], "b": ["y", "x"]}, fields={"l": ["a", "b"]}, labels={"l": None})
    assert made_of.arrays["l"].tolist() == [[0, 1], [2, 0]]
    assert made_of.labels == {"l": ("x", "y", "z")}
    assert isinstance(made_of, Table)


@pytest.mark.parametrize(
    ("cells", "options", "message"),
    [
        (
            {"a": [[1, 2], [3]]},
            {},
            r"t, row 1: column 'a': a list of shape \[1\]; it needs .* of the first row, \(2,\)",
        ),
        ({"a": [[1, 2], [3, [4]]]}, {}, "row 1: column 'a': uneven"),
        ({"a": [["x"], ["y"]]}, {}, "row 0: column 'a': a list of other things than numbers"),
        ({"a": [1, [2]]}, {}, "row 1: column 'a': a list is no number"),
        ({"a": [1, {"b": 2}]}, {}, "row 1: column 'a': a dict is no number"),
        ({"a": [1, None]}, {}, r"row 1: column 'a': it is missing \(missing= says"),
        ({"a": [1, 2**63]}, {}, "row 1: column 'a': 9223372036854775808 does not fit into int64"),
        (
            {"a": [1, "b"], "c": [None, 1]},
            {},
            r"(?s)2 problems:\n  1\. t, row 1: column 'a'.*\n  2\. t, row 0: column 'c'",
        ),
        ({"a": [1, 2], "b": [[1], [2]]}, {"fields": {"x": ["a", "b"]}}, r"columns of the field 'x' differ in shape"),
        ({"a": np.array([0, 3000])}, {"dtypes": {"a": "int8"}}, "row 1: column 'a': 3000 does not fit into int8"),
        ({"a": np.array([0.5, 1])}, {"dtypes": {"a": "bool"}}, "row 0: column 'a': 0.5 does not fit into bool"),
        ({"a": []}, {}, "t has no rows"),
    ],
)
def test_what_does_not_fit_is_named(cells, options, message):
    with pytest.raises(LearnerError, match=message):
        made(cells, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fields": "a"}, "fields is 'a': it needs a mapping of fields, or a list of them"),
        ({"fields": {"x": 3}}, "fields.x is 3: it needs a column, or a list of columns"),
        ({"fields": {"x": ["a", None]}}, r"fields.x is \['a', None\]"),
        ({"labels": {"a": "xyz"}}, "labels.a is 'xyz': it needs a list of texts, each once, or null"),
        ({"labels": {"a": ["x", "y", "x"]}}, r"labels.a is \['x', 'y', 'x'\]"),
        ({"missing": "0"}, "missing is '0': it needs a number"),
        ({"missing": True, "fields": 1}, "2 problems"),
    ],
)
def test_options_that_are_none(options, message):
    with pytest.raises(LearnerError, match=message):
        made({"a": [1, 2]}, **options)


def test_lists_are_short_for_columns_by_their_names():
    short = made({"a": [1, 2], "b": ["y", "x"], "c": [3, 4]}, fields=["b", "a"], labels=["b"])
    assert {name: array.tolist() for name, array in short.arrays.items()} == {"a": [1, 2], "b": [1, 0]}


def test_a_float_may_be_rounded_by_its_type():
    array = made({"a": [0.1, float("nan")]}, dtypes={"a": "float16"}).arrays["a"]
    np.testing.assert_array_equal(array, np.float16([0.1, np.nan]))
    assert made({"a": [1, None]}, missing=0, dtypes={"a": "uint8"}).arrays["a"].tolist() == [1, 0]
