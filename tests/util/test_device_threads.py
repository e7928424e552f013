"""The end of a process whose thread still waits for a device."""

import signal
import subprocess
import sys

import pytest

from tests.support.processes import ROOT

SCRIPT = """
import os, signal, sys, threading
from learner.util.device_threads import device_thread, exit_with

left = threading.Event()
device_thread(lambda: left.wait({wait}), "left").start()
print("on standard output")
{end}
"""


def end(text, wait=600):
    """Return the exit code of a process that ends by this line, and what it has printed."""
    script = SCRIPT.format(end=text, wait=wait)
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert process.stdout == "on standard output\n"
    return process.returncode, process.stderr


def test_an_error_ends_it_at_once_with_its_code():
    code, error = end("raise KeyboardInterrupt")
    assert (code, error.splitlines()[-1]) == (-signal.SIGINT, "KeyboardInterrupt")
    code, error = end("raise ValueError('no')")
    assert (code, error.splitlines()[-1]) == (1, "ValueError: no")
    assert end("exit_with(143)") == (143, "")
    assert end("sys.stdout.close(); exit_with(143)") == (143, "")


@pytest.mark.parametrize(("text", "code"), [("sys.exit(3)", 3), ("left.set()", 0)])
def test_with_another_code_the_thread_is_waited_for(text, code):
    assert end(text, wait=0.01) == (code, "")
