"""Tests of thinning: any number of steps in bounded memory."""

import tracemalloc

import numpy as np
import pytest

from learner.runs.thinning import Thinned


@pytest.mark.parametrize("part", [1, 3, 7, 100])
def test_neighbors_are_merged_until_the_points_fit(part):
    """100 values in at most 16 points are merged by eights: 12 full points and one of 4."""
    values = np.arange(100.0)
    thinned = Thinned(16)
    for begin in range(0, 100, part):
        chosen = np.arange(begin, min(begin + part, 100))
        thinned.add(chosen + 1, values[chosen])
    series = thinned.series()
    assert (series.together, len(series)) == (8, 13)
    assert series.step.tolist() == [*range(8, 97, 8), 100]
    assert series.mean.tolist() == [*(values[:96].reshape(-1, 8).mean(1)), 97.5]
    assert series.low.tolist() == [*range(0, 96, 8), 96]
    assert series.high.tolist() == [*range(7, 96, 8), 99]


def test_values_that_are_not_finite_are_skipped():
    thinned = Thinned(4)
    thinned.add(np.arange(1, 9), np.array([np.nan, 2, np.inf, 4, np.nan, np.nan, np.nan, np.nan]))
    series = thinned.series()
    np.testing.assert_array_equal(series.mean, [3.0, np.nan])
    np.testing.assert_array_equal(series.low, [2.0, np.nan])


def test_newest_steps_are_not_merged():
    thinned = Thinned(16)
    thinned.add(np.arange(1, 101), np.arange(100.0))
    assert thinned.series(since=90).step.tolist() == [*range(90, 101)]
    assert thinned.series(since=50).together == 8  # these steps are merged


def test_memory_is_bounded():
    thinned = Thinned()
    steps = np.arange(10_000)

    def add(times):
        for _ in range(times):
            thinned.add(steps, steps / 1.0)

    add(30)
    tracemalloc.start()
    try:
        add(100)
        assert tracemalloc.get_traced_memory()[0] < 4e5
    finally:
        tracemalloc.stop()
    assert len(thinned.series()) <= 4097


def test_sums_of_the_largest_numbers_are_infinite():
    """Without a warning, which would be an error here. Points of two infinite sums have no mean."""
    thinned = Thinned(4)
    thinned.add(np.arange(1, 33), np.repeat([1.7e308, -1.7e308], 16))
    series = thinned.series()
    assert series.low.tolist() == series.high.tolist() == [1.7e308, -1.7e308]
    assert series.mean.tolist() == [np.inf, -np.inf]
    merged = thinned.series(most=1)
    assert (merged.low.tolist(), merged.high.tolist(), str(merged.mean)) == ([-1.7e308], [1.7e308], "[nan]")
