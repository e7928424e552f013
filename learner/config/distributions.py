"""Distributions of numbers that differ between the members of a population or a sweep."""

import dataclasses
import math
import random
from typing import Any

from learner.errors import LearnerError
from learner.util.number_checks import is_finite


@dataclasses.dataclass(frozen=True)
class Distribution:
    """Numbers that a population or a sweep draws for its members, each between two bounds.

    Attributes:
      low: the lower bound.
      high: the upper bound.
      log: True if the logarithms of the numbers are uniform, rather than the numbers.
      integer: True if only whole numbers are drawn, each once until all have been used.
    """

    low: float
    high: float
    log: bool
    integer: bool = False

    def draws(self, name: str, seed: int, count: int) -> list[float]:
        """Return the numbers for a name. Each name has its own generator, so adding a name does not change the draws of
        other names.
        """
        generator = random.Random(f"{seed}/{name}")
        if self.integer:
            return self._integer_draws(generator, count)
        numbers: list[float] = []
        known: set[float] = set()
        for _ in range(count):
            number = self._draw(generator)
            rounded = min(max(float(f"{number:.4g}"), self.low), self.high)  # for short names of directories
            # A repeated number keeps all its digits: between narrow bounds, many round to the same number.
            numbers.append(number if rounded in known else rounded)
            known.add(rounded)
        return numbers

    def _integer_draws(self, generator: random.Random, count: int) -> list[float]:
        low, high = int(self.low), int(self.high)
        numbers: list[float] = []
        known: set[int] = set()
        for _ in range(count):
            if len(known) == high - low + 1:
                known.clear()
            while (number := generator.randint(low, high)) in known:
                pass
            numbers.append(number)
            known.add(number)
        return numbers

    def _draw(self, generator: random.Random) -> float:
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        number = generator.uniform(low, high)
        return min(max(math.exp(number) if self.log else number, self.low), self.high)


def uniform(low: float, high: float) -> Distribution:
    """Return a uniform distribution for `LearnerBuilder.population`.

    Raises:
      LearnerError: a bound is not a finite number, or `low` is not below `high`.

    >>> uniform(0.0, 0.1)
    Distribution(low=0.0, high=0.1, log=False, integer=False)
    """
    return Distribution(*_bounds("uniform", low, high), log=False)


def loguniform(low: float, high: float) -> Distribution:
    """Return a log-uniform distribution for `LearnerBuilder.population`: each order of magnitude is equally likely, as
    usual for learning rates.

    Raises:
      LearnerError: a bound is not a finite number greater than 0, or `low` is not below `high`.

    >>> loguniform(1e-5, 1e-2)
    Distribution(low=1e-05, high=0.01, log=True, integer=False)
    """
    low, high = _bounds("loguniform", low, high)
    if low <= 0:
        raise LearnerError(
            f"loguniform({low:g}, {high:g}) begins at {low:g}; its bounds need to be greater than 0",
            code="population-range",
            low=low,
            high=high,
        )
    return Distribution(low, high, log=True)


def randint(low: float, high: float) -> Distribution:
    """Return a uniform distribution of whole numbers from `low` to `high`, both included, for sweeps.

    Raises:
      LearnerError: a bound is not a whole number, or `low` is not below `high`.

    >>> sorted(randint(8, 10).draws("width", seed=0, count=3))
    [8, 9, 10]
    """
    _bounds("randint", low, high)
    if low != int(low) or high != int(high):
        raise LearnerError(
            f"randint({low:g}, {high:g}) needs whole numbers", code="population-range", low=low, high=high
        )
    return Distribution(int(low), int(high), log=False, integer=True)


def _bounds(name: str, low: Any, high: Any) -> tuple[float, float]:
    if not (is_finite(low) and is_finite(high) and low < high):
        raise LearnerError(
            f"{name}({low!r}, {high!r}) needs two finite numbers, the smaller one first",
            code="population-range",
            low=low,
            high=high,
        )
    return float(low), float(high)
