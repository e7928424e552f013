"""Runs that stop or crash, and their results, which must be equal in the end."""

import pytest

from learner import Interrupter
from learner.runs.history import read_history
from tests.support.runs import checkpoint_bits, logs_of, model_bits, numbers_of, progress_of, saved_steps


class CrashError(Exception):
    """Raised in place of a power failure."""


def stopping_at(builder, step):
    """End the run after a step, as a user's code would."""
    interrupter = Interrupter()
    return builder.interrupter(interrupter).every(steps=step, fn=lambda info, model: interrupter.stop("for the night"))


def crashing_at(builder, step):
    """Raise in a hook: the step is in the logs already, but not yet saved."""

    def crash(info, model):
        if info.step == step:
            raise CrashError

    return builder.every(steps=1, fn=crash)


def all_of(directory, result):
    """Return everything that must be equal with and without an interruption."""
    last = saved_steps(directory)[-1]
    return {
        "model": model_bits(result.model),
        "history": result.history.to_json(),
        "journal's history": read_history(directory).to_json(),
        "why it ended": result.stopped_by,
        "logs": logs_of(directory),
        "journal": numbers_of(directory),
        "summary": (directory / "summary.json").read_text(),
        "checkpoints": saved_steps(directory),
        "state": checkpoint_bits(directory, last),
        "progress": progress_of(directory, last),
    }


def same(actual, expected):
    """Compare results part by part, so that a failure names the part."""
    assert actual.keys() == expected.keys()
    for part, value in expected.items():
        assert actual[part] == value, part


def some(cases, chosen):
    """Return all values in the full suite, a few otherwise."""

    def marked(case):
        values = case if isinstance(case, tuple) else (case,)
        return pytest.param(*values, marks=() if case in chosen else pytest.mark.full)

    return [marked(case) for case in cases]
