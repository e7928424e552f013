"""Finding the runs below directories."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from learner.errors import LearnerError, Problem, one_error
from learner.runs.layout import MARK, missing_text
from learner.runs.population import read_members
from learner.runs.run_reader import RunReader
from learner.util.several import as_several
from learner.util.text import by_number
from learner.util.user_warnings import warn

Places = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

DEEPEST = 4
"""The number of directory levels to search below the given directory."""


def find_runs(places: Places) -> list[RunReader]:
    """Return the runs at or below these directories, each once, with a unique name.

    See also `each_run`, which reads one run at a time.
    """
    return list(each_run(places))


def each_run(places: Places) -> Iterator[RunReader]:
    """Yield the runs at or below these directories, each once, with a unique name. Each run is read when it is
    requested.

    Args:
      places: directories of runs, or of directories with runs; a single one needs no list.

    Raises:
      LearnerError: there is no such directory, or no run in it.
    """
    directories, problems = run_directories(places)
    if problems:
        raise one_error(problems, "these runs cannot be read", code="run-unreadable")
    read = 0
    for path, name in zip(directories, names_of(directories), strict=True):
        try:
            yield RunReader(path, name)
            read += 1
        except LearnerError as error:
            problems.append(Problem(error, code=error.code, **error.fields))
    if not read:
        none = [Problem("there is no directory of a run among the arguments", code="run-unreadable")]
        raise one_error(problems or none, "these runs cannot be read", code="run-unreadable")
    for problem in problems:
        warn(f"{problem}; it is left out")


def run_directories(places: Places) -> tuple[list[Path], list[str]]:
    """Return the directories of runs at or below these paths, each once and in order, and the problems of paths without
    runs.
    """
    by_target: dict[Path, Path] = {}
    problems = []
    for folder in map(Path, as_several(places)):
        if not folder.is_dir():
            problems.append(missing_text(folder))
            continue
        inside = list(_directories(folder, DEEPEST))
        if not inside:
            problems.append(f"{folder} is not the directory of a run, and no run lies in it")
        by_target |= {directory.resolve(): directory for directory in reversed(inside)}
    return sorted(by_target.values(), key=lambda path: by_number(str(path.resolve()))), problems


def _directories(folder: Path, levels: int) -> Iterator[Path]:
    if os.path.isfile(folder / MARK):
        # The run of a population holds the means of its members, which are runs themselves.
        members = [folder / member["directory"] for member in read_members(folder)]
        yield from [path for path in members if os.path.isfile(path / MARK)] or [folder]
    elif levels:
        try:
            inner = sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
        except FileNotFoundError:
            return  # removed meanwhile
        except OSError as error:
            warn(f"{folder} is left out: {error.strerror}")
            return
        for path in inner:
            yield from _directories(path, levels - 1)


def names_of(directories: Sequence[Path]) -> list[str]:
    """Return the shortest suffixes that distinguish the paths."""
    parts = [path.resolve().parts for path in directories]
    for length in range(1, max(map(len, parts), default=1) + 1):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return list(map(str, directories))
