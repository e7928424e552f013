"""Tests of Accuracy and TopKAccuracy."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.errors import LearnerError
from learner.metrics import Accuracy, Info, Metric, TopKAccuracy
from learner.steps.outputs import ClassificationOutput, MultiLabelOutput, SequenceOutput
from tests.support.codes import raises_code
from tests.support.stopped import some

TOP_1, TOP_2, TOP_3 = Accuracy(), TopKAccuracy(2), TopKAccuracy(3)
INFO = Info(jnp.int32(0), jnp.float32(1))
few_examples = settings(max_examples=30, deadline=None, derandomize=True, database=None)


@partial(jax.tree_util.register_dataclass, data_fields=["logits", "targets", "mask"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class UserOutput:
    """An output of a user, with the fields that the metrics read."""

    logits: Any
    targets: Any
    mask: Any = None


def value(metric: Metric, logits: Any, targets: Any, mask: Any = None) -> float:
    output = UserOutput(jnp.asarray(logits), jnp.asarray(targets), None if mask is None else jnp.asarray(mask))
    return float(run(metric, output))


@partial(jax.jit, static_argnums=0)
def run(metric: Metric, output: UserOutput) -> Any:
    return metric.compute(metric.update(metric.init(), output, INFO))


ROWS = np.array([[3.0, 1, 2], [1, 2, 3], [1, 3, 2], [2, 1, 3]], np.float32)  # best: 0, 2, 1, 2; second: 2, 1, 2, 0


@pytest.mark.parametrize(
    ("metric", "targets", "mask", "expected"),
    [
        (TOP_1, [0, 2, 1, 2], None, 1.0),
        (TOP_1, [0, 2, 0, 0], None, 0.5),
        (TOP_1, [0, 2, 0, 0], [1, 1, 0, 1], 2 / 3),
        (TOP_1, [0, 2, 0, 0], [True, True, False, False], 1.0),
        (TOP_1, [0, 2, 0, 0], [0.0, 0.0, 1.0, 0.0], 0.0),
        (Accuracy(ignore_label=-100), [0, -100, 0, -100], None, 0.5),
        (Accuracy(ignore_label=0), [0, 2, 0, 0], None, 1.0),
        (Accuracy(ignore_label=0), [0, 2, 2, 0], [1, 1, 0, 1], 1.0),
        (Accuracy(ignore_label=2), [2, 2, 2, 2], None, np.nan),
        (TOP_1, [0, 2, 0, 0], [0, 0, 0, 0], np.nan),
        (TopKAccuracy(1), [0, 2, 0, 0], None, 0.5),
        (TOP_2, [2, 1, 0, 0], None, 0.75),
        (TopKAccuracy(2, ignore_label=1), [2, 1, 0, 0], [1, 1, 1, 0], 0.5),
        (TOP_3, [2, 1, 0, 0], None, 1.0),
    ],
)
def test_by_hand(metric: Metric, targets: list[int], mask: list[Any] | None, expected: float) -> None:
    np.testing.assert_equal(value(metric, ROWS, targets, mask), np.float32(expected))


@pytest.mark.full
@few_examples
@given(st.data())
def test_ranks_with_ties_equal_numpy(data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.lists(st.integers(-2, 2), min_size=4, max_size=4), min_size=6, max_size=6))
    targets = np.array(data.draw(st.lists(st.integers(0, 3), min_size=6, max_size=6)))
    logits = np.array(rows, np.float32)
    order = np.argsort(-logits, axis=-1, kind="stable")
    assert value(TOP_1, logits, targets) == np.float32(np.mean(logits.argmax(-1) == targets))
    for k, metric in ((2, TOP_2), (3, TOP_3)):
        expected = np.mean((order[:, :k] == targets[:, None]).any(-1))
        assert value(metric, logits, targets) == np.float32(expected)


@pytest.mark.parametrize("dtype", some(["int8", "uint8", "int16", "uint32", "int32"], ["int8", "uint32"]))
def test_labels_of_every_integer_dtype(dtype: str) -> None:
    logits = np.zeros((2, 300), np.float32)
    logits[:, 100] = 1
    assert value(Accuracy(ignore_label=-100), logits, np.array([100, 99], dtype)) == 0.5


@pytest.mark.parametrize("label", [-1, -3, 3, 100, -(2**31), 2**31 - 1])
def test_label_that_is_no_class_is_no_hit(label: int) -> None:
    for best in range(3):
        logits = np.eye(3, dtype=np.float32)[[best, best]]
        assert value(TOP_1, logits, np.array([best, label], np.int32)) == 0.5
        assert value(TOP_3, logits, np.array([best, label], np.int32)) == 0.5
    assert value(TOP_1, np.full((2, 3), -np.inf, np.float32), np.array([0, label], np.int32)) == 0.5


def test_rows_with_nan_are_no_hits() -> None:
    nan = np.nan
    logits = np.array([[nan, nan, nan], [5, nan, 1], [nan, 5, 1], [5, 1, nan], [5, 1, 0]], np.float32)
    assert value(TOP_1, logits, [0, 0, 1, 0, 0]) == np.float32(0.2)
    assert value(TOP_1, logits, [0, 0, 1, 0, 0], [0, 0, 0, 0, 1]) == 1
    # A NaN takes one of the k places, and is no hit itself.
    assert value(TOP_2, logits, [0, 0, 1, 2, 0]) == np.float32(0.6)


def test_infinite_scores() -> None:
    inf = np.inf
    logits = np.array([[-inf, -inf, 0], [inf, 0, 0], [-inf, -inf, -inf]], np.float32)
    assert value(TOP_1, logits, [2, 0, 0]) == 1
    assert value(TOP_2, logits, [0, 1, 2]) == np.float32(2 / 3)


def test_masks_of_rows_and_tokens() -> None:
    logits = np.stack([ROWS, ROWS])
    targets = [[0, 2, 1, 2], [1, 1, 1, 1]]
    assert value(TOP_1, logits, targets, [1, 0]) == 1
    assert value(TOP_1, logits, targets, [0, 1]) == 0.25
    assert value(TOP_1, logits, targets, [[0, 0, 0, 1], [0, 0, 1, 1]]) == np.float32(2 / 3)


def test_value_without_rows_is_nan() -> None:
    assert np.isnan(value(TOP_1, np.zeros((0, 3), np.float32), np.zeros(0, np.int32)))


def test_outputs_of_the_library() -> None:
    @jax.jit
    def both(logits: Any, targets: Any, mask: Any) -> Any:
        state = TOP_1.update(TOP_1.init(), ClassificationOutput.from_logits(logits, targets), INFO)
        tokens = SequenceOutput.from_logits(logits[None], targets[None], mask[None])
        return TOP_1.compute(TOP_1.update(state, tokens, INFO))

    assert both(ROWS, np.array([0, 2, 0, 0]), np.array([1, 1, 1, 0])) == np.float32(4 / 7)


@pytest.mark.parametrize("dtype", [np.int32, np.float32, bool])
def test_one_score_for_two_classes(dtype: Any) -> None:
    scores, targets = np.float32([2, -1, 0, 0.5, -3]), np.array([1, 0, 0, 0, 1], dtype)
    assert value(TOP_1, scores, targets) == np.float32(3 / 5)  # a score of 0 predicts class 0
    assert value(TOP_1, scores, targets, [1, 1, 1, 0, 0]) == 1.0
    assert value(TOP_1, np.where(targets, np.nan, scores), targets) == np.float32(2 / 5)
    if np.dtype(dtype).kind != "b":
        assert value(TOP_1, scores, np.where(targets, 7, targets)) == np.float32(2 / 5)
        assert value(Accuracy(ignore_label=-1), scores, np.array([1, 0, 0, -1, -1], dtype)) == 1.0


LOGITS = np.zeros((4, 3), np.float32)


@pytest.mark.parametrize(
    ("logits", "targets", "mask", "message"),
    [
        (
            LOGITS,
            np.zeros((4, 3), np.int32),
            None,
            r"int32\[4, 3\].*; of several labels .*, learner.metrics.Hamming\(\)",
        ),
        (LOGITS[:, 0], np.zeros(4, np.int32), None, r"of one score for two classes, use Accuracy\(\)"),
        (LOGITS, np.zeros((4, 1), np.int32), None, r"targets int32\[4, 1\]; it needs one class number"),
        (LOGITS, np.zeros(4, np.float32), None, r"targets float32\[4\]; .*integer"),
        (LOGITS, np.zeros(4, bool), None, r"targets bool\[4\]"),
        (LOGITS[:, 0], np.zeros((), np.int32), None, r"logits float32\[4\]"),
        (LOGITS, np.zeros(4, np.int32), np.ones((4, 1)), r"a mask of shape \(4, 1\); it needs \(4,\)"),
        (LOGITS, np.zeros(4, np.int32), np.ones(3), r"a mask of shape \(3,\)"),
        (LOGITS[:, :1], np.zeros(4, np.int32), None, r"Top-2 Accuracy got logits of 1 classes; it needs 2 or more"),
    ],
)
def test_wrong_shapes(logits: Any, targets: Any, mask: Any, message: str) -> None:
    metric = TopKAccuracy(2)
    with pytest.raises(LearnerError, match=f"Top-2 Accuracy got .*{message.removeprefix('Top-2 Accuracy got ')}"):
        jax.eval_shape(metric.update, metric.init(), UserOutput(logits, targets, mask), INFO)


def test_multi_label_outputs_are_refused() -> None:
    output = MultiLabelOutput.from_logits(jnp.zeros((4, 3)), jnp.zeros((4, 3)))
    with raises_code("metric-classification-shapes", "Accuracy", "MultiLabelOutput"):
        Accuracy().update(Accuracy().init(), output, INFO)


@pytest.mark.parametrize("k", [0, -1, 2.0, True, "5", None])
def test_wrong_k(k: Any) -> None:
    with raises_code("metric-top-k-value", "TopKAccuracy", repr(k)):
        TopKAccuracy(k)


@pytest.mark.parametrize("label", [1.0, False, "pad"])
def test_wrong_ignore_label(label: Any) -> None:
    with raises_code("metric-ignore-label-value", "ignore_label", repr(label)):
        Accuracy(ignore_label=label)
