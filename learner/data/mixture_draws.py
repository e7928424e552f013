"""The rows of a mixture: the source of each row, and the row in that source, as functions of (seed, epoch)."""

import copy
import dataclasses
import itertools
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

# First words of the keys of the generators, which keep their streams apart.
_ROUNDING, _ARRANGEMENT, _WALK = range(3)


@dataclasses.dataclass(frozen=True)
class EpochRows:
    """The rows of one epoch, in order.

    Attributes:
      epoch: the epoch, from 1.
      source: the number of each row's source, unsigned `[size]`.
      row: the row number within the source, `[size]`.
      walk: the number of the pass through the source, from 1, int32 `[size]`.
    """

    epoch: int
    source: np.ndarray
    row: np.ndarray
    walk: np.ndarray


class MixtureDraws:
    """Arithmetic of the rows of a mixture.

    The sources share each epoch by systematic sampling: one random number per epoch rounds all shares, so that source
    `s` has `size * probability[s]` rows, rounded up or down, with exactly that expectation, and a random permutation
    distributes them over the epoch. Each row therefore comes from source `s` with exactly its probability. Integers and
    comparisons alone decide, so the rows are equal on every machine.

    The passes through a source continue from epoch to epoch, each in a new order.

    Args:
      lengths: rows of each source.
      weights: one for each source, with a sum above 0.
      size: rows per epoch.
      seed: 0 or more.

    >>> draws = MixtureDraws([2, 6], [Fraction(1), Fraction(3)], size=8, seed=0)
    >>> draws.counts(1).tolist(), draws.rows(1).source.tolist()
    ([2, 6], [0, 1, 0, 1, 1, 1, 1, 1])
    """

    def __init__(self, lengths: Sequence[int], weights: Sequence[Fraction], size: int, seed: int) -> None:
        self.lengths, self.size, self.seed = tuple(lengths), size, seed
        self._key: tuple[int, ...] = ()
        total = sum(weights)
        self.probabilities = tuple(weight / total for weight in weights)
        bounds = [size * bound for bound in itertools.accumulate(self.probabilities)]
        self._integers = np.array([int(bound) for bound in bounds], np.int64)
        self._rest = np.array([float(bound - int(bound)) for bound in bounds])

    def counts(self, epoch: int) -> np.ndarray:
        """Return the rows of each source in an epoch (from 1), int64 `[sources]`."""
        counts: np.ndarray = self.totals(epoch) - self.totals(epoch - 1)
        return counts

    def totals(self, epochs: int) -> np.ndarray:
        """Return the rows of each source in the first epochs together, int64 `[sources]`."""
        points = self._generator(_ROUNDING, 0, 0).random(epochs)
        bounds = [epochs * whole + np.count_nonzero(points < rest) for whole, rest in self._bounds()]
        return np.diff(np.array(bounds, np.int64), prepend=0)

    def sources(self, epoch: int) -> np.ndarray:
        """Return the number of the source of each row of an epoch (from 1), unsigned `[size]`."""
        counts = self.counts(epoch)
        numbers = np.arange(len(counts), dtype=np.min_scalar_type(len(counts)))
        return self._generator(_ARRANGEMENT, epoch, 0).permutation(np.repeat(numbers, counts))

    def rows(self, epoch: int) -> EpochRows:
        """Return the rows of an epoch (from 1). This permutes the epoch, and each source."""
        starts, counts, source = self.totals(epoch - 1), self.counts(epoch), self.sources(epoch)
        row = np.empty(self.size, np.int32 if max(self.lengths) <= 2**31 else np.int64)
        walk = np.empty(self.size, np.int32)
        for number, (start, count) in enumerate(zip(starts.tolist(), counts.tolist(), strict=True)):
            if count:
                places = np.flatnonzero(source == number)
                row[places], walk[places] = self._walk(number, start, start + count)
        return EpochRows(epoch, source, row, walk)

    def of_epoch(self, epoch: int) -> "MixtureDraws":
        """Return the draws of an epoch (from 1) without a size: its `sources` are drawn in blocks."""
        draws = copy.copy(self)
        draws._key = (epoch,)
        return draws

    def _walk(self, number: int, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows at positions `start` to `stop` of the passes through a source, and their passes (from 1)."""
        length = self.lengths[number]
        rows, walks = [], []
        for walk in range(start // length, (stop - 1) // length + 1):
            first, last = max(start - walk * length, 0), min(stop - walk * length, length)
            rows.append(self._generator(_WALK, number, walk).permutation(length)[first:last])
            walks.append(np.full(last - first, walk + 1, np.int32))
        return np.concatenate(rows), np.concatenate(walks)

    def _bounds(self) -> list[tuple[int, float]]:
        return list(zip(self._integers.tolist(), self._rest.tolist(), strict=True))

    def _generator(self, *key: int) -> np.random.Generator:
        return np.random.Generator(np.random.Philox(np.random.SeedSequence(self.seed, spawn_key=(*key, *self._key))))
