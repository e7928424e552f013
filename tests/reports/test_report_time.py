"""Tests of the time parts of runs in a report."""

import json

from learner.reports.report_time import epoch_seconds, timing
from learner.runs import RunReader, find_runs
from tests.support.pages import Page
from tests.support.written import write_run

SECONDS = {"compile": 4.0, "data": 1.0, "train": 30.0, "valid": 3.0, "save": 0, "other": 2.0}


def page_of(tmp_path, *recorded):
    for number, seconds in enumerate(recorded):
        run = write_run(tmp_path / f"<i>{number}", ending=None)
        with (run / "journal.jsonl").open("a") as file:
            file.write(json.dumps({"event": "end", "time": 1041.0, "seconds": seconds}) + "\n")
    return Page("".join(timing(find_runs([tmp_path]))))


def test_bar_and_table(tmp_path):
    page = page_of(tmp_path, SECONDS)
    head, row = page.rows[:2]
    assert head == ["run", "compile", "data", "train", "valid", "save", "other"]
    shares = ["4.0 s (10.0 %)", "1.0 s (2.5 %)", "30.0 s (75.0 %)", "3.0 s (7.5 %)", "0 ms (0.0 %)", "2.0 s (5.0 %)"]
    assert row == ["<i>0", *shares]
    (bar,) = [attrs for attrs in page.all("div") if attrs.get("role") == "img"]
    label = "compile 10.0 %, data 2.5 %, train 75.0 %, valid 7.5 %, other 5.0 %"
    assert bar["aria-label"] == f"where the time of <i>0 went: {label}"
    pieces = {attrs["class"]: attrs["style"] for attrs in page.all("span") if "style" in attrs}
    assert pieces == {
        "compile": "flex-grow:0.10000",
        "data": "flex-grow:0.02500",
        "train": "flex-grow:0.75000",
        "valid": "flex-grow:0.07500",
        "other": "flex-grow:0.05000",
    }
    assert page.count("i") == 0


def test_wide_parts_have_labels(tmp_path):
    texts = page_of(tmp_path, SECONDS).texts
    assert "train 75.0 %" in texts
    assert "compile 10.0 %" not in texts


def test_table_of_several_runs(tmp_path):
    """The second run is older, and has no time parts. Parts without a difference have no column."""
    page = page_of(tmp_path, SECONDS, None, {**SECONDS, "train": 70.0, "valid": 3.0, "save": 0})
    assert page.rows[0] == ["run", "compile", "data", "train", "valid", "other"]
    assert [row[:4:3] for row in page.rows[1:3]] == [["<i>0", "30.0 s (75.0 %)"], ["<i>2", "1 min 10 s (87.5 %)"]]
    assert page.count("figcaption") == 2


def test_equal_times_have_no_table(tmp_path):
    page = page_of(tmp_path, SECONDS, SECONDS)
    assert [row[0] for row in page.rows] == ["run", "<i>0", "<i>1"]  # the table of epochs only
    assert page.count("figure") == 0


def test_table_of_epochs(tmp_path):
    page = page_of(tmp_path, None)
    assert page.rows == [
        ["run", "epochs", "an epoch (median)", "shortest", "longest"],
        ["<i>0", "3", "10.0 s", "10.0 s (epoch 1)", "10.0 s (epoch 1)"],
    ]
    assert [attrs for attrs in page.all("div") if attrs.get("role") == "img"] == []


def test_run_without_epochs_has_no_section(tmp_path):
    assert timing(find_runs([write_run(tmp_path / "a", {}, ending=None)])) == []


def test_seconds_of_epochs(tmp_path):
    """Time between starts does not count."""
    directory = write_run(tmp_path / "a", ending="sigterm")
    with (directory / "journal.jsonl").open("a") as file:
        file.write('{"event": "start", "time": 5000.0, "epoch": 4, "step": 6}\n')
        file.write('{"event": "epoch", "time": 5007.0, "epoch": 4, "step": 8, "values": {"valid/Loss": 1.0}}\n')
    assert epoch_seconds(RunReader(directory)) == {1: 10, 2: 10, 3: 10, 4: 8}
    assert epoch_seconds(RunReader(write_run(tmp_path / "b", {}))) == {}
