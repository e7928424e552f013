"""Make one measurement of `benchmarks.checkpoint_stall`, as a separate process: `python -m benchmarks.stall_child
'{"size": "10 MB", "variant": "learner", "directory": "/tmp/run"}'`.

Prints one line of JSON. A run saves every `2 * window` steps; between two saves are a pair of windows, one with a save
at its start and one without. `with` and `without` are their seconds, pair by pair; `held` is how long the save held the
loop, `next` how much longer than usual the next five dispatches held it, `stretched` how much later the fifth step
ended. `step` and `copy` are the usual times of a step and of a copy of the state; `disk` and `arrays` are bytes. `work`
is the CPU seconds of a save. The first save of a process is not counted: it creates objects that all later saves use.

The variants `start` and `resume` print `first` only: the seconds from making the model to the end of the first step.
"""

import contextlib
import dataclasses
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx

from benchmarks.loops import Task, order_of
from benchmarks.workloads import RATE, Rows, Transformer, Workload, characters


@dataclasses.dataclass(frozen=True)
class Size:
    """A character transformer. With 3 blocks it has 54 parameters: with AdamW's moments and count 163 arrays.

    Attributes:
      width: width of the transformer.
      batch: rows of 128 characters in a batch.
      window: steps between a save and the next window, which has none.
      pairs: number of pairs of windows that a process measures.
      blocks: blocks of the transformer.
    """

    width: int
    batch: int
    window: int
    pairs: int
    blocks: int = 3

    def workload(self) -> Workload:
        """Return the model and the data to train."""
        return Workload(
            "", lambda rngs: Transformer(rngs, self.width, self.blocks), characters, self.batch, self.batch, 1, 0
        )

    @property
    def steps(self) -> int:
        """Return the steps of the run: some before the first save, an uncounted pair, the other pairs, and the last
        save.
        """
        return 2 * self.window * (self.pairs + 2)


SIZES = {
    "10 MB": Size(width=148, batch=16, window=50, pairs=3),
    "500 MB": Size(width=1072, batch=1, window=10, pairs=2),
    "small": Size(width=8, batch=4, window=6, pairs=1, blocks=1),
}


@dataclasses.dataclass(frozen=True)
class Case:
    """A measurement: "learner" and "hand" train and save in `directory`, "resume" resumes the run of the first one, and
    "start" starts a new run.
    """

    size: str
    variant: str
    directory: str


@dataclasses.dataclass
class Notes:
    """The recorded times of a run.

    Attributes:
      ended: time of each step's end.
      worked: CPU seconds of the process at that time.
      saves: seconds that the save after a step held the loop.
      dispatches: seconds that the dispatch of a step held the loop.
    """

    ended: dict[int, float] = dataclasses.field(default_factory=dict)
    worked: dict[int, float] = dataclasses.field(default_factory=dict)
    saves: dict[int, float] = dataclasses.field(default_factory=dict)
    dispatches: dict[int, float] = dataclasses.field(default_factory=dict)

    def ends(self, first: int, last: int, at: float) -> None:
        """Record the end of steps, unless it is recorded already."""
        for step in range(first, last + 1):
            self.ended.setdefault(step, at)
            self.worked.setdefault(step, time.process_time())

    def result(self, size: Size) -> dict[str, Any]:
        """Return the numbers of each pair of windows."""
        window, t, w = size.window, self.ended, self.worked
        saved = [step for step in sorted(self.saves)[1:] if step + 2 * window in t]
        without = [t[save + 2 * window] - t[save + window] for save in saved]
        step, dispatch = median(without) / window, median(self.dispatches.values())
        five = range(1, 6)
        return {
            "with": [t[save + window] - t[save] for save in saved],
            "without": without,
            "work": [2 * w[save + window] - w[save] - w[save + 2 * window] for save in saved],
            "stretched": [t[save + 5] - t[save] - 5 * step for save in saved],
            "held": [self.saves[save] for save in saved],
            "next": [sum(self.dispatches[save + i] for i in five) - 5 * dispatch for save in saved],
            "step": step,
        }


def measure(case: Case) -> dict[str, Any]:
    """Run one case in this process."""
    size = SIZES[case.size]
    measured = {"learner": with_learner, "hand": by_hand}.get(case.variant)
    return first_step(size, Path(case.directory), case.variant) if measured is None else measured(size, case.directory)


def prepared(size: Size, directory: str | Path, steps: int, notes: Notes) -> tuple[Any, Callable[[], Any]]:
    """Return a builder without saves, and a function that builds the learner and trains."""
    from learner import LearnerBuilder, SequenceOutput
    from learner.data import DataLoaderBuilder

    def step(model: Any, batch: Rows) -> Any:
        return SequenceOutput.from_logits(model(batch["x"]), batch["y"])

    work = size.workload()
    rows, _ = work.data()
    builder = LearnerBuilder(str(directory)).renderer(None).metric_loggers(listener(notes)).num_steps(steps)
    builder.steps_per_dispatch(1).with_file_checkpointer(None)

    def fit() -> Any:
        learner = builder.build(work.model(nnx.Rngs(0)), optax.adamw, RATE, train_step=step)
        return learner.fit(DataLoaderBuilder().batch_size(size.batch).shuffle(seed=0).build(rows))

    return builder, fit


def with_learner(size: Size, directory: str) -> dict[str, Any]:
    """Train step by step, so that the end of each step is known."""
    notes = Notes()
    with noted(notes) as runners:
        builder, fit = prepared(size, directory, size.steps, notes)
        builder.with_file_checkpointer(keep_best=0, every_epochs=None, every_steps=2 * size.window)
        fit()
    runner = runners[0]
    copies = [seconds_of(lambda: jax.block_until_ready(runner.copy(runner.state))) for _ in range(6)]
    arrays = sum(x.nbytes for x in jax.tree.leaves(runner.state))
    sizes = {"disk": bytes_of(newest(Path(directory, "checkpoint"))), "arrays": arrays}
    return notes.result(size) | sizes | {"copy": median(copies[1:])}


@contextlib.contextmanager
def noted(notes: Notes) -> Iterator[list[Any]]:
    """Time the loop's calls that dispatch and save; the list receives the run's `Runner`."""
    from learner.training.programs.executor import Runner
    from learner.training.run import Run

    save, train, runners, dispatched = Run.save, Runner.train, [], 0

    def timed_save(run: Any, *args: Any, **kwargs: Any) -> None:
        runners.append(run.runner)
        notes.saves[run.position.step] = seconds_of(lambda: save(run, *args, **kwargs))

    def timed_train(runner: Any, tally: Any, dispatch: Any) -> Any:
        nonlocal dispatched
        dispatched += dispatch.steps
        begin = time.perf_counter()
        values = train(runner, tally, dispatch)
        notes.dispatches[dispatched] = time.perf_counter() - begin
        return values

    Run.save, Runner.train = timed_save, timed_train  # type: ignore[assignment, method-assign]
    try:
        yield runners
    finally:
        Run.save, Runner.train = save, train  # type: ignore[assignment, method-assign]


def listener(notes: Notes) -> Any:
    """Return a listener that records the ends of steps; very short steps are read together."""
    from learner.events import Event, Listener, StepsEnded

    class Ends(Listener):
        def on_event(self, event: Event) -> None:
            if isinstance(event, StepsEnded):
                notes.ends(event.step - event.count + 1, event.step, event.time)

    return Ends()


def by_hand(size: Size, directory: str) -> dict[str, Any]:
    """Train with the hand-written loop, one step ahead of the device; it calls Orbax's manager as its guide shows."""
    import orbax.checkpoint as ocp

    work = size.workload()
    (rows, _), task, notes = work.data(), Task(work), Notes()
    data = jax.device_put((rows["x"], rows["y"]))

    def train(leaves: Any, sums: jax.Array, x: jax.Array, y: jax.Array, index: jax.Array) -> Any:
        return task.train(leaves, sums, x[index], y[index])

    step, leaves, sums = jax.jit(train, donate_argnums=0), task.leaves, jax.device_put(np.zeros(3, np.float32))
    batches = len(rows["y"]) // size.batch
    with ocp.CheckpointManager(directory, options=ocp.CheckpointManagerOptions(max_to_keep=2)) as manager:
        for number in range(1, size.steps + 1):
            epoch, i = divmod(number - 1, batches)
            index, before = order_of(len(rows["y"]), epoch)[i * size.batch : (i + 1) * size.batch], sums
            begin = time.perf_counter()
            leaves, sums = step(leaves, sums, *data, index)
            notes.dispatches[number] = time.perf_counter() - begin
            before.block_until_ready()
            notes.ends(number - 1, number - 1, time.time())
            if number % (2 * size.window) == 0:
                # a save needs the step's end in any case: it is not part of the save's time
                jax.block_until_ready(leaves)
                notes.ends(number, number, time.time())
                save = ocp.args.StandardSave(task.tree.unflatten(leaves))
                notes.saves[number] = seconds_of(lambda: manager.save(number, args=save))  # noqa: B023
    arrays = sum(leaf.nbytes for leaf in leaves)
    return notes.result(size) | {"disk": bytes_of(newest(Path(directory))), "arrays": arrays}


def first_step(size: Size, directory: Path, variant: str) -> dict[str, Any]:
    """Return the time until a new or resumed run completes a step."""
    import learner  # noqa: F401  # its import is not timed

    notes = Notes()
    steps = int(newest(directory / "checkpoint").name) if variant == "resume" else 0
    builder, fit = prepared(size, directory, steps + 4, notes)
    builder.resume()
    begin = time.time()
    fit()
    return {"first": min(notes.ended.values()) - begin}


def seconds_of(do: Callable[[], Any]) -> float:
    """Return the duration of a call."""
    begin = time.perf_counter()
    do()
    return time.perf_counter() - begin


def newest(directory: Path) -> Path:
    """Return the checkpoint of the highest step."""
    return max((path for path in directory.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))


def bytes_of(directory: Path) -> int:
    """Return the sizes of all files in a directory."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


if __name__ == "__main__":
    print(json.dumps(measure(Case(**json.loads(sys.argv[1])))))
