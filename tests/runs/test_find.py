"""Runs in directories."""

import os
import shutil
from pathlib import Path

import pytest

from learner.runs import find_runs
from tests.support.codes import raises_code
from tests.support.written import write_run


def test_a_directory_of_runs(tmp_path):
    for name in ("run-10", "run-9", "group/run-1"):
        write_run(tmp_path / name)
    (tmp_path / "notes").mkdir()
    found = find_runs([tmp_path])
    assert [run.name for run in found] == ["run-1", "run-9", "run-10"]
    assert found[0].directory == tmp_path / "group" / "run-1"


def test_each_once_and_by_names_of_their_own(tmp_path):
    write_run(tmp_path / "a" / "digits")
    write_run(tmp_path / "b" / "digits")
    found = find_runs([tmp_path / "a", tmp_path, tmp_path / "b" / "digits"])
    assert [run.name for run in found] == ["a/digits", "b/digits"]


def test_what_a_run_contains_is_not_searched(tmp_path):
    write_run(tmp_path / "a")
    write_run(tmp_path / "a" / "superseded" / "1")
    assert len(find_runs([tmp_path])) == 1


def test_links_do_not_lead_in_circles(tmp_path):
    write_run(tmp_path / "a")
    (tmp_path / "loop").symlink_to(tmp_path)
    assert len(find_runs([tmp_path])) == 1


def test_no_runs(tmp_path):
    (tmp_path / "empty").mkdir()
    with raises_code("run-unreadable") as raised:
        find_runs([tmp_path / "nowhere", tmp_path / "empty"])
    assert "1. there is no directory" in str(raised.value)
    assert "2. " in str(raised.value)
    assert "is not the directory of a run, and no run lies in it" in str(raised.value)


def test_one_that_cannot_be_read(tmp_path):
    """The others are there."""
    write_run(tmp_path / "a")
    (write_run(tmp_path / "b") / "journal.jsonl").unlink()
    (tmp_path / "b" / "journal.jsonl").write_bytes(b"")
    (tmp_path / "b" / "journal.jsonl").chmod(0)
    if os.access(tmp_path / "b" / "journal.jsonl", os.R_OK):
        pytest.skip("who runs these tests may read everything")
    with pytest.warns(UserWarning, match="b cannot be read: Permission denied; it is left out"):
        assert [run.name for run in find_runs([tmp_path])] == ["a"]


def test_one_that_is_removed_meanwhile(tmp_path, monkeypatch):
    """As by `rm -r`, which takes the journal first."""
    write_run(tmp_path / "a")
    (tmp_path / "old" / "train").mkdir(parents=True)
    listed = Path.iterdir

    def remove(path):
        if path.name == "old":
            shutil.rmtree(path)
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", remove)
    assert [run.name for run in find_runs([tmp_path])] == ["a"]
