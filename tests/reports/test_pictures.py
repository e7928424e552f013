"""Tests of the lines of plots of runs."""

import json
import math

import pytest

from learner.reports.pictures import picture
from learner.runs import find_runs
from tests.support.codes import raises_code
from tests.support.written import write_run, write_steps


@pytest.fixture
def runs(tmp_path):
    write_run(tmp_path / "a", {"train/Loss": [4.0, 2.0], "valid/Loss": [3.0, 1.0], "valid/Report": ["x", "y"]})
    write_run(tmp_path / "b", {"valid/Loss": [5.0, -1.0, float("nan")]})
    write_steps(tmp_path / "a", "Loss", 1, [8, 4])
    return find_runs([tmp_path])


def test_plot_of_all_splits(runs):
    plot = picture(runs[:1], "Loss")
    assert plot.lines == {"train/Loss": ([2, 4], [4, 2]), "valid/Loss": ([2, 4], [3, 1])}
    assert (plot.x, plot.y, plot.title) == ("optimizer step", "Loss", "Loss")


@pytest.mark.parametrize(("x", "places"), [("epoch", [1, 2]), ("time", [10 / 60, 20 / 60])])
def test_axes_of_epochs_and_time(runs, x, places):
    assert picture(runs[:1], "valid/Loss", x=x).lines == {"valid/Loss": (places, [3, 1])}


def test_lines_of_several_runs_have_their_names(runs):
    """The metric is in the names only if the lines have several."""
    plot = picture(runs, "valid/Loss")
    assert (plot.title, [*plot.lines]) == ("valid/Loss", ["a", "b"])
    assert list(picture(runs, "Loss").lines) == ["a train/Loss", "a valid/Loss", "b valid/Loss"]


def test_the_lines_of_the_best_of_many_runs_are_drawn(tmp_path):
    for number in range(20):
        write_run(tmp_path / f"{number}", {"valid/Loss": [abs(number - 10.4)], "valid/Score": [-abs(number - 10.4)]})
        metrics = {"valid/Loss": {"higher_is_better": False}, "valid/Score": {"higher_is_better": True}}
        (tmp_path / f"{number}" / "summary.json").write_text(json.dumps({"metrics": metrics}))
    runs = find_runs([tmp_path])
    for metric in ("valid/Loss", "valid/Score"):
        plot = picture(runs, metric, most=8)
        assert [*plot.lines] == ["7", "8", "9", "10", "11", "12", "13", "14"]
        assert plot.left_out == 12
    assert picture(runs[:8], "valid/Loss", most=8).left_out == 0
    assert len(picture(runs, "valid/Loss").lines) == 20


def test_plot_of_each_step(runs):
    assert picture(runs[:1], "train/Loss", steps=True).lines == {"train/Loss": ([1, 2], [8, 4])}


def test_smoothing(tmp_path):
    """By hand: 1, then (0.5·0.5·1 + 0.5·3) / 0.75, and so on."""
    write_run(tmp_path / "a", {"valid/Loss": [1.0, 3.0, float("nan"), 3.0]})
    _, values = picture(find_runs([tmp_path]), "valid/Loss", smooth=0.5).lines["valid/Loss"]
    assert values[:2] == pytest.approx([1, (0.25 * 1 + 0.5 * 3) / 0.75])
    assert math.isnan(values[2])
    assert values[3] == pytest.approx((0.125 * 1 + 0.25 * 3 + 0.5 * 3) / 0.875)


def test_logarithmic_axis_omits_negative_values(runs):
    assert picture(runs[1:], "valid/Loss", log=True).drawable_lines() == {"valid/Loss": ([2], [5])}
    assert picture(runs[1:], "valid/Loss", log=True).log_y


@pytest.mark.parametrize(
    ("metric", "options", "code", "shown"),
    [
        ("valid/Los", {}, "report-metric-missing", ["'valid/Los'", "'valid/Loss'"]),
        ("valid/Report", {}, "report-metric-not-drawable", []),
        ("valid/Loss", {"x": "tme"}, "report-axis-unknown", ["'tme'", "'time'"]),
        ("valid/Loss", {"x": "time", "steps": True}, "report-axis-steps-only", []),
        ("valid/Loss", {"smooth": 1.0}, "report-smooth-value", ["is 1.0"]),
    ],
)
def test_invalid_arguments_are_refused(runs, metric, options, code, shown):
    with raises_code(code, *shown):
        picture(runs, metric, **options)


def test_values_that_are_all_too_large_are_refused(tmp_path):
    runs = find_runs([write_run(tmp_path / "a", {"valid/F": [1e308, 10**300]})])
    with raises_code("report-metric-not-drawable", "valid/F", "1e+100"):
        picture(runs, "valid/F")


def test_logarithmic_axis_without_positive_values_is_refused(tmp_path):
    write_run(tmp_path / "a", {"valid/Loss": [-1.0]})
    with raises_code("report-log-axis-empty"):
        picture(find_runs([tmp_path]), "valid/Loss", log=True)


@pytest.mark.parametrize("value", [float("inf"), 1.7e308])
def test_values_that_no_axis_can_show_are_not_blamed_on_the_logarithm(tmp_path, value):
    write_run(tmp_path / "a", {"valid/Loss": [value]})
    with raises_code("report-metric-not-drawable", "1e+100"):
        picture(find_runs([tmp_path]), "valid/Loss", log=True)
