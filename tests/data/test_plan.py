import numpy as np
import pytest

from learner.data.plan import Plan


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


def test_what_is_left_out_differs_between_epochs():
    plan = Plan(10, 4, seed=0, drop_last=True)
    left_out = {frozenset(range(10)) - frozenset(plan.order(epoch).tolist()) for epoch in range(1, 9)}
    assert len(left_out) > 1


def test_a_seed_and_the_next_ones_epochs_have_nothing_in_common():
    assert not np.array_equal(Plan(50, 5, seed=0).order(2), Plan(50, 5, seed=1).order(1))


def test_large_seeds_are_different_seeds():
    assert not np.array_equal(Plan(50, 5, seed=1).order(1), Plan(50, 5, seed=1 + 2**40).order(1))
