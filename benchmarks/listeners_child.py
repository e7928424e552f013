"""Make one measurement of `benchmarks.listeners`, as a separate process: `python -m benchmarks.listeners_child
'{"kind": "train", "variant": "JsonLines"}'`.

Prints one line of JSON. `train`: `seconds` per epoch, after the warm ones, of a run with these listeners. `cost`: a
listener gets steps without any training; `us` is CPU microseconds of this process per step, `bytes` the bytes on the
disk per step.
"""

import contextlib
import dataclasses
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.child import Case as Training
from benchmarks.child import Clock, train_with_learner, workload_of
from learner.events import Event, Listener, MetricInfo, RunEnded, RunStarted, StepsEnded
from learner.loggers import Csv, JsonLines, MLflow, RunFiles, TensorBoard, WandB
from learner.renderers import RichRenderer
from learner.runs.metric_logs import RunFilesWithoutMetrics
from learner.training.files import run_outputs

LOGGERS: dict[str, Callable[[str], Listener]] = {  # given a directory for files outside the run's
    "JsonLines": lambda place: JsonLines(),
    "Csv": lambda place: Csv(),
    "TensorBoard": lambda place: TensorBoard(),
    "WandB": lambda place: WandB(mode="offline"),
    "MLflow": lambda place: MLflow(f"sqlite:///{place}/mlflow.db"),
}
DISPATCH = 128  # steps of one event


@dataclasses.dataclass(frozen=True)
class Case:
    """A measurement.

    Attributes:
      kind: "train" or "cost".
      variant: "none" (neither files of steps nor listeners), "files", "rich" (files, and the terminal renderer), or the
        name of a logger, which is added to files and renderer.
      workload: name of the trained workload.
      epochs, warm: of the training; `None`: the workload's.
      metrics: number of metrics.
      steps: number of steps that the listener gets.
      every: interval of steps that the logger keeps; `None`: its default.
    """

    kind: str
    variant: str
    workload: str = "digits-20k"
    epochs: int | None = None
    warm: int | None = None
    metrics: int = 2
    steps: int = 1000
    every: int | None = None


class Files(Listener):
    """A listener that writes the files of steps."""

    def on_event(self, event: Event) -> None:
        """Write as the run's reporter does."""
        if isinstance(event, RunStarted):
            self._files = RunFiles(event.directory, time.time)
        elif isinstance(event, StepsEnded):
            self._files.steps(event.split, event.epoch, event.values, event.weights)

    def close(self) -> None:
        """Close the files."""
        self._files.close()


def make_listener(case: Case, directory: str) -> Listener:
    """Return the listener of a variant."""
    if case.variant == "files":
        return Files()
    logger: Any = LOGGERS[case.variant](directory)
    if case.every is not None:
        logger.every_steps = case.every
    return logger  # type: ignore[no-any-return]


def train(case: Case) -> dict[str, float]:
    """Return the seconds per epoch of a run."""
    given = Training(case.workload, "learner", epochs=case.epochs, warm=case.warm, further=case.metrics - 2)
    work, clock = workload_of(given), Clock()
    if case.variant == "none":
        run_outputs.RunFiles = RunFilesWithoutMetrics  # type: ignore[misc]
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place), open(os.devnull, "w") as nothing:

        def also(builder: Any) -> None:
            screen = Console(file=nothing, force_terminal=True, width=100)
            builder.renderer(None if case.variant in ("none", "files") else RichRenderer(screen))
            if case.variant in LOGGERS:
                builder.metric_loggers(make_listener(case, place))

        train_with_learner(work, given, work.warm + work.epochs, clock, also)
    ends = clock.epochs[-1 - work.epochs :]
    return {"seconds": (ends[-1] - ends[0]) / (len(ends) - 1)}


def cost(case: Case) -> dict[str, float]:
    """Return the cost of a step for a listener."""
    names = ["Loss", *(f"Accuracy {number}" for number in range(1, case.metrics))]
    infos = tuple(MetricInfo("train", name, higher_is_better=name == "Loss") for name in names)
    values = np.random.default_rng(0).random((case.metrics, DISPATCH), np.float32)
    weights = np.full(DISPATCH, 32, np.float32)
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):  # MLflow writes into the current directory
        directory = Path(place, "run")
        directory.mkdir()
        listener = make_listener(case, place)
        listener.on_event(RunStarted(time.time(), directory, 1, None, case.steps, infos, 1))
        before, begin = size_of(place), time.process_time()
        for first in range(1, case.steps + 1, DISPATCH):
            count = min(DISPATCH, case.steps + 1 - first)
            columns = {name: column[:count] for name, column in zip(names, values, strict=True)}
            last = first + count - 1
            position = "train", 1, first, count, last, case.steps, last
            listener.on_event(StepsEnded(time.time(), *position, columns, weights[:count], 0.01))
        listener.on_event(RunEnded(time.time(), 1, case.steps, "num_epochs", {"metrics": {}}, 1.0, False))
        listener.close()
        seconds = time.process_time() - begin
        if case.variant == "WandB":
            import wandb

            wandb.teardown()  # writes the remaining data
        return {"us": 1e6 * seconds / case.steps, "bytes": (size_of(place) - before) / case.steps}


def size_of(directory: str) -> int:
    """Return the bytes of all files below a directory."""
    return sum(path.stat().st_size for path in Path(directory).rglob("*") if path.is_file() and not path.is_symlink())


if __name__ == "__main__":
    requested = Case(**json.loads(sys.argv[1]))
    print(json.dumps(train(requested) if requested.kind == "train" else cost(requested)))
