"""Tests of statistics over runs."""

import math

import pytest

from learner.runs.spread import Spread


def test_the_interval_of_five_seeds():
    """The 97.5 % quantile of Student's t distribution with four degrees of freedom is 2.776445."""
    spread = Spread.of({}, [1.0, 2.0, 3.0, 4.0, 5.0, float("nan")])
    assert (spread.count, spread.mean) == (5, 3.0)
    assert spread.high - 3 == pytest.approx(2.776445 * math.sqrt(2.5) / math.sqrt(5), rel=1e-6)
    assert math.isnan(Spread.of({}, [1.0]).low)


def test_numbers_that_overflow_have_no_mean():
    spread = Spread.of({}, [1.7e308, 1.6e308, 1e308])
    assert spread.count == 3
    assert math.isnan(spread.mean)
