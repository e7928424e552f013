"""Tests of the benchmark of one save."""

import subprocess
import sys

import pytest


@pytest.mark.full
def test_each_way_has_its_row():
    command = [sys.executable, "-m", "benchmarks.saves", "--rounds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = {line[:12].strip(): line[12:].split() for line in done.stdout.splitlines()[1:]}
    assert list(rows) == ["learner", "Orbax alone", "raw bytes"]
    assert rows["raw bytes"][2:] == ["0", "1", "1"]  # threads, calls of fsync, files
    assert all(float(value) >= 0 for row in rows.values() for value in row)
