"""Tests of metrics of speed: steps, rows, tokens and FLOPs per second."""

import jax
import numpy as np
import optax
import pytest

from learner import RegressionOutput
from learner.metrics import FlopsPerSecond, IterationSpeed, ModelFlopsUtilization, RowsPerSecond, TokensPerSecond
from learner.metrics.base import StepWork
from learner.metrics.speed import peak_of
from tests.support.codes import raises_code
from tests.support.runs import quiet


def test_speed_is_steps_over_time() -> None:
    speed = IterationSpeed()
    assert [speed.update(10, 0.5), speed.update(30, 0.5), speed.update(5, 1.5)] == [20.0, 60.0, 5 / 1.5]
    assert speed.compute() == 45 / 2.5
    speed.reset()
    assert np.isnan(speed.compute())
    assert speed.update(3, 2.0) == speed.compute() == 1.5


def test_speed_without_time_is_nan() -> None:
    speed = IterationSpeed()
    assert np.isnan(speed.update(10, 0.0))
    assert np.isnan(speed.compute())
    assert speed.update(10, 4.0) == 2.5
    assert speed.compute() == 5.0


def test_rows_and_tokens_of_ended_steps() -> None:
    for metric, expected in ((RowsPerSecond(), [40.0, 10.0, 28.0]), (TokensPerSecond(), [300.0, 50.0, 200.0])):
        metric.on_batches(60, 450.0)
        first = metric.update(3, 1.5)
        metric.on_batches(10, 50.0)
        assert [first, metric.update(1, 1.0), metric.compute()] == expected
        metric.reset()
        assert np.isnan(metric.compute())


def test_speeds_are_independent() -> None:
    train, valid = IterationSpeed(), IterationSpeed()
    train.update(10, 1.0)
    assert np.isnan(valid.compute())


def test_flops_and_their_utilization() -> None:
    """A step of 32 rows has 640 FLOPs; one of 32 and one of 16 rows make 960 FLOPs in 3 seconds, on two devices."""
    work = StepWork(lambda: 640, rows=32, devices=2, device_kind="cpu")
    cases = (FlopsPerSecond(), [640.0, 160.0, 320.0]), (ModelFlopsUtilization(800.0), [0.4, 0.1, 0.2])
    for metric, expected in cases:
        metric.on_start(work)
        metric.on_batches(32, 32.0)
        first = metric.update(1, 1.0)
        metric.on_batches(16, 16.0)
        assert [first, metric.update(1, 2.0), metric.compute()] == pytest.approx(expected)


def test_peak_of_a_device() -> None:
    kinds = {
        "NVIDIA H100 80GB HBM3": 989e12,
        "NVIDIA H100 PCIe": 756e12,
        "NVIDIA H100 NVL": 835e12,
        "NVIDIA H200": 989e12,
        "NVIDIA A100-SXM4-40GB": 312e12,
        "NVIDIA L4": 121e12,
        "NVIDIA L40S": 362e12,
        "Tesla T4": 65e12,
        "TPU v4": 275e12,
        "TPU v5 lite": 197e12,
        "TPU v5": 459e12,
        "TPU v6 lite": 918e12,
        "cpu": None,
        "NVIDIA GeForce RTX 4090": None,
    }
    assert {kind: peak_of(kind) for kind in kinds} == kinds


@pytest.mark.parametrize("peak", [0, -1.0, float("inf"), float("nan"), "1e12", True])
def test_wrong_peaks(peak) -> None:
    with raises_code("metric-peak-value"):
        ModelFlopsUtilization(peak)


@pytest.mark.full
def test_flops_of_a_run(tmp_path) -> None:
    """Both metrics count the FLOPs of the same steps and time, so their quotient is the peak of the devices."""
    metrics = FlopsPerSecond(), ModelFlopsUtilization(5e9), RowsPerSecond()
    builder = quiet(tmp_path / "run").metrics(*metrics).num_epochs(2).with_batch_size(8).grads_accumulation(2)

    def step(model, batch):
        return RegressionOutput.from_predictions(batch["x"] @ model["w"], batch["y"])

    learner = builder.build({"w": np.zeros((64, 32), np.float32)}, optax.sgd, 0.0, train_step=step, valid_step=step)
    rows = {"x": np.ones((32, 64), np.float32), "y": np.ones((32, 32), np.float32)}
    history = learner.fit(rows, rows).history
    flops, mfu, speed = (history[f"train/{metric.name}"][-1] for metric in metrics)
    assert flops / mfu == pytest.approx(5e9, rel=1e-5)
    # The forward pass and the gradient of the weights multiply 64 x 32 numbers for each row; the sums of gradients, the
    # loss and the update take less than a fifth of that.
    assert 1 < flops / speed / (2 * 2 * 64 * 32) < 1.2
    assert "valid/FLOPs per Second" not in history


@pytest.mark.full
def test_utilization_of_a_cpu_is_nan(tmp_path) -> None:
    assert peak_of(jax.devices()[0].device_kind) is None
    builder = quiet(tmp_path / "run").metrics(ModelFlopsUtilization()).with_batch_size(8)
    step = lambda model, batch: RegressionOutput.from_predictions(batch["x"] @ model["w"], batch["y"])  # noqa: E731
    learner = builder.build({"w": np.zeros((3, 2), np.float32)}, optax.sgd, 0.1, train_step=step)
    result = learner.fit({"x": np.ones((8, 3), np.float32), "y": np.ones((8, 2), np.float32)})
    assert np.isnan(result.history["train/Model FLOPs Utilization"]).all()
    assert "give it, ModelFlopsUtilization(peak=...)" in (tmp_path / "run" / "experiment.log").read_text()
