"""Tests of `--watch` of `learner fit` and `learner resume`."""

import os
import signal
import subprocess
import sys
import tempfile
import threading

import pytest

from learner.cli.beside import _follow, _interrupt, _passing_on
from tests.support.pseudoterminal import Terminal


def test_all_output_of_the_run_is_printed(capsys):
    code = "import sys, time\nfor n in range(3):\n print('line', n, flush=True)\n time.sleep(0.1)\nsys.exit(3)"
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen([sys.executable, "-c", code], stdout=output)
        assert _follow(process, output) == 3
    assert capsys.readouterr().out.splitlines() == ["line 0", "line 1", "line 2"]


def test_character_written_in_two_parts(capsys):
    code = "import os, time\nos.write(1, b'caf\\xc3')\ntime.sleep(0.5)\nos.write(1, b'\\xa9')"
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen([sys.executable, "-c", code], stdout=output)
        assert _follow(process, output) == 0
    assert capsys.readouterr().out == "caf\u00e9"


@pytest.mark.parametrize("handler", [signal.default_int_handler, signal.SIG_IGN])
def test_a_run_that_inherits_an_ignored_interrupt_is_stopped(handler):
    before = signal.signal(signal.SIGINT, handler)
    try:
        process = subprocess.Popen([sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"], stdout=-1)
        process.stdout.readline()
        _interrupt(process)
        with process:
            assert process.wait(60) == -(signal.SIGTERM if handler is signal.SIG_IGN else signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_after_the_view_end_the_run(number):
    code = "import signal, sys, time\nsignal.signal(15, lambda *_: sys.exit(7))\nprint('ready', flush=True)\n"
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen([sys.executable, "-c", f"{code}time.sleep(60)"], stdout=output)
        with _passing_on(process):
            threading.Timer(1.0, os.kill, [os.getpid(), number]).start()
            assert _follow(process, output) == 7


@pytest.mark.full
def test_watch_needs_a_terminal_unless_it_is_false(learner, config):
    code, _, err = learner("fit", config, "--watch")
    assert code == 2
    assert "learner watch needs a terminal" in err
    assert learner("fit", config, "--watch=false")[0] == 0


@pytest.mark.full
@pytest.mark.parametrize("directory", ["run", "~/runs/run"])
def test_view_of_a_run(workplace, config, directory):
    terminal = Terminal(["fit", config, "--watch", f"--directory={directory}"], 120, 40, HOME=str(workplace))
    terminal.wait_for("run ended", "num_epochs")
    terminal.press("q")
    assert terminal.end() == 0
    assert "ended at epoch 2" in terminal.text


@pytest.mark.full
def test_failing_run_closes_the_view(workplace, config):
    terminal = Terminal(["fit", config, "--watch", "--num_epochs=x"], 120, 40)
    assert terminal.end() == 2
    assert "num_epochs is 'x': it needs a whole number" in terminal.text
