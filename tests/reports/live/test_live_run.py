"""Tests of reading a run that is still training."""

import json
import os
import shutil

import numpy as np
import pytest

from learner.reports.live.live_run import LiveRun
from tests.support.written import write_run, write_steps


def append(directory, **entry):
    with (directory / "journal.jsonl").open("a") as file:
        file.write(json.dumps(entry) + "\n")


def live(directory, now=1100.0):
    run = LiveRun(directory, "a", now)
    run.refresh(now)
    while run.read(run.keys, 1000):
        pass
    return run


def test_values_of_a_run(runs):
    run = live(runs / "a")
    assert (run.status.word, run.epoch, run.step) == ("running", 3, 6)
    assert run.keys == ["train/Loss", "valid/Loss", "train/Accuracy", "valid/Confusion"]
    assert [column.tolist() for column in run.run.split_values("valid/Loss")] == [[2, 4, 6], [0.8, 0.6, 0.7]]
    step, value = run.each_step("train/Loss")
    assert (step.tolist(), value.tolist()) == ([1, 2, 3, 4, 5, 6], [1, 0.5, 0.5, 0.25, 1 / 3, 0.5 / 3])
    assert run.run.is_text("valid/Confusion")
    assert list(run.log) == ["2026-11-22 08:00:00 INFO  start"]


def test_unfinished_epoch(runs):
    run = live(runs / "a")
    write_steps(runs / "a", "Loss", 4, [])
    path = runs / "a" / "train" / "epoch-4" / "Loss.log"
    path.write_text("0.25,32\n0.125,32\n0.06")
    run.refresh(1101.0)
    run.read(["train/Loss"], 1000)
    assert (run.epoch, run.step, run.newest("train/Loss")) == (4, 8, 0.125)
    path.write_text("0.25,32\n0.125,32\n0.0625,32\n0.1,final\n")
    assert run.newest("train/Loss") == 0.0625


def test_newest_value_of_a_long_file(runs):
    write_steps(runs / "a", "Loss", 4, np.arange(1000.0))
    assert live(runs / "a").newest("train/Loss") == 999


def test_run_inside_its_first_epoch(tmp_path):
    """The journal has no metrics yet, but the files do."""
    directory = write_run(tmp_path / "a", {}, ending=None)
    write_steps(directory, "Top-5_Accuracy", 1, [0.5])
    run = live(directory)
    assert run.keys == ["train/Top-5_Accuracy"]
    append(directory, event="start", time=1001.0, metrics={"train/Top-5 Accuracy": {"unit": "%"}})
    run.refresh(1100.0)
    assert run.keys == ["train/Top-5 Accuracy"]
    run.read(run.keys, 1000)
    assert run.newest("train/Top-5 Accuracy") == 0.5
    assert run.run.info("train/Top-5 Accuracy").unit == "%"


def test_resumed_run_is_read_again(runs):
    """Its files lost the lines after the checkpoint, and have new lines."""
    run = live(runs / "a")
    (runs / "a" / "train" / "epoch-3" / "Loss.log").write_text("9,32\n8,32\n7,32\n")
    append(runs / "a", event="start", time=1101.0, epoch=3, step=4, resumed=True)
    run.refresh(1102.0)
    run.read(["train/Loss"], 1000)
    assert run.each_step("train/Loss")[1].tolist() == [1, 0.5, 0.5, 0.25, 9, 8, 7]


def test_file_truncated_while_it_is_read(runs):
    run = live(runs / "a")
    os.truncate(runs / "a" / "train" / "epoch-3" / "Loss.log", 0)
    assert run.read(["train/Loss"], 1000) is False
    assert len(run.each_step("train/Loss")[0]) == 0


def test_rate_of_steps(runs):
    run = live(runs / "a", 1100.0)
    assert run.rate is None
    write_steps(runs / "a", "Loss", 4, range(30))
    run.refresh(1105.0)
    run.read(["train/Loss"], 1000)
    run.refresh(1110.0)
    run.read(["train/Loss"], 1000)
    assert run.rate == 3.0  # 30 steps in 10 seconds
    run.refresh(1200.0)
    run.read(["train/Loss"], 1000)
    assert run.rate is None


def test_existing_steps_do_not_count_for_the_rate(runs):
    """An unfinished epoch is first read in parts, and then the rate starts, even if its metrics are not drawn."""
    write_steps(runs / "a", "Loss", 4, range(300))
    run = live(runs / "a", 1100.0)
    for now in range(1100, 1103):
        run.refresh(float(now))
        while run.read([], 64):
            pass
    assert run.rate == 0
    with (runs / "a" / "train" / "epoch-4" / "Loss.log").open("a") as file:
        file.write("0.5,32\n" * 5)
    run.refresh(1104.0)
    run.read([], 1000)
    assert run.rate == pytest.approx(5 / 4)


def test_rate_begins_with_the_first_step_after_a_start(runs):
    """Programs compile before it."""
    run = live(runs / "a", 1100.0)
    append(runs / "a", event="start", time=1101.0, epoch=4, step=6, resumed=True)
    (runs / "a" / "train" / "epoch-4").mkdir()
    for now, steps in ((1102.0, 0), (1110.0, 0), (1111.0, 4), (1113.0, 10)):
        (runs / "a" / "train" / "epoch-4" / "Loss.log").write_text("0.5,32\n" * steps)
        run.refresh(now)
        while run.read(["train/Loss"], 1000):
            pass
        assert run.rate == (3.0 if steps == 10 else None)  # 6 steps in 2 seconds


def test_planned_length(runs):
    append(runs / "a", event="start", time=1050.0, steps_per_epoch=2, config={"num_epochs": 10})
    run = live(runs / "a")
    assert (run.epochs, run.steps) == (10, 20)
    append(runs / "a", event="start", time=1050.0, config={"num_steps": 7, "num_epochs": "many"})
    run.refresh(1100.0)
    assert (run.epochs, run.steps) == (None, 7)


@pytest.mark.parametrize(
    "saved", [{"step": "x", "time": 1.0}, {"step": 4}, {}, {"step": 4, "time": 10**400}, {"step": 4, "time": -1e999}]
)
def test_newest_checkpoint(runs, saved):
    append(runs / "a", event="save", time=1040.0, step=4, path="checkpoint/4")
    assert live(runs / "a").saved == (4, 60.0)
    append(runs / "a", event="save", **saved)
    assert live(runs / "a").saved is None


def test_age_of_the_newest_file(runs):
    for path in (runs / "a").rglob("*"):
        os.utime(path, (1000, 1000))
    os.utime(runs / "a" / "train" / "epoch-3" / "Loss.log", (1090, 1090))
    assert live(runs / "a").age == 10


def test_removed_run_keeps_its_values(runs):
    run = live(runs / "a")
    (runs / "a" / "journal.jsonl").unlink()
    run.refresh(1101.0)
    assert run.status.word == "gone"
    assert run.epoch == 3


def test_replaced_log_is_read_from_the_start(runs):
    run = live(runs / "a")
    (runs / "a" / "experiment.log").write_text("x\n")
    run.refresh(1101.0)
    assert list(run.log) == ["x"]


def test_pending_requests(runs):
    (runs / "a" / "stop.ask").write_text("{}\n")
    assert live(runs / "a").pending == ["stop"]


def test_removed_run_has_no_age(runs):
    run = live(runs / "a")
    shutil.rmtree(runs / "a")
    run.refresh(1101.0)
    assert (run.status.word, run.age) == ("gone", None)
