"""What a run is made of, in words that JSON can say: for its journal and for loggers."""

import os
import platform
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from learner.optimizers.lengths import OF_RUN
from learner.runs.journal import UNTOLD
from learner.steps.step import Step
from learner.training.options import Options
from learner.training.run import platform_facts
from learner.util.distribution import versions
from learner.util.json_values import encode
from learner.util.text import name_of

PLAIN = (
    "num_epochs",
    "num_steps",
    "valid_every",
    "valid_batches",
    "accumulate",
    "steps_per_dispatch",
    "seed",
    "batch_size",
)
KEYS = {"accumulate": "grads_accumulation", "batch_size": "with_batch_size"}
PACKAGES = ("learner", "flax", "optax", "orbax-checkpoint", "numpy")
SECONDS = 5.0  # for git


def facts(options: Options, step: Step, settings: Mapping[str, Any]) -> dict[str, Any]:
    """`config`, `environment` and `commit` of a run; `settings`: those of its fingerprint."""
    return {"config": hyperparameters(options, step, settings), "environment": environment(), "commit": commit()}


def hyperparameters(options: Options, step: Step, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What a run was told to do: the content of its config file; of a run from Python what can be said by its
    builder. What only watches it (`metric_loggers`, `renderer`) is left out.
    """
    if options.config_text is not None:
        from learner.config.safe_yaml import parse_yaml

        said = parse_yaml(options.config_text)
        return {str(key): encode(value) for key, value in said.items() if key not in UNTOLD}
    named = {KEYS.get(name, name): getattr(options, name) for name in PLAIN}
    rate = settings["schedules"].get(OF_RUN, settings["learning rate"])
    optimizer = None if step.optimizer is None else optimizer_text(step.optimizer)
    metrics = {kind: [m.name for m in options.metrics_of(kind)] for kind in ("train", "valid")}
    how = {"precision": settings["precision"], "strategy": settings["strategy"], "metrics": metrics}
    said = {"model": step.family.kind, "optimizer": optimizer, "lr": rate, **named, **how}
    return {key: encode(value) for key, value in said.items() if value is not None}


def optimizer_text(optimizer: Callable[..., Any]) -> str:
    """An optimizer with what is fixed of it.

    >>> import functools, optax
    >>> optimizer_text(optax.sgd), optimizer_text(functools.partial(optax.adamw, weight_decay=0.1))
    ('sgd', 'adamw(weight_decay=0.1)')
    """
    fixed = getattr(optimizer, "keywords", {})
    plain = [f"{key}={value!r}" for key, value in fixed.items() if isinstance(value, str | int | float | bool)]
    return name_of(optimizer) + (f"({', '.join(plain)})" if plain else "")


def environment() -> dict[str, Any]:
    """Versions, devices, processes, and the machine.

    >>> sorted(environment())[:4]
    ['cores', 'device', 'devices', 'flax']
    """
    return {**platform_facts(), **versions(*PACKAGES), "system": platform.platform(), "cores": os.cpu_count()}


def commit(directory: str | Path = ".") -> str | None:
    """The commit of git that is checked out there; `None`: it is no repository, it has no commit, or there is no git.

    >>> commit("/")
    """
    command = ["git", "-C", os.fspath(directory), "rev-parse", "--verify", "--quiet", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
