"""The values of single steps, from the metric files of a run."""

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
Integers = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Series:
    """The values of a metric over optimizer steps, where neighbouring steps may be merged.

    Attributes:
      step: int64 `[points]`, the last step of each point.
      mean: float64 `[points]`, the value where a point is one step, else the mean of those that are finite, or NaN.
      low: float64 `[points]`, the least of those.
      high: float64 `[points]`, the greatest of those.
      together: how many steps a point has; the last one may have fewer.
    """

    step: Integers
    mean: Floats
    low: Floats
    high: Floats
    together: int = 1

    def __len__(self) -> int:
        return len(self.step)


def step_values(directory: Path, split: str, name: str, ends: Mapping[int, int], most: int | None = None) -> Series:
    """Read a metric's files in chunks: memory stays bounded if `most` is given.

    Args:
      directory: of the run.
      split: such as `train`.
      name: of the metric.
      ends: the last step of each epoch, where known. An epoch begins after the last step of the one before.
      most: the largest number of points; None returns one for each step.

    Raises:
      LearnerError: `most` is no positive number.
    """
    if most is not None and most < 1:
        raise LearnerError(f"most is {most}; it needs 1 or more", code="run-series-most-value", most=most)
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
            complete = len(values) // together * together
            points.append(put_together(steps[:complete], values[:complete], together))
            steps, values = steps[complete:], values[complete:]
    points.append(put_together(steps, values, max(1, len(values))))
    step, mean, low, high = (np.concatenate(column) for column in zip(*points, strict=True))
    return Series(step, mean, low, high, together)


def thinned(step: Integers, values: Floats, most: int) -> list[np.ndarray]:
    """At most so many points: the last step, mean, least and greatest value of each.

    >>> [column.tolist() for column in thinned(np.arange(1, 6), np.array([1.0, 3, 5, 5, 9]), 3)]
    [[2, 4, 5], [2.0, 5.0, 9.0], [1.0, 5.0, 9.0], [3.0, 5.0, 9.0]]
    """
    size = max(1, math.ceil(len(values) / most))
    complete = len(values) // size * size
    rest = put_together(step[complete:], values[complete:], max(1, len(values) - complete))
    return [
        np.concatenate(pair) for pair in zip(put_together(step[:complete], values[:complete], size), rest, strict=True)
    ]


def put_together(steps: Integers, values: Floats, size: int) -> list[np.ndarray]:
    """Merge each `size` neighbours: the last step, and mean, minimum and maximum of the finite values."""
    if size == 1:  # single values stay as they are, infinities too
        return [steps, values, values, values]
    series = series_of(merged(single(steps, values), size), size)
    return [series.step, series.mean, series.low, series.high]


def single(steps: Integers, values: Floats) -> Floats:
    """Return each value as a point; see `merged`."""
    fine = np.isfinite(values)
    edges = np.where(fine, values, np.inf), np.where(fine, values, -np.inf)
    return np.stack([steps, fine, np.where(fine, values, 0), *edges])


def merged(points: Floats, size: int) -> Floats:
    """Merge each `size` neighbours into one point: the last step, the number of finite values, their sum, minimum and
    maximum.
    """
    grouped = points.reshape(5, -1, size)
    step, count, total, low, high = grouped
    return np.stack([step[:, -1], count.sum(1), total.sum(1), low.min(1), high.max(1)])


def series_of(points: Floats, together: int) -> Series:
    """Return the points as a series; `together` is the number of steps in each."""
    step, count, total, low, high = points
    mean, low, high = (np.where(count > 0, column, np.nan) for column in (total / np.maximum(count, 1), low, high))
    return Series(step.astype(np.int64), mean, low, high, together)


def _lines(path: Path) -> int:
    """Return the number of steps: the lines without those of whole splits."""
    total, tail = 0, b""
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            read = tail + chunk  # a word that a read cuts in two is in the next one
            total += chunk.count(b"\n") - read.count(FINAL)
            tail = read[1 - len(FINAL) :]
    return total


def _files(directory: Path, split: str, name: str) -> list[tuple[int, Path]]:
    """Return the files of a metric, by epoch."""
    folder, file = location_of(directory, split, name)
    paths = [(epoch, folder / f"epoch-{epoch}" / file) for epoch in epochs_in(folder)]
    return [(epoch, path) for epoch, path in paths if is_plain(path)]


def location_of(directory: Path, split: str, name: str) -> tuple[Path, str]:
    """Return the directory with the epochs of a split, and the name of a metric's files in each."""
    try:
        return directory / file_name(split), f"{file_name(name)}.log"
    except LearnerError:  # a name that no file of a run can have
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


def is_plain(path: Path) -> bool:
    """Return True for a regular file; reading a pipe or a device would not end."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return False


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
