"""The values of single steps of a running run, read once and kept in bounded memory."""

import bisect
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from learner.runs.series import LONGEST, first_column, location_of, step_before
from learner.runs.thinning import MOST, Floats, Series, Thinned, joined, merged, series_of, single

LARGE = 2 << 20
"""Bytes above which a series is sketched before it is read."""
PLACES = 256
"""The number of places that a sketch samples."""
BLOCK = 1024
"""Bytes that a sketch reads in each place."""


class GrowingSeries:
    """The values of a training metric at each optimizer step, read incrementally, each line once.

    Args:
      directory: the run directory.
      split: such as `train`.
      name: the name of the metric.
      most: the number of points to keep, an even number.
    """

    def __init__(self, directory: Path, split: str, name: str, most: int = MOST):
        self._place, self._file = location_of(directory, split, name)
        self._thinned = Thinned(most)
        self._epoch, self._at, self._rest, self._last = 0, 0, b"", 0
        self._sketch: Series | None = None

    def read(self, epochs: Sequence[int], ends: Mapping[int, int], limit: int) -> int:
        """Read further.

        Args:
          epochs: the epochs that have files, in order.
          ends: the last step of each epoch, where known.
          limit: bytes that may be read.

        Returns:
          The number of bytes read; fewer than `limit` at the end.

        Raises:
          ValueError: the file became shorter, because the run went back to an earlier step.
          OSError: a file cannot be read.
        """
        left = limit
        for epoch in epochs[bisect.bisect_left(epochs, self._epoch) :]:
            path = self._place / f"epoch-{epoch}" / self._file
            if epoch != self._epoch:
                self._epoch, self._at, self._rest = epoch, 0, b""
                has_file = os.path.isfile(path)
                self._last = step_before(path, epoch, ends, self._last) if has_file else ends.get(epoch - 1, self._last)
            left -= self._read(path, left)
            if left <= 0:
                return limit
        self._sketch = None
        return limit - left

    def _read(self, path: Path, limit: int) -> int:
        if not os.path.isfile(path):
            return 0
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < self._at:
                raise ValueError(f"{path} became shorter")
            file.seek(self._at)
            content = file.read(limit)
        self._at += len(content)
        lines, newline, self._rest = (self._rest + content).rpartition(b"\n")
        if newline:
            values = first_column(lines + newline)
            self._thinned.add(np.arange(self._last + 1, self._last + 1 + len(values)), values)
            self._last += len(values)
        elif len(self._rest) > LONGEST:
            self._rest = b""  # not written by a run
        return len(content)

    def sketch(self, epochs: Sequence[int], ends: Mapping[int, int]) -> None:
        """Sample large files, for a preview until they are read. The steps are approximate."""
        paths = [self._place / f"epoch-{epoch}" / self._file for epoch in epochs]
        sizes = [path.stat().st_size if os.path.isfile(path) else 0 for path in paths]
        if sum(sizes) < LARGE:
            return
        begins = np.cumsum([0, *sizes])
        blocks: list[tuple[int, int, Floats]] = []  # the file, the position in it, and the values there
        lines = read = 0
        for folder in np.linspace(0, begins[-1] - 1, PLACES).astype(int):
            number = int(np.searchsorted(begins, folder, "right")) - 1
            at = max(0, min(int(folder - begins[number]), sizes[number] - BLOCK))
            with paths[number].open("rb") as file:
                file.seek(at)
                block = file.read(BLOCK)
            inner = block[block.find(b"\n") + 1 : block.rfind(b"\n") + 1]
            values = first_column(inner) if inner else np.zeros(0)
            if len(values):  # there may be only the last line of an epoch
                lines, read = lines + len(values), read + len(inner)
                blocks.append((number, at, values))
        if lines:
            self._sketch = _sketch(blocks, list(epochs), sizes, ends, lines / read)

    def series(self, since: float = 0) -> Series:
        """Return the values known so far, from step `since` or earlier."""
        known = self._thinned.series(since)
        if self._sketch is None:
            return known
        return joined([known, self._sketch.after(self._last)], known.together)

    @property
    def last_step(self) -> int:
        """The newest known step; approximate while the series is sketched."""
        return max(self._last, 0 if self._sketch is None else int(self._sketch.step[-1]))

    @property
    def is_sketched(self) -> bool:
        """True if parts of the files have only been sampled so far."""
        return self._sketch is not None


def _sketch(
    blocks: Sequence[tuple[int, int, Floats]],
    epochs: Sequence[int],
    sizes: Sequence[int],
    ends: Mapping[int, int],
    lines_per_byte: float,
) -> Series:
    """Return the sampled values at approximate steps."""
    firsts, last = [], 0.0
    for epoch, size in zip(epochs, sizes, strict=True):
        firsts.append(float(ends.get(epoch - 1, last)))
        last = ends.get(epoch, firsts[-1] + size * lines_per_byte)
    points = []
    for number, at, values in blocks:
        step = np.full(len(values), int(firsts[number] + at * lines_per_byte) + len(values))
        points.append(merged(single(step, values), len(values))[:, 0])
    return series_of(np.stack(points, 1), len(blocks[0][2]))
