"""Tests of sums and means of metrics, of the contract's example, and of reasons for undefined values."""

import functools
import inspect
import math
import textwrap
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import learner.metrics.base
from learner import metrics
from learner.metrics import CompensatedSum, Info, MetricBase, WeightedMean, rows_mask
from learner.steps.outputs import RegressionOutput
from tests.support.codes import raises_code
from tests.support.stopped import some

few_examples = settings(max_examples=50, deadline=None, derandomize=True, database=None)
floats = st.floats(-1e6, 1e6, width=32, allow_subnormal=False)


def plain_sum(x: float, count: int) -> Any:
    return jax.jit(lambda x: jax.lax.fori_loop(0, count, lambda i, s: s + x, jnp.float32(0)))(np.float32(x))


def test_sum_of_a_million_values_does_not_drift() -> None:
    x, count = np.float32(0.1), 1_000_000
    zero = CompensatedSum.zero()
    total = jax.jit(lambda x: jax.lax.fori_loop(0, count, lambda i, s: s.add(x), zero))(x)
    merged = jax.jit(lambda x: jax.lax.fori_loop(0, count, lambda i, s: s.merge(zero.add(x)), zero))(x)
    exact = np.float32(count * float(x))
    assert total.value() == exact
    assert merged.value() == exact
    assert abs(float(plain_sum(x, count)) / exact - 1) > 1e-3, "a plain sum must be seen to drift"


def test_long_mean_does_not_drift() -> None:
    rng = np.random.default_rng(0)
    values, weights = rng.random(40_000, np.float32) + 1, rng.integers(1, 65, 40_000).astype(np.float32)

    @jax.jit
    def epoch(values: Any, weights: Any) -> tuple[Any, Any]:
        def body(carry: Any, batch: Any) -> Any:
            state, plain = carry
            return (state.merge(WeightedMean.zero().add(*batch)), plain + batch[0] * batch[1]), None

        return jax.lax.scan(body, (WeightedMean.zero(), jnp.float32(0)), (values, weights))[0]

    state, plain = epoch(values, weights)
    exact = np.average(values.astype(np.float64), weights=weights)
    np.testing.assert_allclose(state.value(), exact, rtol=1.2e-7)
    assert state.weight.value() == weights.sum(dtype=np.float64)
    assert abs(float(plain) / weights.sum(dtype=np.float64) / exact - 1) > 1e-6, "a plain sum must be seen to drift"


add = jax.jit(lambda total, value: total.add(value))
merge = jax.jit(lambda total, value: CompensatedSum.zero().add(value).merge(total))


@few_examples
@given(st.lists(floats, min_size=1, max_size=16))
def test_sum_equals_the_exact_sum(values: list[float]) -> None:
    added, merged = CompensatedSum.zero(), CompensatedSum.zero()
    for value in values:
        added, merged = add(added, np.float32(value)), merge(merged, np.float32(value))
    size = max(map(abs, values))
    # Two float32 hold about 48 bits of the largest value; the result is rounded to 24 bits.
    for total in (added, merged):
        np.testing.assert_allclose(total.value(), math.fsum(values), rtol=1.2e-7, atol=len(values) * size * 2.0**-44)


def test_sum_of_a_shape() -> None:
    total = CompensatedSum.zero((2,)).add(jnp.array([1e8, 1.0])).add(jnp.array([1.0, 2.0])).add(jnp.array([-1e8, 3.0]))
    np.testing.assert_array_equal(total.value(), [1.0, 6.0])


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, np.inf, 2.0], np.inf),
        ([-np.inf, 1.0], -np.inf),
        ([np.inf, -np.inf], np.nan),
        ([1.0, np.nan, 1.0], np.nan),
        ([3e38, 3e38, 1.0], np.inf),
        ([3e38, -3e38, 1.0], 1.0),
    ],
)
def test_sum_of_non_finite_values(values: list[float], expected: float) -> None:
    added, merged = CompensatedSum.zero(), CompensatedSum.zero()
    for value in values:
        added = added.add(jnp.float32(value))
        merged = merged.merge(CompensatedSum.zero().add(jnp.float32(value)))
    np.testing.assert_array_equal([added.value(), merged.value()], expected)


mean_of = jax.jit(lambda values, weights: WeightedMean.zero().add(values, weights))


@few_examples
@given(st.lists(st.tuples(floats, st.integers(0, 9)), min_size=5, max_size=5))
def test_mean_equals_numpy(rows: list[tuple[float, int]]) -> None:
    values, weights = map(np.asarray, zip(*rows, strict=True))
    mean = mean_of(np.where(weights > 0, values, np.nan).astype(np.float32), weights)
    expected = np.average(values, weights=weights) if weights.sum() else np.nan
    np.testing.assert_allclose(mean.value(), expected, rtol=1e-6, atol=1e-6 * np.abs(values).max())


def test_mean_without_weights_counts_each_value_once() -> None:
    mean = WeightedMean.zero().add(jnp.array([[1.0, 2.0], [3.0, 6.0]]))
    assert (mean.value(), mean.weight.value()) == (3.0, 4.0)


def test_weights_of_rows_count_for_all_values_of_a_row() -> None:
    values = jnp.array([[1.0, 1, 1], [2, 2, 2], [jnp.nan, 3, 3]])
    mean = WeightedMean.zero().add(values, jnp.array([3, 1, 0]))
    assert (mean.value(), mean.weight.value()) == (1.25, 12.0)
    assert WeightedMean.zero().add(values[:2], jnp.float32(2)).weight.value() == 12.0


@pytest.mark.parametrize("shape", [(2,), (3, 1), (1, 2), (3, 2, 1)])
def test_weights_of_another_shape_raise(shape: tuple[int, ...]) -> None:
    with raises_code("metric-weights-shape", "(3, 2)"):
        WeightedMean.zero().add(jnp.ones((3, 2)), jnp.ones(shape))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_of_weight_0_do_not_count(bad: float) -> None:
    mean = WeightedMean.zero().add(jnp.array([2.0, bad, 4.0]), jnp.array([True, False, True]))
    assert mean.value() == 3.0
    assert np.isnan(WeightedMean.zero().add(jnp.float32(bad), jnp.float32(0)).value())


@pytest.mark.parametrize("dtype", some(["bfloat16", "float16", "int32", "uint8", "bool"], ["bfloat16", "bool"]))
def test_mean_takes_every_dtype(dtype: str) -> None:
    mean = WeightedMean.zero().add(jnp.array([1, 0, 1, 1]).astype(dtype), jnp.array([1, 1, 0, 1]).astype(dtype))
    np.testing.assert_allclose(mean.value(), 2 / 3, rtol=1e-7)


def test_rows_mask() -> None:
    for mask in ([1, 0], [0.25, 0.0]):  # fractional weights count as 1
        output = RegressionOutput.from_predictions(jnp.ones(2), jnp.ones(2), jnp.array(mask))
        np.testing.assert_array_equal(rows_mask(output), np.array([True, False]), strict=True)
    assert rows_mask(RegressionOutput.from_predictions(jnp.ones(2), jnp.ones(2))) is None
    assert rows_mask(object()) is None


def test_example_of_the_contract() -> None:
    doc = learner.metrics.base.__doc__
    assert doc is not None
    names = {**vars(learner.metrics.base), "__name__": __name__}  # the module decides whether a class is public
    exec(textwrap.dedent(doc[doc.index("    class MeanAbsoluteError") :]), names)
    metric = names["MeanAbsoluteError"]()
    predictions, targets = jnp.array([1.0, 5.0, jnp.nan]), jnp.array([2.0, 2.0, 0.0])
    output = RegressionOutput.from_predictions(predictions, targets, jnp.array([1, 1, 0]))
    state = metric.update(metric.init(), output, Info(jnp.int32(0), output.weight))
    assert metric.compute(metric.merge(metric.init(), state)) == 2.0


# -- why there is no value ---------------------------------------------------------------------------------------------

# Metrics that are NaN only if no row counts, or if the loss is NaN.
COUNTING = {"Accuracy", "TopKAccuracy", "Hamming", "TokenAccuracy", "ExactMatch"}
OF_THE_LOSS = {"Loss", "Perplexity", "BitsPerCharacter"}
WRAPPERS = {"By", "Head", "OnText", "Subset"}
CONTRACTS = {"CollectingMetric", "HostMetric", "MeanMetric", "Metric", "MetricBase"}


COUNTED = [metrics.Accuracy(), metrics.TopKAccuracy(1), metrics.Hamming()]
REASONS = [
    (metrics.Precision(2), "NaN among the scores"),
    (metrics.Matthews(2), "NaN among the scores"),
    (metrics.AUROC(), "no class had labels (for AUROC: and other rows)"),
    (metrics.AveragePrecision(), "label outside of the classes"),
    (metrics.BinnedAUROC(2, bins=2), "no class had labels (for AUROC: and other rows)"),
    (metrics.BrierScore(), "label outside of the classes"),
    (metrics.CalibrationError(2), "label outside of the classes"),
    (metrics.MeanAbsoluteError(), "not a finite number"),
    (metrics.MeanAbsolutePercentageError(), "a target is 0"),
    (metrics.QuantileLoss(), "not a finite number"),
    (metrics.R2(), "the targets are constant"),
    (metrics.PearsonCorrelation(), "the targets or the predictions are constant"),
    (metrics.SpearmanCorrelation(), "the targets or the predictions are constant"),
]


@functools.cache
def undefined_values() -> dict[str, float]:
    """Return the value of each metric by name over two rows, one of which has NaNs or a label that is no class."""
    info = Info(jnp.int32(0), jnp.float32(2))
    classes = {"logits": jnp.array([[jnp.nan, 1.0], [0.0, 1.0]]), "targets": jnp.array([7, 1])}
    numbers = {"predictions": jnp.array([jnp.nan, 1.0]), "targets": jnp.array([2.0, 1.0])}

    @jax.jit
    def run(classes: Any, numbers: Any) -> Any:
        values = {}
        for metric in [*COUNTED, *(metric for metric, _ in REASONS)]:
            output = types.SimpleNamespace(**(classes if "logits" in metric.fields else numbers))
            is_collecting = isinstance(metric, metrics.CollectingMetric)
            state = metric.collect(output) if is_collecting else metric.update(metric.init(), output, info)
            values[metric.name] = state if is_collecting else metric.compute(state)
        return values

    values = run(classes, numbers)
    for metric, _ in REASONS:
        if isinstance(metric, metrics.CollectingMetric):
            values[metric.name] = metric.compute(jax.tree.map(np.asarray, values[metric.name]))
    return values


def test_metrics_state_when_they_are_undefined() -> None:
    kinds = {name: kind for name in metrics.__all__ if inspect.isclass(kind := getattr(metrics, name))}
    silent = {
        name for name, kind in kinds.items() if issubclass(kind, MetricBase) and kind.undefined == MetricBase.undefined
    }
    assert silent == COUNTING | OF_THE_LOSS | WRAPPERS | CONTRACTS


@pytest.mark.full
@pytest.mark.parametrize("metric", COUNTED, ids=lambda m: m.name)
def test_invalid_rows_count_as_errors(metric: Any) -> None:
    assert undefined_values()[metric.name] == 0.5


@pytest.mark.full
@pytest.mark.parametrize(
    ("metric", "reason"),
    REASONS,
    ids=lambda x: getattr(x, "name", ""),
)
def test_reasons_for_undefined_values(metric: Any, reason: str) -> None:
    assert math.isnan(undefined_values()[metric.name])
    assert reason in metric.undefined


@pytest.mark.parametrize("weights", [[2.0, -1.0], [-2.0, -1.0]])
def test_negative_weights_have_no_mean(weights: list[float]) -> None:
    values = jnp.array([1.0, 5.0])
    together = WeightedMean.zero().add(values, jnp.array(weights))
    one_by_one = WeightedMean.zero().add(values[0], jnp.float32(weights[0])).add(values[1], jnp.float32(weights[1]))
    assert np.isnan([together.value(), one_by_one.value()]).all()
