"""Tests of the bar and its tables on pseudo-terminals."""

import io
import os
import re
import threading

import pyte
import pytest
from rich.console import Console

from learner.renderers import RichRenderer
from tests.support.terminals import Terminal

PROGRAM = """
import logging
import numpy as np
from pathlib import Path
from learner.events import EpochEnded, Message, MetricInfo, RunEnded, RunStarted, SplitEnded, StepsEnded
from learner.renderers import RichRenderer, default_renderer

logging.basicConfig(format="logged: %(message)s")
now = [0.0]
assert type(default_renderer()) is RichRenderer
renderer = RichRenderer(clock=lambda: now[0])
infos = tuple(
    MetricInfo(split, name, higher_is_better=name != "Loss")
    for split in ("train", "valid") for name in ("Loss", "Accuracy")
)

def steps(epoch, loss):
    now[0] += 1
    column = np.full(15, loss, np.float32)
    step = 45 * epoch - 30
    renderer.on_event(StepsEnded(0.0, "train", epoch, step - 14, 15, 15, 45, step, {"Loss": column}, column, 1.0))

def run():
    renderer.on_event(RunStarted(0.0, Path("runs/a"), 40, None, 45, infos, 10378, monitor="valid/Accuracy"))
    for epoch in range(1, 33):
        steps(epoch, 1 / epoch)
        values = {"train": {"Loss": 1 / epoch, "Accuracy": epoch / 40}, "valid": {"Loss": 0.5, "Accuracy": -1 / epoch}}
        for split, logged in values.items():
            renderer.on_event(SplitEnded(0.0, split, epoch, 45 * epoch, logged, 0.5))
        whole = {f"{split}/{name}": value for split, logged in values.items() for name, value in logged.items()}
        renderer.on_event(EpochEnded(0.0, epoch, 45 * epoch, whole, 1.0))
    steps(33, 1 / 32)
    print("words " + 250 * "x" + " end")
    print("half", end="", flush=True)
    print("to stderr", file=sys.stderr)
    logging.warning("careful")
    renderer.on_event(Message(0.0, 20, "saved"))
    print(" whole")
    steps(33, 1 / 32)
    pause()
    renderer.on_event(RunEnded(0.0, 33, 1485, "num_epochs", {}, 4.0, False))
    renderer.close()
    print("after")
    pause()

for _ in range(4):
    pause()
    run()
"""
TABLE = [
    "metric               now      best  epoch  trend",
    "valid/Accuracy  -0.03125  -0.03125     32  ▁▅▆▆▇▇▇▇▇███████████████████████",
    "valid/Loss           0.5       0.5      1  ▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅",
    "train/Loss       0.03125   0.03125     32  █▄▃▃▂▂▂▂▂▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁",
    "train/Accuracy       0.8       0.8     32  ▁▁▁▂▂▂▂▃▃▃▃▃▄▄▄▄▅▅▅▅▆▆▆▆▆▇▇▇▇███",
]
SIDE_BY_SIDE = [
    f"{'':8}  valid{'':56}  train",
    f"metric{'':9}now      best  epoch  trend{'':35}now     best  epoch  trend",
    f"Accuracy  -0.03125  -0.03125     32  {TABLE[1][-32:]}{'':8}0.8      0.8     32  {TABLE[4][-32:]}",
    f"Loss{'':11}0.5       0.5      1  {TABLE[2][-32:]}{'':4}0.03125  0.03125     32  {TABLE[3][-32:]}",
]
NARROW = [  # a character stands for four epochs
    "metric           now      best  trend",
    "valid…racy  -0.03125  -0.03125  ▁▆▇▇████",
    "valid/Loss       0.5       0.5  ▅▅▅▅▅▅▅▅",
    "train/Loss   0.03125   0.03125  █▃▂▂▁▁▁▁",
    "train…racy       0.8       0.8  ▁▂▃▄▅▆▇█",
]
PRINTED = ["to stderr", "logged: careful", "saved", "half whole"]


def test_screen_during_and_after_a_run():
    """A terminal without a size counts as one of 80 columns."""
    sizes = {(40, 20): NARROW, (80, 24): TABLE, (200, 50): SIDE_BY_SIDE, (0, 0): TABLE}
    with Terminal(PROGRAM) as terminal:
        for size, table in sizes.items():
            terminal.look()
            terminal.be(*size)
            terminal.go_on()
            *shown, bar = terminal.look()
            assert shown[-len(table) :] == table
            shown = shown[: -len(table)]
            assert shown[-4:] == PRINTED
            first = next(number for number, line in enumerate(shown) if line.startswith("1 "))
            assert "".join(shown[first + 32 : -4]) == "words " + 250 * "x" + " end"
            rows = shown[first : first + 32]
            assert [row.split()[:2] for row in rows] == [[str(e), f"{-1 / e:.4g}*"] for e in range(1, 33)]
            assert re.fullmatch(r"epoch 33/40 +[━╸╺]+  step 15/45.*", bar), bar
            terminal.go_on()
            after, stays = terminal.look(), len(shown)
            assert after[:stays] == shown[:stays]
            assert " ".join(" ".join(after[stays:]).split()) == "ended at epoch 33, step 1485, 4.0 s: num_epochs after"
            assert not terminal.screen.cursor.hidden
            terminal.go_on()


@pytest.mark.full
def test_terminal_without_colors_and_block_characters():
    with Terminal(PROGRAM, NO_COLOR="1", PYTHONIOENCODING="ascii", COLUMNS="0", LINES="0") as terminal:
        terminal.look()
        terminal.go_on()
        shown = terminal.look()
        assert shown[-3].split() == ["train/Loss", "0.03125", "0.03125", "32", "@=--:::::" + 23 * "."]
        assert re.match("epoch 33/40  -+", shown[-1])
        assert set(re.findall(r"\x1b\[([0-9;]*)m", terminal.text)) <= {"", "0", "1"}
        assert terminal.text.isascii()


PROMPT = PROGRAM.rpartition("for _ in")[0].replace(
    "    pause()\n    renderer.on_event(RunEnded",
    """
    answer = input("name? ")
    steps(33, 1 / 32)
    print("hello", answer)
    steps(33, 1 / 32)
    pause()
    renderer.on_event(RunEnded""",
)


@pytest.mark.full
def test_prompt_is_visible_and_its_answer_stays():
    with Terminal(PROMPT + "\nrun()\n") as terminal:
        while "name? " not in terminal.text:
            assert terminal.take(), terminal.text[-2000:]
        shown = terminal.lines()
        assert shown[-2:] == ["half whole", "name?"]
        os.write(terminal.parent, b"Ann\n")
        *after, bar = terminal.look()
        assert after[: len(shown) + 1] == [*shown[:-1], "name? Ann", "hello Ann"]
        assert after[len(shown) + 1 :] == TABLE
        assert re.fullmatch(r"epoch 33/40 +[━╸╺]+  step 15/45.*", bar), bar
        terminal.go_on()
        after = terminal.look()
        assert after[len(shown) - 1 :] == [
            "name? Ann", "hello Ann", "ended at epoch 33, step 1485, 4.0 s: num_epochs", "after",
        ]  # fmt: skip


@pytest.mark.full
def test_printing_while_drawing_tears_no_line(play, clock, monkeypatch):
    """One thread trains and draws, another prints, and the table grows."""
    out = io.StringIO()
    monkeypatch.setattr("sys.stdout", out)
    renderer = RichRenderer(Console(file=out, force_terminal=True, width=80, height=24), clock)
    play.start(renderer, num_epochs=25, metrics=play.metrics[:1])

    def train():
        for epoch in range(1, 26):
            play.epoch(renderer, epoch, values={"valid/Loss": 0.5} | ({f"valid/M{epoch}": 0.5} if epoch < 5 else {}))

    thread = threading.Thread(target=train)
    thread.start()
    for number in range(150):
        print(f"line {number} " + "x" * (number % 40))
    thread.join()
    play.end(renderer)
    screen = pyte.HistoryScreen(80, 24, history=10_000)
    pyte.Stream(screen).feed(out.getvalue().replace("\n", "\r\n"))
    shown = ["".join(row[x].data for x in range(80)).rstrip() for row in screen.history.top]
    shown += [line.rstrip() for line in screen.display]
    assert [line for line in shown if "line" in line] == [f"line {n} {'x' * (n % 40)}".rstrip() for n in range(150)]
    assert [line.split()[0] for line in shown if line.endswith(" s")] == [str(epoch) for epoch in range(1, 26)]
    others = [line for line in shown if line and "line" not in line and not line.endswith(" s")]
    assert others == [
        "runs/a: 25 epochs of 45 steps, 10,378 parameters",
        "           train",
        "epoch       Loss     time",
        "ended at epoch 3, step 135, 4.6 s: num_epochs",
    ]
