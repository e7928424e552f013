"""Tests of how a schedule is described, sampled and checked against the length of a run."""

import math

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from learner.schedules import Constant, Cosine, Linear, MultiStep, Noam, Product, Sequence, Step
from learner.schedules.resolve import early_end, not_reached, rates, text_of


def test_texts():
    """Processes compare these texts, so none may contain an address."""
    assert repr(Cosine(0.1)) == "Cosine(first=0.1)"
    assert repr(Cosine(0.1, last=0.01, over=0.5, unit="fraction").resolved(10)) == (
        "Cosine(first=0.1, last=0.01, over=0.5, unit='fraction') in 10 steps"
    )
    assert repr(Cosine(0.1, over=5).resolved(10)) == "Cosine(first=0.1, over=5)"
    assert text_of(Sequence([0.1, math.sqrt], [5])) == "Sequence(parts=[0.1, sqrt], milestones=[5])"
    assert text_of(optax.linear_schedule(0.1, 0.0, 5)) == "polynomial_schedule"


def test_rates_of_a_long_run_are_spread_over_it():
    steps, values = rates(Linear(0.0, 1.0, over=10_000), 10_001, points=5)
    assert steps == [0, 2500, 5000, 7500, 10_000]
    np.testing.assert_allclose(values, [0.0, 0.25, 0.5, 0.75, 1.0])
    assert rates(Constant(0.1), 1) == ([0], [pytest.approx(0.1)])


@pytest.mark.parametrize(
    ("schedule", "ends", "is_zero"),
    [
        (Cosine(0.1, over=60), 60, True),
        (Cosine(0.1, last=0.01, over=60), 60, False),
        (Cosine(0.1, over=99), 99, True),
        (Cosine(0.1, over=0.5, unit="fraction").resolved(100), 50, True),
        (Sequence([0.1, Cosine(0.1, over=30)], [20]), 50, True),
        (Sequence([Linear(0.0, 0.1), 0.1], [20]), 20, False),
        (Product([Cosine(0.1, over=60), Linear(0.0, 1.0, over=80), 0.5]), 80, True),
        (optax.cosine_decay_schedule(0.1, 37), 37, True),
        (lambda step: jnp.where(step < 1, 0.1, 0.0), 1, True),
        (MultiStep(0.1, [60], 0.0), 60, True),
    ],
)
def test_a_schedule_that_is_shorter_than_the_run(schedule, ends, is_zero):
    text, learns_nothing = early_end(schedule, 100)
    last = 0 if is_zero else float(schedule(99))
    assert text.endswith(f"ends after {ends} of 100 steps; from there on the rate stays {last:g}")
    assert learns_nothing is is_zero


@pytest.mark.parametrize(
    ("schedule", "fragments"),
    [
        (
            Sequence([Linear(0.0, 0.1), Cosine(0.1)], [200]),
            ["parts[1] of Sequence(", ") is not reached: milestones[0] is step 200, and there are 100 steps"],
        ),
        (Sequence([0.1, 0.2], [0.5], "fraction").resolved(100), []),
        (Sequence([0.1, 0.2], [100]), [" is step 100, and there are 100 steps"]),
        (Sequence([0.1, 0.2], [99]), []),
        (MultiStep(0.1, [50, 150]), ["milestones[1] of MultiStep(", "it is step 150, and there are 100 steps"]),
        (MultiStep(0.1, [1, 3], unit="epochs").resolved(100, 50), ["it is step 150"]),
        (Product([MultiStep(0.1, [150]), 0.5]), ["milestones[0] of MultiStep("]),
        (Sequence([0.1, MultiStep(0.1, [60])], [50]), ["it is step 60, and there are 50 steps"]),
        (lambda step: 0.1, []),
    ],
)
def test_unreached_milestones(schedule, fragments):
    texts = not_reached(schedule, 100)
    assert len(texts) == bool(fragments)
    assert [text for text in fragments if text not in texts[0]] == []


@pytest.mark.parametrize(
    "schedule",
    [
        Cosine(0.1, over=100),
        Cosine(0.1, over=200),
        Cosine(0.1).resolved(100),
        Constant(0.1),
        Constant(0.0),
        Step(0.1, 0.5, 10),
        Noam(64, 10),
        Sequence([0.1, Noam(64, 10)], [10]),
        optax.cosine_decay_schedule(0.1, 100),
        optax.linear_schedule(0.1, 0.01, 50),
    ],
)
def test_schedule_that_lasts_to_the_end(schedule):
    assert early_end(schedule, 100) is None


@pytest.mark.parametrize("steps", [13_500, 22_500, 90_000])
def test_cosine_that_underflows_to_0_near_its_end(steps):
    schedule = optax.cosine_decay_schedule(0.1, steps)
    assert schedule(steps - 1) == 0
    assert early_end(schedule, steps) is None
