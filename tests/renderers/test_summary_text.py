"""Tests of the end of a run's summary: times and next commands."""

import math

from learner.renderers.summary_text import following, places, times
from tests.support.codes import named_case

SECONDS = {"total": 200.0, "compile": 20.0, "data": 1.0, "train": 150.0, "valid": 18.0, "save": 0.4, "other": 10.6}
RUN = {
    "stopped_by": "num_epochs",
    "epochs": 20,
    "steps": 900,
    "metrics": {"train/Loss": {}, "valid/Loss": {}},
    "checkpoints": [{"path": "checkpoint/900", "epoch": 20}],
    "artifacts": ["config.yaml", "journal.jsonl"],
}


def test_times_of_parts():
    """Parts below one percent are omitted."""
    assert times({"seconds": SECONDS}) == [
        "time: 3 min 20 s: compiling 20.0 s (10 %), training 2 min 30 s (75 %), "
        "validation 18.0 s (9 %), the rest 10.6 s (5 %)"
    ]


def test_older_and_malformed_summaries_have_no_times():
    cases = [
        *(None, 3, [1], {}, {"total": 0.0}, {"total": 3.0}, {"train": 1.0}, {"total": "3", "train": "1"}),
        *({"total": x, "train": 1.0} for x in (math.nan, math.inf, True)),
    ]
    for seconds in cases:
        with named_case(seconds):
            assert times({"seconds": seconds}) == []
            assert times({}) == []


def test_malformed_parts_are_omitted():
    odd = {"total": 2.0, "train": 1.0, "data": "1", "valid": -1.0, "save": math.nan, "\x1b[2J": 1.0}
    assert times({"seconds": odd}) == ["time: 2.0 s: training 1.0 s (50 %)"]


PYTHON = {"artifacts": ["journal.jsonl"]}


def test_next_commands():
    cases = [
        ({}, ["learner evaluate runs/a", "learner resume runs/a --num_epochs=40"]),
        ({"stopped_by": "num_steps"}, ["learner evaluate runs/a", "learner resume runs/a --num_steps=1800"]),
        ({"stopped_by": "ctrl-c"}, ["learner evaluate runs/a", "learner resume runs/a"]),
        ({"stopped_by": "early stopping: valid/Loss"}, ["learner evaluate runs/a"]),
        ({"checkpoints": []}, []),
        ({"metrics": {"train/Loss": {}}}, ["learner resume runs/a --num_epochs=40"]),
        ({"metrics": {"valid-dev/Loss": {}}, "stopped_by": "x"}, ["learner evaluate runs/a", "learner resume runs/a"]),
        (PYTHON, ["learner.evaluate(data)", "builder.num_epochs(40).resume()"]),
        (PYTHON | {"stopped_by": "num_steps"}, ["learner.evaluate(data)", "builder.num_steps(1800).resume()"]),
        (PYTHON | {"stopped_by": "time limit"}, ["learner.evaluate(data)", "builder.resume()"]),
        (PYTHON | {"checkpoints": []}, []),
    ]
    for changes, expected in cases:
        with named_case((changes, expected)):
            shown = following(RUN | changes, "runs/a")
            assert (shown[0], [line.partition("#")[0].strip() for line in shown[1:]]) == (
                "next:",
                [*expected, "learner report runs/a"],
            )


def test_commands_name_python_or_the_shell():
    """A run from Python resumes in Python, while its report is a shell command."""
    assert following(RUN | PYTHON, "runs/a")[1:] == [
        "  learner.evaluate(data)           # in Python",
        "  builder.num_epochs(40).resume()  # in Python",
        "  learner report runs/a            # in a shell",
    ]
    assert not any("#" in line for line in following(RUN, "runs/a"))
    assert not any("#" in line for line in following(RUN | PYTHON | {"checkpoints": []}, "runs/a"))


def test_commands_need_installed_packages(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert following(RUN, "runs/a")[1:] == ["  learner evaluate runs/a", "  learner resume runs/a --num_epochs=40"]
    assert following(RUN | {"checkpoints": []}, "runs/a") == []


def test_directories_are_quoted_and_printable():
    assert "  learner evaluate 'my runs/it'\"'\"'s'" in following(RUN, "my runs/it's")
    assert following(RUN, None) == []
    assert all(line.isprintable() for line in following(RUN, "runs/\x1b[2J"))


def test_the_best_and_the_newest_of_many_checkpoints_are_named():
    saved = [{"path": f"checkpoint/{step}", "epoch": step, "best": step == 3} for step in range(1, 2001)]
    newest = ", ".join(f"checkpoint/{step} (epoch {step})" for step in range(1993, 2001))
    (line,) = places({"checkpoints": saved}, None)
    assert line == f"checkpoints: checkpoint/3 (epoch 3, best), {newest} and 1991 more"
    assert "more" not in places({"checkpoints": saved[2:11]}, None)[0]
