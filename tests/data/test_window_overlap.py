"""Tests of counting validation windows that the training data contain."""

import numpy as np
import pytest

from learner.data import ArrayDataset, view
from learner.data.window_overlap import contained_windows

SERIES = np.arange(200.0)
COLUMNS = np.arange(800.0).reshape(200, 4)


def count_by_sets(train, valid):
    seen = set(np.ravel(train.arrays))
    return sum(seen.issuperset(window) for window in valid.arrays)


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
def test_windows_of_a_series(stride, share):
    windows = ArrayDataset(SERIES).windows(9, stride=stride)
    parts = [windows.split([share, 1 - share], seed=0), windows.split([share, 1 - share], seed=None)]
    counts = [contained_windows(train, valid) for train, valid in parts]
    assert counts == [count_by_sets(*pair) for pair in parts]
    assert counts[1] == 0 < count_by_sets(*windows.split([0.8, 0.2], seed=0))


def test_windows_of_two_sizes_and_of_several_arrays():
    series = ArrayDataset({"x": np.zeros((200, 3), np.float32), "y": SERIES})
    train, valid = series.slice(0, 100).windows(10, stride=1), series.slice(90, 200).windows(4, stride=1)
    assert contained_windows(train, valid) == 7  # windows that begin at 90 to 96


ROWS = {
    "windows that only begin in training": [
        ArrayDataset(SERIES).slice(0, 100).windows(10, stride=1),
        ArrayDataset(SERIES).slice(91, 200).windows(10, stride=1),
    ],
    "windows of another series": [ArrayDataset(SERIES + n).windows(10, stride=1) for n in range(2)],
    "windows of another column": [ArrayDataset(COLUMNS[:, n]).windows(10, stride=1) for n in range(2)],
    "windows of other columns": [ArrayDataset(COLUMNS[:, n : n + 2]).windows(10, stride=1) for n in (0, 2)],
    "windows that do not overlap": ArrayDataset(SERIES).windows(10).split([0.5, 0.5], seed=0),
    "columns in the order of Fortran": ArrayDataset(np.asfortranarray(SERIES.reshape(50, 4))).split([0.5, 0.5], seed=0),
    "rows of one number": ArrayDataset(SERIES).split([0.5, 0.5], seed=0),
    "a broadcast array": ArrayDataset(np.broadcast_to(SERIES, (4, 200))).split([0.5, 0.5], seed=0),
    "no arrays": [range(10), range(5, 10)],
}


def test_windows_of_one_column():
    parts = ArrayDataset(COLUMNS[:, 1]).windows(9, stride=2).split([0.8, 0.2], seed=0)
    assert contained_windows(*parts) == count_by_sets(*parts) > 0


@pytest.mark.parametrize("kind", ROWS)
def test_rows_without_overlap(kind):
    assert contained_windows(*ROWS[kind]) == 0


def test_window_at_the_beginning_of_the_training_part():
    train, valid = (ArrayDataset(SERIES).slice(90, stop).windows(10, stride=1) for stop in (200, 100))
    assert contained_windows(train, valid) == 1


def test_windows_in_another_order():
    train, valid = ArrayDataset(SERIES).windows(9, stride=1).split([0.8, 0.2], seed=0)
    assert contained_windows(train.select(range(len(train) - 1, -1, -1)), valid) == count_by_sets(train, valid) > 0


def double(window):
    return window * 2


VIEWED = {
    "augmentations": lambda d: [
        part if number else part.augment(lambda window, rng: window + rng.normal())
        for number, part in enumerate(d.windows(9, stride=1).split([0.8, 0.2], seed=0))
    ],
    "functions of both": lambda d: [part.map(double) for part in d.windows(9, stride=1).split([0.8, 0.2], seed=0)],
    "functions before": lambda d: d.windows(9, stride=1).map(double).split([0.8, 0.2], seed=0),
    "filters": lambda d: [
        part.filter(lambda window: window[0] >= 0) for part in d.windows(9, stride=1).split([0.8, 0.2], seed=0)
    ],
}


@pytest.mark.parametrize("kind", VIEWED)
def test_functions_of_windows_and_selected_ones(kind):
    parts = ArrayDataset(SERIES).windows(9, stride=1).split([0.8, 0.2], seed=0)
    assert contained_windows(*VIEWED[kind](ArrayDataset(SERIES))) == count_by_sets(*parts) > 0


COMPUTED = {
    "rows that are not missing": lambda d: d.select(d.arrays % 5 > 0),
    "joined series": lambda d: d.concat(SERIES[:50] + 1000),
    "a series of items": lambda d: view(list(d.arrays)),
}


@pytest.mark.parametrize("kind", COMPUTED)
@pytest.mark.parametrize("stride", [2, 9])
def test_windows_that_are_computed(kind, stride):
    windows = COMPUTED[kind](ArrayDataset(SERIES)).windows(9, stride=stride)
    train, valid = windows.split([0.8, 0.2], seed=0)
    seen = set(np.ravel(list(train)).tolist())
    assert contained_windows(train, valid) == sum(seen.issuperset(window.tolist()) for window in valid)
    assert contained_windows(*windows.split([0.8, 0.2], seed=None)) == 0
    assert contained_windows(train, ArrayDataset(SERIES + 1000).windows(9, stride=1)) == 0
