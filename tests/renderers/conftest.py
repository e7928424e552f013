"""Events of runs of any length and speed, for tests of renderers."""

from pathlib import Path

import numpy as np
import pytest

from learner.events import (
    EpochEnded,
    EpochStarted,
    MetricInfo,
    RunEnded,
    RunStarted,
    SplitEnded,
    StepsEnded,
)
from learner.runs.history import History, summarize


class Clock:
    """A clock that tests set."""

    def __init__(self):
        self.now = 5000.0

    def __call__(self):
        return self.now


class Play:
    """Send the events of runs to a renderer, and advance its clock."""

    def __init__(self, clock):
        self.clock = clock

    metrics = tuple(
        MetricInfo(split, name, higher_is_better=name != "Loss")
        for split in ("train", "valid")
        for name in ("Loss", "Accuracy")
    )

    def start(self, renderer, num_epochs=3, num_steps=None, steps_per_epoch=45, metrics=metrics, **others):
        event = RunStarted(0.0, Path("runs/a"), num_epochs, num_steps, steps_per_epoch, tuple(metrics), 10378, **others)
        renderer.on_event(event)

    def dispatch(self, renderer, epoch, in_epoch, count, total=45, split="train", seconds=0.5, step=None, loss=0.5):
        """Send a dispatch that took `seconds`, after which `in_epoch` of `total` steps are done."""
        self.clock.now += seconds
        values = {"Loss": np.full(count, loss, np.float32)}
        step = step or in_epoch
        first = step - count + 1 if split == "train" else in_epoch - count + 1
        weights = np.full(count, 32, np.float32)
        renderer.on_event(StepsEnded(0.0, split, epoch, first, count, in_epoch, total, step, values, weights, seconds))

    def epoch(self, renderer, epoch, seconds=1.5, steps=45, count=15, total=45, values=None):
        """Send an epoch of `steps` training steps in dispatches of `count`, and three validation batches."""
        renderer.on_event(EpochStarted(0.0, epoch, total))
        share = seconds / (steps // count + 1)
        for done in range(count, steps + 1, count):
            step = (epoch - 1) * steps + done
            self.dispatch(renderer, epoch, done, count, total, seconds=share, step=step, loss=1 / step)
        self.dispatch(renderer, epoch, 3, 3, 3, "valid", share, step=epoch * steps)
        if values is None:
            values = {"train/Loss": 0.5 / epoch, "train/Accuracy": 0.75, "valid/Loss": 0.625, "valid/Accuracy": 0.875}
        for split in ("train", "valid"):
            part = {key.split("/")[1]: value for key, value in values.items() if key.startswith(f"{split}/")}
            renderer.on_event(SplitEnded(0.0, split, epoch, epoch * steps, part, share))
        renderer.on_event(EpochEnded(0.0, epoch, epoch * steps, values, seconds))

    def validate(self, renderer, epoch, step, **values):
        """Send a validation inside an epoch."""
        renderer.on_event(SplitEnded(0.0, "valid", epoch, step, values, 0.2, at_step=step))

    def end(self, renderer, epochs=3, steps=135, show_summary=False, summary=None):
        renderer.on_event(RunEnded(0.0, epochs, steps, "num_epochs", summary or {}, 4.56, show_summary))
        renderer.close()

    def run(self, renderer, epochs=3, show_summary=False, summary=None, **options):
        self.start(renderer, num_epochs=epochs)
        for epoch in range(1, epochs + 1):
            self.epoch(renderer, epoch, **options)
        self.end(renderer, epochs, 45 * epochs, show_summary, summary)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def play(clock):
    return Play(clock)


@pytest.fixture
def summary(tmp_path):
    """Return the summary of a run of two epochs."""
    history = History()
    history.record("train", 1, 45, {"Loss": 0.25, "Confusion": "1 0\n0 1"})
    history.record("train", 2, 90, {"Loss": float("nan"), "Confusion": "2 0\n0 2"})
    history.record("valid", 2, 90, {"Speed": 16824.0})
    metrics = [
        MetricInfo("train", "Loss", higher_is_better=False),
        MetricInfo("train", "Confusion", numeric=False),
        MetricInfo("valid", "Speed", "steps/s", True),
    ]
    for name in ("train", "valid", "checkpoint"):
        (tmp_path / name).mkdir()
    saved = [{"epoch": 1, "step": 45, "path": tmp_path / "checkpoint/45", "best": True}]
    options = {"epochs": 2, "steps": 90, "stopped_by": "num_epochs", "checkpoints": saved}
    return summarize(history, metrics, directory=tmp_path, **options)


@pytest.fixture
def summary_text():
    """Return the lines that show `summary` for the directory `runs/a`."""
    return [
        "metric                  best  epoch   last",
        "valid/Speed (steps/s)  16824      2  16824",
        "train/Loss              0.25      1    nan",
        "1 text metric not shown",
        "directory: runs/a",
        "checkpoints: checkpoint/45 (epoch 1, best)",
        "next:",
        "  learner.evaluate(data)          # in Python",
        "  builder.num_epochs(4).resume()  # in Python",
        "  learner report runs/a           # in a shell",
    ]
