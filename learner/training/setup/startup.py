"""The first lines of a run's log, and checks of its state, before any program compiles."""

import logging
import sys
from typing import Any

import jax

from learner.errors import LearnerError
from learner.models.array_info import optimizer_paths
from learner.models.freezing import frozen_leaves
from learner.steps.eval_params import has_eval_params
from learner.steps.step import StepFunctions
from learner.steps.train_state import TrainState
from learner.strategies.base import Strategy
from learner.training.options import Options
from learner.util.distribution import versions
from learner.util.text import join_names
from learner.util.trees import named_leaves

PyTree = Any
MOST_NAMED = 6


def describe(log: logging.Logger, options: Options, step: StepFunctions, state: TrainState, strategy: Strategy) -> int:
    """Write versions, devices, the model and the options to the log, and return the number of parameters."""
    installed = versions("learner", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
    installed["python"] = sys.version.split()[0]
    log.info("versions: %s", ", ".join(f"{name} {v}" for name, v in installed.items()))
    log.info("devices: %s of %d", strategy.description, jax.device_count())
    if jax.device_count() > 1 and options.devices is None and len(strategy.devices) == 1:
        log.info("there are %d devices and one is used: devices('all') uses all", jax.device_count())
    leaves = named_leaves(state.params)
    of_optimizers = optimizer_paths(state.params)
    sizes = {name: int(x.size) for name, x in leaves.items() if name not in of_optimizers}
    count = sum(sizes.values())
    log.info("model: %s, %d parameters in %d arrays", step.adapter.kind, count, len(sizes))
    if tied := step.adapter.tied:
        places = [f"{path} is {first}" for path, first in tied.items()]
        log.info("variables in several places train as one: %s", join_names(places, most=8))
    frozen = frozen_leaves(step.adapter, state.model_state).values()
    if frozen:
        size, memory = sum(int(x.size) for x in frozen), sum(int(x.size) * x.dtype.itemsize for x in frozen) / 2**20
        log.info(
            "frozen: %d parameters in %d arrays (%.1f MiB), without gradients and optimizer state",
            size,
            len(frozen),
            memory,
        )
    width = max(map(len, leaves))
    for name, x in leaves.items():
        log.info("  %-*s %-10s %s", width, name, x.dtype, list(x.shape))
    if step.adapter.note is not None:
        log.info(step.adapter.note)
    log.info("precision: %s", options.precision_text)
    plural = "" if options.accumulate == 1 else "es"
    split = "" if step.split == 1 else f", each in {step.split} parts"
    log.info("seed %d, %d micro-batch%s per step%s", options.seed, options.accumulate, plural, split)
    if has_eval_params(named_leaves(state.opt_state)):
        log.info("validation, hooks and the result have averaged parameters, as the optimizer keeps them")
    return count


def check_recordable(options: Options, state: TrainState) -> None:
    """Raise `LearnerError` if records are written next to checkpoints, but no process has all of the arrays."""
    if options.checkpoints is None or options.checkpoints.record is None:
        return
    parts = {"params": state.params, "model_state": state.model_state}
    if "optim" in options.checkpoints.record_items:
        parts["opt_state"] = state.opt_state
    leaves = named_leaves(parts)
    addressable = {
        name for name, x in leaves.items() if getattr(x, "is_fully_addressable", True) or x.is_fully_replicated
    }
    if remote := [name for name in leaves if name not in addressable]:
        raise LearnerError(
            f"record= of with_file_checkpointer writes its files in one process, and {len(remote)} of their arrays "
            f"are sharded over the devices of several ({', '.join(remote[:3])}): leave it out, and use learner "
            "export, or load_checkpoint and save_model, in one process afterwards",
            code="checkpoint-record-distributed",
        )
