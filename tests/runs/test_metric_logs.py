"""Tests of the log files of a run: their text, when they are written, and their names."""

import contextlib
import errno
import json
import os
import resource
import shutil
import zlib

import numpy as np
import psutil
import pytest

from learner.errors import LearnerError
from learner.loggers import RunFiles, file_name
from learner.runs.appended import AppendedFile
from learner.runs.file_names import refuse_same_files
from learner.runs.journal import read_journal
from tests.support.codes import raises_code

HOSTILE = [
    "../Loss",
    "a/b",
    "a\\b",
    "",
    "  ",
    ".hidden",
    "..",
    "a\nb",
    "a\x00b",
    "\x1b[31mred",
    "é" * 101,
    "\ud800",
    "a\u2028b",
]


class Clock:
    """A clock that tests set."""

    def __init__(self):
        self.now = 1769860800.0

    def __call__(self):
        return self.now


def f32(*numbers):
    return np.array(numbers, np.float32)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def files(tmp_path, clock):
    files = RunFiles(tmp_path / "run", clock, now=clock)
    yield files
    files.close()


def open_files(directory):
    """Return the files of the directory that this process has open."""
    targets = (file.path for file in psutil.Process().open_files())
    return sorted(os.path.relpath(target, directory) for target in targets if target.startswith(f"{directory}/"))


def test_text_of_a_small_epoch(files, tmp_path):
    files.steps("train", 1, {"Loss": f32(0.5, 0.1), "Top-5 Accuracy": f32(1, np.nan)}, f32(32, 32))
    files.steps("train", 1, {"Loss": f32(np.inf), "Top-5 Accuracy": f32(0.25)}, f32(5))
    files.close_split("train", 1, {"Loss": 0.25, "Top-5 Accuracy": 0.1}, None)
    files.steps("valid", 1, {"Loss": f32(2.5e-8)}, f32(2.5))
    files.close_split("valid", 1, {"Loss": 2.5e-8, "Confusion": "1 0\n0 1"}, None)
    texts = {path.relative_to(tmp_path / "run").as_posix(): path.read_text() for path in tmp_path.rglob("*.log")}
    assert texts == {
        "train/epoch-1/Loss.log": "0.5,32\n0.1,32\ninf,5\n0.25,final\n",
        "train/epoch-1/Top-5_Accuracy.log": "1.0,32\nnan,32\n0.25,5\n0.1,final\n",
        "valid/epoch-1/Loss.log": "2.5e-08,2.5\n2.5e-08,final\n",
        "valid/epoch-1/Confusion.log": '"1 0\\n0 1",final\n',
    }


def test_validations_inside_an_epoch_share_a_file(files, tmp_path):
    for step in (20, 40):
        files.steps("valid-dev", 3, {"Loss": f32(step)}, f32(8))
        files.close_split("valid-dev", 3, {"Loss": float(step)}, at_step=step)
    assert open_files(tmp_path) == ["run/valid-dev/epoch-3/Loss.log"]
    files.steps("valid-dev", 3, {"Loss": f32(45)}, f32(8))
    files.close_split("valid-dev", 3, {"Loss": 45.0}, None)
    assert open_files(tmp_path) == []
    text = (tmp_path / "run/valid-dev/epoch-3/Loss.log").read_text()
    assert text == "20.0,8\n20.0,final@20\n40.0,8\n40.0,final@40\n45.0,8\n45.0,final\n"


def test_new_epoch_closes_the_files_of_the_previous_one(files, tmp_path):
    files.steps("train", 1, {"Loss": f32(1)}, f32(8))
    files.flush()
    files.steps("train", 2, {"Loss": f32(2)}, f32(8))
    files.flush()
    assert open_files(tmp_path) == ["run/train/epoch-2/Loss.log"]
    assert (tmp_path / "run/train/epoch-1/Loss.log").read_text() == "1.0,8\n"


def test_no_file_is_created_before_the_first_value(files, tmp_path):
    assert files.position() == {"epoch_lines": 0, "epoch": 0, "files": {}, "checksums": {}}
    files.flush()
    assert list(tmp_path.iterdir()) == []


def test_lines_are_written_every_half_second(files, tmp_path, clock):
    loss = tmp_path / "run/train/epoch-1/Loss.log"
    files.steps("train", 1, {"Loss": f32(1)}, f32(8))
    clock.now += 0.49
    files.steps("train", 1, {}, f32(8))
    assert not loss.exists()
    clock.now += 0.02
    files.steps("train", 1, {"Loss": f32(2)}, f32(8))
    assert loss.read_text() == "1.0,8\n2.0,8\n"
    files.steps("train", 1, {"Loss": f32(3)}, f32(8))
    assert loss.read_text() == "1.0,8\n2.0,8\n"
    clock.now -= 3600  # the computer's clock was set back
    files.steps("train", 1, {"Loss": f32(4)}, f32(8))
    assert loss.read_text() == "1.0,8\n2.0,8\n3.0,8\n4.0,8\n"


@pytest.mark.parametrize(
    "written_by",
    [
        lambda files: files.flush(),
        lambda files: files.journal("stop"),
        lambda files: files.position(),
        lambda files: files.close(),
        lambda files: files.close_split("valid", 1, {"Loss": 1.0}, None),
    ],
)
def test_pending_lines_are_written(files, tmp_path, written_by):
    files.steps("train", 1, {"Loss": f32(1)}, f32(8))
    written_by(files)
    assert (tmp_path / "run/train/epoch-1/Loss.log").read_text() == "1.0,8\n"


def test_journal_is_standard_json(files, tmp_path, clock):
    values = {
        "train/Loss": float("nan"),
        "valid/Loss": float("inf"),
        "valid/A": -np.float32(np.inf),
        "valid/B": np.int64(3),
    }
    files.journal("start", directory=tmp_path, metrics=("Loss",), seed=None, resumed=False)
    clock.now += 1.5
    files.journal("epoch", epoch=1, step=45, values=values)

    def refuse(constant):
        pytest.fail(f"{constant} is not JSON")

    lines = [
        json.loads(line, parse_constant=refuse) for line in (tmp_path / "run/journal.jsonl").read_text().splitlines()
    ]
    expected = {"train/Loss": "NaN", "valid/Loss": "Infinity", "valid/A": "-Infinity", "valid/B": 3}
    assert lines == [
        {
            "event": "start",
            "time": 1769860800.0,
            "directory": str(tmp_path),
            "metrics": ["Loss"],
            "seed": None,
            "resumed": False,
        },
        {"event": "epoch", "time": 1769860801.5, "elapsed": 1.5, "epoch": 1, "step": 45, "values": expected},
    ]


def test_journal_writes_each_line_at_once_with_one_call(files, tmp_path, monkeypatch):
    writes = []
    write = os.write
    monkeypatch.setattr(os, "write", lambda to, content: writes.append(bytes(content)) or write(to, content))
    for number in range(100):
        files.journal("save", step=number)
        assert (tmp_path / "run/journal.jsonl").read_bytes().endswith(f'"step": {number}}}\n'.encode())
    assert len(writes) == 100
    assert b"".join(writes) == (tmp_path / "run/journal.jsonl").read_bytes()


def test_torn_line_of_the_journal_is_not_continued(tmp_path, clock):
    path = tmp_path / "journal.jsonl"
    path.write_text('{"event": "epoch", "epoch": 1, "step": 45, "values": {}}\n{"event": "epo')
    files = RunFiles(tmp_path, clock)
    files.journal("start")
    assert [json.loads(line)["event"] for line in path.read_text().splitlines()] == ["epoch", "start"]
    assert files.position()["epoch_lines"] == 1
    files.close()


@pytest.mark.parametrize("name", HOSTILE)
def test_names_that_cannot_be_files_are_refused(files, tmp_path, name):
    with raises_code("run-metric-name-unusable", name=name):
        file_name(name)
    for split, metric in ((name, "Loss"), ("train", name)):
        with raises_code("run-metric-name-unusable", name=name):
            files.steps(split, 1, {metric: f32(1)}, f32(1))
        with raises_code("run-metric-name-unusable", name=name):
            files.close_split(split, 1, {metric: 1.0}, None)
    files.flush()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "file"),
    [("Loss", "Loss"), ("Top-5 Accuracy", "Top-5_Accuracy"), ("Präzision", "Präzision"), ("é" * 100, "é" * 100)],
)
def test_names_of_metrics_become_names_of_files(files, tmp_path, name, file):
    files.close_split("train", 1, {name: 1.0}, None)
    assert [path.name for path in tmp_path.rglob("*.log")] == [f"{file}.log"]


@pytest.mark.parametrize("second", ["Tóp_5", "tóp 5", "To\u0301p 5"])
def test_metrics_with_one_file_name_are_refused(files, second):
    files.steps("train", 1, {"Tóp 5": f32(1)}, f32(1))
    files.steps("valid", 1, {"Tóp 5": f32(1)}, f32(1))
    with raises_code("run-metric-file-shared", name=second):
        files.steps("train", 1, {second: f32(1)}, f32(1))
    with raises_code("run-metric-file-shared", name=second):
        refuse_same_files(["Loss", "Tóp 5", second])


@pytest.mark.parametrize("linked", ["train", "train/epoch-1", "train/epoch-1/Loss.log", "journal.jsonl"])
def test_link_is_not_written_to(clock, tmp_path, linked):
    files = RunFiles(tmp_path / "run", clock)
    elsewhere, place = tmp_path / "elsewhere", tmp_path / "run" / linked
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.suffix:
        elsewhere.write_text("mine, and no line")
    else:
        elsewhere.mkdir()
    place.symlink_to(elsewhere)
    with raises_code("run-file-kind", path=str(place)):
        files.journal("start") if linked == "journal.jsonl" else files.close_split("train", 1, {"Loss": 1.0}, None)
    assert list(elsewhere.iterdir()) == [] if elsewhere.is_dir() else elsewhere.read_text() == "mine, and no line"
    with contextlib.suppress(LearnerError):  # what was refused is refused again
        files.close()


def test_values_and_weights_of_different_lengths_are_an_error(files):
    with pytest.raises(ValueError, match="shorter"):
        files.steps("train", 1, {"Loss": f32(1, 2)}, f32(1))


def test_removed_run_directory_is_not_created_again(clock, tmp_path):
    files = RunFiles(tmp_path / "run", clock)
    files.close_split("train", 1, {"Loss": 1.0}, None)
    shutil.rmtree(tmp_path / "run")
    with raises_code("run-log-removed", split="train"):
        files.close_split("train", 2, {"Loss": 1.0}, None)
    assert not (tmp_path / "run").exists()
    with contextlib.suppress(LearnerError):  # what was refused is refused again
        files.close()


def test_closing_on_a_full_disk_closes_every_file(tmp_path, clock, monkeypatch):
    files = RunFiles(tmp_path, clock)
    files.journal("start")
    files.close_split("valid", 1, {"Loss": 1.0}, at_step=3)
    files.steps("train", 1, {"Loss": f32(1)}, f32(1))
    assert open_files(tmp_path) == ["journal.jsonl", "valid/epoch-1/Loss.log"]

    def full(descriptor, content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with raises_code("run-disk-full") as error:
        files.close()
    assert "train/epoch-1/Loss.log" in str(error.value)
    assert open_files(tmp_path) == []


def test_summary_is_indented_json(files, tmp_path):
    files.write_summary({"epochs": 1, "metrics": {"train/Loss": {"best": None, "last": float("nan")}}})
    text = (tmp_path / "run/summary.json").read_text()
    assert json.loads(text) == {"epochs": 1, "metrics": {"train/Loss": {"best": None, "last": "NaN"}}}
    assert text.startswith('{\n  "epochs": 1,\n')
    assert text.endswith("}\n")


# -- descriptors, and disks that are full ------------------------------------------------------------------------------


@pytest.mark.full
def test_more_metrics_than_file_descriptors(files, tmp_path, clock):
    """macOS allows a process 256."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    names = [f"n{number}" for number in range(400)]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
        for epoch in (1, 2):
            for _ in range(2):
                files.steps("custom", epoch, dict.fromkeys(names, f32(epoch)), f32(8))
                files.flush()
            files.close_split("custom", epoch, dict.fromkeys(names, 0.5), None)
        files.journal("epoch", epoch=2, step=2, values={})
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    texts = [(tmp_path / f"run/custom/epoch-2/{name}.log").read_bytes() for name in names]
    assert texts == [b"2.0,8\n2.0,8\n0.5,final\n"] * 400
    closed = json.loads((tmp_path / "run/journal.jsonl").read_text())["files"]
    assert closed == {f"custom/epoch-2/{name}.log": [len(texts[0]), zlib.crc32(texts[0])] for name in names}


@pytest.mark.parametrize("count", [10, 100], ids=["open", "closed after each write"])
@pytest.mark.parametrize(("change", "code"), [("unlink", "run-log-removed"), ("truncate", "run-log-changed")])
def test_log_changed_between_writes_is_an_error(files, tmp_path, change, code, count):
    values = {f"n{number}": f32(1) for number in range(count)}
    files.steps("custom", 1, values, f32(8))
    files.flush()
    path = tmp_path / "run/custom/epoch-1/n7.log"
    os.link(path, tmp_path / "kept")
    path.unlink() if change == "unlink" else path.write_text("")
    files.steps("custom", 1, values, f32(8))
    with raises_code(code):
        files.flush()
    os.replace(tmp_path / "kept", path)
    path.write_text("1.0,8\n")  # as expected when it is closed


def test_journal_records_a_full_disk_of_the_metric_logs(clock, tmp_path, monkeypatch):
    """The journal's last block may have room when no other file gets a new block."""
    files, written = RunFiles(tmp_path, clock), AppendedFile.write

    def write(file):
        if file.path.endswith(".log"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written(file)

    files.journal("start")
    monkeypatch.setattr(AppendedFile, "write", write)
    files.steps("train", 1, {"Loss": np.float32([0.5])}, np.float32([32]))
    with raises_code("run-disk-full"):
        files.journal("epoch", epoch=1, step=1, values={})
    files.journal("error", epoch=1, step=1, error="the disk is full")
    assert [entry["event"] for _, entry in read_journal(tmp_path)] == ["start", "error"]


def test_writing_resumes_when_the_disk_has_room(clock, tmp_path, monkeypatch):
    """A checkpoint that does not fit occupies the disk until it is removed."""
    full, write, calls = [True], os.write, []

    def make_room():
        calls.append(1)
        full[0] = len(calls) < 2

    def limited(descriptor, content):
        if full[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, content)

    monkeypatch.setattr(os, "write", limited)
    files = RunFiles(tmp_path / "run", clock, make_room)
    files.steps("train", 1, {"Loss": f32(1)}, f32(8))
    with raises_code("run-disk-full"):
        files.flush()
    files.flush()
    assert (tmp_path / "run/train/epoch-1/Loss.log").read_text() == "1.0,8\n"
