"""BLEU by hand."""

import math
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from learner.metrics import BLEU, By, Subset
from learner.metrics.bleu import SMOOTHINGS
from learner.steps.outputs import GeneratedOutput
from learner.util.distribution import install_hint
from tests.support.codes import raises_code

PAD = -1


def output(predictions, targets, **fields):
    length = max(map(len, [[0], *predictions, *targets]))
    sides = [
        np.array([row + [PAD] * (length - len(row)) for row in rows], np.int32).reshape(-1, length)
        for rows in (predictions, targets)
    ]
    return GeneratedOutput.of(*map(jnp.asarray, sides), **fields)


def bleu(predictions, targets, **options):
    metric = BLEU(pad_id=PAD, **options)
    return metric.compute(metric.collect(output(predictions, targets)))


def test_n_grams_are_counted_as_often_as_the_target_has_them():
    """The example of the paper: "the the the the the the the"."""
    assert bleu([[7] * 7], [[7, 1, 2, 3, 7, 4]], order=1) == pytest.approx(2 / 7)


def test_the_geometric_mean_of_all_sequences_together():
    predictions, targets = [[1, 2, 3, 4, 5, 6], [1, 2, 3, 4]], [[1, 2, 3, 9, 5, 6], [1, 2, 3, 4]]
    # 1: 5 + 4 of 6 + 4; 2: 12 23 56 + 3 of 5 + 3; 3: 123 + 2 of 4 + 2; 4: 0 + 1 of 3 + 1
    assert bleu(predictions, targets) == pytest.approx((9 / 10 * 6 / 8 * 3 / 6 * 1 / 4) ** 0.25)
    assert bleu(predictions, targets, order=2) == pytest.approx((9 / 10 * 6 / 8) ** 0.5)


def test_short_predictions_are_punished_and_long_ones_are_not():
    assert bleu([[1, 2, 3, 4]], [[1, 2, 3, 4, 5, 6]]) == pytest.approx(math.exp(1 - 6 / 4))
    assert bleu([[1, 2, 3, 4]], [[1, 2, 3]], order=1) == pytest.approx(3 / 4)


@pytest.mark.parametrize(
    ("how", "precisions"),
    [
        ({"smoothing": "none"}, (3 / 4, 1 / 3, 0, 0)),
        ({"smoothing": "floor"}, (3 / 4, 1 / 3, 0.1 / 2, 0.1 / 1)),
        ({"smoothing": "floor", "value": 0.5}, (3 / 4, 1 / 3, 0.5 / 2, 0.5 / 1)),
        ({"smoothing": "add-k"}, (3 / 4, 2 / 4, 1 / 3, 1 / 2)),
        ({"smoothing": "add-k", "value": 2.0}, (3 / 4, 3 / 5, 2 / 4, 2 / 3)),
        ({"smoothing": "exp"}, (3 / 4, 1 / 3, 1 / 2 / 2, 1 / 4 / 1)),
    ],
    ids=str,
)
def test_smoothing(how, precisions):
    """1 2 4 are in the target, and only 1 2 side by side."""
    assert bleu([[1, 2, 8, 4]], [[1, 2, 3, 4]], **how) == pytest.approx(math.prod(precisions) ** 0.25)


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
def test_the_edges(smoothing):
    assert bleu([[]], [[1, 2]], smoothing=smoothing) == 0
    assert bleu([[1, 2]], [[]], smoothing=smoothing) == 0
    assert bleu([[3, 4, 5, 6, 7]], [[1, 2]], smoothing=smoothing) == 0
    assert np.isnan(bleu([], [], smoothing=smoothing))
    short = bleu([[1, 2]], [[1, 2]], smoothing=smoothing)  # there are no n-grams of 3
    assert short == (1 if smoothing == "add-k" else 0)


@pytest.mark.parametrize(
    ("options", "code", "values"),
    [
        ({"smoothing": "flor"}, "metric-bleu-smoothing-unknown", ("flor", "'floor'")),
        ({"order": 0}, "metric-bleu-order-value", ("0",)),
        ({"smoothing": "exp", "value": 0.1}, "metric-bleu-value-unused", ("0.1", "exp")),
        ({"smoothing": "floor", "value": "a"}, "metric-bleu-value", ("a",)),
        ({"smoothing": "floor", "value": 0.0}, "metric-bleu-value", ("0.0",)),
        ({"tokenize": "13b"}, "metric-bleu-tokenizer-unknown", ("13b", "'13a'")),
    ],
)
def test_wrong_options(options, code, values):
    with raises_code(code, *values):
        BLEU(**options)


def test_names_tell_them_apart():
    options = [{}, {"order": 2}, {"smoothing": "none"}, {"smoothing": "floor"}, {"smoothing": "floor", "value": 0.5}]
    options += [{"tokenize": "zh"}]
    assert [BLEU(**each).name for each in options] == [
        "BLEU",
        "BLEU-2",
        "BLEU smoothing none",
        "BLEU smoothing floor",
        "BLEU smoothing floor 0,5",
        "BLEU tokenizer zh",
    ]


@pytest.mark.parametrize(
    ("tokenize", "prediction", "target", "precisions"),
    [
        ("13a", "It is 5,000 km (far).", "It is 5,000 km (near)!", (6 / 8, 4 / 7)),  # It is 5,000 km ( far ) .
        ("13a", "&quot;Hi&quot;", '"Hi" ', (1, 1)),
        ("none", "It is 5,000 km (far).", "It is 5,000 km (near)!", (4 / 5, 3 / 4)),
        ("zh", "\u4e1c\u897f far", "\u4e1c\u897f near", (2 / 3, 1 / 2)),
        ("char", "abc.", "abd.", (3 / 4, 1 / 3)),
    ],
)
def test_texts_are_split_by_the_tokenizer(tokenize, prediction, target, precisions):
    value = BLEU(order=2, tokenize=tokenize).score_texts([prediction], [target])
    assert value == pytest.approx(math.prod(precisions) ** 0.5)


def test_groups_of_rows():
    rows = output([[1, 2], [3, 4], [5, 9]], [[1, 2], [3, 5], [5, 6]])
    vars(rows)["group"] = jnp.array([0, 1, 0])
    metric = BLEU(order=1)
    subset, table = Subset(metric, "group", 0, "cats"), By(metric, "group", ["cats", "dogs", "birds"])
    assert subset.name == "BLEU-1 of cats"
    assert subset.compute(subset.collect(rows)) == pytest.approx(3 / 4)
    np.testing.assert_allclose(table.compute(table.collect(rows)), [3 / 4, 1 / 2, np.nan])


def test_a_missing_package_is_an_error_that_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with raises_code("package-missing", "sacrebleu", "BLEU", install_hint("text")):
        BLEU()


def test_a_tokenizer_that_cannot_be_loaded(monkeypatch):
    monkeypatch.setitem(sys.modules, "MeCab", None)
    with raises_code("metric-bleu-tokenizer-failed", "ja-mecab"):
        BLEU(tokenize="ja-mecab")
