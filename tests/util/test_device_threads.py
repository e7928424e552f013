"""Tests of how a process ends while a thread still waits for a device."""

import signal
import subprocess
import sys

import pytest

from tests.support.processes import ROOT

SCRIPT = """
import os, signal, sys, threading
from learner.util.device_threads import device_thread, exit_with, keep_exit_code

left = threading.Event()
device_thread(lambda: left.wait({wait}), "left").start()
print("on standard output")
{end}
"""


def run_and_end(text, wait=600):
    """Run a process that ends with this statement; return its exit code and standard error."""
    script = SCRIPT.format(end=text, wait=wait)
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert process.stdout == "on standard output\n"
    return process.returncode, process.stderr


@pytest.mark.full
def test_error_ends_the_process_at_once_with_its_code():
    code, error = run_and_end("raise KeyboardInterrupt")
    assert (code, error.splitlines()[-1]) == (-signal.SIGINT, "KeyboardInterrupt")
    code, error = run_and_end("raise ValueError('no')")
    assert (code, error.splitlines()[-1]) == (1, "ValueError: no")
    assert run_and_end("exit_with(143)") == (143, "")
    assert run_and_end("sys.stdout.close(); exit_with(143)") == (143, "")
    for code, expected in (("3", 3), ("None", 0), ("'text'", 1)):
        end = f"keep_exit_code(SystemExit({code})); sys.exit({code})"
        assert run_and_end(end)[0] == expected


@pytest.mark.full
@pytest.mark.parametrize(("text", "code"), [("sys.exit(3)", 3), ("left.set()", 0)])
def test_other_exits_wait_for_the_thread(text, code):
    assert run_and_end(text, wait=0.01) == (code, "")
