"""The use of time of a run."""

from collections.abc import Mapping

import numpy as np

from learner.runs.journal import LARGEST
from learner.runs.run_reader import RunReader
from learner.util.number_checks import is_finite

PARTS = ("compile", "data", "train", "valid", "save", "other")


def parts(run: RunReader) -> dict[str, float]:
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


def epoch_seconds(run: RunReader) -> dict[int, float]:
    """Return the duration of each epoch with its validation, without interruptions, by the journal's clock."""
    ends = np.array([0, *run.ends.values()], np.float64)
    times = run.axes(ends)["time"]
    return dict(zip(run.ends, np.diff(times).tolist(), strict=True))


def _seconds(value: object) -> float | None:
    return float(value) if is_finite(value) and 0 <= value < LARGEST else None
