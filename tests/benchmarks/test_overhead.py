"""Tests of the overhead benchmark: its opponents do equal work, and ratios are computed correctly."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx
from scipy.special import softmax
from sklearn.metrics import accuracy_score, log_loss

ROOT = Path(__file__).parents[2]


@pytest.fixture
def benchmarks(monkeypatch):
    """Return a module of the benchmarks, which are not part of the package."""
    monkeypatch.syspath_prepend(str(ROOT))
    with jax.numpy_dtype_promotion("standard"):  # optax.adamw and flax's pooling mix int32 and float32
        yield lambda name: importlib.import_module(f"benchmarks.{name}")


def losses(benchmarks, workload, variant, feed="gather", rows=100):
    child = benchmarks("child")
    result = child.measure(child.Case(workload, variant, feed, epochs=2, warm=1, rows=rows))
    assert result["seconds"] > 0
    assert result["peak"] > 50  # MiB
    return np.array(result["losses"])


@pytest.mark.full
def test_every_way_to_feed_and_the_limit_train_alike(benchmarks):
    expected = losses(benchmarks, "digits", "limit")  # three batches of 32 and one of 4, three epochs
    assert expected.shape == (3, 2)
    assert np.all(expected[-1] < expected[0])
    for feed in ("gather", "slice", "numpy", "iterable"):
        np.testing.assert_allclose(losses(benchmarks, "digits", "hand", feed), expected, rtol=1e-4, err_msg=feed)


@pytest.mark.full
def test_learner_trains_alike_where_the_batches_are_the_same(benchmarks):
    ours = losses(benchmarks, "digits", "learner", "iterable")
    np.testing.assert_allclose(ours, losses(benchmarks, "digits", "hand", "iterable"), rtol=1e-4)


@pytest.mark.full
@pytest.mark.parametrize("workload", ["transformer", "cnn"])
def test_larger_models_train_alike(benchmarks, workload):
    rows = 32 if workload == "transformer" else 140
    expected = losses(benchmarks, workload, "limit", rows=rows)
    np.testing.assert_allclose(losses(benchmarks, workload, "hand", "slice", rows), expected, rtol=2e-3)


@pytest.mark.full
def test_the_sums_are_those_of_scikit_learn(benchmarks):
    work = benchmarks("workloads").WORKLOADS["digits"]
    task, rows = benchmarks("loops").Task(work), work.data()[1]
    graph, params = nnx.split(work.model(nnx.Rngs(0)))
    probabilities = softmax(np.asarray(nnx.merge(graph, params)(rows["x"]), np.float64), axis=-1)
    loss, sums = task.forward(nnx.as_pure(params), rows["x"], rows["y"])
    assert sums[2] == len(rows["y"]) == 360
    assert sums[1] == round(360 * accuracy_score(rows["y"], probabilities.argmax(-1)))
    assert sums[0] / 360 == pytest.approx(log_loss(rows["y"], probabilities), rel=1e-5)
    assert loss == pytest.approx(log_loss(rows["y"], probabilities), rel=1e-5)


def test_ratios(benchmarks):
    overhead = benchmarks("overhead")

    def rounds(*seconds):
        return [
            {"seconds": s, "peak": 100 * s, "device_peak": 10 * s, "losses": [[0.5, 0.25]], "device": "cpu"}
            for s in seconds
        ]

    results = {"hand gather": rounds(9, 9, 9), "hand slice": rounds(2, 4, 8), "learner": rounds(1, 4, 2)}
    text = "\n".join(overhead.report(overhead.WORKLOADS["digits"], results))
    for label, numbers in {
        "speed: learner / hand slice": "2 (1 to 4)   goal >= 1.4",
        "peak memory: learner / hand slice": "0.5 (0.25 to 1)   goal <= 1.15",
        "peak memory of the device: learner / hand slice": "0.5 (0.25 to 1)",
        "learner: ms per epoch": "2e+03 (1e+03 to 4e+03)",
        "learner: last train and valid loss": "0.5, 0.25",
    }.items():
        assert f"  {label:<52} {numbers}\n" in text + "\n"
    assert "limit" not in text
    for measured in results["hand slice"]:
        measured["device_peak"] = None
    assert "of the device" not in "\n".join(overhead.report(overhead.WORKLOADS["digits"], results))
    assert "(cpu): 45 steps of 32, 2 valid batches of 256" in text


@pytest.mark.full
def test_the_command_measures_in_processes(tmp_path):
    command = [sys.executable, "-m", "benchmarks.overhead", "--workload", "digits", "--rounds", "1", "--quick"]
    command += ["--platform", "cpu", "--only", "hand slice", "limit", "--json", str(tmp_path / "all.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "speed: limit / hand slice" in done.stdout
    assert "learner: ms" not in done.stdout
    measured = json.loads((tmp_path / "all.json").read_text())["digits"]
    hand, limit = (np.array(measured[name][0]["losses"]) for name in ("hand slice", "limit"))
    assert hand.shape == (3, 2)  # a warm epoch and two more
    np.testing.assert_allclose(hand, limit, rtol=1e-4)
    assert np.all(hand[-1] < hand[0])
