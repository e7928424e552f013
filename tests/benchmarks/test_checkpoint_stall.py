"""Tests of the checkpoint benchmark and its numbers."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from flax import nnx

ROOT = Path(__file__).parents[2]
PAIRS = {"with", "without", "work", "held", "next", "stretched"}


@pytest.fixture
def benchmarks(monkeypatch):
    """Return a module of the benchmarks, which are not part of the package."""
    monkeypatch.syspath_prepend(str(ROOT))
    with jax.numpy_dtype_promotion("standard"):  # optax.adamw mixes int32 and float32
        yield lambda name: importlib.import_module(f"benchmarks.{name}")


@pytest.mark.parametrize(("name", "bytes_"), [("10 MB", 10e6), ("500 MB", 500e6)])
def test_the_states_are_as_large_as_they_are_called(benchmarks, name, bytes_):
    make = benchmarks("stall_child").SIZES[name].workload().model
    params = jax.tree.leaves(jax.eval_shape(lambda: nnx.state(make(nnx.Rngs(0)), nnx.Param)))
    assert 3 * len(params) + 1 == 163
    assert 3 * sum(4 * x.size for x in params) == pytest.approx(bytes_, rel=0.02)


def test_recorded_times_become_numbers(benchmarks):
    """Saves every 12 steps: the first is not counted, the second holds the loop, the last has no steps after it."""
    child = benchmarks("stall_child")
    late = {step: 0.5 if step > 26 else 0.0 for step in range(1, 37)}
    ended = {step: 100 + 0.1 * step + late[step] for step in late}
    worked = {step: 0.2 * step + (0.07 if step >= 28 else 0) for step in late}
    dispatches = {step: 0.002 + (0.01 if step in (25, 26, 30) else 0) for step in late}
    saves = {12: 9.0, 24: 0.03, 36: 7.0}
    size = child.Size(width=8, batch=4, window=6, pairs=1)
    result = child.Notes(ended, worked, saves, dispatches).result(size)
    expected = {"with": 1.1, "without": 0.6, "work": 0.07, "held": 0.03, "next": 0.02, "stretched": 0.5}
    assert result.keys() == {*expected, "step"}
    for key, value in expected.items():
        assert result[key] == pytest.approx([value]), key
    assert result["step"] == pytest.approx(0.1)
    assert size.steps == 36


def test_the_report(benchmarks):
    stall = benchmarks("checkpoint_stall")
    ours = {"with": [10.2, 10.4], "without": [10.0, 10.0], "held": [0.004, 0.006], "next": [0.001, 0.002]}
    ours["work"] = [0.03, 0.05]
    ours |= {"stretched": [0.05, 0.07], "step": 0.2, "copy": 0.003, "disk": 1020, "arrays": 1000}
    hand = {**ours, "held": [0.04, 0.06], "with": [10.5, 10.5], "disk": 1010}
    first = {"learner": ours, "hand": hand, "start": {"first": 2.0}, "resume": {"first": 2.75}}
    second = {**first, "learner": {**ours, "with": [10.1, 10.3]}, "resume": {"first": 2.25}}
    title, *lines = stall.report("10 MB", [first, second])
    assert title == "\n10 MB: a state of 0.0 MB, 16 x 128 characters a step, 50 steps a window"
    for label, numbers in {
        "a step, ms": "200 (200 to 200)",
        "a copy of the state, ms": "3 (3 to 3)",
        "learner: held by a save, ms": "5 (4 to 6)   goal <= 15 + a copy",
        "learner: the next five dispatches, ms more": "1.5 (1 to 2)",
        "learner: the next five steps, ms later": "60 (50 to 70)",
        "learner: lost by a save, ms": "250 (100 to 400)",
        "learner: processor time of a save, ms": "40 (30 to 50)",
        "learner: lost by a save every 50 steps, %": "2.5 (1 to 4)   goal < 3",
        "learner: on disk / arrays": "1.02 (1.02 to 1.02)   goal <= 1.05",
        "learner: lost with every_seconds=60, %": "0.417 (0.167 to 0.667)   goal < 0.5",
        "hand: held by a save, ms": "50 (40 to 60)",
        "hand: lost by a save every 50 steps, %": "5 (5 to 5)",
        "hand: on disk / arrays": "1.01 (1.01 to 1.01)",
        "held: learner / hand": "0.1 (0.1 to 0.1)",
        "time to resume, s": "0.5 (0.25 to 0.75)",
    }.items():
        assert f"  {label:<52} {numbers}" in lines
    # the goal is for a save every 50 steps
    assert not any("goal < 3" in line for line in stall.report("500 MB", [first]))


@pytest.mark.full
@pytest.mark.parametrize("variant", ["learner", "hand"])
@pytest.mark.usefixtures("compiled_once")
def test_a_run_is_measured(benchmarks, tmp_path, variant):
    child = benchmarks("stall_child")
    result = child.measure(child.Case("small", variant, str(tmp_path / "run")))
    assert {*PAIRS, "step", "disk", "arrays"} <= result.keys()
    assert all(len(result[key]) == child.SIZES["small"].pairs for key in PAIRS)
    assert min(result["step"], *result["with"], *result["without"], *result["held"]) > 0
    assert result["disk"] > result["arrays"] > 20_000
    if variant == "learner":
        assert result["copy"] > 0
        resumed = child.measure(child.Case("small", "resume", str(tmp_path / "run")))
        assert resumed["first"] > 0
        assert json.loads((tmp_path / "run" / "summary.json").read_text())["steps"] == child.SIZES["small"].steps + 4


@pytest.mark.full
def test_the_command_measures_in_processes(benchmarks, tmp_path):
    command = [sys.executable, "-m", "benchmarks.checkpoint_stall", "--size", "small", "--rounds", "1"]
    command += ["--platform", "cpu", "--json", str(tmp_path / "all.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    for row in benchmarks("checkpoint_stall").rows_of(benchmarks("stall_child").SIZES["small"].window):
        assert f"\n  {row.label:<52} " in done.stdout
    measured = json.loads((tmp_path / "all.json").read_text())["small"]
    assert [round_.keys() for round_ in measured] == [{"learner", "hand", "start", "resume"}]
