"""Tests of the end time of a SLURM job. A script replaces `squeue`."""

import os
import time

import pytest

from learner.util.slurm import job_end


@pytest.fixture
def squeue(tmp_path, monkeypatch):
    """Return a function that puts a `squeue` with these lines of shell first on the path."""
    monkeypatch.delenv("SLURM_JOB_END_TIME", raising=False)
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.delenv("SLURM_ARRAY_JOB_ID", raising=False)

    def put(lines):
        script = tmp_path / "squeue"
        script.write_text(f"#!/bin/sh\n{lines}\n")
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    return put


def test_environment_variable_takes_precedence(squeue, monkeypatch):
    squeue("echo 1:00")
    monkeypatch.setenv("SLURM_JOB_END_TIME", "1700000000")
    assert job_end() == 1_700_000_000.0


def test_squeue_returns_the_remaining_time_of_the_job(squeue):
    squeue('[ "$*" = "--noheader --jobs=17 --format=%L" ] && echo 1-00:00:10')
    before = time.time()
    assert before + 86_410 <= job_end() <= time.time() + 86_410


def test_squeue_returns_the_remaining_time_of_the_array_task(squeue, monkeypatch):
    """The number of the array would select all tasks, and squeue would print a line for each."""
    squeue('[ "$2" = --jobs=17_3 ] && echo 1:00 || printf "1:00\\n2:00\\n"')
    for name, value in (("JOB", "17"), ("TASK", "3")):
        monkeypatch.setenv(f"SLURM_ARRAY_{name}_ID", value)
    assert job_end() is not None


@pytest.mark.parametrize("lines", ["echo UNLIMITED", "echo 1:00; exit 1", ""])
def test_unknown_end_is_none(squeue, lines):
    squeue(lines)
    assert job_end() is None


def test_end_is_none_outside_of_a_job_or_without_squeue(squeue, tmp_path, monkeypatch):
    squeue("echo 1:00")
    monkeypatch.delenv("SLURM_JOB_ID")
    assert job_end() is None
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert job_end() is None
