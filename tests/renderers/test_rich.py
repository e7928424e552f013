"""Tests of the bar and the table on a terminal."""

import contextlib
import io
import os
import pty
import re
import shlex
import subprocess
import sys
import termios
import threading
from pathlib import Path
from types import SimpleNamespace

import pyte
import pytest
from rich.console import Console
from rich.progress_bar import ProgressBar

from learner.events import EpochEnded, ListenerThread, Message, MetricInfo, RunEnded, RunFailed, RunStarted
from learner.renderers import RichRenderer
from learner.renderers.rich import render_summary
from tests.support.screens import HIDE, SHOW, Screen

SUMMARY = {"stopped_by": "num_epochs", "epochs": 1, "steps": 1, "metrics": {}, "checkpoints": []}


@pytest.fixture
def out():
    return io.StringIO()


@pytest.fixture
def make(out, clock):
    """Return a function that makes renderers on a terminal of some width, which are closed after the test."""
    with contextlib.ExitStack() as stack:

        def with_width(width=80, **console):
            renderer = RichRenderer(Console(file=out, force_terminal=True, width=width, **console), clock)
            stack.callback(renderer.close)
            return renderer

        yield with_width


def test_ended_run_leaves_a_table_and_no_bar(make, out, play, summary, summary_text):
    play.run(make(), show_summary=True, summary=summary)
    assert Screen(out.getvalue()).lines() == [
        "runs/a: 3 epochs of 45 steps, 10,378 parameters",
        "           valid              train",
        "epoch       Loss  Accuracy     Loss  Accuracy     time",
        "1          0.625     0.875      0.5      0.75    1.5 s",
        "2          0.625     0.875     0.25      0.75    1.5 s",
        "3          0.625     0.875   0.1667      0.75    1.5 s",
        "ended at epoch 3, step 135, 4.6 s: num_epochs",
        *summary_text,
        "",
    ]


def bar_of(out):
    """Return the last line of the screen."""
    return Screen(out.getvalue()).lines()[-1]


def test_bar_of_an_epoch(make, out, play):
    renderer = make(width=100)
    play.start(renderer)
    assert re.fullmatch(r"epoch 1/3 +[━╸╺ ]+ +compiling", bar_of(out))
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
def test_narrow_terminals_shorten_the_bar(make, out, play, width):
    play.run(make(width=width))
    text = out.getvalue()
    during_the_run = Screen(text[: text.index("ended at")]).lines()
    rows = [line for line in during_the_run if line.startswith(("1 ", "2 ", "3 "))]
    assert [row.split()[1] for row in rows] == ["0.625"] * 3
    bars = re.findall(r"epoch ?\S*  [^\n]*?━[^\n\r]*", re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text))
    assert all(len(bar.rstrip()) <= width for bar in bars)
    assert bool(bars) == (width >= 20)


def test_no_color_disables_colors(make, out, play, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    renderer = make()
    renderer.on_event(Message(0.0, 30, "look"))
    play.run(renderer)
    colours = [code for code in re.findall(r"\x1b\[([0-9;]*)m", out.getvalue()) if code not in ("", "0", "1")]
    assert colours == []
    assert Screen(out.getvalue()).lines()[4].split() == ["1", "0.625", "0.875", "0.5", "0.75", "1.5", "s"]


def test_printed_lines_appear_above_the_bar(make, out, play, monkeypatch):
    """A line without an end waits for it. A stream that is a file receives only what is written to it."""
    printed, errors = io.StringIO(), io.StringIO()
    monkeypatch.setattr(printed, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdout", printed)
    monkeypatch.setattr(sys, "stderr", errors)
    renderer = make(width=100)
    play.start(renderer)
    play.dispatch(renderer, 1, 15, 15)
    print("from a user's [b]hook[/b]: " + "long " * 40)
    print("a line in ", end="", flush=True)
    print("to stderr, a file", file=sys.stderr)
    renderer.on_event(Message(0.0, 30, "slow [red]loader[/red]\nsecond line"))
    print("two parts\r\nand no end", end="")
    shown = Screen(out.getvalue()).lines()
    assert shown[3:7] == [
        "from a user's [b]hook[/b]: " + ("long " * 40).rstrip(),
        "warning: slow [red]loader[/red]",
        "second line",
        "a line in two parts",
    ]
    assert shown[-1].startswith("epoch 1/3")
    renderer.close()
    assert Screen(out.getvalue()).lines()[6:] == ["a line in two parts", "and no end", ""]
    assert (sys.stdout, sys.stderr, printed.getvalue()) == (printed, errors, "")
    assert errors.getvalue() == "to stderr, a file\n"


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_console_that_follows_a_stream_keeps_the_stream_of_the_start(play, clock, monkeypatch, name):
    """After the run, it follows the stream again."""
    out, later = io.StringIO(), io.StringIO()
    monkeypatch.setattr(out, "isatty", lambda: True)
    monkeypatch.setattr(sys, name, out)
    monkeypatch.setenv("TERM", "xterm")
    console = Console(stderr=name == "stderr", width=80)
    renderer = RichRenderer(console, clock)
    play.start(renderer)
    play.dispatch(renderer, 1, 15, 15)
    print("printed", file=getattr(sys, name))
    shown = Screen(out.getvalue()).lines()
    assert shown[3] == "printed"
    assert "step 15/45" in shown[-1]
    play.end(renderer)
    assert getattr(sys, name) is out
    monkeypatch.setattr(sys, name, later)
    console.print("afterwards")
    assert later.getvalue() == "afterwards\n"


def print_to(out, monkeypatch):
    """Replace standard output by the terminal on which the renderer draws."""
    monkeypatch.setattr(out, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdout", out)


def test_prompt_is_visible_until_the_line_ends_or_the_next_drawing(make, out, play, monkeypatch):
    print_to(out, monkeypatch)
    renderer = make()
    play.start(renderer)
    play.dispatch(renderer, 1, 15, 15)
    bar = bar_of(out)
    print("Conti\x1b[31mnue? ", end="", flush=True)
    shown = Screen(out.getvalue())
    assert shown.lines()[3:] == ["Continue?"]
    assert shown.column == len("Continue? ")
    print("yes")
    lines = Screen(out.getvalue()).lines()
    assert (lines[3], lines[-1]) == ("Continue? yes", bar)
    print(20 * "long " + "end", end="", flush=True)
    assert Screen(out.getvalue()).lines()[4:] == [(20 * "long " + "end")[-79:]]
    play.dispatch(renderer, 1, 30, 15)
    lines = Screen(out.getvalue()).lines()
    assert "step 30/45" in lines[-1]
    assert "long" not in "".join(lines)
    renderer.close()
    assert Screen(out.getvalue()).lines()[3:] == ["Continue? yes", 20 * "long " + "end", ""]


def test_nothing_is_drawn_over_a_prompt(make, out, play, clock, monkeypatch):
    print_to(out, monkeypatch)
    monkeypatch.setattr(out, "fileno", lambda: 1)
    renderer = make()
    play.start(renderer)
    play.dispatch(renderer, 1, 15, 15)
    print("Half of a ", end="")
    sys.stdout.fileno()  # like input(), for whose end no thread can wait
    out.write("prompt? ")
    asked = out.getvalue()
    assert Screen(asked).lines()[3:] == ["Half of a prompt?"]
    play.epoch(renderer, 1)
    assert out.getvalue() == asked
    out.write("yes\n")
    clock.now += 2
    play.dispatch(renderer, 2, 30, 15)
    lines = Screen(out.getvalue()).lines()
    assert [line[:12] for line in lines[3:5]] == ["Half of a pr", "1          0"]
    assert "step 30/45" in lines[-1]
    assert out.getvalue().rindex(SHOW) > out.getvalue().rindex(HIDE)
    renderer.close()
    assert Screen(out.getvalue()).lines()[5:] == [""]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows does not fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning", "ignore:.*fork.*:RuntimeWarning")
def test_forked_process_leaves_the_screen_of_its_parent(play, clock, tmp_path):
    with open(tmp_path / "out", "w+") as out:
        renderer = RichRenderer(Console(file=out, force_terminal=True, width=80), clock)
        play.start(renderer)
        play.dispatch(renderer, 1, 15, 15)
        out.flush()
        before = (tmp_path / "out").read_text()
        child = os.fork()
        if child == 0:
            try:
                renderer.close()
                out.flush()
            finally:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert (tmp_path / "out").read_text() == before
        renderer.close()
    assert "━" in before
    assert "━" not in "".join(Screen((tmp_path / "out").read_text()).lines())


def test_bar_is_drawn_after_a_run_that_ended_with_redirected_output(play, clock, monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(out, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setenv("TERM", "xterm")
    renderer = RichRenderer(clock=clock)
    play.start(renderer)
    with contextlib.redirect_stdout(io.StringIO()):
        renderer.close()
    play.start(renderer)
    play.dispatch(renderer, 1, 15, 15)
    print("printed")
    lines = Screen(out.getvalue()).lines()
    assert "printed" in lines
    assert "step 15/45" in lines[-1]
    renderer.close()


def test_hanging_renderer_does_not_block_printing(make, out, play, monkeypatch):
    print_to(out, monkeypatch)
    renderer, warnings = make(), []
    play.start(renderer)
    print("no end", end="")
    kept = sys.stdout
    began = threading.Event()
    monkeypatch.setattr(renderer, "_on_steps", lambda: (began.set(), renderer._draw()))
    outlet = ListenerThread(renderer, warnings.append)
    with renderer._area._lock:
        play.dispatch(SimpleNamespace(on_event=outlet.put), 1, 15, 15)
        assert began.wait(60)
        drawn = out.tell()
        outlet.close(seconds=0)
        print("printed")
        kept.write("by one who kept it\n")
        renderer.close()
        assert out.getvalue()[drawn:] == "no end\nprinted\nby one who kept it\n"
    assert sys.stdout is out
    assert warnings == ["RichRenderer hangs and was left behind"]
    outlet._thread.join()


def test_redirected_output_has_no_bar(play, clock, monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(out, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setenv("TERM", "xterm")
    renderer = RichRenderer(clock=clock)
    play.start(renderer)
    with contextlib.redirect_stdout(io.StringIO()) as own:
        print("mine")
        play.epoch(renderer, 1)
    renderer.close()
    assert own.getvalue() == "mine\n"
    assert "━" in out.getvalue()
    assert sys.stdout is out


def test_two_runs_at_once_share_one_bar(play, clock, monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(out, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setenv("TERM", "xterm")
    first, second = RichRenderer(clock=clock), RichRenderer(clock=clock)
    play.start(first)
    play.start(second)
    for epoch in (1, 2):
        play.epoch(second, epoch)
        play.epoch(first, epoch)
    lines = Screen(out.getvalue()).lines()
    assert [line.split()[0] for line in lines[6:10]] == ["1", "1", "2", "2"]
    assert sum("━" in line for line in lines) == 1
    play.end(first)
    play.end(second)
    assert sys.stdout is out
    assert [line[:5] for line in Screen(out.getvalue()).lines()[10:]] == ["ended", "ended", ""]


def test_metrics_have_lines_above_the_bar(make, out, play):
    renderer = make(width=60, height=24)
    play.start(renderer)
    for epoch in (1, 2, 3):
        play.epoch(renderer, epoch)
    play.dispatch(renderer, 4, 15, 15, loss=0.0625)
    assert Screen(out.getvalue()).lines()[-6:-1] == [
        "metric             now    best  epoch  trend",
        "valid/Loss       0.625   0.625      1  ▅▅▅",
        "valid/Accuracy   0.875   0.875      1  ▅▅▅",
        "train/Loss      0.0625  0.1667      3  █▃▁",
        "train/Accuracy    0.75    0.75      1  ▅▅▅",
    ]


def test_selected_metrics_and_omitted_columns(out, clock, play):
    """The number of omitted columns is above the titles of the table, too."""
    for metrics, width, titles in [
        (("Accuracy",), 80, ["            valid     train", "epoch    Accuracy  Accuracy     time"]),
        ("valid/Loss", 80, ["           valid", "epoch       Loss     time"]),
        ((), 40, ["and 2 more", "           valid    train", "epoch       Loss     Loss     time"]),
    ]:
        console = Console(file=out, force_terminal=True, width=width)
        renderer = RichRenderer(console, clock, metrics)
        out.truncate(out.seek(0))
        play.start(renderer)
        play.epoch(renderer, 1)
        renderer.close()
        shown = Screen(out.getvalue()).lines()
        at = shown.index(titles[0])
        assert shown[at : at + len(titles)] == titles


def test_none_selects_the_metrics_that_fit(make, out, clock, play):
    shown = []
    for renderer in (make(), RichRenderer(Console(file=out, force_terminal=True, width=80), clock, metrics=None)):
        out.truncate(out.seek(0))
        play.run(renderer)
        renderer.close()
        shown.append(Screen(out.getvalue()).lines())
    assert shown[0] == shown[1]


def test_messages_wrap_between_words_and_texts_do_not_wrap(make, out, play):
    renderer = make(width=30)
    play.start(renderer, metrics=[])
    renderer.on_event(Message(0.0, 20, "compiled in 1.5 s; a dispatch needs 2.1 MB"))
    matrix = "0 1 2 3 4 5 6 7 8 9 " * 2
    play.validate(renderer, 1, 30, Confusion=matrix)
    play.end(renderer)
    shown = Screen(out.getvalue()).lines()
    at = shown.index("compiled in 1.5 s; a dispatch")
    assert shown[at + 1] == "  needs 2.1 MB"
    assert f"    {matrix.rstrip()}" in shown


def test_new_best_values_and_the_end_are_green(make, out, play):
    renderer = make()
    play.start(renderer, monitor="valid/Loss")
    play.epoch(renderer, 1)
    play.epoch(renderer, 2)
    play.end(renderer)
    text = out.getvalue()
    assert re.findall(r"\x1b\[32m([^\x1b ]+)", text) == ["0.625*", "ended"]
    assert re.findall(r"\x1b\[2m(.*?)\x1b", text)[:2] == ["1.5 s"] * 2


@pytest.mark.parametrize(
    ("reason", "colour", "word"), [("early stopping: valid/Loss", 32, "ended"), ("ctrl-c", 33, "stopped")]
)
def test_color_of_the_end(make, out, play, reason, colour, word):
    renderer = make()
    play.start(renderer)
    renderer.on_event(RunEnded(0.0, 1, 45, reason, {}, 4.0, False))
    assert f"\x1b[{colour}m{word} at epoch 1" in out.getvalue()


def test_low_terminal_shows_only_the_losses(make, out, play):
    renderer = make(width=60, height=10)
    play.start(renderer)
    play.epoch(renderer, 1)
    play.dispatch(renderer, 2, 15, 15)
    assert [line.split()[0] for line in Screen(out.getvalue()).lines()[-5:]] == [
        "metric", "valid/Loss", "train/Loss", "and", "epoch",
    ]  # fmt: skip


def test_narrowed_window_omits_columns_and_clears_the_area(out, clock, play):
    """Terminals wrap lines that are too long for the new width."""
    console = Console(file=out, force_terminal=True, width=80, height=24)
    renderer = RichRenderer(console, clock)
    play.start(renderer)
    play.epoch(renderer, 1)
    wide, narrow = pyte.Screen(80, 24), pyte.Screen(40, 40)
    pyte.Stream(wide).feed(out.getvalue().replace("\n", "\r\n"))
    assert wide.display[wide.cursor.y].startswith("epoch 1/3")
    stream, seen = pyte.Stream(narrow), out.tell()
    stream.feed("\r\n".join(line.rstrip() for line in wide.display[: wide.cursor.y + 1]))
    console.width = 40
    play.epoch(renderer, 2)
    renderer.close()
    stream.feed(out.getvalue()[seen:].replace("\n", "\r\n"))
    shown = [line.rstrip() for line in narrow.display if line.strip()]
    assert not [line for line in shown if line.startswith(("metric", "━", "valid/", "train/"))]
    assert shown[-3:] == [
        "           valid    train",
        "epoch       Loss     Loss     time",
        "2          0.625     0.25    1.5 s",
    ]
    assert shown[-6:-3] == ["1          0.625     0.875      0.5", " 0.75    1.5 s", "and 2 more"]


def test_echoed_keys_are_cleared(out, clock, play):
    screen = pyte.Screen(80, 40)
    stream = pyte.Stream(screen)
    renderer = RichRenderer(Console(file=out, force_terminal=True, width=80, height=40), clock)
    play.start(renderer)
    play.dispatch(renderer, 1, 15, 15)
    stream.feed(out.getvalue().replace("\n", "\r\n") + "^C^C")
    seen = out.tell()
    play.dispatch(renderer, 1, 30, 15)
    play.end(renderer)
    stream.feed(out.getvalue()[seen:].replace("\n", "\r\n"))
    assert [line.split()[0] for line in screen.display if line.strip()] == ["runs/a:", "valid", "epoch", "ended"]


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_encoding_without_block_characters(play, clock, encoding):
    """Other characters that the encoding lacks are replaced, too."""
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True, newline="\n")
    renderer = RichRenderer(Console(file=file, force_terminal=True, width=60), clock)
    metrics = [MetricInfo("train", "Präzision \N{SNOWMAN}", higher_is_better=True), *play.metrics]
    play.start(renderer, metrics=metrics)
    for epoch in (1, 2, 3):
        play.epoch(renderer, epoch)
    renderer.on_event(Message(0.0, 20, "\N{SNOWMAN}"))
    play.dispatch(renderer, 4, 15, 15)
    lines = Screen(file.buffer.getvalue().decode(encoding)).lines()
    assert next(line for line in lines if line.startswith("train/Loss")).split() == [
        "train/Loss",
        "0.5",
        "0.1667",
        "3",
        "@-.",
    ]
    assert "?" in lines
    assert any(line.startswith(f"train/Pr{'ä' if encoding == 'cp1252' else '?'}zision ?") for line in lines)
    assert re.match("epoch 4/3 +[- ]+ +step 15/45", lines[-1])
    play.end(renderer, summary={**SUMMARY, "artifacts": ["\N{SNOWMAN}"]}, show_summary=True)


def test_validations_inside_an_epoch_and_texts_have_lines(make, out, play):
    renderer = make()
    play.start(renderer)
    play.validate(renderer, 1, 30, Loss=0.75, Confusion="1 0\n0 1")
    renderer.close()
    assert Screen(out.getvalue()).lines()[3:] == [
        "@30         0.75                                 0.2 s",
        "",
    ]
    play.start(renderer)
    play.validate(renderer, 1, 30, Confusion="1 0\n0 1")
    play.end(renderer)
    assert Screen(out.getvalue()).lines()[8:] == [
        "  valid Confusion of epoch 1:",
        "    1 0",
        "    0 1",
        "ended at epoch 3, step 135, 4.6 s: num_epochs",
        "",
    ]


def test_bar_is_drawn_at_most_four_times_a_second(make, out, play, clock):
    renderer = make()
    play.start(renderer, num_epochs=None, num_steps=10_000)
    began, drawn = clock.now, 0
    for done in range(1, 1001):
        size = out.tell()
        play.dispatch(renderer, 1, done, 1, seconds=0.01)
        drawn += out.tell() > size
    assert 0.8 * 4 * (clock.now - began) <= drawn <= 4 * (clock.now - began)


def test_printing_is_immediate_and_does_not_lay_out_the_bar(make, out, play, monkeypatch):
    print_to(out, monkeypatch)
    layouts = []
    original = ProgressBar.__rich_console__

    def count(self, *args):
        layouts.append(self)
        return original(self, *args)

    monkeypatch.setattr(ProgressBar, "__rich_console__", count)
    renderer = make()
    play.start(renderer)
    play.dispatch(renderer, 1, 15, 15)
    bar, before = bar_of(out), len(layouts)
    assert before > 0
    for number in range(20):
        print("line", number)
        shown = Screen(out.getvalue()).lines()
        assert (shown[3:][number], shown[-1]) == (f"line {number}", bar)
    assert len(layouts) == before


def test_many_short_epochs_are_complete_with_few_drawings(make, out, play, clock):
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


def test_slow_epoch_has_a_row_at_its_end(make, out, play):
    renderer = make()
    play.start(renderer)
    play.epoch(renderer, 1, seconds=10)
    assert Screen(out.getvalue()).lines()[3].startswith("1          0.625")


def end(play, renderer):
    play.end(renderer)


def fail(play, renderer):
    renderer.on_event(RunFailed(0.0, 1, 30, "ValueError: no loss"))


def close(play, renderer):
    renderer.close()


def show_an_invalid_value(play, renderer):
    with pytest.raises(TypeError):
        renderer.on_event(EpochEnded(0.0, 1, 45, {"train/Loss": None}, 1.0))


@pytest.mark.parametrize("how", [end, fail, close, show_an_invalid_value])
def test_terminal_is_restored(make, out, play, how):
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
    if how is fail:
        assert Screen(text).lines()[-2] == "failed at epoch 1, step 30: ValueError: no loss"


def test_cursor_is_visible_between_drawings(make, out, play):
    """After `kill -9`, no process would show it."""
    renderer = make()
    play.start(renderer)
    play.dispatch(renderer, 1, 15, 15)
    assert out.getvalue().rindex(SHOW) > out.getvalue().rindex(HIDE)


def test_second_run_starts_with_a_new_table(make, out, play):
    renderer = make()
    play.run(renderer, epochs=1)
    play.run(renderer, epochs=1)
    lines = Screen(out.getvalue()).lines()
    assert lines[:5] == lines[5:10]


def test_output_without_a_terminal_has_no_bar(play, clock):
    out = io.StringIO()
    play.run(RichRenderer(Console(file=out, width=80), clock))
    assert "\x1b" not in out.getvalue()
    assert "\r" not in out.getvalue()
    assert len(out.getvalue().splitlines()) == 1 + 2 + 3 + 1


PROGRAM = """
import time
from pathlib import Path
import numpy as np
from learner.events import MetricInfo, RunStarted, StepsEnded
from learner.renderers import default_renderer
renderer = default_renderer()
assert type(renderer).__name__ == "RichRenderer"
loss = np.float32([0.5])
renderer.on_event(RunStarted(0.0, Path("runs/a"), 3, None, 45, (MetricInfo("train", "Loss"),), 10))
time.sleep(0.5)  # until it may draw again
renderer.on_event(StepsEnded(0.0, "train", 1, 1, 1, 1, 45, 1, {"Loss": loss}, loss, 0.1))
raise RuntimeError("the renderer is still open")
"""


@pytest.mark.full
def test_exception_in_a_terminal():
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
        with contextlib.suppress(OSError):  # Linux raises EIO when the other end is closed
            while part := os.read(parent, 65536):
                text += part.decode()
        assert process.wait(timeout=60) == 1
        assert termios.tcgetattr(parent) == before
    finally:
        os.close(parent)
    assert text.count("━") > 10
    assert text.rindex(SHOW) > text.rindex(HIDE)
    lines = Screen(text).lines()
    assert "RuntimeError: the renderer is still open" in lines
    assert "━" not in "".join(lines)
    assert lines[-1] == ""


def test_titles_precede_the_first_epoch(make, out):
    make().on_event(RunStarted(0.0, Path("runs/a"), 1, None, 45, (), 1))
    assert Screen(out.getvalue()).lines()[0] == "runs/a: 1 epoch of 45 steps, 1 parameter"


def test_standard_output_is_restored_after_the_last_write_fails(make, out, play, monkeypatch):
    """Such as to a terminal that was closed."""
    monkeypatch.setattr(sys, "stdout", out)
    renderer = make()
    play.start(renderer)
    assert sys.stdout is not out

    def fails():
        raise BlockingIOError(11, "Resource temporarily unavailable")

    with pytest.raises(BlockingIOError):
        renderer._area.close(fails)
    assert sys.stdout is out


def test_broken_commands_run_as_copied(out):
    directory = "runs/a run with a long name/seed-0"
    summary = {
        "stopped_by": "num_epochs",
        "epochs": 3,
        "checkpoints": [{"epoch": 3, "step": 9, "path": "checkpoint/9"}],
    }
    summary |= {"artifacts": ["config.yaml"], "metrics": {}, "seconds": None}
    Console(file=out, width=50).print(render_summary(summary, directory))
    _, _, commands = out.getvalue().partition("next:\n")
    assert "\\\n" in commands
    copied = [shlex.split(line) for line in commands.replace("\\\n", "").splitlines()]
    assert ["learner", "resume", directory, "--num_epochs=6"] in copied


def test_texts_of_metrics_that_are_not_selected_are_not_shown(out, clock, play):
    renderer = RichRenderer(Console(file=out, force_terminal=True, width=80), clock, metrics="Loss")
    play.start(renderer)
    play.validate(renderer, 1, 30, Loss=0.75, Confusion="1 0\n0 1")
    play.end(renderer)
    assert "Confusion" not in out.getvalue()
