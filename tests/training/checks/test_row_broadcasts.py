"""Tests of the warning about losses of shape `[rows, rows]` where `[rows]` was intended."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from learner import LearnerBuilder
from learner.training.checks.step_checks import trace_train

ROWS = 4
BATCH = {
    "x": np.linspace(-1, 1, 12, dtype=np.float32).reshape(ROWS, 3),
    "y": np.arange(ROWS, dtype=np.float32),
}


@pytest.fixture(autouse=True)
def broadcasts_as_numpy_does():
    """Allow rank promotion, which is an error in other tests."""
    with jax.numpy_rank_promotion("allow"):
        yield


def model():
    return {"w": jnp.ones((3, 1)), "score": jnp.ones((3, ROWS))}


def subtracted(model, batch):
    return {"loss": ((batch["x"] @ model["w"] - batch["y"]) ** 2).mean()}


def of_optax(model, batch):
    return {"loss": jax.jit(optax.sigmoid_binary_cross_entropy)(batch["x"] @ model["w"], batch["y"]).mean()}


def the_other_way(model, batch):
    return {"loss": jnp.abs((batch["x"] @ model["w"])[:, 0] - batch["y"][:, None]).mean()}


def of_one_shape(model, batch):
    return {"loss": ((batch["x"] @ model["w"] - batch["y"][:, None]) ** 2).mean()}


def ranking(model, batch):
    """Compare pairs of scores with pairs of labels."""
    score = (batch["x"] @ model["w"])[:, 0]
    order = batch["y"][:, None] > batch["y"][None, :]
    return {"loss": jnp.where(order, jax.nn.softplus(score[None, :] - score[:, None]), 0.0).mean()}


def negatives(model, batch):
    return {"loss": optax.softmax_cross_entropy(batch["x"] @ model["score"], jnp.eye(ROWS)).mean()}


def only_for_a_metric(model, batch):
    return of_one_shape(model, batch) | {"error": subtracted(model, batch)["loss"]}


def broadcast_of(train):
    learner = LearnerBuilder("unused").build(model(), optax.sgd, 0.1, train_step=train)
    return trace_train(learner.definition.step, jax.eval_shape(learner.init), BATCH).broadcast


@pytest.mark.parametrize(
    ("train", "expected"),
    [
        (subtracted, True),
        (of_optax, True),
        (the_other_way, True),
        (of_one_shape, False),
        (ranking, False),
        (negatives, False),
        (only_for_a_metric, False),
    ],
)
def test_predictions_broadcast_against_all_targets_are_found(train, expected):
    assert (broadcast_of(train) is not None) == expected


@pytest.mark.full
def test_a_run_warns_about_broadcast_rows(tmp_path):
    """The loss is the mean over 16 pairs instead of four rows."""
    pairs = ((BATCH["x"].sum(1)[:, None] - BATCH["y"]) ** 2).mean()
    for train, loss, warned in ((subtracted, pairs, 1), (of_one_shape, None, 0)):
        directory = tmp_path / train.__name__
        builder = LearnerBuilder(directory).renderer(None).with_file_checkpointer(None)
        result = builder.build(model(), optax.sgd, 0.1, train_step=train).fit([BATCH])
        warnings = [text for text in (directory / "experiment.log").read_text().splitlines() if "WARNING" in text]
        assert [f"float32[{ROWS}, 1]" in text for text in warnings] == [True] * warned
        if loss is not None:
            np.testing.assert_allclose(result.history["train/Loss"][0], loss, rtol=1e-6)
