"""Tests of metrics of regression."""

import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from learner.errors import LearnerError
from learner.metrics import (
    Info,
    MeanAbsoluteError,
    MeanAbsolutePercentageError,
    MeanSquaredError,
    Metric,
    QuantileLoss,
    RootMeanSquaredError,
)
from tests.support.codes import raises_code

INFO = Info(jnp.int32(0), jnp.float32(1))
BOTH = [MeanAbsoluteError(), MeanSquaredError()]


def value(metric: Metric, predictions: Any, targets: Any, mask: Any = None) -> float:
    @jax.jit
    def run(predictions: Any, targets: Any, mask: Any) -> Any:
        output = types.SimpleNamespace(predictions=predictions, targets=targets, mask=mask)
        return metric.compute(metric.update(metric.init(), output, INFO))

    return float(run(jnp.asarray(predictions), jnp.asarray(targets), None if mask is None else jnp.asarray(mask)))


@pytest.mark.parametrize(
    ("predictions", "targets", "mask", "absolute", "squared"),
    [
        ([1.0, 2.0, 3.0], [1.0, 4.0, 0.0], None, 5 / 3, 13 / 3),
        ([1.0, 2.0, np.nan], [1.0, 4.0, 0.0], [1, 1, 0], 1.0, 2.0),
        ([[1.0, 2.0], [3.0, 4.0]], [[0.0, 0.0], [0.0, 0.0]], None, 2.5, 7.5),
        ([[1.0, 2.0], [np.nan, 4.0]], [[0.0, 0.0], [0.0, np.inf]], [True, False], 1.5, 2.5),
        ([[1.0, 2.0], [3.0, 4.0]], [[0.0, 0.0], [0.0, 0.0]], [[1, 0], [1, 1]], 8 / 3, 26 / 3),
        ([1.0, 2.0], [1.0, 2.0], [0, 0], np.nan, np.nan),
    ],
)
def test_by_hand(predictions: Any, targets: Any, mask: Any, absolute: float, squared: float) -> None:
    np.testing.assert_allclose(value(BOTH[0], predictions, targets, mask), absolute, rtol=2e-7)
    np.testing.assert_allclose(value(BOTH[1], predictions, targets, mask), squared, rtol=2e-7)


@pytest.mark.parametrize("metric", BOTH, ids=lambda m: m.name)
def test_square_batch_is_masked_by_rows(metric: Metric) -> None:
    predictions = np.array([[1.0, 1, 1], [5, 5, 5], [7, 7, 7]], np.float32)
    assert value(metric, predictions, np.zeros((3, 3), np.float32), [1, 0, 0]) == 1


@pytest.mark.parametrize("metric", BOTH, ids=lambda m: m.name)
def test_batches_of_other_shapes_are_weighted_by_values(metric: Metric) -> None:
    @jax.jit
    def both() -> Any:
        state = metric.init()
        for shape, difference in (((2, 3), 1.0), ((2, 1, 1), 5.0)):
            output = types.SimpleNamespace(predictions=jnp.full(shape, difference), targets=jnp.zeros(shape))
            state = metric.update(state, output, INFO)
        return metric.compute(state)

    # 6 values of 1 and 2 values of 5.
    assert both() == {"Mean Absolute Error": 2.0, "Mean Squared Error": 7.0}[metric.name]


@pytest.mark.parametrize("metric", [BOTH[0], pytest.param(BOTH[1], marks=pytest.mark.full)], ids=lambda m: m.name)
def test_millions_of_values_in_one_batch(metric: Metric) -> None:
    predictions = np.random.default_rng(0).random((64, 2**15), np.float32)
    exact = predictions.astype(np.float64)
    expected = exact.mean() if metric is BOTH[0] else np.square(exact).mean()
    np.testing.assert_allclose(value(metric, predictions, np.zeros_like(predictions)), expected, rtol=3e-7)


@pytest.mark.parametrize(
    ("left", "right"),
    [("bfloat16", "float32"), ("float32", "int32"), pytest.param("float16", "bfloat16", marks=pytest.mark.full)],
)
def test_mixed_dtypes(left: str, right: str) -> None:
    predictions, targets = jnp.array([1.0, 2.0, 4.0]).astype(left), jnp.array([1.0, 4.0, 0.0]).astype(right)
    np.testing.assert_allclose(value(BOTH[0], predictions, targets), 2, rtol=2e-7)
    np.testing.assert_allclose(value(BOTH[1], predictions, targets), 20 / 3, rtol=2e-7)


@pytest.mark.parametrize("metric", BOTH, ids=lambda m: m.name)
@pytest.mark.parametrize(
    ("predictions", "targets", "mask", "message"),
    [
        ((4, 1), (4,), None, r"predictions of shape \(4, 1\) and targets of shape \(4,\)"),
        ((), (), None, r"predictions of shape \(\)"),
        ((4, 2), (4, 2), (2,), r"a mask of shape \(2,\); it needs \(4, 2\)"),
    ],
)
def test_wrong_shapes(metric: Metric, predictions: Any, targets: Any, mask: Any, message: str) -> None:
    with pytest.raises(LearnerError, match=f"{metric.name} got .*{message}"):
        value(metric, jnp.ones(predictions), jnp.ones(targets), None if mask is None else jnp.ones(mask))


THREE = [1.0, 2.0, 9.0], [1.0, 4.0, 0.0], [1, 1, 0]  # predictions, targets, mask


def state_of(metric: Metric, predictions: Any, targets: Any, mask: Any) -> Any:
    output = types.SimpleNamespace(
        predictions=np.float32(predictions), targets=np.float32(targets), mask=np.array(mask)
    )
    return metric.update(metric.init(), output, INFO)


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        (RootMeanSquaredError(), np.sqrt(2)),
        (MeanAbsolutePercentageError(), 0.25),
        (QuantileLoss(0.9), 0.9),
        (QuantileLoss(0.25), 0.25),
        (QuantileLoss(), 0.5),
    ],
    ids=lambda x: getattr(x, "name", ""),
)
def test_more_by_hand(metric: Metric, expected: float) -> None:
    np.testing.assert_allclose(metric.compute(state_of(metric, *THREE)), expected, rtol=2e-7)
    assert np.isnan(metric.compute(state_of(metric, *THREE[:2], [0, 0, 0])))


def test_root_is_of_the_whole_split() -> None:
    metric = RootMeanSquaredError()
    both = metric.merge(state_of(metric, *THREE), state_of(metric, [3.0, 0, 0], [0.0, 0, 0], [1, 1, 0]))
    np.testing.assert_allclose(metric.compute(both), np.sqrt((0 + 4 + 9 + 0) / 4), rtol=2e-7)


def test_quantile_loss_is_asymmetric() -> None:
    metric = QuantileLoss(0.75)
    over = metric.compute(state_of(metric, [3.0, 3.0, 0], [1.0, 1.0, 0], [1, 1, 0]))
    under = metric.compute(state_of(metric, [1.0, 1.0, 0], [3.0, 3.0, 0], [1, 1, 0]))
    np.testing.assert_allclose([over, under], [0.5, 1.5], rtol=2e-7)


@pytest.mark.parametrize("prediction", [0.0, 1.0])
def test_target_of_0_has_no_percentage(prediction: float) -> None:
    metric = MeanAbsolutePercentageError()
    assert np.isnan(metric.compute(state_of(metric, [prediction, 1.0, 1.0], [0.0, 1.0, 1.0], [1, 1, 1])))
    assert metric.compute(state_of(metric, [prediction, 1.0, 3.0], [0.0, 1.0, -1.0], [0, 1, 1])) == 2


@pytest.mark.parametrize("q", [0, 1, -0.5, "0.5", None, True, float("nan")])
def test_wrong_quantiles(q: Any) -> None:
    with raises_code("metric-quantile-value", "QuantileLoss", repr(q), "0", "1"):
        QuantileLoss(q)
