"""Tests of reading the files of a run."""

import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from learner.runs import RunReader
from learner.runs.history import Point
from learner.runs.metric_logs import RunFiles
from tests.support.codes import raises_code
from tests.support.runs import build_line, quiet, shuffled, valid_data
from tests.support.written import write_run, write_steps

CONFIG = """
directory: somewhere
model: {class_path: models.MLP, init_args: {features: [64, 10], dropout: 0.3}}
metrics: [{class_path: Accuracy}]
"""


def lock_of(pid, host=None):
    return json.dumps({"host": host or platform.node(), "pid": pid})


def pid_of_a_dead_process():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_ended_run(tmp_path):
    run = RunReader(write_run(tmp_path / "a", config=CONFIG))
    assert (run.name, str(run.status), run.epochs, run.step) == ("a", "ended: num_epochs", 3, 6)
    assert run.history["valid/Loss"] == [0.8, 0.6, 0.7]
    assert run.best("valid/Loss") == Point(2, 4, 0.6)
    assert run.seconds == 31
    assert run.axes(np.array([0.0, 2, 3, 6, 8]))["time"].tolist() == [0, 10, 15, 30, 40]
    assert run.axes(np.array([0.0, 2, 3, 6, 8]))["epoch"].tolist() == [0, 1, 1.5, 3, 4]
    assert run.config["model.dropout"] == 0.3


@pytest.mark.parametrize(
    ("lock", "now", "word"),
    [
        ("none", 2000, "died"),
        ("ours", 2000, "running"),
        ("elsewhere", "just now", "running"),
        ("elsewhere", "an hour later", "died"),
        ("no JSON", 2000, "died"),
    ],
)
def test_status_of_a_run_without_an_end(tmp_path, lock, now, word):
    locks = {"none": None, "ours": lock_of(os.getpid()), "elsewhere": lock_of(os.getpid(), "elsewhere")}
    directory = write_run(tmp_path / "a", ending=None, lock=locks.get(lock, lock))
    if isinstance(now, str):
        now = (directory / "journal.jsonl").stat().st_mtime + (3600 if now == "an hour later" else 1)
    assert str(RunReader(directory, now=now).status) == word


def test_lock_of_a_dead_process(tmp_path):
    directory = write_run(tmp_path / "a", ending=None, lock=lock_of(pid_of_a_dead_process()))
    assert str(RunReader(directory).status) == "died"


def test_failed_run(tmp_path):
    directory = write_run(tmp_path / "a", ending=None)
    with (directory / "journal.jsonl").open("a") as file:
        file.write('{"event": "error", "time": 1035.0, "error": "ValueError(1)"}\n')
    assert str(RunReader(directory).status) == "failed: ValueError(1)"
    assert RunReader(directory).seconds == 35


def test_time_between_starts_does_not_count(tmp_path):
    directory = write_run(tmp_path / "a", ending="sigterm")
    with (directory / "journal.jsonl").open("a") as file:
        file.write('{"event": "start", "time": 5000.0, "epoch": 4, "step": 6}\n')
        values = {"valid/Loss": 0.5}
        file.write(json.dumps({"event": "epoch", "time": 5007.0, "epoch": 4, "step": 8, "values": values}) + "\n")
    run = RunReader(directory, now=9000)
    assert run.seconds == 31 + 7
    assert run.axes(np.array([8.0]))["time"].tolist() == [31 + 7]
    assert str(run.status) == "died"


def test_setting_the_clock_changes_no_running_time(tmp_path):
    """A run whose clock jumps a year forward and back, and which resumes after an hour, with a new origin."""
    clock, now = [1000.0], [50.0]

    def session(*events, step=0):
        files = RunFiles(tmp_path, lambda: clock[0], now=lambda: now[0])
        files.journal("start", epoch=1, step=step)
        for event, jump in events:
            clock[0], now[0], step = clock[0] + 10 + jump, now[0] + 10, step + 1
            files.journal(event, epoch=step, step=step, **({"values": {}} if event == "epoch" else {}))
        files.close()

    session(("epoch", 3e7), ("save", 0), ("epoch", -3e7), ("stop", 0))
    clock[0], now[0] = clock[0] + 3600, 7.0
    session(("epoch", 0), ("epoch", 3e7), step=3)
    run = RunReader(tmp_path, now=clock[0])
    assert run.axes(np.array([1.0, 2, 3, 4, 5]))["time"].tolist() == [10, 20, 30, 50, 60]
    assert run.seconds == 60


@pytest.mark.parametrize(
    ("ending", "status", "seconds"), [("sigterm", "stopped: sigterm", 31), ("num_epochs", "ended: num_epochs", 31)]
)
def test_error_before_a_start_changes_neither_status_nor_time(tmp_path, ending, status, seconds):
    """Older versions recorded an error of a start that was refused, hours after the end."""
    directory = write_run(tmp_path / "a", ending=ending)
    with (directory / "journal.jsonl").open("a") as file:
        file.write('{"event": "error", "time": 5000.0, "error": "LearnerError(1)", "step": 6}\n')
        file.write('{"event": "error", "time": 6000.0, "error": "LearnerError(2)", "step": 6}\n')
    run = RunReader(directory)
    assert (str(run.status), run.seconds) == (status, seconds)
    with (directory / "journal.jsonl").open("a") as file:
        file.write('{"event": "start", "time": 7000.0, "epoch": 4, "step": 6}\n')
        values = {"valid/Loss": 0.5}
        file.write(json.dumps({"event": "epoch", "time": 7007.0, "epoch": 4, "step": 8, "values": values}) + "\n")
        file.write('{"event": "error", "time": 7009.0, "error": "ValueError(3)"}\n')
    run = RunReader(directory)
    assert (str(run.status), run.seconds) == ("failed: ValueError(3)", seconds + 9)
    assert run.axes(np.array([8.0]))["time"].tolist() == [seconds + 7]


def test_only_errors(tmp_path):
    lines = [{"event": "error", "time": 1000.0 * i, "error": f"ValueError({i})"} for i in (1, 2)]
    (tmp_path / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert (str(RunReader(tmp_path).status), RunReader(tmp_path).seconds) == ("failed: ValueError(2)", 0)


def test_time_of_a_running_run_counts_until_now(tmp_path):
    assert RunReader(write_run(tmp_path / "a", ending=None, lock=lock_of(os.getpid())), now=1100.0).seconds == 100


def test_units_and_directions(tmp_path):
    directory = write_run(tmp_path / "a", {"valid/Loss": [1.0, 2.0], "valid/Score": [1.0, 2.0]})
    assert RunReader(directory).best("valid/Loss").value == 1.0  # the loss is always minimized
    assert RunReader(directory).best("valid/Score") is None
    summary = {"valid/Score": {"unit": "dB", "higher_is_better": True}, "valid/Loss": {"higher_is_better": False}}
    (directory / "summary.json").write_text(json.dumps({"metrics": summary}))
    run = RunReader(directory)
    assert (run.best("valid/Score").value, run.metrics["valid/Score"].unit) == (2.0, "dB")


def test_journal_has_directions_before_the_end(tmp_path):
    directory = write_run(tmp_path / "a", {"valid/Score": [1.0, 2.0]}, ending=None)
    lines = [json.loads(line) for line in (directory / "journal.jsonl").read_text().splitlines()]
    lines[0]["metrics"] = {"valid/Score": {"unit": "", "higher_is_better": True}}
    (directory / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert RunReader(directory).best("valid/Score").value == 2.0


@pytest.mark.parametrize("content", ["[1, 2]", '{"metrics": []}', '{"metrics": {"valid/Loss": 3}}', "no JSON"])
def test_malformed_summary_is_ignored(tmp_path, content):
    directory = write_run(tmp_path / "a")
    (directory / "summary.json").write_text(content)
    assert RunReader(directory).best("train/Loss") == Point(3, 6, 0.4)


def test_unreadable_config_is_empty(tmp_path):
    run = RunReader(write_run(tmp_path / "a", config="[1, 2]"))
    with pytest.warns(UserWarning, match="is a list; it needs a mapping"):
        assert run.config == {}


def test_directory_without_a_run_is_refused(tmp_path):
    with raises_code("run-directory-missing", directory=str(tmp_path / "nowhere")):
        RunReader(tmp_path / "nowhere")
    with raises_code("run-directory-unreadable"):
        RunReader(tmp_path)


def test_unknown_metric_is_refused(tmp_path):
    with raises_code("run-metric-unknown", key="valid/Los"):
        RunReader(write_run(tmp_path / "a")).points("valid/Los")


@pytest.mark.full
def test_trained_run(tmp_path):
    """The first line of the journal has the directions of metrics, however the run ends."""
    directory = tmp_path / "run"
    result = build_line(quiet(directory).num_epochs(2)).fit(shuffled(), valid_data())
    (directory / "summary.json").unlink()
    run = RunReader(directory)
    assert run.history == result.history
    assert run.metrics["valid/Loss"].higher_is_better is False
    assert [len(run.steps("train/Loss")), run.step] == [12, 12]
    assert run.config["num_epochs"] == 2  # from the journal, without a config.yaml
    assert run.environment["jax"]
    entry = run.journal[0]
    assert entry["metrics"]["valid/Loss"] == {"unit": "", "higher_is_better": False}


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        ("num_epochs", "ended"),
        ("num_steps", "ended"),
        ("early stopping: valid/Loss", "ended"),
        ("the end of the loop", "ended"),
        ("ctrl-c", "stopped"),
        ("sigterm", "stopped"),
        ("watchdog: no step in 5 s", "stopped"),
    ],
)
def test_run_has_ended_if_nothing_is_left_to_train(tmp_path, reason, word):
    run = RunReader(write_run(tmp_path / "a", ending=reason))
    assert (run.status.word, run.status.why) == (word, reason)


@pytest.mark.parametrize("event", ["end", "stop"])
def test_stopped_run(tmp_path, event):
    directory = write_run(tmp_path / "a", ending=None)
    with (directory / "journal.jsonl").open("a") as file:
        file.write(json.dumps({"event": event, "time": 1031.0, "stopped_by": "time limit"}) + "\n")
    assert str(RunReader(directory).status) == "stopped: time limit"


def test_axes_with_validations_inside_an_epoch(tmp_path):
    """Steps before the first epoch's end and after the last line are extrapolated."""
    lines = [
        {"event": "start", "time": 0.0, "epoch": 1, "step": 0, "steps_per_epoch": 400},
        {"event": "validation", "time": 60.0, "epoch": 1, "step": 100, "values": {"valid/Loss": 2.0}},
        {"event": "validation", "time": 180.0, "epoch": 1, "step": 200, "values": {"valid/Loss": 1.0}},
    ]
    (tmp_path / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    axes = RunReader(tmp_path).axes(np.array([50.0, 100, 200, 300]))
    assert axes["time"].tolist() == [30, 60, 180, 300]
    assert axes["epoch"].tolist() == [0.125, 0.25, 0.5, 0.75]


def test_axis_of_time_excludes_repeated_steps(tmp_path):
    """Two splits are validated at one step, one after the other. Saves have steps too. A step trained again has its
    later time.
    """
    lines = [
        {"event": "start", "time": 0.0, "epoch": 1, "step": 0},
        {"event": "save", "time": 50.0, "epoch": 1, "step": 50},
        {"event": "save", "time": 90.0, "epoch": 1, "step": 90},
        {"event": "start", "time": 100.0, "epoch": 1, "step": 50},
        *(
            {"event": "validation", "time": 100.0 + s, "epoch": 1, "step": 100, "values": {f"{split}/Loss": 2.0}}
            for s, split in ((50, "valid"), (55, "test"))
        ),
    ]
    (tmp_path / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    axes = RunReader(tmp_path).axes(np.array([25.0, 50, 100, 150]))
    assert axes["time"].tolist() == [25, 50, 140, 230]


def test_last_step_after_going_back_to_an_earlier_epoch(tmp_path):
    """A run of 64 steps that resumed after its second epoch of 16, for a single one."""
    lines = [
        {"event": "start", "time": 0.0, "epoch": 1, "step": 0},
        {"event": "save", "time": 3.0, "step": 64},
        {"event": "end", "time": 4.0, "epoch": 4, "step": 64, "stopped_by": "num_epochs"},
        {"event": "start", "time": 10.0, "epoch": 3, "step": 32},
        {"event": "epoch", "time": 11.0, "epoch": 3, "step": 48, "values": {}},
    ]
    journal = tmp_path / "journal.jsonl"
    for count, step in ((2, 64), (3, 64), (4, 32), (5, 48)):
        journal.write_text("".join(json.dumps(line) + "\n" for line in lines[:count]))
        assert RunReader(tmp_path).step == step


def test_replaced_journal_is_read_from_the_start(tmp_path):
    run = RunReader(write_run(tmp_path / "a", ending=None))
    assert run.axes(np.array([2.0]))["time"].tolist() == [10]
    (tmp_path / "b").touch()
    (tmp_path / "b").replace(run.directory / "journal.jsonl")
    assert run.refresh()
    assert (run.journal, run.ends, run.axes(np.array([2.0]))["time"].tolist()) == ([], {}, [0])


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs the start of a process")
def test_reused_pid_does_not_hold_the_lock(tmp_path):
    """This process started after the lock was written."""
    directory = write_run(tmp_path / "a", ending=None, lock=lock_of(os.getpid()))
    os.utime(directory / "run.lock", (1e9, 1e9))
    assert str(RunReader(directory).status) == "died"


def test_long_epoch_on_another_machine(tmp_path):
    """The files of metrics grow while the journal does not."""
    directory = write_run(tmp_path / "a", ending=None, lock=lock_of(1, "elsewhere"))
    write_steps(directory, "Loss", 4, [1.0])
    now = (directory / "train" / "epoch-4" / "Loss.log").stat().st_mtime
    os.utime(directory / "journal.jsonl", (now - 3600, now - 3600))
    assert str(RunReader(directory, now=now + 60).status) == "running"


def test_urls_in_configs_are_hidden(tmp_path):
    secret = "metric_loggers: [{class_path: Webhook, init_args: {url: 'http://me:secret@here'}}]\nseed: 1\n"
    assert RunReader(write_run(tmp_path / "a", config=secret)).config == {"seed": 1}


def test_linked_config_is_not_read(tmp_path):
    (tmp_path / "private.yaml").write_text("password: x\n")
    directory = write_run(tmp_path / "a")
    (directory / "config.yaml").symlink_to(tmp_path / "private.yaml")
    assert RunReader(directory).config == {}


@pytest.mark.parametrize("lock", [json.dumps({"host": platform.node(), "pid": 10**30}), "[" * 4000, lock_of(0)])
def test_malformed_locks_are_ignored(tmp_path, lock):
    assert str(RunReader(write_run(tmp_path / "a", ending=None, lock=lock)).status) == "died"


def test_huge_numbers_are_ignored(tmp_path):
    directory = write_run(tmp_path / "a", {"valid/Loss": [1.0], "train/../x": [2.0]})
    with (directory / "journal.jsonl").open("a") as file:
        file.write('{"event": "save", "time": 1' + "0" * 400 + ', "step": 1' + "0" * 400 + "}\n")
        file.write('{"event": "epoch", "time": 0.0, "epoch": 1' + "0" * 400 + ', "step": 1, "values": {}}\n')
    with pytest.warns(UserWarning, match="line 5 is damaged and is left out"):
        run = RunReader(directory)
    assert (run.epochs, run.step, len(run.steps("train/../x"))) == (1, 2, 0)


def test_times_of_steps_across_starts(tmp_path):
    """Steps after a break have times after it, and a step trained again has its later time."""
    lines = [
        {"event": "start", "time": 100.0, "step": 0},
        {"event": "epoch", "time": 110.0, "epoch": 1, "step": 10, "values": {}},
        {"event": "start", "time": 500.0, "step": 10},
        {"event": "start", "time": 600.0, "step": 12},
        {"event": "start", "time": 1000.0, "step": 10},
        {"event": "validation", "time": 1005.0, "epoch": 2, "step": 20, "values": {}},
        {"event": "save", "time": 9000.0, "step": 20},
        {"event": "start", "time": 2000.0, "step": 20},
    ]
    (tmp_path / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    times = RunReader(tmp_path).times(np.array([1.0, 10, 11, 20, 21, 24]))
    np.testing.assert_allclose(times, [101, 110, 1000.5, 1005, 2000.5, 2002], atol=1e-4)


KILLED = [
    {"event": "start", "time": 1000.0, "step": 0},
    {"event": "epoch", "time": 1045.0, "epoch": 1, "step": 45, "values": {}},
    {"event": "save", "time": 1060.0, "step": 60},
    {"event": "save", "time": 1075.0, "step": 75},
]
RESUMED = {"event": "epoch", "time": 87430.0, "epoch": 2, "step": 90, "values": {}}


@pytest.mark.parametrize(
    ("step", "at", "expected"),
    [
        (60, [45, 50, 60, 61, 90, 91], [1045, 1050, 1060, 87401, 87430, 87431]),
        (65, [45, 55, 65, 70, 90], [1045, 1060, 1075, 87410, 87430]),  # a checkpoint without a line in the journal
    ],
)
def test_times_around_a_break_inside_an_epoch(tmp_path, step, at, expected):
    """The run was killed and resumed a day later; no step falls between."""
    lines = [*KILLED, {"event": "start", "time": 87430.0 - (90 - step), "step": step}, RESUMED]
    (tmp_path / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    times = RunReader(tmp_path).times(np.array(at, np.float64))
    np.testing.assert_allclose(times, expected, atol=1e-3)


def test_times_without_epochs(tmp_path):
    lines = [{"event": "start", "time": 100.0, "step": 0}, {"event": "end", "time": 110.0}]
    for count, expected in ((1, 100), (2, 100)):
        (tmp_path / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines[:count]))
        assert RunReader(tmp_path).times(np.array([0.0, 5])).tolist() == [expected, expected]
    (tmp_path / "journal.jsonl").write_text("")
    assert RunReader(tmp_path).times(np.array([0.0, 5])).tolist() == [0, 0]


def test_last_lines_of_the_log(tmp_path):
    run = RunReader(write_run(tmp_path / "a"))
    assert run.log(10) is None
    (tmp_path / "a" / "experiment.log").write_bytes(b"one\ntwo \xff\nthree\n")
    assert run.log(1000) == ["one", "two \ufffd", "three"]
    assert run.log(6) == ["three"]
    (tmp_path / "a" / "experiment.log").rename(tmp_path / "private")
    (tmp_path / "a" / "experiment.log").symlink_to(tmp_path / "private")
    assert run.log(1000) is None


def test_nested_config(tmp_path):
    model = {"class_path": "models.MLP", "init_args": {"features": [64, 10], "dropout": 0.3}}
    run = RunReader(write_run(tmp_path / "a", config=CONFIG))
    assert run.nested_config == {"directory": "somewhere", "model": model, "metrics": [{"class_path": "Accuracy"}]}


def test_refresh_reads_new_lines(tmp_path):
    """Each line of the journal is read once."""
    directory = write_run(tmp_path / "a", {"valid/Loss": [0.8]}, ending=None, lock=lock_of(os.getpid()))
    run = RunReader(directory, now=1050.0)
    assert (run.epochs, str(run.status), run.seconds, run.ends) == (1, "running", 50, {1: 2})
    assert run.refresh(1060.0) is False
    assert run.seconds == 60
    journal = directory / "journal.jsonl"
    with journal.open("r+b") as file:
        file.write(b"{")  # the same byte; earlier lines are not read again
        file.seek(0, 2)
        line = {"event": "epoch", "time": 1100.0, "epoch": 2, "step": 4, "values": {"valid/Loss": 0.5}}
        file.write(json.dumps(line).encode() + b'\n{"event": "end", "time": 1101')
    assert run.refresh(1110.0) is False
    assert (run.epochs, run.history["valid/Loss"], run.best("valid/Loss").epoch) == (2, [0.8, 0.5], 2)
    with journal.open("a") as file:
        file.write('.0, "stopped_by": "num_epochs"}\n')
    run.refresh()
    assert (str(run.status), run.seconds) == ("ended: num_epochs", 101)


def test_a_run_that_is_started_again_says_so(tmp_path):
    directory = write_run(tmp_path / "a")
    run = RunReader(directory)
    with (directory / "journal.jsonl").open("a") as file:
        file.write('{"event": "start", "time": 2000.0, "epoch": 4, "step": 6, "resumed": true}\n')
    assert run.refresh() is True
    assert run.refresh() is False
    write_run(tmp_path / "b", {"valid/Loss": [0.1]})
    os.replace(tmp_path / "b" / "journal.jsonl", directory / "journal.jsonl")
    assert run.refresh() is True
    assert run.history.to_json() == {"valid/Loss": [[1, 2, 0.1]]}
    (tmp_path / "c").write_text('{"event": "end", "time": 1.0}\n')
    os.replace(tmp_path / "c", directory / "journal.jsonl")
    assert run.refresh() is True
    assert len(run.history) == 0


def test_damaged_line_is_reported_with_its_number(tmp_path):
    directory = write_run(tmp_path / "a")
    run = RunReader(directory)
    with (directory / "journal.jsonl").open("a") as file:
        file.write("no JSON\n")
    with pytest.warns(UserWarning, match=r"journal.jsonl, line 6 is damaged"):
        run.refresh()


@pytest.mark.parametrize("nested", ['{"a":' * 700 + "1" + "}" * 700, "[" * 700 + "]" * 700], ids=["maps", "lists"])
def test_too_deeply_nested_value_is_skipped(tmp_path, nested):
    """The rest of the line is read."""
    lines = f'{{"event": "start", "time": 5.0, "step": 0, "config": {nested}, "commit": "abc"}}\n'
    (tmp_path / "journal.jsonl").write_text(lines)
    with pytest.warns(UserWarning, match="line 1: config is nested more than 100 deep and is left out"):
        run = RunReader(tmp_path)
    assert (run.config, run.environment, run.times(np.zeros(1)).tolist()) == ({}, {"commit": "abc"}, [5])


def test_deeply_nested_value_is_read(tmp_path):
    start = {"event": "start", "time": 5.0, "config": {"a": [[[]]] * 100}}
    (tmp_path / "journal.jsonl").write_text(json.dumps(start) + "\n")
    assert RunReader(tmp_path).config == {f"a.{number}.0": [] for number in range(100)}


def test_metrics_are_known_before_their_first_values(tmp_path):
    directory = write_run(tmp_path / "a", {}, ending=None)
    start = {"event": "start", "time": 1.0, "metrics": {"valid/F": {"unit": "dB", "higher_is_better": True}}}
    (directory / "journal.jsonl").write_text(json.dumps(start) + "\n")
    run = RunReader(directory)
    assert run.metrics == {}
    assert (run.known["valid/F"].unit, run.known["valid/F"].higher_is_better) == ("dB", True)


def test_last_sign_uses_the_newest_epoch(tmp_path):
    directory = write_run(tmp_path / "a")
    for epoch, time in ((9, 5000), (10, 9000)):
        write_steps(directory, "Loss", epoch, [1])
        os.utime(directory / "train" / f"epoch-{epoch}" / "Loss.log", (time, time))
    os.utime(directory / "journal.jsonl", (7000, 7000))
    assert RunReader(directory).last_sign == 9000


SECONDS = {"total": 31.0, "compile": 4, "data": 0.5, "train": 20.0, "valid": 3.0, "save": 2.0, "other": 1.5}


def append_seconds(directory, event, seconds):
    with (directory / "journal.jsonl").open("a") as file:
        file.write(json.dumps({"event": event, "time": 1031.0, "seconds": seconds}) + "\n")


def test_time_parts_add_up_over_starts(tmp_path):
    directory = write_run(tmp_path / "a", ending=None)
    append_seconds(directory, "stop", SECONDS)
    append_seconds(directory, "error", {**SECONDS, "train": 5.0})
    append_seconds(directory, "save", SECONDS)
    assert RunReader(directory).time_parts == {
        "total": 62,
        "compile": 8,
        "data": 1,
        "train": 25,
        "valid": 6,
        "save": 4,
        "other": 3,
    }


def test_html_of_a_run(tmp_path):
    content = RunReader(write_run(tmp_path / "<a>"))._repr_html_()
    assert re.findall("<b>(.*?)</b>", content)[0] == "&lt;a&gt;"
    assert "ended: num_epochs, 3 epochs, 6 steps, 31.0 s" in content
    assert re.findall(r"<td[^>]*>([^<]*)<", content) == ["0.8", "0.6", "2", "0.7", "0.9", "0.4", "3", "0.4"]


def test_recorded_seconds_of_a_start_count(tmp_path):
    """They include the time before its first line. A start that was killed has only the journal's clock."""
    directory = write_run(tmp_path / "a", seconds=10.0, ending=None)  # 30 s by the journal
    append_seconds(directory, "stop", {**SECONDS, "total": 33.0})
    with (directory / "journal.jsonl").open("a") as file:
        for event, time in (("start", 2000.0), ("save", 2007.0), ("start", 3000.0)):
            file.write(json.dumps({"event": event, "time": time, "step": 6}) + "\n")
        file.write(json.dumps({"event": "end", "time": 3004.0, "seconds": {"total": 4.5}}) + "\n")
    assert RunReader(directory).seconds == 33 + 7 + 4.5


def test_older_runs_have_no_time_parts(tmp_path):
    assert RunReader(write_run(tmp_path / "a")).time_parts == {}


@pytest.mark.parametrize("value", [3, [1], {"train": "1"}, {"train": -1}, {"train": True}, {"train": 1e300}, {"x": 1}])
def test_malformed_seconds_are_ignored(tmp_path, value):
    directory = write_run(tmp_path / "a", ending=None)
    append_seconds(directory, "end", value)
    assert RunReader(directory).time_parts == {}
