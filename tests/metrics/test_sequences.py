"""Tests of metrics of token sequences against values by hand."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from learner.metrics import (
    BLEU,
    BitsPerCharacter,
    CharacterErrorRate,
    CollectingMetric,
    ExactMatch,
    Info,
    RougeL,
    TokenAccuracy,
    WordErrorRate,
)
from learner.metrics.tokens import Ends
from learner.steps.outputs import GeneratedOutput, SequenceOutput
from tests.support.codes import raises_code
from tests.support.more_metrics import value_of

INFO = Info(jnp.int32(0), jnp.float32(1))


ROWS, LENGTH = 9, 9  # of all outputs: one shape, compiled once


def value(metric, *outputs):
    """Return the value over outputs, compiled once for each metric and number of outputs."""
    return float(value_of(metric, *(pad_output(output) for output in outputs)))


def pad_output(output):
    """Return an output padded with masked rows and tokens to one shape."""
    sides = [np.asarray(x) for x in (output.predictions, output.targets)]
    if output.mask is None and sides[0].shape == sides[1].shape == (ROWS, LENGTH):
        return output
    mask = np.ones(sides[1].shape, bool) if output.mask is None else np.asarray(output.mask, bool)
    mask = mask if mask.ndim == 2 else np.broadcast_to(mask[:, None], sides[1].shape)
    prediction_mask = (
        mask if sides[0].shape == sides[1].shape else np.broadcast_to(mask.any(1)[:, None], sides[0].shape)
    )
    around = [[(0, ROWS - x.shape[0]), (0, LENGTH - x.shape[1])] for x in sides]
    sides = [jnp.asarray(np.pad(x, by, constant_values=5)) for x, by in zip(sides, around, strict=True)]
    prediction_mask, mask = (jnp.asarray(np.pad(x, by)) for x, by in zip((prediction_mask, mask), around, strict=True))
    return GeneratedOutput.of(*sides, mask, prediction_mask)


def generated(predictions, targets, **masks):
    masks = {name: jnp.array(mask) for name, mask in masks.items()}
    return GeneratedOutput.of(jnp.array(predictions, jnp.int32), jnp.array(targets, jnp.int32), **masks)


def to_lists(tokens):
    return [row[:length] for row, length in zip(tokens.ids.tolist(), tokens.length.tolist(), strict=True)]


def read_pairs(ends, output):
    predicted, target, rows = ends.pairs(output)
    return to_lists(predicted), to_lists(target), rows.tolist()


def test_tokens_as_they_are():
    assert read_pairs(Ends("M", None, None), generated([[1, 0, 3]], [[4, 0]])) == ([[1, 0, 3]], [[4, 0]], [True])


def test_padding_is_dropped_anywhere():
    output = generated([[0, 1, 0, 2]], [[3, 0, 0, 4]])
    assert read_pairs(Ends("M", 0, None), output) == ([[1, 2]], [[3, 4]], [True])


def test_sequences_end_before_the_first_eos():
    output = generated([[1, 9, 2, 9], [9, 1, 2, 3], [1, 2, 3, 4]], [[5, 9], [6, 7], [9, 9]])
    assert read_pairs(Ends("M", None, 9), output)[:2] == ([[1], [], [1, 2, 3, 4]], [[5], [6, 7], []])


def test_masked_eos_is_ignored():
    output = generated([[9, 1, 9, 2]], [[9, 3, 9, 4]], mask=[[0, 1, 1, 1]])
    assert read_pairs(Ends("M", None, 9), output)[:2] == ([[1]], [[3]])


@pytest.mark.full
def test_masks_of_rows_and_of_tokens():
    rows = generated([[1, 2], [3, 4]], [[1, 2, 3], [4, 5, 6]], mask=[1, 0])
    assert read_pairs(Ends("M", None, None), rows) == ([[1, 2], []], [[1, 2, 3], []], [True, False])
    tokens = generated([[1, 2], [3, 4]], [[5, 6], [7, 8]], mask=[[0, 1], [0, 0]])
    assert read_pairs(Ends("M", None, None), tokens) == ([[2], []], [[6], []], [True, False])
    both = generated([[1, 2, 3]], [[5, 6]], mask=[[1, 0]], prediction_mask=[[1, 0, 1]])
    assert read_pairs(Ends("M", None, None), both) == ([[1, 3]], [[5]], [True])


@pytest.mark.parametrize(
    ("output", "code", "values"),
    [
        (
            generated([[1, 2, 3]], [[5, 6]], mask=[[1, 0]]),
            "metric-mask-shape",
            ("(1, 3)", "(1, 2)"),
        ),
        (generated([[1, 2]], [[5, 6]], mask=[[1, 0, 1]]), "metric-mask-shape", ("(1, 3)", "(1, 2)", "(1,)")),
        (
            types.SimpleNamespace(predictions=jnp.ones((2, 3)), targets=jnp.ones((2, 3), int)),
            "metric-token-shape",
            ("predictions", "float32[2", "3"),
        ),
        (
            types.SimpleNamespace(predictions=jnp.ones((2, 3), int), targets=jnp.ones(2, int)),
            "metric-token-shape",
            ("targets", "int32[2]"),
        ),
        (
            types.SimpleNamespace(predictions=jnp.ones((2, 3), int), targets=jnp.ones((1, 3), int)),
            "metric-token-counts",
            ("2", "1"),
        ),
    ],
)
@pytest.mark.parametrize("metric", [ExactMatch(), WordErrorRate(), BLEU(), RougeL()], ids=lambda m: m.name)
def test_wrong_shapes_and_dtypes(metric, output, code, values):
    with raises_code(code, *values):
        metric.collect(output) if isinstance(metric, CollectingMetric) else metric.update(metric.init(), output, INFO)


@pytest.mark.parametrize("make", [ExactMatch, WordErrorRate, CharacterErrorRate, BLEU, RougeL])
def test_wrong_ids(make):
    for ids in ({"pad_id": "0"}, {"eos_id": True}, {"pad_id": 1.0}):
        with raises_code("metric-token-value", "_id", make.__name__):
            make(**ids)
    with raises_code("metric-token-both", "pad_id", "eos_id", make.__name__, "2"):
        make(pad_id=2, eos_id=2)


def test_names_have_their_parameters():
    assert [make(pad_id=0, eos_id=2).name for make in (ExactMatch, WordErrorRate, BLEU, RougeL)] == [
        "Exact Match ignoring 0 ending at 2",
        "Word Error Rate ignoring 0 ending at 2",
        "BLEU ignoring 0 ending at 2",
        "ROUGE-L ignoring 0 ending at 2",
    ]
    assert (TokenAccuracy().name, TokenAccuracy(pad_id=-1).name) == ("Token Accuracy", "Token Accuracy ignoring -1")


# -- numbers -----------------------------------------------------------------------------------------------------------


def test_token_accuracy_compares_positions():
    output = generated([[1, 2, 3], [4, 5, 6]], [[1, 0, 0], [4, 9, 6]])
    assert value(TokenAccuracy(), output) == 0.5
    assert value(TokenAccuracy(pad_id=0), output) == 0.75
    masked = generated([[1, 2, 3], [4, 5, 6]], [[1, 0, 0], [4, 9, 6]], mask=[[0, 0, 0], [0, 1, 1]])
    assert value(TokenAccuracy(), output, masked) == 4 / 8
    assert np.isnan(value(TokenAccuracy(pad_id=0), generated([[1]], [[0]])))
    with raises_code("metric-sequence-shapes", "Token Accuracy", "int32[1, 2]", "int32[1, 1]"):
        TokenAccuracy().update(TokenAccuracy().init(), generated([[1, 2]], [[1]]), INFO)


@pytest.mark.full
def test_sequence_output_predicts_the_highest_scores():
    logits = jax.nn.one_hot(jnp.array([[2, 0, 1]]), 3) * 5
    output = SequenceOutput.from_logits(logits, jnp.array([[2, 1, 1]]))
    assert output.predictions.tolist() == [[2, 0, 1]]
    assert value(TokenAccuracy(), output) == pytest.approx(2 / 3)
    assert value(WordErrorRate(), output) == pytest.approx(1 / 3)


@pytest.mark.full
def test_exact_matches():
    output = generated(
        [[1, 2, 9], [1, 2, 3], [9, 0, 0], [9, 5, 5], [1, 9, 0]], [[1, 2], [1, 2], [9, 1], [9, 9], [1, 2]]
    )
    assert value(ExactMatch(eos_id=9), output) == pytest.approx(
        3 / 5
    )  # the second prediction is too long, the last too short
    assert np.isnan(value(ExactMatch(), generated([[1]], [[1]], mask=[0])))


RATES = {  # predictions, targets: edits
    "same": ([1, 2, 3], [1, 2, 3], 0),
    "replaced": ([1, 9, 3], [1, 2, 3], 1),
    "inserted": ([1, 2], [1, 2, 3], 1),
    "deleted": ([0, 1, 2, 3], [1, 2, 3], 1),
    "kitten": ([11, 9, 20, 20, 5, 14], [19, 9, 20, 20, 9, 14, 7], 3),  # to sitting
    "saturday": ([19, 1, 20, 21, 18, 4, 1, 25], [19, 21, 14, 4, 1, 25], 3),  # to sunday
    "nothing predicted": ([], [1, 2, 3], 3),
    "nothing alike": ([4, 5], [1, 2, 3], 3),
    "turned": ([3, 2, 1], [1, 2, 3], 2),
}


def pad_rows(rows, length=9, pad=-7):
    return [row + [pad] * (length - len(row)) for row in rows]


@pytest.mark.full
@pytest.mark.parametrize("make", [WordErrorRate, CharacterErrorRate])
def test_error_rates_are_edits_per_target_token(make):
    cases = list(RATES.values())
    output = generated(pad_rows([p for p, _, _ in cases]), pad_rows([t for _, t, _ in cases]))
    metric = make(pad_id=-7)
    for i, (prediction, target, edits) in enumerate(cases):
        one = generated(pad_rows([prediction]), pad_rows([target]))
        assert value(metric, one) == pytest.approx(edits / len(target)), list(RATES)[i]
    assert value(metric, output) == pytest.approx(sum(e for _, _, e in cases) / sum(len(t) for _, t, _ in cases))


@pytest.mark.full
def test_tokens_predicted_for_an_empty_target_are_errors():
    metric = WordErrorRate(pad_id=0)
    alone = generated([[4, 5, 0]], [[0, 0, 0]])
    assert np.isnan(value(metric, alone))
    assert value(metric, alone, generated([[1, 2, 3]], [[1, 2, 3]])) == pytest.approx(2 / 3)
    assert value(metric, generated([[4, 5, 6]], [[1, 0, 0]])) == 3.0


@pytest.mark.full
def test_masked_rows_do_not_count():
    output = generated([[1, 2], [7, 7]], [[1, 3], [8, 8]], mask=[1, 0])
    assert value(WordErrorRate(), output) == 0.5
    assert value(RougeL(), output) == 0.5
    bleu = BLEU(order=1)
    assert bleu.compute(bleu.collect(output)) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("prediction", "target", "common"),
    [
        ([1, 2, 3, 4], [1, 2, 3, 4], 4),
        ([1, 2, 3, 4, 5], [1, 9, 3, 5], 3),
        ([5, 4, 3], [3, 4, 5], 1),
        ([1, 2, 1, 2], [2, 1, 2, 1], 3),
        ([1, 2], [3, 4], 0),
        ([], [3, 4], 0),
        ([3, 4], [], 0),
        ([], [], 0),
    ],
)
def test_rouge_is_of_the_longest_common_subsequence(prediction, target, common):
    both = len(prediction) + len(target)
    expected = 2 * common / both if both else 0.0
    output = generated(pad_rows([prediction]), pad_rows([target]))
    assert value(RougeL(pad_id=-7), output) == pytest.approx(expected)


@pytest.mark.full
def test_rouge_is_the_mean_over_sequences():
    output = generated([[1, 2], [1, 2]], [[1, 2], [3, 4]])
    assert value(RougeL(), output, generated([[1, 2]], [[1, 2]])) == pytest.approx(2 / 3)
    assert np.isnan(value(RougeL()))


def test_wrong_field_of_characters():
    with raises_code("metric-field-name"):
        BitsPerCharacter(2.0)


def test_bits_per_character():
    def output(loss, characters=None):
        return types.SimpleNamespace(loss=jnp.float32(loss), characters=characters)

    info = [Info(jnp.int32(0), jnp.float32(weight)) for weight in (3, 1)]
    metric = BitsPerCharacter()
    state = metric.update(metric.update(metric.init(), output(2 * np.log(2)), info[0]), output(6 * np.log(2)), info[1])
    assert float(metric.compute(state)) == pytest.approx(3.0)  # (3 · 2 + 1 · 6) / 4
    assert metric.name == "Bits per Character"
    metric = BitsPerCharacter("characters")
    assert (metric.name, metric.fields) == ("Bits per Character (characters)", ("loss", "characters"))
    state = metric.update(metric.init(), output(2 * np.log(2), jnp.array([4, 1])), info[0])
    state = metric.update(state, output(6 * np.log(2), jnp.int32(7)), info[1])
    assert float(metric.compute(state)) == pytest.approx(1.0)  # (3 · 2 + 1 · 6) / 12
    empty = metric.update(metric.init(), output(np.nan, jnp.int32(0)), Info(jnp.int32(0), jnp.float32(0)))
    assert np.isnan(metric.compute(empty))
    assert float(metric.compute(metric.merge(empty, state))) == pytest.approx(1.0)


@pytest.mark.parametrize("mask", [[1, 0], [[1, 1, 0], [0, 0, 0]]])
def test_characters_of_masked_rows_do_not_count(mask):
    """Two tokens of 3 ln 2 nats, that is 3 bits each, have 4 characters: 6 bits / 4."""
    output = types.SimpleNamespace(
        loss=jnp.float32(3 * np.log(2)), characters=jnp.array([4.0, np.nan]), mask=jnp.array(mask)
    )
    metric = BitsPerCharacter("characters")
    state = metric.update(metric.init(), output, Info(jnp.int32(0), jnp.float32(2)))
    assert float(metric.compute(state)) == pytest.approx(1.5)


def test_generated_outputs_take_their_loss_from_another():
    scored = types.SimpleNamespace(loss=jnp.float32(2), weight=jnp.float32(7))
    output = GeneratedOutput.of(jnp.ones((2, 3), int), jnp.ones((2, 4), int), scored=scored)
    assert (output.loss, output.weight) == (2, 7)
    alone = GeneratedOutput.of(
        jnp.ones((2, 3), int), jnp.ones((2, 4), int), mask=jnp.array([[0, 0, 1, 0], [0, 0, 0, 0]])
    )
    assert np.isnan(alone.loss)
    assert alone.weight == 1
    with raises_code("output-generated-shapes", "(2, 3)"):
        GeneratedOutput.of(jnp.ones((2, 3), int), jnp.ones((3, 3), int))
