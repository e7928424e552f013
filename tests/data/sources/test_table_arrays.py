"""Tests of converting columns of values to arrays."""

import numpy as np
import pytest

from learner.data.sources.column_spec import parse_columns
from learner.data.sources.table_arrays import Table, join_tables, table
from tests.support.codes import raises_code


def make_table(cells, missing=None, **options):
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
def test_dtypes_follow_the_values(values, dtype):
    array = make_table({"a": values}).arrays["a"]
    assert array.dtype == dtype
    np.testing.assert_array_equal(array, np.array(values, dtype))


def test_several_columns_are_the_last_axis():
    arrays = make_table(
        {"a": [1, 2], "b": [3, 4], "c": [[1, 2], [3, 4]], "d": [[5, 6], [7, 8]]},
        fields={"x": ["b", "a"], "y": ["c", "d"]},
    ).arrays
    assert arrays["x"].tolist() == [[3, 1], [4, 2]]
    assert arrays["y"].tolist() == [[[1, 5], [2, 6]], [[3, 7], [4, 8]]]


@pytest.mark.parametrize(
    ("first", "second", "dtype"),
    [
        ([31, 40], [1.5, 2.5], np.float32),
        (np.array([31, 40]), np.float32([1.5, 2.5]), np.float32),
        (np.array([31, 40]), np.array([1.5, 2.5]), np.float64),
        ([31, 40], [1.5, 1e39], np.float64),
        ([True, False], [3, 4], np.int32),
        ([1, 2**40], [3, 4], np.int64),
    ],
)
def test_fields_of_columns_of_several_types(first, second, dtype):
    """Columns of files with types, such as Parquet, keep float64."""
    array = make_table({"a": first, "b": second}, fields={"x": ["a", "b"]}).arrays["x"]
    assert array.dtype == dtype
    np.testing.assert_array_equal(array, np.array([first, second], dtype).T)


def test_integers_changed_by_another_column_of_their_field_are_noted():
    cells = {"id": [5, 16777217], "b": [0.5, 2]}
    read = make_table(cells, fields={"x": ["b", "id"]})
    assert "column 'id' holds 16777217, which is 16777216 as float32" in read.rounded["id"]
    assert make_table(cells, fields={"x": ["b", "id"]}, dtypes={"x": "float32"}).rounded == {}
    wide = make_table({"id": np.array([2**53 + 1]), "b": np.array([0.5])}, fields={"x": ["id", "b"]})
    assert wide.arrays["x"].tolist() == [[2.0**53, 0.5]]
    assert "column 'id' holds 9007199254740993, which is 9007199254740992 as float64" in wide.rounded["id"]
    with raises_code("data-files-differ", "int64, uint64 in its columns"):
        make_table({"a": np.array([1]), "b": np.array([1], np.uint64)}, fields={"x": ["a", "b"]})


def test_labels_of_several_columns_are_one_list():
    labeled = make_table({"a": ["x", "z"], "b": ["y", "x"]}, fields={"l": ["a", "b"]}, labels={"l": None})
    assert labeled.arrays["l"].tolist() == [[0, 1], [2, 0]]
    assert labeled.labels == {"l": ("x", "y", "z")}
    assert isinstance(labeled, Table)


def test_unknown_texts_have_their_number():
    """Missing cells are not among them."""
    cells = {"a": ["x", "new", 7, "z"], "b": ["new", "x", "y", "x"]}
    fields, labels = {"l": ["a", "b"]}, {"l": ["x", "y", "z"]}
    known = make_table(cells, fields=fields, labels=labels, unknown={"l": 3})
    assert known.arrays["l"].tolist() == [[0, 3], [3, 0], [3, 1], [2, 0]]
    ignored = make_table({"a": ["x", "new"]}, labels={"a": ["x"]}, unknown={"a": -100})
    assert ignored.arrays["a"].tolist() == [0, -100]
    with raises_code("data-columns-unreadable", "'new'", "unknown={'l': ...}"):
        make_table(cells, fields=fields, labels=labels)
    with raises_code("data-columns-unreadable", "it is missing"):
        make_table({"a": ["x", None]}, labels={"a": ["x"]}, unknown={"a": 1})


def test_all_problems_are_counted():
    with raises_code("data-columns-unreadable", "23 problems", "and 18 more"):
        make_table({"a": [str(number) for number in range(23)]}, labels={"a": ["x"]})


def test_problems_of_several_rows_are_one():
    cells = {"a": ["y", "x", "y", "z", "y"], "b": [None] * 5, "c": [1, "?", 2, "?", 3]}
    with raises_code("data-columns-unreadable", "4 problems") as raised:
        make_table(cells, labels={"a": ["x"]})
    unknown, other, empty, text = raised.value.problems
    assert unknown.startswith("t, row 0: column 'a': 'y' is none")
    assert unknown.endswith(" (and 2 more rows)")
    assert other.startswith("t, row 3: column 'a': 'z' is none")
    assert "more" not in other
    assert empty.startswith("t, row 0: column 'b': it is missing")
    assert empty.endswith(" (and 4 more rows)")
    assert text.startswith("t, row 1: column 'c': '?' is not a number")
    assert text.endswith(" (and 1 more row)")
    with raises_code("data-columns-unreadable", "(and 6 more rows)", "7 problems", "... and 2 more"):
        make_table({"a": [*"abcdefg", *"aaabbbff", *"aaa"]}, labels={"a": ["x"]})


def test_the_rows_of_an_unusual_shape_are_named():
    with raises_code("data-columns-unreadable", "row 0", "[1]", "[2]") as raised:
        make_table({"a": [[1], *[[1, 2]] * 5]})
    assert "row 1" not in str(raised.value)


@pytest.mark.parametrize(
    ("cells", "options", "code", "values"),
    [
        (
            {"a": [[1, 2], [3]]},
            {},
            "data-columns-unreadable",
            ("1", "'a'", "[1]", "[2]"),
        ),
        ({"a": [[1, 2], [3, [4]]]}, {}, "data-columns-unreadable", ("1", "'a'")),
        ({"a": [["x"], ["y"]]}, {}, "data-columns-unreadable", ("0", "'a'")),
        ({"a": [1, [2]]}, {}, "data-columns-unreadable", ("1", "'a'")),
        ({"a": [1, {"b": 2}]}, {}, "data-columns-unreadable", ("1", "'a'")),
        ({"a": [1, None]}, {}, "data-columns-unreadable", ("1", "'a'")),
        ({"a": [1, 2**63]}, {}, "data-columns-unreadable", ("1", "'a'", "9223372036854775808", "int64")),
        (
            {"a": [1, "b"], "c": [None, 1]},
            {},
            "data-columns-unreadable",
            ("2", "1", "'a'", "0", "'c'"),
        ),
        ({"a": [1, 2], "b": [[1], [2]]}, {"fields": {"x": ["a", "b"]}}, "data-column-shapes-differ", ("x",)),
        (
            {"a": np.array([0, 3000])},
            {"dtypes": {"a": "int8"}},
            "data-columns-unreadable",
            ("1", "'a'", "3000", "int8"),
        ),
        ({"a": np.array([0.5, 1])}, {"dtypes": {"a": "bool"}}, "data-columns-unreadable", ("0", "'a'", "0.5")),
        ({"a": []}, {}, "data-without-rows", ("t",)),
    ],
)
def test_wrong_cells(cells, options, code, values):
    with raises_code(code, *values):
        make_table(cells, **options)


@pytest.mark.parametrize(
    ("options", "code", "values"),
    [
        ({"fields": "a"}, "data-columns-unreadable", ("'a'",)),
        ({"fields": {"x": 3}}, "data-columns-unreadable", ("fields.x", "3")),
        ({"fields": {"x": ["a", None]}}, "data-columns-unreadable", ("fields.x", "['a', None]")),
        ({"labels": {"a": "xyz"}}, "data-columns-unreadable", ("labels.a", "'xyz'")),
        ({"labels": {"a": ["x", "y", "x"]}}, "data-columns-unreadable", ("labels.a", "['x', 'y', 'x']")),
        ({"missing": "0"}, "data-columns-unreadable", ("'0'",)),
        ({"missing": True, "fields": 1}, "data-columns-unreadable", ("2",)),
        ({"unknown": {"a": 3}, "labels": 5}, "data-columns-unreadable", ("labels is 5", "'a'", "no labels")),
        ({"unknown": 3}, "data-columns-unreadable", ("unknown is 3",)),
        ({"dtypes": ["a"]}, "data-columns-unreadable", ("dtypes is [",)),
        ({"unknown": {"a": 3}}, "data-columns-unreadable", ("'a'", "no labels")),
        ({"unknown": {"a": 0.5}, "labels": ["a"]}, "data-columns-unreadable", ("unknown.a", "0.5")),
        ({"unknown": {"a": 2**31}, "labels": ["a"]}, "data-columns-unreadable", ("unknown.a", "2147483648")),
    ],
)
def test_wrong_options(options, code, values):
    with raises_code(code, *values):
        make_table({"a": [1, 2]}, **options)


def test_lists_of_column_names():
    short = make_table({"a": [1, 2], "b": ["y", "x"], "c": [3, 4]}, fields=["b", "a"], labels=["b"])
    assert {name: array.tolist() for name, array in short.arrays.items()} == {"a": [1, 2], "b": [1, 0]}


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([2**63, 0], "uint64"),
        ([2**64 - 1, None], "uint64"),
        ([2**63, -(2**70)], "float64"),
        ([2**63, 3], "float32"),
    ],
)
def test_integers_beyond_int64_fit_into_wider_types(values, dtype):
    array = make_table({"a": values}, missing=1, dtypes={"a": dtype}).arrays["a"]
    assert array.dtype == dtype
    assert [int(x) for x in array] == [1 if x is None else x for x in values]


@pytest.mark.parametrize(
    ("value", "dtype", "wide"),
    [(2**63, "int64", "int64"), (-1, "uint64", "uint64"), (2**64, "uint64", "uint64"), (10**400, "float32", "float64")],
)
def test_integers_beyond_their_type_are_refused(value, dtype, wide):
    with raises_code("data-columns-unreadable", str(value), f"does not fit into {wide}"):
        make_table({"a": [0, value]}, dtypes={"a": dtype})


def test_floats_are_rounded_to_the_dtype():
    array = make_table({"a": [0.1, float("nan")]}, dtypes={"a": "float16"}).arrays["a"]
    np.testing.assert_array_equal(array, np.float16([0.1, np.nan]))
    assert make_table({"a": [1, None]}, missing=0, dtypes={"a": "uint8"}).arrays["a"].tolist() == [1, 0]


@pytest.mark.parametrize(
    ("text", "hint"), [("2024-01-31", "of dates"), ("2024-01-31 12:00", "of dates"), ("north", "labels=")]
)
def test_hints_for_texts(text, hint):
    """Labels would lose the order of dates, so the hint for dates is another one."""
    with raises_code("data-columns-unreadable", repr(text), hint):
        make_table({"a": [text]})


@pytest.mark.parametrize(
    ("values", "first"),
    [
        ([3, 16777217, 1.5], 16777217),
        ([16777217.0, None, 1.5], 16777217),
        ([-9007199254740993, 0.5], -9007199254740993),
        ([[16777217, 0.5], [1, 2]], 16777217),
    ],
)
def test_rounded_whole_numbers_are_noted(values, first):
    read = make_table({"id": values}, missing=0)
    assert read.arrays["id"].dtype == np.float32
    (text,) = read.rounded.values()
    assert f"column 'id' holds {first}, which is {int(np.float32(first))} as float32" in text
    for dtype in ("float32", "float64"):
        assert make_table({"id": values}, missing=0, dtypes={"id": dtype}).rounded == {}


@pytest.mark.parametrize(
    "values",
    [
        [16777216, 16777218, 1.5],
        [16777217, 3],
        [16777217.5, 1e30, float("nan"), float("inf")],
        [2.0**60 + 2.0**20, 1.5],
        [9007199254740993, 1e39],
        np.array([16777217.0, 1.5]),
    ],
)
def test_exact_numbers_and_measurements_are_not_noted(values):
    assert make_table({"x": values}).rounded == {}


def test_times_with_fractions_are_noted():
    times = [1700000000.5 + number for number in range(20)]
    (text,) = make_table({"t": times}).rounded.values()
    assert "column 't' holds 1700000000.5 and 1700000001.5, which are equal as float32" in text
    for dtype in ("float32", "float64"):
        assert make_table({"t": times}, dtypes={"t": dtype}).rounded == {}
    # Columns of files with types keep float64, and may become small numbers before a step gets them.
    assert make_table({"t": np.array(times)}).rounded == {}


def test_rounding_in_some_of_several_files_is_noted():
    ids, fractions = make_table({"x": [3, 16777217]}), make_table({"x": [1.5]})
    for tables in ([ids, fractions], [fractions, ids]):
        joined = join_tables([(str(number), each) for number, each in enumerate(tables)])
        assert joined.arrays["x"].dtype == np.float32
        assert "'x' holds 16777217" in joined.rounded["x"]
    assert join_tables([("a", fractions), ("b", make_table({"x": [3, 16777216]}))]).rounded == {}
