"""Statistics of a metric over repeated runs, such as runs that differ only in the seed."""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from learner.util.confidence import student_factor

FEWEST = 3
"""The fewest runs for which a table shows the interval of the mean: for two, it is 18 standard deviations wide."""


@dataclasses.dataclass(frozen=True)
class Spread:
    """The statistics of a metric over runs or members that differ in one value only, such as the seed.

    Attributes:
      values: the values that they have in common.
      count: the number of runs whose value is finite.
      total: the number of all runs.
      mean: the mean of these values.
      std: the standard deviation (of a sample, with `count - 1`), NaN for one run.
      low: the lower end of the 95 % interval of the mean, by Student's t distribution, NaN for one run.
      high: its upper end.
    """

    values: Mapping[str, Any]
    count: int
    total: int
    mean: float
    std: float
    low: float
    high: float

    @property
    def is_complete(self) -> bool:
        """True if all runs have a finite value."""
        return self.count == self.total

    @classmethod
    def of(cls, values: Mapping[str, Any], numbers: Sequence[float]) -> "Spread":
        """Return the statistics of numbers; those that are not finite are left out.

        >>> spread = Spread.of({"lr": 0.1}, [1.0, 2.0, 3.0])
        >>> spread.mean, spread.std, round(spread.low, 4), round(spread.high, 4)
        (2.0, 1.0, -0.4841, 4.4841)
        """
        finite = [x for x in numbers if math.isfinite(x)]
        count = len(finite)
        try:
            mean = statistics.fmean(finite) if finite else math.nan
            std = statistics.stdev(finite) if count > 1 else math.nan
        except OverflowError:  # numbers near the greatest float, of runs that diverged
            mean = std = math.nan
        half = student_factor(count) * std / math.sqrt(count) if count > 1 else math.nan
        return cls(values, count, len(numbers), mean, std, mean - half, mean + half)


def counts_text(count: int, total: int) -> str:
    """Return the number of runs with a value, and of all runs if it differs.

    >>> counts_text(4, 4), counts_text(1, 4)
    ('4', '1 of 4')
    """
    return str(total) if count == total else f"{count} of {total}"
