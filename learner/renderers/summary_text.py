"""The summary of a run as text: best and last value of each metric, time, files, and the next commands."""

import importlib.util
import os
import shlex
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from learner.runs.layout import end_word
from learner.runs.population import member_index
from learner.util.json_values import decode
from learner.util.metric_order import ordered
from learner.util.number_checks import is_finite
from learner.util.text import abbreviate, aligned, count, duration, fitted_rows, printable, short

TITLES = ("metric", "best", "epoch", "last")
TIMES = {
    "compile": "compiling",
    "data": "waiting for data",
    "train": "training",
    "valid": "validation",
    "save": "saving",
    "other": "the rest",
    "unknown": "not broken down",
}
"""The parts of a run's time, and their names in the text."""
NEWEST = 8
"""Checkpoints that are named, besides the best one."""
LENGTHS = {"num_epochs": "epochs", "num_steps": "steps"}
"""The ends of completed runs, and the unit that they count."""


def heading(summary: Mapping[str, Any]) -> str:
    """Return the length of the run and the reason for its end."""
    length = f"{count(summary['epochs'], 'epoch')}, {count(summary['steps'], 'step')}"
    reason = str(summary["stopped_by"])
    return f"{length}, {end_word(reason)}: {printable(reason)}"


def table(summary: Mapping[str, Any], width: int | None = None) -> list[list[str]]:
    """Return a row of texts for each numeric metric, after a row of titles: name, best value, its epoch, last value.

    Args:
      summary: the content of `summary.json`.
      width: the width of the terminal in characters; None for no limit. If it is short, the epoch is omitted, then the
        best value.
    """
    rows = [list(TITLES)]
    numeric = {key: metric for key, metric in summary["metrics"].items() if not _is_text(metric)}
    for key in ordered(numeric):
        metric = numeric[key]
        unit = f" ({metric['unit']})" if metric.get("unit") else ""
        best, last = metric["best"], metric["last"]
        epoch = printable(str(best["epoch"])) if best else "-"
        rows.append([printable(key + unit), _text(best), epoch, _text(last)])
    names, *columns = zip(*rows, strict=True)
    return fitted_rows(names, dict(zip(TITLES[1:], columns, strict=True)), width, ("epoch", "best"), abbreviate)


def places(summary: Mapping[str, Any], directory: str | os.PathLike[str] | None) -> list[str]:
    """Return the directory and the paths of the best and the newest checkpoints in it."""
    lines = [f"directory: {printable(os.fspath(directory))}"] if directory is not None else []
    if entries := summary["checkpoints"]:
        named = [entry for entry in entries[:-NEWEST] if entry.get("best") is True][:1] + entries[-NEWEST:]
        more = f" and {len(entries) - len(named)} more" if len(entries) > len(named) else ""
        lines.append(f"checkpoints: {', '.join(map(_checkpoint, named))}{more}")
    return lines


def times(summary: Mapping[str, Any]) -> list[str]:
    """Return a line with the running time by part, or no line if the summary lacks it, as in older runs.

    >>> times({"seconds": {"total": 5.1, "compile": 1.2, "data": 0.0, "train": 3.9}})
    ['time: 5.1 s: compiling 1.2 s (24 %), training 3.9 s (76 %)']
    """
    measured = summary.get("seconds")
    seconds = {key: float(x) for key, x in measured.items() if _is_time(x)} if isinstance(measured, Mapping) else {}
    total = seconds.get("total", 0.0)
    parts = [(TIMES[key], seconds[key]) for key in TIMES if seconds.get(key, 0.0) >= 0.01 * total > 0]
    commands = ", ".join(f"{what} {duration(part)} ({100 * part / total:.0f} %)" for what, part in parts)
    return [f"time: {duration(total)}: {commands}"] if commands else []


def following(summary: Mapping[str, Any], directory: str | os.PathLike[str] | None) -> list[str]:
    """Return the commands for a run that has a `config.yaml`, else the calls in Python, one per line, after a title.
    `learner report` is omitted if plotly is not installed.

    >>> saved = {"stopped_by": "num_epochs", "epochs": 3, "checkpoints": [{}], "metrics": {"valid/Loss": {}}}
    >>> print(*following({**saved, "artifacts": ["config.yaml"]}, "runs/a"), sep="\\n")
    next:
      learner evaluate runs/a
      learner resume runs/a --num_epochs=6
      learner report runs/a
    >>> print(*following({**saved, "artifacts": []}, "runs/a"), sep="\\n")
    next:
      learner.evaluate(data)          # in Python
      builder.num_epochs(6).resume()  # in Python
      learner report runs/a           # in a shell
    """
    if directory is None:
        return []
    path, has_config = shlex.quote(printable(os.fspath(directory))), "config.yaml" in summary["artifacts"]
    commands = []
    is_member = member_index(Path(directory)) is not None
    saved = summary["checkpoints"] or (is_member and has_config)  # the checkpoints of a member belong to its population
    if is_member:
        commands.append(f"learner compare {shlex.quote(printable(os.fspath(Path(directory).parent)))}")
    if "population.json" in summary["artifacts"]:  # members are evaluated one by one
        commands += ["print(result.table())", f"learner compare {path}"]
    elif saved and any(key.startswith("valid") for key in summary["metrics"]):
        commands.append(f"learner evaluate {path}" if has_config else "learner.evaluate(data)")
    why = str(summary["stopped_by"])
    if saved and why in LENGTHS:
        longer = 2 * summary[LENGTHS[why]]
        commands.append(
            f"learner resume {path} --{why}={longer}" if has_config else f"builder.{why}({longer}).resume()"
        )
    elif summary["checkpoints"] and not why.startswith("early stopping") and not is_member:
        commands.append(f"learner resume {path}" if has_config else "builder.resume()")
    if importlib.util.find_spec("plotly") is not None:  # only advice that works with this installation
        commands.append(f"learner report {path}")
    return ["next:", *(f"  {command}" for command in _with_places(commands))] if commands else []


def _with_places(commands: list[str]) -> list[str]:
    """Return the commands; if some are Python, each with a comment that says where to type it."""
    is_shell = [command.startswith("learner ") for command in commands]
    if all(is_shell):
        return commands
    width = max(map(len, commands))
    words = ["in a shell" if each else "in Python" for each in is_shell]
    return [f"{command:<{width}}  # {word}" for command, word in zip(commands, words, strict=True)]


def summary_lines(
    summary: Mapping[str, Any], directory: str | os.PathLike[str] | None = None, texts_shown: Collection[str] = ()
) -> list[str]:
    """Return the table and the paths as lines without control characters. `texts_shown`: see `endings`.

    >>> best = {"value": 0.25, "epoch": 2, "step": 90}
    >>> loss = {"unit": "", "higher_is_better": False, "best": best, "last": {"value": 0.5, "epoch": 3, "step": 135}}
    >>> summary = {"stopped_by": "num_epochs", "epochs": 3, "steps": 135, "metrics": {"valid/Loss": loss},
    ...            "artifacts": ["valid"], "checkpoints": [{"epoch": 3, "step": 135, "path": "checkpoint/135"}]}
    >>> print("\\n".join(summary_lines(summary, "runs/a")))
    metric      best  epoch  last
    valid/Loss  0.25      2   0.5
    directory: runs/a
    checkpoints: checkpoint/135 (epoch 3)
    next:
      learner.evaluate(data)          # in Python
      builder.num_epochs(6).resume()  # in Python
      learner report runs/a           # in a shell
    """
    return aligned(table(summary)) + endings(summary, directory, texts_shown)


def endings(
    summary: Mapping[str, Any], directory: str | os.PathLike[str] | None = None, texts_shown: Collection[str] = ()
) -> list[str]:
    """Return the lines after the table: the number of text metrics that are not shown, the time, the paths, and the
    next commands. `texts_shown`: the keys of the text metrics that stand above the table.
    """
    texts = sum(_is_text(metric) and key not in texts_shown for key, metric in summary["metrics"].items())
    left_out = [f"{count(texts, 'text metric')} not shown"] if texts else []
    return [*left_out, *times(summary), *places(summary, directory), *following(summary, directory)]


def _is_text(metric: Mapping[str, Any]) -> bool:
    last = metric.get("last") or {"value": None}
    return isinstance(decode(last["value"]), str)


def _is_time(value: Any) -> bool:
    return is_finite(value) and value >= 0


def _text(point: Mapping[str, Any] | None) -> str:
    return short(decode(point["value"])) if point else "-"


def place_of(epoch: int | None, step: int | None) -> str:
    """Return the position of a checkpoint among the epochs.

    >>> place_of(3, 135), place_of(None, 140), place_of(None, 0)
    ('epoch 3', 'inside an epoch', 'before the first epoch')
    """
    return f"epoch {epoch}" if epoch else "before the first epoch" if step == 0 else "inside an epoch"


def _checkpoint(entry: Mapping[str, Any]) -> str:
    marks = [place_of(entry["epoch"], entry.get("step"))] + [name for name, value in entry.items() if value is True]
    return printable(f"{entry['path']} ({', '.join(marks)})")
