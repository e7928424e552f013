"""Tests of metrics of float64 models, with numbers whose differences are lost in float32."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats
from sklearn import metrics as sklearn_metrics

from learner import LearnerBuilder, RegressionOutput, load_checkpoint
from learner.data import DataLoaderBuilder
from learner.metrics import (
    MSSSIM,
    PSNR,
    R2,
    SSIM,
    BrierScore,
    CollectingMetric,
    CompensatedSum,
    FieldMean,
    Loss,
    Moments,
    Perplexity,
    RootMeanSquaredError,
    SpearmanCorrelation,
)
from learner.metrics.ranking_bins import BinnedRankingMetric
from tests.metrics.test_properties import BY_ROWS, COLLECTED, ROWS, Case, Data, cut, make_data, make_info, make_output
from tests.support import more_metrics

UNAFFECTED = (FieldMean, Loss, Perplexity, BrierScore, BinnedRankingMetric)
"""Metrics whose values do not depend on close numbers, and metrics of the loss."""


def close_data(kind: str) -> Data:
    """Return numbers around 1e6 that differ by less than 0.1, or scores around 100 that differ by some 1e-5."""
    data = make_data(kind, masked=True)
    scores, targets = data["scores"].astype(np.float64), data["targets"]
    if kind in ("number", "numbers"):
        targets = 1e6 + 0.05 * targets.astype(np.float64)
        return {**data, "targets": targets, "scores": targets + 0.02 * scores}
    return {**data, "scores": 100 - 2e-6 * scores}


def epoch_values(cases: list[Case], kind: str, data: Data) -> list[Any]:
    """Return the values of an epoch in three batches of 35 rows."""

    @jax.jit
    def measure(batch: Data) -> list[Any]:
        output = make_output(kind, batch)
        info = make_info(0, output.weight)
        return [
            m.collect(output) if isinstance(m, CollectingMetric) else m.update(m.init(), output, info) for m in metrics
        ]

    @jax.jit
    def compute(states: Any) -> Any:
        return {i: metrics[i].compute(functools.reduce(metrics[i].merge, parts)) for i, parts in states.items()}

    metrics = [case.metric for case in cases]
    states = dict(enumerate(zip(*map(measure, cut(data, ROWS // 3)), strict=True)))
    collected = {i: states.pop(i) for i, metric in enumerate(metrics) if isinstance(metric, CollectingMetric)}
    values = compute(states)
    assert {value.dtype for value in values.values()} == {jnp.dtype("float32")}
    for i, parts in collected.items():
        values[i] = metrics[i].compute(jax.tree.map(lambda *x: np.concatenate(x), *parts))
    return [values[i] for i in range(len(metrics))]


FULL = [pytest.param(kind, marks=pytest.mark.full) for kind in ("number", "classes", "tokens")]


@pytest.mark.full
@pytest.mark.parametrize("kind", ["numbers", *FULL])
def test_values_of_close_numbers_equal_float64(kind: str) -> None:
    cases = [case for case in BY_ROWS + COLLECTED if case.kind == kind and not isinstance(case.metric, UNAFFECTED)]
    data = close_data(kind)
    kept = data["mask"].astype(bool)
    narrow = data | {name: data[name].astype(np.float32) for name in data if data[name].dtype == np.float64}
    with jax.enable_x64(True):
        values, rounded = epoch_values(cases, kind, data), epoch_values(cases, kind, narrow)
    for case, value, other in zip(cases, values, rounded, strict=True):
        expected = case.expected(data["scores"][kept], data["targets"][kept])
        case.near(value, expected, case.metric.name)
        assert abs(other - expected) > 1e-3 * abs(expected)  # the data show rounding to float32


@pytest.mark.full
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_int64_is_not_rounded_to_float32(dtype: type) -> None:
    """Integers of 32 bits become float32, in which numbers around 2**26 are 8 apart."""
    predictions, targets = (2**26 + np.array(x, dtype) for x in ([1, 2, 3, 9], [1, 4, 2, 5]))
    with jax.enable_x64(True):
        output = RegressionOutput.from_predictions(jnp.asarray(predictions), jnp.asarray(targets))
        metric, ranks = RootMeanSquaredError(), SpearmanCorrelation()
        value = float(metric.compute(metric.update(metric.init(), output, make_info(4))))
        rank = ranks.compute(jax.tree.map(np.asarray, ranks.collect(output)))
    is_near = dtype is np.int64
    assert (abs(value - np.sqrt(21 / 4)) < 1e-6) == is_near
    assert (abs(rank - stats.spearmanr(predictions, targets)[0]) < 1e-6) == is_near


@pytest.mark.full
def test_values_of_close_images_equal_float64() -> None:
    metrics = pytest.importorskip("skimage.metrics")

    rng = np.random.default_rng(0)
    darker = 0.01 * rng.random((4, 24, 24))
    images = darker + 0.003 * rng.random((4, 24, 24)), darker
    ratio = -10 * np.log10((np.square(images[0] - images[1]) / 0.01**2).mean((1, 2))).mean()
    # An offset leaves the variances, and takes the luminances to 1, as a large K1 does.
    authors = {"data_range": 0.01, "gaussian_weights": True, "use_sample_covariance": False, "sigma": 1.5, "K1": 1e6}
    similarity = np.mean([metrics.structural_similarity(*pair, **authors) for pair in zip(*images, strict=True)])
    with jax.enable_x64(True):
        for dtype, is_near in ((jnp.float64, True), (jnp.float32, False)):
            output = RegressionOutput.from_predictions(*(jnp.asarray(1e4 + x, dtype) for x in images))
            for metric, expected in (
                (PSNR(0.01), ratio),
                (SSIM(0.01), similarity),
                (MSSSIM(0.01, 11, [1]), similarity),
            ):
                value = float(metric.compute(metric.update(metric.init(), output, make_info(0))))
                assert (abs(value - expected) < 1e-6 * expected) == is_near


@pytest.mark.full
def test_moments_of_float64_keep_48_bits() -> None:
    numbers = 1e9 + np.arange(12.0).reshape(4, 3, 1) / 8
    with jax.enable_x64(True):
        parts = [Moments.of(x, -x, jnp.ones(x.shape, bool)) for x in map(jnp.asarray, numbers)]
        merged = functools.reduce(Moments.merge, parts)
        mean = np.float64(merged.rows.high[1]) + np.float64(merged.rows.low[1])
    assert mean == numbers.mean()
    np.testing.assert_allclose(merged.xx, numbers.var() * numbers.size, rtol=1e-6)
    np.testing.assert_allclose(merged.xy, -numbers.var() * numbers.size, rtol=1e-6)


def as_64_bits(data: Any) -> Any:
    return {
        name: jnp.asarray(x.astype({"i": np.int64, "f": np.float64}.get(x.dtype.kind, x.dtype)))
        for name, x in data.items()
    }


@pytest.mark.parametrize("case", more_metrics.CASES, ids=str)
def test_state_dtypes_under_x64(case: Any) -> None:
    with jax.enable_x64(True):
        data = as_64_bits(more_metrics.make_data(more_metrics.KINDS[case.kind], True))
        state = case.metric.init()
        after = jax.eval_shape(lambda x: case.metric.update(state, more_metrics.make_output(x), make_info(0)), data)
    assert jax.tree.map(lambda x: x.dtype, after) == jax.tree.map(lambda x: x.dtype, state)


@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan, 1e300])
def test_sum_of_numbers_beyond_float32(number: float) -> None:
    with jax.enable_x64(True):
        total = CompensatedSum.zero().add(jnp.float64(number)).value()
    np.testing.assert_array_equal(total, np.inf if number == 1e300 else number)


@pytest.mark.full
def test_evaluation_in_float64(tmp_path: Any) -> None:
    data = close_data("number")

    def step(model: Any, batch: Data) -> RegressionOutput:
        return RegressionOutput.from_predictions(batch["scores"] + model["b"], batch["targets"], batch["mask"])

    jax.config.update("jax_enable_x64", True)  # for all threads
    try:
        builder = LearnerBuilder(tmp_path).renderer(None).metrics(R2(), RootMeanSquaredError(), SpearmanCorrelation())
        learner = builder.build({"b": jnp.zeros(())}, valid_step=step)
        values = learner.evaluate(DataLoaderBuilder().batch_size(32).build(data))
    finally:
        jax.config.update("jax_enable_x64", False)
    p, t = (data[name][data["mask"].astype(bool)] for name in ("scores", "targets"))
    expected = {"R2": sklearn_metrics.r2_score(t, p), "Spearman Correlation": stats.spearmanr(t, p).statistic}
    error = np.square(p - t).mean()
    expected |= {"Loss": error, "Root Mean Squared Error": np.sqrt(error)}
    assert values == pytest.approx(expected, rel=1e-6)


@pytest.mark.full
def test_run_within_enable_x64(tmp_path: Any) -> None:
    x = np.linspace(1, 2, 8)
    batches, root = [{"x": x[:4], "y": x[:4] ** 0.5}, {"x": x[4:], "y": x[4:] ** 0.5}], np.sqrt(2.0)

    def step(model: Any, batch: Data) -> Any:
        assert batch["x"].dtype == batch["y"].dtype == jnp.float64
        return {"loss": ((model["w"] * batch["x"] - batch["y"]) ** 2).mean()}

    with jax.enable_x64(True):
        builder = LearnerBuilder(tmp_path).renderer(None)
        learner = builder.build({"w": jnp.array(root)}, optax.sgd, 0.1, train_step=step, valid_step=step)
        result = learner.fit(batches, batches)
        loaded = load_checkpoint(tmp_path, "latest", {"w": jnp.array(root)}).model["w"]
    w = root
    for batch in batches:
        w -= np.float64(np.float32(0.1)) * (2 * (w * batch["x"] - batch["y"]) * batch["x"]).mean()
    for values in (result.model["w"], loaded):
        assert values.dtype == np.float64
        np.testing.assert_allclose(values, w, rtol=1e-14)
