"""Means, variances and covariances of pairs of numbers, merged without losing digits."""

import dataclasses
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np

from learner.metrics.base import Array, CompensatedSum

# The rows of the state: how many pairs, their means, and sums of products of distances from the means.
COUNT, MEAN_X, MEAN_Y, XX, YY, XY = range(6)
# A mean square, 1000 times the smallest normal float32: below it more than a thousandth of the squares may be zero.
LEAST = 1000 * float(np.finfo(np.float32).tiny)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Moments:
    """First and second moments of pairs (x, y), for each of several outputs.

    Squares are of distances from a mean, never of the numbers: 10 000.3 and 10 000.4 are as distinct as 0.3 and 0.4.
    A value of the batch is subtracted first, then the mean of the differences, so that equal numbers have a variance of
    exactly 0. Batches are merged by the distance of their means; means and sums have 48 bits.

    Source: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979.

    Attributes:
      rows: sums of shape `[6, outputs]`: pairs, mean of x, mean of y, `Σ(x - x̄)²`, `Σ(y - ȳ)²`, `Σ(x - x̄)(y - ȳ)`.

    >>> x = jnp.array([[10000.25], [10000.5], [10000.75]])
    >>> m = Moments.of(x, 2 * x, jnp.ones((3, 1), bool)).merge(Moments.zero(1))
    >>> print(m.mean_x, m.xx, m.xy)   # 2 · 0.25² and twice as much
    [10000.5] [0.125] [0.25]
    """

    rows: CompensatedSum

    @classmethod
    def zero(cls, outputs: int) -> Self:
        """Return the moments of no pairs."""
        return cls(CompensatedSum.zero((6, outputs)))

    @classmethod
    def of(cls, x: Array, y: Array, counted: Array) -> Self:
        """Return the moments of a batch: float32 or float64 `[rows, outputs]`, and a mask of the counted values."""
        if x.shape[0] == 0:
            return cls.zero(x.shape[1])
        count = counted.sum(0, dtype=jnp.int32).astype(jnp.float32)
        (x, mean_x), (y, mean_y) = (_centred(values, counted, count) for values in (x, y))
        zero = jnp.zeros_like(count)
        squares = [(a * b).sum(0).astype(jnp.float32) for a, b in ((x, x), (y, y), (x, y))]
        high = [count, mean_x.high, mean_y.high, *squares]
        low = [zero, mean_x.low, mean_y.low, zero, zero, zero]
        return cls(CompensatedSum(jnp.stack(high), jnp.stack(low)))

    def merge(self, other: Self) -> Self:
        """Return the moments of the pairs of both."""
        a, b = self.rows, other.rows
        counts = self.count, other.count
        share = counts[1] / jnp.where(counts[1] > 0, counts[0] + counts[1], 1)
        delta = (b.high - a.high) + (b.low - a.low)
        x, y, weight = delta[MEAN_X], delta[MEAN_Y], counts[0] * share
        zero = jnp.zeros_like(share)
        # The means move by their distance; all other rows are added up, and the distance adds to the squares.
        moved = jnp.stack([zero, x * share, y * share, x * x * weight, y * y * weight, x * y * weight])
        sums = CompensatedSum(*(part.at[MEAN_X : MEAN_Y + 1].set(0) for part in (b.high, b.low)))
        merged = a.merge(sums).merge(CompensatedSum(moved, jnp.zeros_like(moved)))
        first, second = (jnp.broadcast_to((count == 0)[None, :], a.high.shape) for count in counts)

        def chosen(a: Array, b: Array, both: Array) -> Array:
            return jnp.where(first, b, jnp.where(second, a, both))

        return type(self)(CompensatedSum(chosen(a.high, b.high, merged.high), chosen(a.low, b.low, merged.low)))

    @property
    def count(self) -> Array:
        """float32 `[outputs]`: the number of pairs."""
        return self.rows.value()[COUNT]

    @property
    def mean_x(self) -> Array:
        """float32 `[outputs]`; 0 without pairs."""
        return self.rows.value()[MEAN_X]

    @property
    def mean_y(self) -> Array:
        """float32 `[outputs]`; 0 without pairs."""
        return self.rows.value()[MEAN_Y]

    @property
    def xx(self) -> Array:
        """float32 `[outputs]`: `Σ(x - x̄)²`."""
        return self.rows.value()[XX]

    @property
    def yy(self) -> Array:
        """float32 `[outputs]`: `Σ(y - ȳ)²`."""
        return self.rows.value()[YY]

    @property
    def xy(self) -> Array:
        """float32 `[outputs]`: `Σ(x - x̄)(y - ȳ)`."""
        return self.rows.value()[XY]


def measurable(squares: Array, count: Array) -> Array:
    """Return the sums of squares of `count` distances, with NaN for those that float32 cannot represent: sums of
    constant numbers, and squares that are infinite or zero although the distances are not.

    >>> measurable(jnp.float32([4.0, 0.0, 1e-36, jnp.inf]), jnp.float32(2)).tolist()
    [4.0, nan, nan, nan]
    """
    return jnp.where((squares > LEAST * count) & jnp.isfinite(squares), squares, jnp.nan)


def _centred(values: Array, counted: Array, count: Array) -> tuple[Array, CompensatedSum]:
    """Return the distances of values `[rows, outputs]` from their mean, 0 for values that do not count, and the mean
    `[outputs]`.
    """
    # Without a mask, `counted` is a constant: XLA would compute the position while it compiles, for up to minutes.
    position = jnp.argmax(jax.lax.optimization_barrier(counted), 0)
    first = jnp.take_along_axis(values, position[None, :], axis=0)
    some = count > 0
    number = jnp.where(some, count, 1)[None, :].astype(values.dtype)
    centred = jnp.where(counted, values - first, 0)
    shift = centred.sum(0, keepdims=True) / number
    centred = jnp.where(counted, centred - shift, 0)
    rest = centred.sum(0, keepdims=True) / number
    mean = CompensatedSum.of(jnp.where(some, first[0], 0)).add(shift[0]).add(rest[0])
    return jnp.where(counted, centred - rest, 0), mean
