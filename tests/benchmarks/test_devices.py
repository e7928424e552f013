"""Tests of the benchmark of several devices: both sides train alike, and ratios are computed correctly."""

import importlib
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def benchmarks(monkeypatch):
    """Return a module of the benchmarks, which are not part of the package."""
    monkeypatch.syspath_prepend(str(ROOT))
    with jax.numpy_dtype_promotion("standard"):  # optax.adamw mixes int32 and float32
        yield lambda name: importlib.import_module(f"benchmarks.{name}")


def losses(benchmarks, kind, variant, feed="numpy", devices=8):
    child = benchmarks("devices_child")
    result = child.measure(child.Case("digits", kind, variant, feed, devices, epochs=2, warm=1, rows=96))
    assert result["seconds"] > 0
    return np.array(result["losses"])


@pytest.mark.parametrize(
    ("kind", "feed"),
    [("replicated", "numpy"), ("replicated", "put"), ("sharded", "numpy"), ("sharded", "put")],
)
@pytest.mark.full
@pytest.mark.usefixtures("compiled_once")
def test_loops_by_hand_train_as_one_device_does(benchmarks, kind, feed):
    work = benchmarks("child").workload_of(benchmarks("child").Case("digits", "", epochs=2, warm=1, rows=96))
    expected = benchmarks("loops").hand(work, "numpy", 3, lambda what: None)  # 3 batches of 32, 96 rows of validation
    np.testing.assert_allclose(losses(benchmarks, kind, "hand", feed), expected, rtol=1e-4)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["replicated", "sharded"])
def test_learner_trains_the_same_on_any_number_of_devices(benchmarks, kind):
    """Its order of rows differs from the hand-written loop's."""
    ours = losses(benchmarks, kind, "learner", devices=2)
    np.testing.assert_allclose(ours, losses(benchmarks, kind, "learner"), rtol=1e-4)
    assert ours.shape == (3, 2)
    assert np.all(ours[-1] < ours[0])


@pytest.mark.full
@pytest.mark.parametrize("kind", ["replicated", "sharded"])
def test_the_hosts_work_is_measured(benchmarks, kind):
    child = benchmarks("devices_child")
    for who in ("learner", "hand"):
        times = child.measure(child.Case("", kind, f"host {who}", devices=2, calls=3))["host"]
        assert 1e-6 < times < 1


def test_ratios(benchmarks):
    devices = benchmarks("devices")

    def of(seconds):
        return {"seconds": seconds, "losses": [[0.5, 0.25]], "device": "cpu"}

    names = ("hand numpy", "hand put", "learner", "learner k=1")
    rounds = [dict(zip(names, map(of, seconds), strict=True)) for seconds in ((3, 2, 1, 4), (9, 4, 4, 8), (7, 3, 6, 6))]
    text = "\n".join(devices.report("digits-20k", "sharded", 8, rounds)) + "\n"
    for label, numbers in {
        "learner: ms per epoch": "4e+03 (1e+03 to 6e+03)",
        "speed: learner / hand put": "1 (0.5 to 2)   goal >= 0.85",
        "speed: learner k=1 / hand put": "0.5 (0.5 to 0.5)",
        "learner: last train and valid loss": "0.5, 0.25",
    }.items():
        assert f"  {label:<52} {numbers}\n" in text
    assert "digits-20k, sharded on 8 (cpu); by hand: jax.jit\n" in text


def test_the_report_of_the_host(benchmarks):
    rounds = [
        {"learner 1": {"host": 5e-5}, "hand 1": {"host": 2e-5}},
        {"learner 1": {"host": 7e-5}, "hand 1": {"host": 3e-5}},
    ]
    lines = benchmarks("devices").host_report("replicated", rounds, [1])
    assert f"  {'learner on 1 device':<52} 60 (50 to 70)" in lines
    assert f"  {'bare jax.pmap call on 1 device':<52} 25 (20 to 30)" in lines
    assert f"  {'learner - bare on 1 device':<52} 35 (30 to 40)" in lines


@pytest.mark.full
def test_the_command_measures_in_processes(tmp_path):
    command = [
        sys.executable,
        "-m",
        "benchmarks.devices",
        "--workload",
        "digits",
        "--kind",
        "sharded",
        "--devices",
        "2",
    ]
    command += ["--rounds", "1", "--quick", "--platform", "cpu", "--json", str(tmp_path / "all.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "speed: learner / hand " in done.stdout
    assert "learner - bare on 2 devices" in done.stdout
    assert (tmp_path / "all.json").exists()
