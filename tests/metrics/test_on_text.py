"""Tests of OnText: metrics of sequences on decoded texts."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from learner.metrics import BLEU, Accuracy, CharacterErrorRate, ExactMatch, OnText, RougeL, WordErrorRate
from tests.support.codes import raises_code

PIECES = ["<pad>", "</s>", "the", " cat", " s", "at", "", "a", " mat", " on", "  "]


def decode(ids):
    return "".join(PIECES[i] for i in ids)


def decode_first_three(ids):
    return "".join(PIECES[:3][i] for i in ids)


def rows(predictions, targets, mask=None):
    """Return an output with these rows."""
    return types.SimpleNamespace(predictions=jnp.array(predictions), targets=jnp.array(targets), mask=mask)


def value(metric, *outputs):
    collect = jax.jit(lambda fields: metric.collect(types.SimpleNamespace(**fields)))
    collected = [jax.tree.map(np.asarray, collect(vars(output))) for output in outputs]
    return metric.compute(jax.tree.map(lambda *parts: np.concatenate(parts), *collected))


SAT = rows([[2, 3, 4, 5, 1, 7], [7, 8, 1, 0, 0, 0]], [[2, 3, 9, 8, 1], [7, 10, 8, 1, 0]])  # the cat sat, a mat


@pytest.mark.full
def test_words():
    """ "the cat sat" for "the cat on mat" needs 2 edits, "a mat" for "a   mat" none: 2 of 6 words."""
    metric = OnText(WordErrorRate(eos_id=1), decode)
    assert metric.name == "Word Error Rate ending at 1 on Text"
    assert metric.higher_is_better is False
    assert value(metric, SAT) == pytest.approx(2 / 6)


@pytest.mark.full
def test_other_metrics_of_words():
    assert value(OnText(ExactMatch(eos_id=1), decode), SAT) == 0.5
    assert value(OnText(RougeL(eos_id=1), decode), SAT) == pytest.approx((4 / 7 + 1) / 2)
    assert value(OnText(BLEU("none", order=1, eos_id=1), decode), SAT) == pytest.approx(np.exp(1 - 6 / 5) * 4 / 5)


def test_bleu_uses_its_tokenizer():
    """ "so far, so good!" and "so far, so bad!" share 5 of 6 tokens and 3 of 5 pairs."""
    words = ["so", " far,", " good!", " bad!"]
    decode = lambda ids: "".join(words[i] for i in ids)  # noqa: E731
    output = rows([[0, 1, 0, 2]], [[0, 1, 0, 3]])
    metric = OnText(BLEU(order=2), decode)
    assert (metric.name, metric.higher_is_better) == ("BLEU-2 on Text", True)
    assert value(metric, output) == pytest.approx((5 / 6 * 3 / 5) ** 0.5)
    assert np.isnan(value(metric, rows([[0, 1]], [[0, 1]], jnp.array([0]))))


@pytest.mark.full
def test_characters():
    metric = OnText(CharacterErrorRate(eos_id=1), decode)
    assert value(metric, SAT) == pytest.approx(
        (4 + 2) / (14 + 7)
    )  # "sat" for "on mat" costs 4 edits, "a mat" for "a   mat" 2
    assert OnText(WordErrorRate(eos_id=1), decode, "characters").name.endswith("on Text by characters")
    assert value(OnText(WordErrorRate(eos_id=1), decode, "characters"), SAT) == value(metric, SAT)


@pytest.mark.full
def test_batches_and_masks():
    metric = OnText(WordErrorRate(eos_id=1), decode)
    one, two = ([x[i : i + 1] for x in (SAT.predictions, SAT.targets)] for i in (0, 1))
    assert value(metric, rows(*one), rows(*two)) == value(metric, SAT)
    assert value(metric, rows(*one), rows(*two, jnp.array([0]))) == pytest.approx(2 / 4)
    assert np.isnan(value(metric, rows(*one, jnp.array([0]))))


@pytest.mark.full
def test_more_rows_than_are_compared_at_once(monkeypatch):
    monkeypatch.setattr("learner.metrics.on_text.ROWS", 1)
    assert value(OnText(WordErrorRate(eos_id=1), decode), SAT) == pytest.approx(2 / 6)


@pytest.mark.parametrize(
    ("make", "code", "values"),
    [
        (lambda: OnText(Accuracy(), decode), "metric-text-type", ("Accuracy", "WordErrorRate")),
        (lambda: OnText(BLEU(), "decode"), "metric-decode-type", ("'decode'",)),
        (lambda: OnText(RougeL(), decode, "word"), "metric-units-unknown", ("word", "'words'")),
        (lambda: OnText(BLEU(), decode, "words"), "metric-units-unused", ("words", "tokenize")),
        (lambda: OnText(BLEU(), list), "metric-decode-returns-no-text", ("OnText", "list", "[]")),
        (
            lambda: OnText(BLEU(), lambda ids: ids[0]),
            "metric-decode-failed",
            ("OnText", "[]", "IndexError", "list index"),
        ),
        (
            lambda: value(OnText(BLEU(eos_id=1), decode_first_three), SAT),
            "metric-decode-failed",
            ("BLEU ending at 1 on Text", "[2", "3", "4"),
        ),
    ],
)
def test_wrong_arguments(make, code, values):
    with raises_code(code, *values):
        make()
