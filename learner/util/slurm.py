"""The SLURM job that this process belongs to."""

import contextlib
import os
import re
import subprocess
import time

ANSWER_SECONDS = 60.0  # a busy controller is slow


def job_end() -> float | None:
    """Return the end of the job, in seconds since 1970, or None outside a job or if the job has no time limit.

    SLURM 22.05 does not set `SLURM_JOB_END_TIME`; without it, this runs `squeue`.
    """
    end, job = os.environ.get("SLURM_JOB_END_TIME", ""), os.environ.get("SLURM_JOB_ID", "")
    if end.isdigit():
        return float(end)
    if not job.isdigit():
        return None
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID", ""), os.environ.get("SLURM_ARRAY_TASK_ID", "")
    if array.isdigit() and task.isdigit():
        job = f"{array}_{task}"  # one task of an array has the array's number, which means all of its tasks
    command = ["squeue", "--noheader", f"--jobs={job}", "--format=%L"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        answer = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=True)
        left = seconds_of(answer.stdout)
        return None if left is None else time.time() + left
    return None


def seconds_of(duration: str) -> float | None:
    """Return the seconds of a duration in SLURM's format, or None for other texts, such as `UNLIMITED`.

    >>> seconds_of("1-02:03:04"), seconds_of("2:03:04"), seconds_of("3:04"), seconds_of("UNLIMITED")
    (93784.0, 7384.0, 184.0, None)
    """
    found = re.fullmatch(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+)", duration.strip())
    if found is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
