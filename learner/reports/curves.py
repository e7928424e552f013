"""The curves of a report: every metric of every run, with its positions on each axis, as JSON."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from learner.runs.run_reader import RunReader
from learner.runs.thinning import Series, group_size, thin

MOST = 1000
"""Points of a curve."""
BAND = 200
"""Points of the mean over runs that differ in their seed alone."""
SEED = "seed"
Curve = dict[str, Any]


def curves(runs: Sequence[RunReader]) -> list[dict[str, Any]]:
    """Return the numeric metrics of runs, in the order in which they appear.

    Returns:
      For each `name`, `unit` and `curves`: mappings with the index of the `run` (or, for the mean of several, `runs`),
      the `split`, whether a value is that of one `step`, the places `x` by axis (`step`, `epoch`, `time` in minutes),
      and `y`, and where a point is more than one value `low` and `high`. `None` stands for what is not finite.
    """
    metrics: dict[str, dict[str, Any]] = {}
    for index, run in enumerate(runs):
        for key in run.keys:
            split, name = key.split("/", 1)
            if run.is_text(key):
                continue
            metric = metrics.setdefault(name, {"name": name, "unit": run.info(key).unit, "curves": []})
            metric["curves"] += [{"run": index, "split": split, **curve} for curve in _curves(run, key)]
    for metric in metrics.values():
        metric["curves"] += _bands(runs, metric["curves"])
    return list(metrics.values())


def _curves(run: RunReader, key: str) -> list[Curve]:
    """Return the curve of values of splits, preceded by the curve of values of steps if there are any."""
    step, value = run.split_values(key)
    lines = [_curve(run, False, thin(step, value, group_size(len(value), MOST)))] if len(step) else []
    if key.startswith("train/") and len(series := run.steps(key, MOST)):
        lines.insert(0, _curve(run, True, series))
    return lines


def _curve(run: RunReader, each: bool, series: Series) -> Curve:
    axes = run.axes(series.step.astype(np.float64))
    epoch, minutes = axes["epoch"].round(5).tolist(), (axes["time"] / 60).round(5).tolist()
    x = {"step": series.step.tolist(), "epoch": epoch, "time": minutes}
    curve = {"each": each, "x": x, "y": _numbers(series.mean)}
    same = np.array_equal(series.low, series.high, equal_nan=True)
    return curve if same else {**curve, "low": _numbers(series.low), "high": _numbers(series.high)}


def _numbers(values: Any) -> list[float | None]:
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values]


def _bands(runs: Sequence[RunReader], lines: Sequence[Curve]) -> list[Curve]:
    """Return the mean, minimum and maximum over runs whose configs differ only in the seed."""
    bands = []
    for members in seeds(runs):
        chosen = [curve for curve in lines if curve["run"] in members]
        kinds = itertools.groupby(sorted(chosen, key=_kind), key=_kind)
        for (split, each), group in ((kind, list(curves)) for kind, curves in kinds):
            if len(group) > 1:
                together = [curve["run"] for curve in group]
                bands.append({"run": together[0], "runs": together, "split": split, "each": each, **_band(group)})
    return bands


def _kind(curve: Mapping[str, Any]) -> tuple[str, bool]:
    return curve["split"], curve["each"]


def seeds(runs: Sequence[RunReader]) -> list[list[int]]:
    """Return groups of indices of runs whose configs differ only in the seed. Runs from Python are left out, as their
    configs are incomplete.
    """
    groups: dict[str, list[int]] = {}
    for index, run in enumerate(runs):
        if run.has_config and run.config:
            same = {key: value for key, value in run.config.items() if key not in (SEED, "directory")}
            groups.setdefault(repr(sorted(same.items())), []).append(index)
    return [members for members in groups.values() if len(members) > 1]


def _band(group: Sequence[Curve]) -> Curve:
    """Return the band at the steps where all curves have values."""
    first = max(curve["x"]["step"][0] for curve in group)
    last = min(curve["x"]["step"][-1] for curve in group)
    places = group[0]["x"]["step"]
    kept = [place for place in places if first <= place <= last]
    step = thin(kept, kept, group_size(len(kept), BAND)).step
    # What is not finite in one of them is not finite in the mean.
    stacked = np.array([np.interp(step, curve["x"]["step"], np.array(curve["y"], np.float64)) for curve in group])
    x = {axis: np.interp(step, group[0]["x"]["step"], group[0]["x"][axis]).round(5).tolist() for axis in group[0]["x"]}
    low, high = (_numbers(edge) for edge in (stacked.min(0), stacked.max(0)))
    return {"x": x, "y": _numbers(stacked.mean(0)), "low": low, "high": high}
