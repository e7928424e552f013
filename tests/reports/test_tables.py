"""Tests of the export of a run's numbers to files for other programs."""

import csv
import errno
import json
import math
import os
import sys

import pyarrow.parquet
import pytest

from learner.reports.curves import curves
from learner.reports.pictures import picture
from learner.reports.tables import rows, write_table
from learner.runs import RunReader
from learner.util.distribution import install_hint
from learner.util.table_files import KINDS
from tests.support.codes import raises_code
from tests.support.written import write_run, write_steps


@pytest.fixture
def run(tmp_path):
    values = {"train/Loss": [2.0, 1.0], "valid/Loss": [float("nan"), 1.5], "valid/Report": ["a\nb", "c"]}
    directory = write_run(tmp_path / "a", values)
    for epoch, losses in ((1, [8, "inf"]), (2, [2, 1])):
        write_steps(directory, "Loss", epoch, losses)
    return RunReader(directory)


def test_run_inside_its_first_epoch(tmp_path):
    """A run of one long epoch has no other values for days."""
    directory = write_run(tmp_path / "a", {}, ending=None)
    start = {"event": "start", "time": 0.0, "step": 0, "metrics": {"train/Loss": {"unit": "nats"}, "train/Table": {}}}
    validation = {"event": "validation", "time": 9.0, "epoch": 1, "step": 2, "values": {"valid/Loss": 2.5}}
    (directory / "journal.jsonl").write_text(f"{json.dumps(start)}\n{json.dumps(validation)}\n")
    write_steps(directory, "Loss", 1, [8, 2])
    run = RunReader(directory)
    assert list(rows(run)) == [
        ("valid", "Loss", "split", 1, 2, 2.5, None),
        ("train", "Loss", "step", 1, 1, 8.0, None),
        ("train", "Loss", "step", 1, 2, 2.0, None),
    ]
    (metric,) = curves([run])["metrics"]
    assert [(curve["split"], curve["y"]) for curve in metric["curves"]] == [("valid", [2.5]), ("train", [8.0, 2.0])]
    plot = picture([run], "train/Loss", x="time")
    assert (plot.lines, plot.y) == ({"train/Loss": ([4.5 / 60, 9 / 60], [8.0, 2.0])}, "train/Loss (nats)")


NAN, INF = math.nan, math.inf
EXPECTED = [
    ("train", "Loss", "step", 1, 1, 8.0, None),
    ("train", "Loss", "step", 1, 2, INF, None),
    ("train", "Loss", "step", 2, 3, 2.0, None),
    ("train", "Loss", "step", 2, 4, 1.0, None),
    ("train", "Loss", "split", 1, 2, 2.0, None),
    ("train", "Loss", "split", 2, 4, 1.0, None),
    ("valid", "Loss", "split", 1, 2, NAN, None),
    ("valid", "Loss", "split", 2, 4, 1.5, None),
    ("valid", "Report", "split", 1, 2, None, "a\nb"),
    ("valid", "Report", "split", 2, 4, None, "c"),
]


def read_csv(path):
    with path.open(newline="") as file:
        return [tuple(row.values()) for row in csv.DictReader(file)]


def read_jsonl(path):
    return [json.loads(line, parse_constant=pytest.fail) for line in path.read_text().splitlines()]


def test_csv(run, tmp_path):
    assert write_table(tmp_path / "m.csv", run, "csv") == 10
    texts = {None: "", NAN: "NaN", INF: "Infinity"}
    expected = [tuple("NaN" if cell is NAN else texts.get(cell, str(cell)) for cell in row) for row in EXPECTED]
    assert read_csv(tmp_path / "m.csv") == expected


def test_json_lines(run, tmp_path):
    write_table(tmp_path / "m.jsonl", run, "jsonl")
    lines = read_jsonl(tmp_path / "m.jsonl")
    assert lines[1] == {"split": "train", "metric": "Loss", "level": "step", "epoch": 1, "step": 2, "value": "Infinity"}
    assert lines[6]["value"] == "NaN"
    report = {"split": "valid", "metric": "Report", "level": "split", "epoch": 1, "step": 2, "text": "a\nb"}
    assert lines[8] == report


def test_parquet(run, tmp_path, monkeypatch):
    monkeypatch.setattr("learner.util.table_files.BATCH", 3)
    write_table(tmp_path / "m.parquet", run, "parquet")
    table = pyarrow.parquet.read_table(tmp_path / "m.parquet").to_pylist()
    assert str([tuple(row.values()) for row in table]) == str(EXPECTED)


def test_unwritable_place_is_an_error(run, tmp_path, monkeypatch):
    def refuse(path, **_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "unlink", refuse)  # like a file system that is mounted read-only
    with raises_code("report-not-written"):
        write_table(tmp_path / "m", run, "csv")


@pytest.mark.parametrize("kind", KINDS)
def test_failed_export_leaves_no_file(run, tmp_path, kind):
    (tmp_path / "m").mkdir()
    with raises_code("report-not-written"):
        write_table(tmp_path / "m", run, kind)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "m"]


def test_run_without_numbers_is_refused(tmp_path):
    empty = RunReader(write_run(tmp_path / "b", {}, ending=None))
    with raises_code("report-without-numbers"):
        write_table(tmp_path / "m.csv", empty, "csv")


def test_missing_pyarrow_is_an_error(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with raises_code("package-missing", install_hint("parquet")):
        write_table(tmp_path / "m.parquet", run, "parquet")


@pytest.mark.parametrize("kind", KINDS)
def test_links_are_not_written_through(run, tmp_path, kind):
    (tmp_path / "private").write_text("mine")
    (tmp_path / "m.partial").symlink_to(tmp_path / "private")
    write_table(tmp_path / "m", run, kind)
    assert (tmp_path / "private").read_text() == "mine"
    assert not (tmp_path / "m").is_symlink()


@pytest.mark.parametrize("kind", list(KINDS))
def test_texts_that_utf_8_cannot_encode_are_replaced(tmp_path, kind):
    """JSON, and so an untrusted journal, can contain such texts."""
    directory = write_run(tmp_path / "a", {"valid/Re\ud800port": ["a \udfff"]}, steps=1)
    assert write_table(tmp_path / "numbers", RunReader(directory), kind) == 1
    assert list(rows(RunReader(directory))) == [("valid", "Re?port", "split", 1, 1, None, "a ?")]
