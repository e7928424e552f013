"""Tests of outputs: losses, weights and gradients against NumPy, scikit-learn and hand-computed values."""

import dataclasses
import functools
import math
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics

from learner import (
    ClassificationOutput,
    LearnerError,
    MultiLabelOutput,
    Output,
    RegressionOutput,
    SegmentationOutput,
    SequenceOutput,
    TrainOutput,
    weighted_mean,
)
from learner.steps.outputs import as_output, has_wrong_labels
from learner.steps.tree_math import weight_of
from tests.support.codes import raises_code

ROWS, LENGTH, CLASSES = 6, 5, 4


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of output: its constructor, and its loss per value of the mask in float64."""

    name: str
    make: Callable[..., Any]
    inputs: tuple[int, ...]
    targets: Callable[[np.random.Generator], np.ndarray]
    losses: Callable[[np.ndarray, np.ndarray], np.ndarray]
    mask_shape: tuple[int, ...]

    def __str__(self) -> str:
        return self.name


def cross_entropy(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(-1, keepdims=True)
    log_probabilities = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return -np.take_along_axis(log_probabilities, labels[..., None], -1)[..., 0]


def binary_cross_entropy(logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
    probabilities = 1 / (1 + np.exp(-logits))
    return -(targets * np.log(probabilities) + (1 - targets) * np.log(1 - probabilities)).mean(-1)


def squared_error(predictions: np.ndarray, targets: np.ndarray) -> np.ndarray:
    return ((predictions - targets) ** 2).reshape(len(predictions), -1).mean(-1)


def labels(*shape: int) -> Callable[[np.random.Generator], np.ndarray]:
    return lambda rng: rng.integers(0, CLASSES, shape).astype(np.int32)


def numbers(*shape: int) -> Callable[[np.random.Generator], np.ndarray]:
    return lambda rng: rng.normal(size=shape).astype(np.float32)


def zeros_and_ones(*shape: int) -> Callable[[np.random.Generator], np.ndarray]:
    return lambda rng: rng.integers(0, 2, shape).astype(np.int32)


rows, tokens = (ROWS,), (ROWS, LENGTH)
KINDS = [
    Kind("classes", ClassificationOutput.from_logits, (ROWS, CLASSES), labels(ROWS), cross_entropy, rows),
    Kind(
        "labels",
        MultiLabelOutput.from_logits,
        (ROWS, 3),
        zeros_and_ones(ROWS, 3),
        binary_cross_entropy,
        rows,
    ),
    Kind("number", RegressionOutput.from_predictions, (ROWS,), numbers(ROWS), squared_error, rows),
    Kind("numbers", RegressionOutput.from_predictions, (ROWS, 2, 3), numbers(ROWS, 2, 3), squared_error, rows),
    Kind("tokens", SequenceOutput.from_logits, (*tokens, CLASSES), labels(*tokens), cross_entropy, tokens),
]
PIXELS = Kind("pixels", SegmentationOutput.from_logits, (2, 3, 3, CLASSES), labels(2, 3, 3), cross_entropy, (2, 3, 3))
all_kinds = pytest.mark.parametrize("kind", KINDS, ids=str)


def data(kind: Kind) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return inputs, targets and a mask with zeros and ones."""
    rng = np.random.default_rng(3)
    inputs = rng.normal(size=kind.inputs).astype(np.float32) * 3
    targets = kind.targets(rng)
    mask = rng.integers(0, 2, kind.mask_shape)
    mask.flat[:2] = 0, 1
    return inputs, targets, mask


@functools.cache
def loss_and_grad(kind: Kind) -> Callable[..., Any]:
    """Return the compiled loss and gradient as a function of inputs, targets and a mask."""
    return jax.jit(jax.value_and_grad(lambda inputs, targets, mask: kind.make(inputs, targets, mask=mask).loss))


# -- values ------------------------------------------------------------------------------------------------------------


@all_kinds
def test_the_loss_is_the_mean_over_all_rows(kind):
    inputs, targets, _ = data(kind)
    output = jax.jit(kind.make)(inputs, targets)
    losses = kind.losses(np.float64(inputs), targets)
    np.testing.assert_allclose(output.loss, losses.mean(), rtol=1e-5)
    assert output.loss.shape == ()
    assert output.loss.dtype == jnp.float32
    assert output.weight == losses.size
    assert output.mask is None
    np.testing.assert_array_equal(output.targets, targets)


@all_kinds
def test_float64_inputs_have_float64_losses(kind):
    """The gradient has float64 precision, too."""
    inputs, targets, mask = data(kind)
    inputs = inputs.astype(np.float64) * (1 + 1e-9)
    targets = targets.astype(np.float64) if targets.dtype == np.float32 else targets
    nudged = inputs + 1e-6 * np.sign(inputs)
    mean, nudged_mean = kind.losses(inputs, targets)[mask == 1].mean(), kind.losses(nudged, targets)[mask == 1].mean()
    with jax.enable_x64(True):
        loss, grad = jax.jit(jax.value_and_grad(lambda x: kind.make(x, targets, mask=mask).loss))(inputs)
        assert (loss.dtype, grad.dtype) == (jnp.float64, jnp.float64)
        np.testing.assert_allclose(float(loss), mean, rtol=1e-13)
        np.testing.assert_allclose(float((grad * (nudged - inputs)).sum()), nudged_mean - mean, rtol=1e-4)


@all_kinds
@pytest.mark.parametrize("dtype", [bool, pytest.param(np.float32, marks=pytest.mark.full), np.int32])
def test_the_loss_is_the_mean_over_unmasked_values(kind, dtype):
    inputs, targets, mask = data(kind)
    output = jax.jit(kind.make)(inputs, targets, mask.astype(dtype))
    losses = kind.losses(np.float64(inputs), targets)
    np.testing.assert_allclose(output.loss, losses[mask == 1].mean(), rtol=1e-5)
    assert int(output.weight) == mask.sum()
    np.testing.assert_array_equal(output.mask, mask.astype(dtype))


@all_kinds
def test_a_float_mask_weights_the_loss(kind):
    inputs, targets, mask = data(kind)
    weights = mask * np.random.default_rng(1).uniform(0.1, 2.0, mask.shape).astype(np.float32)
    output = jax.jit(kind.make)(inputs, targets, weights)
    expected = np.average(kind.losses(np.float64(inputs), targets), weights=weights)
    np.testing.assert_allclose(output.loss, expected, rtol=1e-5)
    np.testing.assert_allclose(output.weight, weights.sum(), rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.int32, bool, np.float16, jnp.bfloat16, np.float32])
@pytest.mark.parametrize("weights", [np.float32([0.5, 0.5, 2.0]), np.array([1, 1, 0]), np.array([True, False, True])])
def test_weighted_means_do_not_depend_on_the_dtype(dtype, weights):
    values = np.array([1, 0, 1]).astype(dtype)
    mean, weight = weighted_mean(jnp.asarray(values), jnp.asarray(weights))
    np.testing.assert_allclose(mean, np.average(np.float64(values), weights=weights), rtol=1e-6)
    assert (mean.dtype, weight.dtype, float(weight)) == (jnp.float32, jnp.float32, weights.sum())


@pytest.mark.parametrize(("kind", "shape"), [(SequenceOutput, (3, 5)), (SegmentationOutput, (3, 5, 2))])
def test_a_mask_of_rows_counts_all_labels_of_a_row(kind, shape):
    rng = np.random.default_rng(2)
    logits, targets = rng.normal(size=(*shape, CLASSES)).astype(np.float32), labels(*shape)(rng)
    logits[1] = np.nan
    output = jax.jit(kind.from_logits)(logits, targets, np.array([True, False, True]))
    losses = cross_entropy(np.float64(logits), targets)
    np.testing.assert_allclose(output.loss, losses[[0, 2]].mean(), rtol=1e-6)
    assert float(output.weight) == 2 * np.prod(shape[1:])
    assert output.mask.shape == shape
    weighted = kind.from_logits(logits, targets, np.float32([1, 0, 3]))
    np.testing.assert_allclose(weighted.loss, (losses[0].mean() + 3 * losses[2].mean()) / 4, rtol=1e-6)


def test_a_custom_output_with_a_mask_needs_a_weight():
    """Otherwise, batches with 4 unmasked rows and with 1 would have equal weights."""
    mask = jnp.array([1, 0, 1])
    for output in (as_output({"loss": 1.0, "mask": mask}), types.SimpleNamespace(loss=1.0, mask=mask)):
        with raises_code("output-mask-without-weight"):
            weight_of(output, 3)
    assert weight_of(as_output({"loss": 1.0, "mask": mask, "weight": mask.sum()}), 3) == 2
    assert weight_of(as_output({"loss": 1.0, "mask": None}), 3) == 3


@pytest.mark.full
def test_labels_of_numpy_with_64_bits_need_no_cast():
    labels, mask = np.array([0, 7, 2]), np.array([True, False, True])
    assert labels.dtype == np.int64
    output = ClassificationOutput.from_logits(jnp.zeros((3, 4)), labels, mask)  # any warning is an error
    np.testing.assert_allclose(output.loss, np.log(4), rtol=1e-6)


@pytest.mark.full
@all_kinds
def test_masked_rows_may_be_nan_or_infinite_for_the_loss_and_its_gradient(kind):
    inputs, targets, mask = data(kind)
    hidden = mask == 0
    clean = loss_and_grad(kind)(inputs, targets, mask)
    for bad in (np.nan, np.inf):
        dirty = inputs.copy()
        dirty[hidden] = bad
        bad_targets = targets.copy()
        bad_targets[hidden] = bad if targets.dtype == np.float32 else 10**6  # far outside the classes
        loss, grads = loss_and_grad(kind)(dirty, bad_targets, mask)
        assert loss == clean[0]
        np.testing.assert_array_equal(grads, clean[1])
        assert (grads[hidden] == 0).all()


@all_kinds
def test_unmasked_nan_makes_the_loss_nan(kind):
    inputs, targets, mask = data(kind)
    inputs[mask == 1] = np.nan
    assert np.isnan(loss_and_grad(kind)(inputs, targets, mask)[0])


@pytest.mark.full
@all_kinds
def test_an_all_zero_mask_has_weight_zero(kind):
    inputs, targets, mask = data(kind)
    inputs[:] = np.nan
    nothing = np.zeros_like(mask)
    assert kind.make(inputs, targets, nothing).weight == 0
    loss, grads = loss_and_grad(kind)(inputs, targets, nothing)
    assert loss == 0
    assert (grads == 0).all()


@all_kinds
def test_the_gradient_equals_finite_differences(kind):
    """The reference is central differences of the float64 loss."""
    inputs, targets, mask = data(kind)
    inputs /= 3
    grads = np.asarray(loss_and_grad(kind)(inputs, targets, mask)[1])
    wide, h = np.float64(inputs), 1e-5
    for index in np.ndindex(inputs.shape):
        losses = []
        for sign in (1, -1):
            moved = wide.copy()
            moved[index] += sign * h
            losses.append(kind.losses(moved, targets)[mask == 1].mean())
        np.testing.assert_allclose(grads[index], (losses[0] - losses[1]) / (2 * h), rtol=1e-3, atol=1e-6)


@pytest.mark.full
@all_kinds
@pytest.mark.parametrize("dtype", [jnp.bfloat16, pytest.param(jnp.float16, marks=pytest.mark.full)])
def test_the_loss_of_half_precision_is_computed_in_float32(kind, dtype):
    inputs, targets, _ = data(kind)
    half = jnp.asarray(inputs, dtype)
    loss = kind.make(half, targets).loss
    assert loss.dtype == jnp.float32
    expected = kind.losses(np.asarray(half, np.float64), targets).mean()
    np.testing.assert_allclose(loss, expected, rtol=1e-5)  # half precision would have errors of 1e-3


@all_kinds
def test_an_output_is_a_pytree(kind):
    inputs, targets, mask = data(kind)
    output = kind.make(inputs, targets, jnp.asarray(mask))
    doubled = jax.tree.map(lambda x: x, output)
    assert type(doubled) is type(output)
    assert len(jax.tree.leaves(output)) == 5
    assert len(jax.tree.leaves(dataclasses.replace(output, mask=None))) == 4


def test_fields_of_an_output_are_read_as_from_a_dict():
    output = Output(1.5, error=2.0)
    assert (output["loss"], output["error"]) == (1.5, 2.0)
    with pytest.raises(KeyError, match="eror"):
        output["eror"]


# -- hand-computed, and scikit-learn -----------------------------------------------------------------------------------


def test_classification_by_hand():
    logits = jnp.log(jnp.array([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]]))
    output = ClassificationOutput.from_logits(logits, jnp.array([0, 1]))
    np.testing.assert_allclose(output.loss, (math.log(2) + math.log(5)) / 2, rtol=1e-6)
    assert output.weight == 2


def test_classification_agrees_with_scikit_learn():
    inputs, targets, mask = data(KINDS[0])
    wide = np.float64(inputs)
    probabilities = np.exp(wide) / np.exp(wide).sum(-1, keepdims=True)
    weights = mask.astype(float)
    expected = sklearn_metrics.log_loss(targets, probabilities, labels=range(CLASSES), sample_weight=weights)
    np.testing.assert_allclose(KINDS[0].make(inputs, targets, jnp.asarray(mask)).loss, expected, rtol=1e-5)


def test_regression_agrees_with_scikit_learn():
    inputs, targets, mask = data(KINDS[2])
    expected = sklearn_metrics.mean_squared_error(targets, inputs, sample_weight=mask.astype(float))
    np.testing.assert_allclose(KINDS[2].make(inputs, targets, jnp.asarray(mask)).loss, expected, rtol=1e-5)


def test_several_labels_by_hand():
    # sigmoid(ln 3) = 3/4, sigmoid(0) = 1/2
    logits = jnp.log(jnp.array([[3.0, 1.0], [3.0, 1.0]]))
    output = MultiLabelOutput.from_logits(logits, jnp.array([[1.0, 0.0], [0.0, 1.0]]))
    np.testing.assert_allclose(output.loss, (math.log(4 / 3) + math.log(4) + 2 * math.log(2)) / 4, rtol=1e-6)
    assert output.weight == 2


@pytest.mark.full
def test_unknown_labels_are_ignored():
    logits = jnp.log(jnp.array([[3.0, 1.0], [3.0, 1.0], [3.0, 3.0]]))
    targets, mask = jnp.array([[1, -1], [0, 1], [-1, -1]]), jnp.array([1.0, 0.5, 1.0])
    make = functools.partial(MultiLabelOutput.from_logits, ignore_label=-1)
    output = make(logits, targets)
    np.testing.assert_allclose(output.loss, (math.log(4 / 3) + math.log(4) + math.log(2)) / 3, rtol=1e-6)
    np.testing.assert_allclose(output.weight, 1.5)  # one of two labels in the first row, none in the last
    weighted = make(logits, targets, mask)
    np.testing.assert_allclose(weighted.loss, (math.log(4 / 3) + (math.log(4) + math.log(2)) / 2) / 2, rtol=1e-6)
    np.testing.assert_allclose(weighted.weight, 1.0)
    assert not has_wrong_labels(output)
    gradient = jax.grad(lambda x: make(x, targets).loss)(logits)
    assert (gradient[targets == -1] == 0).all()
    assert (gradient[targets != -1] != 0).all()


IGNORING = [*(kind for kind in KINDS if kind.losses is cross_entropy), PIXELS]


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8])
@pytest.mark.parametrize("kind", IGNORING, ids=str)
def test_an_ignored_label_does_not_count(kind, dtype):
    logits, targets, mask = data(kind)
    ignored = 255 if dtype == np.uint8 else -100
    labels = np.where(mask == 0, ignored, targets).astype(dtype)
    losses, counted = kind.losses(np.float64(logits), targets), mask.astype(bool)
    output = kind.make(logits, labels, ignore_label=ignored)
    np.testing.assert_allclose(output.loss, losses[counted].mean(), rtol=1e-5)
    assert float(output.weight) == counted.sum()
    assert not has_wrong_labels(output)
    np.testing.assert_array_equal(output.mask, counted)
    # With weights, of which one is 0 where the label counts.
    weights = np.random.default_rng(5).uniform(0.5, 2, mask.shape).astype(np.float32)
    weights.flat[np.flatnonzero(mask)[0]] = 0
    both = kind.make(logits, jnp.asarray(labels), jnp.asarray(weights), ignore_label=ignored)
    np.testing.assert_allclose(both.loss, np.average(losses, weights=weights * counted), rtol=1e-5)
    np.testing.assert_allclose(both.weight, (weights * counted).sum(), rtol=1e-6)
    gradient = jax.grad(lambda x: kind.make(x, labels, ignore_label=ignored).loss)(logits)
    assert ((gradient != 0).any(-1) == counted).all()


def test_a_mask_of_rows_and_an_ignored_label_exclude_tokens():
    logits, targets = jnp.zeros((2, 3, 4)), jnp.array([[3, -100, 1], [0, 2, -100]])
    output = SequenceOutput.from_logits(logits, targets, jnp.array([True, False]), ignore_label=-100)
    np.testing.assert_allclose(output.loss, math.log(4), rtol=1e-6)
    assert output.mask.tolist() == [[True, False, True], [False, False, False]]
    assert output.weight == 2


def test_nothing_but_ignored_labels_has_weight_0():
    output = ClassificationOutput.from_logits(jnp.ones((2, 3)), jnp.array([-1, -1]), ignore_label=-1)
    assert (output.loss, output.weight) == (0, 0)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint32])
def test_no_unsigned_label_is_a_negative_ignored_one(dtype):
    labels = jnp.array(np.array([0, np.iinfo(dtype).max - 99], dtype))  # -100 in this dtype's bits
    output = ClassificationOutput.from_logits(jnp.zeros((2, 3)), labels, ignore_label=-100)
    assert np.isnan(output.loss)
    assert has_wrong_labels(output)


@pytest.mark.full
@pytest.mark.parametrize("target", [-1, 2, -1.0, 1.5])
def test_labels_other_than_0_and_1_are_invalid(target):
    targets = jnp.array([[target, 1], [0, 1]], type(target))
    output = MultiLabelOutput.from_logits(jnp.zeros((2, 2)), targets)
    assert np.isnan(output.loss)
    assert has_wrong_labels(output)
    masked = MultiLabelOutput.from_logits(jnp.zeros((2, 2)), targets, jnp.array([0, 1]))
    np.testing.assert_allclose(masked.loss, math.log(2), rtol=1e-6)
    assert not has_wrong_labels(masked)
    mixed = MultiLabelOutput.from_logits(jnp.zeros((1, 2)), jnp.array([[0.3, 1.0000001]]))
    np.testing.assert_allclose(mixed.loss, math.log(2), rtol=1e-6)


def test_invalid_labels_of_a_head_are_detected():
    right = ClassificationOutput.from_logits(jnp.zeros((2, 3)), jnp.array([2, 0]))
    wrong = ClassificationOutput.from_logits(jnp.zeros((2, 3)), jnp.array([2, 3]))
    assert not has_wrong_labels(Output(right.loss, genre=right, other=jnp.ones(2)))
    assert has_wrong_labels(Output(right.loss, genre=right, style=wrong))


def test_regression_by_hand():
    output = RegressionOutput.from_predictions(jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([[1.0, 0.0], [0.0, 4.0]]))
    assert output.loss == (0 + 4 + 9 + 0) / 4
    assert output.weight == 2


@pytest.mark.full
def test_missing_values_are_ignored():
    predictions = jnp.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    targets = jnp.array([[1.0, jnp.nan], [1.0, 2.0], [jnp.nan, jnp.nan]])

    def output(predictions, weight=1.0):
        return RegressionOutput.from_predictions(predictions, targets, jnp.where(jnp.isnan(targets), 0, weight))

    np.testing.assert_allclose(output(predictions).loss, (0 + 4 + 4) / 3, rtol=1e-6)
    assert output(predictions).weight == 1.5  # one of two values in the first row, none in the last
    np.testing.assert_allclose(jax.grad(lambda x: output(x).loss)(predictions) * 3, [[0, 0], [4, 4], [0, 0]], rtol=1e-6)
    weighted = output(predictions, jnp.array([[1.0, 1.0], [3.0, 1.0], [1.0, 1.0]]))
    np.testing.assert_allclose(weighted.loss, (0 + 3 * 4 + 4) / 5, rtol=1e-6)
    assert weighted.weight == 2.5
    for shape in ((2,), (3, 3), (3, 2, 1), ()):
        with raises_code("output-mask-shape"):
            RegressionOutput.from_predictions(predictions, targets, jnp.ones(shape))


@pytest.mark.full
def test_tokens_count_equally_in_short_and_long_sequences():
    logits = jnp.log(jnp.array([[[0.5, 0.5]] * 3, [[0.25, 0.75]] * 3]))
    mask = jnp.array([[1, 1, 1], [1, 0, 0]])
    output = SequenceOutput.from_logits(logits, jnp.zeros((2, 3), int), mask)
    np.testing.assert_allclose(output.loss, (3 * math.log(2) + math.log(4)) / 4, rtol=1e-6)  # not the mean over rows
    assert output.weight == 4


def test_huge_logits_do_not_overflow():
    output = ClassificationOutput.from_logits(jnp.array([[1e4, 0.0], [0.0, 1e4]]), jnp.array([0, 0]))
    assert output.loss == 5000.0
    output = MultiLabelOutput.from_logits(jnp.array([[1e4, -1e4]]), jnp.array([[0, 0]]))
    assert output.loss == 5000.0


def test_weighted_mean_by_hand():
    mean, weight = weighted_mean(jnp.array([1.0, 2.0, jnp.nan, 5.0]), jnp.array([1, 1, 0, 1]))
    np.testing.assert_allclose(mean, 8 / 3, rtol=1e-6)
    assert weight == 3
    mean, weight = weighted_mean(jnp.array([[1.0, 2.0]]), None)
    assert (mean, weight) == (1.5, 2)


def test_an_output_has_the_names_of_its_fields_and_is_not_iterable():
    output = Output(1.5, error=2.0)
    assert ("error" in output, "kl" in output) == (True, False)
    with pytest.raises(TypeError, match="not iterable"):
        list(output)


def test_train_output_is_a_pytree():
    assert jax.tree.leaves(TrainOutput({"w": 1.0}, {"loss": 2.0})) == [1.0, 2.0]


# -- wrong shapes and dtypes -------------------------------------------------------------------------------------------

INT = jnp.int32


def of(*shape: int, dtype: Any = jnp.float32) -> Any:
    return jnp.zeros(shape, dtype)


WRONG = {
    "logits of one row": (ClassificationOutput.from_logits, (of(4), of(4, dtype=INT)), r"\(4,\)"),
    "labels of other rows": (ClassificationOutput.from_logits, (of(4, 3), of(5, dtype=INT)), r"\(4, 3\).*\(5,\)"),
    "one-hot labels": (
        ClassificationOutput.from_logits,
        (of(4, 3), of(4, 3, dtype=INT)),
        r"needs \[batch, classes\].*\.argmax\(-1\)$",
    ),
    "soft labels": (ClassificationOutput.from_logits, (of(4, 3), of(4, 3)), r"\.argmax\(-1\), for soft labels.*Output"),
    "labels in a column": (
        ClassificationOutput.from_logits,
        (of(4, 3), of(4, 1, dtype=INT)),
        r"\(4, 1\).*labels\[:, 0\]$",
    ),
    "sequences as classes": (
        ClassificationOutput.from_logits,
        (of(4, 5, 3), of(4, 5, dtype=INT)),
        r"\(4, 5, 3\).*SequenceOutput\.from_logits",
    ),
    "float labels": (ClassificationOutput.from_logits, (of(4, 3), of(4)), "dtype float32; it needs integer"),
    "bool labels": (ClassificationOutput.from_logits, (of(4, 3), of(4, dtype=bool)), "dtype bool; it needs integer"),
    "mask of other rows": (ClassificationOutput.from_logits, (of(4, 3), of(4, dtype=INT), of(3)), r"mask"),
    "mask in a column": (ClassificationOutput.from_logits, (of(4, 3), of(4, dtype=INT), of(4, 1)), r"mask"),
    "label numbers": (MultiLabelOutput.from_logits, (of(4, 3), of(4, dtype=INT)), r"\(4, 3\).*\(4,\)"),
    "no labels axis": (MultiLabelOutput.from_logits, (of(4), of(4)), r"both must be \[batch, labels\]"),
    "mask per label": (MultiLabelOutput.from_logits, (of(4, 3), of(4, 3), of(4, 3)), r"mask has shape \(4, 3\)"),
    "a column": (RegressionOutput.from_predictions, (of(4, 1), of(4)), r"\(4, 1\).*\(4,\).*\[:, 0\]"),
    "a scalar": (RegressionOutput.from_predictions, (of(), of()), r"shape \(\)"),
    "mask of others": (RegressionOutput.from_predictions, (of(4, 2), of(4, 2), of(4, 3)), r"mask has shape \(4, 3\)"),
    "classes as sequences": (SequenceOutput.from_logits, (of(4, 3), of(4, dtype=INT)), r"\[batch, length, classes\]"),
    "one-hot tokens": (SequenceOutput.from_logits, (of(4, 5, 3), of(4, 5, 3, dtype=INT)), r"\.argmax\(-1\)"),
    "one-hot pixels": (SegmentationOutput.from_logits, (of(2, 4, 5, 3), of(2, 4, 5, 3)), r"\.argmax\(-1\)"),
    "pixels in a channel": (
        SegmentationOutput.from_logits,
        (of(2, 4, 5, 3), of(2, 4, 5, 1, dtype=INT)),
        r"targets\[\.\.\., 0\]$",
    ),
    "shifted targets": (SequenceOutput.from_logits, (of(4, 5, 3), of(4, 4, dtype=INT)), r"\(4, 4\)"),
    "float tokens": (SequenceOutput.from_logits, (of(4, 5, 3), of(4, 5)), "dtype float32; it needs integer"),
    "mask per place": (
        SequenceOutput.from_logits,
        (of(4, 5, 3), of(4, 5, dtype=INT), of(5)),
        r"mask has shape \(5,\)",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_shapes_and_dtypes_are_refused(name):
    make, arguments, pattern = WRONG[name]
    with pytest.raises(LearnerError, match=pattern) as error:
        make(*arguments)
    if "mask" not in name:
        assert make.__qualname__ in str(error.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda z: RegressionOutput.from_predictions(z, z),
        lambda z: weighted_mean(z, jnp.ones(2)),
        lambda z: ClassificationOutput.from_logits(z[None], jnp.zeros(1, jnp.int32)),
    ],
)
def test_complex_numbers_are_refused(make):
    """A loss of their real parts would train another model."""
    with raises_code("output-complex"):
        make(jnp.array([1 + 5j, 2], jnp.complex64))
