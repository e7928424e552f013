"""The values of single steps, from the metric files of a run."""

import io
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from learner.errors import LearnerError
from learner.runs.file_names import file_name
from learner.runs.thinning import Floats, Series, group_size, joined, thin

CHUNK = 4 << 20  # bytes that are read at once
FINAL = b",final"
LONGEST = 1 << 20  # bytes of a line


def step_values(directory: Path, split: str, name: str, ends: Mapping[int, int], most: int | None = None) -> Series:
    """Read a metric's files in chunks: memory stays bounded if `most` is given.

    Args:
      directory: the run directory.
      split: such as `train`.
      name: the name of the metric.
      ends: the last step of each epoch, where known. An epoch begins after the last step of the previous one.
      most: the largest number of points; None returns one for each step.

    Raises:
      LearnerError: `most` is not a positive number.
    """
    if most is not None and most < 1:
        raise LearnerError(f"most is {most}; it needs 1 or more", code="run-series-most-value", most=most)
    files = _files(directory, split, name)
    together = 1 if most is None else group_size(sum(_lines(path) for _, path in files), most)
    points: list[Series] = []
    steps, values = np.zeros(0, np.int64), np.zeros(0)
    last = 0
    for epoch, path in files:
        last = step_before(path, epoch, ends, last)
        for part in _parts(path):
            steps = np.concatenate([steps, np.arange(last + 1, last + 1 + len(part))])
            values = np.concatenate([values, part])
            last += len(part)
            complete = len(values) // together * together
            points.append(thin(steps[:complete], values[:complete], together))
            steps, values = steps[complete:], values[complete:]
    return joined([*points, thin(steps, values, together)], together)


def step_before(path: Path, epoch: int, ends: Mapping[int, int], last: int) -> int:
    """Return the step before the first one in a metric's file of an epoch.

    Args:
      path: the file.
      epoch: the number of the epoch.
      ends: the last step of each epoch, where known.
      last: the last step of the files of earlier epochs.
    """
    before = ends.get(epoch - 1, last)
    missing = ends[epoch] - before - _lines(path) if epoch in ends else 0
    return before + max(missing, 0)  # a metric may be new since a resume inside the epoch


def _lines(path: Path) -> int:
    """Return the number of steps: the lines that are not values of whole splits."""
    total, tail = 0, b""
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            read = tail + chunk  # a word that is split between two reads is counted in the next one
            total += chunk.count(b"\n") - read.count(FINAL)
            tail = read[1 - len(FINAL) :]
    return total


def _files(directory: Path, split: str, name: str) -> list[tuple[int, Path]]:
    """Return the files of a metric, by epoch."""
    folder, file = location_of(directory, split, name)
    paths = [(epoch, folder / f"epoch-{epoch}" / file) for epoch in epochs_in(folder)]
    return [(epoch, path) for epoch, path in paths if os.path.isfile(path)]


def location_of(directory: Path, split: str, name: str) -> tuple[Path, str]:
    """Return the directory with the epochs of a split, and the name of a metric's files in each."""
    try:
        return directory / file_name(split), f"{file_name(name)}.log"
    except LearnerError:  # a name that no file of a run has
        return directory / "no such split", "no such metric.log"


def epochs_in(folder: Path) -> list[int]:
    """Return the numbers of `epoch-1`, `epoch-2`, ... in a directory."""
    try:
        names = [entry.name.removeprefix("epoch-") for entry in os.scandir(folder) if entry.name.startswith("epoch-")]
    except OSError:
        return []
    return sorted({int(name) for name in names if name.isdecimal() and len(name) < 16})


def has_steps(directory: Path, split: str, name: str) -> bool:
    """Return True if a metric has values of single steps."""
    return any(_lines(path) for _, path in _files(directory, split, name))


def _parts(path: Path) -> Iterator[Floats]:
    """Yield the values of the steps, float64 `[lines]`, some megabytes of lines at a time. A partial last line is left
    out.
    """
    with path.open("rb") as file:
        rest = b""
        while chunk := file.read(CHUNK):
            lines, newline, rest = (rest + chunk).rpartition(b"\n")
            if newline:
                yield first_column(lines + newline)
            elif len(rest) > LONGEST:
                return  # nothing that a run wrote


def first_column(lines: bytes) -> Floats:
    """Return the first column of lines `value,weight`, without the lines of whole splits (`value,final`)."""
    if FINAL in lines:
        kept = [line for line in lines.split(b"\n") if line and FINAL not in line]
        lines = b"\n".join(kept)
    if not lines.strip():
        return np.zeros(0)
    try:
        return np.loadtxt(io.BytesIO(lines), np.float64, comments=None, delimiter=",", usecols=0, ndmin=1)
    except ValueError:  # the file was edited
        return np.array([_number(line) for line in lines.split(b"\n") if line])


def _number(line: bytes) -> float:
    try:
        return float(line.partition(b",")[0])
    except ValueError:
        return float("nan")
