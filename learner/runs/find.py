"""The runs in directories."""

import os
import re
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from learner.errors import LearnerError, one_error
from learner.runs.layout import MARK
from learner.runs.run import Run

DEEPEST = 4
"""Levels of directories below the one that was named."""


def find_runs(places: Sequence[str | os.PathLike[str]], now: float | None = None) -> list[Run]:
    """The runs that are these directories, or that lie in them; each once, with a name that no other has.

    See `each_run`, which reads one after another.
    """
    return list(each_run(places, now))


def each_run(places: Sequence[str | os.PathLike[str]], now: float | None = None) -> Iterator[Run]:
    """The runs that are these directories, or that lie in them; each once, with a name that no other has. It is read
    when it is asked for.

    Args:
      places: directories of runs, or of directories with runs.
      now: the seconds since 1970.

    Raises:
      LearnerError: there is no such directory, or no run in it.
    """
    directories, problems = run_directories(places)
    if problems:
        raise one_error(problems, "these runs cannot be read")
    read = 0
    for path, name in zip(directories, names_of(directories), strict=True):
        try:
            yield Run(path, name, now)
            read += 1
        except LearnerError as error:
            problems.append(str(error))
    if not read:
        raise one_error(problems, "these runs cannot be read")
    for problem in problems:
        warnings.warn(f"{problem}; it is left out", stacklevel=2)


def run_directories(places: Sequence[str | os.PathLike[str]]) -> tuple[list[Path], list[str]]:
    """The directories of runs in these places, each once and in order, and what is wrong with places that have none."""
    found: dict[Path, Path] = {}
    problems = []
    for place in map(Path, places):
        if not place.is_dir():
            problems.append(f"there is no directory {place}")
            continue
        inside = list(_directories(place, DEEPEST))
        if not inside:
            problems.append(f"{place} is not the directory of a run, and no run lies in it")
        found |= {directory.resolve(): directory for directory in reversed(inside)}
    return sorted(found.values(), key=_by_number), problems


def _directories(place: Path, levels: int) -> Iterator[Path]:
    try:
        if (place / MARK).is_file():
            yield place
            return
    except OSError:
        pass  # listing it fails too, and is told
    if levels:
        try:
            inner = sorted(path for path in place.iterdir() if path.is_dir() and not path.is_symlink())
        except FileNotFoundError:
            return  # removed meanwhile
        except OSError as error:
            warnings.warn(f"{place} is left out: {error.strerror}", stacklevel=2)
            return
        for path in inner:
            yield from _directories(path, levels - 1)


def names_of(directories: Sequence[Path]) -> list[str]:
    """The last parts of the paths, as many as tell them apart."""
    parts = [path.resolve().parts for path in directories]
    for length in range(1, max(map(len, parts), default=1) + 1):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return list(map(str, directories))


def _by_number(path: Path) -> list[tuple[int, str]]:
    """So that `run-10` comes after `run-9`."""
    words = re.split(r"(\d+)", str(path.resolve()))
    return [(int(word), "") if word.isdecimal() else (-1, word) for word in words]
