"""Tests of the state that keys change."""

import pytest

from learner.reports.live.view import CLOSEST, PlotView
from tests.support.codes import raises_code


def test_shown_metrics():
    view = PlotView()
    assert view.shown([], 4) == []
    assert view.shown(["a", "b", "c"], 2) == ["a", "b"]
    view.first = -1
    assert view.shown(["a", "b", "c"], 2) == ["c", "a"]
    view.many = False
    assert view.shown(["a", "b", "c"], 2) == ["c"]
    assert PlotView(["valid/a"]).shown(["a", "b"], 2) == ["valid/a"]


def test_axes_and_their_values():
    view = PlotView()
    seen = []
    for _ in range(4):
        seen.append((view.x, view.is_each))
        view.next_axis()
    assert seen == [("step", True), ("epoch", False), ("time", True), ("step", True)]
    assert PlotView(x="epoch", each=True).is_each


def test_smoothing_cycles():
    view, seen = PlotView(), []
    for _ in range(7):
        seen.append(view.smooth)
        view.smoother()
    assert seen == [0.0, 0.5, 0.8, 0.9, 0.95, 0.99, 0.0]


def test_zoom_at_the_end_follows_the_run():
    view = PlotView()
    view.zoom_in()
    assert view.window(0, 100) == (50, 100)
    assert view.window(0, 200) == (100, 200)
    view.zoom_in()
    assert view.window(0, 100) == (75, 100)


def test_zoom_keeps_the_middle():
    view = PlotView()
    view.zoom_in()
    view.pan(-0.5)
    assert view.window(0, 100) == (25, 75)
    view.zoom_in()
    assert view.window(0, 100) == (37.5, 62.5)
    view.zoom_out()
    assert view.window(0, 100) == (25, 75)
    view.zoom_out()
    assert view.window(0, 100) == (0, 100)
    view.zoom_out()
    assert (view.zoom, view.end) == (0, 1.0)


def test_window_stays_inside_the_run():
    view = PlotView()
    view.pan(-1)
    assert view.window(0, 100) == (0, 100)
    view.zoom_in()
    for _ in range(9):
        view.pan(-0.25)
    assert view.window(0, 100) == (0, 50)
    for _ in range(9):
        view.pan(0.25)
    assert view.window(0, 100) == (50, 100)
    for _ in range(40):
        view.zoom_in()
    assert view.zoom == CLOSEST
    view.zoom_off()
    assert view.window(0, 100) == (0, 100)


@pytest.mark.parametrize(
    ("how", "code", "shown"),
    [({"x": "epochs"}, "report-axis-unknown", ["'epoch'"]), ({"smooth": 1.0}, "report-smooth-value", [])],
)
def test_invalid_arguments_are_refused(how, code, shown):
    with raises_code(code, *shown):
        PlotView(**how)
