"""Tests of the parameters of a model, read from `model.json` of a run."""

import json

import pytest

from learner.events import ArrayInfo
from learner.reports.parameters import by_part, read_parameters
from tests.support.codes import named_case
from tests.support.runs import batches, build_line, quiet

GOOD = {"path": "a.w", "shape": [2, 3], "dtype": "float32", "kind": "params", "trainable": True}


def write(directory, content):
    (directory / "model.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return read_parameters(directory)


def test_arrays_and_parts(tmp_path):
    stat = {"path": "norm.mean", "shape": [], "dtype": "bfloat16", "kind": "batch_stats", "trainable": False}
    arrays = write(tmp_path, {"parameters": 6, "bytes": 24, "arrays": [GOOD, stat, {**GOOD, "path": "a.b.c"}]})
    assert arrays[0] == ArrayInfo("a.w", (2, 3), "float32", "params", True, 24)
    assert arrays[1] == ArrayInfo("norm.mean", (), "bfloat16", "batch_stats", False, 2)
    assert [array.count for array in arrays[:2]] == [6, 1]
    assert {part: len(group) for part, group in by_part(arrays).items()} == {"a": 2, "norm": 1}


def test_model_of_one_array(tmp_path):
    (array,) = arrays = write(tmp_path, {"arrays": [{**GOOD, "path": ""}]})
    assert by_part(arrays) == {"(all of it)": [array]}


@pytest.mark.parametrize(
    ("dtype", "size"),
    [("float64", 8), ("complex64", 8), ("uint8", 1), ("int4", 1), ("float8_e5m2", 1), ("key<fry>", 0)],
)
def test_sizes_in_bytes(tmp_path, dtype, size):
    (array,) = write(tmp_path, {"arrays": [{**GOOD, "shape": [5], "dtype": dtype}]})
    assert array.bytes == 5 * size


def test_malformed_files_have_no_arrays(tmp_path):
    cases = [
        "no JSON",
        "[" * 100_000,
        "[]",
        "{}",
        {"arrays": 3},
        {"arrays": [3, None]},
        {"arrays": [{**GOOD, "path": 3}]},
        {"arrays": [{**GOOD, "shape": "ab"}]},
        {"arrays": [{**GOOD, "shape": [-1]}]},
        {"arrays": [{**GOOD, "shape": [2.0]}]},
        {"arrays": [{**GOOD, "shape": [2**52, 2**52]}]},
        {"arrays": [{**GOOD, "shape": [1] * 65}]},
        {"arrays": [{**GOOD, "dtype": None}]},
    ]
    for content in cases:
        with named_case(content):
            assert write(tmp_path, content) == ()


def test_missing_or_linked_file_has_no_arrays(tmp_path):
    assert read_parameters(tmp_path) == ()
    (tmp_path / "elsewhere.json").write_text(json.dumps({"arrays": [GOOD]}))
    (tmp_path / "model.json").symlink_to(tmp_path / "elsewhere.json")
    assert read_parameters(tmp_path) == ()


def test_too_long_file_is_not_read(tmp_path, monkeypatch):
    content = json.dumps({"arrays": [GOOD]})
    monkeypatch.setattr("learner.reports.parameters.LONGEST", len(content))
    assert len(write(tmp_path, content)) == 1
    assert write(tmp_path, content + " ") == ()


@pytest.mark.full
def test_arrays_of_a_trained_run(tmp_path):
    build_line(quiet(tmp_path / "run").num_epochs(1)).fit(batches())
    arrays = read_parameters(tmp_path / "run")
    assert sum(array.count for array in arrays) > 0
    assert all("/" not in array.path and array.trainable for array in arrays)
