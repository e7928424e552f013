"""The line of the user's code that an error comes from."""

import sys
import traceback
from pathlib import Path

PACKAGE = str(Path(__file__).parents[1])
TYPED = ("<stdin>", "<python-input-", "<ipython-input-")  # of Python up to 3.12, of Python from 3.13 on, of IPython


def code_location(error: BaseException) -> str:
    """Return the last line in the traceback that belongs to the user's code, or else the last line.

    >>> try:
    ...     open("")
    ... except OSError as error:
    ...     print(code_location(error))
    <doctest learner.util.code_location.code_location[0]>, line 2
    """
    frames = traceback.extract_tb(error.__traceback__)
    frame = ([frame for frame in frames if _is_users(frame.filename)] or frames)[-1]
    return f"{_name_of(frame.filename)}, line {frame.lineno}"


def _is_users(filename: str) -> bool:
    return filename.startswith(TYPED) or not ("site-packages" in filename or filename.startswith((PACKAGE, "<")))


def _name_of(filename: str) -> str:
    """Return the name of a file; of a cell of IPython or a notebook, the one that their tracebacks show."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    cell = None if shell is None else shell.compile.format_code_name(filename)
    return filename if cell is None else " ".join(cell)
