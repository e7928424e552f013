"""Tests of randomly damaged files of every format: each is read, or refused by an error that names it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "support" / "damaged.py"
ARROW = ("parquet", "parquet pages", "arrow", "arrow stream", "arrow lz4", "arrow zstd")
OTHERS = (
    *("csv", "csv gzip", "csv utf-16", "json lines", "npy", "npz", "npz packed", "idx", "idx gzip", "cifar"),
    *("png", "jpeg", "tar", "sqlite", "lines", "characters"),
)


def find_problems(count, *kinds):
    """Return the problems with `count` files of each kind. After a crash, a new process continues."""
    problems, first, kinds = [], 0, list(kinds)
    while kinds:
        command = [sys.executable, "-W", "ignore", str(SCRIPT), str(count), str(first), *kinds]
        process = subprocess.run(
            command, capture_output=True, text=True, timeout=540, env={**os.environ, "JAX_PLATFORMS": "cpu"}
        )
        lines = process.stdout.splitlines()
        problems += [line for line in lines if line.startswith(("NAMELESS", "RAW"))]
        if process.returncode == 0:
            break
        read = [line.removeprefix("reading ") for line in lines if line.startswith("reading ")]
        assert read, process.stderr
        kind, number = read[-1].rsplit(" ", 1)
        problems.append(f"{kind} {number} ended the process: {signal.Signals(-process.returncode).name}")
        kinds, first = kinds[kinds.index(kind) :], int(number) + 1
    return problems


@pytest.mark.full
def test_damaged_files_are_refused_by_name():
    assert find_problems(12, *ARROW, *OTHERS) == []


@pytest.mark.full
@pytest.mark.parametrize("kind", ARROW + OTHERS)
def test_many_damaged_files_are_refused_by_name(kind):
    assert find_problems(200, kind) == []
