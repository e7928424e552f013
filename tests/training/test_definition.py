"""Tests of the training definition: order of checks, initial state and its fingerprint."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from learner import LearnerError
from learner.schedules import Cosine
from tests.support.codes import raises_code
from tests.support.runs import batches, bits, line_step, quiet


def refuse():
    raise LearnerError("a forked process", code="worker-forked-process")


def test_a_forked_process_reads_no_checkpoint(tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr("learner.training.definition.check_process", refuse)
    monkeypatch.setattr("learner.training.definition.take_initial", lambda *arguments: read.append(arguments))
    builder = quiet(tmp_path / "run").initial_from(tmp_path / "other")
    with raises_code("worker-forked-process"):
        builder.build({"w": jnp.zeros(3)}, optax.sgd, 0.1, train_step=line_step)
    assert read == []


@pytest.mark.parametrize(
    ("step", "count", "code"),
    [
        ("valid_step", 1, "step-train-missing"),
        ("train_step", 0, "step-batch-count"),
        ("train_step", 1, "schedule-length-needed"),
    ],
)
def test_a_train_step_is_checked_before_its_schedule(tmp_path, step, count, code):
    """Without a usable train step, an error about the length of the run would not help."""
    learner = quiet(tmp_path / "run").build({"w": jnp.zeros(3)}, optax.sgd, Cosine(0.1), **{step: line_step})
    with raises_code(code):
        learner.train_step(None, *batches()[:count])


@pytest.mark.parametrize(("seed", "equal"), [(0, True), (1, False)])
def test_the_fingerprint_of_an_initial_state_includes_its_constants(tmp_path, seed, equal):
    """Processes compare fingerprints, because each process initializes its own replica."""

    def fingerprint(seed):
        make = lambda: {"w": jax.random.normal(jax.random.key(seed), (3, 1)), "b": jnp.zeros(1)}  # noqa: E731
        learner = quiet(tmp_path / "run").build(make, optax.sgd, 0.1, train_step=line_step)
        return learner.definition.init_fingerprint()

    assert (fingerprint(0) == fingerprint(seed)) is equal


def layers():
    """Return eight small layers with one initializer: XLA rounds their weights differently within one program."""
    key = jax.random.PRNGKey(5)
    draw = lambda n: jax.random.truncated_normal(jax.random.fold_in(key, n), -1.0, 1.0, (2, 3))  # noqa: E731
    return {"w": jnp.zeros((3, 1)), "b": jnp.zeros(1), "layers": [draw(n) * jnp.sqrt(1 / 7) for n in range(8)]}


def test_init_returns_the_first_state_of_fit(tmp_path):
    learner = quiet(tmp_path / "run").build(layers, optax.sgd, 0.1, train_step=line_step)
    placed, pure = learner.definition.init_placed(), learner.init()
    assert bits(pure) == bits(placed)
    assert bits(placed.params["layers"]) == bits(layers()["layers"])
    assert jax.eval_shape(learner.init) == jax.eval_shape(lambda: pure)
    for x, y in zip(jax.tree.leaves(jax.jit(learner.init)().params), jax.tree.leaves(pure.params), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6)


def test_shapes_requested_inside_a_trace_leak_no_tracer(tmp_path):
    learner = quiet(tmp_path / "run").build(layers, optax.sgd, 0.1, train_step=line_step)
    jax.eval_shape(lambda: jnp.zeros(len(jax.tree.leaves(learner.definition.shapes()))))
    assert bits(learner.definition.init_placed()) == bits(learner.init())
