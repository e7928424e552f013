"""Members of a sweep that other processes train at the same time."""

import os
from pathlib import Path

from learner.errors import NonFiniteError
from learner.runs.layout import MARK
from learner.runs.run_reader import RunReader

Version = tuple[int, int, int]


def journal_version(directory: Path) -> Version | None:
    """Return numbers that change with the journal of a run, or None if there is no run."""
    try:
        status = os.stat(directory / MARK)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def nonfinite_failure(directory: Path, since: Version | None) -> str:
    """Return the error of a run that another process has ended at a loss that is not finite, or an empty text. To train
    it once more would end there again.

    Args:
      directory: the run directory.
      since: the version of the journal when this process began.
    """
    if journal_version(directory) in (since, None):
        return ""
    status, kind = RunReader(directory).status, NonFiniteError.__name__
    if status.word != "failed" or not status.why.startswith(f"{kind}("):
        return ""
    text = status.why.removeprefix(f"{kind}(").removesuffix(")")[1:-1]  # without the quotes of its repr
    return f"{kind}: {text}".partition("\\n")[0]
