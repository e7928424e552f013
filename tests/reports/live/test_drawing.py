"""Tests of metrics as lines of a plot."""

import numpy as np
import pytest

from learner.reports.live.drawing import draw
from learner.reports.live.view import PlotView
from tests.support.written import write_run, write_steps


def lines(drawing):
    return {curve.label: (curve.x.tolist(), curve.y.tolist()) for curve in drawing.curves}


def test_steps_and_splits_in_one_plot(runs, watch):
    drawing = draw(watch("runs/a").runs, PlotView(), "Loss", 80)
    assert (drawing.title, drawing.x, drawing.window, drawing.note) == ("Loss", "optimizer step", (1.0, 6.0), "")
    assert lines(drawing) == {
        "train": ([1, 2, 3, 4, 5, 6], [1, 0.5, 0.5, 0.25, 1 / 3, 0.5 / 3]),
        "valid": ([2, 4, 6], [0.8, 0.6, 0.7]),
    }


def test_axes_of_epochs_and_time(runs, watch):
    watched_runs = watch("runs/a").runs
    assert lines(draw(watched_runs, PlotView(x="epoch"), "Loss", 80)) == {
        "train": ([1, 2, 3], [0.9, 0.5, 0.4]),
        "valid": ([1, 2, 3], [0.8, 0.6, 0.7]),
    }
    steps = draw(watched_runs, PlotView(x="epoch", each=True), "train/Loss", 80)
    assert lines(steps)["train"][0] == [0.5, 1, 1.5, 2, 2.5, 3]
    minutes = lines(draw(watched_runs, PlotView(x="time"), "valid/Loss", 80))["valid"][0]
    np.testing.assert_allclose(minutes, [10 / 60, 20 / 60, 30 / 60])


def test_lines_of_several_runs(runs, watch):
    watched_runs = watch("runs").runs
    drawing = draw(watched_runs, PlotView(), "Loss", 80)
    assert list(lines(drawing)) == ["a train", "a valid", "b train", "b valid"]
    assert [curve.number for curve in drawing.curves] == [0, 1, 2, 3]
    alone = draw(watched_runs, PlotView(alone=True, run=1), "valid/Loss", 80)
    assert [(curve.label, curve.number) for curve in alone.curves] == [("b valid", 3)]  # its color stays


def test_smoothing(runs, watch):
    """By hand: the first value is unchanged, and the second is (0.5·0.8 + 0.6) / 1.5."""
    watched_runs = lines(draw(watch("runs/a").runs, PlotView(smooth=0.5), "valid/Loss", 80))["valid"][1]
    np.testing.assert_allclose(watched_runs, [0.8, 1 / 1.5, (0.25 * 0.8 + 0.5 * 0.6 + 0.7) / 1.75])


def test_zoom(runs, watch):
    view = PlotView(zoom=1)
    drawing = draw(watch("runs/a").runs, view, "Loss", 80)
    assert drawing.window == (3.5, 6.0)
    assert lines(drawing)["train"][0] == [4, 5, 6]
    assert lines(drawing)["valid"][0] == [4, 6]


def test_zoom_shows_single_steps_at_the_end(tmp_path, watch):
    directory = write_run(tmp_path / "a", {"train/Loss": [1.0]}, steps=100_000)
    write_steps(directory, "Loss", 1, np.arange(100_000))
    watched_runs = watch(directory).runs
    (curve,) = draw(watched_runs, PlotView(zoom=6), "train/Loss", 1000).curves
    assert np.array_equal(curve.x, np.arange(100_000 - len(curve.x) + 1, 100_001))
    assert np.array_equal(curve.y, curve.x - 1)


def test_number_of_points_is_bounded_by_the_width(tmp_path, watch):
    directory = write_run(tmp_path / "a", {"train/Loss": [1.0]}, steps=1000)
    write_steps(directory, "Loss", 1, np.arange(1000))
    (curve,) = draw(watch(directory).runs, PlotView(), "train/Loss", 50).curves
    assert len(curve.x) == 101
    assert (curve.x[0], curve.y[0]) == (10, 4.5)
    assert (curve.x[-1], curve.y[-1]) == (1000, 999)  # the newest value is not averaged


def test_logarithmic_axis_omits_negative_values(tmp_path, watch):
    watched_runs = watch(write_run(tmp_path / "a", {"valid/F": [1.0, -1.0, 2.0]})).runs
    drawing = draw(watched_runs, PlotView(log=True), "F", 80)
    assert lines(drawing)["valid"] == ([2, 6], [1, 2])
    assert drawing.note == "what is not above 0 is left out"
    assert draw(watched_runs, PlotView(), "F", 80).note == ""


@pytest.mark.parametrize(
    ("values", "view", "note"),
    [
        ({"valid/F": [float("nan")]}, PlotView(), "no value here"),
        ({"valid/F": [1.7e308, -1e101]}, PlotView(), "no value here"),
        ({"valid/F": [-1.0]}, PlotView(log=True), "no value above 0, which a logarithmic axis needs"),
        ({"valid/G": [1.0]}, PlotView(), "no run has it yet"),
        ({}, PlotView(x="epoch"), "no run has it yet"),
    ],
)
def test_note_of_an_empty_plot(tmp_path, watch, values, view, note):
    drawing = draw(watch(write_run(tmp_path / "a", values)).runs, view, "F", 80)
    assert (drawing.note, drawing.curves, drawing.window) == (note, [], None)


def test_unfinished_epoch(tmp_path, watch):
    directory = write_run(tmp_path / "a", {}, ending=None)
    write_steps(directory, "Loss", 1, [3, 2, 1])
    watched_runs = watch(directory).runs
    assert lines(draw(watched_runs, PlotView(), "Loss", 80)) == {"train": ([1, 2, 3], [3, 2, 1])}
    assert draw(watched_runs, PlotView(x="epoch"), "Loss", 80).note == "no epoch has ended yet"


def test_control_characters_in_names_are_replaced(tmp_path, watch):
    watched_runs = watch(write_run(tmp_path / "a", {"valid\x1b[2J/F\x07": [1.0]})).runs
    drawing = draw(watched_runs, PlotView(), "F\x07", 80)
    assert (drawing.title, drawing.curves[0].label) == ("F?", "valid?[2J")
