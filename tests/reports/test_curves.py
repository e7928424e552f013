"""Tests of the data of a report's charts, with values by hand."""

import json

import pytest

from learner.reports.curves import FEWEST, curves, dimension, groups
from learner.runs import find_runs
from learner.runs.population import write_members
from tests.support.written import write_run, write_steps


def test_positions_of_values(tmp_path):
    """Epochs have two steps and take half a minute. Positions after the last whole epoch are extrapolated. Training has
    a value for each step.
    """
    run = write_run(tmp_path / "a", {"train/Loss": [3.0, 1.0], "valid/Loss": [4.0, float("nan")]}, seconds=30)
    for epoch, values in ((1, [8, 4]), (2, [2, 1]), (3, [0.5])):
        write_steps(run, "Loss", epoch, values)
    data = curves(find_runs([tmp_path]))
    (metric,) = data["metrics"]
    train, valid = metric["curves"]
    assert (metric["name"], train["split"], valid["split"]) == ("Loss", "train", "valid")
    assert train["y"] == [8, 4, 2, 1, 0.5]
    assert data["axes"] == [
        {"step": [1, 2, 3, 4, 5], "epoch": [0.5, 1, 1.5, 2, 2.5], "time": [0.25, 0.5, 0.75, 1, 1.25]},
        {"step": [2, 4], "epoch": [1, 2], "time": [0.5, 1]},
    ]
    assert (train["axes"], valid["axes"], valid["y"]) == (0, 1, [4, None])


def test_metrics_share_their_positions(tmp_path):
    for name in ("a", "b"):
        write_run(tmp_path / name, {"valid/Loss": [1.0, 2.0], "valid/Accuracy": [0.5, 0.25], "train/Loss": [1.0]})
    data = curves(find_runs([tmp_path]))
    assert [[curve["axes"] for curve in metric["curves"]] for metric in data["metrics"]] == [[0, 1, 2, 3], [0, 2]]


@pytest.mark.parametrize(
    ("config", "first"),
    [(None, ["Loss", "Accuracy"]), ("with_file_checkpointer: {monitor: valid/Recall}", ["Recall", "Loss"])],
)
def test_chart_of_the_monitor_is_first(tmp_path, config, first):
    names = ("Accuracy", "Recall", "Loss")
    run = write_run(tmp_path / "a", {f"valid/{name}": [1.0, 2.0] for name in names}, config=config)
    infos = {f"valid/{name}": {"higher_is_better": name != "Loss"} for name in names}
    (run / "summary.json").write_text(json.dumps({"metrics": infos}))
    assert [metric["name"] for metric in curves(find_runs([tmp_path]))["metrics"]][:2] == first


def test_texts_have_no_curves(tmp_path):
    write_run(tmp_path / "a", {"valid/Report": ["x"], "valid/Loss": [1.0]})
    assert [metric["name"] for metric in curves(find_runs([tmp_path]))["metrics"]] == ["Loss"]


def test_groups(tmp_path):
    """Runs are grouped by one setting, and by all settings but the seed. A setting with only distinct values has no
    groups.
    """
    for name, lr, seed, width in (("a", 0.1, 0, 1), ("b", 0.1, 1, 2), ("c", 0.2, 0, 3)):
        write_run(tmp_path / name, config=f"lr: {lr}\nseed: {seed}\nwidth: {width}\n")
    runs = find_runs([tmp_path])
    assert groups(runs, ["lr", "width"]) == {"lr": ["0.1", "0.1", "0.2"]}
    assert groups(runs, ["lr", "seed"]) == {
        "all but the seed": ["lr 0.1", "lr 0.1", "lr 0.2"],
        "lr": ["0.1", "0.1", "0.2"],
        "seed": ["0", "1", "0"],
    }


def test_runs_from_python_are_separate_groups(tmp_path):
    write_run(tmp_path / "a", config="seed: 0\n")
    write_run(tmp_path / "b", config="seed: 1\n")
    write_run(tmp_path / "c")
    assert groups(find_runs([tmp_path]), ["seed"])["all but the seed"] == ["all", "all", "c"]


def test_members_of_a_population_are_grouped_by_their_values(tmp_path):
    """Members of different populations from Python are never grouped: their other settings are unknown."""
    for place in ("one", "two"):
        members = [{"directory": f"00{i}", "lr": lr, "seed": seed} for i, (lr, seed) in enumerate([(1, 0), (1, 1)])]
        (tmp_path / place).mkdir()
        write_members(tmp_path / place, members)
        for member in members:
            run = write_run(tmp_path / place / member["directory"])
            journal = (run / "journal.jsonl").read_text().splitlines()
            start = json.dumps(json.loads(journal[0]) | {"config": {"lr": 1, "seed": member["seed"]}})
            (run / "journal.jsonl").write_text("\n".join([start, *journal[1:], ""]))
    assert groups(find_runs([tmp_path / "one"]), ["lr", "seed"])["all but the seed"] == ["lr 1", "lr 1"]
    both = groups(find_runs([tmp_path]), ["lr", "seed"])["all but the seed"]
    assert len(set(both)) == 4


@pytest.mark.parametrize(
    ("values", "at", "ticks"),
    [
        ([64, 128, 256], [0, 0.333333, 1], [[0, 0.333333, 1], ["64", "128", "256"]]),
        ([1.0, float("nan"), 1.0], [0.5, None, 0.5], [[0.5], ["1"]]),
        ([True, False, None], [0, 0.5, 1], [[0, 0.5, 1], ["true", "false", "-"]]),
        ([0, 1, 2, 3, 4, 5], [0, 0.2, 0.4, 0.6, 0.8, 1], [[0, 0.4, 0.8], ["0", "2", "4"]]),
    ],
    ids=str,
)
def test_dimensions(values, at, ticks):
    assert dimension("x", values) == {"name": "x", "at": at, "ticks": ticks}


def test_run_without_epochs_has_no_curves(tmp_path):
    write_run(tmp_path / "a", {}, ending=None)
    assert curves(find_runs([tmp_path])) == {"axes": [], "metrics": []}


@pytest.mark.parametrize("steps", [3, 5000])
def test_number_of_points_is_bounded(tmp_path, steps):
    """The last step always has a point."""
    run = write_run(tmp_path / "a", {"train/Loss": [1.0]}, steps=steps)
    write_steps(run, "Loss", 1, range(steps))
    data = curves(find_runs([tmp_path]))
    assert len(data["metrics"][0]["curves"][0]["y"]) == min(steps, 1000)
    assert data["axes"][0]["step"][-1] == steps


@pytest.mark.full
def test_curves_of_many_runs_have_fewer_points(tmp_path):
    for number in range(30):
        write_run(tmp_path / str(number), {"valid/Loss": [float(i) for i in range(1000)]})
    lengths = [len(curve["y"]) for curve in curves(find_runs([tmp_path]))["metrics"][0]["curves"]]
    assert lengths == [FEWEST] * 30


def test_many_validations_are_averaged(tmp_path):
    write_run(tmp_path / "a", {"valid/Loss": [float(i) for i in range(2500)]})
    (curve,) = curves(find_runs([tmp_path]))["metrics"][0]["curves"]
    assert (len(curve["y"]), curve["y"][0], curve["low"][0], curve["high"][0]) == (834, 1, 0, 2)
