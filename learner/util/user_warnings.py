"""Warnings that point to the user's line, whatever lies between it and the code that warns."""

import contextlib
import functools
import sys
import threading
import warnings

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
    """Return True if a filter of Python for this category ignores a warning that does not go through `warnings`, as
    those of a run do not: its renderer shows them.

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


def warn(text: str) -> None:
    """Warn at the innermost line outside of this package, or at the caller's in a thread that only this package runs.

    Python 3.12 has `skip_file_prefixes` for this.
    """
    caller = sys._getframe(1)
    frame = caller
    while frame.f_code.co_filename.startswith(BETWEEN):
        if frame.f_back is None:
            frame = caller
            break
        frame = frame.f_back
    names, filename, line = frame.f_globals, frame.f_code.co_filename, frame.f_lineno
    # As `warnings.warn` keeps them: the lines that have warned, which warn once by default.
    registry = names.setdefault("__warningregistry__", {})
    warnings.warn_explicit(text, LearnerWarning, filename, line, names.get("__name__", "<string>"), registry)
