"""Tests of Plan, which orders the rows of epochs, and of ProcessShard."""

import itertools

import numpy as np
import pytest

from learner.data.plan import Plan
from learner.data.sharding import ProcessShard
from tests.support.codes import raises_code


@pytest.mark.parametrize(
    ("rows", "batch_size", "drop_last", "num_items", "num_batches"),
    [
        (10, 4, False, 10, 3),
        (10, 4, True, 8, 2),
        (8, 4, False, 8, 2),
        (8, 4, True, 8, 2),
        (3, 4, False, 3, 1),
        (3, 4, True, 0, 0),
    ],
)
def test_counts(rows, batch_size, drop_last, num_items, num_batches):
    plan = Plan(rows, batch_size, seed=0, drop_last=drop_last)
    assert (plan.num_items, plan.num_batches, len(plan.order(1))) == (num_items, num_batches, num_items)


def test_dropped_rows_differ_between_epochs():
    plan = Plan(10, 4, seed=0, drop_last=True)
    left_out = {frozenset(range(10)) - frozenset(plan.order(epoch).tolist()) for epoch in range(1, 9)}
    assert len(left_out) > 1


def test_seed_and_epoch_are_not_added():
    assert not np.array_equal(Plan(50, 5, seed=0).order(2), Plan(50, 5, seed=1).order(1))


def test_large_seeds_are_not_truncated():
    assert not np.array_equal(Plan(50, 5, seed=1).order(1), Plan(50, 5, seed=1 + 2**40).order(1))


# -- shares ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("devices", [1, 2])
def test_parts_are_equal_and_make_the_batch(count, devices):
    multiple = count * devices
    for rows in range(1, 3 * multiple + 1):
        parts = [list(range(rows))[ProcessShard(index, count, multiple).of(rows)] for index in range(count)]
        if rows % multiple:
            assert parts == [list(range(rows))] * count
        else:
            assert [len(part) for part in parts] == [rows // count] * count
            assert list(itertools.chain.from_iterable(parts)) == list(range(rows))


@pytest.mark.parametrize(
    ("numbers", "code", "values"),
    [
        ((2, 2, 4), "data-share-index", ("2",)),
        ((-1, 2, 4), "data-number-value", ("-1", "index of a Share")),
        ((0, 0, 4), "data-number-value", ("0", "count of a Share")),
        ((0, 2, 0), "data-number-value", ("0", "multiple of a Share")),
        ((0, 2, 3), "data-share-multiple", ("3", "2")),
    ],
)
def test_wrong_shards(numbers, code, values):
    with raises_code(code, *values):
        ProcessShard(*numbers)


def test_another_seed_replaces_that_of_the_plan():
    assert np.array_equal(Plan(50, 5, seed=0).order(3, seed=7), Plan(50, 5, seed=7).order(3))
    assert np.array_equal(Plan(50, 5).order(3, seed=7), np.arange(50))
