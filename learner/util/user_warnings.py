"""Warnings that point to the user's line, whatever lies between it and the code that warns."""

import contextlib
import functools
import sys
import threading
import warnings
from typing import Any, NamedTuple

from learner.util.code_location import PACKAGE

# Their functions call ours: context managers, cached properties, the first function of a thread.
BETWEEN = (PACKAGE, *(str(module.__file__) for module in (contextlib, functools, threading)))


class LearnerWarning(UserWarning):
    """The category of all warnings of `learner`, for Python's filters.

    >>> import warnings
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", LearnerWarning)   # a warning ends the run; "ignore" hides all
    ...     warn("the learning rate is high")
    Traceback (most recent call last):
    learner.util.user_warnings.LearnerWarning: the learning rate is high
    """


def is_ignored(text: str) -> bool:
    """Return True if a filter of Python for this category ignores a warning of a run, which its renderer shows.

    Raises:
      LearnerWarning: a filter makes the warning an error.
    """
    for action, message, category, *_ in warnings.filters:
        # Not those for every category: `simplefilter("ignore")`, common in notebooks, is not about these.
        if category is LearnerWarning and (message is None or message.match(text)):
            if action == "error":
                raise LearnerWarning(text)
            return action == "ignore"
    return False


class Line(NamedTuple):
    """A line of code: the global names of its module, its file and its number."""

    names: dict[str, Any]
    filename: str
    number: int


def users_line(depth: int = 1) -> Line:
    """Return the innermost line outside of this package, or the caller's in a thread that only this package runs.

    Python 3.12 has `skip_file_prefixes` for this.

    Args:
      depth: the number of calls from the caller to here.
    """
    caller = sys._getframe(depth)
    frame = caller
    while frame.f_code.co_filename.startswith(BETWEEN):
        if frame.f_back is None:
            frame = caller
            break
        frame = frame.f_back
    return Line(frame.f_globals, frame.f_code.co_filename, frame.f_lineno)


def warn(text: str, line: Line | None = None) -> None:
    """Warn at a line of the user's code. Default: see `users_line`."""
    names, filename, number = users_line(2) if line is None else line
    # As `warnings.warn` keeps them: the lines that have warned, which warn once by default.
    registry = names.setdefault("__warningregistry__", {})
    warnings.warn_explicit(text, LearnerWarning, filename, number, names.get("__name__", "<string>"), registry)
