"""Tests of the choice of a renderer, and of the summary without a run."""

import io
import json
import subprocess
import sys

import pytest

import learner.renderers
from learner.renderers import PlainRenderer, RichRenderer, default_renderer, print_summary, render_summary
from learner.renderers.summary_text import _checkpoint
from learner.util.json_values import encode

HEADING = "2 epochs, 90 steps, ended: num_epochs"


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "term", "kind"),
    [
        (Terminal(), "xterm-256color", RichRenderer),
        (Terminal(), "", RichRenderer),
        (Terminal(), "dumb", PlainRenderer),
        (io.StringIO(), "xterm-256color", PlainRenderer),  # a file, a pipe, a notebook
    ],
)
def test_default_renderer(monkeypatch, stream, term, kind):
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setenv("TERM", term)
    assert type(default_renderer()) is kind


def test_summary_in_a_file_is_plain_text(summary, summary_text):
    out = io.StringIO()
    print_summary(summary, out, "runs/a")
    assert out.getvalue().splitlines() == [HEADING, *summary_text]


def test_summary_read_from_json_prints_the_same(summary, summary_text):
    out = io.StringIO()
    print_summary(json.loads(json.dumps(encode(summary))), out, "runs/a")
    assert out.getvalue().splitlines() == [HEADING, *summary_text]


def test_summary_is_printed_to_standard_output(summary, summary_text, capsys):
    print_summary(summary)
    assert capsys.readouterr().out.splitlines() == [HEADING, *summary_text[:4], summary_text[5]]


def test_summary_on_a_terminal_has_the_same_text(summary, summary_text, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    out = Terminal()
    print_summary(summary, out, "runs/a")
    assert "\x1b[1m" in out.getvalue()
    for line, text in zip(out.getvalue().splitlines()[2:], summary_text[1:], strict=True):
        assert line.rstrip() == text


def test_summary_on_a_narrow_terminal(summary):
    from rich.console import Console

    out = io.StringIO()
    summary = {**summary, "seconds": {"total": 2.0, "compile": 1.0, "train": 0.9, "valid": 0.1}}
    Console(file=out, width=30).print(render_summary(summary))
    assert "16824" in out.getvalue()
    assert all(part in out.getvalue() for part in ("1.0 s", "(50 %)", "0.9 s", "(45 %)", "0.1 s", "(5 %)"))
    assert max(map(len, out.getvalue().splitlines())) <= 30


def test_summary_on_a_narrow_terminal_omits_columns():
    from rich.console import Console

    point = {"value": 0.8594, "epoch": 3, "step": 48}
    metric = {"unit": "", "higher_is_better": True, "best": point, "last": point}
    summary = {"stopped_by": "num_epochs", "epochs": 3, "steps": 48, "artifacts": [], "checkpoints": []}
    summary["metrics"] = {"valid/Accuracy": metric}
    for width, row in (
        (37, ["valid/Accuracy", "0.8594", "3", "0.8594"]),
        (36, ["valid/Accuracy", "0.8594", "0.8594"]),
        (29, ["valid/Accuracy", "0.8594"]),
        (20, ["valid/…uracy", "0.8594"]),
    ):
        out = io.StringIO()
        Console(file=out, width=width).print(render_summary(summary))
        titles, line, *_ = out.getvalue().splitlines()
        assert (len(titles.split()), line.split()) == (len(row), row)


def test_importing_renderers_does_not_import_rich():
    program = "import sys, learner.renderers; assert 'learner.renderers.rich' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Missing'"):
        learner.renderers.Missing  # noqa: B018
    assert all(hasattr(learner.renderers, name) for name in learner.renderers.__all__)


def test_checkpoint_inside_an_epoch():
    entry = {"path": "checkpoint/44", "step": 44, "epoch": None, "best": False}
    assert _checkpoint(entry) == "checkpoint/44 (inside an epoch)"
