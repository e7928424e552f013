"""Tests of the benchmarks of startup and of long runs, and of the README's table."""

import importlib
import os
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
    return lambda name: importlib.import_module(f"benchmarks.{name}")


def measured(startup, cpu, compiled):
    stages = {stage: [2, 0.5] for stage in startup.STAGES} | {"backend_compile_duration": [compiled, cpu]}
    times = {"imports": [cpu, 2 * cpu], "first steps": [cpu + 1, cpu + 2], "end": [2 * cpu, 0]}
    return {"times": times, "runs": [{"stages": stages, "programs": [["train", [3, 1.5]], ["make", [1, 0.25]]]}]}


def test_the_report_has_medians(benchmarks):
    startup = benchmarks("startup")
    lines = startup.report("object", [measured(startup, *pair) for pair in ((1, 9), (3, 8), (2, 10))])
    assert [" ".join(line.split()) for line in lines] == [
        "object imports 2.00 (4.00), first steps 3.00 (4.00), end 4.00 (0.00)",
        "first run: traced 2 in 0.50 s, lowered 2 in 0.50 s, compiled 9 in 2.00 s",
        "programs: train (3x, 1.50 s), make (1x, 0.25 s)",
    ]


def test_the_cost_of_a_further_metric(benchmarks):
    """The seconds of 99 further ones, divided by 99: the medians of 0.99 and of 2.97."""
    startup = benchmarks("startup")
    cases = {f"{count} metrics": ["function", "--metrics", str(count)] for count in (1, 25, 100)}
    rounds = {"1 metrics": (2, 2), "25 metrics": (9, 9), "100 metrics": (2.99, 4.97)}
    results = {name: [measured(startup, cpu, 1) for cpu in values] for name, values in rounds.items()}
    words = startup.cost_of_metrics(cases, results)[0].split()
    assert (words[3], words[10]) == ("0.0200", "0.0400")
    assert startup.cost_of_metrics({"plain": ["plain"]}, results) == []


def test_each_further_metric_has_a_name_of_its_own(benchmarks):
    metrics = [benchmarks("startup").further_metric(number) for number in range(99)]
    assert len({metric.name for metric in metrics}) == 99


@pytest.mark.full
@pytest.mark.parametrize("devices", [1, 8])
@pytest.mark.parametrize("workload", ["digits", "equinox", "linen"])
def test_both_loops_by_hand_train_alike(benchmarks, workload, devices):
    child, loops = benchmarks("child"), benchmarks("loops")
    work = child.workload_of(child.Case(workload, "plain", rows=96))
    marks: list[str] = []
    with jax.numpy_dtype_promotion("standard"):  # optax.adamw mixes int32 and float32
        plain = np.array(loops.plain(work, 2, marks.append, devices))
        tuned = np.array(loops.tuned(work, 2, marks.append, devices))
    assert plain.shape == (2, 2)
    assert np.all(plain[1] < plain[0])
    np.testing.assert_allclose(tuned, plain, rtol=1e-4)
    assert marks.count("step") >= 2


@pytest.mark.full
def test_the_command_measures_in_processes(benchmarks, monkeypatch, capsys):
    """Cases of `function` are processes, as by the command; those of `fit` differ in their case alone, and are measured
    here.
    """
    startup, spawned = benchmarks("startup"), []
    spawn = startup.spawn
    monkeypatch.setenv("BEGAN", "0")  # the command sets both
    monkeypatch.setenv("XLA_FLAGS", os.environ.get("XLA_FLAGS", ""))

    def once(command, platform, cache):
        workload, name, _, devices = command[3:]
        if name == "function":
            spawned.append(cache is not None)
            return spawn(command, platform, cache)
        with jax.numpy_dtype_promotion("standard"):  # as in the process of a user
            return startup.measure(workload, name, int(devices), 1, float(os.environ["BEGAN"]))

    monkeypatch.setattr(startup, "spawn", once)
    cases = ["function", "fit"]
    command = ["--workload", "digits", "--rounds", "1", "--platform", "cpu", "--case", *cases]
    startup.main([*command, "--devices", "2", "--cache"])
    assert sorted(spawned) == [False, True, True]
    lines = capsys.readouterr().out.splitlines()
    named = [line[2:19].strip() for line in lines if " imports " in line]
    assert named == [*cases, *(f"{x} cached" for x in cases)]
    seconds = [line for line in lines if "second run:" in line]
    assert len(seconds) == 2
    assert all("compiled 0 in 0.00 s" in line for line in seconds)


def test_the_report_of_a_long_run(benchmarks):
    """Compare the last tenth with the second, from rows of epoch, CPU seconds, wall seconds and MiB."""
    rows = [[0, 5, 10, 90], [10, 7, 12, 100], [20, 7.1, 12.2, 101], [30, 7.3, 12.5, 104]]
    lines = benchmarks("long_runs").report("epochs", {"rows": rows, "left": [7, 2_500_000]})
    assert [" ".join(line.split()) for line in lines[1:]] == [
        "to epoch 10: 200 ms CPU, 200 ms an epoch, 100 MiB",
        "to epoch 20: 10 ms CPU, 20 ms an epoch, 101 MiB",
        "to epoch 30: 20 ms CPU, 30 ms an epoch, 104 MiB",
        "last / second part: CPU 2.00, wall 1.50, +3 MiB",
        "7 files, 2.5 MB",
    ]


@pytest.mark.full
def test_a_long_run_is_measured_in_ten_parts(benchmarks):
    command = [sys.executable, "-m", "benchmarks.long_runs", "--run", "epochs", "--epochs", "20", "--platform", "cpu"]
    done = subprocess.run([*command, "--logger", "JsonLines"], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    epochs = [int(line.split()[2].rstrip(":")) for line in done.stdout.splitlines() if "to epoch" in line]
    assert epochs == list(range(2, 21, 2))


def test_the_table_of_the_readme(benchmarks):
    """The opponent is the hand-written loop with the lowest median, and cells where learner loses are bold."""
    readme = benchmarks("readme")

    def rounds(*seconds, peak=100):
        return [{"seconds": s, "peak": peak, "first": 10 * s} for s in seconds]

    results = {"hand gather": rounds(9, 9, 9), "hand slice": rounds(2, 4, 8), "limit": rounds(1, 2, 1)}
    results |= {"learner": rounds(1, 4, 2, peak=150), "first hand cold": rounds(1, 1, 1)}
    results |= {"first learner cold": rounds(0.5, 0.5, 0.5)}
    assert readme.rows_of(results) == {
        "speed ÷ loop by hand": "2.00 (1.00 to 4.00)",
        "speed ÷ limit": "**0.50 (0.50 to 1.00)**",
        "peak memory ÷ loop by hand": "**1.50**",
        "to the first step, over the loop by hand": "-5.0 s of 10.0 s",
    }
