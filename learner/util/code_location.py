"""The line of the user's code that raised an error."""

import os
import sys
import traceback
from pathlib import Path

PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"  # not also a neighbor, such as learner_experiments
TYPED = ("<stdin>", "<python-input-", "<ipython-input-")  # of Python up to 3.12, of Python from 3.13 on, of IPython


def code_location(error: BaseException, callers: int = 0) -> str:
    """Return the last line in the traceback that belongs to the user's code, or else the last line.

    Args:
      error: the exception.
      callers: the maximum number of calling lines of the user's code to add: a layer that a model uses twelve times
        always raises in the same line.

    >>> try:
    ...     open("")
    ... except OSError as error:
    ...     print(code_location(error))
    <doctest learner.util.code_location.code_location[0]>, line 2
    """
    frames = traceback.extract_tb(error.__traceback__)
    # An error in the gradient of an operation has the operation's traceback, by JAX, as its cause.
    of_cause = traceback.extract_tb(None if error.__cause__ is None else error.__cause__.__traceback__)
    own, earlier = ([each for each in part if _is_users(each.filename)] for part in (frames, of_cause))
    *outer, frame = own or earlier or frames[-1:]
    shown = outer[::-1][:callers]
    files = ["" if each.filename == frame.filename else f"{_name_of(each.filename)}, " for each in shown]
    lines = [f"{file}line {each.lineno}" for file, each in zip(files, shown, strict=True)]
    called = f", called from {', from '.join(lines)}" if lines else ""
    return f"{_name_of(frame.filename)}, line {frame.lineno}{called}"


def _is_users(filename: str) -> bool:
    return filename.startswith(TYPED) or not ("site-packages" in filename or filename.startswith((PACKAGE, "<")))


def _name_of(filename: str) -> str:
    """Return the name of a file; for a cell of IPython or a notebook, the name in its tracebacks."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    format_name = getattr(getattr(shell, "compile", None), "format_code_name", None)  # IPython 8 and later
    cell = None if format_name is None else format_name(filename)
    return filename if cell is None else " ".join(cell)
