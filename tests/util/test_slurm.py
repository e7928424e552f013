"""The end of a SLURM job, without SLURM: `squeue` is a script."""

import os
import time

import pytest

from learner.util.slurm import job_end


@pytest.fixture
def squeue(tmp_path, monkeypatch):
    """Returns a function that puts a `squeue` first on the path, which runs some lines of shell."""
    monkeypatch.delenv("SLURM_JOB_END_TIME", raising=False)
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.delenv("SLURM_ARRAY_JOB_ID", raising=False)

    def put(lines):
        script = tmp_path / "squeue"
        script.write_text(f"#!/bin/sh\n{lines}\n")
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    return put


def test_the_variable_comes_first(squeue, monkeypatch):
    squeue("echo 1:00")
    monkeypatch.setenv("SLURM_JOB_END_TIME", "1700000000")
    assert job_end() == 1_700_000_000.0


def test_squeue_is_asked_for_the_time_left_of_this_job(squeue):
    squeue('[ "$*" = "--noheader --jobs=17 --format=%L" ] && echo 1-00:00:10')
    before = time.time()
    assert before + 86_410 <= job_end() <= time.time() + 86_410


def test_squeue_is_asked_for_this_task_of_an_array(squeue, monkeypatch):
    """The task with the number of the array is not all of its tasks, of which squeue has a line each."""
    squeue('[ "$2" = --jobs=17_3 ] && echo 1:00 || printf "1:00\\n2:00\\n"')
    for name, value in (("JOB", "17"), ("TASK", "3")):
        monkeypatch.setenv(f"SLURM_ARRAY_{name}_ID", value)
    assert job_end() is not None


@pytest.mark.parametrize("lines", ["echo UNLIMITED", "echo 1:00; exit 1", ""])
def test_no_end_is_known(squeue, lines):
    squeue(lines)
    assert job_end() is None


def test_no_end_outside_of_a_job_or_without_squeue(squeue, tmp_path, monkeypatch):
    squeue("echo 1:00")
    monkeypatch.delenv("SLURM_JOB_ID")
    assert job_end() is None
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert job_end() is None
