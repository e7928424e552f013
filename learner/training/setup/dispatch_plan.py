"""The programs of a run, the feeders of its data, and the number of steps in each dispatch."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from learner.distributed.consensus import Consensus
from learner.metrics.base import CollectingMetric, StepWork
from learner.steps.axis import Axis
from learner.steps.buffers import Feed
from learner.steps.flops import step_flops
from learner.steps.population import count_members
from learner.steps.program import Programs, has_convolution
from learner.steps.step import StepFunctions
from learner.steps.train_state import TrainState
from learner.strategies.base import Strategy
from learner.training.definition import TrainingDefinition
from learner.training.feed.dispatches import MAX_RESIDENT_STEPS, Feeder
from learner.training.feed.group import DispatchGrouping, bytes_of, steps_for
from learner.training.feed.inputs import Inputs
from learner.training.options import Options
from learner.training.programs.executor import Runner
from learner.training.programs.in_flight import InFlightLimiter
from learner.training.programs.population_runner import PopulationRunner
from learner.training.reporting.timing import StepTimeEstimator

PyTree = Any


@dataclasses.dataclass(frozen=True)
class StepLimit:
    """The limit of the steps in the next training dispatch. The feeder's thread calls it while it prepares data.

    Attributes:
      options: the options of the builder, which set when a validation, a checkpoint or a hook is due.
      estimator: estimates the time of a step.
      consensus: the consensus with the other processes, or None. All processes must dispatch the same steps.
    """

    options: Options
    estimator: StepTimeEstimator
    consensus: Consensus | None

    def __call__(self, step: int) -> int:
        """Return the number of steps after `step`: up to the next due action, and at most half a second of work."""
        options = self.options
        saves = options.checkpoints.every_steps if options.checkpoints is not None else None
        own: list[int | None] = [period["steps"] for period in (options.valid_splits or {}).values()]
        periods = [options.valid_every, *own, saves, *(every for every, _ in options.every)]
        due = [period - step % period for period in periods if period]
        if options.num_steps is not None:
            due.append(options.num_steps - step)
        if options.profile is not None and (room := options.profile.room(step)) is not None:
            due.append(room)
        most = self.estimator.steps("train") if self.consensus is None else self.consensus.steps(step)
        return max(1, min([most, *due]))


def build_feeder(
    runner: Runner,
    inputs: Inputs,
    split: str,
    options: Options,
    warn: Callable[[str], None] = lambda text: None,
    limit: Callable[[int], int] | None = None,
) -> tuple[Feeder, str]:
    """Return the feeder of a split, and a text about its dispatches for the log. This traces the programs.

    The choice of one compiled loop for the steps of a dispatch depends on the program, the size of the data and the
    platform, never on a clock. Nor does it depend on `steps_per_dispatch`, as steps without a loop are other programs,
    with other last bits.

    `limit` returns the maximum number of steps in the next dispatch; by default the capacity of the buffer.
    """
    source, strategy = inputs.source(split), runner.strategy
    size = options.accumulate if split == "train" else 1
    first = inputs.first_batches[split]
    collects = any(isinstance(metric, CollectingMetric) for metric in options.metrics_of(split))
    resident = strategy.resident and source.has_rows
    # If rows are collected, each step of a dispatch needs space for them, even if its batches need none.
    fit = MAX_RESIDENT_STEPS if resident and not collects else steps_for(bytes_of(first) * size)
    most = options.steps_per_dispatch
    buffer = max(fit, most or 0) if fit > 1 else 1
    grouping = DispatchGrouping(size, buffer, True, limit or (lambda step: buffer), most)
    lane_seeds = None
    if split == "train" and has_own_data(options):
        members = options.population.members
        lane_seeds = lambda: [members[lane].seed for lane in runner.lanes or ()]  # noqa: E731
    changes = split == "train" and bool(options.on_epoch_end)
    feeder = Feeder(source, strategy, grouping, first, warn, lane_seeds, changes)
    data = "the data lives on the device" if resident else "the data streams"
    if buffer == 1:
        why = "the batches of two steps are larger than 64 MiB"
    elif strategy.platform == "cpu" and has_convolution(
        runner.traced("train" if split == "train" else "valid", feeder.example())
    ):
        why = "it has a convolution, which is slow in a loop on a CPU"  # 60 times slower than outside of one
    else:
        return feeder, f"up to {most or buffer} steps in one loop ({'' if most is None else 'as set; '}{data})"
    return feeder.without_loop(), f"step by step, without a loop ({why}; {data})"


def in_flight_limit(strategy: Strategy) -> InFlightLimiter:
    """Return the limiter that bounds how far the host runs ahead of these devices."""
    # Two programs in flight on simulated CPU devices can deadlock in XLA's collectives: the process ends after 40 s.
    return InFlightLimiter(1, least=1) if strategy.one_at_a_time else InFlightLimiter()


def make_runner(
    step: StepFunctions,
    state: TrainState,
    strategy: Strategy,
    options: Options | None = None,
    lanes: Sequence[int] | None = None,
) -> Runner:
    """Return the programs of a run with the state placed on the devices.

    Args:
      step: the definition of its steps.
      state: the first state, or its shapes.
      strategy: the devices.
      options: the options of a run that trains.
      lanes: the members of a population in the programs; default: all.
    """
    axis = None if strategy.axis is None else Axis(strategy.axis, strategy.sync_batch_norm)
    step = dataclasses.replace(step, axis=axis, gather=strategy.gather(state))
    programs = Programs(step, jax.tree.structure(state))
    if count_members(state) is None:
        return Runner(programs, strategy, state)
    ends = options is not None and keeps_ended(options, strategy)
    own_data = options is not None and has_own_data(options)
    return PopulationRunner(programs, strategy, state, lanes, ends, own_data)


def has_own_data(options: Options) -> bool:
    """Return True if each member of a population has its own order of the training data."""
    return options.population is not None and options.population.data_order == "own"


def keeps_ended(options: Options, strategy: Strategy) -> bool:
    """Return True if the programs of a population may include ended members. It depends on nothing else, as such
    programs may differ in last bits.
    """
    return bool(options.early_stopping) or (options.halving is not None and strategy.member_shares > 1)


def lanes_of(progress: Mapping[str, Any], options: Options, strategy: Strategy) -> list[int] | None:
    """Return the members in the programs of a population that resumes from a checkpoint."""
    lanes: list[int] | None = progress.get("lanes")
    if lanes is None or keeps_ended(options, strategy):
        return lanes
    return [lane for lane in lanes if not progress["members"][lane]["stopped"]]


@dataclasses.dataclass(frozen=True)
class Planned:
    """The parts of a run that an overview describes.

    Attributes:
      options: the options of the builder.
      step: the definition of its steps.
      state: the first state, placed, or its shapes with their shardings.
      inputs: the data.
      runner: its programs.
      feeder: the feeder of the train split.
    """

    options: Options
    step: StepFunctions
    state: TrainState
    inputs: Inputs
    runner: Runner
    feeder: Feeder

    @property
    def strategy(self) -> Strategy:
        """The devices of the run."""
        return self.runner.strategy

    def feed(self) -> Feed:
        """Return an example feed of a training dispatch."""
        return self.feeder.example() if self.feeder.loop else self.feeder.example_alone()

    def batch(self) -> PyTree:
        """Return the shapes of a batch over all processes."""
        return whole_batch(self.inputs)


def whole_batch(inputs: Inputs) -> PyTree:
    """Return the shapes of a micro-batch of the train split over all processes."""
    rows = inputs.rows("train")

    def over_processes(x: np.ndarray) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((rows, *x.shape[1:]), jax.dtypes.canonicalize_dtype(x.dtype))

    return jax.tree.map(over_processes, inputs.first_batches["train"])


def step_work(step: StepFunctions, state: TrainState, inputs: Inputs, strategy: Strategy) -> StepWork:
    """Return the work of an optimizer step, for metrics of its speed."""

    def flops() -> int:
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), state)
        # Recomputation to save memory does not count as work of the model.
        return step_flops(dataclasses.replace(step, remat=None), shapes, whole_batch(inputs)).number

    rows = inputs.rows("train") * step.accumulate
    return StepWork(flops, rows, len(strategy.devices), str(strategy.devices[0].device_kind))


def planned(definition: TrainingDefinition, inputs: Inputs) -> Planned:
    """Return the parts of a run without creating a state."""
    options, step, strategy = definition.options, definition.step, definition.strategy
    state = definition.placed_shapes()
    runner = make_runner(step, state, strategy, options)
    feeder, _ = build_feeder(runner, inputs, "train", options)
    return Planned(options, step, state, inputs, runner, feeder)
