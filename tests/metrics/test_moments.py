"""Tests of variances and correlations, and of their metrics: large offsets, many rows, constant values."""

import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as sklearn_metrics

from learner.metrics import R2, ExplainedVariance, Info, Moments, PearsonCorrelation, SpearmanCorrelation
from tests.support.codes import raises_code

INFO = Info(jnp.int32(0), jnp.float32(1))
RNG = np.random.default_rng(0)
ROWS, BATCH = 96, 8
of, merge = jax.jit(Moments.of), jax.jit(Moments.merge)
METRICS = [R2(), ExplainedVariance(), PearsonCorrelation()]


def moments(x: np.ndarray, y: np.ndarray, size: int = BATCH) -> Moments:
    """Return the moments of a split in batches without a mask."""
    state = Moments.zero(1)
    for i in range(0, len(x), size):
        part = np.s_[i : i + size]
        state = merge(state, of(x[part, None], y[part, None], np.ones((size, 1), bool)))
    return state


def data(offset: float, spread: float) -> tuple[np.ndarray, np.ndarray]:
    """Return targets and predictions as float32, so that metrics and references see equal numbers."""
    noise = RNG.normal(size=(2, ROWS))
    targets = (offset + spread * noise[0]).astype(np.float32)
    return targets, (targets + spread * 0.7 * noise[1] + spread).astype(np.float32)


@pytest.mark.full
@pytest.mark.parametrize(
    ("offset", "spread"), [(0, 1), (1e4, 1), (-1e4, 0.05), (3e-5, 1e-6), (1e6, 1e12), (1e4, 1e17)], ids=str
)
def test_values_equal_float64(offset: float, spread: float) -> None:
    targets, predictions = data(offset, spread)
    exact = targets.astype(np.float64), predictions.astype(np.float64)
    state = moments(targets, targets - predictions)
    expected = sklearn_metrics.r2_score(*exact), sklearn_metrics.explained_variance_score(*exact)
    np.testing.assert_allclose([METRICS[0].compute(state), METRICS[1].compute(state)], expected, atol=1e-6)
    state = moments(targets, predictions)
    np.testing.assert_allclose(METRICS[2].compute(state), stats.pearsonr(*exact).statistic, atol=1e-6)
    np.testing.assert_allclose(state.mean_x, [exact[0].mean()], rtol=2e-7)
    np.testing.assert_allclose(state.xx, [exact[0].var() * ROWS], rtol=1e-6)


@pytest.mark.full
def test_many_rows_do_not_drift() -> None:
    """A hundred million rows far from 0: states are doubled by merging, then merged with many small batches."""
    targets, predictions = data(1e4, 1)
    first = total = moments(targets, predictions)
    for _ in range(20):
        total = merge(total, total)
    batch = of(targets[:BATCH, None] + 1, predictions[:BATCH, None], np.ones((BATCH, 1), bool))
    many = jax.jit(lambda s, b: jax.lax.fori_loop(0, 100_000, lambda i, s: s.merge(b), s))(total, batch)
    weights = np.repeat([2.0**20, 1e5], [ROWS, BATCH])
    x = np.concatenate([targets, targets[:BATCH] + 1]).astype(np.float64)
    y = np.concatenate([predictions, predictions[:BATCH]]).astype(np.float64)
    assert weights.sum() > 1e8
    np.testing.assert_allclose(METRICS[2].compute(total), METRICS[2].compute(first), atol=5e-7)
    np.testing.assert_allclose(many.mean_x, [np.average(x, weights=weights)], rtol=1e-7)
    np.testing.assert_allclose(many.xx, [np.cov(x, y, aweights=weights, ddof=0)[0, 0] * weights.sum()], rtol=2e-6)
    covariance = np.cov(x, y, aweights=weights, ddof=0)
    expected = covariance[0, 1] / np.sqrt(covariance[0, 0] * covariance[1, 1])
    np.testing.assert_allclose(METRICS[2].compute(many), expected, atol=1e-6)


@pytest.mark.parametrize("constant", [0.1, 1e4 / 3, -7e-8])
def test_constant_values_are_nan(constant: float) -> None:
    same, other = np.full(ROWS, constant, np.float32), RNG.normal(size=ROWS).astype(np.float32)
    for metric in METRICS:
        assert np.isnan(metric.compute(moments(same, other)))
        assert np.isnan(metric.compute(moments(same, same)))
    assert np.isnan(METRICS[2].compute(moments(other, same)))
    assert METRICS[0].compute(moments(other, np.zeros(ROWS, np.float32))) == 1


@pytest.mark.parametrize(("scale", "is_nan"), [(1e-19, True), (1e-15, False), (1e15, False), (1e20, True)])
def test_distances_without_squares_in_float32_are_nan(scale: float, is_nan: bool) -> None:
    """Squares around 1e-38 are 0 or have few digits in float32, and those around 1e40 are infinite."""
    targets = RNG.normal(size=ROWS).astype(np.float32) * np.float32(scale)
    predictions = targets + RNG.normal(size=ROWS).astype(np.float32) * np.float32(scale * 0.3)
    exact = targets.astype(np.float64), predictions.astype(np.float64)
    expected = [
        sklearn_metrics.r2_score(*exact),
        sklearn_metrics.explained_variance_score(*exact),
        stats.pearsonr(*exact)[0],
    ]
    second = targets - predictions, targets - predictions, predictions
    for metric, y, value in zip(METRICS, second, expected, strict=True):
        wanted = np.nan if is_nan else value
        np.testing.assert_allclose(metric.compute(moments(targets, y)), wanted, rtol=1e-5)


def test_fewer_than_two_rows_are_nan() -> None:
    state = Moments.zero(1)
    for _ in range(2):
        assert all(np.isnan(metric.compute(state)) for metric in METRICS)
        state = moments(np.ones(BATCH, np.float32), np.ones(BATCH, np.float32))


def test_masked_rows_may_be_nan() -> None:
    """The first row is masked, from which distances are measured, and the columns have different masks."""
    x, y = RNG.normal(size=(2, BATCH, 2)).astype(np.float32)
    counted = np.ones((BATCH, 2), bool)
    counted[0], counted[5, 1] = False, False
    state = of(np.where(counted, x, np.nan), np.where(counted, y, np.nan), counted)
    for i in (0, 1):
        kept = [values[counted[:, i], i].astype(np.float64) for values in (x, y)]
        covariance = np.cov(*kept, ddof=0) * len(kept[0])
        np.testing.assert_allclose([state.xx[i], state.yy[i], state.xy[i]], covariance[[0, 1, 0], [0, 1, 1]], rtol=1e-6)
        np.testing.assert_allclose([state.mean_x[i], state.mean_y[i]], [k.mean() for k in kept], rtol=1e-6)
        assert state.count[i] == len(kept[0])


def test_averages_over_outputs_equal_sklearn() -> None:
    targets, predictions = RNG.normal(size=(2, BATCH, 2)).astype(np.float32) * np.array([1, 5], np.float32)
    exact, all_count = (targets.astype(np.float64), predictions.astype(np.float64)), np.ones((BATCH, 2), bool)
    state = of(targets, targets - predictions, all_count)
    for average, multioutput in (("uniform", "uniform_average"), ("variance", "variance_weighted")):
        expected = sklearn_metrics.r2_score(*exact, multioutput=multioutput)
        np.testing.assert_allclose(R2(2, average).compute(state), expected, rtol=1e-6)
    targets[:, 1] = 3
    state = of(targets, targets - predictions, all_count)
    assert all(np.isnan(R2(2, average).compute(state)) for average in ("uniform", "variance"))


@pytest.mark.parametrize("metric", [R2(2), SpearmanCorrelation(3), PearsonCorrelation()], ids=lambda m: m.name)
@pytest.mark.parametrize("shape", [(4, 5), (4, 3, 4)], ids=str)
def test_wrong_number_of_outputs(metric: Any, shape: tuple[int, ...]) -> None:
    output = types.SimpleNamespace(predictions=np.zeros(shape), targets=np.zeros(shape))
    with raises_code("metric-outputs-count", metric.name, str(shape[-1])):
        metric.collect(output) if isinstance(metric, SpearmanCorrelation) else metric.update(None, output, INFO)


def test_wrong_shapes() -> None:
    output = types.SimpleNamespace(predictions=np.zeros((4, 1)), targets=np.zeros(4))
    with raises_code("metric-pair-shapes", "R2", "(4, 1)", "(4,)"):
        R2().update(R2().init(), output, INFO)


@pytest.mark.parametrize("make", [R2, ExplainedVariance, PearsonCorrelation, SpearmanCorrelation])
def test_wrong_arguments(make: Any) -> None:
    with raises_code("metric-arguments-wrong", make.__name__, "0", "1"):
        make(0)
    if make in (R2, ExplainedVariance):
        with raises_code("metric-arguments-wrong", make.__name__, "'mean'", "'uniform'"):
            make(average="mean")


# -- ranks -------------------------------------------------------------------------------------------------------------


def spearman(predictions: Any, targets: Any, counted: Any = None) -> float:
    predictions, targets = np.asarray(predictions, np.float32), np.asarray(targets, np.float32)
    counted = np.ones(targets.shape, bool) if counted is None else counted
    return SpearmanCorrelation().compute({"predictions": predictions, "targets": targets, "counted": counted})


def test_ranks_with_ties_equal_scipy() -> None:
    for _ in range(5):
        p, t = RNG.integers(0, 6, (2, 40)).astype(np.float32)
        np.testing.assert_allclose(spearman(p[:, None], t[:, None]), stats.spearmanr(p, t).statistic, rtol=1e-12)


def test_ranks_of_constant_missing_and_nan_values() -> None:
    p, t = RNG.normal(size=(2, 10, 1))
    assert np.isnan(spearman(np.ones((10, 1)), t))
    assert np.isnan(spearman(p[:0], t[:0]))
    p[3] = np.nan
    assert np.isnan(spearman(p, t))
    counted = np.arange(10)[:, None] != 3
    expected = stats.spearmanr(p[counted], t[counted]).statistic
    np.testing.assert_allclose(spearman(p, t, counted), expected, rtol=1e-12)
    assert spearman(np.exp(3 * t), t) == pytest.approx(1)
