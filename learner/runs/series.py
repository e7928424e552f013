"""The values of each step, from the metric files of a run."""

import dataclasses
import io
import math
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from learner.errors import LearnerError
from learner.runs.metric_logs import file_name

CHUNK = 4 << 20  # bytes that are read at once
FINAL = b",final"
LONGEST = 1 << 20  # bytes of a line
Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Series:
    """A metric over the optimizer steps, where neighbouring steps may have been put together.

    Attributes:
      step: int64 `[points]`, the last step of each point.
      mean: float64 `[points]`, the value where a point is one step, else the mean of those that are finite, or NaN.
      low: float64 `[points]`, the least of those.
      high: float64 `[points]`, the greatest of those.
      together: how many steps a point has; the last one may have fewer.
    """

    step: Whole
    mean: Floats
    low: Floats
    high: Floats
    together: int = 1

    def __len__(self) -> int:
        return len(self.step)


def step_values(directory: Path, split: str, name: str, ends: Mapping[int, int], most: int | None = None) -> Series:
    """Reads a metric's files, a part at a time: memory does not grow with them where `most` is given.

    Args:
      directory: of the run.
      split: such as `train`.
      name: of the metric.
      ends: the last step of each epoch, where known. An epoch begins after the last step of the one before.
      most: how many points at most; `None`: one for each step.

    Raises:
      LearnerError: `most` is no positive number.
    """
    if most is not None and most < 1:
        raise LearnerError(f"most is {most}; it needs 1 or more")
    files = _files(directory, split, name)
    together = 1 if most is None else max(1, math.ceil(sum(_lines(path) for _, path in files) / most))
    points: list[list[np.ndarray]] = []
    steps, values = np.zeros(0, np.int64), np.zeros(0)
    last = 0
    for epoch, path in files:
        last = ends.get(epoch - 1, last)
        if epoch in ends and (missing := ends[epoch] - last - _lines(path)) > 0:
            last += missing  # of a metric that was not there when the epoch began
        for part in _parts(path):
            steps = np.concatenate([steps, np.arange(last + 1, last + 1 + len(part))])
            values = np.concatenate([values, part])
            last += len(part)
            whole = len(values) // together * together
            points.append(put_together(steps[:whole], values[:whole], together))
            steps, values = steps[whole:], values[whole:]
    points.append(put_together(steps, values, max(1, len(values))))
    step, mean, low, high = (np.concatenate(column) for column in zip(*points, strict=True))
    return Series(step, mean, low, high, together)


def thinned(step: Whole, values: Floats, most: int) -> list[np.ndarray]:
    """At most so many points: the last step, mean, least and greatest value of each.

    >>> [column.tolist() for column in thinned(np.arange(1, 6), np.array([1.0, 3, 5, 5, 9]), 3)]
    [[2, 4, 5], [2.0, 5.0, 9.0], [1.0, 5.0, 9.0], [3.0, 5.0, 9.0]]
    """
    size = max(1, math.ceil(len(values) / most))
    whole = len(values) // size * size
    rest = put_together(step[whole:], values[whole:], max(1, len(values) - whole))
    return [np.concatenate(pair) for pair in zip(put_together(step[:whole], values[:whole], size), rest, strict=True)]


def put_together(steps: Whole, values: Floats, size: int) -> list[np.ndarray]:
    """Each `size` neighbours as one point: the last step, and mean, least and greatest of what is finite."""
    if size == 1:
        return [steps, values, values, values]
    grouped = values.reshape(-1, size)
    fine = np.isfinite(grouped)
    count = fine.sum(1)
    total = np.where(fine, grouped, 0).sum(1)
    mean = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    low, high = np.where(fine, grouped, np.inf).min(1), np.where(fine, grouped, -np.inf).max(1)
    return [steps.reshape(-1, size)[:, -1], mean, *(np.where(count > 0, edge, np.nan) for edge in (low, high))]


def _lines(path: Path) -> int:
    """How many steps there are: lines, but for those of whole splits."""
    total, tail = 0, b""
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            read = tail + chunk  # a word that a read cuts in two is in the next one
            total += chunk.count(b"\n") - read.count(FINAL)
            tail = read[1 - len(FINAL) :]
    return total


def _files(directory: Path, split: str, name: str) -> list[tuple[int, Path]]:
    """The files of a metric, by epoch."""
    try:
        place, file = directory / file_name(split), f"{file_name(name)}.log"
    except LearnerError:
        return []  # a name that no file of a run can have
    found = []
    for path in place.glob("epoch-*"):
        number = path.name.removeprefix("epoch-")
        if number.isdecimal() and len(number) < 16 and is_plain(path / file):
            found.append((int(number), path / file))
    return sorted(found)


def has_steps(directory: Path, split: str, name: str) -> bool:
    """Whether a metric has values of steps."""
    return any(_lines(path) for _, path in _files(directory, split, name))


def is_plain(path: Path) -> bool:
    """Reading a pipe or a device would not end."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return False


def _parts(path: Path) -> Iterator[Floats]:
    """The values of the steps, float64 `[lines]`, some megabytes of lines at a time. A torn last line is left out."""
    with path.open("rb") as file:
        rest = b""
        while chunk := file.read(CHUNK):
            lines, newline, rest = (rest + chunk).rpartition(b"\n")
            if newline:
                yield first_column(lines + newline)
            elif len(rest) > LONGEST:
                return  # nothing that a run wrote


def first_column(lines: bytes) -> Floats:
    """The first column of lines `value,weight`; those of whole splits (`value,final`) are left out."""
    if FINAL in lines:
        kept = [line for line in lines.split(b"\n") if line and FINAL not in line]
        lines = b"\n".join(kept)
    if not lines.strip():
        return np.zeros(0)
    try:
        return np.loadtxt(io.BytesIO(lines), np.float64, comments=None, delimiter=",", usecols=0, ndmin=1)
    except ValueError:  # somebody wrote into it
        return np.array([_number(line) for line in lines.split(b"\n") if line])


def _number(line: bytes) -> float:
    try:
        return float(line.partition(b",")[0])
    except ValueError:
        return float("nan")
