"""The curves of a report, by hand."""

import pytest

from learner.reports.curves import curves, seeds
from learner.runs import find_runs
from tests.support.written import write_run, write_steps


def test_the_places_of_values(tmp_path):
    """Epochs of two steps and of half a minute; what comes after the last whole epoch goes on as steeply."""
    run = write_run(tmp_path / "a", {"train/Loss": [3.0, 1.0], "valid/Loss": [4.0, float("nan")]}, seconds=30)
    for epoch, values in ((1, [8, 4]), (2, [2, 1]), (3, [0.5])):
        write_steps(run, "Loss", epoch, values)
    (metric,) = curves(find_runs([tmp_path]))
    each, train, valid = metric["curves"]
    assert (metric["name"], each["split"], each["each"], train["each"]) == ("Loss", "train", True, False)
    assert each["y"] == [8, 4, 2, 1, 0.5]
    assert each["x"] == {"step": [1, 2, 3, 4, 5], "epoch": [0.5, 1, 1.5, 2, 2.5], "time": [0.25, 0.5, 0.75, 1, 1.25]}
    assert train["y"] == [3, 1]
    assert train["x"]["epoch"] == [1, 2]
    assert valid["y"] == [4, None]


def test_texts_have_no_curve(tmp_path):
    write_run(tmp_path / "a", {"valid/Report": ["x"], "valid/Loss": [1.0]})
    assert [metric["name"] for metric in curves(find_runs([tmp_path]))] == ["Loss"]


def test_seeds_together(tmp_path):
    for name, seed, losses in (("a", 0, [1.0, 2.0]), ("b", 1, [3.0, 6.0]), ("c", 2, [5.0, 1.0])):
        write_run(tmp_path / name, {"valid/Loss": losses}, config=f"seed: {seed}\ndirectory: {name}\nlr: 0.1\n")
    write_run(tmp_path / "other", {"valid/Loss": [1.0]}, config="seed: 3\nlr: 0.2\n")
    write_run(tmp_path / "python", {"valid/Loss": [1.0]})
    runs = find_runs([tmp_path])
    assert seeds(runs) == [[0, 1, 2]]
    (band,) = [curve for curve in curves(runs)[0]["curves"] if "runs" in curve]
    assert (band["runs"], band["y"], band["low"], band["high"]) == ([0, 1, 2], [3, 3], [1, 1], [5, 6])
    assert band["x"]["step"] == [2, 4]


def test_a_seed_that_came_less_far(tmp_path):
    """The mean is only where all of them have been."""
    for seed, losses in ((0, [1.0, 2.0, 3.0]), (1, [3.0, 4.0])):
        write_run(tmp_path / str(seed), {"valid/Loss": losses}, config=f"seed: {seed}\n")
    (band,) = [curve for curve in curves(find_runs([tmp_path]))[0]["curves"] if "runs" in curve]
    assert (band["x"]["step"], band["y"]) == ([2, 4], [2, 3])


def test_no_epoch_yet(tmp_path):
    write_run(tmp_path / "a", {}, ending=None)
    assert curves(find_runs([tmp_path])) == []


@pytest.mark.parametrize("steps", [3, 5000])
def test_many_steps(tmp_path, steps):
    """Never more points than a picture can show, and always up to the last step."""
    run = write_run(tmp_path / "a", {"train/Loss": [1.0]}, steps=steps)
    write_steps(run, "Loss", 1, range(steps))
    each = curves(find_runs([tmp_path]))[0]["curves"][0]
    assert len(each["y"]) == min(steps, 1000)
    assert each["x"]["step"][-1] == steps


def test_many_validations(tmp_path):
    write_run(tmp_path / "a", {"valid/Loss": [float(i) for i in range(2500)]})
    (curve,) = curves(find_runs([tmp_path]))[0]["curves"]
    assert (len(curve["y"]), curve["y"][0], curve["low"][0], curve["high"][0]) == (834, 1, 0, 2)


def test_a_seed_that_diverged(tmp_path):
    """The mean with it is no number either."""
    nan = float("nan")
    for seed, losses in ((0, [1.0, 2.0, 3.0]), (1, [3.0, nan, nan])):
        write_run(tmp_path / str(seed), {"valid/Loss": losses}, config=f"seed: {seed}\n")
    (band,) = [curve for curve in curves(find_runs([tmp_path]))[0]["curves"] if "runs" in curve]
    assert (band["y"], band["high"]) == ([2, None, None], [3, None, None])
