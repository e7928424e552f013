"""Wrong arguments of schedules."""

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
    WarmupStableDecay,
)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Constant(-1.0), "Constant: value is -1.0; it needs a number 0 or more"),
        (lambda: Constant(math.nan), "value is nan"),
        (lambda: Linear("a"), "first is 'a'"),
        (lambda: Linear(0.1, True), "last is True"),
        (lambda: Linear(0.1, over=0), "over is 0; it needs a number of steps greater than 0"),
        (lambda: Linear(0.1, over=-2, unit="epochs"), "over is -2; it needs a number of epochs greater than 0"),
        (lambda: Linear(0.1, over=1.5), "over is 1.5; it needs a whole number of steps"),
        (lambda: Linear(0.1, over=100, unit="fraction"), "over is 100; a fraction of the run is at most 1"),
        (lambda: Linear(0.1, unit="days"), "unit is 'days'; it needs 'steps' or 'epochs' or 'fraction'"),
        (lambda: Polynomial(0.1, power=0), "power is 0; it needs a number greater than 0"),
        (lambda: Cosine(0.0), "first is 0.0; it needs a number greater than 0"),
        (lambda: CosineRestarts(0.1, 0), "cycles is 0"),
        (lambda: CosineRestarts(0.1, 2, growth=0), "growth is 0"),
        (lambda: Exponential(0.1, 0), "factor is 0"),
        (lambda: Step(0.1, 0.5, None), "every is None"),
        (lambda: MultiStep(0.1, []), "milestones is .*; it needs a list of one or more"),
        (lambda: MultiStep(0.1, 5), "milestones is 5; it needs a list"),
        (lambda: MultiStep(0.1, [10, 5]), r"out of order: milestones\[1\] is 5, and the one before it is 10"),
        (lambda: MultiStep(0.1, [5, 5]), r"out of order: milestones\[1\] is 5, and the one before it is 5"),
        (lambda: MultiStep(0.1, [0, 5]), r"milestones\[0\] is 0"),
        (lambda: Sequence([0.1, 0.2, 0.3], [20, 10]), r"out of order: milestones\[1\] is 10"),
        (lambda: Sequence([0.1, 0.2], [10, 20]), "there are 2 parts and 2 milestones"),
        (lambda: Sequence([0.1, "a"], [10]), r"parts\[1\] is 'a'; it needs a schedule, a function of the step, or"),
        (lambda: Product([]), r"parts is \[\]; it needs a list of schedules"),
        (lambda: Sum([-0.1]), r"parts\[0\] is -0.1"),
        (lambda: Mean(0.1), "parts is 0.1; it needs a list"),
        (lambda: OneCycle(0.1, warmup=1.0), "warmup is 1.0; it is a part of `over`, less than 1"),
        (lambda: OneCycle(0.1, warmup=0.85, shape="linear"), "less than 0.85"),
        (lambda: OneCycle(0.1, shape="round"), "shape is 'round'"),
        (lambda: WarmupStableDecay(0.1, 0, 1), "warmup is 0"),
        (lambda: WarmupStableDecay(0.0, 1, 1), "peak is 0.0"),
        (lambda: InverseSqrt(0.1, -1), "warmup is -1"),
        (lambda: Noam(0), "width is 0"),
    ],
)
def test_wrong_arguments(make, said):
    with pytest.raises(LearnerError, match=said):
        make()


def test_all_that_is_wrong_is_told_at_once():
    with pytest.raises(LearnerError) as error:
        MultiStep(-0.1, [10, 5], factor=-1.0, unit="days")
    assert [line.partition(";")[0] for line in str(error.value).splitlines()] == [
        "this schedule cannot be used, 4 problems:",
        "  1. MultiStep: first is -0.1",
        "  2. MultiStep: factor is -1.0",
        "  3. MultiStep: unit is 'days'",
        "  4. MultiStep: milestones are out of order: milestones[1] is 5, and the one before it is 10",
    ]
