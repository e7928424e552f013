"""Tests of metrics with several kinds of states in runs: values in the history, texts in files, several devices."""

import contextlib
import dataclasses
import json
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.stats
from sklearn import metrics as sklearn_metrics

from learner import ClassificationOutput, GeneratedOutput, Interrupter, LearnerBuilder, LearnerWarning
from learner.data import ArrayDataset
from learner.metrics import (
    AUROC,
    BLEU,
    AveragePrecision,
    BinnedAUROC,
    CalibrationError,
    CollectingMetric,
    ConfusionMatrix,
    FBeta,
    Head,
    Matthews,
    Recall,
    SpearmanCorrelation,
)

ROWS, CLASSES = 44, 3
RNG = np.random.default_rng(0)
X = RNG.normal(size=(ROWS, CLASSES)).astype(np.float32)
LABELS = RNG.integers(0, CLASSES, ROWS).astype(np.int32)
METRICS = [
    FBeta(CLASSES),
    Matthews(CLASSES),
    CalibrationError(),
    BinnedAUROC(CLASSES, bins=4000),
    AUROC(),
    Recall(["a", "b", "c"], average="none"),
    ConfusionMatrix(CLASSES),
]


def step(model: Any, batch: Any) -> ClassificationOutput:
    return ClassificationOutput.from_logits(batch["x"] * model["w"][None, :], batch["label"])


@pytest.mark.full
@pytest.mark.parametrize("devices", [1, 8])
def test_values_of_a_run_equal_sklearn(tmp_path: Any, devices: int) -> None:
    builder = LearnerBuilder(tmp_path / "run").renderer(None).devices(devices).with_batch_size(16)
    for metric in METRICS:
        builder = builder.metric_valid(metric)
    learner = builder.build({"w": jnp.ones(CLASSES)}, optax.sgd, 0.0, train_step=step, valid_step=step)
    data = ArrayDataset({"x": X, "label": LABELS})
    history = learner.fit(data, data).history
    best, probabilities = X.argmax(-1), np.exp(X) / np.exp(X).sum(-1, keepdims=True)
    for name, expected, tolerance in (
        ("F1", sklearn_metrics.f1_score(LABELS, best, average="macro"), 1e-6),
        ("Matthews", sklearn_metrics.matthews_corrcoef(LABELS, best), 1e-6),
        ("AUROC", sklearn_metrics.roc_auc_score(np.eye(CLASSES)[LABELS], probabilities), 1e-6),
        ("AUROC (4000 bins)", history["valid/AUROC"][-1], 2e-3),
    ):
        np.testing.assert_allclose(history[f"valid/{name}"][-1], expected, rtol=tolerance, atol=tolerance)
    assert 0 < history["valid/Calibration Error"][-1] < 1
    (matrix,) = (tmp_path / "run" / "valid" / "epoch-1" / "Confusion_Matrix.log").read_text().splitlines()
    shown = [line.split() for line in json.loads(matrix.removesuffix(",final")).splitlines()[1:]]
    expected = sklearn_metrics.confusion_matrix(LABELS, best)
    np.testing.assert_array_equal(np.array([row[1:] for row in shown], int), expected)
    recall = (tmp_path / "run" / "valid" / "epoch-1" / "Recall_(per_class).log").read_text()
    assert [line.split()[0] for line in json.loads(recall.removesuffix(",final\n")).splitlines()] == ["a", "b", "c"]


def test_a_checkpoint_of_skipped_steps_has_no_rows(tmp_path: Any) -> None:
    """The first of three batches is not finite, and the rows of the others count; see Orbax about empty arrays."""
    x = np.where(np.arange(ROWS)[:, None] < 16, np.float32(np.nan), X)
    data = [{"x": x[i : i + 16], "label": LABELS[i : i + 16]} for i in range(0, ROWS, 16)]

    def builder() -> LearnerBuilder:
        builder = LearnerBuilder(tmp_path / "run").renderer(None).metric_train(AUROC()).on_nonfinite("skip")
        return builder.num_epochs(1).with_file_checkpointer(every_steps=1)

    interrupter = Interrupter()
    stopped = builder().interrupter(interrupter).every(1, lambda info, model: interrupter.stop())
    for part in (stopped, builder().num_steps(1).resume(), builder().resume()):
        learner = part.build({"w": jnp.ones(CLASSES)}, optax.sgd, 0.0, train_step=step)
        with contextlib.nullcontext() if part is not stopped else pytest.warns(LearnerWarning, match="skipped"):
            history = learner.fit(data).history
    probabilities = np.exp(X[16:]) / np.exp(X[16:]).sum(-1, keepdims=True)
    expected = sklearn_metrics.roc_auc_score(np.eye(CLASSES)[LABELS[16:]], probabilities)
    np.testing.assert_allclose(history["train/AUROC"][-1], expected, rtol=1e-6)


def test_rank_metrics_of_tokens_in_batches_of_several_lengths(tmp_path: Any) -> None:
    """As with `Pad(buckets=...)`: the padding behind shorter rows counts in no metric, also in parts of the tokens."""
    lengths = (3, 5, 2)
    ends = np.cumsum([4 * length for length in lengths])
    x, labels = RNG.normal(size=(ends[-1], CLASSES)).astype(np.float32), RNG.integers(0, CLASSES, ends[-1])
    pairs = zip(np.split(x, ends[:-1]), np.split(labels.astype(np.int32), ends[:-1]), strict=True)
    data = [{"x": a.reshape(4, -1, CLASSES), "label": b.reshape(4, -1)} for a, b in pairs]

    def tokens(model: Any, batch: Any) -> dict[str, Any]:
        logits = batch["x"] * model["w"][None, None, :]
        ranks = {"predictions": logits[..., :1], "targets": batch["label"][..., None].astype(jnp.float32)}
        return {"loss": logits.mean(), "first": ranks, "logits": logits, "targets": batch["label"]}

    metrics = [AUROC(), AveragePrecision(), Head(SpearmanCorrelation(), "first")]
    builder = LearnerBuilder(tmp_path / "run").renderer(None).metrics(*metrics).num_epochs(1)
    learner = builder.build({"w": jnp.ones(CLASSES)}, optax.sgd, 0.0, train_step=tokens)
    history = learner.fit(data).history
    one_hot, probabilities = np.eye(CLASSES)[labels], np.exp(x) / np.exp(x).sum(-1, keepdims=True)
    for name, expected in (
        ("AUROC", sklearn_metrics.roc_auc_score(one_hot, probabilities)),
        ("Average Precision", sklearn_metrics.average_precision_score(one_hot, probabilities)),
        (metrics[-1].name, scipy.stats.spearmanr(x[:, 0], labels).statistic),
    ):
        np.testing.assert_allclose(history[f"train/{name}"][-1], expected, rtol=1e-5)


class OfKept(CollectingMetric):
    """The mean of the losses of the rows that a mask keeps, if there is one."""

    name, numeric = "Kept", True

    def collect(self, output: Any) -> Any:
        rows = {"loss": optax.softmax_cross_entropy_with_integer_labels(output.logits, output.targets)}
        return rows if output.mask is None else {**rows, "mask": output.mask}

    def compute(self, rows: Any) -> float:
        return float(np.mean(rows["loss"][rows.get("mask", np.ones(len(rows["loss"]), bool))]))


def test_splits_may_collect_other_arrays(tmp_path):
    """Also if a validation interrupts an epoch, whose rows are saved."""

    def step(params, batch, mask=None):
        return ClassificationOutput.from_logits(batch["x"] * params["w"], batch["y"], mask)

    def valid_step(params, batch):
        return step(params, batch, batch["y"] > 0)

    builder = LearnerBuilder(tmp_path).metrics(OfKept()).renderer(None).with_batch_size(8).valid_every(steps=3)
    builder.with_file_checkpointer(every_steps=3)
    learner = builder.build({"w": jnp.ones(())}, optax.sgd, 0.0, train_step=step, valid_step=valid_step)
    history = learner.fit({"x": X, "y": LABELS}, {"x": X, "y": LABELS}).history
    losses = sklearn_metrics.log_loss(LABELS, np.exp(X) / np.exp(X).sum(1, keepdims=True))
    kept = LABELS > 0
    shares = np.exp(X[kept]) / np.exp(X[kept]).sum(1, keepdims=True)
    np.testing.assert_allclose(history["train/Kept"][-1], losses, rtol=1e-5)
    np.testing.assert_allclose(
        history["valid/Kept"][-1], sklearn_metrics.log_loss(LABELS[kept], shares, labels=range(CLASSES)), rtol=1e-5
    )


class Numbered(CollectingMetric):
    """The mean of rows that all have the number of the metric."""

    numeric = True

    def __init__(self, number: int) -> None:
        self.number, self.name = number, f"Number {number}"

    def collect(self, output: Any) -> Any:
        return jnp.full(len(output.logits), self.number)

    def compute(self, rows: Any) -> float:
        return float(np.mean(rows))


@pytest.mark.full
def test_many_metrics_keep_their_rows_when_an_epoch_is_resumed_twice(tmp_path: Any) -> None:
    data = [{"x": X[i : i + 11], "label": LABELS[i : i + 11]} for i in range(0, ROWS, 11)]
    for steps in (1, 2, 3):
        builder = LearnerBuilder(tmp_path / "run").renderer(None).num_steps(steps).resume()
        builder.metric_train(*map(Numbered, range(12))).with_file_checkpointer(every_steps=1)
        history = builder.build({"w": jnp.ones(CLASSES)}, optax.sgd, 0.0, train_step=step).fit(data).history
    assert [history[f"train/Number {number}"][-1] for number in range(12)] == list(range(12))


@pytest.mark.full
def test_bleu_in_a_resumed_epoch_with_several_lengths(tmp_path: Any) -> None:
    """Predictions 1 2 3 and 5 6 for targets 1 2 4 and 5 6: 4 of 5 tokens match, and 2 of 3 pairs."""
    pairs = [([1, 2, 3], [1, 2, 4]), ([5, 6], [5, 6])]
    data = [{"x": np.array([x], np.int32), "y": np.array([y], np.int32)} for x, y in pairs]

    def copy_step(model: Any, batch: Any) -> GeneratedOutput:
        return dataclasses.replace(GeneratedOutput.of(batch["x"], batch["y"]), loss=model["w"].sum())

    def builder() -> LearnerBuilder:
        builder = LearnerBuilder(tmp_path / "run").renderer(None).metrics(BLEU(order=2)).num_epochs(1)
        return builder.with_file_checkpointer(every_steps=1)

    for part in (builder().num_steps(1), builder().resume()):
        learner = part.build({"w": jnp.ones(2)}, optax.sgd, 0.0, train_step=copy_step, valid_step=copy_step)
        history = learner.fit(data, data).history
    for split in ("train", "valid"):
        np.testing.assert_allclose(history[f"{split}/BLEU-2"][-1], (4 / 5 * 2 / 3) ** 0.5, rtol=1e-6)
