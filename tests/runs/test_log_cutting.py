"""Tests of truncating the logs of a run to a position: a resumed run ends with the files of an uninterrupted one."""

import json
import tempfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.loggers import RunFiles
from learner.runs.log_cutting import refuse_changed
from tests.support.codes import raises_code


def no_time():
    return 0.0


def script(epochs=3, dispatches=3, validate_inside=True):
    """Return what a run does to its files, as a list of functions. No two rows have equal numbers."""
    actions, row = [], 0

    def values(count):
        nonlocal row
        row += count
        return {name: np.arange(row - count, row, dtype=np.float32) / 7 for name in ("Loss", "Top-5 Accuracy")}

    def steps(split, epoch, count):
        columns = values(count)
        actions.append(lambda files: files.steps(split, epoch, columns, np.full(count, 32, np.float32)))

    def end(split, epoch, at_step=None):
        final = dict.fromkeys(("Loss", "Top-5 Accuracy"), row / 3) | {"Text": f"row\n{row}"}
        actions.append(lambda files: files.close_split(split, epoch, final, at_step))

    def journal(event, **fields):
        actions.append(lambda files: files.journal(event, **fields))

    for epoch in range(1, epochs + 1):
        for dispatch in range(1, dispatches + 1):
            steps("train", epoch, dispatch)
            if validate_inside:
                steps("valid", epoch, 2)
                end("valid", epoch, at_step=dispatch)
                journal("validation", epoch=epoch, step=row, values={"valid/Loss": row})
        end("train", epoch)
        steps("valid", epoch, 2)
        end("valid", epoch)
        journal("epoch", epoch=epoch, step=row, values={"train/Loss": row})
    return actions


SCRIPT = script()


def write(directory, actions):
    files = RunFiles(directory, no_time)
    for action in actions:
        action(files)
    return files


def tree(directory):
    paths = [path for path in directory.rglob("*") if path.is_file()] if directory.exists() else []
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in paths}


def not_empty(files):
    return {path: content for path, content in files.items() if content}


def directories(directory):
    return sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_dir())


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    directory = tmp_path_factory.mktemp("whole") / "run"
    write(directory, SCRIPT).close()
    return tree(directory)


@settings(max_examples=60, deadline=None)
@given(
    saved=st.integers(0, len(SCRIPT)),
    further=st.integers(0, len(SCRIPT)),
    torn=st.binary(max_size=9),
    keep=st.booleans(),
)
def test_resumed_run_writes_every_line_once(uninterrupted, saved, further, torn, keep):
    killed = min(saved + further, len(SCRIPT))
    with tempfile.TemporaryDirectory() as temporary:
        directory, superseded = Path(temporary, "run"), Path(temporary, "superseded")
        files = write(directory, SCRIPT[:saved])
        position = json.loads(json.dumps(files.position()))
        before = tree(directory)
        for action in SCRIPT[saved:killed]:
            action(files)
        files.close()
        for path in sorted(directory.rglob("*.log"), key=lambda path: path.parent.name)[-1:]:
            with path.open("ab") as file:
                file.write(torn)
        after = tree(directory)

        files = RunFiles(directory, no_time)
        files.cut(position, keep_in=superseded if keep else None)
        assert not_empty(tree(directory)) == before
        assert files.position() == position
        if keep:
            assert before | {path: before.get(path, b"") + tail for path, tail in tree(superseded).items()} == after

        for action in SCRIPT[saved:]:
            action(files)
        files.close()
        assert tree(directory) == uninterrupted


def test_lines_without_numbers_stay_in_the_journal(tmp_path):
    files = write(tmp_path, [lambda files: files.journal("start")])
    files.journal("epoch", epoch=1, step=45, values={"train/Loss": 1})
    position = files.position()
    files.journal("save", step=45)
    files.journal("epoch", epoch=2, step=90, values={"train/Loss": 2})
    files.journal("error", error="killed")
    files.close()

    files = RunFiles(tmp_path, no_time)
    files.cut(position)
    files.journal("start", resumed=True)
    files.journal("epoch", epoch=2, step=90, values={"train/Loss": 3})
    assert files.position()["epoch_lines"] == 2
    files.close()
    entries = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
    assert [entry["event"] for entry in entries] == ["start", "epoch", "save", "error", "start", "epoch"]
    assert entries[-1]["values"] == {"train/Loss": 3}


def test_only_later_logs_are_removed(tmp_path):
    files = write(tmp_path, SCRIPT)
    files.close()
    other = ["train/epoch-2/notes.txt", "train/epoch-3/notes.txt", "train/readme", "checkpoint/135/epoch-3/a.log"]
    for name in other:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("mine")
    (tmp_path / "train/epoch-2/New_Metric.log").write_text("1.0,32\n")
    first = {path: text for path, text in tree(tmp_path).items() if "/epoch-1/" in path}

    position = {"epoch_lines": 4, "epoch": 2, "files": {"train/epoch-2/Loss.log": 0}}
    RunFiles(tmp_path, no_time).cut(position)
    left = tree(tmp_path)
    assert left.pop("journal.jsonl").count(b"\n") == 4
    assert left == first | dict.fromkeys(other, b"mine") | {"train/epoch-2/Loss.log": b""}
    assert "valid/epoch-2" not in directories(tmp_path)
    assert "valid/epoch-3" not in directories(tmp_path)


def test_cutting_to_the_beginning(tmp_path):
    write(tmp_path, SCRIPT).close()
    files = RunFiles(tmp_path, no_time)
    files.cut({"epoch_lines": 0, "epoch": 0, "files": {}})
    assert tree(tmp_path) == {"journal.jsonl": b""}


@pytest.mark.parametrize("damage", ["shorter", "missing"])
def test_shorter_file_is_refused_and_nothing_changes(tmp_path, damage):
    files = write(tmp_path, SCRIPT[:9])
    position = files.position()
    for action in SCRIPT[9:]:
        action(files)
    files.close()
    victim = tmp_path / "train/epoch-1/Loss.log"
    if damage == "missing":
        victim.unlink()
    else:
        victim.write_bytes(victim.read_bytes()[:3])
    before = tree(tmp_path)
    with raises_code("resume-log-changed", file=str(victim)):
        RunFiles(tmp_path, no_time).cut(position, keep_in=tmp_path / "superseded")
    assert tree(tmp_path) == before


@pytest.mark.parametrize("journal", [b"", None])
def test_shorter_journal_is_refused(tmp_path, journal):
    files = write(tmp_path, SCRIPT)
    position = files.position()
    files.close()
    (tmp_path / "journal.jsonl").unlink()
    if journal is not None:
        (tmp_path / "journal.jsonl").write_bytes(journal)
    with raises_code("resume-log-changed", file=str(tmp_path / "journal.jsonl")):
        RunFiles(tmp_path, no_time).cut(position)


def test_cutting_to_the_current_position_writes_nothing(tmp_path):
    files = write(tmp_path, SCRIPT)
    position = files.position()
    files.close()
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    RunFiles(tmp_path, no_time).cut(position, keep_in=tmp_path / "superseded")
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == stamps


# -- positions from untrusted checkpoints ------------------------------------------------------------------------------

RIGHT = {"epoch_lines": 0, "epoch": 2, "files": {"train/epoch-2/Loss.log": 0}}


@pytest.mark.parametrize(
    "path",
    [
        "../epoch-2/Loss.log",
        "train/epoch-2/../../../outside.log",
        "train/../epoch-2/Loss.log",
        "/tmp/epoch-2/Loss.log",
        "train/epoch-2//etc/passwd.log",
        "train\\epoch-2\\Loss.log",
        "train/epoch-2/..log",
        "train/epoch-3/Loss.log",
        "train/epoch-2/Loss.txt",
        "data/epoch-2/Loss.log",
        "journal.jsonl",
        "",
        "train/epoch-2/a\x00b.log",
        "train/epoch-2/a\nb.log",
        "train/epoch-2/\ud800.log",
        f"train/epoch-2/{'a' * 252}.log",
        f"valid-{'a' * 250}/epoch-2/Loss.log",
    ],
)
def test_position_with_another_file_is_refused(tmp_path, path):
    """The files exist where such a file is possible, and stay unchanged."""
    run = tmp_path / "run"
    write(run, SCRIPT).close()
    for outside in (tmp_path / "epoch-2/Loss.log", tmp_path / "outside.log", run / "data/epoch-2/Loss.log"):
        outside.parent.mkdir(parents=True, exist_ok=True)
        outside.write_text("mine")
    before = tree(tmp_path)
    with raises_code("resume-log-position"):
        RunFiles(run, no_time).cut({**RIGHT, "files": {path: 0}})
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    "position",
    [
        None,
        [],
        {},
        {**RIGHT, "files": ["train/epoch-2/Loss.log"]},
        {**RIGHT, "files": {"train/epoch-2/Loss.log": -1}},
        {**RIGHT, "files": {"train/epoch-2/Loss.log": 1.0}},
        {**RIGHT, "files": {"train/epoch-2/Loss.log": "0"}},
        {**RIGHT, "epoch": -1},
        {**RIGHT, "epoch": "2"},
        {**RIGHT, "epoch": True},
        {**RIGHT, "epoch_lines": -1},
        {**RIGHT, "epoch_lines": None},
    ],
)
def test_malformed_position_is_refused(tmp_path, position):
    write(tmp_path, SCRIPT).close()
    before = tree(tmp_path)
    with raises_code("resume-log-position"):
        RunFiles(tmp_path, no_time).cut(position)
    assert tree(tmp_path) == before


def test_huge_size_is_refused_before_memory_is_allocated(tmp_path):
    write(tmp_path, SCRIPT).close()
    with raises_code("resume-log-changed", file=str(tmp_path / "train/epoch-2/Loss.log")):
        RunFiles(tmp_path, no_time).cut({**RIGHT, "files": {"train/epoch-2/Loss.log": 2**60}})


@pytest.mark.parametrize("linked", ["train", "train/epoch-2", "train/epoch-2/Loss.log"])
def test_linked_file_is_not_truncated(tmp_path, linked):
    run, place = tmp_path / "run", tmp_path / "run" / linked
    write(run, SCRIPT).close()
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    before = tree(tmp_path)
    with raises_code("run-file-kind", path=str(place)):
        RunFiles(run, no_time).cut(RIGHT, keep_in=tmp_path / "superseded")
    assert tree(tmp_path) == before


def test_link_among_later_files_is_refused(tmp_path):
    """Its content would be copied to `superseded/`."""
    run = tmp_path / "run"
    write(run, SCRIPT).close()
    (tmp_path / "secret").write_text("mine")
    (run / "train/epoch-3/More.log").symlink_to(tmp_path / "secret")
    with raises_code("run-file-kind", path=str(run / "train/epoch-3/More.log")):
        RunFiles(run, no_time).cut(RIGHT, keep_in=tmp_path / "superseded")
    assert not (tmp_path / "superseded").exists()


def test_logs_of_the_user_stay(tmp_path):
    write(tmp_path, SCRIPT).close()
    (tmp_path / "downloads/epoch-9").mkdir(parents=True)
    (tmp_path / "downloads/epoch-9/today.log").write_text("mine")
    RunFiles(tmp_path, no_time).cut(RIGHT)
    assert (tmp_path / "downloads/epoch-9/today.log").read_text() == "mine"
    assert not (tmp_path / "train/epoch-3").exists()


# -- logs of finished epochs -------------------------------------------------------------------------------------------

FIRST = "train/epoch-1/Loss.log"


def flip(path):
    content = bytearray(path.read_bytes())
    content[1] ^= 1
    path.write_bytes(content)


CHANGES = {
    "emptied": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-3]),
    "deleted": lambda path: path.unlink(),
    "flipped": flip,
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"0.5,32\n"),
}


@pytest.mark.parametrize("name", [FIRST, "valid/epoch-2/Top-5_Accuracy.log", "train/epoch-3/Loss.log"])
@pytest.mark.parametrize("how", CHANGES)
def test_changed_log_is_detected(tmp_path, name, how):
    """Every epoch up to the position is checked. `allow=("logs",)` accepts the present files, at later resumes too."""
    files = write(tmp_path, SCRIPT[:-1])  # inside the third epoch
    position = json.loads(json.dumps(files.position()))
    files.close()
    refuse_changed(tmp_path, position)
    CHANGES[how](tmp_path / name)
    if how == "longer" and "epoch-3" in name:  # lines after the checkpoint
        refuse_changed(tmp_path, position)
        return
    before = tree(tmp_path)
    with raises_code("resume-log-changed", file=str(tmp_path / name)):
        refuse_changed(tmp_path, position)
    assert tree(tmp_path) == before
    files = RunFiles(tmp_path, no_time)
    files.cut(position, lenient=True)
    refuse_changed(tmp_path, json.loads(json.dumps(files.position())))


def test_journal_without_checksums_resumes(tmp_path):
    """Version 0.1.0 wrote no checksums."""
    files = write(tmp_path, SCRIPT)
    position = {name: value for name, value in files.position().items() if name != "checksums"}
    files.close()
    journal = tmp_path / "journal.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    journal.write_text("".join(json.dumps({k: v for k, v in x.items() if k != "files"}) + "\n" for x in lines))
    flip(tmp_path / FIRST)
    refuse_changed(tmp_path, position)
    files = RunFiles(tmp_path, no_time)
    files.cut(position)
    files.journal("epoch", epoch=3, step=9, values={})
    closed = json.loads(journal.read_text().splitlines()[-1])["files"]
    content = (tmp_path / "train/epoch-3/Loss.log").read_bytes()
    assert closed["train/epoch-3/Loss.log"] == [len(content), zlib.crc32(content)]


@pytest.mark.parametrize("odd", [None, [], {"../epoch-1/a.log": [1, 1]}, {FIRST: None}, {FIRST: [10**400, True]}])
def test_malformed_checksums_are_ignored(tmp_path, odd):
    files = write(tmp_path, SCRIPT)
    files.journal("epoch", epoch=1, step=9, values={}, files=odd)
    position = files.position()
    files.close()
    refuse_changed(tmp_path, position)
