"""Tests of the warning about probabilities in place of logits, which train worse without an error."""

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from learner import ClassificationOutput, LearnerBuilder, MultiLabelOutput, SequenceOutput
from learner.training.checks.step_checks import trace_train

CLASSES = 3
BATCH = {
    "x": np.linspace(-1, 1, 8, dtype=np.float32).reshape(4, 2),
    "y": np.array([0, 1, 2, 0], np.int32),
}


def scores(model, batch):
    return batch["x"] @ model["w"]


def classify(function):
    return lambda model, batch: ClassificationOutput.from_logits(function(scores(model, batch)), batch["y"])


def labels(function):
    present = jax.nn.one_hot(BATCH["y"], CLASSES)
    return lambda model, batch: MultiLabelOutput.from_logits(function(scores(model, batch)), present)


def tokens(model, batch):
    logits = jax.nn.softmax(scores(model, batch)).reshape(2, 2, CLASSES)
    return SequenceOutput.from_logits(logits, batch["y"].reshape(2, 2))


def by_hand(scores):
    exponents = jnp.exp(scores - scores.max(-1, keepdims=True))
    return exponents / exponents.sum(-1, keepdims=True)


def attention(model, batch):
    """Return logits computed with an attention softmax, which are not probabilities."""
    mixed = jax.nn.softmax(scores(model, batch)) @ jnp.ones((CLASSES, CLASSES))
    return ClassificationOutput.from_logits(mixed, batch["y"])


FOUND = {
    "softmax": (classify(jax.nn.softmax), "softmax"),
    "jitted, of linen": (classify(jax.jit(flax.linen.softmax)), "softmax"),
    "by hand": (classify(by_hand), "softmax"),
    "half precision": (classify(lambda x: nnx.softmax(x.astype(jnp.bfloat16)).astype(jnp.float32)), "softmax"),
    "clipped": (classify(lambda x: jnp.clip(jax.nn.softmax(x) + 1e-7, 1e-7, 1.0)), "softmax"),
    "exponential of its logarithm": (classify(lambda x: jnp.exp(jax.nn.log_softmax(x))), "softmax"),
    "its logarithm": (classify(jax.nn.log_softmax), None),
    "over rows": (classify(lambda x: jax.nn.softmax(x, axis=0)), None),
    "added": (classify(lambda x: jax.nn.softmax(x) + x), None),
    "sigmoid": (labels(jax.nn.sigmoid), "sigmoid"),
    "tokens": (tokens, "softmax"),
    "logits": (classify(lambda x: x), None),
    "labels": (labels(lambda x: x), None),
    "log of softmax": (classify(jax.nn.log_softmax), None),
    "temperature": (classify(lambda x: x / jnp.exp(jnp.float32(0.5))), None),
    "exponentials": (classify(lambda x: jnp.exp(x) / 2), None),
    "rates": (classify(jnp.exp), None),
    "gate": (classify(lambda x: x * jax.nn.sigmoid(x)), None),
    "attention": (attention, None),
}


@pytest.mark.parametrize("name", FOUND)
def test_an_activation_before_the_loss_is_found(name):
    train, expected = FOUND[name]
    learner = LearnerBuilder("unused").build({"w": jnp.ones((2, CLASSES))}, optax.sgd, 0.1, train_step=train)
    assert trace_train(learner.definition.step, jax.eval_shape(learner.init), BATCH).activation == expected


@pytest.mark.full
def test_a_run_warns_about_activations(tmp_path):
    for function, warned in ((jax.nn.softmax, 1), (lambda x: x, 0)):
        directory = tmp_path / str(warned)
        builder = LearnerBuilder(directory).renderer(None).with_file_checkpointer(None)
        model = {"w": jnp.ones((2, CLASSES))}
        builder.build(model, optax.sgd, 0.1, train_step=classify(function)).fit([BATCH])
        warnings = [text for text in (directory / "experiment.log").read_text().splitlines() if "WARNING" in text]
        assert ["output of a softmax" in text for text in warnings] == [True] * warned
