"""The lines of `journal.jsonl`: one JSON object per event of a run that is not a step.

Each has `event` (start, validation, epoch, save, stop, end, error) and `time` (seconds since 1970, UTC). Those after
`start` have `elapsed`: the seconds since then, which setting the clock does not change. The lines
`epoch` and `validation` (a validation inside an epoch) are the run's history: they also have `epoch`, `step` and
`values` by key; no value is on two lines. A line `epoch` also has `files`: the length and the CRC-32 of each metric log
of that epoch, by relative path.

    {"event": "epoch", "time": 1769860800.5, "epoch": 1, "step": 45, "values": {"train/Loss": 0.5, "valid/Loss": "NaN"}}

JSON cannot represent numbers that are not finite, so they are the strings "NaN", "Infinity" and "-Infinity".
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from learner.errors import LearnerError
from learner.util.disk import read_lines
from learner.util.number_checks import is_finite
from learner.util.user_warnings import warn

NUMBERS = ("epoch", "validation")
ENDS = ("stop", "end")
EVALUATION = "evaluation"
"""The event in the lines of `learner.runs.evaluations`."""
OBSERVER_KEYS = ("metric_loggers", "renderer")
"""Keys of a config that only observe a run. They are not passed on, because an address in them may be secret."""
LARGEST = 2**53
"""The largest plausible number of an epoch or a step."""


def read_journal(directory: str | os.PathLike[str]) -> list[tuple[bytes, dict[str, Any]]]:
    """Return the lines of `journal.jsonl`, each as bytes and parsed.

    A last line without a line end was torn when the run was killed, and is left out. Any other damaged line, or one
    that no run writes, becomes `{}`, with a warning that names it.

    Raises:
      LearnerError: there is no journal, or no run wrote it: it is too large, or a line does not end.
    """
    path = Path(directory, "journal.jsonl")
    if not path.is_file():  # reading a pipe or a device might never end
        raise LearnerError(
            f"{directory} has no journal.jsonl: it is not the directory of a run",
            code="run-not-a-run",
            directory=directory,
        )
    lines = (line.removesuffix(b"\n") for line in read_lines(path))
    return [(line, entry_of(line, f"{path}, line {number}")) for number, line in enumerate(lines, 1)]


def entry_of(line: bytes, location: str) -> dict[str, Any]:
    """Parse a line of the journal. Return an empty dict for a damaged line, with a warning that names its position
    `location`.
    """
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        entry = None
    if not isinstance(entry, dict) or (entry.get("event") in (*NUMBERS, EVALUATION) and not _is_history(entry)):
        warn(f"{location} is damaged and is left out")
        return {}
    return entry


def _is_history(entry: Mapping[str, Any]) -> bool:
    """Return True if a line has the fields that the history reads."""
    values, epoch, step = (entry.get(name) for name in ("values", "epoch", "step"))
    return (
        isinstance(epoch, int)
        and isinstance(step, int)
        and 0 <= epoch < LARGEST
        and 0 <= step < LARGEST
        and isinstance(values, dict)
        and all(map(is_value, values.values()))
        and all("/" in key for key in values)
        and (entry["event"] != EVALUATION or (is_finite(entry.get("time")) and _are_infos(entry.get("metrics"))))
    )


def _are_infos(metrics: Any) -> bool:
    """Return True for a valid mapping of metrics' units and directions by key."""
    return isinstance(metrics, dict) and all(
        "/" in key
        and isinstance(info, dict)
        and isinstance(info.get("unit"), str)
        and isinstance(info.get("higher_is_better"), bool | None)
        for key, info in metrics.items()
    )


def is_value(value: Any) -> bool:
    """Return True if a parsed JSON value can be a metric's value: a text, or a number that is not absurdly large."""
    return isinstance(value, float | str) or (isinstance(value, int) and value.bit_length() < 1024)
