"""The directory of a run: whether it holds one, and what of it is ours to remove."""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

from learner.errors import LearnerError

MARK = "journal.jsonl"
FILES = (MARK, "experiment.log", "config.yaml", "summary.json")
FOLDERS = ("checkpoint", "superseded")
EPOCH = re.compile(r"epoch-\d+")


def holds_run(directory: Path) -> bool:
    """Whether a run was started here."""
    return (directory / MARK).exists()


def problem_with(directory: Path) -> str | None:
    """Why nothing can be written there, or `None`."""
    existing = directory
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        return f"the directory {directory} cannot be made: {existing} is a file"
    if not os.access(existing, os.W_OK | os.X_OK):
        return f"the directory {directory} is not writable"
    return None


def refuse_run(directory: Path, *, overwrite: bool) -> None:
    """Raises `LearnerError` where a run would be mixed with the one that is there."""
    if holds_run(directory) and not overwrite:
        raise LearnerError(
            f"{directory} holds a run. To go on with it, use resume() (--resume=true); to replace it, "
            f"LearnerBuilder(directory, overwrite=True) (--overwrite=true); or choose another directory"
        )


def prepare(directory: Path, *, keep: bool) -> None:
    """Makes the directory for a new run, or (`keep`) leaves the run in it to go on."""
    if holds_run(directory) and not keep:
        remove_run(directory)
    directory.mkdir(parents=True, exist_ok=True)


def read_summary(directory: Path) -> dict[str, Any] | None:
    """The content of `summary.json`, or `None` where there is none that can be read."""
    try:
        summary: dict[str, Any] = json.loads((directory / "summary.json").read_text())
    except (OSError, ValueError):
        return None
    return summary


def remove_run(directory: Path) -> None:
    """Removes what a run wrote, and nothing else that lies there."""
    for name in FILES:
        (directory / name).unlink(missing_ok=True)
    for name in FOLDERS:
        shutil.rmtree(directory / name, ignore_errors=True)
    for split in [d for d in directory.iterdir() if d.is_dir()]:
        epochs = [e for e in split.iterdir() if e.is_dir() and EPOCH.fullmatch(e.name)]
        for epoch in epochs:
            for log in epoch.glob("*.log"):
                log.unlink()
            _remove_if_empty(epoch)
        if epochs:
            _remove_if_empty(split)


def _remove_if_empty(directory: Path) -> None:
    if not any(directory.iterdir()):
        directory.rmdir()
