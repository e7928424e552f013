"""Tests of JsonLines; `json` reads what it writes."""

import json
import os

import numpy as np
import pytest

from learner.events import RunEnded, RunFailed, SplitEnded
from learner.loggers import Csv, JsonLines
from tests.support.codes import raises_code
from tests.support.logged import played, split, started, steps

FLAT = ("config.lr", "environment.jax", "commit", "monitor")


def parse_strictly(text):
    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def test_lines_of_a_run(tmp_path):
    facts = {"config": {"lr": 0.1}, "environment": {"jax": "0.10"}, "commit": "abc", "monitor": "valid/Loss"}
    end = RunEnded(9.0, 1, 3, "num_epochs", {"best": {"value": float("nan")}}, 8.0, False)
    split = SplitEnded(5.0, "valid", 1, 3, {"Loss": 0.1, "Matrix": "1 0\n0 1"}, 0.2)
    played(JsonLines(every_steps=1), started(tmp_path, **facts), steps(1, 0.5, 0.1), split, end)
    first, *lines = parse_strictly((tmp_path / "metrics.jsonl").read_text())
    assert {key: first[key] for key in ("event", "time", "step", "resumed", *FLAT)} == {
        "event": "start",
        "time": 1.0,
        "step": 0,
        "resumed": False,
        "config.lr": 0.1,
        "environment.jax": "0.10",
        "commit": "abc",
        "monitor": "valid/Loss",
    }
    assert first["metrics"] == ["train/Loss"]
    assert lines == [
        {"event": "step", "split": "train", "epoch": 1, "step": 1, "weight": 32} | {"Loss": 0.5, "Top-5 Accuracy": 1.5},
        {"event": "step", "split": "train", "epoch": 1, "step": 2, "weight": 32} | {"Loss": 0.1, "Top-5 Accuracy": 1.1},
        {"event": "split", "time": 5.0, "split": "valid", "epoch": 1, "step": 3, "at_step": None}
        | {"Loss": 0.1, "Matrix": "1 0\n0 1"},
        {"event": "end", "time": 9.0, "epoch": 1, "step": 3, "seconds": 8.0, "stopped_by": "num_epochs"}
        | {"summary.best.value": "NaN"},
    ]


def test_non_finite_numbers_are_strings(tmp_path):
    split = SplitEnded(5.0, "valid", 1, 3, {"Loss": float("-inf")}, 0.2)
    played(JsonLines(every_steps=1), started(tmp_path), steps(1, float("nan"), 1e20, float("inf")), split)
    _, *lines = parse_strictly((tmp_path / "metrics.jsonl").read_text())
    assert [line["Loss"] for line in lines] == ["NaN", 1e20, "Infinity", "-Infinity"]


def test_names_may_be_anything(tmp_path):
    event = steps(1, 0.5)
    hostile = 'a "quoted" {name} \\ with\ttabs'
    object.__setattr__(event, "values", {hostile: np.float32([0.5])})
    played(JsonLines(every_steps=1), started(tmp_path), event)
    assert parse_strictly((tmp_path / "metrics.jsonl").read_text())[1][hostile] == 0.5


def test_each_step_has_its_weight(tmp_path):
    event = steps(3, 1.0, 2.0, 3.0, 4.0)
    object.__setattr__(event, "weights", np.float32([3, 4, 5, 6]))
    played(JsonLines(every_steps=2), started(tmp_path), event)
    assert [
        (line["step"], line["weight"]) for line in parse_strictly((tmp_path / "metrics.jsonl").read_text())[1:]
    ] == [
        (4, 4),
        (6, 6),
    ]


def test_resuming_after_a_non_finite_weight(tmp_path):
    event = steps(1, 1.0, 2.0)
    object.__setattr__(event, "weights", np.float32([np.nan, 32]))
    played(JsonLines(every_steps=1), started(tmp_path), event)
    played(JsonLines(every_steps=1), started(tmp_path, 1), steps(2, 3.0))
    lines = [line for line in parse_strictly((tmp_path / "metrics.jsonl").read_text()) if line["event"] == "step"]
    assert [(line["step"], line["weight"], line["Loss"]) for line in lines] == [(1, "NaN", 1.0), (2, 32, 3.0)]


def test_pandas_reads_the_file(tmp_path):
    pandas = pytest.importorskip("pandas")
    split = SplitEnded(5.0, "valid", 1, 3, {"Loss": 0.25, "epoch": 7.0, "Matrix": "1 0"}, 0.2)
    event = started(tmp_path, config={"lr": 0.1})
    played(JsonLines(every_steps=1), event, steps(1, 0.5, float("nan"), float("inf")), split)
    frame = pandas.read_json(tmp_path / "metrics.jsonl", lines=True)
    assert frame[frame.event == "step"].Loss.tolist() == [0.5, pytest.approx(float("nan"), nan_ok=True), float("inf")]
    assert (frame.Loss.dtype, frame["valid/epoch"].dtype, frame["config.lr"][0]) == ("float64", "float64", 0.1)
    last = frame[frame.split == "valid"].iloc[0]
    assert (last.epoch, last["valid/epoch"], last.Matrix) == (1, 7, "1 0")


def test_resuming_a_run_of_a_former_version(tmp_path):
    """Lines of former versions have their values one level deeper."""
    old = [
        {"event": "step", "split": "train", "epoch": 1, "step": 1, "weight": 32, "values": {"Loss": 2.0}},
        {"event": "split", "time": 3.0, "split": "train", "epoch": 1, "step": 2, "values": {"Loss": 0.7}},
        {"event": "split", "time": 4.0, "split": "valid", "epoch": 1, "step": 2, "values": {"Loss": 0.6}},
        {"event": "step", "split": "train", "epoch": 1, "step": 3, "weight": 32, "values": {"Loss": 0.5}},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in old))
    played(JsonLines(every_steps=1), started(tmp_path, 2, {"train/Loss": [(1, 2, 0.7)]}), steps(3, 0.25))
    lines = parse_strictly((tmp_path / "metrics.jsonl").read_text())
    assert lines[:2] == old[:2]
    assert [(line["event"], line.get("Loss")) for line in lines[2:]] == [("start", None), ("step", 0.25)]


@pytest.mark.parametrize(("logger", "name"), [(JsonLines, "metrics.jsonl"), (Csv, "metrics.csv")])
def test_a_file_that_is_gone_is_noticed_at_the_end_of_a_split(tmp_path, logger, name):
    log = logger(every_steps=1)
    log.on_event(started(tmp_path))
    log.on_event(steps(1, 0.5))
    (tmp_path / name).unlink()
    log.on_event(steps(2, 0.5))
    with raises_code("run-log-removed"):
        log.on_event(split("train", 2, {"Loss": 0.5, "Top-5 Accuracy": 1.5}))
    log.close()


def test_an_error_is_the_last_line(tmp_path):
    played(JsonLines(every_steps=1), started(tmp_path), RunFailed(2.0, 1, 3, "ValueError('no')"))
    assert parse_strictly((tmp_path / "metrics.jsonl").read_text())[-1]["error"] == "ValueError('no')"


def test_logger_that_never_started_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    played(JsonLines("here.jsonl"), RunFailed(2.0, 1, 3, "ValueError('no')"))
    assert list(tmp_path.iterdir()) == []


def test_resuming_truncates_the_file(tmp_path):
    """Lines of step 3 and of the validation of step 2 are replaced; lines of starts stay."""
    valid, again = (SplitEnded(float(t), "valid", 1, 2, {"Loss": 0.1}, 0.2, at_step=2) for t in (4, 6))
    train = SplitEnded(3.0, "train", 1, 2, {"Loss": 0.7}, 0.2)
    played(JsonLines(every_steps=1), started(tmp_path), steps(1, 1.0, 0.5), train, valid, steps(3, 0.25))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"event": "step", "spl')
    played(JsonLines(every_steps=1), started(tmp_path, 2, {"train/Loss": [(1, 2, 0.7)]}), again, steps(3, 0.2))
    lines = parse_strictly((tmp_path / "metrics.jsonl").read_text())
    events = [(line["event"], line["step"], line.get("time")) for line in lines]
    assert events == [
        ("start", 0, 1.0),
        ("step", 1, None),
        ("step", 2, None),
        ("split", 2, 3.0),
        ("start", 2, 1.0),
        ("split", 2, 6.0),
        ("step", 3, None),
    ]
    assert lines[-1]["Loss"] == 0.2


def test_new_run_replaces_the_file(tmp_path):
    for _ in range(2):
        played(JsonLines(str(tmp_path / "elsewhere" / "a.jsonl"), 1), started(tmp_path / "run"), steps(1, 1.0))
    assert len(parse_strictly((tmp_path / "elsewhere" / "a.jsonl").read_text())) == 2


@pytest.mark.parametrize("count", [100, 1000])
def test_a_dispatch_is_one_system_call(tmp_path, monkeypatch, count):

    logger, calls, write = JsonLines(every_steps=1), [], os.write
    logger.on_event(started(tmp_path))
    monkeypatch.setattr(os, "write", lambda to, content: calls.append(len(content)) or write(to, content))
    logger.on_event(steps(1, *[0.5] * count))
    logger.close()
    assert len(calls) == 1
    assert calls[0] < 140 * count
    assert (tmp_path / "metrics.jsonl").read_text().count("\n") == count + 1
