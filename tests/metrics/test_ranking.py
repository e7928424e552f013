"""Tests of AUROC and average precision, exact and in bins."""

import functools
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics

from learner.errors import LearnerError
from learner.metrics import AUROC, AveragePrecision, BinnedAUROC, BinnedAveragePrecision, CalibrationError, Info
from tests.support.codes import raises_code

INFO = Info(jnp.int32(0), jnp.float32(1))
AREA, PRECISION = sklearn_metrics.roc_auc_score, sklearn_metrics.average_precision_score
TWO_BINS = BinnedAUROC(1, bins=2)
BOTH = [(AUROC, AREA), (AveragePrecision, PRECISION)]


def rows(scores: Any, labels: Any, counted: Any = None) -> dict[str, np.ndarray]:
    """Return scores and labels as `collect` does."""
    scores, labels = np.asarray(scores, np.float32), np.asarray(labels, np.int32)
    is_multi_label = labels.ndim == scores.ndim
    labels = np.where((labels < 0) | (labels > (1 if is_multi_label else scores.shape[-1] - 1)), -1, labels)
    labels = np.where(True if counted is None else counted, labels, -2)
    return {"scores": scores, "labels": labels.astype(np.int8 if is_multi_label else np.int32)}


def multi_label(rng: np.random.Generator, ties: bool) -> tuple[np.ndarray, np.ndarray]:
    scores = rng.integers(-3, 4, (60, 3)) if ties else rng.normal(size=(60, 3))
    return scores.astype(np.float32), (rng.random((60, 3)) < 0.3).astype(int)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("average", ["macro", "weighted", "micro", "none"])
@pytest.mark.parametrize(("metric", "score"), BOTH)
def test_multi_label_equals_sklearn(metric: Any, score: Any, average: str, ties: bool) -> None:
    scores, labels = multi_label(np.random.default_rng(2), ties)
    expected = score(labels, scores, average=None if average == "none" else average)
    np.testing.assert_allclose(metric(average).compute(rows(scores, labels)), expected, rtol=1e-12)


@pytest.mark.parametrize(("metric", "score"), BOTH)
def test_multi_class_is_one_against_the_rest(metric: Any, score: Any) -> None:
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 4, 80)
    # Permuted rows have equal sums, so that equal scores have equal probabilities.
    logits = rng.permuted(np.tile(np.array([0.1, 0.2, 0.4, 0.7]), (80, 1)), axis=1)
    expected = score(np.eye(4)[labels], logits, average="macro")
    np.testing.assert_allclose(metric().compute(rows(logits, labels)), expected, rtol=1e-12)
    distinct = rng.normal(size=(80, 4)).astype(np.float32)
    probabilities = np.exp(distinct.astype(float)) / np.exp(distinct.astype(float)).sum(1, keepdims=True)
    expected = score(np.eye(4)[labels], probabilities, average="weighted")
    np.testing.assert_allclose(metric("weighted").compute(rows(distinct, labels)), expected, rtol=1e-12)


@pytest.mark.parametrize(("metric", "score"), BOTH)
def test_binary_is_class_1(metric: Any, score: Any) -> None:
    rng = np.random.default_rng(4)
    labels, gap = rng.integers(0, 2, 50), rng.integers(-3, 4, 50)
    expected = score(labels, gap)
    logits = np.stack([np.zeros(50), gap], 1)
    np.testing.assert_allclose(metric("binary").compute(rows(logits, labels)), expected, rtol=1e-12)
    np.testing.assert_allclose(metric().compute(rows(gap[:, None], labels[:, None])), expected, rtol=1e-12)


@pytest.mark.parametrize(("metric", "score"), BOTH)
def test_saturated_probabilities_keep_their_order(metric: Any, score: Any) -> None:
    rng = np.random.default_rng(9)
    labels, gap = rng.integers(0, 2, 50), 40 + 40 * rng.integers(0, 50, 50)  # 1 - e⁻⁴⁰ is 1, and e⁻⁸⁰⁰ is 0
    expected = [score(1 - labels, -gap), score(labels, gap)]
    actual = metric("none").compute(rows(np.stack([np.zeros(50), gap], 1), labels))
    np.testing.assert_allclose(actual, expected, rtol=1e-12)
    three = metric("none").compute(rows(np.stack([np.zeros(50), gap, np.zeros(50)], 1), labels))
    np.testing.assert_allclose(three[:2], expected, rtol=1e-12)


def test_one_class_only_is_nan() -> None:
    scores = [[0.1], [0.2], [0.3]]
    assert np.isnan(AUROC().compute(rows(scores, [[0], [0], [0]])))
    assert np.isnan(AUROC().compute(rows(scores, [[1], [1], [1]])))
    assert np.isnan(AveragePrecision().compute(rows(scores, [[0], [0], [0]])))
    assert AveragePrecision().compute(rows(scores, [[1], [1], [1]])) == 1
    assert AUROC().compute(rows([[0.5]] * 3, [[1], [0], [0]])) == 0.5


def test_a_class_without_samples_does_not_count() -> None:
    scores, labels = multi_label(np.random.default_rng(5), ties=True)
    labels[:, 1] = 0
    values = AUROC("none").compute(rows(scores, labels))
    assert np.isnan(values[1])
    assert AUROC().compute(rows(scores, labels)) == pytest.approx((values[0] + values[2]) / 2)


@pytest.mark.parametrize(("metric", "score"), BOTH)
def test_masked_and_invalid_rows(metric: Any, score: Any) -> None:
    scores, labels = multi_label(np.random.default_rng(6), ties=True)
    expected = score(labels[10:], scores[10:], average="macro")
    counted = np.ones(labels.shape, bool)
    scores[:5], labels[5:10], counted[:10] = np.nan, -1, False
    np.testing.assert_allclose(metric().compute(rows(scores, labels, counted)), expected, rtol=1e-12)
    counted[7] = True
    assert np.isnan(metric().compute(rows(scores, labels, counted)))
    assert np.isnan(metric().compute(rows(scores[:, :1], labels[:, 0] + 3)))


@pytest.mark.full
@pytest.mark.parametrize(
    "row", [[0, np.inf], pytest.param([-np.inf, -np.inf], marks=pytest.mark.full)], ids=["inf", "-inf"]
)
def test_scores_without_a_softmax_are_nan(row: Any) -> None:
    logits, labels = np.array([row, [0, 1], [0, 2], [5, 0]], np.float32), np.array([1, 0, 1, 0])
    for average in ("macro", "binary", "micro", "weighted"):
        assert np.isnan(AUROC(average).compute(rows(logits, labels)))
    assert np.isnan(AveragePrecision("none").compute(rows(logits, labels))).all()
    masked = rows(logits, labels, np.array([False, True, True, True]))
    assert AUROC("binary").compute(masked) == 1
    for metric in (BinnedAUROC(2, bins=2), CalibrationError(2)):
        assert np.isnan(binned(metric, logits, labels))
        assert not np.isnan(binned(metric, logits[1:], labels[1:]))


def test_infinite_multi_label_scores_are_ranked() -> None:
    scores, labels = np.array([[np.inf], [1], [2], [-np.inf]], np.float32), np.array([[1], [0], [1], [0]])
    assert AUROC().compute(rows(scores, labels)) == 1
    assert binned(TWO_BINS, scores, labels) == 0.75  # 1 and 2 are in one bin


@pytest.mark.parametrize(("metric", "score"), BOTH)
def test_equal_infinities_are_equal_scores(metric: Any, score: Any) -> None:
    rng = np.random.default_rng(8)
    scores, labels = multi_label(rng, ties=True)
    infinite = np.select([scores >= 2, scores <= -2], [np.inf, -np.inf], scores)
    expected = score(labels, np.clip(scores, -2, 2))  # scikit-learn rejects infinities
    for order in (np.arange(60), rng.permutation(60), np.argsort(labels[:, 0]), np.argsort(-labels[:, 0])):
        actual = metric().compute(rows(infinite[order], labels[order]))
        np.testing.assert_allclose(actual, expected, rtol=1e-12)


def test_collected_arrays() -> None:
    logits = jnp.zeros((2, 5, 3), jnp.bfloat16)
    output = types.SimpleNamespace(logits=logits, targets=jnp.array([[1, -9, 0, 0, 2]] * 2), mask=jnp.array([1, 0]))
    kept = jax.tree.map(np.asarray, AUROC(ignore_label=-9).collect(output))
    assert {name: (x.shape, x.dtype.name) for name, x in kept.items()} == {
        "scores": ((2, 5, 3), "float32"),
        "labels": ((2, 5), "int32"),
    }
    np.testing.assert_array_equal(kept["labels"], [[1, -2, 0, 0, 2], [-2] * 5])


def test_collected_multi_labels_take_five_bytes() -> None:
    targets = jnp.array([[1.0, 0, -9], [0.5, 1, 3]])
    kept = AUROC(ignore_label=-9).collect(types.SimpleNamespace(logits=jnp.zeros((2, 3)), targets=targets))
    assert kept["labels"].tolist() == [[1, 0, -2], [-1, 1, -1]]
    strange = AUROC().collect(types.SimpleNamespace(logits=jnp.zeros((2, 3)), targets=jnp.array([-9, 3])))
    assert strange["labels"].tolist() == [-1, -1]
    assert sum(x.nbytes for x in kept.values()) == 5 * 2 * 3


def test_table() -> None:
    metric = AUROC("none", classes=["cat", "dog"])
    assert metric.text(np.array([0.25, np.nan])) == "cat  0.2500\ndog     nan"
    assert AUROC("none").text(np.array([0.25])) == "0  0.2500"


# -- in bins -----------------------------------------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnums=0)
def run(metric: Any, logits: Any, targets: Any) -> Any:
    output = types.SimpleNamespace(logits=logits, targets=targets)
    return metric.compute(metric.update(metric.init(), output, INFO))


def binned(metric: Any, scores: np.ndarray, labels: np.ndarray) -> float:
    return float(run(metric, scores, labels.astype(np.int32)))


def area_bound(hits: np.ndarray, false: np.ndarray) -> float:
    return float((hits / hits.sum() * false / false.sum()).sum() / 2)


def precision_bound(hits: np.ndarray, false: np.ndarray) -> float:
    actual, wrong = np.cumsum(hits), np.cumsum(false)
    best = actual / np.maximum(actual + wrong - false, 1)
    worst = (actual - hits + 1) / (actual - hits + 1 + wrong)
    return float((hits / hits.sum() * (best - worst)).sum())


@pytest.mark.full
@pytest.mark.parametrize(
    ("metric", "exact", "bound"),
    [(BinnedAUROC, AREA, area_bound), (BinnedAveragePrecision, PRECISION, precision_bound)],
)
def test_error_of_bins_is_within_its_bound(metric: Any, exact: Any, bound: Callable[..., float]) -> None:
    rng = np.random.default_rng(7)
    labels = (rng.random(500) < 0.3).astype(np.int32)
    scores = (rng.normal(size=500) + labels).astype(np.float32)
    probabilities, errors = 1 / (1 + np.exp(-scores.astype(float))), []
    for bins in (4, 100):
        places = np.floor((1 - probabilities) * bins).astype(int)
        hits, false = (np.bincount(places[labels == kind], minlength=bins) for kind in (1, 0))
        errors.append(abs(binned(metric(1, bins=bins), scores, labels) - exact(labels, scores)))
        assert errors[-1] <= bound(hits, false) + 1e-6
    assert errors[0] > 10 * errors[1]


def test_the_last_bins_take_the_ends() -> None:
    scores, labels = np.array([-200.0, -100, 100, 200], np.float32), np.array([0, 0, 1, 1])
    assert binned(TWO_BINS, scores, labels) == 1
    assert binned(TWO_BINS, scores, 1 - labels) == 0


def test_bins_of_one_class_or_invalid_rows_are_nan() -> None:
    scores, labels = np.array([-2.0, -1, 1, 2], np.float32), np.array([0, 0, 1, 1])
    for wrong in (np.zeros(4, int), np.ones(4, int), np.array([0, 1, 2, 1])):
        assert np.isnan(binned(TWO_BINS, scores, wrong))
    assert np.isnan(binned(TWO_BINS, np.array([0, np.nan, 0, 1], np.float32), labels))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AUROC("weigthed"), "average of AUROC is 'weigthed'; did you mean 'weighted'?"),
        (lambda: AUROC("binary", classes=3), "average of AUROC is 'binary', but there are 3 classes"),
        (lambda: AUROC(classes=[]), "classes of AUROC is []"),
        (lambda: BinnedAUROC(3, bins=1), "bins of BinnedAUROC is 1; it needs 2 or more"),
        (lambda: BinnedAUROC(3, average="micro"), "average of BinnedAUROC is 'micro'"),
    ],
)
def test_wrong_arguments(make: Any, message: str) -> None:
    with pytest.raises(LearnerError) as error:
        make()
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("metric", "code", "values"),
    [
        (AUROC("binary"), "metric-ranking-fields", ("3",)),
        (AUROC(classes=2), "metric-classes-mismatch", ("2",)),
        (AUROC(classes=1), "metric-scores-shape", ()),
    ],
)
def test_wrong_shapes(metric: AUROC, code, values) -> None:
    with raises_code(code, *values):
        metric.collect(types.SimpleNamespace(logits=jnp.zeros((4, 3)), targets=jnp.zeros(4, jnp.int32)))
