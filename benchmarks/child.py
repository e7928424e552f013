"""Make one measurement, as a separate process: `python -m benchmarks.child '{"workload": "digits", "variant":
"hand"}'`.

Prints one line of JSON: `seconds` (per epoch, over the epochs after the warm ones), `first` (seconds from the end of
the imports to the end of the first step), `peak` (MiB, the process's maximum memory), `device_peak` (MiB, the device's
maximum memory in use, `None` if it is not counted), `losses` (train and validation loss of each epoch) and `device`.
"""

import dataclasses
import functools
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import optax
from flax import nnx

from benchmarks import loops
from benchmarks.workloads import RATE, WORKLOADS, Rows, Workload


@dataclasses.dataclass(frozen=True)
class Case:
    """A measurement.

    Attributes:
      variant: "hand", "limit" or "learner".
      feed: how rows reach the hand-written loop (`loops.FEEDS`). `learner` distinguishes "iterable" only: it then gets
        a plain iterable of NumPy batches and dispatches single steps; otherwise it gets its own loader.
      epochs, warm: measured epochs, and unmeasured epochs before them; `None`: the workload's.
      first: measure only the time to the first step.
      further: number of metrics of `learner` besides loss and accuracy.
      checkpoints: True if `learner` saves with its defaults.
      rows: number of rows of a split; `None`: all.
      batch: rows of a training batch; `None`: the workload's.
      function: give `learner` the function that makes the model.
      rate: the learning rate of `learner`.
      members: train a population with this number of seeds; 0: one run.
    """

    workload: str
    variant: str
    feed: str = "gather"
    epochs: int | None = None
    warm: int | None = None
    first: bool = False
    further: int = 0
    checkpoints: bool = True
    rows: int | None = None
    batch: int | None = None
    function: bool = False
    rate: float = RATE
    members: int = 0


class Clock:
    """Record when the first step and each epoch ended."""

    def __init__(self) -> None:
        self.begin = time.time()  # also the clock of the journal
        self.first: float | None = None
        self.epochs: list[float] = []

    def mark(self, what: str) -> None:
        """Record the end of the first "step" or of an "epoch"."""
        if what == "epoch":
            self.epochs.append(time.time())
        elif self.first is None:
            self.first = time.time()


def measure(case: Case) -> dict[str, Any]:
    """Run one case in this process."""
    work = workload_of(case)
    if case.variant == "learner":
        import learner  # noqa: F401  # so that `first` counts nobody's imports
    clock, epochs = Clock(), work.warm + work.epochs
    if case.variant == "hand":
        losses = loops.hand(work, case.feed, epochs, clock.mark)
    elif case.variant == "limit":
        losses = loops.limit(work, epochs, (work.warm - 1, epochs - 1).__contains__, clock.mark)
    else:
        losses = train_with_learner(work, case, epochs, clock)
    window = clock.epochs[-1 if case.variant == "limit" else -work.epochs :]
    device = jax.devices()[0]
    memory = device.memory_stats() or {}
    return {
        "seconds": None if case.first else (clock.epochs[-1] - clock.epochs[-1 - len(window)]) / work.epochs,
        "first": None if clock.first is None else clock.first - clock.begin,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "device_peak": memory["peak_bytes_in_use"] / 2**20 if "peak_bytes_in_use" in memory else None,
        "losses": losses,
        "device": device.device_kind,
    }


def workload_of(case: Case) -> Workload:
    """Return the workload with the epochs and rows of the case."""
    work = WORKLOADS[case.workload]
    changes = {k: v for k in ("epochs", "warm", "batch") if (v := getattr(case, k)) is not None}

    def data() -> tuple[Rows, Rows]:
        train, valid = ({k: v[: case.rows] for k, v in rows.items()} for rows in work.data())
        return train, valid

    return dataclasses.replace(work, data=data, **changes)


def train_with_learner(
    work: Workload, case: Case, epochs: int, clock: Clock, also: Callable[[Any], Any] = lambda builder: None
) -> loops.Losses:
    """Train as a user of `learner` would: loss and accuracy on both splits, files, plain lines. `also` sets further
    options.
    """
    from learner import LearnerBuilder
    from learner.data import DataLoaderBuilder
    from learner.metrics import Accuracy, Loss
    from learner.renderers import PlainRenderer

    train_rows, valid_rows = work.data()
    train: Any = DataLoaderBuilder().batch_size(work.batch).shuffle(seed=0).build(train_rows)
    valid: Any = DataLoaderBuilder().batch_size(work.valid_batch).build(valid_rows)
    if case.feed == "iterable":
        train, valid = loops.Shuffled(train_rows, work.batch), loops.Batches(valid_rows, work.valid_batch)
    with tempfile.TemporaryDirectory() as directory, open(os.devnull, "w") as nothing:
        builder = LearnerBuilder(directory + "/run").renderer(PlainRenderer(stream=nothing))
        builder.metrics(Accuracy(), Loss(), *(_further(Accuracy, i) for i in range(case.further)))
        if not case.checkpoints:
            builder.with_file_checkpointer(None)
        also(builder)
        if case.feed == "iterable":
            builder.steps_per_dispatch(1)
        if case.first:
            # Few steps, so that validation is not compiled beside the first one: the hand-written loop does not compile
            # it at all.
            builder.num_steps(4).metric_loggers(_first_step(clock))
        else:
            builder.num_epochs(epochs)
        model: Any = functools.partial(make_model, work) if case.function else make_model(work)
        if case.members:
            builder.population(seed=range(case.members))
            model = lambda rngs: make_model(work, rngs)  # noqa: E731
        builder.build(model, optax.adamw, case.rate, train_step=step, valid_step=step).fit(train, valid)
        journal = [json.loads(line) for line in Path(directory, "run", "journal.jsonl").read_text().splitlines()]
    if case.first:
        return []
    ends = [line for line in journal if line["event"] == "epoch"]
    clock.epochs = [line["time"] for line in ends]
    return [(line["values"]["train/Loss"], line["values"]["valid/Loss"]) for line in ends]


def make_model(work: Workload, rngs: nnx.Rngs | None = None) -> Any:
    """Return the model in the form that the case gives to `learner`."""
    from learner import Linen

    model = work.model(nnx.Rngs(0) if rngs is None else rngs)
    return Linen(*model) if work.library == "flax.linen" else model


def step(model: Any, batch: Rows) -> Any:
    """Return the output of all workloads."""
    from learner import ClassificationOutput, SequenceOutput

    output = SequenceOutput if batch["y"].ndim == 2 else ClassificationOutput
    forward = jax.vmap(model) if type(model).__module__.startswith("equinox") else model
    return output.from_logits(forward(batch["x"]), batch["y"])


def _further(base: type, number: int) -> Any:
    """Return a further metric that costs as much as accuracy."""
    metric = base()
    metric.name = f"Accuracy {number}"
    return metric


def _first_step(clock: Clock) -> Any:
    from learner.events import Event, Listener, StepsEnded

    class FirstStep(Listener):
        def on_event(self, event: Event) -> None:
            if isinstance(event, StepsEnded):
                clock.mark("step")

    return FirstStep()


if __name__ == "__main__":
    print(json.dumps(measure(Case(**json.loads(sys.argv[1])))))
