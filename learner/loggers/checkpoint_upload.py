"""The checkpoints of a run that loggers store with it as its model."""

from pathlib import Path
from typing import Any

from learner.errors import LearnerError
from learner.events import RunEnded

CHOICES = ("best", "all")


def check_log_model(name: str, log_model: Any) -> str | None:
    """Return the checkpoint selection of the logger `name`. Raise `LearnerError` for an unknown one."""
    if log_model is not None and log_model not in CHOICES:
        raise LearnerError(
            f"log_model of {name} is {log_model!r}; it needs 'best', 'all', or None",
            code="logger-log-model",
            name=name,
            value=log_model,
        )
    choice: str | None = log_model
    return choice


def checkpoints_to_keep(event: RunEnded, directory: Path, log_model: str | None) -> list[tuple[str, Path]]:
    """Return the names and the directories of the local checkpoints to keep: the best one (or the newest, if there is
    no best one), or all.

    Args:
      event: the end of the run.
      directory: the run directory.
      log_model: the selection.
    """
    kept = [entry for entry in event.summary.get("checkpoints", ()) if "://" not in str(entry["path"])]
    if log_model is None or not kept:
        return []
    chosen = kept if log_model == "all" else ([entry for entry in kept if entry["best"]] or kept)[-1:]
    return [(f"step-{entry['step']}", directory / entry["path"]) for entry in chosen]
