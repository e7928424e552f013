"""Tests of metrics of steps and speed in runs: on several devices, with micro-batches, in half precision."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from learner import ClassificationOutput, LearnerBuilder, RegressionOutput
from learner.data import DataLoaderBuilder
from learner.events import StepsEnded
from learner.loggers import MemoryLogger
from learner.metrics import (
    DeviceMemory,
    GradientNorm,
    HostCPU,
    HostMemory,
    Info,
    ParameterNorm,
    RowsPerSecond,
    TokensPerSecond,
    UpdateRatio,
)
from learner.metrics.base import Metric
from learner.strategies import Replicated, Sharded, fsdp
from tests.support.spread import train

pytestmark = pytest.mark.usefixtures("compiled_once")

LR = 0.2  # of `train`, with SGD


def norm(tree):
    return np.sqrt(sum(float(np.square(np.float64(x)).sum()) for x in jax.tree.leaves(tree)))


DEVICES = jax.devices()[:4]
STRATEGIES = {
    "single": lambda: None,
    "replicated": lambda: Replicated(DEVICES),
    "fsdp": lambda: Sharded(rules=fsdp(1), devices=DEVICES),
    "split": lambda: Sharded({"data": 2, "model": 2}, {r"hidden\.kernel": (None, "model")}, devices=DEVICES),
}


@pytest.mark.full
@pytest.mark.parametrize(("strategy", "accumulate"), [(s, n) for s in STRATEGIES for n in (1, 3)])
def test_norms_of_a_run(strategy, accumulate, tmp_path):
    """With SGD, a step moves the parameters by the learning rate times the gradients."""
    metrics = (UpdateRatio(), ParameterNorm())
    left = train(tmp_path / "run", "mlp", STRATEGIES[strategy](), accumulate, metrics=metrics)
    ratio, params, grads = (left.steps[name] for name in ("Update Ratio", "Parameter Norm", "Gradient Norm"))
    np.testing.assert_allclose(ratio * params, LR * grads, rtol=1e-4)
    assert left.epochs["train/Parameter Norm"] == params[-1]
    assert params[-1] == pytest.approx(norm(nnx.state(left.result.model, nnx.Param)), rel=1e-6)
    assert left.epochs["train/Update Ratio"] == pytest.approx(ratio.mean(), rel=1e-6)
    assert left.warnings == []


class Linear(nnx.Module):
    def __init__(self):
        self.w = nnx.Param(jnp.array([3.0, 4.0]))
        self.frozen = nnx.Param(jnp.array([100.0]))

    def train_step(self, batch):
        return RegressionOutput.from_predictions(batch["x"] @ self.w[...] + self.frozen[...], batch["y"])


BATCH = {"x": np.ones((4, 2), np.float32), "y": np.full(4, 100, np.float32)}  # the gradient of each is 2 · 7


def step(tmp_path, model, optimizer=optax.sgd, options=lambda builder: None, batch=BATCH, **build_options):
    builder = LearnerBuilder(tmp_path / "run").metrics(UpdateRatio(), ParameterNorm())
    options(builder)
    learner = builder.build(model, optimizer, 0.1, **build_options)
    state, values = jax.jit(learner.train_step)(learner.init(), batch)
    return state, {name: float(x) for name, x in values.items()}


def test_frozen_parameters_do_not_count(tmp_path):
    _, values = step(tmp_path, Linear(), options=lambda builder: builder.freeze("frozen"))
    assert values["Parameter Norm"] == pytest.approx(np.hypot(1.6, 2.6), rel=1e-6)
    assert values["Update Ratio"] == pytest.approx(np.hypot(1.4, 1.4) / np.hypot(1.6, 2.6), rel=1e-6)


@pytest.mark.full
def test_update_ratio_is_of_the_update_not_the_gradient(tmp_path):
    clipped = lambda lr: optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(lr))  # noqa: E731
    state, values = step(tmp_path, Linear(), clipped)
    assert values["Update Ratio"] == pytest.approx(0.1 / norm(state.params), rel=1e-4)


def test_norms_of_a_custom_update(tmp_path):
    def update(model, batch, lr, rng):
        output = RegressionOutput.from_predictions(batch["x"] @ model["w"], batch["y"])
        return {"w": model["w"] - lr}, output

    _, values = step(tmp_path, {"w": jnp.array([3.1, 4.1])}, None, update=update)
    assert values["Parameter Norm"] == pytest.approx(5, rel=1e-6)
    assert values["Update Ratio"] == pytest.approx(np.hypot(0.1, 0.1) / 5, rel=1e-5)


@pytest.mark.full
def test_overflowing_step_does_not_count(tmp_path):
    huge = {"x": np.full((4, 2), 200, np.float32), "y": np.full(4, -60000, np.float32)}
    state, values = step(tmp_path, Linear(), options=lambda builder: builder.precision("float16"), batch=huge)
    np.testing.assert_array_equal(jax.tree.leaves(state.params)[-1], [3, 4])
    assert np.isnan(values["Update Ratio"])
    assert values["Parameter Norm"] == pytest.approx(np.sqrt(25 + 100**2), rel=1e-6)


@pytest.mark.full
def test_norms_are_computed_only_if_required(tmp_path):
    seen = []

    class Probe(GradientNorm):
        name = "Probe"

        def update(self, state, output, info):
            seen.append(info)
            return super().update(state, output, info)

    learner = LearnerBuilder(tmp_path / "run").metrics(Probe()).build(Linear(), optax.sgd, 0.1)
    learner.train_step(learner.init(), BATCH)
    assert [(info.update_norm, info.param_norm) for info in seen] == [(None, None)] * len(seen) != []


class Wide(Metric):
    """A metric without a value."""

    name, splits = "Wide", ("train",)

    def init(self):
        return jnp.int32(0)

    def update(self, state, output, info: Info):
        return state

    def merge(self, a, b):
        return a

    def compute(self, state):
        return jnp.float32(jnp.nan)

    undefined = "it is never known"


@pytest.mark.full
def test_speeds_and_system_metrics_in_a_run(tmp_path):
    """Tokens are the weights of the losses; undefined values are logged once."""
    logger = MemoryLogger()
    builder = LearnerBuilder(tmp_path / "run").metrics(RowsPerSecond(), TokensPerSecond(), Wide())
    builder.metrics(HostCPU(), HostMemory(), DeviceMemory()).metric_loggers(logger).renderer(None)
    builder.num_epochs(2).grads_accumulation(2)

    def step(model, batch):
        return ClassificationOutput.from_logits(batch["x"] @ model["w"], batch["y"], batch["y"] < 2)

    model = {"w": jnp.ones((3, 4))}
    learner = builder.build(model, optax.sgd, 0.1, train_step=step, valid_step=step)
    rng = np.random.default_rng(0)
    data = {"x": rng.normal(size=(50, 3)).astype(np.float32), "y": np.arange(50, dtype=np.int32) % 4}
    loader = DataLoaderBuilder().batch_size(8).build(data)
    result = learner.fit(loader, DataLoaderBuilder().batch_size(16).build(data))
    for split in ("train", "valid"):
        events = [event for event in logger.of(StepsEnded) if event.split == split and event.epoch == 2]
        sums = [
            sum(float(event.values[name][0]) * event.seconds for event in events)
            for name in ("Rows per Second", "Tokens per Second")
        ]
        # An event lasts at least as long as its steps, by a share that differs between events.
        assert sums[0] > 50 * (1 - 1e-4)
        assert sums[1] > 26 * (1 - 1e-4)
        rows, tokens = (result.history[f"{split}/{name}"][-1] for name in ("Rows per Second", "Tokens per Second"))
        assert rows / tokens == pytest.approx(50 / 26, rel=1e-5)
        assert result.history[f"{split}/Host Memory"][-1] > 50
    warned = [
        line.split("WARNING")[1]
        for line in (tmp_path / "run/experiment.log").read_text().splitlines()
        if "WARN" in line
    ]
    assert sorted(line.split("is not defined")[0].split("/")[-1] for line in warned) == [
        "Device Memory of epoch 1 ",
        "Wide of epoch 1 ",
    ]
    assert "it is never known" in "".join(warned)
