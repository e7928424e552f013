"""Metrics of runs as curves of a plot."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from learner.reports.live.live_run import TRAIN, LiveRun
from learner.reports.live.view import PlotView
from learner.reports.live.watched import keys_of
from learner.reports.pictures import LABELS
from learner.reports.plots import drawable
from learner.runs.thinning import Floats, group_size, smoothed, thin
from learner.util.text import printable

MEMORY = 8
"""Values read before a smoothed line is shown, in lengths of its memory. Earlier values contribute 0.03 %."""
FINER = 2
"""Points per column of a terminal."""


@dataclasses.dataclass(frozen=True)
class PlotCurve:
    """A curve of a plot.

    Attributes:
      label: its run and its split.
      number: the index among all runs and splits, which determines the colour.
      x: float64 `[points]`.
      y: float64 `[points]`, all finite.
    """

    label: str
    number: int
    x: Floats
    y: Floats


@dataclasses.dataclass(frozen=True)
class Drawing:
    """The content of a plot.

    Attributes:
      title: the metric and its unit.
      x: the label of the horizontal axis.
      curves: the curves that have points.
      window: the limits of the horizontal axis, or `None` if there is no point.
      note: the reason why the plot is empty, or a problem with it.
    """

    title: str
    x: str
    curves: Sequence[PlotCurve]
    window: tuple[float, float] | None
    note: str = ""


def draw(runs: Sequence[LiveRun], view: PlotView, metric: str, columns: int) -> Drawing:
    """Return the drawing of a metric of several runs.

    Args:
      runs: all watched runs.
      view: the settings of the plots.
      metric: a name or a key.
      columns: the width of the plot.
    """
    visible = runs[view.run % len(runs) :][:1] if view.alone and runs else runs
    chosen = [(run, key) for run in visible for key in keys_of(run, metric)]
    series = [(run, key, *_values(run, key, view)) for run, key in chosen]
    places = [x for _, _, x, _ in series if len(x)]
    low, high = min((float(x[0]) for x in places), default=0.0), max((float(x[-1]) for x in places), default=0.0)
    window = view.window(low, high)
    splits = list(dict.fromkeys(key.split("/", 1)[0] for run in runs for key in run.keys))
    curves, lost = [], False
    for run, key, x, y in series:
        if view.zoom and view.x == "step":
            # The newest steps are known individually. A mean starts further back, so that it has forgotten its first
            # value.
            x, y = _values(run, key, view, since=window[0] - (MEMORY / (1 - view.smooth) if view.smooth else 0))
        y = drawable(smoothed(y, view.smooth) if view.smooth else y)
        fine = ~np.isnan(y) & (y > 0 if view.log else True)
        lost |= bool(view.log and (y <= 0).any())
        inside = fine & (x >= window[0]) & (x <= window[1])
        split = key.split("/", 1)[0]
        label = printable(f"{run.name} {split}" if len(runs) > 1 else split)
        number = runs.index(run) * len(splits) + splits.index(split)
        if inside.any():
            x, y = _fewer(x[inside], y[inside], FINER * max(columns, 1))
            curves.append(PlotCurve(label, number, x, y))
    units = dict.fromkeys(run.run.info(key).unit for run, key in chosen)
    unit = " ".join(f"({unit})" for unit in units if unit)
    note = _note(curves, series, view) or ("what is not above 0 is left out" if lost else "")
    return Drawing(printable(f"{metric} {unit}".strip()), LABELS[view.x], curves, window if curves else None, note)


def _values(run: LiveRun, key: str, view: PlotView, since: float = 0) -> tuple[Floats, Floats]:
    """Return positions on the axis and values, of steps if the view shows them and they are known, else of splits."""
    step, y = run.each_step(key, since) if view.is_each and key.startswith(TRAIN) else (np.zeros(0), np.zeros(0))
    if not len(step):
        step, y = run.run.split_values(key)
    if view.x == "step" or not len(step):
        return step, y
    places = run.run.axes(step)[view.x]
    return places / 60 if view.x == "time" else places, y


def _fewer(x: Floats, y: Floats, most: int) -> tuple[Floats, Floats]:
    """Return at most `most` means of neighbouring points, and the last point unchanged."""
    means = thin(np.arange(len(y)), y, group_size(len(y), most))
    return (x, y) if means.together == 1 else (np.append(x[means.step], x[-1]), np.append(means.mean, y[-1]))


def _note(curves: Sequence[PlotCurve], series: Sequence[tuple[LiveRun, str, Floats, Floats]], view: PlotView) -> str:
    if curves:
        return ""
    if not series:
        return "no run has it yet"
    if not any(len(x) for _, _, x, _ in series):
        return "no value yet" if view.is_each else "no epoch has ended yet"
    if view.log and any((y <= 0).any() for *_, y in series):
        return "no value above 0, which a logarithmic axis needs"
    return "no value here"
