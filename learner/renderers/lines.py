"""One-line texts for events, without control characters; all renderers use them."""

import itertools
import logging
from collections.abc import Collection, Mapping

from learner.errors import LearnerError, NonFiniteError, OutOfMemoryError, near
from learner.events import Message, RunEnded, RunFailed, RunStarted
from learner.runs.layout import end_word
from learner.util.metric_order import by_importance, is_selected, ordered
from learner.util.text import abbreviate, count, duration, printable, short

LONGEST_ERROR = 400  # characters: an error of XLA contains a traceback of several screens
TYPICAL = 7  # characters of a number: fewer do not make room for another metric, so all lines have the same ones
OWN_ERRORS = {kind.__name__ for kind in (LearnerError, NonFiniteError, OutOfMemoryError)}


def started(event: RunStarted) -> str:
    """Return the directory of the run and its planned length.

    >>> from pathlib import Path
    >>> started(RunStarted(0.0, Path("runs/a"), 10, None, 45, (), parameters=10378))
    'runs/a: 10 epochs of 45 steps, 10,378 parameters'
    """
    resumed = f", resumes after step {event.step}" if event.resumed else ""
    return printable(
        f"{event.shown or event.directory}: {_length(event)}, {count(event.parameters, 'parameter')}{resumed}"
    )


def unmatched(event: RunStarted, selected: Collection[str]) -> list[str]:
    """Return a line for each selected key or name that matches no metric of the run."""
    keys = [info.key for info in event.metrics]
    wrong = [name for name in selected if not any(is_selected(key, [name]) for key in keys)]
    names = [*dict.fromkeys(info.name for info in event.metrics), *keys]
    return [printable(f"no metric is called {name}: {near(name, names)}") for name in wrong]


def ended(event: RunEnded) -> str:
    """Return the final position of the run, the reason for its end, and how to resume if it was started from Python and
    stopped.
    """
    at = f"epoch {event.epoch}, step {event.step}, {duration(event.seconds)}"
    text = f"{end_word(event.stopped_by)} at {at}: {event.stopped_by}"
    is_stopped = event.stopped_by in ("ctrl-c", "sigterm", "sighup", "time limit")
    from_python = "config.yaml" not in event.summary.get("artifacts", ())
    resume = "; builder.resume() resumes it" if is_stopped and from_python and event.summary.get("checkpoints") else ""
    return printable(text + resume)


def failed(event: RunFailed) -> str:
    """Return the position at which the run failed, with both ends of a long error. The caller that catches the
    exception shows all of it.
    """
    name = event.error.partition("(")[0]
    error = name if name in OWN_ERRORS else event.error  # the command, or Python, prints the message
    text = abbreviate(printable(" ".join(error.split())), LONGEST_ERROR)
    return f"failed at epoch {event.epoch}, step {event.step}: {text}"


def message(event: Message) -> list[str]:
    """Return the lines of a message, with its level if it is above INFO."""
    level = f"{logging.getLevelName(event.level).lower()}: " if event.level > logging.INFO else ""
    return [printable(line) for line in (level + event.text).splitlines()]


def values(values: Mapping[str, float | str], monitor: str | None = None, width: int | None = None) -> tuple[str, int]:
    """Return the numbers among values by key, grouped by split, in the order of `learner.util.metric_order`, and how
    many are omitted: the least important ones, if the line might be wider than `width` characters.

    >>> numbers = {"train/Loss": 0.5, "train/Accuracy": 0.75, "valid/Loss": 0.625, "valid/Confusion": "4 1 0 5"}
    >>> values(numbers)
    ('valid Loss 0.625 | train Loss 0.5  Accuracy 0.75', 0)
    >>> values(numbers, width=40)
    ('valid Loss 0.625 | train Loss 0.5', 1)
    """
    cells = {
        key: f"{printable(key.partition('/')[2])} {short(value)}"
        for key, value in values.items()
        if not isinstance(value, str)
    }
    important = by_importance(cells, monitor)

    def joined(number: int, cells: Mapping[str, str]) -> str:
        groups = itertools.groupby(ordered(important[:number], monitor), lambda key: key.partition("/")[0])
        return " | ".join(f"{printable(split)} {'  '.join(cells[key] for key in inside)}" for split, inside in groups)

    wide = {key: cell.ljust(cell.rindex(" ") + 1 + TYPICAL) for key, cell in cells.items()}
    fitting = len(important)
    while fitting > 1 and width is not None and len(joined(fitting, wide)) > width:
        fitting -= 1
    return joined(fitting, cells), len(important) - fitting


def texts(values: Mapping[str, tuple[str, int | None]]) -> list[str]:
    """Return the lines of text values by key, each with its epoch if that is known, indented.

    >>> texts({"valid/Confusion": ("4 1\\n0 5", 3)})
    ['  valid Confusion of epoch 3:', '    4 1', '    0 5']
    """
    shown: list[str] = []
    for key in ordered(values):
        text, epoch = values[key]
        of_epoch = "" if epoch is None else f" of epoch {epoch}"
        shown.append(f"  {printable(key.replace('/', ' ', 1))}{of_epoch}:")
        shown += [f"    {printable(line)}" for line in text.splitlines()]
    return shown


def _length(event: RunStarted) -> str:
    if event.num_steps is not None:
        return count(event.num_steps, "step")
    if event.num_epochs is None:
        return "no fixed length"
    epoch_length = f" of {count(event.steps_per_epoch, 'step')}" if event.steps_per_epoch else ""
    return count(event.num_epochs, "epoch") + epoch_length
