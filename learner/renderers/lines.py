"""What is said about events, in one line each and without control characters; both renderers say it."""

import logging
from collections.abc import Mapping

from learner.events import Message, RunEnded, RunFailed, RunStarted
from learner.util.text import count, duration, printable, short


def started(event: RunStarted) -> str:
    """Where the run is and how long it is going to be.

    >>> from pathlib import Path
    >>> started(RunStarted(0.0, Path("runs/a"), 10, None, 45, (), parameters=10378))
    'runs/a: 10 epochs of 45 steps, 10,378 parameters'
    """
    resumed = f", goes on after step {event.step}" if event.resumed else ""
    return printable(
        f"{event.shown or event.directory}: {_length(event)}, {count(event.parameters, 'parameter')}{resumed}"
    )


def ended(event: RunEnded) -> str:
    """How far the run came and why it ended."""
    return printable(f"ended at epoch {event.epoch}, step {event.step}, {duration(event.seconds)}: {event.stopped_by}")


def failed(event: RunFailed) -> str:
    """Where the run broke off; the traceback is shown by whoever catches the exception."""
    return f"failed at epoch {event.epoch}, step {event.step}: " + printable(" ".join(event.error.split()))


def message(event: Message) -> list[str]:
    """The lines of a message; what is more than information says so."""
    level = f"{logging.getLevelName(event.level).lower()}: " if event.level > logging.INFO else ""
    return [printable(line) for line in (level + event.text).splitlines()]


def values(values: Mapping[str, float | str]) -> str:
    """Values by key, each split's together.

    >>> values({"train/Loss": 0.5, "train/Accuracy": 0.75, "valid/Loss": 0.625})
    'train Loss 0.5  Accuracy 0.75 | valid Loss 0.625'
    """
    splits: dict[str, list[str]] = {}
    for key, value in values.items():
        split, name = key.split("/", 1)
        splits.setdefault(split, []).append(f"{printable(name)} {short(value)}")
    return " | ".join(f"{split} {'  '.join(parts)}" for split, parts in splits.items())


def texts(values: Mapping[str, float | str]) -> list[str]:
    """The values by key that are texts, indented, with their own lines.

    >>> texts({"train/Loss": 0.5, "valid/Confusion": "4 1\\n0 5"})
    ['  valid Confusion:', '    4 1', '    0 5']
    """
    shown: list[str] = []
    for key, value in values.items():
        if isinstance(value, str):
            shown.append(f"  {printable(key.replace('/', ' ', 1))}:")
            shown += [f"    {printable(line)}" for line in value.splitlines()]
    return shown


def position(split: str, done: int, total: int | None) -> str:
    """How far a split has come.

    >>> position("train", 120, 450), position("valid", 3, None)
    ('step 120/450', 'valid 3')
    """
    unit = "step" if split == "train" else printable(split)
    return f"{unit} {done}/{total}" if total is not None else f"{unit} {done}"


def speed(steps_per_second: float | None) -> str:
    """Steps per second, or nothing where that is not known yet."""
    return "" if steps_per_second is None else f"{short(steps_per_second)} steps/s"


def left(seconds: float | None) -> str:
    """The time left, or nothing where that is not known."""
    return "" if seconds is None else f"{duration(seconds)} left"


def _length(event: RunStarted) -> str:
    if event.num_steps is not None:
        return count(event.num_steps, "step")
    if event.num_epochs is None:
        return "no fixed length"
    each = f" of {count(event.steps_per_epoch, 'step')}" if event.steps_per_epoch else ""
    return count(event.num_epochs, "epoch") + each
