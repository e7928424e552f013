"""Tests of Head, which measures one head of a model with several."""

import copy
import inspect
import itertools
import pickle
import types

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sklearn import metrics as sklearn_metrics

from learner import ClassificationOutput, LearnerBuilder, Output, RegressionOutput
from learner.events import SplitEnded
from learner.loggers import MemoryLogger
from learner.metrics import (
    AUROC,
    R2,
    Accuracy,
    Aggregate,
    By,
    ConfusionMatrix,
    FBeta,
    FieldMean,
    GradientNorm,
    Head,
    Info,
    IterationSpeed,
    Loss,
    MeanAbsoluteError,
    Subset,
)
from tests.support.codes import raises_code
from tests.support.stopped import some

ROWS = 90
rng = np.random.default_rng(0)
DATA = {
    "x": rng.normal(size=(ROWS, 4)).astype(np.float32),
    "genre": rng.integers(3, size=ROWS).astype(np.int32),
    "rating": rng.normal(size=ROWS).astype(np.float32),
    "has_genre": rng.random(ROWS) < 0.7,
    "has_rating": rng.random(ROWS) < 0.6,
    "group": (np.arange(ROWS) % 2).astype(np.int32),
}
MODEL = {"genre": rng.normal(size=(4, 3)).astype(np.float32), "rating": rng.normal(size=4).astype(np.float32)}


def step(model, batch):
    genre = ClassificationOutput.from_logits(batch["x"] @ model["genre"], batch["genre"], batch["has_genre"])
    rating = RegressionOutput.from_predictions(batch["x"] @ model["rating"], batch["rating"], batch["has_rating"])
    loss = (genre.loss * genre.weight + rating.loss * rating.weight) / len(batch["x"])
    fields = {"logits": genre.logits, "targets": genre.targets}
    heads = {"genre": genre, "rating": rating, "fields": fields}
    return {"loss": loss, "weight": len(batch["x"]), "group": batch["group"], **heads}


def fit(directory, *metrics, step=step, splits=("train", "valid"), **options):
    builder = LearnerBuilder(directory).with_batch_size(24).num_epochs(1).renderer(None)
    for metric, split in itertools.product(metrics, splits):
        getattr(builder, f"metric_{split}")(metric)
    for name, value in options.items():
        getattr(builder, name)(value)
    return builder.build(MODEL, optax.sgd, 0.1, train_step=step, valid_step=step).fit(DATA, DATA)


def expected(model):
    """Return the value of each metric by scikit-learn and NumPy over all rows."""
    logits, predictions = DATA["x"] @ np.asarray(model["genre"]), DATA["x"] @ np.asarray(model["rating"])
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    known, rated, group = DATA["has_genre"], DATA["has_rating"], DATA["group"] == 1
    genre, rating, hits = DATA["genre"], DATA["rating"], logits.argmax(1) == DATA["genre"]
    return {
        "Accuracy of genre": hits[known].mean(),
        "F1 of genre": sklearn_metrics.f1_score(genre[known], logits.argmax(1)[known], average="macro"),
        "AUROC of genre": sklearn_metrics.roc_auc_score(genre[known], probabilities[known], multi_class="ovr"),
        "R2 of rating": sklearn_metrics.r2_score(rating[rated], predictions[rated]),
        "Mean Absolute Error of rating": np.abs(rating - predictions)[rated].mean(),
        "Loss of rating": np.square(rating - predictions)[rated].mean(),
        "Accuracy of fields": hits.mean(),
        "Accuracy of genre of group 1": hits[known & group].mean(),
    }


@pytest.mark.full
@pytest.mark.parametrize(
    "options",
    some([{"splits": ["valid"]}, {"devices": 3}, {"grads_accumulation": 2}], [{"splits": ["valid"]}]),
    ids=str,
)
def test_metrics_of_each_head_in_a_run(tmp_path, options):
    memory = MemoryLogger()
    genre = (Head(metric, "genre") for metric in (Accuracy(), FBeta(3), AUROC(), ConfusionMatrix(3)))
    rating = (Head(metric, "rating") for metric in (R2(), MeanAbsoluteError(), Loss()))
    others = Head(Accuracy(), "fields"), Subset(Head(Accuracy(), "genre"), "group", 1)
    result = fit(tmp_path, *genre, *rating, *others, metric_loggers=memory, **options)
    known = expected(result.model)
    values = {name: result.history[f"valid/{name}"][-1] for name in known}
    assert values == pytest.approx(known, rel=1e-5)
    _, valid = memory.of(SplitEnded)
    assert list(valid.pictures) == ["Confusion Matrix of genre"]
    assert valid.pictures["Confusion Matrix of genre"]().shape == (384, 384)


def values_of(metric, output, weight=4.0):
    state = metric.update(metric.init(), output, Info(jnp.int32(0), jnp.float32(weight)))
    return metric.compute(state)


HITS = types.SimpleNamespace(logits=jnp.eye(4), targets=jnp.array([0, 1, 0, 3]))


def test_masks_of_output_and_head_are_combined():
    head = types.SimpleNamespace(**vars(HITS), mask=jnp.array([1, 1, 1, 0]))
    assert values_of(Head(Accuracy(), "a"), Output(jnp.float32(0), a=head)) == np.float32(2 / 3)
    output = Output(jnp.float32(0), a=head, mask=jnp.array([0, 1, 1, 1]))
    assert values_of(Head(Accuracy(), "a"), output) == 0.5
    output = Output(jnp.float32(0), a=HITS, mask=jnp.array([0, 0, 1, 1]))
    assert values_of(Head(Accuracy(), "a"), output) == 0.5


def test_heads_and_groups_may_be_nested():
    head = types.SimpleNamespace(**vars(HITS), group=jnp.array([0, 0, 1, 1]))
    output = Output(jnp.float32(0), a=head, group=jnp.array([0, 1, 1, 1]))
    assert values_of(Head(By(Accuracy(), "group", ["x", "y"]), "a"), output).tolist() == [1.0, 0.5]
    assert values_of(By(Head(Accuracy(), "a"), "group", ["x", "y"]), output).tolist() == [1.0, np.float32(2 / 3)]


def test_loss_is_weighted_by_its_head():
    metric, state = Head(Loss(), "a"), Head(Loss(), "a").init()
    for loss, weight in ((1.0, 3.0), (5.0, 1.0)):
        output = Output(jnp.float32(0), a={"loss": jnp.float32(loss), "weight": weight})
        state = metric.update(state, output, Info(jnp.int32(0), jnp.float32(8)))
    assert metric.compute(state) == 2.0
    output = Output(jnp.float32(0), a={"kl": jnp.float32(3)})
    assert values_of(Head(FieldMean("kl"), "a"), output) == 3.0


def test_attributes_are_those_of_the_metric():
    metric = Head(MeanAbsoluteError(), "rating")
    assert (metric.name, metric.higher_is_better) == ("Mean Absolute Error of rating", False)
    assert metric.fields == ("rating.predictions", "rating.targets")
    table, plain = Head(ConfusionMatrix(4), "a"), ConfusionMatrix(4)
    value = values_of(table, Output(jnp.float32(0), a=HITS))
    assert not table.numeric
    assert table.text(value) == plain.text(values_of(plain, HITS))
    assert (table.arrays(value) == plain.arrays(value)).all()


@pytest.mark.parametrize("metric", [GradientNorm(), IterationSpeed(), Accuracy], ids=str)
def test_metrics_without_an_output_are_refused(metric):
    with raises_code("metric-head-type"):
        Head(metric, "genre")


def negated(x):
    return -x


@pytest.mark.parametrize("metric", [Accuracy(), AUROC()], ids=str)
@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy, lambda metric: pickle.loads(pickle.dumps(metric))])
def test_wrappers_can_be_copied(metric, make):
    combined = Aggregate("Score", {"x": metric}, negated)
    for wrapper in (Head(metric, "genre"), Subset(metric, "group", 1, "one"), By(metric, "group", ["a"]), combined):
        copied = make(wrapper)
        assert (type(copied), copied.name, copied.fields) == (type(wrapper), wrapper.name, wrapper.fields)


def test_signatures_of_wrappers():
    shown = [list(inspect.signature(wrapper).parameters) for wrapper in (Head, Subset, By, Aggregate)]
    assert shown[:3] == [["metric", "head", "name"], ["metric", "by", "value", "name"], ["metric", "by", "names"]]
    assert shown[3] == ["name", "metrics", "function", "higher_is_better", "unit"]


def test_loss_of_a_head_has_no_groups():
    with raises_code("metric-group-whole-batch"):
        Subset(Head(Loss(), "genre"), "group", 1)


def test_wrong_mask_shapes():
    output = Output(jnp.float32(0), a=types.SimpleNamespace(**vars(HITS), mask=jnp.ones(4)), mask=jnp.ones(3))
    with raises_code("metric-head-mask-shape", head="a"):
        values_of(Head(Accuracy(), "a"), output)


@pytest.mark.parametrize(("metric", "missing"), [(R2(), "genre.predictions"), (AUROC(), "genre.logits")], ids=str)
def test_missing_fields(tmp_path, metric, missing):
    def without(model, batch):
        return {"loss": (batch["x"] @ model["rating"]).sum(), "genre": {"targets": batch["genre"]}}

    with raises_code("metric-missing-field", missing):
        fit(tmp_path, Head(metric, "genre"), step=without)


def test_head_of_a_subset_has_a_picture():
    assert callable(Head(Subset(ConfusionMatrix(3), "group", 1), "genre").picture)


@pytest.mark.parametrize("metric", [Accuracy(), AUROC()])
def test_the_name_may_be_chosen(metric):
    for head in (Head(metric, "genre", name="genre"), copy.copy(Head(metric, "genre", name="genre"))):
        assert (head.name, head.fields) == ("genre", tuple(f"genre.{field}" for field in metric.fields) or ("genre",))
    assert Head(metric, "genre").name == f"{metric.name} of genre"
