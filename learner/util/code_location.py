"""The line of the user's code that an error comes from."""

import traceback
from pathlib import Path

PACKAGE = str(Path(__file__).parents[1])


def code_location(error: BaseException) -> str:
    """Return the last line in the traceback that belongs to the user's code, or else the last line.

    >>> try:
    ...     open("")
    ... except OSError as error:
    ...     print(code_location(error))
    <doctest learner.util.code_location.code_location[0]>, line 2
    """
    frames = traceback.extract_tb(error.__traceback__)
    user_frames = [f for f in frames if "site-packages" not in f.filename and not f.filename.startswith((PACKAGE, "<"))]
    frame = (user_frames or frames)[-1]
    return f"{frame.filename}, line {frame.lineno}"
