"""Events of a small run, for listeners."""

from pathlib import Path

import numpy as np
import pytest

from learner.events import EpochEnded, EpochStarted, Event, MetricInfo, RunStarted, SplitEnded, StepsEnded


@pytest.fixture
def events() -> list[Event]:
    """One epoch: two dispatches of training, one of validation."""

    def steps(split, first, *losses):
        values = np.array(losses, np.float32)
        last = first + len(losses) - 1
        return StepsEnded(0.0, split, 1, first, len(losses), last, None, 3, {"Loss": values}, np.ones_like(values), 0.1)

    infos = (MetricInfo("train", "Loss", higher_is_better=False), MetricInfo("valid", "Loss", higher_is_better=False))
    return [
        RunStarted(0.0, Path("runs/a"), 1, None, 3, infos, 10),
        EpochStarted(0.0, 1, 3),
        steps("train", 1, 4.0, 2.0),
        steps("train", 3, 0.0),
        SplitEnded(0.0, "train", 1, 3, {"Loss": 2.0}, 0.2),
        steps("valid", 1, 1.0),
        SplitEnded(0.0, "valid", 1, 3, {"Loss": 1.0, "Confusion": "1 0"}, 0.1),
        EpochEnded(0.0, 1, 3, {"train/Loss": 2.0, "valid/Loss": 1.0}, 0.3),
    ]
