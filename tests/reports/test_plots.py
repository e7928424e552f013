"""Tests of plots in the terminal and in files, read back."""

import math
import re
import sys

import matplotlib.image
import numpy as np
import pytest

from learner.reports.plots import Plot, refuse_path
from learner.util.distribution import install_hint
from learner.util.ticks import ticks
from tests.support.codes import raises_code

RISING = Plot("a title", "the steps", "the rate", {"rate": ([0, 1, 2, 3], [0.0, 1.0, 2.0, 3.0])})


def first_columns(text, rows):
    """Return the first column with a mark, for each of these rows of the picture."""
    return [min(i for i, mark in enumerate(text.splitlines()[row]) if 0x2800 < ord(mark) < 0x2900) for row in rows]


def test_line_in_the_terminal():
    text = RISING.text(60, 15)
    lines = text.splitlines()
    assert len(lines) == 15
    assert max(map(len, lines)) <= 60
    assert lines[0].strip() == "a title"
    assert "the steps" in lines[-1]
    top, middle, bottom = first_columns(text, [2, 6, 11])
    assert bottom < middle < top
    assert RISING.text(60, 15) == text


def test_plot_has_no_colors():
    assert "\x1b" not in RISING.text(60, 15)


def test_points_that_are_not_finite_are_omitted():
    holes = Plot("a title", "the steps", "the rate", {"rate": ([0, 1, 2, 3], [0.0, math.nan, math.inf, 3.0])})
    assert first_columns(holes.text(60, 15), [2, 11]) == first_columns(RISING.text(60, 15), [2, 11])


@pytest.mark.full
@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("values", [[0.5, 1e308], [1.7e308, -1.7e308], [1e308], [1e100, 1e100], [2e-310, 1e-310]])
def test_extreme_numbers_are_plotted(tmp_path, values, log):
    """On either axis, too large values are omitted, and too small ones are zero."""
    steps = list(range(1, len(values) + 1))
    for line in ((steps, values), (values, steps)):
        plot = Plot("a title", "x", "y", {"rate": line}, log_x=log, log_y=log)
        assert plot.text(60, 15).splitlines()[0].strip() == "a title"
    plot.save(tmp_path / "plot.png")
    assert matplotlib.image.imread(tmp_path / "plot.png").shape == (675, 1200, 4)


@pytest.mark.parametrize("log", [False, True])
def test_ticks_of_large_numbers_are_short(log):
    """The largest float32 numbers are examples."""
    values = [1e30 if log else 0.0, 1e38, 3e38]
    text = Plot("a title", "x", "y", {"rate": ([1, 2, 3], values)}, log_y=log).text(60, 15)
    assert re.search(r"e[+]?3", text)
    assert max(line.find("┤") for line in text.splitlines()) < 10


def test_too_large_values_are_omitted():
    holes = Plot("a title", "the steps", "the rate", {"rate": ([0, 1, 2, 3], [0.0, 1e308, -1e101, 3.0])})
    assert first_columns(holes.text(60, 15), [2, 11]) == first_columns(RISING.text(60, 15), [2, 11])


def test_logarithmic_axis():
    """The logarithm is drawn as a straight line, and the ticks are rates."""
    rates = [10.0**i for i in range(-4, 1)]
    text = Plot("t", "rate", "loss", {"loss": (rates, [0, 1, 2, 3, 4])}, log_x=True).text(60, 20)
    assert [tick for tick in ("1e-4", "0.001", "0.01", "0.1", " 1") if tick not in text] == []
    left, middle, right = first_columns(text, [15, 9, 3])
    assert abs((middle - left) - (right - middle)) <= 4


def test_small_rates_on_a_logarithmic_axis():
    rates = [10.0**i for i in range(-7, -3)]
    last = Plot("t", "rate", "loss", {"loss": (rates, [0, 1, 2, 3])}, log_x=True).text(60, 12).splitlines()[-2]
    assert last.split() == ["1e-7", "1e-6", "1e-5", "1e-4"]


def test_ticks_of_the_smallest_range():
    assert ticks(0.0, 5e-324, most=4) == ([0.0], ["0"])


def test_ticks_in_little_room():
    rates = [10.0**i for i in range(-7, 2)]
    last = Plot("t", "rate", "loss", {"loss": (rates, rates)}, log_x=True).text(40, 12).splitlines()[-2]
    assert last.split() == ["1e-7", "1e-4", "0.1"]


def test_legend_names_two_lines():
    text = Plot("t", "x", "y", {"one": ([0, 1], [0, 1]), "two": ([0, 1], [1, 0])}).text(60, 15)
    assert "one" in text
    assert "two" in text
    assert "rate" not in RISING.text(60, 15).replace("the rate", "")


def test_legend_is_below_the_lines():
    falling = [9.0, 6.0, 3.0, 0.0]
    text = Plot("Loss", "step", "Loss", {"train": (range(4), falling), "valid": (range(4), falling[::-1])}).text(60, 12)
    *plot, legend = text.splitlines()
    assert legend == "• train   ⠤ valid"
    assert not [line for line in plot if "train" in line or "valid" in line]


def test_legend_is_broken_between_entries():
    lines = {f"a run-{number}": ([0, 1], [0, number]) for number in range(1, 4)}
    assert Plot("t", "x", "y", lines).text(24, 12).splitlines()[-2:] == ["● a run-1   x a run-2", "+ a run-3"]


@pytest.mark.full
def test_plot_in_a_file(tmp_path):
    RISING.save(tmp_path / "rate.png")
    dark = matplotlib.image.imread(tmp_path / "rate.png")[..., :3].min(-1) < 0.7
    assert dark.shape == (675, 1200)
    assert dark.any()
    empty = Plot("a title", "the steps", "the rate", {"rate": ([], [])})
    empty.save(tmp_path / "empty.png")
    without = matplotlib.image.imread(tmp_path / "empty.png")[..., :3].min(-1) < 0.7
    assert np.count_nonzero(dark) > np.count_nonzero(without)


def test_unwritable_file_is_an_error(tmp_path):
    with raises_code("report-not-written"):
        RISING.save(tmp_path / "nowhere" / "rate.png")


@pytest.mark.parametrize("name", ["rate.jpg", "rate", "nowhere/rate.png"])
def test_invalid_file_names_are_refused(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with raises_code("report-output-path"):
        refuse_path(name)
    refuse_path("rate.png")


@pytest.mark.parametrize(
    ("package", "use"),
    [("plotext", lambda path: RISING.text(60, 15)), ("matplotlib", lambda path: RISING.save(path / "rate.png"))],
)
def test_missing_package_is_an_error(tmp_path, monkeypatch, package, use):
    monkeypatch.setitem(sys.modules, package, None)
    with raises_code("package-missing", package, install_hint("plots")):
        use(tmp_path)
