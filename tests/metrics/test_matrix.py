"""Tests of ConfusionMatrix, Matthews and CohenKappa."""

import types
from fractions import Fraction as Exact
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics

from learner.errors import LearnerError
from learner.metrics import CohenKappa, ConfusionMatrix, Count, Info, Matthews, Metric
from tests.support.codes import raises_code

INFO = Info(jnp.int32(0), jnp.float32(1))
RNG = np.random.default_rng(1)
LABELS, PREDICTED = RNG.integers(0, 3, (2, 40))
LOGITS = np.eye(3, dtype=np.float32)[PREDICTED]
PLAIN, LINEAR, QUADRATIC = CohenKappa(3), CohenKappa(3, "linear"), CohenKappa(3, "quadratic")


def state(metric: Metric, logits: Any, targets: Any, mask: Any = None) -> Any:
    output = types.SimpleNamespace(logits=logits, targets=targets, mask=mask)
    return metric.update(metric.init(), output, INFO)


def counts_of(matrix: Any) -> Count:
    """Return the state with these counts."""
    padded = np.pad(np.array(matrix, np.uint64), (0, 1))
    return Count(jnp.asarray(padded >> np.uint64(32), jnp.uint32), jnp.asarray(padded % 2**32, jnp.uint32))


def value_of(metric: Metric, matrix: Any) -> float:
    return float(metric.compute(counts_of(matrix)))


# -- the matrix --------------------------------------------------------------------------------------------------------


def test_matrix_equals_sklearn() -> None:
    metric = ConfusionMatrix(3)
    value = metric.compute(state(metric, LOGITS, LABELS))
    np.testing.assert_array_equal(metric.matrix(value), sklearn_metrics.confusion_matrix(LABELS, PREDICTED))
    assert metric.counts(value).sum() == 40


def test_masked_ignored_and_invalid_rows() -> None:
    metric = ConfusionMatrix(["cat", "dog", "eel"], ignore_label=-1)
    labels, logits, mask = LABELS.copy(), LOGITS.copy(), np.ones(40, int)
    labels[:4], labels[4:6], mask[:1], mask[6:8] = -1, 7, 0, 0
    logits[8, 1] = np.nan
    value = metric.compute(state(metric, logits, labels, mask))
    expected = sklearn_metrics.confusion_matrix(LABELS[9:], PREDICTED[9:])
    np.testing.assert_array_equal(metric.matrix(value), expected)
    assert metric.counts(value)[-1].sum() == 2
    assert metric.counts(value)[LABELS[8], -1] == 1
    lines = metric.text(value).splitlines()
    assert lines[0].split() == ["label", "cat", "dog", "eel", "none"]
    assert [line.split()[0] for line in lines[1:]] == ["cat", "dog", "eel", "none"]


def test_table_is_aligned() -> None:
    metric = ConfusionMatrix(["a cat", "dog"])
    assert metric.text(counts_of([[1, 2000], [3, 2**40]])).splitlines() == [
        "label  a cat            dog",
        "a cat      1           2000",
        "dog        3  1099511627776",
    ]


def test_picture() -> None:
    counts = np.zeros((4, 4), np.uint32)
    counts[:3] = [[0, 8, 2, 0], [0, 0, 0, 0], [0, 0, 5, 15]]  # 15 of the 20 rows of class 2 had a NaN
    picture = ConfusionMatrix(3).picture(Count(np.zeros_like(counts), counts))
    assert (picture.dtype, picture.shape) == (np.uint8, (384, 384))
    expected = np.kron([[255, 51, 204], [255, 255, 255], [255, 255, 191]], np.ones((128, 128)))
    np.testing.assert_array_equal(picture, expected)


@pytest.mark.parametrize(("classes", "side"), [(2, 384), (10, 380), (65, 325), (97, 388), (200, 800)])
def test_picture_has_at_least_four_pixels_per_class(classes: int, side: int) -> None:
    picture = ConfusionMatrix(classes).picture(counts_of(np.eye(classes, dtype=int) * 2**40))
    assert picture.shape == (side, side)
    cell = side // classes
    np.testing.assert_array_equal(picture[::cell, ::cell], 255 * (1 - np.eye(classes, dtype=int)))


@pytest.mark.parametrize(("classes", "side"), [(257, 771), (1024, 1024), (1025, 513)])
def test_size_of_the_picture_is_limited(classes: int, side: int) -> None:
    """A single error is visible even if several classes share a pixel."""
    counts = np.zeros((classes, classes), np.uint64)
    counts[-1, 0] = 1
    picture = ConfusionMatrix(classes).picture(counts_of(counts))
    assert (picture.shape, picture[-1, 0], picture[0, -1]) == ((side, side), 0, 255)


@pytest.mark.full
def test_one_score_has_two_classes() -> None:
    metric = ConfusionMatrix(1, threshold=0.75)
    value = metric.compute(state(metric, np.array([0.0, 1, 2, 3], np.float32), np.array([0, 1, 1, 0])))
    np.testing.assert_array_equal(metric.matrix(value), [[1, 1], [1, 1]])
    assert metric.text(value).splitlines()[0] == "label  0  1"


def test_tokens_are_rows() -> None:
    metric = ConfusionMatrix(3)
    value = metric.compute(state(metric, LOGITS.reshape(4, 10, 3), LABELS.reshape(4, 10), np.array([1, 0, 1, 1])))
    rows = np.r_[:10, 20:40]
    np.testing.assert_array_equal(metric.matrix(value), sklearn_metrics.confusion_matrix(LABELS[rows], PREDICTED[rows]))


# -- agreement ---------------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize(
    ("metric", "score", "arguments"),
    [
        (Matthews(3), sklearn_metrics.matthews_corrcoef, {}),
        (PLAIN, sklearn_metrics.cohen_kappa_score, {}),
        (LINEAR, sklearn_metrics.cohen_kappa_score, {"weights": "linear"}),
        (QUADRATIC, sklearn_metrics.cohen_kappa_score, {"weights": "quadratic"}),
    ],
    ids=lambda x: getattr(x, "name", ""),
)
def test_values_equal_sklearn(metric: Metric, score: Any, arguments: Any) -> None:
    for part in (0.0, 0.5, 0.9):
        predicted = np.where(RNG.random(40) < part, LABELS, PREDICTED)
        matrix = sklearn_metrics.confusion_matrix(LABELS, predicted)
        np.testing.assert_allclose(value_of(metric, matrix), score(LABELS, predicted, **arguments), atol=3e-7)
    assert value_of(metric, np.diag([3, 0, 41])) == pytest.approx(1, abs=1.2e-7)


@pytest.mark.full
def test_missing_class_changes_distances_only() -> None:
    matrix = [[30, 0, 4], [0, 0, 0], [5, 0, 11]]
    labels, predicted = np.repeat([0, 0, 2, 2], [30, 4, 5, 11]), np.repeat([0, 2, 0, 2], [30, 4, 5, 11])
    expected = sklearn_metrics.matthews_corrcoef(labels, predicted)
    assert value_of(Matthews(3), matrix) == pytest.approx(expected, abs=2e-7)
    expected = sklearn_metrics.cohen_kappa_score(labels, predicted)
    assert value_of(PLAIN, matrix) == pytest.approx(expected, abs=2e-7)


@pytest.mark.full
@pytest.mark.parametrize("metric", [Matthews(3), PLAIN, LINEAR], ids=lambda m: m.name)
def test_one_class_only_is_nan(metric: Metric) -> None:
    assert np.isnan(value_of(metric, np.diag([9, 0, 0])))
    assert np.isnan(value_of(metric, np.zeros((3, 3), int)))
    if isinstance(metric, Matthews):
        assert np.isnan(value_of(metric, [[9, 0, 0], [5, 0, 0], [0, 0, 0]]))
    else:
        assert value_of(metric, [[9, 0, 0], [5, 0, 0], [0, 0, 0]]) == 0


@pytest.mark.parametrize("metric", [Matthews(3), PLAIN], ids=lambda m: m.name)
def test_invalid_rows_make_the_value_nan(metric: Metric) -> None:
    compute = metric.compute
    labels, logits = LABELS.copy(), LOGITS.copy()
    assert not np.isnan(compute(state(metric, LOGITS, LABELS)))
    labels[3], logits[3, 0] = 3, np.nan
    assert np.isnan(compute(state(metric, LOGITS, labels)))
    assert np.isnan(compute(state(metric, logits, LABELS)))


def test_rare_class_among_billions() -> None:
    """A difference of products of shares has an absolute error of 6e-8, which is too much for a share of 1e-6."""
    a, b, c, d = 9_999_990_000, 3_001, 2_003, 5_007
    matrix = [[a, b, 0], [c, d, 0], [0, 0, 0]]
    exact = (a * d - b * c) / np.sqrt(float((a + b) * (c + d))) / np.sqrt(float((a + c) * (b + d)))
    np.testing.assert_allclose(value_of(Matthews(3), matrix), exact, rtol=5e-7)
    chance = Exact((a + b) * (b + d) + (c + d) * (a + c), a + b + c + d)
    np.testing.assert_allclose(value_of(PLAIN, matrix), float(1 - (b + c) / chance), rtol=5e-7)


def test_several_labels_have_no_matrix() -> None:
    output = types.SimpleNamespace(logits=jnp.zeros((4, 3)), targets=jnp.zeros((4, 3)))
    with raises_code("metric-matrix-multilabel", "Confusion Matrix"):
        ConfusionMatrix(3).update(ConfusionMatrix(3).init(), output, INFO)


def test_wrong_weights_and_classes_are_one_error() -> None:
    with pytest.raises(LearnerError) as error:
        CohenKappa(0, weights="squared", threshold=2)
    for message in ("classes of CohenKappa is 0", "weights of CohenKappa is 'squared'; choose from 'none', 'linear'"):
        assert message in str(error.value)
    assert "3 problems" in str(error.value)


@pytest.mark.parametrize(("classes", "lines"), [(100, 101), (101, 1 + 101 + 2)])
def test_text_of_many_classes_has_a_line_per_pair(classes, lines):
    """Every class has a line for its hits, even without any; counts beyond 2³² are exact."""
    counts = np.zeros((classes + 1, classes + 1), np.int64)
    counts[0, 1], counts[2, 0], counts[2, 2] = 3, 2**40 + 1, 4
    text = ConfusionMatrix(classes).text(counts_of(counts)).splitlines()
    assert len(text) == lines
    if classes > 100:
        pairs = [tuple(line.split()) for line in text[:6]]
        assert pairs[:4] == [("label", "predicted", "rows"), ("0", "0", "0"), ("0", "1", "3"), ("1", "1", "0")]
        assert pairs[4:] == [("2", "2", "4"), ("2", "0", str(2**40 + 1))]
