"""The differences between two runs, and the step at which their values diverge."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from learner.errors import LearnerError, near
from learner.runs.comparison import ALWAYS_DIFFER, PROGRAM
from learner.runs.flat_config import text_of
from learner.runs.run_reader import RunReader
from learner.runs.thinning import Floats, Integers
from learner.util.text import LONGEST, abbreviate, aligned, count, printable

NAMELESS = ("time", "host", "pid", "machine", "hostname")
INCOMPARABLE = f"{PROGRAM} (not comparable)"
BEFORE = 8
"""Characters that are shown before the first difference of long texts."""
Pairs = Mapping[str, tuple[Any, Any]]


@dataclasses.dataclass(frozen=True)
class Parting:
    """The first step at which a metric of two runs differs.

    Attributes:
      step: the optimizer step.
      values: the values of both runs.
    """

    step: int
    values: tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Difference:
    """The result of `difference`. Pairs have the values of both runs, or None for a run without one.

    Attributes:
      settings: keys of the configs that differ.
      data: facts about the data that differ.
      code: `train step` if it computes something else, and the commits if they differ.
      environment: versions and devices that differ, and `train step (not comparable)` if the steps differ and other
        versions traced them.
      metric: the key of the metric that was compared.
      steps: the number of steps that both runs have.
      parting: the step at which the metric diverges, or None.
      tolerance: the largest relative difference that counts as equal.
    """

    settings: Pairs
    data: Pairs
    code: Pairs
    environment: Pairs
    metric: str
    steps: int
    parting: Parting | None
    tolerance: float

    @property
    def explanation(self) -> str:
        """A sentence that states whether the values diverge, and the likely cause."""
        if self.parting is None:
            limit = f" within the tolerance {self.tolerance:g}" if self.tolerance else ""
            return f"{self.metric} of {count(self.steps, 'step')} is the same{limit}"
        causes = [name for name in ("settings", "data", "code") if getattr(self, name)]
        a, b = self.parting.values
        text = f"{self.metric} parts at step {self.parting.step}: {a:.9g} and {b:.9g}"
        if causes:
            return f"{text}. What differs: {', '.join(causes)}"
        if INCOMPARABLE in self.environment:
            return f"{text}. Other versions traced the train steps, which may hide a change of their code"
        if self.environment:
            return f"{text}. Only the environment differs, which may change last bits"
        return f"{text}. Nothing that the runs recorded explains it: look for code that the train step does not contain"

    def lines(self) -> list[str]:
        """Return the difference as text."""
        parts = {part: getattr(self, part) for part in ("settings", "data", "code", "environment")}
        return [*pair_lines(parts), self.explanation]


def pair_lines(parts: Mapping[str, Pairs]) -> list[str]:
    """Return a line for each pair, with the part of the difference to which it belongs."""
    rows = [
        [part, printable(key), *_short_texts(printable(text_of(a)), printable(text_of(b)))]
        for part, pairs in parts.items()
        for key, (a, b) in pairs.items()
    ]
    return [line.rstrip() for line in aligned(rows)]


def _short_texts(a: str, b: str) -> list[str]:
    """Return two texts abbreviated, from shortly before their first difference if they look alike otherwise."""
    short = [abbreviate(text, LONGEST) for text in (a, b)]
    if a != b and short[0] == short[1]:
        parted = (place for place, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
        begin = next(parted, min(len(a), len(b))) - BEFORE
        short = [abbreviate(f"…{text[begin:]}", LONGEST) for text in (a, b)]
    return short


def difference(a: RunReader, b: RunReader, metric: str = "train/Loss", tolerance: float = 0.0) -> Difference:
    """Return the differences between two runs.

    Args:
      a: a run.
      b: another run.
      metric: the key of the metric to compare: values of single steps for training, otherwise values of whole splits.
      tolerance: the largest relative difference that still counts as equal; 0 compares all digits of the logs, which
        are those of float32 for values from the device.

    Raises:
      LearnerError: one of the runs has no such values, or the runs have no steps in common.
    """
    if not 0 <= tolerance < math.inf:
        raise LearnerError(
            f"the tolerance is {tolerance}; it needs a finite number, 0 or more", code="run-tolerance-value"
        )
    series = []
    for run in (a, b):
        if metric not in run.keys:
            raise LearnerError(
                f"{run.directory} has no metric {metric!r}: {near(metric, run.keys)}",
                code="run-metric-unknown",
                key=metric,
            )
        series.append(_values(run, metric))
    common, *places = np.intersect1d(series[0][0], series[1][0], return_indices=True)
    if not len(common):
        raise LearnerError(
            f"{a.directory} and {b.directory} have no numbers of {metric} at the same steps: compare another metric",
            code="run-metric-no-common-steps",
            key=metric,
        )
    first, second = (values[place] for (_, values), place in zip(series, places, strict=True))
    is_close = functools.partial(np.isclose, rtol=tolerance, atol=0, equal_nan=True)
    parted = np.flatnonzero(~(is_close(first, second) | is_close(second, first)))  # relative to the larger value
    parting = None
    if len(parted):
        place = int(parted[0])
        parting = Parting(int(common[place]), (float(first[place]), float(second[place])))
    facts = differing(a.fingerprint, b.fingerprint)
    environment = differing(a.environment, b.environment)
    code = {}
    if PROGRAM in facts and "versions" in facts:  # which may trace another program from the same code
        environment[INCOMPARABLE] = facts[PROGRAM]
    elif PROGRAM in facts:
        code[PROGRAM] = facts[PROGRAM]
    code |= {key: environment.pop(key) for key in ("commit",) if key in environment}
    return Difference(
        {key: pair for key, pair in differing(_config(a), _config(b)).items() if key not in ALWAYS_DIFFER},
        {key: pair for key, pair in facts.items() if key.startswith("data.")},
        code,
        {key: pair for key, pair in environment.items() if key.rpartition(".")[2] not in NAMELESS},
        metric,
        len(common),
        parting,
        tolerance,
    )


def _config(run: RunReader) -> Mapping[str, Any]:
    """Return the settings of a run. Earlier versions recorded the optimizer of a run from Python as a text, and its
    settings apart.
    """
    if run.has_config or not run.optimizer:
        return run.config
    return {key: x for key, x in run.config.items() if key.partition(".")[0] != "optimizer"} | run.optimizer


def _values(run: RunReader, metric: str) -> tuple[Integers, Floats]:
    """Return optimizer steps and the numbers of a metric: of single steps in training, otherwise of whole splits. Of
    several numbers at one step, the last comes first.
    """
    if metric.startswith("train/") and len(series := run.steps(metric)):
        return series.step[::-1], series.mean[::-1]
    points = run.points(metric) if metric in run.history else []
    numbers = [(point.step, point.value) for point in reversed(points) if not isinstance(point.value, str)]
    return np.array([step for step, _ in numbers], np.int64), np.array([value for _, value in numbers], np.float64)


def differing(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the pairs of values for the keys whose values differ between two mappings."""
    pairs = {key: (a.get(key), b.get(key)) for key in dict.fromkeys([*a, *b])}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}
