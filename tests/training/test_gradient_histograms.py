"""Tests of `GradientHistograms`: values, models of each library, and absence of side effects."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from learner import GradientHistograms, TrainOutput
from learner.events import SamplesLogged
from learner.loggers import MemoryLogger
from learner.training.hooks import EpochInfo
from tests.support.codes import raises_code
from tests.support.runs import batches, build_line, line, line_step, quiet
from tests.support.small_models import BATCH, CASES
from tests.support.spread import KINDS

INFO = EpochInfo(1, 7, {})


def test_the_gradients_are_the_gradients_of_the_train_step():
    batch, model = batches()[0], {"w": jnp.ones((3, 1)), "b": jnp.zeros(1)}
    histograms = GradientHistograms(batch, rows=4, train_step=line_step)(INFO, model)
    expected = jax.grad(lambda model: line_step(model, batch).loss)(model)
    assert histograms.keys() == {"w gradient", "b gradient"}
    for name, gradient in expected.items():
        counts, edges = np.histogram(np.asarray(gradient, np.float64), 50)
        np.testing.assert_array_equal(histograms[f"{name} gradient"].counts, counts)
        np.testing.assert_allclose(histograms[f"{name} gradient"].edges, edges, rtol=1e-6)


@pytest.mark.full
@pytest.mark.parametrize("case", CASES, ids=str)
def test_models_of_each_library_are_not_changed(case):
    hook = GradientHistograms([BATCH], train_step=case.steps.get("train_step"))
    model = case.make()
    before = {name: x.copy() for name, x in case.arrays(model).items()}
    assert hook(INFO, model)
    for name, x in case.arrays(model).items():
        np.testing.assert_array_equal(x, before[name])


@pytest.mark.full
def test_the_train_mode_is_used_and_the_model_is_not_changed():
    kind = KINDS["cnn"]
    model, rows = kind.make(0.5), kind.data(8, 0)
    hook = GradientHistograms(rows, rows=8)
    model.eval()
    statistics = np.asarray(model.norm.mean[...])
    first, later = (hook(EpochInfo(1, step, {}), model)["out.kernel gradient"] for step in (1, 2))
    np.testing.assert_array_equal(first.edges, later.edges)  # the same dropout mask
    without = GradientHistograms(rows, rows=8)(INFO, kind.make(0.0))["out.kernel gradient"]
    assert not np.array_equal(first.edges, without.edges)
    np.testing.assert_array_equal(model.norm.mean[...], statistics)
    assert model.drop.deterministic


def test_gradients_computed_by_the_step_are_used():
    batch, model = batches()[0], {"w": jnp.ones((3, 1)), "b": jnp.zeros(1)}

    def step(model, batch):
        return TrainOutput(jax.tree.map(lambda x: jnp.full_like(x, 2), model), line_step(model, batch))

    histograms = GradientHistograms(batch, rows=4, train_step=step)(INFO, model)
    assert {name: (x.edges[0] + x.edges[-1]) / 2 for name, x in histograms.items()} == {
        "w gradient": 2,
        "b gradient": 2,
    }


def test_a_run_logs_the_histograms(tmp_path):
    memory = MemoryLogger()
    builder = quiet(tmp_path).every(3, GradientHistograms(batches(), train_step=line_step)).metric_loggers(memory)
    build_line(builder).fit(batches())
    assert [(event.step, sorted(event.values)) for event in memory.of(SamplesLogged)] == [
        (3, ["b gradient", "w gradient"]),
        (6, ["b gradient", "w gradient"]),
    ]


def test_a_model_without_a_train_step_is_refused():
    with raises_code("step-hook-no-step", "dict"):
        GradientHistograms(batches())(INFO, line())
    with raises_code("step-hook-no-step", "Linear"):
        GradientHistograms(batches())(INFO, nnx.Linear(3, 1, rngs=nnx.Rngs(0)))
