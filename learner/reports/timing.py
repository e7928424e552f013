"""Where the time of a run went."""

import math
from collections.abc import Mapping

import numpy as np

from learner.runs.journal import LARGEST
from learner.runs.run import Run

PARTS = ("compile", "data", "train", "valid", "save", "other")


def parts(run: Run) -> dict[str, float]:
    """Seconds of each part of a run, over all its resumes that came to an end; empty where its journal tells none.

    `compile`: tracing and compiling; `data`: waiting for batches; `train`: the rest of the training steps; `valid`:
    validations; `save`: waiting for checkpoints; `other`: everything else.
    """
    found: dict[str, float] = {}
    for entry in run.journal:
        said = entry.get("seconds")
        if entry.get("event") in ("end", "stop", "error") and isinstance(said, Mapping):
            for part in PARTS:
                if (seconds := _seconds(said.get(part))) is not None:
                    found[part] = found.get(part, 0.0) + seconds
    return {part: found[part] for part in PARTS if part in found}


def epoch_seconds(run: Run) -> dict[int, float]:
    """How long each epoch took with its validation, breaks left out, by the journal's clock."""
    ends = np.array([0, *run.ends.values()], np.float64)
    times = run.axes(ends)["time"]
    return dict(zip(run.ends, np.diff(times).tolist(), strict=True))


def _seconds(said: object) -> float | None:
    number = isinstance(said, int | float) and not isinstance(said, bool)
    return float(said) if number and 0 <= said < LARGEST and math.isfinite(said) else None  # type: ignore[operator, arg-type]
