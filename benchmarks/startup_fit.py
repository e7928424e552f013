"""Code that the config of a workload imports, for `learner fit` in `benchmarks.startup`."""

import functools
from collections.abc import Callable
from typing import Any

from benchmarks.child import make_model, step
from benchmarks.workloads import WORKLOADS
from learner.data import ArrayDataset
from learner.events import Event, Listener, StepsEnded

__all__ = ["MODELS", "FirstSteps", "config_of", "data", "linen_mlp", "step"]

# The class, where there is one: `learner fit` makes it in one compiled program.
MODELS: dict[str, Any] = {
    "digits": "benchmarks.workloads.MLP",
    "cnn": "benchmarks.workloads.CNN",
    "transformer": "benchmarks.workloads.Transformer",
    "transformer-12": {"class_path": "benchmarks.workloads.Transformer", "init_args": {"width": 256, "blocks": 12}},
    "equinox": {
        "class_path": "equinox.nn.MLP",
        "init_args": {"in_size": 64, "out_size": 10, "width_size": 128, "depth": 2},
    },
    "linen": "benchmarks.startup_fit.linen_mlp",
}

on_first_steps: list[Callable[[], None]] = []  # called once the values of the first steps are available


class FirstSteps(Listener):
    """Call the functions in `on_first_steps`."""

    def on_event(self, event: Event) -> None:
        """Call them at the first steps."""
        if isinstance(event, StepsEnded):
            while on_first_steps:
                on_first_steps.pop()()


def linen_mlp() -> Any:
    """Return the linen model."""
    return make_model(WORKLOADS["linen"])


@functools.cache
def data(workload: str, split: int, rows: int | None = None) -> ArrayDataset:
    """Return the rows of a split, 0 or 1."""
    return ArrayDataset({key: column[:rows] for key, column in WORKLOADS[workload].data()[split].items()})


def config_of(workload: str, directory: str, epochs: int, devices: int, rows: int | None) -> dict[str, Any]:
    """Return the config that trains a workload as `child.train_with_learner` does."""
    work = WORKLOADS[workload]

    def split(number: int, batch: int) -> dict[str, Any]:
        arguments = {"workload": workload, "split": number, "rows": rows}
        return {"dataset": {"class_path": "benchmarks.startup_fit.data", "init_args": arguments}, "batch_size": batch}

    return {
        "directory": directory,
        "num_epochs": epochs,
        "devices": devices,
        "model": MODELS[workload],
        "train_step": "benchmarks.startup_fit.step",
        "valid_step": "benchmarks.startup_fit.step",
        "optimizer": "AdamW",
        "lr": 1e-3,
        "train": {**split(0, work.batch), "shuffle": True},
        "valid": split(1, work.valid_batch),
        "metrics": ["Accuracy"],
        "metric_loggers": ["benchmarks.startup_fit.FirstSteps"],
    }
