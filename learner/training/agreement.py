"""A run of several processes: that all of them mean the same run, and that they fail together."""

import contextlib
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.errors import JaxRuntimeError

from learner.distributed.process_group import ProcessGroup
from learner.errors import LearnerError, ProcessError
from learner.steps.step import Step
from learner.strategies import Strategy
from learner.training.fingerprints import FIRST_ROW
from learner.training.options import Options
from learner.training.preflight import Inputs
from learner.util.text import name_of
from learner.util.trees import named_leaves


def refuse_together(options: Options, strategy: Strategy) -> None:
    """Raises `LearnerError` for what several processes cannot do."""
    if strategy.share is None:
        raise LearnerError(
            f"the strategy is {strategy.description}, and there are several processes, whose devices all take part: "
            "use strategy(Sharded(mesh, rules)), or none",
            code="strategy-several-processes",
        )
    if options.on_save_error != "raise":
        raise LearnerError(
            f"on_save_error is {options.on_save_error!r}, and several processes save each checkpoint together: where "
            "one of them could not, the others have to end with it",
            code="checkpoint-on-save-error-several",
        )


def description(
    options: Options,
    step: Step,
    strategy: Strategy,
    inputs: Inputs,
    rate: Any,
    going_on: bool,
    fingerprint: Mapping[str, Any],
) -> dict[str, Any]:
    """What has to be the same in all processes, as JSON. `rate`: what is known of the learning rate; `fingerprint`: see
    `learner.training.fingerprints`.
    """
    splits = {}
    for split in inputs.first_batches:
        source = inputs.source(split)
        facts = {} if source.own else {"facts": fingerprint["data"][split] | {FIRST_ROW: None}}  # of its own share
        splits[split] = {"first batch": inputs.batch_shapes(split), "batches": source.batches, **facts}
    return {
        "config": options.config_kept,
        "directory": options.shown,
        "options": options.recorded("agreement"),
        "checkpoints": repr(options.checkpoints),
        "start": repr(options.start),
        "metrics": {split: [metric.name for metric in options.metrics_of(split)] for split in inputs.first_batches},
        "data": splits,
        "model": {name: f"{x.dtype}{list(x.shape)}" for name, x in named_leaves(step.family.params).items()},
        "first values": None if going_on else _digest(step.family.params),
        "optimizer": None if step.optimizer is None else name_of(step.optimizer),
        "learning rate": repr(rate),
        "precision": [repr(step.policy), step.matmul, step.remat is not None],
        "on_nonfinite": repr(step.watch),
        "early stopping": [[vars(s.monitor), s.patience, s.warmup] for s in options.early_stopping],
        "hooks": [len(options.on_epoch_end), [every for every, _ in options.every]],
        "strategy": [strategy.description, repr(getattr(strategy, "rules", None))],
        "programs": fingerprint["programs"],
    }


def _digest(params: Any) -> int | None:
    """A checksum of arrays; `None` where they are not made yet: a function makes them in the same way everywhere."""
    leaves = jax.tree.leaves(params)
    if any(isinstance(x, jax.ShapeDtypeStruct) for x in leaves):
        return None
    digest = 0
    for x in leaves:
        digest = zlib.crc32(np.asarray(x).tobytes(), digest)
    return digest


@contextlib.contextmanager
def propagate_failures(here: ProcessGroup) -> Iterator[None]:
    """Around what all processes do together: one that fails tells the others, and an exchange between devices that
    breaks off is explained by what the others said.
    """
    try:
        yield
    except ProcessError:
        raise
    except JaxRuntimeError as error:
        if here.count > 1:
            here.raise_if_peer_failed()
        here.fail(_line(error))
        if here.count > 1:
            raise ProcessError(
                f"the devices of the other processes could not be reached: one of them may have died, or its machine. "
                f"JAX says: {_line(error)}",
                code="process-devices-lost",
            ) from error
        raise
    except BaseException as error:
        here.fail(_line(error))
        raise


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]
