"""Tests of the search for runs in directories."""

import os
import shutil
from pathlib import Path

import pytest

from learner.runs import find_runs
from tests.support.codes import raises_code
from tests.support.written import write_run


def test_directory_of_runs(tmp_path):
    for name in ("run-10", "run-9", "group/run-1"):
        write_run(tmp_path / name)
    (tmp_path / "notes").mkdir()
    runs = find_runs([tmp_path])
    assert [run.name for run in runs] == ["run-1", "run-9", "run-10"]
    assert runs[0].directory == tmp_path / "group" / "run-1"


def test_a_single_directory_needs_no_list(tmp_path):
    write_run(tmp_path / "a")
    assert [run.name for run in find_runs(str(tmp_path))] == [run.name for run in find_runs(tmp_path)] == ["a"]


def test_each_run_is_listed_once_with_a_distinct_name(tmp_path):
    write_run(tmp_path / "a" / "digits")
    write_run(tmp_path / "b" / "digits")
    runs = find_runs([tmp_path / "a", tmp_path, tmp_path / "b" / "digits"])
    assert [run.name for run in runs] == ["a/digits", "b/digits"]


def test_directories_inside_a_run_are_not_searched(tmp_path):
    write_run(tmp_path / "a")
    write_run(tmp_path / "a" / "superseded" / "1")
    assert len(find_runs([tmp_path])) == 1


def test_circular_links_end(tmp_path):
    write_run(tmp_path / "a")
    (tmp_path / "loop").symlink_to(tmp_path)
    assert len(find_runs([tmp_path])) == 1


def test_directories_without_runs_are_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    with raises_code("run-unreadable") as raised:
        find_runs([tmp_path / "nowhere", tmp_path / "empty"])
    assert "1. there is no directory" in str(raised.value)
    assert "2. " in str(raised.value)
    assert "is not the directory of a run, and no run lies in it" in str(raised.value)


def test_no_place_is_refused():
    for places in (None, [], iter(())):
        with raises_code("run-unreadable", "there is no directory of a run among the arguments"):
            find_runs(places)


def test_unreadable_run_is_skipped_with_a_warning(tmp_path):
    write_run(tmp_path / "a")
    (write_run(tmp_path / "b") / "journal.jsonl").unlink()
    (tmp_path / "b" / "journal.jsonl").write_bytes(b"")
    (tmp_path / "b" / "journal.jsonl").chmod(0)
    if os.access(tmp_path / "b" / "journal.jsonl", os.R_OK):
        pytest.skip("this user may read every file")
    with pytest.warns(UserWarning, match="b cannot be read: Permission denied; it is left out"):
        assert [run.name for run in find_runs([tmp_path])] == ["a"]


def test_run_removed_during_the_search_is_skipped(tmp_path, monkeypatch):
    """`rm -r` removes the journal before the directories."""
    write_run(tmp_path / "a")
    (tmp_path / "old" / "train").mkdir(parents=True)
    listed = Path.iterdir

    def remove(path):
        if path.name == "old":
            shutil.rmtree(path)
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", remove)
    assert [run.name for run in find_runs([tmp_path])] == ["a"]
