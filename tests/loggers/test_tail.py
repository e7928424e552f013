"""Tests of truncating append-only files when a run resumes."""

import itertools
import os
from pathlib import Path

import pytest

from learner.events import RunStarted
from learner.loggers import tail
from learner.loggers.tail import cut_tail, kept_lines, prepare_file
from tests.support.codes import raises_code


def number(line):
    return int(line)


def test_surplus_lines_are_removed_for_any_block_size(tmp_path, monkeypatch):
    path = tmp_path / "numbers"
    for block, torn in itertools.product((1, 2, 3, 7, 64), (b"", b"99", b"9999999999")):
        monkeypatch.setattr(tail, "BLOCK", block)
        path.write_bytes(b"1\n20\n3\n400\n5\n60\n" + torn)
        looked_at = []

        def verdict(line, looked_at=looked_at):
            looked_at.append(number(line))
            return None if number(line) < 4 else number(line) in (5, 60)

        cut_tail(path, verdict)
        assert path.read_bytes() == b"1\n20\n3\n5\n60\n", (block, torn)
        assert looked_at == [60, 5, 400, 3], (block, torn)


def test_file_without_surplus_lines_is_not_written(tmp_path):
    path = tmp_path / "numbers"
    path.write_bytes(b"1\n2\n")
    os.chmod(path, 0o644)
    before = path.stat().st_mtime_ns
    cut_tail(path, lambda line: True)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == (b"1\n2\n", before)


@pytest.mark.parametrize("content", [b"", b"torn"])
def test_files_without_a_line(tmp_path, content):
    path = tmp_path / "numbers"
    path.write_bytes(content)
    cut_tail(path, lambda line: pytest.fail("there is no line"))
    assert path.read_bytes() == b""


def test_only_the_end_of_a_large_file_is_read(tmp_path):
    path = tmp_path / "numbers"
    path.write_text("".join(f"{i:09}\n" for i in range(300_000)))  # 3 MB
    lines = []
    cut_tail(path, lambda line: lines.append(line) or (False if number(line) > 299_997 else None))
    assert len(lines) == 3
    assert path.read_text().endswith("000299996\n000299997\n")
    assert path.stat().st_size == 10 * 299_998


def test_links_are_not_written_through(tmp_path):
    (tmp_path / "mine").write_text("1\n")
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    with raises_code("run-file-kind"):
        prepare_file(tmp_path / "link", started(4), lambda line: False)
    assert (tmp_path / "mine").read_text() == "1\n"


def started(step, resumed=True, history=()):
    return RunStarted(0.0, Path("runs/a"), 1, None, 3, (), 10, step=step, resumed=resumed, history=dict(history))


def test_new_run_removes_the_file(tmp_path):
    path = tmp_path / "deep" / "numbers"
    prepare_file(path, started(0, resumed=False), lambda line: True)
    assert path.parent.is_dir()
    path.write_text("1\n")
    prepare_file(path, started(0, resumed=False), lambda line: True)
    assert not path.exists()


def test_lines_to_keep_when_resuming():
    """The run resumes at step 8. Its training split ended before the checkpoint, its validation after it."""
    keep = kept_lines(started(8, history={"train/Loss": [(1, 6, 0.5), (2, 8, 0.4)], "valid/Loss": [(1, 6, 0.3)]}))
    assert keep("step", "train", 2, 9, ["Loss"]) is False
    assert keep("step", "train", 2, 8, ["Loss"]) is True
    assert keep("step", "train", 2, 7, ["Loss"]) is None
    assert keep("split", "train", 2, 8, ["Loss"]) is True
    assert keep("split", "train", 1, 8, ["Loss"]) is False
    assert keep("split", "valid", 2, 8, ["Loss"]) is False
    assert keep("split", "custom", 2, 8, ["norm"]) is False
    assert keep("split", "valid", 1, 6, ["Loss"]) is None
