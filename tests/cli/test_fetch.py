"""Tests of `learner fetch`."""

from pathlib import Path

import pytest

from learner.runs.remote import RemoteRun


@pytest.mark.full
def test_run_is_copied_to_a_directory(learner, trained):
    RemoteRun("copies/first").upload(Path("run"))
    code, out, err = learner("fetch", "copies/first")
    assert (code, out.splitlines()[0], err) == (0, "runs/first", "")
    assert learner("summary", "runs/first")[0] == 0
    assert learner("fetch", "copies/first", "mine")[:2] == (0, out.replace("runs/first", "mine"))
    assert learner("fetch", "copies/first", "mine")[0] == 2


@pytest.mark.parametrize("words", [["copies/none"], ["nowhere://bucket/run"], []])
def test_invalid_arguments_are_refused(learner, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    code, _, err = learner("fetch", *words)
    assert (code, bool(err), list(tmp_path.iterdir())) == (2, True, [])
