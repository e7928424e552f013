"""Tests of the detection of invalid labels and non-finite weights and losses in steps."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from learner import ClassificationOutput, LearnerBuilder, SegmentationOutput, SequenceOutput
from learner.models.adapters import adapter_of
from learner.steps.finite import KINDS, LABELS, LOSS, WEIGHT, NonFinitePolicy
from learner.steps.measure import MetricCollection
from learner.steps.outputs import has_wrong_labels
from learner.steps.step import StepFunctions
from learner.steps.step_definition import step_fn
from tests.support.codes import raises_code

CLASSES = 3
X = np.random.default_rng(5).normal(size=(4, 2)).astype(np.float32)
SHAPES = {ClassificationOutput: (4,), SequenceOutput: (2, 2), SegmentationOutput: (1, 2, 2)}
all_outputs = pytest.mark.parametrize("output", SHAPES, ids=lambda output: output.__name__)


def labels_of(output, *labels, dtype=np.int32):
    return np.array(labels, dtype).reshape(SHAPES[output])


def loss_of(output, labels, mask=None):
    """Return an output, True if it has invalid labels, and the gradient of its loss, from one compiled program."""
    logits = np.concatenate([X, X[:, :1]], 1).reshape(*SHAPES[output], CLASSES)

    def loss(logits):
        out = output.from_logits(logits, labels, mask)
        return out.loss, (out, has_wrong_labels(out))

    (_, (out, wrong)), grad = jax.jit(jax.value_and_grad(loss, has_aux=True))(logits)
    return out, bool(wrong), np.asarray(grad).reshape(4, CLASSES)


@pytest.mark.full
@all_outputs
@pytest.mark.parametrize(
    ("label", "dtype"),
    [
        (-1, np.int32),
        *(pytest.param(*case, marks=pytest.mark.full) for case in [(-1, np.int8), (3, np.int32), (200, np.uint8)]),
    ],
)
def test_a_label_outside_the_classes_has_a_nan_loss(output, label, dtype):
    out, wrong, grad = loss_of(output, labels_of(output, 0, label, 1, 2, dtype=dtype))
    assert wrong
    assert np.isnan(out.loss)
    np.testing.assert_array_equal(np.isnan(grad).any(1), [False, True, False, False])
    eager = output.from_logits(out.logits, out.targets)
    assert np.isnan(eager.loss)


@pytest.mark.full
@all_outputs
def test_masked_labels_may_be_invalid(output):
    mask = labels_of(output, 1, 0, 1, 1)
    clean, _, expected = loss_of(output, labels_of(output, 0, 2, 1, 2), mask)
    out, wrong, grad = loss_of(output, labels_of(output, 0, -1, 1, 2), mask)
    assert not wrong
    assert out.loss == clean.loss
    np.testing.assert_array_equal(grad, expected)


@all_outputs
def test_valid_labels_have_the_loss_and_gradient_of_optax(output):
    labels = labels_of(output, 0, 1, 2, 2)
    out, wrong, grad = loss_of(output, labels)

    def loss(logits):
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    value, expected = jax.jit(jax.value_and_grad(loss))(out.logits)
    assert not wrong
    assert out.loss == value
    np.testing.assert_array_equal(grad, np.asarray(expected).reshape(4, CLASSES))


def test_labels_of_a_narrow_dtype_with_many_classes():
    """An int8 cannot represent the number of classes, 300."""
    out = ClassificationOutput.from_logits(jnp.zeros((2, 300)), jnp.array([127, 0], jnp.int8))
    assert np.isfinite(out.loss)
    assert not has_wrong_labels(out)


def test_soft_targets_are_not_labels():
    out = ClassificationOutput(jnp.float32(jnp.nan), jnp.zeros((2, 3)), jnp.full((2, 3), -1.0), jnp.float32(2))
    assert not has_wrong_labels(out)
    assert not has_wrong_labels(dataclasses.replace(out, targets=jnp.full((2, 3), -1)))


# -- in steps ----------------------------------------------------------------------------------------------------------


def classify(model, batch):
    out = ClassificationOutput.from_logits(batch["x"] @ model["w"], batch["y"])
    return dataclasses.replace(out, weight=out.weight * batch["scale"][0])


def a_step(policy="skip", **more):
    nothing = MetricCollection.of([])
    train = step_fn(None, "train_step", classify)
    adapter = adapter_of({"w": jnp.ones((2, CLASSES))})
    return StepFunctions(
        adapter, train, None, None, nothing, nothing, optimizer=optax.sgd, watch=NonFinitePolicy(policy), **more
    )


def batch_of(*labels, scale=1.0):
    return {"x": X, "y": np.array(labels, np.int32), "scale": np.full(4, scale, np.float32)}


GOOD, BAD = batch_of(0, 1, 2, 0), batch_of(0, -1, 2, 0)


def kind_after(batches, **more):
    step = a_step(accumulate=len(batches), **more)
    state = step.init(0.1, 0)
    after = jax.jit(lambda state, batches: step.unrolled_step(state, batches)[0])(state, batches)
    changed = not np.array_equal(after.params["w"], state.params["w"])
    return KINDS.get(int(after.extra["nonfinite"][3])), changed


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        ([BAD], (LABELS, False)),
        ([GOOD, BAD], (LABELS, False)),
        ([GOOD, batch_of(0, -1, 2, 0, scale=0)], (None, True)),  # the invalid label has no weight
        ([batch_of(0, -1, 2, 0, scale=0)], (None, False)),
        ([batch_of(0, 1, 2, 0, scale=np.nan)], (WEIGHT, False)),
        ([GOOD, batch_of(0, 1, 2, 0, scale=np.nan)], (WEIGHT, False)),
        ([GOOD | {"x": X * np.nan}], (LOSS, False)),
    ],
    ids=["labels", "labels of one micro-batch", "no weight", "all without weight", "weight", "weights", "loss"],
)
def test_the_mark_names_the_cause(batches, expected):
    assert kind_after(batches) == expected


@pytest.mark.full
@pytest.mark.parametrize(
    ("batch", "code", "values"),
    [
        (BAD, "step-nonfinite", ("2", "0..C-1", "Give the labels")),
        (batch_of(0, 1, 2, 0, scale=np.nan), "step-nonfinite", ("2", "Give the output a weight")),
        (batch_of(0, 1, 2, 0, scale=np.inf), "step-nonfinite", ("2", "Give the output a weight")),
    ],
    ids=["labels", "weight", "infinite weight"],
)
def test_the_error_of_a_run_names_the_remedy(tmp_path, batch, code, values):
    learner = (
        LearnerBuilder(tmp_path)
        .renderer(None)
        .build({"w": jnp.ones((2, CLASSES))}, optax.sgd, 0.1, train_step=classify)
    )
    with raises_code(code, *values) as caught:
        learner.fit([GOOD, batch, GOOD])
    assert "learning rate" not in str(caught.value)


@pytest.mark.full
def test_labels_on_every_device_are_checked(tmp_path):
    """The invalid label is in a row of the second of two devices."""
    learner = LearnerBuilder(tmp_path).renderer(None).devices(2).on_nonfinite("stop")
    learner = learner.build({"w": jnp.ones((2, CLASSES))}, optax.sgd, 0.1, train_step=classify)
    result = learner.fit([GOOD, batch_of(0, 1, 2, -1)])
    assert "labels outside of 0..C-1" in result.stopped_by
