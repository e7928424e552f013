"""What a run is made of before it begins: its feeders, how they dispatch, its programs, where its checkpoints are."""

import contextlib
import dataclasses
import logging
import sys
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from learner.checkpoint import CheckpointStore, Retention
from learner.checkpoint.options import CheckpointOptions
from learner.distributed.consensus import Consensus
from learner.distributed.process_group import ProcessGroup, SingleProcess
from learner.errors import LearnerError
from learner.metrics.base import CollectingMetric
from learner.models.freezing import frozen_leaves
from learner.steps.axis import Axis
from learner.steps.eval_params import has_eval_params
from learner.steps.program import Feed, Programs, has_convolution
from learner.steps.state import TrainState
from learner.steps.step import Step
from learner.strategies import Strategy
from learner.training.executor import Runner
from learner.training.feed.dispatches import MAX_RESIDENT_STEPS, Feeder
from learner.training.feed.group import DispatchGrouping, bytes_of, steps_for
from learner.training.options import Options
from learner.training.preflight import Inputs, default_monitor, direction_of
from learner.training.reporter import InFlightLimiter
from learner.training.step_checks import rows_on_two_axes
from learner.training.timing import StepTimeEstimator
from learner.util.distribution import versions
from learner.util.trees import named_leaves

PyTree = Any


SINGLE_PROCESS = SingleProcess()


@dataclasses.dataclass(frozen=True)
class DispatchPlan:
    """How steps are dispatched, and why; decided by the program, the data's size and the platform, never by a clock.
    The option `steps_per_dispatch` limits how many are dispatched at once; no choice of a program depends on it.
    """

    buffer: int
    loop: bool
    why: str


@dataclasses.dataclass(frozen=True)
class StepLimit:
    """How many training steps the next dispatch may have. The feeder's thread calls it while it prepares data.

    Attributes:
      options: of the builder, which say when something is due.
      estimator: the time of a step.
      consensus: with the other processes, or None. All processes have to dispatch the same steps.
    """

    options: Options
    estimator: StepTimeEstimator
    consensus: Consensus | None

    def __call__(self, step: int) -> int:
        """Return the number of steps after `step`: up to the next thing that is due, and half a second of work."""
        options = self.options
        saves = options.checkpoints.every_steps if options.checkpoints is not None else None
        periods = [options.valid_every, saves, *(every for every, _ in options.every)]
        due = [period - step % period for period in periods if period]
        if options.num_steps is not None:
            due.append(options.num_steps - step)
        if options.profile is not None and (room := options.profile.room(step)) is not None:
            due.append(room)
        most = self.estimator.steps if self.consensus is None else self.consensus.steps(step)
        return max(1, min([most, *due]))


def feeder_for(
    inputs: Inputs,
    split: str,
    strategy: Strategy,
    options: Options,
    warn: Callable[[str], None],
    limit: Callable[[int], int] | None = None,
) -> tuple[Feeder, DispatchGrouping]:
    """Return the feeder of a split with its plan. `decide_dispatch` then decides whether steps run in a loop.

    `limit` returns how many steps the next dispatch may have; by default as many as the buffer has room for.
    """
    source = inputs.source(split)
    size = options.accumulate if split == "train" else 1
    first = inputs.first_batches[split]
    collects = any(isinstance(metric, CollectingMetric) for metric in options.metrics_of(split))
    resident = strategy.resident and source.has_rows
    fit = MAX_RESIDENT_STEPS if resident and not collects else steps_for(bytes_of(first) * size)
    buffer = max(fit, options.steps_per_dispatch or 0) if fit > 1 else 1
    plan = DispatchGrouping(size, buffer, True, limit or (lambda step: buffer), options.steps_per_dispatch)
    return Feeder(source, strategy, plan, first, warn), plan


def decide_dispatch(
    runner: Runner, feeder: Feeder, plan: DispatchGrouping, options: Options, kind: str, strategy: Strategy
) -> DispatchPlan:
    """Look at the traced program: on a CPU a convolution is some 60 times slower in a loop."""
    data = "the data lives on the device" if feeder.resident else "the data streams"
    if plan.buffer < 2:
        return DispatchPlan(1, False, f"the batches of two steps are larger than 64 MiB; {data}")
    if strategy.platform == "cpu" and has_convolution(runner.traced(kind, feeder.example())):
        return DispatchPlan(plan.buffer, False, f"it has a convolution, which is slow in a loop on a CPU; {data}")
    if options.steps_per_dispatch is not None:
        return DispatchPlan(options.steps_per_dispatch, True, f"as set; {data}")
    return DispatchPlan(plan.buffer, True, data)


def warning_of_pairs(step: Step, state: TrainState, batch: PyTree, strategy: Strategy) -> str | None:
    """Return the warning for a step that relates the rows of a batch to each other (in-batch negatives) in a run that
    computes it on parts of a batch; None for other steps and runs.
    """
    parts = ["each device of Replicated sees its own rows alone"] if strategy.axis is not None else []
    parts += [f"each of {step.accumulate} micro-batches sees its own rows alone"] if step.accumulate > 1 else []
    shape = rows_on_two_axes(step, state, batch) if parts else None
    if shape is None:
        return None
    advice = ["strategy(Sharded()) computes with the rows of all devices"] if strategy.axis is not None else []
    advice += ["a larger batch_size in place of grads_accumulation has all rows"] if step.accumulate > 1 else []
    return (
        f"train_step has the batch's rows on two axes ({shape}), as a loss over pairs of rows has, and "
        f"{' and '.join(parts)}: such a loss is another one than that of the whole batch. "
        f"{'; '.join(advice)}. For a loss that is a mean over rows nothing changes"
    )


def monitor_of(options: Options, valid_splits: list[str]) -> tuple[str, bool]:
    """What decides about the best checkpoint, and whether higher is better."""
    checkpoints = options.checkpoints or CheckpointOptions()
    key = checkpoints.monitor or default_monitor(valid_splits)
    return key, direction_of(options, valid_splits, key, checkpoints.mode)[0] == "max"


def open_store(
    options: Options, higher_is_better: bool | None = None, hosts: ProcessGroup = SINGLE_PROCESS
) -> CheckpointStore:
    """The checkpoints of the run's directory; to read only, where the monitor's direction is not given."""
    checkpoints, place = options.checkpoints or CheckpointOptions(), options.checkpoint_place
    if higher_is_better is None:
        return CheckpointStore(place, once=hosts.run_on_primary)
    keep = Retention(checkpoints.keep_last, checkpoints.keep_best, checkpoints.keep_every, higher_is_better)
    return CheckpointStore(place, keep, hosts.run_on_primary)


def refuse_checkpoints(options: Options) -> None:
    """Raises `LearnerError` where the run's checkpoints go to a place that has those of another run."""
    if options.checkpoints is None or options.checkpoints.directory is None or options.overwrite:
        return
    with contextlib.closing(open_store(options)) as store:
        if store.steps:
            raise LearnerError(
                f"{options.checkpoint_place} holds the checkpoints of a run. To replace them, use "
                f"LearnerBuilder(directory, overwrite=True) (--overwrite=true); or choose another directory",
                code="directory-holds-checkpoints",
            )


def remove_checkpoints(options: Options) -> None:
    """Removes the checkpoints that lie outside of the run's directory."""
    if options.checkpoints is not None and options.checkpoints.directory is not None:
        with contextlib.closing(open_store(options, higher_is_better=False)) as store:
            store.remove_all()


def check_recordable(options: Options, state: TrainState) -> None:
    """Raises `LearnerError` where checkpoints are to be recorded, and no process has the whole model."""
    if options.checkpoints is None or options.checkpoints.record is None:
        return
    parts = {"params": state.params, "model_state": state.model_state}
    if "optim" in options.checkpoints.record_items:
        parts["opt_state"] = state.opt_state
    leaves = named_leaves(parts)
    here = {name for name, x in leaves.items() if getattr(x, "is_fully_addressable", True) or x.is_fully_replicated}
    if apart := [name for name in leaves if name not in here]:
        raise LearnerError(
            f"record= of with_file_checkpointer writes its files in one process, and {len(apart)} of their arrays lie "
            f"in parts on the devices of several ({', '.join(apart[:3])}): leave it out, and use learner export, or "
            "load_checkpoint and save_model, in one process afterwards",
            code="checkpoint-record-distributed",
        )


def in_flight_limit(strategy: Strategy) -> InFlightLimiter:
    """How far the host may run ahead of these devices."""
    return InFlightLimiter(1, least=1) if strategy.one_at_a_time else InFlightLimiter()


def make_runner(step: Step, state: TrainState, strategy: Strategy) -> Runner:
    """The programs of a run, with the state placed."""
    axis = None if strategy.axis is None else Axis(strategy.axis, strategy.sync_batch_norm)
    step = dataclasses.replace(step, axis=axis, gather=strategy.gather(state))
    return Runner(Programs(step, jax.tree.structure(state)), strategy, state)


def describe(log: logging.Logger, options: Options, step: Step, state: TrainState, strategy: Strategy) -> int:
    """Writes what a run is into its log; returns the number of parameters."""
    found = versions("learner", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
    found["python"] = sys.version.split()[0]
    log.info("versions: %s", ", ".join(f"{name} {v}" for name, v in found.items()))
    log.info("devices: %s of %d", strategy.description, jax.device_count())
    if jax.device_count() > 1 and options.devices is None and len(strategy.devices) == 1:
        log.info("there are %d devices and one is used: devices('all') uses all", jax.device_count())
    leaves = named_leaves(state.params)
    count = sum(int(x.size) for x in leaves.values())
    log.info("model: %s, %d parameters in %d arrays", step.family.kind, count, len(leaves))
    frozen = frozen_leaves(step.family, state.model_state).values()
    if frozen:
        size, memory = sum(int(x.size) for x in frozen), sum(int(x.nbytes) for x in frozen) / 2**20
        log.info(
            "frozen: %d parameters in %d arrays (%.1f MiB), of which no gradients and no optimizer state are kept",
            size,
            len(frozen),
            memory,
        )
    width = max(map(len, leaves))
    for name, x in leaves.items():
        log.info("  %-*s %-10s %s", width, name, x.dtype, list(x.shape))
    if step.family.note is not None:
        log.info(step.family.note)
    log.info("precision: %s", options.precision_text)
    log.info("seed %d, %d micro-batches per step", options.seed, options.accumulate)
    if has_eval_params(named_leaves(state.opt_state)):
        log.info("validation, hooks and the result have averaged parameters, as the optimizer keeps them")
    return count


@dataclasses.dataclass(frozen=True)
class Planned:
    """What a run is made of before it begins.

    Attributes:
      options: of the builder.
      step: the definition of its steps.
      state: the first one as it is placed, or its shapes with their shardings.
      inputs: the data.
      runner: its programs.
      feeder: of the train split.
    """

    options: Options
    step: Step
    state: TrainState
    inputs: Inputs
    runner: Runner
    feeder: Feeder

    @property
    def strategy(self) -> Strategy:
        """Where it runs."""
        return self.runner.strategy

    def feed(self) -> Feed:
        """As a training dispatch gets it."""
        return self.feeder.example() if self.feeder.loop else self.feeder.example_alone()

    def batch(self) -> PyTree:
        """The shapes of a whole batch, over all processes."""
        rows = self.inputs.rows("train")

        def whole(x: np.ndarray) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((rows, *x.shape[1:]), jax.dtypes.canonicalize_dtype(x.dtype))

        return jax.tree.map(whole, self.inputs.first_batches["train"])


def planned(options: Options, step: Step, shapes: TrainState, strategy: Strategy, inputs: Inputs) -> Planned:
    """A run of which no state is made."""
    state = strategy.placed_shapes(shapes)
    runner = make_runner(step, state, strategy)
    feeder, plan = feeder_for(inputs, "train", strategy, options, lambda text: None)
    plan.loop = decide_dispatch(runner, feeder, plan, options, "train", strategy).loop
    return Planned(options, step, state, inputs, runner, feeder)
