"""`grads_accumulation("auto")`: the number of parts that a batch is computed in, so that a step fits into memory.

The split is part of the program and not of the data: batches, positions and steps are the same for any number of parts,
and a run may resume with another number.
"""

import dataclasses
import math
import platform
from typing import Any

import jax
from jax.errors import JaxRuntimeError

from learner.errors import LearnerError
from learner.steps.buffers import ResidentBatches
from learner.training.checks.fingerprints import PARTS, saved_fingerprint
from learner.training.definition import TrainingDefinition
from learner.training.feed.dispatch import Dispatch, Kind
from learner.training.programs.oom import MARK
from learner.training.programs.program_memory import memory_of
from learner.training.progress.restore import Restored
from learner.training.run_plan import RunPlan
from learner.training.setup.dispatch_plan import Planned, planned
from learner.util.machine import machine_memory
from learner.util.stages import enter_stage
from learner.util.text import size


def resolve_split(plan: RunPlan, restored: Restored | None) -> None:
    """Replace `split="auto"` by a number: the number in the checkpoint that the run resumes from, or else the smallest
    power of two, or the number of rows, with which the training programs fit into the memory of the device.

    XLA's memory analysis decides. On an accelerator, one process also tries a step. Several processes decide on each
    number together, as compilers for accelerators communicate and wait for the same programs.

    Raises:
      LearnerError: not even single rows fit.
    """
    definition = plan.definition
    if definition.options.split != "auto":
        return
    # The number of parts affects the last bits, so a resumed run keeps its number.
    split = None if restored is None else saved_fingerprint(restored.progress)["settings"].get(PARTS)
    if not isinstance(split, int) or isinstance(split, bool) or not 1 <= split <= plan.inputs.rows("train"):
        split = _smallest(plan)
    _set(definition, split)


def _set(definition: TrainingDefinition, split: int) -> None:
    definition.options = dataclasses.replace(definition.options, split=split)
    definition.change(split=split)


def _smallest(plan: RunPlan) -> int:
    """Return the smallest number of parts that fits."""
    definition, rows = plan.definition, plan.inputs.rows("train")
    room, needed = free_memory(plan), None
    tries = 1 if plan.strategy.platform == "cpu" or plan.processes.count > 1 else 2
    # At most one part per row, as a larger number is refused when the run resumes.
    numbers = [min(1 << power, rows) for power in range(math.ceil(math.log2(rows)) + 1)]
    for split in numbers:
        enter_stage("compiling" if split == 1 else f"compiling {split} parts a batch")
        definition.change(split=split)
        candidate = planned(definition, plan.inputs)
        needed = _needed(definition, candidate)
        fits = needed is not None and needed <= room and (tries == 1 or runs(definition, candidate))
        if all(plan.processes.all_gather_json(fits, "split")):
            return split
    raise LearnerError(
        f"a step does not fit into memory: with {numbers[-1]} parts of a batch of {rows} rows it needs "
        f"{'more' if needed is None else size(needed)} on each device, and a device has {size(room)}: use a smaller "
        "model, shorter rows, lower precision, remat, or strategy(Sharded()) on several devices",
        code="step-no-room",
        rows=rows,
        needed=needed,
        room=room,
    )


def _needed(definition: TrainingDefinition, candidate: Planned) -> int | None:
    """Return the bytes that training needs on a device, or None if the compiler rejects it because it does not fit, as
    the compiler for TPUs does.
    """
    try:
        programs = memory_of(candidate.runner, candidate.feed(), candidate.feeder.loop)
    except JaxRuntimeError as error:
        if MARK not in str(error):
            raise
        return None
    # A save copies the state, which is nearly all of the arguments.
    copy = 0 if definition.options.checkpoints is None else max(program.arguments for program in programs)
    return max(program.peak for program in programs) + copy


def free_memory(plan: RunPlan) -> int:
    """Return the free bytes of a device. On CPUs, the devices of all processes of a machine share its memory."""
    # In every process, also where the device knows its own memory.
    machines: list[str] = plan.processes.all_gather_json(platform.node(), "memory")
    device = next(d for d in plan.strategy.devices if d.process_index == jax.process_index())
    stats: dict[str, Any] = device.memory_stats() or {}
    if "bytes_limit" in stats:
        return int(stats["bytes_limit"]) - int(stats.get("bytes_in_use", 0))
    sharing = [d for d in plan.strategy.devices if machines[d.process_index] == platform.node()]
    return machine_memory() // len(sharing)


def runs(definition: TrainingDefinition, candidate: Planned) -> bool:
    """Return True if a step runs on the device, with a temporary state and batch."""
    runner, feeder, feed = candidate.runner, candidate.feeder, candidate.feed()
    size = definition.step.accumulate
    if not feeder.loop and size > 1:
        return True  # its programs run one after the other, and none of them is larger than a step
    kind: Kind = "loop" if feeder.loop else "single" if isinstance(feed, ResidentBatches) else "tail"
    try:
        runner.begin(definition.init_placed(), definition.lr_scale)
        runner.train(runner.start("train"), Dispatch(kind, 1, feed, 0, 0 if kind == "tail" else size, 1, size, False))
        # A dispatch may return before its memory is allocated, so only waiting shows whether there was enough.
        jax.block_until_ready(runner.leaves)
    except JaxRuntimeError as error:
        if MARK not in str(error):
            raise
        return False
    return True
