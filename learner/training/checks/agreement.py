"""Checks for several processes: all of them must describe the same run, and they fail together."""

import collections
import contextlib
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from learner.distributed.batch_shapes import shapes_error
from learner.distributed.departure import leave_at_exit
from learner.distributed.differences import differing_parts
from learner.distributed.peer_monitor import peers_monitored
from learner.distributed.process_group import ProcessGroup
from learner.errors import LearnerError, ProcessError
from learner.metrics.base import CollectingMetric
from learner.steps.program_fingerprint import jaxpr_fingerprint
from learner.strategies.base import Strategy
from learner.training.checks.fingerprints import CONTENTS, FIRST_ROW, metric_settings
from learner.training.definition import TrainingDefinition
from learner.training.feed.inputs import Inputs
from learner.training.options import Options
from learner.util.device_errors import is_device_error
from learner.util.device_threads import keep_exit_code
from learner.util.text import first_line, join_names, name_of
from learner.util.trees import is_key, named_leaves

PyTree = Any
SAME_HOOKS = "all processes need the same hooks; work of one process goes inside of a hook"
MOST_HOOKS = 16  # of `every`, in a message
SAMPLED = 2**16  # elements of each array
FIRST_BATCH, STEP_HASH = "first batch", "step with its metrics"


def refuse_together(options: Options, strategy: Strategy) -> None:
    """Raise `LearnerError` for options that several processes do not support."""
    if strategy.share is None:
        raise LearnerError(
            f"the strategy is {strategy.description}, and there are several processes, whose devices all take part: "
            "use strategy(Sharded(mesh, rules)), or none",
            code="strategy-several-processes",
        )
    if options.on_save_error != "raise":
        raise LearnerError(
            f"on_save_error is {options.on_save_error!r}, and several processes save each checkpoint together: if one "
            "of them fails, the others have to end too",
            code="checkpoint-on-save-error-several",
        )


def description(
    definition: TrainingDefinition,
    inputs: Inputs,
    first_values: int | str | None,
    metrics: Mapping[str, Any],
    fingerprint: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the description of a run that all processes must agree on, as JSON. `first_values`: a hash of the model's
    initial values, or of the function that makes them, None for a resumed run; `metrics`: see `metrics_description`;
    `fingerprint`: see `learner.training.checks.fingerprints`.
    """
    options, step, strategy = definition.options, definition.step, definition.strategy
    checkpoints, stopping, plateau = options.checkpoints, options.early_stopping, definition.optimizer.plateau
    splits = {split: data_description(inputs, split, fingerprint["data"][split]) for split in inputs.first_batches}
    return {
        # First: the shapes of parts of a batch follow from it, and only a few differences are shown.
        "strategy": strategy.description,
        "rules": repr(getattr(strategy, "rules", None)),
        "config": options.config_kept,
        "directory": options.shown,
        "options": options.recorded("journal"),
        "checkpoints": checkpoints and {**vars(checkpoints), "record": repr(checkpoints.record)},
        "start": repr(options.start),
        "metrics": {split: [metric.name for metric in options.metrics_of(split)] for split in inputs.first_batches},
        "data": splits,
        "model": {name: f"{x.dtype}{list(x.shape)}" for name, x in named_leaves(step.adapter.params).items()},
        "hash of the first values": first_values,
        "optimizer": None if step.optimizer is None else name_of(step.optimizer),
        "learning rate": definition.optimizer.lr,
        "schedules": fingerprint["settings"]["schedules"],
        "ReduceOnPlateau": plateau and {**plateau.settings, "mode": plateau.monitor.mode},
        "precision": {"policy": repr(step.policy), "matmul": step.matmul, "remat": step.remat is not None},
        "on_nonfinite": repr(step.watch),
        "early stopping": [{**vars(s.monitor), "patience": s.patience, "warmup": s.warmup} for s in stopping],
        "hooks": hook_counts(options),
        "programs": fingerprint["programs"],
        # Last: a step that computes something else differs in its own hash, too.
        **metrics,
    }


def hook_counts(options: Options) -> dict[str, Any]:
    """Return the number of hooks by the method that adds them, and the order of those of `every`, as JSON."""
    added_by = ["on_epoch_end"] * len(options.on_epoch_end) + [f"every({steps})" for steps, _ in options.every]
    facts: dict[str, Any] = collections.Counter(f"{method} ({SAME_HOOKS})" for method in added_by)
    steps = [str(steps) for steps, _ in options.every]
    if len(set(steps)) > 1:
        facts[f"order of every ({SAME_HOOKS})"] = join_names(steps, MOST_HOOKS)
    return facts


def metrics_description(options: Options, programs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of the metrics that all processes must agree on, as JSON: a hash of the traced step of
    each split with its metrics, and the settings of metrics that a process computes from the rows of all. Metrics of
    the host do not count, as they may name the machine. `programs`: see `Inputs`.
    """
    hashes = {
        f"hash of the {split} {STEP_HASH}": jaxpr_fingerprint(program, unused=True)
        for split, program in programs.items()
    }
    return {"metric settings": metric_settings(options, CollectingMetric), **hashes}


def data_description(inputs: Inputs, split: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of a split that all processes must agree on, as JSON. `facts`: its facts, which do not
    count for data of each process.
    """
    source = inputs.source(split)
    # The first row belongs to the process's own share, so it differs. The contents are part of `first_digest`.
    common: dict[str, Any] = {} if source.differs else {"facts": {**facts, FIRST_ROW: None, CONTENTS: None}}
    common["values (PerProcess marks data of one process)"] = source.first_digest
    return {FIRST_BATCH: inputs.batch_shapes(split), "batches": source.batches, **common}


def error_of_shapes(values: Sequence[Mapping[str, Any]]) -> LearnerError | None:
    """Return the error for processes that differ only in the shapes of a first batch, and in what follows from them;
    None if they differ in anything else.

    Args:
      values: of each process, a description with `data_description` of each split as `data`.
    """
    if not all(_follows_from_shapes(path) for path, _ in differing_parts(values)):
        return None
    for split in values[0]["data"]:
        batches = [value["data"][split][FIRST_BATCH] for value in values]
        shapes = {process: _shapes_in(batch) for process, batch in enumerate(batches)}
        # The remedy of the error is for lengths only.
        kinds = {tuple((name, _kind_in(text)) for name, text in sorted(batch.items())) for batch in batches}
        if len(set(shapes.values())) > 1 and len(kinds) == 1:
            return shapes_error(f"{split} 1", 1, shapes)
    return None


def _kind_in(text: str) -> tuple[str, int]:
    """Return the dtype and the number of axes of an array, which is described as `int32[4, 5]`."""
    dtype, _, shape = text.partition("[")
    return dtype, len(json.loads(f"[{shape}"))


def _shapes_in(batch: Mapping[str, str]) -> str:
    """Return the shapes of a batch as the text that `shapes_error` reads. `batch`: see `Inputs.batch_shapes`."""
    return json.dumps({name: json.loads(text[text.index("[") :]) for name, text in batch.items()})


def _follows_from_shapes(path: str) -> bool:
    """Return True for a position in the descriptions of processes that differs if shapes of batches do."""
    of_data = path.startswith("data.") and any(key in path for key in (FIRST_BATCH, "facts.fields", "facts.rows per"))
    return of_data or path.startswith("programs.") or path.endswith(STEP_HASH)


def digest(arrays: Mapping[str, Any], sampled: bool = False) -> int:
    """Return a checksum of arrays by name, including random keys. Arrays sharded over processes do not count. If it is
    `sampled`, only some elements of large arrays do, as copying a large model from the device takes long.

    >>> a, b = np.zeros(10**6), np.ones(10**6)
    >>> digest({"w": a}, sampled=True) == digest({"w": a}, sampled=True) != digest({"w": b}, sampled=True)
    True
    """
    digest = 0
    for name, x in arrays.items():
        values = x
        if isinstance(x, jax.Array) and not x.is_fully_addressable:
            if not x.is_fully_replicated:
                continue
            values = x.addressable_data(0)  # an operation on the whole array would be a program of all processes
        # A variable of nnx may hold a number of Python.
        if isinstance(values, jax.Array) and is_key(values):
            values = jax.random.key_data(values)
        if sampled and (size := np.size(values)) > SAMPLED:
            values = values.reshape(-1)[:: -(-size // SAMPLED)]
        digest = zlib.crc32(np.asarray(values).tobytes(), zlib.crc32(name.encode(), digest))
    return digest


@contextlib.contextmanager
def propagate_failures(group: ProcessGroup) -> Iterator[None]:
    """Report an error of the block to the other processes. If the exchange between devices breaks off, the error of the
    process that failed first is raised.
    """
    try:
        with peers_monitored(group):
            yield
    except (ProcessError, GeneratorExit):  # an iterator that is closed has not failed
        # A `ProcessError` reports a failure that the other processes already have.
        raise
    except BaseException as error:
        lost = group.count > 1 and is_device_error(error)
        if lost:
            # First: the devices' error is only an effect of the peer's reported failure.
            group.raise_if_peer_failed()
        group.fail(first_line(error))
        if group.count > 1 and isinstance(error, SystemExit):
            leave_at_exit(first_line(error))
            keep_exit_code(error)
        if lost:
            raise ProcessError(
                f"the devices of the other processes could not be reached: one of them may have died, or its machine. "
                f"JAX says: {first_line(error)}",
                code="process-devices-lost",
            ) from error
        raise
