"""Tests of the warning about constant random keys inside a step, which give each step the same numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from learner import LearnerBuilder, RegressionOutput
from learner.training.checks.step_checks import trace_train

BATCH = {"x": np.ones((4, 3), np.float32), "y": np.zeros(4, np.float32)}
KEY = jax.random.PRNGKey(3)


def model():
    return {"w": jnp.ones(3)}


def noisy(key_of, dropped=False):
    """Return a step that adds noise with the key `key_of(rng)`; if `dropped`, the loss does not depend on it."""

    def step(model, batch, rng):
        noise = jax.random.normal(key_of(rng), batch["x"].shape)
        output = RegressionOutput.from_predictions((batch["x"] + (0 if dropped else noise)) @ model["w"], batch["y"])
        return {"loss": output.loss, "noise": noise}

    return step


def projected(model, batch):
    """Use constant random numbers that do not belong to rows."""
    return RegressionOutput.from_predictions(batch["x"] @ (model["w"] * jax.random.normal(KEY, (3,))), batch["y"])


def featured(model, batch):
    """Use constant random features, as many as there are rows."""
    features = jnp.cos(batch["x"] @ jax.random.normal(KEY, (4, 3)).T)
    return RegressionOutput.from_predictions(features @ jnp.ones((4, 3)) @ model["w"], batch["y"])


def for_four_rows(model, batch):
    return RegressionOutput.from_predictions((batch["x"] + jax.random.normal(KEY, (4, 3))) @ model["w"], batch["y"])


def mapped(model, batch):
    """Draw the noise of each row with its own key, as Equinox layers do."""
    noise = jax.vmap(lambda key: jax.random.normal(key, (3,)))(jax.random.split(KEY, len(batch["x"])))
    return RegressionOutput.from_predictions((batch["x"] + noise) @ model["w"], batch["y"])


def jitted(model, batch):
    drawn = jax.jit(lambda x: jnp.where(jax.random.bernoulli(jax.random.key(1), 0.5, x.shape), x, 0))(batch["x"])
    return RegressionOutput.from_predictions(drawn @ model["w"], batch["y"])


FOUND = {
    "made": (noisy(lambda rng: jax.random.key(0)), True),
    "split": (noisy(lambda rng: jax.random.split(KEY)[1]), True),
    "jitted": (jitted, True),
    "mapped": (mapped, True),
    "of a fixed length": (for_four_rows, True),
    "given": (noisy(lambda rng: rng), False),
    "folded": (noisy(lambda rng: jax.random.fold_in(KEY, jax.random.bits(rng))), False),
    "not of the loss": (noisy(lambda rng: KEY, dropped=True), False),
    "not of rows": (projected, False),
    "as many as rows": (featured, False),
}


@pytest.mark.parametrize(("step", "expected"), FOUND.values(), ids=FOUND)
def test_constant_keys_are_found(step, expected):
    learner = LearnerBuilder("unused").build(model(), optax.sgd, 0.1, train_step=step)
    traced = trace_train(learner.definition.step, jax.eval_shape(learner.init), BATCH)
    assert traced.has_constant_key == expected


def test_a_key_of_the_step_in_on_batch_is_not_constant(tmp_path):
    def augment(batch, rng, step):
        return {**batch, "x": batch["x"] + jax.random.normal(jax.random.fold_in(KEY, step), batch["x"].shape)}

    builder = LearnerBuilder(tmp_path).on_batch(augment)
    learner = builder.build(model(), optax.sgd, 0.1, train_step=noisy(lambda rng: rng))
    assert not trace_train(learner.definition.step, jax.eval_shape(learner.init), BATCH).has_constant_key


@pytest.mark.full
@pytest.mark.parametrize(("name", "warned"), [("made", True), ("given", False)])
def test_a_run_warns_about_constant_keys(tmp_path, name, warned):
    builder = LearnerBuilder(tmp_path).renderer(None).with_file_checkpointer(None)
    builder.build(model(), optax.sgd, 0.1, train_step=FOUND[name][0]).fit([BATCH])
    assert ("a key that is the same in all steps" in (tmp_path / "experiment.log").read_text()) == warned


def test_other_warnings_are_not_repeated():
    class Counting(nnx.Module):
        def __init__(self):
            self.layer, self.count = nnx.Linear(3, 1, rngs=nnx.Rngs(0)), 0

    def step(model, batch):
        model.count += 1
        noisy = batch["x"] + jax.random.normal(KEY, batch["x"].shape)
        return {"loss": RegressionOutput.from_predictions(model.layer(noisy)[:, 0], batch["y"]).loss[None]}

    learner = LearnerBuilder("unused").build(Counting(), optax.sgd, 0.1, train_step=step)
    traced = trace_train(learner.definition.step, jax.eval_shape(learner.init), BATCH)
    assert traced.has_constant_key
    assert (traced.assigned, [problem.code for problem in traced.problems]) == (["count"], ["step-loss-shape"])
