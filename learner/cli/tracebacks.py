"""Tracebacks of errors in the user's code, without the frames of libraries."""

import os
import sysconfig
import traceback
from pathlib import Path

from learner.util.text import count, printable

FULL = "LEARNER_TRACEBACK"
"""The environment variable that requests all frames."""
PATHS = str(Path(__file__).parents[1]), *map(sysconfig.get_path, ("purelib", "platlib", "stdlib", "platstdlib"))
LIBRARIES = tuple(os.path.join(path, "") for path in PATHS)
OF_JAX = "--------------------"
"""The start of JAX's note about frames that it has removed."""


def own_traceback(error: BaseException) -> str | None:
    """Return the traceback of an error with only the frames of the user's files. Return None if there are none, as in
    an error of a library, or if the environment requests all frames.

    >>> own_traceback(ValueError("raised by nobody"))
    """
    if os.environ.get(FULL):
        return None
    trace = traceback.TracebackException.from_exception(error)
    frames = _keep_own(trace)
    if not trace.stack:
        return None
    note = f"({count(frames, 'frame')} of libraries left out; the log of a run and {FULL}=1 have them)"
    return "\n".join(map(printable, ("".join(trace.format()) + note).split("\n")))


def _keep_own(error: traceback.TracebackException) -> int:
    """Remove the frames of libraries from an error and its causes. Return their number."""
    own = [frame for frame in error.stack if not frame.filename.startswith((*LIBRARIES, "<"))]
    removed = len(error.stack) - len(own)
    error.stack = traceback.StackSummary.from_list(own)
    error.__notes__ = [note for note in error.__notes__ or () if not note.startswith(OF_JAX)]
    # The origin of an error that was raised again, as JAX does to remove frames and we to check whether it depends on
    # tracing.
    if error.__context__ is not None and str(error.__context__) == str(error):
        error.__context__ = None
    return removed + sum(_keep_own(cause) for cause in (error.__cause__, error.__context__) if cause is not None)
