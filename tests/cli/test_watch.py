"""Tests of `learner watch` without a terminal; `tests/reports/live/test_terminal.py` has one."""

import importlib.util
import sys

import pytest

import learner.cli.watch
from learner.util.distribution import install_hint
from tests.support.written import write_run


@pytest.fixture
def terminal(workplace, monkeypatch):
    """Pretend that the three streams are a terminal, and return the list of calls of the view."""
    shown = []
    monkeypatch.setattr(learner.cli.watch, "refuse_pipes", lambda: None)
    monkeypatch.setattr("learner.reports.live.app.watch", lambda *given: shown.append(given) or 0)
    write_run("runs/a")
    return shown


def test_arguments_of_the_view(terminal, learner):
    assert learner("watch", "runs", "--metric=Loss", "--metric=valid/Loss", "--log", "--smooth=.5", "--x=epoch") == (
        0,
        "",
        "",
    )
    ((watched, view, every),) = terminal
    assert [run.name for run in watched.runs] == ["a"]
    assert (view.metric_names, view.log, view.smooth, view.x, every) == (
        ["Loss", "valid/Loss"],
        True,
        0.5,
        "epoch",
        1.0,
    )


def test_missing_run_is_awaited(terminal, learner):
    assert learner("watch", "later", "--metric=Acuracy", "--refresh=5")[0] == 0
    assert (terminal[0][0].runs, terminal[0][2]) == ([], 5.0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the following arguments are required: DIR; see learner watch --help"),
        (["runs/a/journal.jsonl"], "runs/a/journal.jsonl is a file; learner watch needs the directory of a run"),
        (["runs", "--metric=Los"], "no run has a metric 'Los': did you mean 'Loss'"),
        (["runs", "--metric=A", "--metric=B"], "these metrics cannot be watched, 2 problems"),
        (["runs", "--smooth=1"], "smooth is 1.0; it needs a number from 0 to below 1"),
        (["runs", "--refresh=0"], "--refresh is 0; it needs 0.1 to 3600 seconds"),
        (["runs", "--x=epochs"], "invalid choice: 'epochs'"),
        (["runs", "--metrics=Loss"], "learner watch takes no '--metrics=Loss': did you mean '--metric'?"),
    ],
)
def test_invalid_arguments_are_refused(terminal, learner, words, message):
    code, out, err = learner("watch", *words)
    assert (code, out) == (2, "")
    assert message in err


def test_pipes_are_refused(workplace, learner):
    write_run("runs/a")
    code, out, err = learner("watch", "runs")
    assert (code, out) == (2, "")
    assert "learner watch needs a terminal, and standard " in err
    assert "learner summary DIR, learner plot DIR METRIC" in err


@pytest.mark.parametrize("missing", ["textual", "textual_plotext"])
def test_missing_package_is_an_error(workplace, learner, monkeypatch, missing):
    find = importlib.util.find_spec
    monkeypatch.delitem(sys.modules, missing, raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == missing else find(name, *more))
    message = f"learner watch needs {missing}, which is not installed: {install_hint('watch')}"
    assert message in learner("watch", "runs")[2]


def test_help_fits_the_terminal(workplace, learner):
    code, out, _ = learner("watch", "--help")
    assert code == 0
    assert out.startswith("usage: learner watch ")
    assert '[watch]"' in out  # the end of the hint; its start may be wrapped
    assert max(map(len, out.splitlines())) <= 120
