"""Tests of the legend and the colors; `test_app.py` tests plots."""

import numpy as np

from learner.reports.live.drawing import Drawing, PlotCurve
from learner.reports.live.widgets import colour_of, legend
from tests.support.colours import channels, contrast, smallest_distance


def drawing(*labels, note=""):
    line = np.array([1.0, 2.0])
    return Drawing("Loss", "step", [PlotCurve(label, n, line, line) for n, label in enumerate(labels)], (1, 2), note)


def test_legend():
    assert legend(drawing("train", "valid"), 80, True).plain == "Loss  ━━ train  ━━ valid"
    assert legend(drawing("train", "valid"), 80, False).plain == "Loss  ● train  x valid"
    assert legend(drawing("train"), 80, False).plain == "Loss   train"
    assert legend(drawing("train", note="odd"), 80, True).plain == "Loss  odd  ━━ train"
    assert legend(None, 80, True).plain == ""


def test_legend_is_shortened():
    assert legend(drawing("train", "valid", "test"), 30, True).plain == "Loss  ━━ train  ━━ valid  …"
    assert legend(drawing("train", "valid", "test"), 33, True).plain == "Loss  ━━ train  ━━ valid  ━━ test"
    assert len(legend(drawing("x" * 50), 20, True).plain) <= 20


def test_names_are_not_markup():
    assert "[red]x[/red]" in legend(drawing("[red]x[/red]"), 80, True).plain


def test_colors_of_13_runs_with_two_splits_differ_visibly():
    """Distances are measured in OKLab, and contrasts with the backgrounds of Textual's dark theme."""
    colours = [[channel / 255 for channel in colour_of(number)] for number in range(26)]
    assert smallest_distance(colours) >= 0.11
    assert min(contrast(color, channels(back)) for color in colours for back in ("#121212", "#1e1e1e")) >= 3
    assert len({colour_of(number) for number in range(78)}) == 78
