"""Tests of Dice and IoU against values by hand and scikit-learn."""

import types

import jax.numpy as jnp
import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics

from learner.errors import LearnerError
from learner.metrics import Dice, DicePerClass, Info, IoU, IoUPerClass
from learner.metrics.counts import Count
from learner.metrics.overlaps import Overlap
from learner.steps.outputs import SegmentationOutput
from tests.support.codes import raises_code

INFO = Info(jnp.int32(0), jnp.float32(1))


def output(predictions, targets, mask=None):
    """Return an output of 8 pixels, so that one program is compiled; further pixels are masked."""
    sides = [np.asarray(x).reshape(1, -1) for x in (predictions, targets)]
    mask = np.ones(sides[1].shape, bool) if mask is None else np.broadcast_to(np.array(mask, bool), sides[1].shape)
    padding = max(8 - mask.size, 0)
    arrays = [jnp.asarray(np.pad(x, [(0, 0), (0, padding)])) for x in (*sides, mask)]
    return types.SimpleNamespace(**dict(zip(("predictions", "targets", "mask"), arrays, strict=True)))


def value(metric, *outputs):
    state = metric.init()
    for batch in outputs:
        state = metric.merge(state, metric.update(metric.init(), batch, INFO))
    return metric.compute(state)


TWO = output(
    [[[0, 0, 1], [1, 2, 2]]], [[[0, 1, 1], [1, 1, 2]]]
)  # intersection and union of class 0: 1 of 2; of class 1: 2 of 4; of class 2: 1 of 2


@pytest.mark.full
def test_by_hand():
    np.testing.assert_allclose(value(IoUPerClass(3), TWO), [1 / 2, 2 / 4, 1 / 2])
    np.testing.assert_allclose(value(DicePerClass(3), TWO), [2 / 3, 4 / 6, 2 / 3])
    assert value(IoU(3), TWO) == 0.5
    assert value(Dice(3), TWO) == pytest.approx(2 / 3)


def test_absent_classes_do_not_count():
    assert np.isnan(value(IoUPerClass(4), TWO)[3])
    assert value(IoU(4), TWO) == 0.5
    one = output([[3, 3]], [[0, 3]])
    np.testing.assert_array_equal(value(IoUPerClass(4), one), [0, np.nan, np.nan, 0.5])
    assert value(IoU(4), one) == 0.25


def test_counts_are_summed_over_images():
    """The mean over images would be 0.75."""
    small, large = output([[1]], [[1]]), output([[1, 1, 1, 1]], [[1, 1, 0, 0]])
    assert value(IoUPerClass(2), small, large)[1] == pytest.approx(3 / 5)


def test_masks_and_ignored_labels():
    masked = output([[0, 1, 1]], [[0, 1, 0]], [[1, 1, 0]])
    assert value(Dice(2), masked) == 1
    ignored = output([[0, 1, 1]], [[0, 1, 255]])
    assert value(IoU(2, ignore_label=255), ignored) == 1
    assert value(IoU(2), ignored) == 0.75  # the last label is no class: a false positive of class 1
    assert np.isnan(value(Dice(2), output([[0, 1]], [[0, 1]], [0])))
    assert np.isnan(value(Dice(2)))
    assert (IoU(2, ignore_label=255).name, IoUPerClass(2).name) == ("IoU ignoring 255", "IoU per Class")


@pytest.mark.full
def test_two_classes_as_booleans():
    assert value(IoU(2), output([[True, True]], [[True, False]])) == 0.25


def test_counts_are_exact():
    many = Count(jnp.zeros(2, jnp.uint32), jnp.full(2, 2**25, jnp.uint32))
    state = Dice(2).update(Overlap(many, many), output([0, 0, 0], [0, 0, 1]), INFO)
    assert state.both.low.tolist() == [2**25 + 2, 2**25]
    assert state.one.low.tolist() == [2**25 + 1, 2**25 + 1]


def test_tables():
    assert (
        IoUPerClass(3, names=["sky", "tree", "lake"]).text(value(IoUPerClass(3), TWO)) == "sky 0.5, tree 0.5, lake 0.5"
    )
    assert not IoUPerClass(3).numeric
    for names in (3, "ab", [0, 1]):
        with raises_code("metric-class-names-type", "DicePerClass", classes=2):
            DicePerClass(2, names=names)
    with raises_code("metric-class-names-count", "DicePerClass", "1", classes=2):
        DicePerClass(2, names=["one"])
    with raises_code("metric-class-names-twice", "IoUPerClass"):
        IoUPerClass(["a", "b"], names=["c", "d"])


@pytest.mark.full
def test_segmentation_outputs():
    logits = jnp.array([[[[0.0, 1.0], [3.0, 1.0]]]])
    segmentation = SegmentationOutput.from_logits(logits, jnp.array([[[1, 0]]]))
    assert segmentation.predictions.tolist() == [[[1, 0]]]
    expected = -np.log([np.exp(1) / (1 + np.exp(1)), np.exp(3) / (np.exp(3) + np.exp(1))]).mean()
    assert float(segmentation.loss) == pytest.approx(expected, rel=1e-6)
    assert value(IoU(2), segmentation) == 1
    half = SegmentationOutput.from_logits(
        logits.at[0, 0, 1].set(jnp.nan), jnp.array([[[1, -1]]]), jnp.array([[[1, 0]]])
    )
    assert float(half.loss) == pytest.approx(np.log1p(np.exp(-1)), rel=1e-6)
    assert value(IoU(2), half) == 1
    with pytest.raises(LearnerError, match=r"SegmentationOutput\.from_logits got logits of shape"):
        SegmentationOutput.from_logits(logits, jnp.array([[1, 0]]))


def test_classes_by_name():
    names = ["sky", "tree", "lake"]
    assert value(IoU(names), TWO) == value(IoU(3), TWO)
    assert IoUPerClass(names).text(value(IoUPerClass(names), TWO)) == "sky 0.5, tree 0.5, lake 0.5"


@pytest.mark.parametrize("classes", [0, -1, 2.0, "2", True, None, [], ["a", "a"]])
def test_wrong_classes(classes):
    with raises_code("metric-arguments-wrong", "IoU"):
        IoU(classes)


def test_scores_are_refused():
    with raises_code("metric-overlap-shapes", "Dice", "float32[1, 2]"):
        value(Dice(2), types.SimpleNamespace(predictions=jnp.ones((1, 2)), targets=jnp.ones((1, 2), int)))
    with raises_code("metric-overlap-shapes", "Dice", "int32[1, 2]", "int32[1, 1]"):
        value(Dice(2), types.SimpleNamespace(predictions=jnp.ones((1, 2), int), targets=jnp.ones((1, 1), int)))


@pytest.mark.full
def test_fewer_classes_than_logits_are_refused():
    """Pixels of the third class would not count, and the mean over the others would look good."""
    segmentation = SegmentationOutput.from_logits(jnp.zeros((1, 1, 2, 3)), jnp.array([[[0, 2]]]))
    with raises_code("metric-classes-mismatch", "IoU", "3", "classes=2"):
        value(IoU(2), segmentation)
    assert value(IoU(4), segmentation) == pytest.approx((1 / 2 + 0) / 2)


@pytest.mark.full
def test_values_equal_scikit_learn():
    rng = np.random.default_rng(1)
    true, predicted = rng.integers(0, 4, (2, 3, 9, 8))
    predicted = np.where(rng.random(true.shape) < 0.5, true, predicted)
    for classes in (4, 6):
        options = {"labels": range(classes), "zero_division": np.nan}
        jaccard = sklearn_metrics.jaccard_score(true.ravel(), predicted.ravel(), average=None, labels=range(4))
        f1 = sklearn_metrics.f1_score(true.ravel(), predicted.ravel(), average=None, **options)
        predicted_output = output(predicted.astype(np.int32), true.astype(np.int32))
        np.testing.assert_allclose(value(DicePerClass(classes), predicted_output), f1, rtol=1e-6)
        np.testing.assert_allclose(value(IoUPerClass(classes), predicted_output)[:4], jaccard, rtol=1e-6)
        assert float(value(Dice(classes), predicted_output)) == pytest.approx(np.nanmean(f1), rel=1e-6)
