"""Keys made inside of a step: each step has the same numbers, and a run warns."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from learner import LearnerBuilder, RegressionOutput
from learner.training.checks.step_checks import trace_train

BATCH = {"x": np.ones((4, 3), np.float32), "y": np.zeros(4, np.float32)}
KEY = jax.random.PRNGKey(3)


def model():
    return {"w": jnp.ones(3)}


def noisy(key_of, dropped=False):
    """A step with noise on its rows, from a key made of the one that it gets; `dropped`: the loss does not need it."""

    def step(model, batch, rng):
        noise = jax.random.normal(key_of(rng), batch["x"].shape)
        output = RegressionOutput.from_predictions((batch["x"] + (0 if dropped else noise)) @ model["w"], batch["y"])
        return {"loss": output.loss, "noise": noise}

    return step


def projected(model, batch):
    """Fixed numbers that are not those of rows."""
    return RegressionOutput.from_predictions(batch["x"] @ (model["w"] * jax.random.normal(KEY, (3,))), batch["y"])


def jitted(model, batch):
    drawn = jax.jit(lambda x: jnp.where(jax.random.bernoulli(jax.random.key(1), 0.5, x.shape), x, 0))(batch["x"])
    return RegressionOutput.from_predictions(drawn @ model["w"], batch["y"])


FOUND = {
    "made": (noisy(lambda rng: jax.random.key(0)), True),
    "split": (noisy(lambda rng: jax.random.split(KEY)[1]), True),
    "jitted": (jitted, True),
    "given": (noisy(lambda rng: rng), False),
    "folded": (noisy(lambda rng: jax.random.fold_in(KEY, jax.random.bits(rng))), False),
    "not of the loss": (noisy(lambda rng: KEY, dropped=True), False),
    "not of rows": (projected, False),
}


@pytest.mark.parametrize(("step", "found"), FOUND.values(), ids=FOUND)
def test_constant_keys_are_found(step, found):
    learner = LearnerBuilder("unused").build(model(), optax.sgd, 0.1, train_step=step)
    traced = trace_train(learner.definition.step, jax.eval_shape(learner.init), BATCH)
    assert traced.has_constant_key == found


def test_a_key_of_the_step_in_on_batch_is_none(tmp_path):
    def augment(batch, rng, step):
        return {**batch, "x": batch["x"] + jax.random.normal(jax.random.fold_in(KEY, step), batch["x"].shape)}

    builder = LearnerBuilder(tmp_path).on_batch(augment)
    learner = builder.build(model(), optax.sgd, 0.1, train_step=noisy(lambda rng: rng))
    assert not trace_train(learner.definition.step, jax.eval_shape(learner.init), BATCH).has_constant_key


@pytest.mark.parametrize(("name", "warned"), [("made", True), ("given", False)])
def test_the_run_warns(tmp_path, name, warned):
    builder = LearnerBuilder(tmp_path).renderer(None).with_file_checkpointer(None)
    builder.build(model(), optax.sgd, 0.1, train_step=FOUND[name][0]).fit([BATCH])
    assert ("a key that is the same in all steps" in (tmp_path / "experiment.log").read_text()) == warned
