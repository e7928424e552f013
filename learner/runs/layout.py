"""The files of a run directory."""

import json
import os
from pathlib import Path
from typing import Any

from learner.errors import LearnerError
from learner.util.disk import read_bytes
from learner.util.user_warnings import warn

MARK = "journal.jsonl"
ENDS = ("num_epochs", "num_steps", "early stopping", "halving", "the end of the loop")
"""The prefixes of `stopped_by` in the summaries of runs with nothing left to train; the last one is used by
`RunWriter`.
"""
NONFINITE = "on_nonfinite"
"""The prefix of `stopped_by` of runs and members of populations that ended at numbers that are not finite."""


def end_word(stopped_by: str) -> str:
    """Return `ended` if this reason means that a run has nothing left to train, else `stopped`.

    >>> end_word("early stopping: valid/Loss"), end_word("ctrl-c")
    ('ended', 'stopped')
    """
    return "ended" if stopped_by.startswith(ENDS) else "stopped"


def missing_text(directory: str | os.PathLike[str]) -> str:
    """Return the problem of a path that is not a directory.

    >>> missing_text("/no/such/run")
    'there is no directory /no/such/run'
    """
    if os.path.isfile(directory):
        return f"{directory} is a file: give the directory of a run"
    return f"there is no directory {directory}"


def read_summary(directory: Path) -> dict[str, Any] | None:
    """Return the content of `summary.json`, or None if it cannot be read. A file that is too large is ignored with a
    warning.
    """
    path = directory / "summary.json"
    try:
        summary = json.loads(read_bytes(path)) if path.is_file() else None
    except LearnerError as error:
        warn(str(error))
        return None
    except (OSError, ValueError, RecursionError):
        return None
    return summary if isinstance(summary, dict) else None
