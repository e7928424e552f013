"""The file names of metrics and splits."""

import os
import re
import unicodedata
from collections.abc import Sequence

from learner.errors import LearnerError

LONGEST_NAME = 200


def file_name(name: str) -> str:
    """Return the file name of a metric, or the directory name of a split: spaces become underscores.

    Raises:
      LearnerError: the name is not safe as a file name.

    >>> file_name("Top-5 Accuracy")
    'Top-5_Accuracy'
    """
    problem = _problem(name)
    if problem:
        raise LearnerError(
            f"{name!r} cannot be the name of a metric or split, because a file is named after it: {problem}",
            code="run-metric-name-unusable",
            name=name,
            reason=problem,
        )
    return name.replace(" ", "_")


def refuse_same_files(names: Sequence[str]) -> None:
    """Raise `LearnerError` if a name cannot be a file name, or if two names map to one file.

    >>> refuse_same_files(["Top-1 Accuracy", "Top-1_accuracy"])
    Traceback (most recent call last):
    learner.errors.LearnerError: 'Top-1 Accuracy' and 'Top-1_accuracy' would share their files: rename one
    """
    seen: dict[str, str] = {}
    for name in names:
        file = folded_name(file_name(name))
        if file in seen:
            raise LearnerError(
                f"{seen[file]!r} and {name!r} would share their files: rename one",
                code="run-metric-file-shared",
                name=name,
            )
        seen[file] = name


def folded_name(file: str) -> str:
    """Return a name in the normalized form in which some file systems compare names."""
    return unicodedata.normalize("NFC", file).casefold()


def _problem(name: str) -> str | None:
    if not name.strip():
        return "it is empty"
    if not name.isprintable():
        return "it contains a character that cannot be printed"
    if re.search(r"[/\\]", name):
        return "it contains a path separator"
    if name.startswith("."):
        return "it begins with a dot"
    if len(name.encode()) > LONGEST_NAME:
        return f"it is longer than {LONGEST_NAME} bytes"
    try:
        os.fsencode(name)
    except UnicodeEncodeError as error:  # otherwise the first write would raise it, in the middle of the run
        return (
            f"file names are encoded as {error.encoding} in this locale, which lacks {name[error.start]!r}; set "
            "LC_ALL=C.UTF-8 or PYTHONUTF8=1"
        )
    return None
