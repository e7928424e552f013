"""Tests of ReduceOnPlateau."""

import json
import math

import pytest

from learner import ReduceOnPlateau
from learner.schedules import Linear
from tests.support.codes import raises_code

NAN = math.nan


def rates(plateau, values):
    """Return the rate after each value."""
    return [plateau.update({"valid/Loss": value}) for value in values]


@pytest.mark.parametrize(
    ("options", "values", "expected"),
    [
        pytest.param(
            {"factor": 0.5, "patience": 1},
            [4.0, 3.0, 3.0, 3.0, 3.0, 3.0, 2.0],
            [1.0, 1.0, 1.0, 0.5, 0.5, 0.25, 0.25],
            id="each second one",
        ),
        pytest.param({"factor": 0.5, "patience": 0}, [1.0, 2.0, 0.5, 0.5], [1.0, 0.5, 0.5, 0.25], id="no patience"),
        pytest.param(
            {"factor": 0.5, "patience": 1},
            [1.0, 2.0, 0.5, 2.0, 0.25, 2.0],
            [1.0] * 6,
            id="improving starts anew",
        ),
        pytest.param(
            {"factor": 0.5, "patience": 0, "cooldown": 2},
            [1.0] * 8,
            [1.0, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.125],
            id="cooldown",
        ),
        pytest.param(
            {"factor": 0.25, "patience": 0, "min_lr": 0.1}, [1.0] * 4, [1.0, 0.25, 0.1, 0.1], id="not below min_lr"
        ),
        pytest.param({"factor": 0.5, "patience": 0, "mode": "max"}, [1.0, 2.0, 2.0], [1.0, 1.0, 0.5], id="max"),
        pytest.param(
            {"factor": 0.5, "patience": 0, "min_delta": 0.5}, [2.0, 1.75, 1.0], [1.0, 0.5, 0.5], id="min_delta"
        ),
        pytest.param({"factor": 0.5, "patience": 1}, [NAN, NAN, 1.0, NAN], [1.0, 0.5, 0.5, 0.5], id="nan"),
    ],
)
def test_rates(options, values, expected):
    assert rates(ReduceOnPlateau(1.0, "valid/Loss", **options), values) == expected


def test_with_a_schedule_a_factor_is_lowered():
    plateau = ReduceOnPlateau(Linear(0.0, 0.1), factor=0.5, patience=0, min_lr=0.4)
    assert rates(plateau, [1.0, 1.0, 1.0]) == [1.0, 0.5, 0.4]
    assert "Linear(first=0.0, last=0.1)" in repr(plateau)


def test_a_rate_is_not_restored_as_a_factor():
    number, factor = ReduceOnPlateau(0.1, factor=0.5, patience=0), ReduceOnPlateau(Linear(0.1), factor=0.5, patience=0)
    assert rates(number, [1.0, 1.0]) == [0.1, 0.05]
    old = number.get_state()
    del old["is_factor"], old["initial"]  # of a version without schedules
    factor.set_state(old)
    assert rates(factor, [0.5, 2.0]) == [1.0, 0.5]  # the best value is restored
    number.set_state(factor.get_state())
    assert rates(number, [0.25]) == [0.05]
    other = ReduceOnPlateau(0.2, factor=0.5)
    other.set_state(old)
    assert other.lr == 0.05


def test_a_metric_without_a_new_value_changes_nothing():
    plateau = ReduceOnPlateau(1.0, "valid/Loss", patience=0)
    before = plateau.get_state()
    assert plateau.update({"train/Loss": 1.0}) == 1.0
    assert plateau.get_state() == before


@pytest.mark.parametrize("cut", range(9))
def test_state_restores_exactly(cut):
    options, values = {"factor": 0.5, "patience": 1, "cooldown": 1}, [2.0, 2.0, NAN, 2.0, 2.0, 2.0, 1.0, 1.0, 1.0]
    first, second = (ReduceOnPlateau(0.1, "valid/Loss", **options) for _ in range(2))
    expected = rates(ReduceOnPlateau(0.1, "valid/Loss", **options), values)
    before = rates(first, values[:cut])
    second.set_state(json.loads(json.dumps(first.get_state())))
    assert before + rates(second, values[cut:]) == expected
    assert len(set(expected)) == 4


@pytest.mark.parametrize(
    ("lr", "options", "code", "values"),
    [
        (0.0, {}, "schedule-plateau-lr", ()),
        (-1.0, {}, "schedule-plateau-lr", ()),
        (math.inf, {}, "schedule-plateau-lr", ()),
        ("fast", {}, "schedule-plateau-lr", ()),
        (True, {}, "schedule-plateau-lr", ()),
        (0.1, {"factor": 0.0}, "schedule-plateau-factor", ()),
        (0.1, {"factor": 1.0}, "schedule-plateau-factor", ()),
        (0.1, {"patience": -1}, "schedule-plateau-number", ("patience",)),
        (0.1, {"patience": 1.5}, "schedule-plateau-number", ("patience",)),
        (0.1, {"cooldown": -1}, "schedule-plateau-number", ("cooldown",)),
        (0.1, {"min_lr": 0.2}, "schedule-plateau-min-lr", ()),
        (0.1, {"min_lr": -0.2}, "schedule-plateau-min-lr", ()),
        (Linear(0.0, 3.0), {"min_lr": 2.0}, "schedule-plateau-min-lr", ()),
        (0.1, {"mode": "lowest"}, "metric-mode-unknown", ()),
        (0.1, {"min_delta": -1.0}, "metric-min-delta-value", ()),
    ],
)
def test_wrong_arguments(lr, options, code, values):
    with raises_code(code, *values):
        ReduceOnPlateau(lr, **options)


@pytest.mark.parametrize(
    ("lr", "min_lr", "expected"),
    [(0.1, 0.0, 0.05), (0.02, 0.0, 0.01), (0.02, 0.015, 0.015), (Linear(0.02), 0.0, 1.0)],
)
def test_a_restored_rate_is_in_proportion_to_the_initial_rate(lr, min_lr, expected):
    lowered, other = ReduceOnPlateau(0.1, factor=0.5, patience=0), ReduceOnPlateau(lr, factor=0.5, min_lr=min_lr)
    assert rates(lowered, [1.0, 1.0]) == [0.1, 0.05]
    other.set_state(lowered.get_state())
    assert other.lr == pytest.approx(expected)
    other.set_state(other.get_state())
    assert other.lr == pytest.approx(expected)


def test_schedulers_of_other_rates_share_nothing():
    first = ReduceOnPlateau(0.1, "valid/Loss", factor=0.5, patience=0)
    other = first.with_lr(0.2)
    first.update({"valid/Loss": 1.0})
    assert other.update({"valid/Loss": 2.0}) == 0.2
