"""What a run is going to be: its model, its steps, its memory and its work, before it begins."""

import dataclasses
import logging
import math
import time
from typing import Any

import jax
import numpy as np

from learner.arrays import arrays_of
from learner.check import Tracing
from learner.data.feed import Feeder
from learner.events import Message, Overview
from learner.facts import optimizer_text
from learner.inputs import Inputs, run_length
from learner.memory import RoomFor
from learner.options import Options
from learner.renderers.overview import needs
from learner.report import PARTS, memory_of, placed_arrays
from learner.run import Run
from learner.runner import Runner
from learner.start import decide_dispatch, feeder_for, make_runner
from learner.steps.flops import step_flops
from learner.steps.program import Feed, Rows
from learner.steps.state import TrainState
from learner.steps.step import Step
from learner.strategies import Strategy

PyTree = Any


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

        return jax.tree.map(whole, self.inputs.firsts["train"])


def planned(options: Options, step: Step, shapes: TrainState, strategy: Strategy, inputs: Inputs) -> Planned:
    """A run of which no state is made."""
    state = strategy.placed_shapes(shapes)
    runner = make_runner(step, state, strategy)
    feeder, plan = feeder_for(inputs, "train", strategy, options, lambda text: None)
    plan.loop = decide_dispatch(runner, feeder, plan, options, "train", strategy).loop
    return Planned(options, step, state, inputs, runner, feeder)


def tell_overview(plan: Planned, run: Run) -> None:
    """Tells a run's listeners what it is going to be, and then what of memory its training needs, which is compiled for
    that. The first dispatch takes what was compiled.
    """
    feed = plan.feed()
    run.worker.put(overview_of(plan, feed))
    began = time.monotonic()
    peak, temporaries = _compiled(plan, feed)
    text = f"compiled in {time.monotonic() - began:.1f} s; {needs(peak, temporaries)}"
    run.log.info("%s", text)
    run.worker.put(Message(time.time(), logging.INFO, text))


def made_overview(plan: Planned, compiled: bool) -> Overview:
    """The same without a run; `compiled`: with what the compiled training needs."""
    feed = plan.feed()
    overview = overview_of(plan, feed)
    if not compiled:
        return overview
    peak, temporaries = _compiled(plan, feed)
    return dataclasses.replace(overview, peak=peak, temporaries=temporaries)


def overview_of(plan: Planned, feed: Feed) -> Overview:
    """What there is to say of a run before anything is compiled. Its step is traced once more for it."""
    options, step, strategy = plan.options, plan.step, plan.strategy
    batches = plan.inputs.source("train").batches
    length = run_length(options, batches)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), plan.state)
    with Tracing("the train step", "train", plan.batch):
        flops = step_flops(step, shapes, plan.batch())
    return Overview(
        time.time(),
        model=f"{step.family.name} ({step.family.kind})",
        arrays=arrays_of(step.family, plan.state.params, plan.state.model_state),
        optimizer=None if step.optimizer is None else optimizer_text(step.optimizer),
        strategy=strategy.description,
        devices=len(strategy.devices),
        rows=plan.inputs.rows("train"),
        spread=_spread(feed),
        accumulate=options.accumulate,
        batches=batches,
        steps_per_epoch=length.epoch,
        num_epochs=options.num_epochs,
        steps=length.steps,
        flops=flops.number,
        flops_exact=flops.exact,
        memory=_memory(plan, feed),
        room=_room(strategy),
        depth=options.summary_depth,
    )


def _compiled(plan: Planned, feed: Feed) -> tuple[int, int]:
    """Bytes on each device: at most, and those of them that are temporary."""
    with RoomFor("train"), Tracing("the train step", "train", plan.batch):
        programs = memory_of(plan.runner, feed, plan.feeder.loop)
    largest = max(programs, key=lambda program: program.peak)
    return largest.peak, largest.temporaries


def _memory(plan: Planned, feed: Feed) -> dict[str, int]:
    """By what has it. Gradients are as large as what they are of."""
    found: dict[str, int] = {}
    for array in placed_arrays(plan.state):
        found[array.part] = found.get(array.part, 0) + array.per_device
    memory = {PARTS["params"]: found.get(PARTS["params"], 0)}
    if plan.step.update is None:
        memory["gradients"] = memory[PARTS["params"]]
    memory |= {name: found.get(name, 0) for name in (PARTS["opt_state"], PARTS["model_state"])}
    if isinstance(feed, Rows):  # and in the order of an epoch
        memory["data"] = _on_each(feed) + (0 if feed.data is plan.feeder.data else _on_each(plan.feeder.data))
    else:
        memory["batches"] = _on_each(feed)
    return {name: count for name, count in memory.items() if count}


def _on_each(arrays: PyTree) -> int:
    """Bytes on each device."""
    shards = [(x.sharding.shard_shape(x.shape), x.dtype.itemsize) for x in jax.tree.leaves(arrays)]
    return sum(math.prod(shape) * size for shape, size in shards)


def _spread(feed: Feed) -> int:
    """Over how many devices the rows of a batch are spread."""
    if isinstance(feed, Rows):
        return 1
    part, whole = (feed.last, feed.wholes[1]) if feed.batches is None else (feed.batches, feed.wholes[0])
    first = jax.tree.leaves(part)[0]
    return 1 if whole else math.prod(first.shape) // math.prod(first.sharding.shard_shape(first.shape))


def _room(strategy: Strategy) -> int | None:
    """Bytes that the first device of this process has."""
    mine = [device for device in strategy.devices if device.process_index == jax.process_index()]
    told = mine[0].memory_stats() if mine else None
    return None if not told else told.get("bytes_limit")
