"""The benchmarks of what surrounds the steps, and the table of the README."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def benchmarks(monkeypatch):
    """Imports a module of the benchmarks, which are no part of the package."""
    monkeypatch.syspath_prepend(str(ROOT))
    return lambda name: importlib.import_module(f"benchmarks.{name}")


def test_the_report_has_medians(benchmarks):
    startup = benchmarks("startup")

    def measured(cpu, compiled):
        stages = {stage: [2.0, 0.5] for stage in startup.STAGES} | {"backend_compile_duration": [compiled, cpu]}
        return {"times": {"imports": [cpu, 2 * cpu], "end": [cpu + 1, cpu + 2]}, "stages": [stages]}

    lines = startup.report("object", [measured(1, 9), measured(3, 8), measured(2, 10)])
    assert [" ".join(line.split()) for line in lines] == [
        "object imports 2.00 (4.00), end 3.00 (4.00)",
        "first run: traced 2 in 0.50 s, lowered 2 in 0.50 s, compiled 9 in 2.00 s",
    ]


@pytest.mark.full
def test_the_command_measures_in_processes():
    command = [sys.executable, "-m", "benchmarks.startup", "--workload", "digits", "--rounds", "1", "--platform", "cpu"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines if " imports " in line] == ["hand", "object", "function"]
    seconds = [line for line in lines if "second run:" in line]
    assert len(seconds) == 2
    assert all("compiled 0 in 0.00 s" in line for line in seconds)


def test_the_table_of_the_readme(benchmarks):
    """The opponent is the loop by hand with the lowest median, and what is lost is bold."""
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
