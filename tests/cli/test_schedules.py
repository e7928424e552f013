"""Tests of optax's schedules as classes of configs."""

import inspect
import math

import jax
import jax.numpy as jnp
import optax
import pytest

from learner.cli.schedules import SCHEDULES, CosineDecaySchedule, JoinSchedules, LinearSchedule
from tests.support.codes import raises_code

SETTINGS = {
    "ConstantSchedule": {"value": 0.1},
    "CosineDecaySchedule": {"init_value": 0.1, "decay_steps": 10},
    "CosineOneCycleSchedule": {"transition_steps": 10, "peak_value": 0.1},
    "ExponentialDecay": {"init_value": 0.1, "transition_steps": 10, "decay_rate": 0.5},
    "LinearOneCycleSchedule": {"transition_steps": 10, "peak_value": 0.1},
    "LinearSchedule": {"init_value": 0.1, "end_value": 0.0, "transition_steps": 10},
    "PiecewiseConstantSchedule": {"init_value": 0.1, "boundaries_and_scales": {5: 0.5}},
    "PiecewiseInterpolateSchedule": {
        "interpolate_type": "linear",
        "init_value": 0.1,
        "boundaries_and_scales": {5: 0.5},
    },
    "PolynomialSchedule": {"init_value": 0.1, "end_value": 0.0, "power": 2.0, "transition_steps": 10},
    "SGDRSchedule": {"cosine_kwargs": [{"init_value": 0.0, "peak_value": 0.1, "decay_steps": 10, "warmup_steps": 2}]},
    "WarmupConstantSchedule": {"init_value": 0.0, "peak_value": 0.1, "warmup_steps": 5},
    "WarmupCosineDecaySchedule": {"init_value": 0.0, "peak_value": 0.1, "warmup_steps": 5, "decay_steps": 10},
    "WarmupExponentialDecaySchedule": {
        "init_value": 0.0,
        "peak_value": 0.1,
        "warmup_steps": 5,
        "transition_steps": 2,
        "decay_rate": 0.5,
    },
}


def test_every_schedule_of_optax_has_a_class():
    makers = [f for f in vars(optax.schedules).values() if inspect.isfunction(f)]
    expected = {f for f in makers if "inject" not in f.__name__}
    assert {schedule.function for schedule in SCHEDULES.values()} == expected
    assert set(SCHEDULES) == {*SETTINGS, "JoinSchedules"}


@pytest.mark.full
@pytest.mark.parametrize("name", SETTINGS)
def test_schedule_equals_the_function_of_optax(name):
    schedule = SCHEDULES[name](**SETTINGS[name])
    theirs = schedule.function(**SETTINGS[name])
    with jax.numpy_dtype_promotion("standard"):
        for step in (0, 3, 7, 100):
            assert schedule(step) == theirs(step)


def test_values_of_a_cosine():
    cosine = CosineDecaySchedule(init_value=2.0, decay_steps=100)
    with jax.numpy_dtype_promotion("standard"):
        assert float(jax.jit(cosine)(jnp.int32(25))) == pytest.approx(1 + math.cos(math.pi / 4))
        assert [float(cosine(step)) for step in (0, 50, 100)] == pytest.approx([2.0, 1.0, 0.0], abs=1e-6)


def test_schedules_of_schedules():
    parts = [LinearSchedule(init_value=0.0, end_value=1.0, transition_steps=10), lambda step: 5.0]
    joined = JoinSchedules(schedules=parts, boundaries=[10])
    assert [float(joined(step)) for step in (5, 10)] == [0.5, 5.0]


def test_error_of_optax_names_the_schedule():
    with raises_code("schedule-refused", "CosineDecaySchedule(init_value=0.1, decay_steps=0, "):
        CosineDecaySchedule(init_value=0.1, decay_steps=0)
