"""The bar and the table on a terminal."""

import contextlib
import io
import os
import pty
import re
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from rich.console import Console
from screens import HIDE, SHOW, Screen

from learner.events import EpochEnded, Message, RunFailed, RunStarted
from learner.renderers import RichRenderer


@pytest.fixture
def out():
    return io.StringIO()


@pytest.fixture
def make(out, clock):
    """Makes renderers on a terminal of some width; closes them."""
    with contextlib.ExitStack() as stack:

        def with_width(width=80, **console):
            renderer = RichRenderer(Console(file=out, force_terminal=True, width=width, **console), clock)
            stack.callback(renderer.close)
            return renderer

        yield with_width


def test_a_run_leaves_a_table_and_no_bar(make, out, play, summary):
    play.run(make(), show_summary=True, summary=summary)
    assert Screen(out.getvalue()).lines() == [
        "runs/a: 3 epochs of 45 steps, 10,378 parameters",
        "           train              valid",
        "epoch       Loss  Accuracy     Loss  Accuracy     time",
        "1            0.5      0.75    0.625     0.875    1.5 s",
        "2           0.25      0.75    0.625     0.875    1.5 s",
        "3         0.1667      0.75    0.625     0.875    1.5 s",
        "ended at epoch 3, step 135, 4.6 s: num_epochs",
        "metric                  best  epoch     last",
        "train/Loss              0.25      1      nan",
        "train/Confusion            -      -  2 0 0 2",
        "valid/Speed (steps/s)  16824      2    16824",
        "directory: runs/a",
        "checkpoints: checkpoint/45 (epoch 1, best)",
        "files: checkpoint, train, valid, summary.json",
        "",
    ]


def bar_of(out):
    return Screen(out.getvalue()).lines()[-1]


def test_the_bar_of_an_epoch(make, out, play):
    renderer = make(width=100)
    play.start(renderer)
    assert re.fullmatch(r"epoch 1/3 +[━╸╺ ]+ +starting", bar_of(out))
    play.dispatch(renderer, 1, 15, 15, seconds=60)
    play.dispatch(renderer, 1, 30, 15, seconds=3, loss=0.25)
    assert re.fullmatch(r"epoch 1/3  [━╸╺]+  step 30/45  21\.0 s left  train Loss 0\.25  5 steps/s", bar_of(out))
    play.dispatch(renderer, 1, 4, 4, 6, "valid")
    assert re.fullmatch(r"epoch 1/3  [━╸╺]+  valid 4/6  24\.5 s left  train Loss 0\.25  5 steps/s", bar_of(out))


@pytest.mark.parametrize(
    ("run", "bar"),
    [
        ({"num_epochs": 2, "steps_per_epoch": None}, r"epoch 1/2  ━+  step 30  train Loss 0\.5  30 steps/s"),
        ({"num_epochs": None, "steps_per_epoch": None}, r"epoch 1  ━+  step 30  train Loss 0\.5  30 steps/s"),
        (
            {"num_epochs": None, "num_steps": 60, "steps_per_epoch": None},
            r"epoch 1  [━╸╺]+  step 30/60  1\.0 s left  train Loss 0\.5  30 steps/s",
        ),
    ],
)
def test_runs_of_unknown_length(make, out, play, run, bar):
    renderer = make(width=100)
    play.start(renderer, **run)
    play.dispatch(renderer, 1, 15, 15, total=None)
    play.dispatch(renderer, 1, 30, 15, total=None)
    assert re.fullmatch(bar, bar_of(out))


@pytest.mark.parametrize("width", [10, 20, 30, 40, 60])
def test_narrow_terminals(make, out, play, width):
    play.run(make(width=width))
    text = out.getvalue()
    while_it_ran = Screen(text[: text.index("ended at")]).lines()
    rows = [line for line in while_it_ran if line.startswith(("1 ", "2 ", "3 "))]
    assert [row.split()[1] for row in rows] == ["0.5", "0.25", "0.1667"]
    bars = re.findall(r"epoch ?\S*  [^\n]*?━[^\n\r]*", re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text))
    assert all(len(bar.rstrip()) <= width for bar in bars)
    assert bool(bars) == (width >= 20)


def test_no_color(make, out, play, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    renderer = make()
    renderer.on_event(Message(0.0, 30, "look"))
    play.run(renderer)
    colours = [code for code in re.findall(r"\x1b\[([0-9;]*)m", out.getvalue()) if code not in ("", "0", "1")]
    assert colours == []
    assert Screen(out.getvalue()).lines()[4].split() == ["1", "0.5", "0.75", "0.625", "0.875", "1.5", "s"]


def test_what_is_printed_meanwhile_stands_above_the_bar(make, out, play):
    renderer = make(width=100)
    play.start(renderer)
    play.dispatch(renderer, 1, 15, 15)
    print("from a user's hook")
    print("and to stderr", file=sys.stderr)
    renderer.on_event(Message(0.0, 30, "slow [red]loader[/red]\nsecond line"))
    *above, bar = Screen(out.getvalue()).lines()
    assert above[3:] == ["from a user's hook", "and to stderr", "warning: slow [red]loader[/red]", "second line"]
    assert bar.startswith("epoch 1/3")
    before = sys.stdout, sys.stderr
    renderer.close()
    assert before != (sys.stdout, sys.stderr)


def test_validations_inside_an_epoch_and_texts_have_their_lines(make, out, play):
    renderer = make()
    play.start(renderer)
    play.validate(renderer, 1, 30, Loss=0.75, Confusion="1 0\n0 1")
    renderer.close()
    assert Screen(out.getvalue()).lines()[3:] == [
        "@30                            0.75              0.2 s",
        "  valid Confusion:",
        "    1 0",
        "    0 1",
        "",
    ]


def test_it_draws_at_most_four_times_a_second(make, out, play, clock):
    renderer = make()
    play.start(renderer, num_epochs=None, num_steps=10_000)
    began, drawn = clock.now, 0
    for done in range(1, 1001):
        size = out.tell()
        play.dispatch(renderer, 1, done, 1, seconds=0.01)
        drawn += out.tell() > size
    assert 0.8 * 4 * (clock.now - began) <= drawn <= 4 * (clock.now - began)


def test_many_short_epochs_are_all_there_and_cost_few_drawings(make, out, play, clock):
    renderer = make()
    play.start(renderer, num_epochs=1000)
    began, drawn = clock.now, 0
    for epoch in range(1, 1001):
        size = out.tell()
        play.epoch(renderer, epoch, seconds=0.003, count=45)
        drawn += out.tell() > size
    assert drawn <= 8 * (clock.now - began) + 1
    play.end(renderer, 1000, 45_000)
    lines = Screen(out.getvalue()).lines()
    assert [line.split()[0] for line in lines[3:-2]] == [str(epoch) for epoch in range(1, 1001)]


def test_a_slow_epoch_is_told_when_it_ends(make, out, play):
    renderer = make()
    play.start(renderer)
    play.epoch(renderer, 1, seconds=10)
    assert Screen(out.getvalue()).lines()[3].startswith("1            0.5")


def ends(play, renderer):
    play.end(renderer)


def fails(play, renderer):
    renderer.on_event(RunFailed(0.0, 1, 30, "ValueError: no loss"))


def is_closed(play, renderer):
    renderer.close()


def cannot_show_something(play, renderer):
    with pytest.raises(TypeError):
        renderer.on_event(EpochEnded(0.0, 1, 45, {"train/Loss": None}, 1.0))


@pytest.mark.parametrize("how", [ends, fails, is_closed, cannot_show_something])
def test_however_it_ends_the_terminal_is_as_before(make, out, play, how):
    streams = sys.stdout, sys.stderr
    renderer = make()
    play.start(renderer)
    play.dispatch(renderer, 1, 15, 15)
    play.dispatch(renderer, 1, 30, 15)
    how(play, renderer)
    text = out.getvalue()
    assert text.rindex(SHOW) > text.rindex(HIDE)
    assert "━" not in "".join(Screen(text).lines())
    assert Screen(text).column == 0
    assert (sys.stdout, sys.stderr) == streams
    size = out.tell()
    renderer.close()
    assert out.tell() == size
    if how is fails:
        assert Screen(text).lines()[-2] == "failed at epoch 1, step 30: ValueError: no loss"


def test_the_cursor_is_never_left_hidden(make, out, play):
    """Nobody brings it back after `kill -9`."""
    renderer = make()
    play.start(renderer)
    play.dispatch(renderer, 1, 15, 15)
    assert out.getvalue().rindex(SHOW) > out.getvalue().rindex(HIDE)


def test_a_run_that_starts_again_starts_clean(make, out, play):
    renderer = make()
    play.run(renderer, epochs=1)
    play.run(renderer, epochs=1)
    lines = Screen(out.getvalue()).lines()
    assert lines[:5] == lines[5:10]


def test_without_a_terminal_there_is_no_bar(play, clock):
    out = io.StringIO()
    play.run(RichRenderer(Console(file=out, width=80), clock))
    assert "\x1b" not in out.getvalue()
    assert "\r" not in out.getvalue()
    assert len(out.getvalue().splitlines()) == 1 + 2 + 3 + 1


PROGRAM = """
from pathlib import Path
import numpy as np
from learner.events import MetricInfo, RunStarted, StepsEnded
from learner.renderers import default_renderer
renderer = default_renderer()
assert type(renderer).__name__ == "RichRenderer"
loss = np.float32([0.5])
renderer.on_event(RunStarted(0.0, Path("runs/a"), 3, None, 45, (MetricInfo("train", "Loss"),), 10))
renderer._drawn_at -= 1
renderer.on_event(StepsEnded(0.0, "train", 1, 1, 1, 1, 45, 1, {"Loss": loss}, loss, 0.1))
raise RuntimeError("nobody closed the renderer")
"""


def test_an_exception_in_a_real_terminal():
    parent, child = pty.openpty()
    try:
        before = termios.tcgetattr(parent)
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}
        environment.pop("NO_COLOR", None)
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], stdin=child, stdout=child, stderr=child, env=environment
        )
        os.close(child)
        text = ""
        with contextlib.suppress(OSError):  # how Linux says that nobody has the other end any more
            while part := os.read(parent, 65536):
                text += part.decode()
        assert process.wait(timeout=60) == 1
        assert termios.tcgetattr(parent) == before
    finally:
        os.close(parent)
    assert text.count("━") > 10
    assert text.rindex(SHOW) > text.rindex(HIDE)
    lines = Screen(text).lines()
    assert "RuntimeError: nobody closed the renderer" in lines
    assert "━" not in "".join(lines)
    assert lines[-1] == ""


def test_titles_come_before_the_first_epoch(make, out):
    make().on_event(RunStarted(0.0, Path("runs/a"), 1, None, 45, (), 1))
    assert Screen(out.getvalue()).lines()[0] == "runs/a: 1 epoch of 45 steps, 1 parameter"
