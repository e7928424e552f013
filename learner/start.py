"""Starting a run: its programs, its checkpoint, its logs, its threads."""

import contextlib
import dataclasses
import importlib.metadata
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from learner.checkpoint import CheckpointStore, DamagedError, Entry, Retention
from learner.checkpoint.items import from_items, to_items
from learner.checkpoint.options import CheckpointOptions
from learner.data.feed import MAX_RESIDENT_STEPS, Feeder, Plan, bytes_of, steps_for
from learner.errors import LearnerError
from learner.inputs import Inputs, default_monitor, direction_of
from learner.metrics.base import CollectingMetric, HostMetric, MetricBase
from learner.options import Options
from learner.run import Position
from learner.runner import Runner, Tally
from learner.steps.program import Programs, has_convolution
from learner.steps.state import TrainState, named_leaves
from learner.steps.step import Step, rows_of
from learner.strategies import Strategy

PyTree = Any


@dataclasses.dataclass(frozen=True)
class Dispatching:
    """How steps are dispatched, and why; decided by the program, the data's size and the platform, never by a clock."""

    buffer: int
    loop: bool
    why: str


def feeder_for(
    inputs: Inputs, split: str, strategy: Strategy, options: Options, warn: Callable[[str], None]
) -> tuple[Feeder, Plan]:
    """The feeder of a split, with its plan; whether steps run in a loop is decided by `decide_dispatch`."""
    source = inputs.source(split)
    size = options.accumulate if split == "train" else 1
    first = inputs.firsts[split]
    collects = any(isinstance(metric, CollectingMetric) for metric in options.metrics_of(split))
    fit = MAX_RESIDENT_STEPS if source.rows is not None and not collects else steps_for(bytes_of(first) * size)
    buffer = max(fit, options.steps_per_dispatch or 0)
    plan = Plan(size, buffer, True, lambda step: buffer, options.steps_per_dispatch)
    return Feeder(source, strategy, plan, first, warn), plan


def decide_dispatch(
    runner: Runner, feeder: Feeder, plan: Plan, options: Options, kind: str, strategy: Strategy
) -> Dispatching:
    """Looks at the traced program: on a CPU a convolution is some 60 times slower in a loop."""
    data = "the data lives on the device" if feeder.resident else "the data streams"
    if options.steps_per_dispatch is not None:
        return Dispatching(options.steps_per_dispatch, True, f"as set; {data}")
    if plan.buffer < 2:
        return Dispatching(1, False, f"the batches of two steps are larger than 64 MiB; {data}")
    if strategy.platform == "cpu" and has_convolution(runner.traced(kind, feeder.example())):
        return Dispatching(plan.buffer, False, f"it has a convolution, which is slow in a loop on a CPU; {data}")
    return Dispatching(plan.buffer, True, data)


def monitor_of(options: Options, valid_splits: list[str]) -> tuple[str, bool]:
    """What decides about the best checkpoint, and whether higher is better."""
    checkpoints = options.checkpoints or CheckpointOptions()
    key = checkpoints.monitor or default_monitor(valid_splits)
    return key, direction_of(options, valid_splits, key, checkpoints.mode)[0] == "max"


def open_store(options: Options, higher_is_better: bool | None = None) -> CheckpointStore:
    """The checkpoints of the run's directory; to read only, where the monitor's direction is not given."""
    checkpoints, place = options.checkpoints or CheckpointOptions(), options.checkpoint_place
    if higher_is_better is None:
        return CheckpointStore(place)
    keep = Retention(checkpoints.keep_last, checkpoints.keep_best, checkpoints.keep_every, higher_is_better)
    return CheckpointStore(place, keep)


def refuse_checkpoints(options: Options) -> None:
    """Raises `LearnerError` where the run's checkpoints go to a place that has those of another run."""
    if options.checkpoints is None or options.checkpoints.directory is None or options.overwrite:
        return
    with contextlib.closing(open_store(options)) as store:
        if store.entries:
            raise LearnerError(
                f"{options.checkpoint_place} holds the checkpoints of a run. To replace them, use "
                f"LearnerBuilder(directory, overwrite=True) (--overwrite=true); or choose another directory"
            )


def remove_checkpoints(options: Options) -> None:
    """Removes the checkpoints that lie outside of the run's directory."""
    if options.checkpoints is not None and options.checkpoints.directory is not None:
        with contextlib.closing(open_store(options, higher_is_better=False)) as store:
            store.remove_all()


@dataclasses.dataclass(frozen=True)
class Restored:
    """What a checkpoint gives back.

    Attributes:
      entry: which one.
      state: the train state.
      progress: everything else.
      metrics: the item `in_flight` of one that was made inside an epoch.
      skipped: what is wrong with newer ones that it stands in for.
    """

    entry: Entry
    state: TrainState
    progress: Mapping[str, Any]
    metrics: Mapping[str, Any] | None
    skipped: tuple[str, ...] = ()

    @property
    def position(self) -> Position:
        """Where the run was."""
        return Position(**self.progress["position"])


def restore(store: CheckpointStore, entry: Entry, init: Callable[[], TrainState]) -> Restored:
    """Reads a checkpoint into the shape of the state that `init` makes; what differs is one error that lists it."""
    items = store.restore(entry.step, jax.eval_shape(lambda: to_items(init())))
    progress, state = store.progress(entry.step), init()
    key = jax.random.wrap_key_data(jnp.asarray(progress["root_key"], jnp.uint32), impl=jax.random.key_impl(state.rng))
    state = dataclasses.replace(from_items(items, state), rng=key)
    return Restored(entry, state, progress, store.metrics(entry.step))


def restore_newest(store: CheckpointStore, init: Callable[[], TrainState]) -> Restored | None:
    """The newest checkpoint that is not damaged, or `None` where there are no checkpoints.

    Raises:
      LearnerError: all of them are damaged.
    """
    entries = {entry.step: entry for entry in store.entries}
    skipped: list[str] = []
    for step in reversed(store.steps):
        try:
            if step in store.damaged:
                raise DamagedError(store.damaged[step])
            restored = restore(store, entries[step], init)
        except DamagedError as error:
            skipped.append(str(error))
            continue
        used = f"the run goes on from the checkpoint of step {step}, before it"
        return dataclasses.replace(restored, skipped=tuple(f"{text}; {used}" for text in skipped))
    if skipped:
        raise LearnerError(
            "there is no checkpoint that could be used:\n  "
            + "\n  ".join(skipped)
            + "\nTo begin anew, use LearnerBuilder(directory, overwrite=True) (--overwrite=true)"
        )
    return None


def grouping_of(inputs: Inputs, options: Options) -> dict[str, int | None]:
    """What gives a position inside an epoch, which counts micro-batches, its meaning."""
    return {
        "rows per batch": rows_of(inputs.firsts["train"]),
        "batches per epoch": inputs.source("train").batches,
        "micro-batches per step": options.accumulate,
    }


def refuse_regrouping(restored: Restored, inputs: Inputs, options: Options) -> None:
    """Raises `LearnerError` where the position of a checkpoint inside an epoch would mean other rows now."""
    before, now = restored.progress["grouping"], grouping_of(inputs, options)
    changed = [f"{name} were {before[name]} and are {now[name]}" for name in now if before[name] != now[name]]
    if restored.position.batch and changed:
        raise LearnerError(
            f"the checkpoint of step {restored.entry.step} lies inside epoch {restored.position.epoch}, and its "
            f"position means other rows now: {', '.join(changed)}. Go on with those of before, or from the end of an "
            "epoch: checkpoint(epoch)"
        )


def tally_in_flight(restored: Restored | None, runner: Runner) -> Tally:
    """The train split's metrics: of a checkpoint that was made inside an epoch, or new."""
    fresh = runner.start("train")
    if restored is None or restored.metrics is None:
        return fresh
    leaves, tree = jax.tree.flatten(fresh.metrics)
    states = restored.metrics["states"]
    return runner.start("train", jax.tree.unflatten(tree, [states[str(i)] for i in range(len(leaves))]))


def rows_in_flight(
    restored: Restored | None, names: Mapping[str, list[str]]
) -> dict[str, dict[str, list[list[np.ndarray]]]]:
    """The rows that collecting metrics (their names by split) held at a checkpoint made inside an epoch."""
    stored = (restored.metrics or {}).get("rows") or {} if restored is not None else {}
    held: dict[str, dict[str, list[list[np.ndarray]]]] = {}
    for split, metrics in stored.items():
        for index, columns in metrics.items():
            rows = [np.asarray(columns[str(i)]) for i in range(len(columns))]
            held.setdefault(split, {})[names[split][int(index)]] = [rows]
    return held


def restore_host_metrics(restored: Restored | None, metrics: Mapping[str, Sequence[MetricBase]]) -> None:
    """Metrics on the host (by split) go on with what they kept in the checkpoint."""
    kept = {} if restored is None else restored.progress.get("host_metrics", {})
    for split, of_split in metrics.items():
        for metric in of_split:
            if isinstance(metric, HostMetric) and metric.name in kept.get(split, {}):
                metric.set_state(kept[split][metric.name])


def make_runner(step: Step, state: TrainState, strategy: Strategy) -> Runner:
    """The programs of a run, with the state placed."""
    return Runner(Programs(step, jax.tree.structure(state)), strategy, state)


def describe(log: logging.Logger, options: Options, step: Step, state: TrainState, strategy: Strategy) -> int:
    """Writes what a run is into its log; returns the number of parameters."""
    packages = ("learner", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
    versions = {package: importlib.metadata.version(package) for package in packages}
    versions["python"] = sys.version.split()[0]
    log.info("versions: %s", ", ".join(f"{name} {v}" for name, v in versions.items()))
    log.info("devices: %s of %d", strategy.description, jax.device_count())
    if jax.device_count() > 1 and options.devices is None:
        log.info("there are %d devices and one is used", jax.device_count())
    leaves = named_leaves(state.params)
    count = sum(int(x.size) for x in leaves.values())
    log.info("model: %s, %d parameters in %d arrays", step.family.kind, count, len(leaves))
    width = max(map(len, leaves))
    for name, x in leaves.items():
        log.info("  %-*s %-10s %s", width, name, x.dtype, list(x.shape))
    log.info("seed %d, %d micro-batches per step", options.seed, options.accumulate)
    return count
