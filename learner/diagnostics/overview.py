"""The overview of a run before it trains: model, steps, memory and work."""

import contextlib
import dataclasses
import logging
import math
import time
from typing import Any

import jax

from learner.diagnostics.sharding_report import PARTS, placed_arrays
from learner.events import Message, Overview
from learner.models.array_info import array_infos
from learner.optimizers.description import optimizer_text
from learner.renderers.overview_text import needs
from learner.steps.buffers import Feed, ResidentBatches
from learner.steps.flops import step_flops
from learner.steps.population import count_members, member_shapes
from learner.strategies.base import Strategy
from learner.strategies.device_lookup import memory_limit
from learner.training.checked_inputs import read_checked
from learner.training.checks.step_tracing import Tracing
from learner.training.definition import TrainingDefinition
from learner.training.feed.inputs import run_length
from learner.training.feed.prefetch import IN_MEMORY
from learner.training.programs.oom import OomContext
from learner.training.programs.program_memory import memory_of
from learner.training.run import Run
from learner.training.setup.dispatch_plan import Planned, planned

__all__ = ["Overview", "announce_overview", "build_overview"]
PyTree = Any


def announce_overview(plan: Planned, run: Run) -> None:
    """Send the overview of a run to its listeners, and then the memory that the compiled training needs. The first
    dispatch uses the compiled programs.
    """
    feed = plan.feed()
    run.reporter.put(overview_of(plan, feed))
    run.reporter.put(Message(time.time(), logging.INFO, "compiling"))
    began = time.monotonic()
    peak, temporaries = _compiled(plan, feed)
    text = f"compiled in {time.monotonic() - began:.1f} s; {needs(peak, temporaries)}"
    run.reporter.log.info("%s", text)
    run.reporter.put(Message(time.time(), logging.INFO, text))


def build_overview(definition: TrainingDefinition, train: Any, valid: Any, compiled: bool) -> Overview:
    """Return the overview of a run without opening it. With `compiled`, compile the training and add the memory that it
    needs. The first batches of the data are read.
    """
    inputs = read_checked(definition, train, valid)
    with contextlib.closing(inputs):
        plan = planned(definition, inputs)
        feed = plan.feed()
        overview = overview_of(plan, feed)
        if not compiled:
            return overview
        peak, temporaries = _compiled(plan, feed)
        return dataclasses.replace(overview, peak=peak, temporaries=temporaries)


def overview_of(plan: Planned, feed: Feed) -> Overview:
    """Return the overview of a run without compiling it. The step is traced again to count its operations."""
    options, step, strategy = plan.options, plan.step, plan.strategy
    batches = plan.inputs.source("train").batches
    length = run_length(options, batches)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), plan.state)
    members = count_members(plan.state)
    if members is not None:  # the arrays belong to one member, the operations and the memory to all
        shapes = member_shapes(shapes)
    with Tracing("the train step", "train", plan.batch):
        flops = step_flops(step, shapes, plan.batch())
    return Overview(
        time.time(),
        model=f"{step.adapter.name} ({step.adapter.kind})",
        arrays=array_infos(step.adapter, shapes.params, shapes.model_state),
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
        flops=flops.number * (members or 1),
        flops_exact=flops.exact,
        memory=memory_by_part(plan, feed),
        room=_room(strategy),
        depth=options.summary_depth,
        split=step.split,
    )


def _compiled(plan: Planned, feed: Feed) -> tuple[int, int]:
    """Return the peak bytes on each device, and the temporary bytes among them."""
    with OomContext("train"), Tracing("the train step", "train", plan.batch):
        programs = memory_of(plan.runner, feed, plan.feeder.loop)
    largest = max(programs, key=lambda program: program.peak)
    return largest.peak, largest.temporaries


def memory_by_part(plan: Planned, feed: Feed) -> dict[str, int]:
    """Return bytes on each device by purpose. Gradients are as large as the parameters."""
    totals: dict[str, int] = {}
    for array in placed_arrays(plan.state):
        totals[array.part] = totals.get(array.part, 0) + array.per_device
    memory = {PARTS["params"]: totals.get(PARTS["params"], 0)}
    if plan.step.update is None:
        memory["gradients"] = memory[PARTS["params"]]
    memory |= {name: totals.get(name, 0) for name in (PARTS["opt_state"], PARTS["model_state"])}
    if isinstance(feed, ResidentBatches):  # and a copy in the order of an epoch
        memory["data"] = _on_each(feed) + (0 if feed.data is plan.feeder.data else _on_each(plan.feeder.data))
    else:
        memory["batches"] = IN_MEMORY * _on_each(feed)
    return {name: count for name, count in memory.items() if count}


def _on_each(arrays: PyTree) -> int:
    """Return the bytes of arrays on each device."""
    shards = [(x.sharding.shard_shape(x.shape), x.dtype.itemsize) for x in jax.tree.leaves(arrays)]
    return sum(math.prod(shape) * size for shape, size in shards)


def _spread(feed: Feed) -> int:
    """Return the number of devices that share the rows of a batch."""
    if isinstance(feed, ResidentBatches):
        return 1
    part, replicated = (feed.last, feed.replicated[1]) if feed.batches is None else (feed.batches, feed.replicated[0])
    first = jax.tree.leaves(part)[0]
    return 1 if replicated else math.prod(first.shape) // math.prod(first.sharding.shard_shape(first.shape))


def _room(strategy: Strategy) -> int | None:
    """Return the bytes of memory of this process's first device, or None."""
    mine = [device for device in strategy.devices if device.process_index == jax.process_index()]
    return memory_limit(mine[0]) if mine else None
