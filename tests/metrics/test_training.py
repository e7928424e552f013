import itertools
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from learner.errors import LearnerError
from learner.metrics import GradientNorm, Info, IterationSpeed, LearningRate, Metric


def info(step: int, rate: Any = None, norm: Any = None, weight: float = 1.0) -> Info:
    numbers = (None if x is None else jnp.float32(x) for x in (rate, norm))
    return Info(jnp.int32(step), jnp.float32(weight), *numbers)


def one(metric: Metric, step: Info) -> Any:
    return metric.update(metric.init(), None, step)


def test_the_rate_of_an_epoch_is_its_last_in_any_order() -> None:
    metric = LearningRate()
    states = [one(metric, info(step, rate)) for step, rate in ((7, 0.5), (8, 0.25), (9, 0.75))]
    assert [float(metric.compute(state)) for state in states] == [0.5, 0.25, 0.75]
    for a, b, c in itertools.permutations(states):
        assert metric.compute(metric.merge(metric.merge(a, b), c)) == 0.75
        assert metric.compute(metric.merge(a, metric.merge(b, c))) == 0.75


def test_the_rate_of_the_first_step_counts() -> None:
    metric = LearningRate()
    assert metric.compute(one(metric, info(0, 0.5))) == 0.5
    assert metric.compute(metric.merge(metric.init(), one(metric, info(0, 0.5)))) == 0.5
    assert metric.compute(metric.update(one(metric, info(0, 0.5)), None, info(1, 0.0))) == 0.0


def test_the_norm_of_an_epoch_is_the_mean_over_steps() -> None:
    metric = GradientNorm()
    state = metric.init()
    for step, norm in enumerate((1.0, 2.0, 6.0)):
        state = metric.merge(state, one(metric, info(step, norm=norm, weight=10.0 * step + 1)))
    assert metric.compute(state) == 3.0


@pytest.mark.parametrize("norm", [0.0, np.nan, np.inf])
def test_a_step_of_weight_0_has_no_norm(norm: float) -> None:
    metric = GradientNorm()
    empty = one(metric, info(1, norm=norm, weight=0))
    assert np.isnan(metric.compute(empty))
    assert metric.compute(metric.merge(one(metric, info(0, norm=2.0)), empty)) == 2.0


@pytest.mark.parametrize(("metric", "field"), [(LearningRate(), "learning_rate"), (GradientNorm(), "grad_norm")])
def test_they_are_for_training_only(metric: Metric, field: str) -> None:
    assert metric.splits == ("train",)
    assert metric.per_step
    assert metric.fields == ()
    with pytest.raises(LearnerError, match=rf"{metric.name} needs `info\.{field}`.*metric_train"):
        one(metric, info(0))


def test_speed_is_steps_over_time() -> None:
    speed = IterationSpeed()
    assert [speed.update(10, 0.5), speed.update(30, 0.5), speed.update(5, 1.5)] == [20.0, 60.0, 5 / 1.5]
    assert speed.compute() == 45 / 2.5
    speed.reset()
    assert np.isnan(speed.compute())
    assert speed.update(3, 2.0) == speed.compute() == 1.5


def test_speed_of_no_time_is_unknown() -> None:
    speed = IterationSpeed()
    assert np.isnan(speed.update(10, 0.0))
    assert np.isnan(speed.compute())
    assert speed.update(10, 4.0) == 2.5
    assert speed.compute() == 5.0


def test_speeds_are_independent() -> None:
    train, valid = IterationSpeed(), IterationSpeed()
    train.update(10, 1.0)
    assert np.isnan(valid.compute())
