"""Tests of JSON lines as columns."""

import gzip
import json
import math

import pytest

from learner.data import Lines, json_lines
from tests.support.codes import raises_code


@pytest.fixture
def write(tmp_path):
    def write(*lines, packed=False):
        content = b"\n".join(
            x if isinstance(x, bytes) else (x if isinstance(x, str) else json.dumps(x)).encode() for x in lines
        )
        (tmp_path / "a.jsonl").write_bytes(gzip.compress(content) if packed else content)
        return tmp_path / "a.jsonl"

    return write


@pytest.mark.parametrize("packed", [True, False])
def test_keys_become_columns(write, packed):
    path = write({"x": [1.5, 2], "n": 3, "kind": "b"}, "", {"kind": "a", "n": 4, "x": [3, 4]}, packed=packed)
    table = json_lines(path, labels={"kind": None})
    assert {name: array.tolist() for name, array in table.arrays.items()} == {
        "x": [[1.5, 2], [3, 4]],
        "n": [3, 4],
        "kind": [1, 0],
    }
    assert [str(array.dtype) for array in table.arrays.values()] == ["int32", "int32", "float32"]  # kind, n, x
    assert json_lines(path, {"y": ["n", "n"]}).arrays["y"].tolist() == [[3, 3], [4, 4]]


def test_rows_of_several_files(write, tmp_path):
    first = write({"x": [1, 2]}).rename(tmp_path / "b.jsonl")
    second = write({"x": [3.5, 4]}).rename(tmp_path / "c.jsonl")
    assert json_lines([second, first]).arrays["x"].tolist() == [[3.5, 4], [1, 2]]
    with raises_code("data-files-differ"):
        json_lines([first, write({"x": [1, 2, 3]})])


def test_missing_keys(write):
    path = write({"a": 1, "b": 2}, {"a": 3}, {"a": 4, "b": None})
    with raises_code("data-columns-unreadable", "line 2", "'b'", "1 more row"):
        json_lines(path)
    assert json_lines(path, missing=-1).arrays["b"].tolist() == [2, -1, -1]


@pytest.mark.parametrize(
    ("lines", "code", "values"),
    [
        (
            [{"a": 1}, "{'a': 2}", "[1]"],
            "data-file-malformed",
            ("a.jsonl", "2", "3"),
        ),
        ([{"a": 1}, '{"a" 2}'], "data-file-malformed", ("2", "':'", "6")),
        ([{"a": 1}, b'{"a": "\xff"}'], "data-file-malformed", ("2",)),
        ([{"a": 1}, '{"a": ' + "9" * 5000 + "}"], "data-file-malformed", ("2",)),
        ([{"a": 1}, '{"a": [1e400]}'], "data-file-malformed", ("2", "1e400")),
        ([{"a": 0.5}, f'{{"a": 1{"0" * 400}}}'], "data-file-malformed", ("2", "too large")),
        ([{"a": 1}, '{"a": 1, "b": 2, "a": 3}'], "data-file-malformed", ("2", "'a' twice")),
        ([{"a": 1}, "[" * 100_000], "data-file-malformed", ("2",)),
        ([{"a": 1}, {"a": "x"}], "data-columns-unreadable", ("2", "'a'", "'x'")),
        ([{"a": [1]}, "", {"a": [1, 2]}], "data-columns-unreadable", ("3", "'a'", "[2]")),
        ([{"a": [None]}, {"a": [1]}, {"a": [[1], [2, 3]]}], "data-columns-unreadable", ("line 1", "line 3")),
        ([{"a": [2**70]}, {"a": [1, 2]}, {"a": [1]}], "data-columns-unreadable", ("line 1", "64", "line 3", "[2]")),
        ([""], "data-without-rows", ()),
        ([{}], "data-columns-unreadable", ()),
    ],
)
def test_errors_name_the_line(write, lines, code, values):
    with raises_code(code, *values):
        json_lines(write(*lines))


def test_rounded_whole_numbers_warn(write):
    with pytest.warns(UserWarning, match="'id' holds 9007199254740993, which is 9007199254740992 as float32"):
        json_lines(write({"id": 9007199254740993}, {"id": 0.5}))
    assert json_lines(write({"x": math.inf}, {"x": 0.5})).arrays["x"].tolist() == [math.inf, 0.5]


def test_unknown_key_and_missing_file(write):
    path = write({"text": 1})
    with raises_code("data-columns-unreadable", "'txt'", "'text'"):
        json_lines(path, {"x": "txt"})
    with raises_code("data-file-missing", "b.jsonl", "a.jsonl"):
        json_lines(path.parent / "b.jsonl")


def test_too_long_line(write, monkeypatch):
    monkeypatch.setattr("learner.data.sources.ndjson.LONGEST", 100)
    with raises_code("data-file-malformed", "2", "100"):
        json_lines(write({"a": 1}, {"a": [0] * 100}))


def test_objects_with_different_keys_as_lines(write):
    lines = Lines(write({"text": "a"}, {"tokens": [1, 2, 3]}))
    assert [json.loads(line) for line in lines] == [{"text": "a"}, {"tokens": [1, 2, 3]}]
