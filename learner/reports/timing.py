"""The use of time of a run."""

import math
from collections.abc import Mapping

import numpy as np

from learner.runs.journal import LARGEST
from learner.runs.run import Run

PARTS = ("compile", "data", "train", "valid", "save", "other")


def parts(run: Run) -> dict[str, float]:
    """Return the seconds of each part of a run over all its completed resumes; empty if the journal has none.

    `compile`: tracing and compiling; `data`: waiting for batches; `train`: the rest of the training steps; `valid`:
    validations; `save`: waiting for checkpoints; `other`: everything else.
    """
    totals: dict[str, float] = {}
    for entry in run.journal:
        seconds = entry.get("seconds")
        if entry.get("event") in ("end", "stop", "error") and isinstance(seconds, Mapping):
            for part in PARTS:
                if (value := _seconds(seconds.get(part))) is not None:
                    totals[part] = totals.get(part, 0.0) + value
    return {part: totals[part] for part in PARTS if part in totals}


def epoch_seconds(run: Run) -> dict[int, float]:
    """Return the duration of each epoch with its validation, without interruptions, by the journal's clock."""
    ends = np.array([0, *run.ends.values()], np.float64)
    times = run.axes(ends)["time"]
    return dict(zip(run.ends, np.diff(times).tolist(), strict=True))


def _seconds(value: object) -> float | None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number and 0 <= value < LARGEST and math.isfinite(value) else None  # type: ignore[operator, arg-type]
