"""What a run is going to be: its model, its steps, its memory and its work, before it begins."""

import dataclasses
import logging
import math
import time
from typing import Any

import jax

from learner.diagnostics.sharding_report import PARTS, memory_of, placed_arrays
from learner.events import Message, Overview
from learner.models.arrays import arrays_of
from learner.renderers.overview import needs
from learner.steps.flops import step_flops
from learner.steps.program import Feed, ResidentBatches
from learner.strategies import Strategy
from learner.training.dispatch_plan import Planned
from learner.training.oom import OomContext
from learner.training.preflight import run_length
from learner.training.run import Run
from learner.training.run_metadata import optimizer_text
from learner.training.step_checks import Tracing

PyTree = Any


def announce_overview(plan: Planned, run: Run) -> None:
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


def build_overview(plan: Planned, compiled: bool) -> Overview:
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
    with OomContext("train"), Tracing("the train step", "train", plan.batch):
        programs = memory_of(plan.runner, feed, plan.feeder.loop)
    largest = max(programs, key=lambda program: program.peak)
    return largest.peak, largest.temporaries


def _memory(plan: Planned, feed: Feed) -> dict[str, int]:
    """By what has it. Gradients are as large as what they are of."""
    totals: dict[str, int] = {}
    for array in placed_arrays(plan.state):
        totals[array.part] = totals.get(array.part, 0) + array.per_device
    memory = {PARTS["params"]: totals.get(PARTS["params"], 0)}
    if plan.step.update is None:
        memory["gradients"] = memory[PARTS["params"]]
    memory |= {name: totals.get(name, 0) for name in (PARTS["opt_state"], PARTS["model_state"])}
    if isinstance(feed, ResidentBatches):  # and in the order of an epoch
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
    if isinstance(feed, ResidentBatches):
        return 1
    part, replicated = (feed.last, feed.replicated[1]) if feed.batches is None else (feed.batches, feed.replicated[0])
    first = jax.tree.leaves(part)[0]
    return 1 if replicated else math.prod(first.shape) // math.prod(first.sharding.shard_shape(first.shape))


def _room(strategy: Strategy) -> int | None:
    """Bytes that the first device of this process has."""
    mine = [device for device in strategy.devices if device.process_index == jax.process_index()]
    stats = mine[0].memory_stats() if mine else None
    return None if not stats else stats.get("bytes_limit")
