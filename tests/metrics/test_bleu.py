"""Tests of BLEU against values by hand."""

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


def test_matches_are_clipped_to_the_target():
    """The paper's example: "the" seven times, of which the target has two."""
    assert bleu([[7] * 7], [[7, 1, 2, 3, 7, 4]], order=1) == pytest.approx(2 / 7)


def test_geometric_mean_over_all_sequences():
    predictions, targets = [[1, 2, 3, 4, 5, 6], [1, 2, 3, 4]], [[1, 2, 3, 9, 5, 6], [1, 2, 3, 4]]
    # Matching n-grams: 5 + 4 of 6 + 4 tokens, 3 + 3 of 5 + 3 pairs, 1 + 2 of 4 + 2 triples, 0 + 1 of 3 + 1 of four.
    assert bleu(predictions, targets) == pytest.approx((9 / 10 * 6 / 8 * 3 / 6 * 1 / 4) ** 0.25)
    assert bleu(predictions, targets, order=2) == pytest.approx((9 / 10 * 6 / 8) ** 0.5)


def test_brevity_penalty():
    assert bleu([[1, 2, 3, 4]], [[1, 2, 3, 4, 5, 6]]) == pytest.approx(math.exp(1 - 6 / 4))
    assert bleu([[1, 2, 3, 4]], [[1, 2, 3]], order=1) == pytest.approx(3 / 4)


@pytest.mark.parametrize(
    ("options", "precisions"),
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
def test_smoothing(options, precisions):
    """The target has the tokens 1, 2 and 4 of the prediction, and the pair 1 2."""
    assert bleu([[1, 2, 8, 4]], [[1, 2, 3, 4]], **options) == pytest.approx(math.prod(precisions) ** 0.25)


@pytest.mark.full
@pytest.mark.parametrize("smoothing", SMOOTHINGS)
def test_empty_and_short_sequences(smoothing):
    assert bleu([[]], [[1, 2]], smoothing=smoothing) == 0
    assert bleu([[1, 2]], [[]], smoothing=smoothing) == 0
    assert bleu([[3, 4, 5, 6, 7]], [[1, 2]], smoothing=smoothing) == 0
    assert np.isnan(bleu([], [], smoothing=smoothing))
    short = bleu([[1, 2]], [[1, 2]], smoothing=smoothing)  # too short for n-grams of 3
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


def test_names():
    options = [{}, {"order": 2}, {"smoothing": "none"}, {"smoothing": "floor"}, {"smoothing": "floor", "value": 0.5}]
    options += [{"tokenize": "zh"}]
    assert [BLEU(**parameters).name for parameters in options] == [
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
def test_tokenizers(tokenize, prediction, target, precisions):
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


def test_missing_package_raises_with_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with raises_code("package-missing", "sacrebleu", "BLEU", install_hint("text")):
        BLEU()


def test_tokenizer_that_cannot_be_loaded(monkeypatch):
    monkeypatch.setitem(sys.modules, "MeCab", None)
    with raises_code("metric-bleu-tokenizer-failed", "ja-mecab"):
        BLEU(tokenize="ja-mecab")
