"""Tests of the overview of a run before it starts."""

import dataclasses
import io
import re

import pytest
from rich.console import Console

from learner.events import ArrayInfo, Message, Overview
from learner.renderers import PlainRenderer, RichRenderer, print_overview
from learner.renderers.grids import render_overview
from learner.renderers.overview_text import facts, overview_lines, tree_table


def array(path, *shape, dtype="float32", kind="params", trainable=True):
    count = 1
    for length in shape:
        count *= length
    return ArrayInfo(path, shape, dtype, kind, trainable, 4 * count)


NET = (
    array("body.kernel", 6, 16),
    array("body.bias", 16),
    array("head.kernel", 16, 4, trainable=False),
    array("seen", dtype="int32", kind="arrays", trainable=False),
)
OVERVIEW = Overview(
    0.0,
    model="Net (flax.nnx)",
    arrays=NET,
    optimizer="adam(b1=0.5)",
    strategy="replicated on 8 devices (cpu)",
    devices=8,
    rows=24,
    spread=8,
    accumulate=2,
    batches=5,
    steps_per_epoch=3,
    num_epochs=20,
    steps=60,
    flops=24_099_000,
    flops_exact=True,
    memory={"parameters": 704, "gradients": 704, "optimizer": 1412, "batches": 2688},
)
LINES = [
    "Net (flax.nnx)    shape    dtype  parameters      bytes  share",
    "body                                     112  448 bytes   63 %",
    "  kernel        [6, 16]  float32          96  384 bytes   54 %",
    "  bias             [16]  float32          16   64 bytes  9.0 %",
    "head.kernel     [16, 4]  float32          64  256 bytes   36 %  frozen",
    "seen                 []    int32           -    4 bytes  0.6 %  arrays",
    "total                                    176  708 bytes  100 %",
    "optimizer  adam(b1=0.5), 1.4 kB",
    "devices    replicated on 8 devices (cpu)",
    "batch      24 rows (3 on each of 8 devices) x 2 batches = 48 rows a step",
    "length     5 batches = 3 steps an epoch; 20 epochs = 60 steps",
    "FLOPs      24.1 M a step, 502.1 k a row (forward, backward, update; of the traced step)",
    "memory     5.5 kB on each device: parameters 704 bytes, gradients 704 bytes, optimizer 1.4 kB, batches 2.7 kB",
]


def changed(**fields):
    return dataclasses.replace(OVERVIEW, **fields)


def fact(name, **fields):
    return dict(facts(changed(**fields)))[name]


def test_lines_of_an_overview():
    assert overview_lines(OVERVIEW) == LINES


def test_both_renderers_print_the_same_lines(clock):
    plain, rich = io.StringIO(), io.StringIO()
    PlainRenderer(plain, clock).on_event(OVERVIEW)
    assert plain.getvalue().splitlines() == LINES
    RichRenderer(Console(file=rich, width=120, force_terminal=True, color_system=None), clock).on_event(OVERVIEW)
    text = re.sub(r"\x1b\[[0-9;]*m", "", rich.getvalue())
    assert [line.rstrip() for line in text.splitlines()] == LINES


def test_overview_precedes_the_table_of_epochs(clock, play):
    out = io.StringIO()
    renderer = RichRenderer(Console(file=out, width=120), clock)
    renderer.on_event(OVERVIEW)
    renderer.on_event(Message(0.0, 20, "compiled"))
    play.run(renderer, epochs=1)
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert lines[: len(LINES)] == LINES
    assert lines[len(LINES)] == "compiled"
    assert lines[len(LINES) + 1].startswith("runs/a: 1 epoch")


@pytest.mark.parametrize("width", [20, 30, 40, 50, 60, 80])
def test_narrow_terminals_omit_columns(width):
    """Long names are shortened, and no line is longer than the terminal."""
    long = array("a_very_long_name_of_a_layer.kernel", 3, 4)
    out = io.StringIO()
    Console(file=out, width=width).print(render_overview(changed(arrays=(*NET, long)), width))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    table = tree_table(changed(arrays=(*NET, long)), width)
    assert "parameters" in table[0]
    assert ("bytes" in table[0]) == (width >= 50)
    assert table[-1][0] == "total"


def test_names_use_the_remaining_width():
    rows = tree_table(changed(arrays=(array("a_very_long_name_of_a_layer", 3),)), 36)
    assert rows[0] == ["Net (flax.nnx)", "parameters"]
    assert rows[1] == ["a_very_long_name_of_a_..", "3"]


def test_control_characters_in_names_are_replaced(clock):
    hostile = "\x1b]0;owned\x07\x1b[2J[red]"
    fields = {"model": hostile, "optimizer": hostile, "strategy": hostile}
    overview = changed(arrays=(array(f"{hostile}.w", 3, kind=hostile, dtype=hostile),) * 2, **fields)
    plain, rich = io.StringIO(), io.StringIO()
    PlainRenderer(plain, clock).on_event(overview)
    Console(file=rich, width=120).print(render_overview(overview, 120))
    for text in (plain.getvalue(), rich.getvalue()):
        assert text.count("?[2J[red]") >= 4
        assert all(line.isprintable() for line in text.splitlines())


def test_facts_of_batches():
    assert fact("batch", accumulate=1, spread=1, devices=1) == "24 rows, one batch a step"
    assert fact("batch", accumulate=1) == "24 rows (3 on each of 8 devices), one batch a step"
    assert fact("batch", accumulate=1, spread=1) == "24 rows (all on each of 8 devices), one batch a step"
    assert fact("batch", rows=1, accumulate=3, devices=1, spread=1) == "1 row x 3 batches = 3 rows a step"
    assert fact("batch", accumulate=1, spread=1, devices=1, split=4) == "24 rows, one batch a step in 4 parts"
    assert fact("batch", devices=1, spread=1, split=4) == "24 rows x 2 batches in 4 parts = 48 rows a step"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {"batches": 1, "steps_per_epoch": 1, "num_epochs": 1, "steps": 1},
            "1 batch = 1 step an epoch; 1 epoch = 1 step",
        ),
        (
            {"batches": 1500, "steps_per_epoch": 1500, "num_epochs": None, "steps": 900},
            "1,500 batches = 1,500 steps an epoch; ends after 900 steps",
        ),
        ({"num_epochs": 20, "steps": 7}, "5 batches = 3 steps an epoch; 20 epochs = 60 steps; ends after 7 steps"),
        ({"batches": None, "steps_per_epoch": None, "steps": None}, "20 epochs of unknown length"),
        ({"batches": None, "steps_per_epoch": None, "num_epochs": None, "steps": 7}, "ends after 7 steps"),
        ({"batches": None, "steps_per_epoch": None, "num_epochs": None, "steps": None}, "no fixed length"),
    ],
)
def test_facts_of_lengths(fields, text):
    assert fact("length", **fields) == text


def test_unknown_facts():
    assert fact("FLOPs", flops_exact=False).startswith("at least 24.1 M a step, ")
    assert "optimizer" not in dict(facts(changed(optimizer=None)))


def test_memory_of_a_device_and_of_a_dispatch():
    assert fact("memory", room=80_000_000_000).startswith("5.5 kB of 80.0 GB on each device: ")
    assert overview_lines(changed(peak=9000, temporaries=3000))[-1] == (
        "           a dispatch needs 9.0 kB on each device, 3.0 kB of it while it runs only (activations, gradients)"
    )


def test_print_overview(capsys, monkeypatch):
    print_overview(OVERVIEW)
    assert capsys.readouterr().out.splitlines() == LINES
    out = type("Terminal", (io.StringIO,), {"isatty": lambda self: True})()
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    print_overview(OVERVIEW, out)
    assert "\x1b[1m" in out.getvalue()
    assert [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in out.getvalue().splitlines()] == LINES


def test_characters_that_the_encoding_lacks_are_replaced(clock, monkeypatch):
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True)
    monkeypatch.setattr(file, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    unusual = changed(model="Net \N{SNOWMAN}", optimizer="\N{SNOWMAN}")
    RichRenderer(Console(file=file), clock).on_event(unusual)
    print_overview(unusual, file)
    text = re.sub(r"\x1b\[[0-9;]*m", "", file.buffer.getvalue().decode("ascii"))
    assert (text.count("Net ? "), text.count("optimizer  ?, 1.4 kB")) == (2, 2)
