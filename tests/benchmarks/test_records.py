"""Tests of the benchmark of records and its numbers."""

import importlib
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def records(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("benchmarks.records")


@pytest.mark.full
def test_both_sides_save_and_load_the_same(records, tmp_path):
    model = records.model_of(1)
    assert sum(x.nbytes for x in model.values()) == 1_002_000
    for (_, direction, _), do in records.actions(model, tmp_path, records.FORMATS).items():
        loaded = do()
        if direction == "load":
            for name, x in model.items():
                np.testing.assert_array_equal(loaded[name], x)


@pytest.mark.full
def test_it_measures_every_format(records, capsys):
    records.main(["--megabytes", "1", "--rounds", "2", "--formats", ".mpk", ".safetensors"])
    lines = capsys.readouterr().out.split("\n")
    assert lines[1].startswith("1 MB in 2 arrays, 2 rounds")
    assert sum("ours / hand" in line for line in lines) == 8


def test_the_report(records):
    times = {(".mpk", "save", "ours"): (2.0, 1.0), (".mpk", "save", "hand"): (1.0, 4.0)}
    assert [" ".join(line.split()) for line in records.report([times], 10.0)] == [
        ".mpk save ours, MB/s 5 (5 to 5)",
        ".mpk save hand, MB/s 10 (10 to 10)",
        ".mpk save: time, ours / hand 2 (2 to 2) goal <= 1.1",
        ".mpk save: processor time, ours / hand 0.25 (0.25 to 0.25) goal <= 1.1",
    ]
