"""Tests of the checks of schedules' arguments."""

import math

import pytest

from learner import LearnerError
from learner.schedules import (
    Constant,
    Cosine,
    CosineRestarts,
    Exponential,
    InverseSqrt,
    Linear,
    Mean,
    MultiStep,
    Noam,
    OneCycle,
    Polynomial,
    Product,
    Sequence,
    Step,
    Sum,
    WarmupCosine,
    WarmupStableDecay,
)
from tests.support.codes import raises_code


@pytest.mark.parametrize(
    ("make", "code", "values"),
    [
        (lambda: Constant(-1.0), "schedule-unusable", ("-1.0", "0")),
        (lambda: Constant(math.nan), "schedule-unusable", ()),
        (lambda: WarmupCosine(0.1, -1), "schedule-unusable", ("-1",)),
        (lambda: Linear("a"), "schedule-unusable", ("'a'",)),
        (lambda: Linear(0.1, True), "schedule-unusable", ()),
        (lambda: Linear(0.1, over=0), "schedule-unusable", ("0",)),
        (lambda: Linear(0.1, over=-2, unit="epochs"), "schedule-unusable", ("-2", "0")),
        (lambda: Linear(0.1, over=1.5), "schedule-unusable", ("1.5",)),
        (lambda: Linear(0.1, over=2**31), "schedule-unusable", ("2147483648", "2,147,483,647")),
        (lambda: Linear(0.1, over=100, unit="fraction"), "schedule-unusable", ("100", "1")),
        (lambda: Linear(0.1, unit="days"), "schedule-unusable", ("'days'", "'steps'", "'epochs'", "'fraction'")),
        (lambda: Polynomial(0.1, power=0), "schedule-unusable", ("0",)),
        (lambda: Cosine(0.0), "schedule-unusable", ("0.0", "0")),
        (lambda: CosineRestarts(0.1, 0), "schedule-unusable", ("0",)),
        (lambda: CosineRestarts(0.1, 2, growth=0), "schedule-unusable", ("0",)),
        (lambda: Exponential(0.1, 0), "schedule-unusable", ("0",)),
        (lambda: Step(0.1, 0.5, None), "schedule-unusable", ()),
        (lambda: MultiStep(0.1, []), "schedule-unusable", ()),
        (lambda: MultiStep(0.1, 5), "schedule-unusable", ("5",)),
        (lambda: MultiStep(0.1, [10, 5]), "schedule-unusable", ("milestones[1]", "5", "10")),
        (lambda: MultiStep(0.1, [5, 5]), "schedule-unusable", ("milestones[1]", "5")),
        (lambda: MultiStep(0.1, [0, 5]), "schedule-unusable", ("milestones[0]", "0")),
        (lambda: Sequence([0.1, 0.2, 0.3], [20, 10]), "schedule-unusable", ("milestones[1]", "10")),
        (lambda: Sequence([0.1, 0.2], [10, 20]), "schedule-unusable", ("2",)),
        (lambda: Sequence([0.1, "a"], [10]), "schedule-unusable", ("parts[1]", "'a'")),
        (lambda: Product([]), "schedule-unusable", ("[]",)),
        (lambda: Sum([-0.1]), "schedule-unusable", ("parts[0]", "-0.1")),
        (lambda: Mean(0.1), "schedule-unusable", ("0.1",)),
        (lambda: OneCycle(0.1, warmup=1.0), "schedule-unusable", ("1.0", "1")),
        (lambda: OneCycle(0.1, warmup=0.85, shape="linear"), "schedule-unusable", ("0.85",)),
        (lambda: OneCycle(0.1, shape="round"), "schedule-unusable", ("'round'",)),
        (lambda: WarmupStableDecay(0.1, 0, 1), "schedule-unusable", ("0",)),
        (lambda: WarmupStableDecay(0.0, 1, 1), "schedule-unusable", ("0.0",)),
        (lambda: InverseSqrt(0.1, -1), "schedule-unusable", ("-1",)),
        (lambda: Noam(0), "schedule-unusable", ("0",)),
    ],
)
def test_wrong_arguments(make, code, values):
    with raises_code(code, *values):
        make()


def test_all_problems_in_one_error():
    with pytest.raises(LearnerError) as error:
        MultiStep(-0.1, [10, 5], factor=-1.0, unit="days")
    assert [line.partition(";")[0] for line in str(error.value).splitlines()] == [
        "this schedule cannot be used, 4 problems:",
        "  1. MultiStep: first is -0.1",
        "  2. MultiStep: factor is -1.0",
        "  3. MultiStep: unit is 'days'",
        "  4. MultiStep: milestones are out of order: milestones[1] is 5, and the one before is 10",
    ]


def test_the_second_argument_of_a_decay_is_not_taken_for_its_length():
    """As it is one in optax: the rate would rise to 100."""
    for make in (lambda: Cosine(1e-3, 100), lambda: Polynomial(1e-3, 100), lambda: CosineRestarts(1e-3, 2, 100)):
        with pytest.raises(TypeError, match="positional"):
            make()
