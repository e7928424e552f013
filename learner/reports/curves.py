"""The curves of a report: every metric of every run, with its positions on each axis, as JSON."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from learner.reports.confusion_matrices import monitor_of
from learner.runs.flat_config import text_of
from learner.runs.population import member_index
from learner.runs.run_reader import RunReader
from learner.runs.thinning import Series, group_size, thin
from learner.util.confidence import student_factor
from learner.util.metric_order import ordered
from learner.util.number_checks import is_number
from learner.util.text import short
from learner.util.ticks import ticks

MOST, FEWEST = 1000, 200
"""Points of a curve, for one run and for many."""
POINTS = 4000
"""The total number of points of one metric's curves, provided that each curve gets more than `FEWEST`."""
SEED = "seed"
SEEDS = "all but the seed"
LOGARITHMIC = 50
"""The ratio of the largest to the smallest value above which an axis of positive values is logarithmic."""
MOST_TICKS = 5
MOST_WORDS = 12


def curves(runs: Sequence[RunReader]) -> dict[str, Any]:
    """Return the numeric metrics of runs, in the order of `learner.util.metric_order`.

    Returns:
      `axes`: mappings with the positions by axis (`step`, `epoch`, `time` in minutes), which curves share; and
      `metrics`: for each `name`, `unit` and `curves`: mappings with the index of the `run`, the `split`, the index of
      its `axes`, and `y`, plus `low` and `high` if a point merges several values of a single run. Training curves have
      the values of steps if there are any. `None` stands for values that are not finite.
    """
    most = max(FEWEST, min(MOST, POINTS // len(runs)))
    metrics: dict[str, dict[str, Any]] = {}
    axes: dict[tuple[int, bytes], int] = {}
    positions = []
    for index, run in enumerate(runs):
        for key in run.keys:
            if run.is_text(key):
                continue
            split, name = key.split("/", 1)
            series = _series(run, key, most)
            place = (index, series.step.tobytes())
            if place not in axes:
                axes[place] = len(axes)
                positions.append(_positions(run, series))
            curve = {"run": index, "split": split, "axes": axes[place], "y": _numbers(series.mean)}
            if len(runs) == 1 and not np.array_equal(series.low, series.high, equal_nan=True):
                curve |= {"low": _numbers(series.low), "high": _numbers(series.high)}
            metrics.setdefault(name, {"name": name, "unit": run.info(key).unit, "curves": []})["curves"].append(curve)
    keys = ordered(dict.fromkeys(key for run in runs for key in run.keys), monitor_of(runs[0]))
    names = dict.fromkeys(key.partition("/")[2] for key in keys)
    return {"axes": positions, "metrics": [metrics[name] for name in names if name in metrics]}


def _series(run: RunReader, key: str, most: int) -> Series:
    if key.startswith("train/") and len(series := run.steps(key, most)):
        return series
    step, value = run.split_values(key)
    return thin(step, value, group_size(len(value), most))


def _positions(run: RunReader, series: Series) -> dict[str, list[float]]:
    axes = run.axes(series.step.astype(np.float64))
    minutes = (axes["time"] / 60).round(5).tolist()
    return {"step": series.step.tolist(), "epoch": axes["epoch"].round(5).tolist(), "time": minutes}


def _numbers(values: Any) -> list[float | None]:
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in values]


def quantiles(count: int) -> list[float | None]:
    """Return `student_factor` by the number of values, up to `count`; None for fewer than two.

    >>> [x and round(x, 3) for x in quantiles(4)]
    [None, None, 12.706, 4.303, 3.182]
    """
    return [student_factor(number) if number > 1 else None for number in range(count + 1)]


def groups(runs: Sequence[RunReader], settings: Sequence[str]) -> dict[str, list[str]]:
    """Return the group of each run for each kind of grouping: the value of one setting, or of all settings but the
    seed. For the latter, each run from Python is its own group, because its config is incomplete; members of one
    population are an exception, because they differ only in their values.
    """
    by = {key: [text_of(run.config.get(key)) for run in runs] for key in settings}
    if SEED in by:
        others = [key for key in by if key != SEED]
        labels = [", ".join(f"{key} {by[key][index]}" for key in others) for index in range(len(runs))]
        members = {run.directory for run in runs if member_index(run.directory) is not None}
        of_one_population = len({directory.parent for directory in members}) == 1
        known = [run.has_config or (of_one_population and run.directory in members) for run in runs]
        named = [label if is_known else run.name for run, label, is_known in zip(runs, labels, known, strict=True)]
        by = {SEEDS: [label or "all" for label in named], **by}
    return {name: labels for name, labels in by.items() if 1 < len(set(labels)) < len(runs) or name == SEEDS}


def dimension(name: str, values: Sequence[Any]) -> dict[str, Any]:
    """Return an axis for values of a setting or a metric: `at`, the position of each value from 0 to 1 (`None` if it is
    missing or not finite), and `ticks`, positions with their texts.

    >>> dimension("lr", [0.001, 0.01, 0.1, None])
    {'name': 'lr', 'at': [0.0, 0.5, 1.0, None], 'ticks': [[0.0, 0.5, 1.0], ['0.001', '0.01', '0.1']]}
    >>> dimension("opt", ["SGD", "Adam", "SGD"])
    {'name': 'opt', 'at': [0.0, 1.0, 0.0], 'ticks': [[0.0, 1.0], ['SGD', 'Adam']]}
    """
    present = [value for value in values if value is not None]
    if not all(map(is_number, present)):
        words = list(dict.fromkeys(map(text_of, values)))
        place = {word: index / max(1, len(words) - 1) for index, word in enumerate(words)}
        shown = words[:: -(-len(words) // MOST_WORDS)]
        at = [place[text_of(value)] for value in values]
        return {"name": name, "at": at, "ticks": [[place[word] for word in shown], shown]}
    finite = [value for value in present if math.isfinite(value)] or [0.0]
    low, high = min(finite), max(finite)
    log = low > 0 and high / low >= LOGARITHMIC
    distinct = sorted(set(finite))
    few = len(distinct) <= MOST_TICKS
    numbers, texts = (distinct, list(map(short, distinct))) if few else ticks(low, high, MOST_TICKS, log)
    first, last = (math.log(low), math.log(high)) if log else (low, high)

    def position(value: Any) -> float | None:
        if value is None or not math.isfinite(value):
            return None
        return round(((math.log(value) if log else value) - first) / (last - first), 6) if last > first else 0.5

    return {"name": name, "at": list(map(position, values)), "ticks": [list(map(position, numbers)), texts]}
