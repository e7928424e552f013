"""Plots of a metric of one or several runs."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from learner.errors import LearnerError, near
from learner.reports.plots import LARGEST, Line, Plot
from learner.runs.run_reader import RunReader
from learner.runs.thinning import smoothed
from learner.util.text import printable

AXES = ("step", "epoch", "time")
LABELS = {"step": "optimizer step", "epoch": "epoch", "time": "minutes of training"}
MOST = 2000
"""Points of a line."""


def picture(
    runs: Sequence[RunReader],
    metric: str,
    *,
    x: str = "step",
    steps: bool = False,
    smooth: float = 0.0,
    log: bool = False,
    most: int | None = None,
) -> Plot:
    """Return the plot of a metric, with a line for each run and split.

    Args:
      runs: one or more. Runs without the metric are left out.
      metric: a key (`valid/Loss`) or a name (`Loss`, for all splits that have it).
      x: the horizontal axis: `step`, `epoch` or `time` (of training, in minutes).
      steps: show training values at each step rather than over whole epochs; needs `x="step"`.
      smooth: the weight of the previous mean against the next value, from 0 to below 1. An exponential moving average
        without bias towards the first values.
      log: use a logarithmic vertical axis, without values that are not positive.
      most: the maximum number of lines; of more, those of the best runs are drawn. None: no limit.

    Raises:
      LearnerError: no run has the metric as a number, or the settings of the axes are invalid.
    """
    check_axes(x, smooth)
    if steps and x != "step":
        raise LearnerError(
            f"values at each step are drawn over steps only, and x is {x!r}", code="report-axis-steps-only"
        )
    lines: dict[str, Line] = {}
    unit = ""
    found = [(run, key) for run in runs for key in _keys(run, metric)]
    keys = list(dict.fromkeys(key for _, key in found))
    for run, key in found if most is None or len(found) <= most else _best(found, keys[-1], most):
        name = key if len(runs) == 1 else run.name if len(keys) == 1 else f"{run.name} {key}"
        at, values = _line(run, key, x, steps)
        lines[printable(name)] = at, smoothed(values, smooth).tolist()
        unit = run.info(key).unit
    title = keys[0] if len(keys) == 1 else metric
    title = f"{runs[0].name} {title}" if len(runs) == len(lines) == 1 else title
    label = metric + (f" ({unit})" if unit else "")
    plot = Plot(printable(title), LABELS[x], printable(label), lines, log_y=log, left_out=len(found) - len(lines))
    if not _is_visible(plot):
        raise _nothing(runs, metric, log and _is_visible(dataclasses.replace(plot, log_y=False)))
    return plot


def check_axes(x: str, smooth: float) -> None:
    """Raise `LearnerError` unless a plot can have this horizontal axis and this weight of earlier values."""
    if x not in AXES:
        raise LearnerError(f"x is {x!r}: {near(x, AXES)}", code="report-axis-unknown")
    if not 0 <= smooth < 1:
        raise LearnerError(
            f"smooth is {smooth}; it needs a number from 0 to below 1", code="report-smooth-value", smooth=smooth
        )


def _best(found: Sequence[tuple[RunReader, str]], metric: str, most: int) -> list[tuple[RunReader, str]]:
    """Return the lines of the best runs by a metric, in their order."""
    order = sorted(range(len(found)), key=lambda index: found[index][0].rank(metric))
    return [found[index] for index in sorted(order[:most])]


def _keys(run: RunReader, metric: str) -> list[str]:
    return [key for key in run.keys if metric in (key, key.split("/", 1)[1]) and not run.is_text(key)]


def _line(run: RunReader, key: str, x: str, steps: bool) -> Line:
    step, values = run.split_values(key)
    if steps and key.startswith("train/") and not any(run.directory.glob("train/epoch-*/*.log")):
        raise LearnerError(
            f"{run.directory} has no metric files, so there are no values of single steps: it was trained with "
            "metric_loggers(only=...), and its loggers have them",
            code="report-step-values-missing",
        )
    if (steps or not len(step)) and key.startswith("train/") and len(series := run.steps(key, MOST)):
        step, values = series.step.astype(np.float64), series.mean
    axes = {"step": step, **run.axes(step)}
    places = axes[x] / 60 if x == "time" else axes[x]
    return places.tolist(), values.tolist()


def _is_visible(plot: Plot) -> bool:
    return any(values for _, values in plot.drawable_lines().values())


def _nothing(runs: Sequence[RunReader], metric: str, log: bool) -> LearnerError:
    if log:
        return LearnerError(
            f"{metric} has no value above 0, which a logarithmic axis needs", code="report-log-axis-empty"
        )
    known = list(dict.fromkeys(key for run in runs for key in run.keys))
    where = runs[0].directory if len(runs) == 1 else f"none of {len(runs)} runs"
    hint = near(metric, [*known, *dict.fromkeys(key.split("/", 1)[1] for key in known)])
    if any(metric in (key, key.split("/", 1)[1]) for key in known):
        why = f"it is a text, or never a number from {-LARGEST:g} to {LARGEST:g}"
        return LearnerError(f"{metric} has no value that can be drawn: {why}", code="report-metric-not-drawable")
    verb = "has no metric" if len(runs) == 1 else "has a metric"
    return LearnerError(f"{where} {verb} {metric!r}: {hint}", code="report-metric-missing")
