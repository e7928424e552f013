"""Tests of metrics of counts per class, such as precision and recall, and of averages over classes."""

import functools
import types
from fractions import Fraction as Exact
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics

from learner.errors import LearnerError
from learner.metrics import (
    AUROC,
    BLEU,
    R2,
    BalancedAccuracy,
    BinnedAUROC,
    CalibrationError,
    Count,
    FBeta,
    Hamming,
    Info,
    Jaccard,
    Matthews,
    Metric,
    Precision,
    Recall,
    Specificity,
    TokenAccuracy,
    TopKAccuracy,
)
from tests.support.codes import raises_code
from tests.support.stopped import some

INFO = Info(jnp.int32(0), jnp.float32(1))
PREDICTED = np.array([0, 0, 1, 1, 1, 2])
LOGITS = np.eye(4, dtype=np.float32)[PREDICTED]  # class 3 is never predicted
TARGETS = np.array([0, 1, 1, 1, 2, 0])  # nor is it a label


def state(metric: Metric, logits: Any, targets: Any, mask: Any = None) -> Any:
    output = types.SimpleNamespace(logits=logits, targets=targets, mask=mask)
    return metric.update(metric.init(), output, INFO)


def value(metric: Metric, logits: Any, targets: Any, mask: Any = None) -> Any:
    return np.asarray(metric.compute(state(metric, logits, targets, mask)))


@pytest.mark.full
@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        (Precision(4, "none"), [1 / 2, 2 / 3, 0, np.nan]),
        (Recall(4, "none"), [1 / 2, 2 / 3, 0, np.nan]),
        (FBeta(4, average="none"), [1 / 2, 2 / 3, 0, np.nan]),
        (Specificity(4, "none"), [3 / 4, 2 / 3, 4 / 5, 1]),
        (Jaccard(4, "none"), [1 / 3, 2 / 4, 0, np.nan]),
        (Precision(4), (1 / 2 + 2 / 3) / 3),
        (Specificity(4), (3 / 4 + 2 / 3 + 4 / 5 + 1) / 4),
        (BalancedAccuracy(4), (1 / 2 + 2 / 3) / 3),
        (Jaccard(4, "micro"), 3 / 9),
        (Jaccard(4, "weighted"), (2 * 1 / 3 + 3 * 1 / 2) / 6),
        (Recall(4, "none", top_k=2), [1, 1, 0, np.nan]),  # among equal scores, the smaller class number is first
        (Precision(4, "micro", top_k=2), 5 / 12),
        (Recall(4, "none", ignore_label=1), [1 / 2, np.nan, 0, np.nan]),
    ],
)
def test_by_hand(metric: Metric, expected: Any) -> None:
    np.testing.assert_allclose(value(metric, LOGITS, TARGETS), expected, rtol=2e-7)


@pytest.mark.full
@pytest.mark.parametrize("average", ["macro", "weighted", "micro", "none"])
def test_classes_without_samples_equal_sklearn(average: str) -> None:
    arguments: Any = {"labels": range(4), "average": None if average == "none" else average, "zero_division": np.nan}
    for metric, score in (
        (Precision(4, average), sklearn_metrics.precision_score),
        (Recall(4, average), sklearn_metrics.recall_score),
        (FBeta(4, average=average), sklearn_metrics.f1_score),
    ):
        np.testing.assert_allclose(value(metric, LOGITS, TARGETS), score(TARGETS, PREDICTED, **arguments), rtol=2e-7)


@pytest.mark.full
@pytest.mark.parametrize("average", ["macro", "weighted"])
@pytest.mark.parametrize("predicted", [[1, 2], [1, 1]])
def test_classes_without_labels_equal_sklearn(average: str, predicted: list[int]) -> None:
    """No class has both labels and a precision."""
    targets = [0, 0]
    expected = sklearn_metrics.precision_score(
        targets, predicted, labels=range(4), average=average, zero_division=np.nan
    )
    actual = value(Precision(4, average), np.eye(4, dtype=np.float32)[predicted], np.array(targets))
    np.testing.assert_array_equal(actual, expected)
    assert actual == 0


@pytest.mark.full
def test_negative_zero_equals_positive_zero() -> None:
    logits = np.array(2 * [[-0.0, 0.0, -1.0, -1.0], [0.0, -0.0, -1.0, -1.0], [-1.0, -0.0, 0.0, -1.0]], np.float32)
    targets = np.array([0, 0, 1, 0, 0, 1])
    assert value(Recall(4, "micro", top_k=1), logits, targets) == (logits.argmax(1) == targets).mean() == 1
    assert value(Recall(4, "micro"), logits, targets) == value(TopKAccuracy(1), logits, targets) == 1


# -- two classes -------------------------------------------------------------------------------------------------------

PROBABILITIES = np.array([0.1, 0.3, 0.5, 0.7, 0.8, 0.9])
SCORE = np.log(PROBABILITIES / (1 - PROBABILITIES)).astype(np.float32)
SCORE[2] = 0
BOTH = np.stack([np.full(6, 2, np.float32), SCORE + 2], 1)
YES = np.array([0, 1, 1, 0, 1, 1])


@pytest.mark.full
def test_one_score_for_two_classes() -> None:
    expected = sklearn_metrics.f1_score(YES, (PROBABILITIES > 0.75).astype(int))
    for metric, logits, targets in (
        (FBeta(2, average="binary", threshold=0.75), BOTH, YES),
        (FBeta(1, average="binary", threshold=0.75), SCORE[:, None], YES[:, None]),
    ):
        np.testing.assert_allclose(value(metric, logits, targets), expected, rtol=2e-7)


@pytest.mark.full
def test_probability_of_one_half_predicts_class_0() -> None:
    expected = sklearn_metrics.f1_score(YES, (PROBABILITIES > 0.5).astype(int))
    for metric, logits in ((FBeta(2, average="binary"), BOTH), (FBeta(1), SCORE), (FBeta(1, threshold=0.5), SCORE)):
        targets = YES if logits is BOTH else YES[:, None]
        logits = logits if logits is BOTH else logits[:, None]
        np.testing.assert_allclose(value(metric, logits, targets), expected, rtol=2e-7)


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(6,), (6, 1), (2, 3)], ids=str)
def test_one_score_with_labels_of_any_shape_and_dtype(shape: tuple[int, ...], dtype: str) -> None:
    expected = sklearn_metrics.f1_score(YES, (PROBABILITIES > 0.5).astype(int))
    labels = jnp.asarray(YES).astype(dtype).reshape(shape)
    np.testing.assert_allclose(value(FBeta(1, ignore_label=-1), SCORE.reshape(shape), labels), expected, rtol=2e-7)


@pytest.mark.full
def test_ignored_labels_do_not_count() -> None:
    logits = np.tile(np.array([[1.0, -1], [1, 1], [-1, 1]], np.float32), (2, 1))
    targets = np.tile(np.array([[1, -1], [0, 1], [-1, 1]]), (2, 1))
    np.testing.assert_array_equal(value(Precision(2, "none", ignore_label=-1), logits, targets), [0.5, 1])
    assert value(Hamming(ignore_label=-1), logits, targets) == 0.25


@pytest.mark.full
def test_balanced_accuracy_of_one_score() -> None:
    scores, targets = np.array([3.0, 3, 3, -3], np.float32), np.array([1, 0, 0, 0])
    for labels in (targets, np.array([1, 1, 0, 1]), np.zeros(4, int), np.ones(4, int)):
        two = value(BalancedAccuracy(2), np.stack([-scores, scores], 1), labels)
        actual = [np.mean((scores > 0)[labels == kind] == kind) for kind in np.unique(labels)]
        np.testing.assert_allclose([two, value(BalancedAccuracy(1), scores, labels)], np.mean(actual), rtol=2e-7)
    expected = sklearn_metrics.balanced_accuracy_score(targets, scores > 0)
    assert value(BalancedAccuracy(1), scores, targets) == np.float32(expected)
    assert value(BalancedAccuracy(1), np.full(4, 3, np.float32), targets) == 0.5


@pytest.mark.full
def test_balanced_accuracy_of_several_labels() -> None:
    rng = np.random.default_rng(8)
    logits, targets = rng.normal(size=(40, 3)).astype(np.float32), (rng.random((40, 3)) < 0.2).astype(int)
    metric = BalancedAccuracy(3, ignore_label=-1)
    accuracies = [sklearn_metrics.balanced_accuracy_score(targets[:, i], logits[:, i] > 0) for i in range(3)]
    np.testing.assert_allclose(value(metric, logits, targets), np.mean(accuracies), rtol=2e-7)
    parts = metric.merge(state(metric, logits[:9], targets[:9]), state(metric, logits[9:], targets[9:]))
    np.testing.assert_allclose(metric.compute(parts), np.mean(accuracies), rtol=2e-7)
    targets[:, 1] = -1  # the class does not count
    np.testing.assert_allclose(value(metric, logits, targets), (accuracies[0] + accuracies[2]) / 2, rtol=2e-7)


# -- invalid rows ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", [-1, 4, -100, 2**31 - 1])
@pytest.mark.parametrize(
    "metric", [Precision(4), Specificity(4, "micro"), Recall(4, "none", top_k=2)], ids=lambda m: m.name
)
def test_label_that_is_no_class_makes_the_value_nan(metric: Metric, label: int) -> None:
    targets = np.append(TARGETS[:5], label)
    assert np.isnan(value(metric, LOGITS, targets)).all()
    assert not np.isnan(value(metric, LOGITS, targets, np.array([1, 1, 1, 1, 1, 0]))).all()
    ignoring, masked = type(metric)(4, ignore_label=label), np.array([1, 1, 1, 1, 1, 0])
    np.testing.assert_array_equal(value(ignoring, LOGITS, targets), value(type(metric)(4), LOGITS, TARGETS, masked))


def test_nan_score_makes_the_value_nan() -> None:
    logits = LOGITS.copy()
    logits[2, 3] = np.nan
    for average in ("macro", "micro", "weighted"):
        assert np.isnan(value(Precision(4, average), logits, TARGETS))
    targets = (LOGITS > 0.5).astype(int)
    np.testing.assert_array_equal(value(Precision(4, "none"), logits, targets), [1, 1, 1, np.nan])
    targets[0, 0] = 2
    np.testing.assert_array_equal(value(Recall(4, "none"), logits, targets), [np.nan, 1, 1, np.nan])
    assert value(Hamming(), logits, TARGETS) == np.float32(4 / 6)  # 3 of 6 rows were wrong, and the NaN makes it 4
    assert value(Hamming(), LOGITS, np.array([0, 0, 1, 1, 1, -1])) == np.float32(1 / 6)


# -- large counts ------------------------------------------------------------------------------------------------------


def numbers(counts: Count) -> list[Any]:
    return ((np.asarray(counts.high).astype(object) << 32) + np.asarray(counts.low).astype(object)).tolist()


def test_counts_are_exact_beyond_int32() -> None:
    metric = Precision(4, "none")
    total = one = state(metric, LOGITS, TARGETS)
    merge = jax.jit(metric.merge)
    for _ in range(33):
        total = merge(total, total)
    total = merge(total, one)
    assert numbers(total) == [[(2**33 + 1) * count for count in row] for row in numbers(one)]
    assert numbers(total.sum(1)) == [sum(row) for row in numbers(total)]
    assert numbers(total.minus(one)) == [[2**33 * count for count in row] for row in numbers(one)]
    np.testing.assert_allclose(metric.compute(total), [1 / 2, 2 / 3, 0, np.nan], rtol=2e-7)


def test_rare_class_among_billions() -> None:
    hits, false, missed = 70_001, 30_003, 19_999
    counts = np.array([[hits], [false], [missed], [10**11], [0]], np.uint64)
    state = Count(jnp.asarray(counts >> np.uint64(32), jnp.uint32), jnp.asarray(counts % 2**32, jnp.uint32))
    expected = Exact(5 * hits, 5 * hits + 4 * missed + false)
    np.testing.assert_allclose(FBeta(1, beta=2).compute(state), float(expected), rtol=2e-7)


# -- texts and errors --------------------------------------------------------------------------------------------------


def test_table() -> None:
    metric = Precision(["cat", "a dog", "eel", "yak"], "none")
    lines = ["cat    0.5000", "a dog  0.6667", "eel    0.0000", "yak       nan"]
    assert metric.text(value(metric, LOGITS, TARGETS)).splitlines() == lines
    assert (metric.name, metric.numeric) == ("Precision (per class)", False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"classes": 0}, "classes of Recall is 0; it needs 1 or more"),
        ({"classes": 2.0}, "classes of Recall is 2.0; it needs their number, or a list of their names"),
        ({"classes": "cat"}, "classes of Recall is 'cat'"),
        ({"classes": True}, "classes of Recall is True"),
        ({"classes": ["a", "b", "a"]}, "classes of Recall has 'a' more than once"),
        ({"average": "weigthed"}, "average of Recall is 'weigthed'; did you mean 'weighted'?"),
        (
            {"average": "samples"},
            "average of Recall is 'samples'; choose from 'macro', 'micro', 'weighted', 'binary', 'none'",
        ),
        ({"average": None}, "average of Recall is None; did you mean 'none'?"),
        ({"average": "binary"}, "average of Recall is 'binary', but there are 3 classes"),
        ({"threshold": 1}, "threshold of Recall is 1; it needs a probability between 0 and 1"),
        ({"top_k": 0}, "top_k of Recall is 0"),
        ({"top_k": 4}, "top_k of Recall is 4, but there are 3 classes"),
        ({"top_k": 1, "threshold": 0.5}, "Recall has a top_k and a threshold; it needs one of them"),
        ({"ignore_label": "pad"}, "ignore_label of Recall is 'pad'"),
    ],
)
def test_wrong_arguments(arguments: Any, message: str) -> None:
    with pytest.raises(LearnerError) as error:
        Recall(**{"classes": 3, **arguments})
    assert str(error.value).startswith(message)


@pytest.mark.parametrize("number", some([np.int64, np.uint8, np.int32], [np.uint8]))
def test_numpy_integers_equal_python_integers(number: Any) -> None:
    last = LOGITS[..., :3], np.minimum(TARGETS, 2)
    labels = (LOGITS[..., :3] > 0.5).astype(np.float32)
    for make, data in (
        (lambda n: Precision(n(4), top_k=n(2), ignore_label=n(1)), (LOGITS, TARGETS)),
        (lambda n: Precision(n(3), ignore_label=n(1)), (last[0], labels)),
        (lambda n: BinnedAUROC(n(3), bins=n(4), ignore_label=n(1)), last),
        (lambda n: CalibrationError(n(4), ignore_label=n(1)), last),
        (lambda n: TopKAccuracy(n(2), ignore_label=n(1)), last),
        (lambda n: Hamming(ignore_label=n(1)), (last[0], labels)),
        (lambda n: Matthews(n(3), ignore_label=n(1)), last),
    ):
        plain, metric = make(int), make(number)
        assert metric.name == plain.name
        one, same = (str(jax.make_jaxpr(functools.partial(state, version))(*data)) for version in (plain, metric))
        assert one == same, f"{metric.name} is another program"
    assert AUROC(classes=number(3)).classes == ("0", "1", "2")
    assert (R2(number(2)).name, TokenAccuracy(number(0)).name, BLEU(order=number(2)).name) == (
        "R2",
        "Token Accuracy ignoring 0",
        "BLEU-2",
    )


def test_the_classes_of_counts_are_known() -> None:
    for make in (Precision, Recall, BinnedAUROC):
        with pytest.raises(LearnerError, match=r"classes of .* is None"):
            make(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [np.True_, np.float32(3), np.array([3])], ids=str)
def test_other_numpy_values_are_refused(wrong: Any) -> None:
    for make in (Precision, lambda n: TopKAccuracy(n), lambda n: Hamming(ignore_label=n)):
        with pytest.raises(LearnerError) as raised:
            make(wrong)
        assert raised.value.code.startswith("metric-")


def test_all_problems_in_one_error() -> None:
    with pytest.raises(LearnerError) as error:
        FBeta(0, beta=-1, average="mean", ignore_label=0.5)
    problems = str(error.value).splitlines()
    assert problems[0] == "FBeta cannot be made, 4 problems:"
    assert [line.split(" of ")[0].split()[-1] for line in problems[1:]] == [
        "classes",
        "average",
        "beta",
        "ignore_label",
    ]


@pytest.mark.parametrize(
    ("metric", "logits", "targets", "message"),
    [
        (Precision(3), (4, 2), ((4,), "int32"), r"logits float32\[4, 2\] and targets int32\[4\]; it has classes=3"),
        (Precision(3), (4, 3), ((4,), "float32"), r"targets float32\[4\]; it needs one class number"),
        (Precision(3), (4, 3), ((4, 1), "int32"), r"targets int32\[4, 1\]; it needs one class number"),
        (Precision(1), (4, 1), ((4,), "int32"), r"with classes=1 it needs one score for each label"),
        (Precision(4), (4,), ((4,), "int32"), r"it needs a score for each of 4 classes, or classes=1"),
        (Precision(3, threshold=0.5), (4, 3), ((4,), "int32"), r"a threshold is for two classes"),
        (Precision(3, top_k=2), (4, 3), ((4, 3), "int32"), r"several labels for each row; top_k is for one"),
        (Hamming(), (4, 3), ((3,), "int32"), r"targets int32\[3\]; it needs one class number"),
        (Hamming(threshold=0.5), (4, 3), ((4,), "int32"), r"a threshold is for two classes"),
    ],
)
def test_wrong_shapes_and_dtypes(metric: Metric, logits: Any, targets: Any, message: str) -> None:
    output = types.SimpleNamespace(logits=jnp.zeros(logits), targets=jnp.zeros(*targets))
    with pytest.raises(LearnerError, match=f"{metric.name.split(' (')[0]}.* got .*{message}"):
        jax.eval_shape(lambda: metric.update(metric.init(), output, INFO))


def test_predicted_classes_are_refused() -> None:
    output = types.SimpleNamespace(logits=jnp.zeros((4, 3), jnp.int32), targets=jnp.zeros(4, jnp.int32))
    with raises_code("metric-scores-needed", "int32[4, 3]"):
        Precision(3).update(Precision(3).init(), output, INFO)
