"""Exact counts, and fractions of them."""

import dataclasses
from typing import Any, Self

import jax
import jax.numpy as jnp

from learner.metrics.base import Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Count:
    """Integers below 2**64, as two uint32 arrays of one shape: `high * 2**32 + low`.

    A float32 stops counting by ones at 2**24 and an int32 overflows at 2**31; tokens reach both within hours, and
    JAX has no 64-bit integers by default.

    >>> c = Count.zero().add(jnp.array([True, False, True]))
    >>> print(c.value())
    2.0
    >>> billions = Count(jnp.uint32(2), jnp.uint32(2**32 - 1)).merge(c)   # the carry goes into `high`
    >>> print(billions.high, billions.low)
    3 1
    """

    high: Array
    low: Array

    @classmethod
    def zero(cls, shape: tuple[int, ...] = ()) -> Self:
        """Return a count of 0, or an array of counts of the given shape."""
        return cls(jnp.zeros(shape, jnp.uint32), jnp.zeros(shape, jnp.uint32))

    def add(self, which: Array) -> Self:
        """Count the entries of `which` that are True: bool of any shape, fewer than 2**32 values."""
        return self.plus(which.sum(dtype=jnp.uint32))

    def plus(self, counts: Array) -> Self:
        """Add uint32 numbers of the count's shape.

        >>> print(Count.zero((2,)).plus(jnp.array([3, 4], jnp.uint32)).value())
        [3. 4.]
        """
        return self.merge(type(self)(jnp.zeros_like(self.high), counts))

    def merge(self, other: Self) -> Self:
        """Merge two sums."""
        return type(self)(*_added((self.high, self.low), (other.high, other.low)))

    def minus(self, other: Self) -> Self:
        """Return the difference. `other` is not the larger one."""
        borrow = (self.low < other.low).astype(jnp.uint32)
        return type(self)(self.high - other.high - borrow, self.low - other.low)

    def sum(self, axis: int) -> Self:
        """Return the sum along one axis, as exact as the counts.

        >>> both = Count(jnp.array([0, 1], jnp.uint32), jnp.array([2**32 - 1, 1], jnp.uint32)).sum(0)
        >>> print(both.high, both.low)
        2 0
        """
        zero = jnp.zeros((), jnp.uint32)
        axis %= self.high.ndim
        return type(self)(*jax.lax.reduce((self.high, self.low), (zero, zero), _added, (axis,)))

    def __getitem__(self, which: Any) -> Self:
        """Return the counts at an index, as for an array."""
        return type(self)(self.high[which], self.low[which])

    def value(self) -> Array:
        """Return the counts as float32: the nearest number or its neighbour; exact up to 2**24."""
        return self.high.astype(jnp.float32) * 2.0**32 + self.low.astype(jnp.float32)


def _added(a: tuple[Array, Array], b: tuple[Array, Array]) -> tuple[Array, Array]:
    low = a[1] + b[1]
    carry = (low < b[1]).astype(jnp.uint32)  # an unsigned sum that wraps is less than both of its terms
    return a[0] + b[0] + carry, low


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Fraction:
    """The fraction of hits among the counted entries, from 0 to 1. Both numbers are exact, so only the division rounds.

    The state is hits and misses. Their total would be a constant of the program where no row is masked, and XLA
    multiplies by the rounded reciprocal of a constant: 41 hits of 41 were 0.99999994.

    >>> f = Fraction.zero().add(jnp.array([True, True, True]), jnp.array([True, True, False]))
    >>> f = f.merge(Fraction.zero().add(jnp.array([False, False]), jnp.array([True, True])))
    >>> print(f.value())   # 2 of 4: what is not counted is not a hit either
    0.5
    """

    hits: Count
    misses: Count

    @classmethod
    def zero(cls) -> Self:
        """Return an empty fraction, whose value is NaN."""
        return cls(Count.zero(), Count.zero())

    def add(self, hits: Array, counted: Array) -> Self:
        """Add bool arrays of one shape: the hits, and the entries that count."""
        return type(self)(self.hits.add(hits & counted), self.misses.add(~hits & counted))

    def merge(self, other: Self) -> Self:
        """Return the fraction over both."""
        return type(self)(self.hits.merge(other.hits), self.misses.merge(other.misses))

    def value(self) -> Array:
        """Return a float32 scalar; NaN where nothing was counted."""
        return self.hits.value() / self.hits.merge(self.misses).value()
