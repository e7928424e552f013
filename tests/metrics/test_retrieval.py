"""Tests of NDCG and MRR."""

import types

import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.metrics

from learner.metrics import MRR, NDCG, Info
from tests.support.codes import raises_code

INFO = Info(jnp.int32(0), jnp.float32(1))
SCORES = np.array([[4.0, 3, 2, 1], [1, 2, 3, 4], [2, 4, 1, 3]], np.float32)
SEVERAL = np.array([[0, 1, 0, 1], [1, 1, 0, 0], [0, 0, 0, 0]], np.float32)  # ranks 2 and 4, 4 and 3, and none


def value(metric, logits, targets, mask=None):
    output = types.SimpleNamespace(logits=jnp.asarray(logits), targets=jnp.asarray(targets))
    if mask is not None:
        output.mask = jnp.asarray(mask)
    return float(metric.compute(metric.update(metric.init(), output, INFO)))


@pytest.mark.parametrize(
    ("metric", "targets", "expected"),
    [
        (MRR(), [0, 0, 0], (1 + 1 / 4 + 1 / 3) / 3),
        (MRR(k=3), [0, 0, 0], (1 + 0 + 1 / 3) / 3),
        (MRR(ignore_label=3), [3, 3, 1], 1.0),
        (NDCG(), [0, 1, 3], (1 + 1 / 2 + 1 / np.log2(3)) / 3),
        (NDCG(k=2), [0, 1, 3], (1 + 0 + 1 / np.log2(3)) / 3),
        (NDCG(k=9), [0, 1, 3], (1 + 1 / 2 + 1 / np.log2(3)) / 3),
        (MRR(), SEVERAL, (1 / 2 + 1 / 3) / 2),
        (MRR(k=2), SEVERAL, (1 / 2 + 0) / 2),
        (NDCG(k=1), SEVERAL, 0.0),
    ],
)
def test_ranks_by_hand(metric, targets, expected):
    assert value(metric, SCORES, np.asarray(targets)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("k", [None, 1, 3, 20])
def test_ndcg_equals_scikit_learn(k):
    rng = np.random.default_rng(0)
    scores, relevant = rng.normal(size=(40, 12)).astype(np.float32), rng.random((40, 12)) < 0.2
    relevant[:5] = False  # scikit-learn counts such rows as 0
    kept = relevant.any(1)
    expected = sklearn.metrics.ndcg_score(relevant[kept], scores[kept], k=k)
    assert value(NDCG(k), scores, relevant.astype(np.float32)) == pytest.approx(expected, rel=1e-6)
    labels = rng.integers(0, 12, 40)
    expected = sklearn.metrics.ndcg_score(np.eye(12)[labels], scores, k=k)
    assert value(NDCG(k), scores, labels) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("several", [False, True])
def test_equal_scores_rank_the_smaller_class_first(several):
    scores = np.zeros((1, 4), np.float32)
    for label in range(4):
        targets = np.eye(4, dtype=np.float32)[[label]] if several else np.array([label])
        assert value(MRR(), scores, targets) == pytest.approx(1 / (1 + label), rel=1e-6)


def test_labels_that_do_not_count_take_no_rank():
    targets = SEVERAL.copy()
    targets[0, 0], targets[1, 2:] = -1, -1  # the first class of row 0, and the first two of row 1
    assert value(MRR(ignore_label=-1), SCORES, targets) == pytest.approx(1.0)
    assert np.isnan(value(MRR(), SCORES, targets))


def test_a_class_below_all_others_has_the_last_rank():
    """A score of -inf marks candidates that are out of the question."""
    scores = np.array([[-np.inf, 1, -np.inf, 0]], np.float32)
    assert value(MRR(), scores, np.array([2])) == pytest.approx(1 / 4)
    assert value(MRR(), scores, np.array([[0, 0, 1.0, 0]])) == pytest.approx(1 / 4)


@pytest.mark.parametrize("metric", [NDCG(), MRR(2)])
def test_invalid_labels_and_scores_are_nan(metric):
    scores = SCORES.copy()
    scores[1, 2] = np.nan
    for targets in (np.array([0, 1, 2]), SEVERAL):
        assert np.isnan(value(metric, scores, targets))
        assert np.isfinite(value(metric, scores, targets, mask=[1, 0, 1]))
    assert np.isnan(value(metric, SCORES, np.array([0, 1, 4])))
    assert np.isnan(value(metric, SCORES, np.array([[0, 0, 0, 0], [0, 0, 0, 0], [0.5, 0, 0, 0]])))
    assert np.isnan(value(metric, SCORES, np.zeros((3, 4))))  # no row has a label
    scores = np.stack([SCORES[0], np.full(4, np.nan, np.float32)])
    assert value(metric, scores, np.array([[1.0, 0, 0, 0], [0, 0, 0, 0]])) == 1.0  # the second row does not count


def test_tokens():
    scores, targets = np.stack([SCORES, SCORES[::-1]]), np.array([[0, 3, 1], [1, 3, 2]])
    # The ranks are 1, 1, 1 and 1, 1, 3.
    assert value(MRR(), scores, targets) == pytest.approx((5 + 1 / 3) / 6)
    assert value(MRR(), scores, targets, mask=[[0, 0, 0], [0, 1, 1]]) == pytest.approx((1 + 1 / 3) / 2)


def test_names_and_wrong_arguments():
    assert [NDCG().name, NDCG(10).name, MRR(5, ignore_label=-1).name] == ["NDCG", "NDCG@10", "MRR@5 ignoring -1"]
    assert value(NDCG(2**40), SCORES, np.array([0, 3, 1])) == 1.0
    for arguments in ({"k": 0}, {"k": 2.5}, {"ignore_label": "x"}):
        with raises_code("metric-arguments-wrong"):
            NDCG(**arguments)
    with raises_code("metric-classes-too-few"):
        value(MRR(), np.zeros(3, np.float32), np.array([0, 1, 0]))
