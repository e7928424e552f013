"""The metadata of a run, as JSON, for its journal and for loggers."""

import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from learner.optimizers.schedule_resolution import OF_RUN
from learner.runs.flat_config import optimizer_config
from learner.runs.journal import OBSERVER_KEYS
from learner.steps.step import StepFunctions
from learner.training.options import Options
from learner.training.progress.snapshot import platform_facts
from learner.util.distribution import versions
from learner.util.json_values import encode

PACKAGES = ("learner", "flax", "optax", "orbax-checkpoint", "numpy")
SECONDS = 5.0  # the timeout of git


def run_metadata(options: Options, step: StepFunctions, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `config`, `environment` and `commit` of a run.

    Args:
      options: the options of the builder.
      step: the definition of its steps.
      settings: the settings in its fingerprint.
    """
    return {"config": hyperparameters(options, step, settings), "environment": environment(), "commit": commit()}


def hyperparameters(options: Options, step: StepFunctions, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a run's config file, without listeners (`metric_loggers`, `renderer`). For a run started
    from Python, return the options and names that JSON can express, and the optimizer with all its settings.
    """
    if options.config_text is not None:
        from learner.config.safe_yaml import parse_yaml

        content = parse_yaml(options.config_text)
        return {str(key): encode(value) for key, value in content.items() if key not in OBSERVER_KEYS}
    rate = settings["schedules"].get(OF_RUN, settings["learning rate"])
    described = settings["optimizer"]
    metrics = {kind: [m.name for m in options.metrics_of(kind)] for kind in ("train", "valid")}
    execution = {"precision": settings["precision"], "strategy": settings["strategy"], "metrics": metrics}
    content = {
        "model": f"{step.adapter.name} ({step.adapter.kind})",
        "optimizer": None if described is None else optimizer_config(described),
        "lr": rate,
        **options.recorded("journal"),
        **execution,
    }
    return {key: encode(value) for key, value in content.items() if value is not None}


def environment() -> dict[str, Any]:
    """Return versions, devices, processes and the machine.

    >>> sorted(environment())[:4]
    ['cores', 'device', 'devices', 'flax']
    """
    return {
        **platform_facts(),
        **versions(*PACKAGES),
        "system": platform.platform(),
        "host": platform.node(),
        "cores": os.cpu_count(),
    }


def commit(directory: str | Path = ".") -> str | None:
    """Return the Git commit that is checked out in a directory, or None outside of a repository, before the first
    commit, and without Git.

    >>> commit("/")
    """
    command = ["git", "-C", os.fspath(directory), "rev-parse", "--verify", "--quiet", "HEAD"]
    try:
        # Without a terminal, and within 5 s: Git must not delay the start of a run.
        process = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return None
    return process.stdout.strip() or None if process.returncode == 0 else None
