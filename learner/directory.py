"""The directory of a run: whether it holds one, and what of it is ours to remove."""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

from learner.errors import LearnerError
from learner.loggers.cut import metric_files
from learner.loggers.tensorboard import remove_event_files

MARK = "journal.jsonl"
FILES = (MARK, "experiment.log", "config.yaml", "model.json", "summary.json")
OF_LOGGERS = ("metrics.jsonl", "metrics.csv", "mlflow.json", "wandb.json")
TRACES = (".xplane.pb", "trace.json.gz")
STEP = re.compile(r"\d+(\.(partial|removed)(\..*)?)?")


def holds_run(directory: Path) -> bool:
    """Whether a run was started here, or a part of one is left."""
    return (directory / MARK).exists() or bool(_checkpoints(directory)) or any(metric_files(directory))


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
        path = directory / "summary.json"
        summary = json.loads(path.read_text()) if path.is_file() else None
    except (OSError, ValueError, RecursionError):
        return None
    return summary if isinstance(summary, dict) else None


def remove_run(directory: Path) -> None:
    """Removes what a run wrote, and nothing else that lies there."""
    for path in [
        *(directory / name for name in (*FILES, *OF_LOGGERS)),
        *directory.glob("experiment-[0-9]*.log"),
    ]:
        path.unlink(missing_ok=True)
    remove_event_files(directory / "tensorboard")
    _remove_profile(directory / "profile")
    from learner.checkpoint.records import is_record  # with JAX, which those who only read a run do without

    for path in directory.glob("checkpoint/model-*"):
        if is_record(path.name):
            path.unlink()
    for place in _checkpoints(directory):
        place.unlink() if place.is_symlink() else shutil.rmtree(place)
        _remove_if_empty(place.parent)
    for log in [directory / path for path in metric_files(directory)]:
        log.unlink()
        _remove_if_empty(log.parent)
        _remove_if_empty(log.parent.parent)


def _checkpoints(directory: Path) -> list[Path]:
    """The checkpoints of a run, also those that were cut off, and what it set aside."""
    places = [*directory.glob("checkpoint/*"), *directory.glob("superseded/*")]
    return [place for place in places if place.is_dir() and STEP.fullmatch(place.name)]


def _remove_profile(directory: Path) -> None:
    """The traces of a run, and what it said of them."""
    traces = [path for path in directory.glob("plugins/profile/*/*") if path.name.endswith(TRACES)]
    for path in [*traces, directory / "profile.json"]:
        path.unlink(missing_ok=True)
        for parent in list(path.parents)[: len(path.relative_to(directory).parts)]:
            _remove_if_empty(parent)


def _remove_if_empty(directory: Path) -> None:
    """A link to somewhere else stays: the next run writes there too."""
    if not directory.is_symlink() and directory.exists() and not any(directory.iterdir()):
        directory.rmdir()
