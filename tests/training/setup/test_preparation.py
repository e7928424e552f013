"""Tests of preparing a run: compiling in the background while the model is initialized."""

import contextlib
import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from learner import LearnerBuilder, RegressionOutput
from learner.data import DataLoaderBuilder
from learner.training.definition import TrainingDefinition
from learner.util import executables
from tests.support.codes import raises_code


def step(model, batch):
    return RegressionOutput.from_predictions(batch["x"] @ model["w"], batch["y"])


def data():
    x = np.float32(np.random.default_rng(0).normal(size=(12, 3)))
    return DataLoaderBuilder().batch_size(4).build({"x": x, "y": x.sum(1)})


@pytest.mark.full
def test_the_first_program_compiles_during_initialization(tmp_path, monkeypatch):
    compiled, init_ahead = threading.Event(), TrainingDefinition.init_ahead

    def on_event(event, seconds, fun_name="", **_):
        if event == "/jax/core/compile/backend_compile_duration" and fun_name == "jit(train)":
            compiled.set()

    @contextlib.contextmanager
    def late(definition, threads):
        with init_ahead(definition, threads) as init:
            yield lambda: (waited.append(compiled.wait(60)), init())[1]

    jax.monitoring.register_event_duration_secs_listener(on_event)
    waited = []
    monkeypatch.setattr(TrainingDefinition, "init_ahead", late)
    executables.clear()
    built = LearnerBuilder(tmp_path / "run").renderer(None).with_batch_size(8)
    result = built.build(lambda: {"w": jnp.zeros(3)}, optax.sgd, 0.1, train_step=step).fit(data())
    assert len(result.history["train/Loss"]) == 1
    assert waited == [True]
    log = (tmp_path / "run" / "experiment.log").read_text()
    assert log.index("WARNING") < log.index("dispatch of train") < log.index("start at epoch 1")


@pytest.mark.full
def test_initialization_compiles_while_steps_are_traced(tmp_path, monkeypatch):
    """Its program is submitted to a thread before the first program of the run; both are compiled once."""
    order, compile_ahead = [], executables._SharedProgram.compile_ahead

    def recorded(program, *arguments):
        order.append(program._jitted.__name__)
        compile_ahead(program, *arguments)

    monkeypatch.setattr(executables._SharedProgram, "compile_ahead", recorded)
    executables.clear()
    built = LearnerBuilder(tmp_path / "run").renderer(None).num_steps(1)
    built.build(lambda: {"w": jnp.zeros(3)}, optax.sgd, 0.1, train_step=step).fit(data())
    assert order[:2] == ["all_parts", "train"]


def test_a_failing_initialization_leaves_no_run(tmp_path):
    built = LearnerBuilder(tmp_path / "run").renderer(None)
    fitted = built.build(lambda: {"w": jnp.full(3, jnp.nan)}, optax.sgd, 0.1, train_step=step)
    with raises_code("model-parameters-nonfinite"):
        fitted.fit(data())
    assert not list((tmp_path / "run").glob("*.log"))
    assert not [t for t in threading.enumerate() if t.name.startswith("learner-compile")]
