"""Losses over pairs of rows: a run warns where a step sees a part of the batch, and `Sharded` has all of it."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from learner import LearnerBuilder, RegressionOutput
from learner.steps.outputs import weighted_mean
from learner.strategies import Replicated, Sharded, SingleDevice
from learner.training.startup import warning_of_pairs
from learner.training.step_checks import rows_on_two_axes

ROWS, WIDTH = 8, 8  # the same by chance
_rng = np.random.default_rng(4)
BATCH = {name: _rng.normal(size=(ROWS, WIDTH)).astype(np.float32) for name in ("a", "b")}


def model():
    return {"w": jnp.eye(WIDTH)}


def output(each):
    loss, weight = weighted_mean(each, None)
    return RegressionOutput(loss, each, each, jnp.float32(weight))


def in_batch_negatives(model, batch):
    logits = (batch["a"] @ model["w"]) @ batch["b"].T
    return output(optax.softmax_cross_entropy_with_integer_labels(logits, jnp.arange(len(logits))))


def two_views(model, batch):
    """NT-Xent: 2n rows against 2n rows, inside of a jitted function."""
    rows = jnp.concatenate([batch["a"], batch["b"]]) @ model["w"]
    logits = jax.jit(lambda x: jnp.where(jnp.eye(len(x), dtype=bool), -1e9, x @ x.T))(rows)
    positives = jnp.roll(jnp.arange(len(rows)), len(batch["a"]))
    return output(optax.softmax_cross_entropy_with_integer_labels(logits, positives))


def mean_over_rows(model, batch):
    """Its weights and logits are `[8, 8]`, too."""
    hidden = jnp.tanh(batch["a"] @ (model["w"] @ model["w"]))
    return output(jnp.square(hidden - batch["b"]).mean(1))


def attention_of_tokens(model, batch):
    """Each row is a sequence of as many tokens as there are rows."""
    tokens = batch["a"][:, :, None] * jnp.ones((1, 1, 2))
    scores = jax.nn.softmax(tokens @ tokens.swapaxes(1, 2))
    return output((scores @ tokens).mean((1, 2)) * model["w"].sum())


def knows_its_rows(model, batch):
    return mean_over_rows(model, jax.tree.map(lambda x: x.reshape(ROWS, WIDTH), batch))


def step_of(train, accumulate=1):
    builder = LearnerBuilder("unused").grads_accumulation(accumulate)
    learner = builder.build(model(), optax.sgd, 0.1, train_step=train)
    return learner.definition.step, jax.eval_shape(learner.init)


@pytest.mark.parametrize(
    ("train", "expected"),
    [
        (in_batch_negatives, "float32[8, 8]"),
        (two_views, "[16, 16]"),
        (mean_over_rows, None),
        (attention_of_tokens, None),
        (knows_its_rows, None),
    ],
)
def test_rows_on_two_axes_are_found(train, expected):
    found = rows_on_two_axes(*step_of(train), BATCH)
    assert found is None if expected is None else expected in found


@pytest.mark.parametrize(
    ("strategy", "accumulate", "parts"),
    [
        (lambda: SingleDevice(), 1, None),
        (lambda: Sharded(devices=2), 1, None),
        (lambda: Replicated(2), 1, "each device of Replicated sees its own rows alone: .*strategy\\(Sharded"),
        (lambda: Sharded(devices=2), 4, "each of 4 micro-batches sees its own rows alone: .*a larger batch_size"),
        (lambda: Replicated(2), 4, "each device .* and each of 4 micro-batches sees its own rows alone: "),
    ],
    ids=["one device", "sharded", "replicated", "accumulated", "both"],
)
def test_parts_of_a_batch_are_warned_of(strategy, accumulate, parts):
    text = warning_of_pairs(*step_of(in_batch_negatives, accumulate), BATCH, strategy())
    assert warning_of_pairs(*step_of(mean_over_rows, accumulate), BATCH, strategy()) is None
    if parts is None:
        assert text is None
    else:
        assert re.search(parts, text), text


def fit(directory, strategy, accumulate=1):
    builder = LearnerBuilder(directory).renderer(None).with_file_checkpointer(None).strategy(strategy)
    learner = builder.grads_accumulation(accumulate).build(model(), optax.sgd, 0.1, train_step=in_batch_negatives)
    half = {name: x[: ROWS // accumulate] for name, x in BATCH.items()}
    result = learner.fit([half] * accumulate)
    log = (directory / "experiment.log").read_text()
    return result.history["train/Loss"][0], [line for line in log.splitlines() if "rows on two axes" in line]


@pytest.mark.full
def test_sharded_has_the_numbers_of_one_device_and_replicated_warns(tmp_path):
    expected = float(in_batch_negatives(model(), BATCH).loss)
    alone, quiet = fit(tmp_path / "one", SingleDevice())
    sharded, also_quiet = fit(tmp_path / "sharded", Sharded(devices=2))
    replicated, warnings = fit(tmp_path / "replicated", Replicated(2))
    np.testing.assert_allclose([alone, sharded], expected, rtol=1e-5)
    assert abs(replicated - expected) > 0.1  # which is why
    assert quiet == also_quiet == []
    assert len(warnings) == 1
    assert "WARNING" in warnings[0]
