"""The summary of a run as text: the best and the last value of each metric, and where everything is."""

import os
from collections.abc import Mapping
from typing import Any

from learner.journal import decode
from learner.text import aligned, count, printable, short


def heading(summary: Mapping[str, Any]) -> str:
    """How long the run was and why it ended."""
    length = f"{count(summary['epochs'], 'epoch')}, {count(summary['steps'], 'step')}"
    return f"{length}, ended by: {printable(str(summary['stopped_by']))}"


def table(summary: Mapping[str, Any]) -> list[list[str]]:
    """A row of four texts for each metric, after a row of titles."""
    rows = [["metric", "best", "epoch", "last"]]
    for key, metric in summary["metrics"].items():
        unit = f" ({metric['unit']})" if metric.get("unit") else ""
        best, last = metric["best"], metric["last"]
        epoch = printable(str(best["epoch"])) if best else "-"
        rows.append([printable(key + unit), _text(best), epoch, _text(last)])
    return rows


def places(summary: Mapping[str, Any], directory: str | os.PathLike[str] | None) -> list[str]:
    """Where the checkpoints and the other files are."""
    lines = [f"directory: {printable(os.fspath(directory))}"] if directory is not None else []
    if summary["checkpoints"]:
        lines.append("checkpoints: " + ", ".join(map(_checkpoint, summary["checkpoints"])))
    return [*lines, "files: " + ", ".join(map(printable, summary["artifacts"]))]


def summary_lines(summary: Mapping[str, Any], directory: str | os.PathLike[str] | None = None) -> list[str]:
    """The table and the places as lines without control characters.

    >>> best = {"value": 0.25, "epoch": 2, "step": 90}
    >>> loss = {"unit": "", "higher_is_better": False, "best": best, "last": {"value": 0.5, "epoch": 3, "step": 135}}
    >>> summary = {"stopped_by": "epochs", "epochs": 3, "steps": 135, "metrics": {"valid/Loss": loss},
    ...            "artifacts": ["valid"], "checkpoints": [{"epoch": 3, "step": 135, "path": "checkpoint/135"}]}
    >>> print("\\n".join(summary_lines(summary, "runs/a")))
    metric      best  epoch  last
    valid/Loss  0.25      2   0.5
    directory: runs/a
    checkpoints: checkpoint/135 (epoch 3)
    files: valid
    """
    return aligned(table(summary)) + places(summary, directory)


def _text(point: Mapping[str, Any] | None) -> str:
    return short(decode(point["value"])) if point else "-"


def _checkpoint(entry: Mapping[str, Any]) -> str:
    where = "inside an epoch" if entry["epoch"] is None else f"epoch {entry['epoch']}"
    marks = [where] + [name for name, value in entry.items() if value is True]
    return printable(f"{entry['path']} ({', '.join(marks)})")
