"""Tests of metrics of optimizer steps: learning rate, norms, and update ratio."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from learner.metrics import GradientNorm, Info, LearningRate, Metric, ParameterNorm, UpdateRatio
from tests.support.codes import raises_code


def info(step: int, rate: Any = None, norm: Any = None, weight: float = 1.0, update: Any = None, p: Any = None) -> Info:
    numbers = (None if x is None else jnp.float32(x) for x in (rate, norm, update, p))
    return Info(jnp.int32(step), jnp.float32(weight), *numbers)


def state_of(metric: Metric, step: Info) -> Any:
    return metric.update(metric.init(), None, step)


def test_rate_of_an_epoch_is_its_last_in_any_order() -> None:
    metric = LearningRate()
    states = [state_of(metric, info(step, rate)) for step, rate in ((7, 0.5), (8, 0.25), (9, 0.75))]
    assert [float(metric.compute(state)) for state in states] == [0.5, 0.25, 0.75]
    for a, b, c in itertools.permutations(states):
        assert metric.compute(metric.merge(metric.merge(a, b), c)) == 0.75
        assert metric.compute(metric.merge(a, metric.merge(b, c))) == 0.75


def test_rate_of_step_0_counts() -> None:
    metric = LearningRate()
    assert metric.compute(state_of(metric, info(0, 0.5))) == 0.5
    assert metric.compute(metric.merge(metric.init(), state_of(metric, info(0, 0.5)))) == 0.5
    assert metric.compute(metric.update(state_of(metric, info(0, 0.5)), None, info(1, 0.0))) == 0.0


def test_parameter_norm_of_an_epoch_is_its_last() -> None:
    metric = ParameterNorm()
    states = [state_of(metric, info(step, p=norm)) for step, norm in ((3, 8.0), (4, 2.0), (5, 4.0))]
    assert metric.compute(metric.merge(states[2], metric.merge(states[0], states[1]))) == 4.0


@pytest.mark.parametrize("metric", [LearningRate(), ParameterNorm()])
def test_no_steps_have_no_value_and_the_first_state_no_nan(metric: Metric) -> None:
    """Runs begin with init's state, which must not trigger a search for NaNs."""
    with jax.debug_nans(True):
        state = metric.init()
    assert np.isnan(metric.compute(metric.merge(state, metric.init())))


def test_update_ratio_is_the_mean_over_steps() -> None:
    metric = UpdateRatio()
    state = metric.init()
    for step, (update, norm, weight) in enumerate(((1.0, 4.0, 9.0), (3.0, 4.0, 1.0), (5.0, 0.0, 1.0), (7.0, 1.0, 0.0))):
        state = metric.merge(state, state_of(metric, info(step, update=update, p=norm, weight=weight)))
    assert metric.compute(state) == 0.5  # the last two do not count: zero parameters, and weight 0


def test_requirements() -> None:
    assert [metric.requires for metric, _ in METRICS] == [(), (), ("param_norm",), ("param_norm", "update_norm")]


def test_gradient_norm_is_the_mean_over_steps() -> None:
    metric = GradientNorm()
    state = metric.init()
    for step, norm in enumerate((1.0, 2.0, 6.0)):
        state = metric.merge(state, state_of(metric, info(step, norm=norm, weight=10.0 * step + 1)))
    assert metric.compute(state) == 3.0


@pytest.mark.parametrize("norm", [0.0, np.nan, np.inf])
def test_steps_of_weight_0_do_not_count(norm: float) -> None:
    metric = GradientNorm()
    empty = state_of(metric, info(1, norm=norm, weight=0))
    assert np.isnan(metric.compute(empty))
    assert metric.compute(metric.merge(state_of(metric, info(0, norm=2.0)), empty)) == 2.0


METRICS = [
    (LearningRate(), "learning_rate"),
    (GradientNorm(), "grad_norm"),
    (ParameterNorm(), "param_norm"),
    (UpdateRatio(), "update_norm"),
]


@pytest.mark.parametrize(("metric", "field"), METRICS)
def test_validation_raises(metric: Metric, field: str) -> None:
    assert metric.splits == ("train",)
    assert metric.per_step
    assert metric.fields == ()
    with raises_code("metric-training-only", metric.name, f"info.{field}", "metric_train"):
        state_of(metric, info(0))
