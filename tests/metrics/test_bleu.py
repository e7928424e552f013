"""BLEU by hand, and against sacrebleu."""

import dataclasses
import itertools
import math
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from learner.metrics import BLEU, Info
from learner.metrics.bleu import SMOOTHING, matching_pieces
from learner.metrics.tokens import Tokens
from learner.steps.outputs import GeneratedOutput
from tests.support.codes import raises_code

INFO = Info(jnp.int32(0), jnp.float32(1))
PAD = -1


def output(predictions, targets):
    """In as few shapes as possible, since each is compiled: what is more is masked."""
    size, length = 2 if len(targets) <= 2 else 20, max(map(len, [[0] * 7, *predictions, *targets]))
    mask = jnp.arange(size) < len(targets)
    sides = [[*rows, *[[5]] * (size - len(rows))] for rows in (predictions, targets)]
    return GeneratedOutput.of(*(jnp.array([row + [PAD] * (length - len(row)) for row in rows]) for rows in sides), mask)


@jax.jit
def counted(output):
    """Compiled once for all ways to smooth."""
    metric = BLEU(pad_id=PAD)
    return metric.update(metric.init(), output, INFO)


def bleu(predictions, targets, **options):
    state, order = counted(output(predictions, targets)), options.get("order", 4)
    matches, pieces = (jax.tree.map(lambda x: np.asarray(x)[:order], each) for each in (state.matches, state.pieces))
    return float(BLEU(**options).compute(dataclasses.replace(state, matches=matches, pieces=pieces)))


def test_pieces_are_counted_as_often_as_the_target_has_them():
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


@pytest.mark.parametrize("smoothing", SMOOTHING)
def test_the_edges(smoothing):
    assert bleu([[]], [[1, 2]], smoothing=smoothing) == 0
    assert bleu([[1, 2]], [[]], smoothing=smoothing) == 0
    assert bleu([[3, 4, 5, 6, 7]], [[1, 2]], smoothing=smoothing) == 0
    assert np.isnan(bleu([], [], smoothing=smoothing))
    short = bleu([[1, 2]], [[1, 2]], smoothing=smoothing)  # there are no pieces of 3
    assert short == (1 if smoothing == "add-k" else 0)


def test_rows_that_are_compared_one_after_another(monkeypatch):
    """7 rows of 6 and 5 tokens, in blocks of 3, 3 and 1."""
    rng = np.random.default_rng(3)
    predicted, target = (
        Tokens(jnp.array(rng.integers(0, 3, (7, length))), jnp.array(rng.integers(0, length + 1, 7)))
        for length in (6, 5)
    )

    @jax.jit
    def found():
        return matching_pieces(predicted, target, 2)

    expected = found()
    assert expected[0].sum() > 7
    monkeypatch.setattr("learner.metrics.bleu.PAIRS", 3 * 36)
    found.clear_cache()
    for in_blocks, at_once in zip(found(), expected, strict=True):
        np.testing.assert_array_equal(in_blocks, at_once)
        assert in_blocks.dtype == jnp.int32


def test_its_memory_does_not_grow_with_the_rows():
    def needed(rows, length=1024):
        ids, lengths = (jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((rows, length), (rows,)))
        program = jax.jit(lambda *x: matching_pieces(Tokens(x[0], x[1]), Tokens(x[2], x[3]), 4))
        return program.lower(ids, lengths, ids, lengths).compile().memory_analysis().temp_size_in_bytes

    assert needed(64) < 8e8  # 2.4 GB for all at once


@pytest.mark.parametrize(
    ("options", "code", "values"),
    [
        ({"smoothing": "flor"}, "metric-bleu-smoothing-unknown", ("flor", "'floor'")),
        ({"order": 0}, "metric-bleu-order-value", ("0",)),
        ({"smoothing": "exp", "value": 0.1}, "metric-bleu-value-unused", ("0.1", "exp")),
        ({"smoothing": "floor", "value": "a"}, "metric-bleu-value", ("a",)),
        ({"smoothing": "floor", "value": 0.0}, "metric-bleu-value", ("0.0",)),
    ],
)
def test_wrong_options(options, code, values):
    with raises_code(code, *values):
        BLEU(**options)


def test_names_tell_them_apart():
    options = [{}, {"order": 2}, {"smoothing": "none"}, {"smoothing": "floor"}, {"smoothing": "floor", "value": 0.5}]
    assert [BLEU(**each).name for each in options] == [
        "BLEU",
        "BLEU-2",
        "BLEU smoothing none",
        "BLEU smoothing floor",
        "BLEU smoothing floor 0,5",
    ]


def corpora(count):
    rng = random.Random(4)
    for words, rows, longest in itertools.islice(
        itertools.cycle([(3, 1, 6), (8, 5, 12), (2, 20, 9), (30, 4, 25)]), count
    ):
        targets = [[rng.randrange(words) for _ in range(rng.randrange(longest + 1))] for _ in range(rows)]
        kept = [[word for word in row if rng.random() < 0.9] for row in targets]
        yield [[word if rng.random() < 0.7 else rng.randrange(words) for word in row] for row in kept], targets


@pytest.mark.full
@pytest.mark.parametrize(
    "options",
    [{"smoothing": s} for s in SMOOTHING]
    + [{"smoothing": "floor", "value": 0.01}, {"smoothing": "add-k", "value": 3.0}],
    ids=str,
)
def test_as_sacrebleu(options):
    import sacrebleu

    for predictions, targets in corpora(12):
        for order in (1, 2, 4):
            reference = sacrebleu.BLEU(
                tokenize="none",
                smooth_method=options["smoothing"],
                smooth_value=options.get("value"),
                max_ngram_order=order,
            )
            texts = [[" ".join(f"w{i}" for i in row) for row in rows] for rows in (predictions, targets)]
            expected = reference.corpus_score(texts[0], [texts[1]]).score / 100
            assert bleu(predictions, targets, order=order, **options) == pytest.approx(expected, rel=1e-6, abs=1e-9)
