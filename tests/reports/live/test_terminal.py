"""Tests of the command in a pseudo-terminal."""

import re
import signal
import termios

import pytest

from tests.support.pseudoterminal import Terminal
from tests.support.written import write_run

ALTERNATE = b"\x1b[?1049h", b"\x1b[?1049l"
CURSOR = b"\x1b[?25l", b"\x1b[?25h"
BRAILLE = re.compile("[\u2801-\u28ff]")


def check_restored(terminal):
    """Check that modes that were turned on are off again, and that lines are edited and echoed as before."""
    for on, off in (ALTERNATE, CURSOR):
        assert terminal.codes.rfind(off) > terminal.codes.rfind(on) >= 0
    lines = termios.ICANON | termios.ECHO
    assert terminal.after[3] & lines == terminal.before[3] & lines == lines


@pytest.mark.full
@pytest.mark.parametrize(("columns", "rows"), [(80, 24), pytest.param(200, 50, marks=pytest.mark.full)])
def test_run_on_the_screen(runs, columns, rows):
    write_run(runs / "over", {"train/Loss": [3.0, 1.0], "valid/Loss": [3.0, 2.0]})
    terminal = Terminal(["watch", "runs/over"], columns, rows)
    terminal.wait_for("over ended", "Loss  ━━ train  ━━ valid", "optimizer step", "valid/Loss", "? Keys")
    assert len(BRAILLE.findall(terminal.wait_for_keys("q Quit n Next"))) > 30
    terminal.press("l")
    terminal.wait_for("log scale")
    terminal.press("q")
    assert terminal.end() == 0
    check_restored(terminal)


@pytest.mark.full
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (None, 130)])
def test_signals_restore_the_terminal(runs, number, code):
    terminal = Terminal(["watch", "runs"], 80, 24)
    terminal.wait_for("a running")
    terminal.press("\x03") if number is None else terminal.kill(number)
    assert terminal.end() == code
    check_restored(terminal)


@pytest.mark.full
def test_hang_up_ends_the_command(runs):
    terminal = Terminal(["watch", "runs"], 80, 24)
    terminal.wait_for("a running")
    assert terminal.hang_up() == 129


@pytest.mark.full
def test_misspelled_metric_is_refused_before_the_screen_changes(runs):
    terminal = Terminal(["watch", "runs", "--metric=Acuracy"], 200, 24)
    assert terminal.end() == 2
    assert "learner: no run has a metric 'Acuracy': did you mean 'Accuracy'" in terminal.text
    assert ALTERNATE[0] not in terminal.codes
