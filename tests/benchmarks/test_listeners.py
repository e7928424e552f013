"""Tests of the listener benchmark and its numbers."""

import dataclasses
import importlib
import json
from pathlib import Path

import jax
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def benchmarks(monkeypatch):
    """Return a module of the benchmarks, which are not part of the package."""
    monkeypatch.syspath_prepend(str(ROOT))
    with jax.numpy_dtype_promotion("standard"):  # optax.adamw mixes int32 and float32
        yield lambda name: importlib.import_module(f"benchmarks.{name}")


def test_the_report(benchmarks):
    """Speeds are ratios within a round: the opponent's time divided by the run's."""
    first = {name: {"seconds": seconds} for name, seconds in (("none", 0.04), ("files", 0.05), ("rich", 0.08))}
    first |= {"JsonLines": {"seconds": 0.1}, "20 metrics": {"seconds": 0.16}}
    second = {**first, "rich": {"seconds": 0.04}}
    lines = benchmarks("listeners").report([first, second])
    for label, numbers in {
        "none: ms per epoch": "40 (40 to 40)",
        "rich: ms per epoch": "60 (40 to 80)",
        "speed: files / nothing": "0.8 (0.8 to 0.8)",
        "speed: files and rich / nothing": "0.75 (0.5 to 1)   goal >= 0.97",
        "speed: JsonLines besides / files and rich": "0.6 (0.4 to 0.8)   goal >= 0.99",
        "speed: 20 metrics / 2": "0.375 (0.25 to 0.5)   goal >= 0.95",
    }.items():
        assert f"  {label:<52} {numbers}" in lines
    assert not any("Csv" in line for line in lines)


@pytest.mark.parametrize(("variant", "least", "most"), [("files", 20, 40), ("JsonLines", 120, 150), ("Csv", 35, 50)])
def test_cost_of_a_step(benchmarks, variant, least, most):
    """A line of JSON has about 130 bytes, a row of a table 40, two lines of the run's own files 27."""
    child = benchmarks("listeners_child")
    measured = child.cost(child.Case("cost", variant, steps=1000, every=None if variant == "files" else 1))
    assert least < measured["bytes"] < most
    assert measured["us"] > 0


@pytest.mark.full
def test_the_command_measures_in_processes(benchmarks, monkeypatch, tmp_path, capsys):
    """A training and a cost are measured in processes, as by the command; the others differ in their case alone, and
    are measured here, on fewer rows.
    """
    module, child, spawned = benchmarks("listeners"), benchmarks("listeners_child"), []
    spawn = module.spawn

    def once(command, platform):
        case = child.Case(**json.loads(command[-1]))
        if case.kind not in spawned:
            spawned.append(case.kind)
            return spawn(command, platform)
        with monkeypatch.context() as patch:
            patch.setattr(child.run_outputs, "RunFiles", child.run_outputs.RunFiles)  # which `none` replaces
            return (
                child.cost(case) if case.kind == "cost" else child.train(dataclasses.replace(case, workload="digits"))
            )

    monkeypatch.setattr(module, "spawn", once)
    only = ("none", "files", "rich", "JsonLines", "20 metrics")  # the others differ in their logger alone
    command = ["--quick", "--rounds", "1", "--steps", "300", "--platform", "cpu"]
    module.main([*command, "--json", str(tmp_path / "all.json"), "--only", *only])
    printed = capsys.readouterr().out
    for row in module.rows():
        assert (f"\n  {'speed: ' + row.label:<52} " in printed) == (row.name in only)
    assert spawned == ["train", "cost"]
    measured = json.loads((tmp_path / "all.json").read_text())
    assert measured["costs"].keys() == {name for name in module.costs([300]) if name.startswith(only)}
    assert all(cost["us"] > 0 and cost["bytes"] > 0 for cost in measured["costs"].values())
