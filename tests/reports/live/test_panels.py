"""Tests of the panels beside the plots."""

import json
import os

import pytest

from learner.reports.live import panels
from learner.reports.live.view import PlotView
from tests.support.written import write_run


def append(directory, **entry):
    with (directory / "journal.jsonl").open("a") as file:
        file.write(json.dumps(entry) + "\n")


def set_age(directory, time):
    """Set the time of all files but the lock."""
    for path in {*directory.rglob("*")} - {directory / "run.lock"}:
        os.utime(path, (time, time))


def test_header(runs, watch):
    set_age(runs / "a", 1095)
    (run,) = watch("runs/a").runs
    assert panels.header_line(run, 80).plain == "a running  epoch 3  6 steps"
    append(runs / "a", event="start", time=1050.0, steps_per_epoch=2, config={"num_epochs": 10})
    set_age(runs / "a", 1020)
    (run,) = watch("runs/a").runs
    assert panels.header_line(run, 80).plain == "a running  epoch 3/10  step 6/20  30 %  silent for 1 min 20 s"
    assert panels.header_line(run, 20).plain == "a running  epoch 3/…"


def test_header_of_an_ended_run(tmp_path, watch):
    (run,) = watch(write_run(tmp_path / "a")).runs
    assert panels.header_line(run, 80).plain == "a ended  epoch 3  6 steps  num_epochs"
    (run,) = watch(write_run(tmp_path / "b", ending="ctrl-c")).runs
    assert panels.header_line(run, 80).plain == "b stopped  epoch 3  6 steps  ctrl-c"
    assert "stopped" in panels.table_of_runs([run], 0, 80, 3)[1].split()
    append(tmp_path / "a", event="start", time=1050.0)
    append(tmp_path / "a", event="error", error="ValueError('a\\nb')")
    (run,) = watch(tmp_path / "a").runs
    assert panels.header_line(run, 80).plain.startswith("a failed  epoch 3  6 steps  ValueError(")


def test_remaining_time(runs, watch):
    append(runs / "a", event="start", time=1050.0, steps_per_epoch=2, config={"num_epochs": 10})
    set_age(runs / "a", 1100)
    now = [1100.0]
    watched = watch("runs/a", now=now)
    now[0] = 1104.0
    append(runs / "a", event="validation", epoch=4, step=8, values={})
    watched.refresh()
    watched.read([])
    assert "40 %  24.0 s left" in panels.header_line(watched.runs[0], 100).plain  # 12 steps, 2 in 4 s


def test_header_with_a_pending_request(runs, watch):
    set_age(runs / "a", 1100)
    (runs / "a" / "save.ask").write_text("{}")
    (run,) = watch("runs/a").runs
    assert panels.header_line(run, 80).plain == "a running  save: requested, pending  epoch 3  6 steps"


@pytest.mark.parametrize(
    ("view", "description"),
    [
        (PlotView(), "axis: step  each step  2 runs"),
        (PlotView(x="epoch", log=True, smooth=0.9), "axis: epoch  whole epochs  log scale  smooth 0.9  2 runs"),
        (PlotView(zoom=2, alone=True), "axis: step  each step  zoom x4  this run only"),
        (PlotView(zoom=1, end=0.7), "axis: step  each step  zoom x2 (not at the end)  2 runs"),
    ],
)
def test_description_of_the_view(view, description):
    assert panels.view_description(view, 2) == description


def test_table_of_metrics(runs, watch):
    (run,) = watch("runs/a").runs
    assert [line.split() for line in panels.table(run, 80)] == [
        ["metric", "now", "last", "best", "epoch"],
        ["valid/Loss", "0.7", "0.7", "0.6", "2"],
        ["valid/Confusion", "a", "text"],
        ["train/Loss", "0.1667", "0.4", "0.4", "3"],
        ["train/Accuracy", "0.8"],
    ]
    assert panels.table(run, 30)[1].split() == ["valid/Loss", "0.7", "0.6"]
    assert [line.split() for line in panels.table(run, 16)[:2]] == [["metric", "best"], ["valid/Loss", "0.6"]]
    assert panels.table(run, 16)[2] == "valid…sion"


def test_table_of_runs(runs, watch):
    set_age(runs / "a", 1095)
    set_age(runs / "b", 1090)
    lines = panels.table_of_runs(watch("runs").runs, 3, 80, 9)
    assert [line.split() for line in lines[1:]] == [
        ["a", "running", "3", "6", "0.6", "1", "min", "40", "s", "5.0", "s"],
        [">", "b", "running", "3", "6", "0.6", "1", "min", "40", "s", "10.0", "s"],
    ]
    assert panels.table_of_runs(watch("runs").runs, 3, 46, 9)[0].split() == [
        "run", "status", "epoch", "step", "valid/Loss",
    ]  # fmt: skip


def test_runs_are_sorted_by_the_monitor(tmp_path, watch):
    config = "with_file_checkpointer: {monitor: valid/Score}\n"
    for name, score in (("a", 0.5), ("b", 0.9), ("c", float("nan"))):
        directory = write_run(tmp_path / name, {"valid/Score": [score], "valid/Loss": [1.0]}, config=config)
        facts = {"metrics": {"valid/Score": {"higher_is_better": True, "unit": ""}}}
        (directory / "summary.json").write_text(json.dumps(facts))
    runs = watch(tmp_path).runs
    lines = panels.table_of_runs(runs, 0, 80, 9)
    assert lines[0].split()[4] == "valid/Score"
    assert [line[2] for line in lines[1:]] == ["b", "a", "c"]
    assert lines[2][0] == ">"
    assert panels.ranked(runs) == [1, 0, 2]


def test_table_shows_runs_around_the_selected_one(tmp_path, watch):
    for number in range(9):
        write_run(tmp_path / f"run-{number}")
    runs = watch(tmp_path).runs

    def names(chosen):
        return [line[:7] for line in panels.table_of_runs(runs, chosen, 80, 4)[1:]]

    assert names(0) == ["> run-0", "  run-1", "  run-2"]
    assert names(5) == ["  run-4", "> run-5", "  run-6"]
    assert names(-1) == ["  run-6", "  run-7", "> run-8"]
    assert len(panels.table_of_runs([], 0, 80, 4)) == 1


def test_log(runs, watch):
    log = runs / "a" / "experiment.log"
    log.write_text("2026-11-22 08:00:00 INFO  one\n" + "words " * 10 + "\n\x1b[2J\x07 [bold]x\n")
    (run,) = watch("runs/a").runs
    assert panels.log(run, 40, 9) == [
        "08:00:00 INFO  one",
        "words words words words words words",
        "  words words words words",
        "?[2J? [bold]x",
    ]
    assert panels.log(run, 40, 2) == ["  words words words words", "?[2J? [bold]x"]
    assert panels.log(run, 40, 0) == []


def test_system_figures(tmp_path, watch):
    values = {
        "train/Host CPU": [0.5],
        "train/Loss": [1.0],
        "valid/Host Memory": [700.0],
        "valid/GPU Use (0)": [0.25],
    }
    directory = write_run(tmp_path / "a", values)
    environment = {"environment": {"jax": "9.9", "x": [1]}, "commit": "abc"}
    metrics = {"train/Host CPU": {"unit": ""}, "valid/Host Memory": {"unit": "MB"}}
    lines = (directory / "journal.jsonl").read_text().splitlines()
    lines[0] = json.dumps({**json.loads(lines[0]), **environment, "metrics": metrics})
    lines[-1] = json.dumps(
        {**json.loads(lines[-1]), "seconds": {"total": 10.0, "train": 7.5, "data": 2.5, "valid": 0.0}}
    )
    lines.insert(1, json.dumps({"event": "save", "step": 2, "time": 1005.0}))
    (directory / "journal.jsonl").write_text("\n".join(lines) + "\n")
    set_age(directory, 1095)
    (run,) = watch(directory).runs
    figures = {line[:18].strip(): line[18:].strip() for line in panels.system(run, 200)}
    began = figures.pop("began")
    assert began.startswith(("1970-01-01", "1969-12-31"))
    assert figures == {
        "last line": "5.0 s ago",
        "running for": "10.0 s",
        "checkpoint": "step 2, 1 min 35 s ago",
        "valid/GPU Use (0)": "0.25",
        "valid/Host Memory": "700 MB",
        "time": "data 25 %, train 75 %",
        "jax": "9.9",
        "commit": "abc",
        "directory": str(directory),
    }
    assert max(map(len, panels.system(run, 30))) == 30


def test_newest_system_metric(runs, watch):
    place = runs / "a" / "train" / "epoch-3"
    (place / "Host_CPU.log").write_text("0.25,1\n0.75,1\n")
    append(runs / "a", event="start", time=1050.0, metrics={"train/Host CPU": {"unit": ""}})
    (run,) = watch("runs/a").runs
    assert ["Host", "CPU", "0.75"] in [line.split() for line in panels.system(run, 80)]


def test_waiting_lines():
    assert panels.waiting(["no \x1b[2J"], ["a\nb\x07"]) == ["waiting: no ?[2J", "a", "b?"]
