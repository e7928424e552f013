"""The files of a run directory: checks before a run uses it, and the removal of a replaced run."""

import contextlib
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path

from learner.errors import LearnerError, one_error
from learner.runs.evaluations import NAME as EVALUATIONS
from learner.runs.layout import MARK
from learner.runs.log_cutting import metric_files
from learner.runs.population import NAME as POPULATION
from learner.runs.population import WAVES, read_members, read_waves
from learner.runs.samples import FILE
from learner.runs.samples import FOLDER as SAMPLES
from learner.util.disk import kind_of, problem_with_name

FILES = (MARK, EVALUATIONS, "experiment.log", "config.yaml", "model.json", "summary.json", POPULATION)
BEGINNINGS = {
    "config.yaml": b"# What this run was started with",
    "model.json": b'{"parameters": ',
    "summary.json": b'{\n  "stopped_by": ',
}
"""The beginnings of files that a new run replaces. It appends to metric logs, the journal and `experiment.log`."""
OF_LOGGERS = ("metrics.jsonl", "metrics.csv", "mlflow.json", "wandb.json")
TRACES = (".xplane.pb", "trace.json.gz")
EPOCH = re.compile(r"epoch-\d+")


def holds_run(directory: Path) -> bool:
    """Return True if a run was started here, or remains of one exist."""
    if not os.access(directory, os.X_OK):
        return False  # no run, or not reachable
    if (directory / MARK).exists() or any(not (directory / path).is_symlink() for path in metric_files(directory)):
        return True
    return any(_checkpoints(place / "checkpoint") for place in (directory, *_set_aside(directory)))


def problem_with(directory: Path) -> str | None:
    """Return why the directory, or the journal of an earlier run in it, cannot be written to, or None."""
    existing = directory.absolute()
    if wrong := wrong_name(existing):
        return wrong
    while not os.path.exists(existing) and existing != existing.parent:  # `Path.exists` raises without permission
        existing = existing.parent
    if not existing.is_dir():
        return f"the directory {directory} cannot be made: {existing} is a file"
    if not os.access(existing, os.W_OK | os.X_OK):
        return f"the directory {directory} is not writable"
    journal = directory / "journal.jsonl"
    if os.path.exists(journal) and not os.access(journal, os.W_OK):
        return f"{journal} is not writable"
    if os.path.exists(journal) and _keeps_files(directory.stat(), journal.stat().st_uid):
        return f"{directory} is of another user, whose files cannot be replaced there (its sticky bit is set)"
    return None


def _keeps_files(directory: os.stat_result, owner: int) -> bool:
    """Return True if this process may not replace a file of this owner, as the directory has the sticky bit."""
    return bool(directory.st_mode & stat.S_ISVTX) and os.geteuid() not in (0, owner, directory.st_uid)


def wrong_name(place: str | Path) -> str | None:
    """Return why a directory cannot have this name, or `None`. A place that is not on a disk has no such limits."""
    wrong = problem_with_name(place) if isinstance(place, Path) else None
    return f"the directory {os.fspath(place)!a} cannot be made: {wrong}" if wrong else None


def refuse_foreign(directory: Path, splits: Iterable[str], *, profile: bool = False, config: bool = False) -> None:
    """Raise `LearnerError` if a link, or anything else that no run wrote, has the name of a file or a directory of a
    run. Only the run's directory itself and its parents may be links.

    Args:
      directory: the directory of the run; it need not exist.
      splits: the names of the directories of its metric logs.
      profile: True if the run writes a profile.
      config: True if the run writes `config.yaml`.
    """
    linked = profile and (directory / "profile").is_symlink()  # a file there prevents the profile, not the run
    directories = ["checkpoint", "superseded", SAMPLES, *splits, *(["profile"] if linked else [])]
    problems = [_foreign(directory / name, "file") for name in FILES]
    problems += [_foreign(directory / name, "directory") for name in directories]
    for split in splits:
        problems += [
            _foreign(path, "directory") for path in (directory / split).glob("epoch-*") if EPOCH.fullmatch(path.name)
        ]
    if not holds_run(directory):
        problems += [_replaced(directory / name) for name in BEGINNINGS if config or name != "config.yaml"]
    if found := [problem for problem in problems if problem]:
        raise one_error(found, "the run cannot begin", code="directory-unusable")


def _foreign(path: Path, needed: str) -> str | None:
    try:
        mode = os.lstat(path).st_mode
    except OSError:  # nothing exists there, or nothing can, which `problem_with` reports
        return None
    if stat.S_ISREG(mode) if needed == "file" else stat.S_ISDIR(mode):
        return None
    elsewhere = "; with_file_checkpointer(directory=...) saves elsewhere" if path.name == "checkpoint" else ""
    return f"{path} is {kind_of(mode)}; a run needs a {needed} of its own there: remove it{elsewhere}"


def _replaced(path: Path) -> str | None:
    """Return the problem with a file that no run wrote and that a new run would replace, or None."""
    beginning = BEGINNINGS[path.name]
    if path.is_symlink() or not path.is_file():
        return None
    with contextlib.suppress(OSError), path.open("rb") as file:  # an unreadable file is not a run's either
        if beginning.startswith(file.read(len(beginning))):  # also for a truncated file
            return None
    return f"no run wrote {path}, and a run would replace it: move it, or choose another directory"


def refuse_run(directory: Path, *, overwrite: bool) -> None:
    """Raise `LearnerError` if a new run would be mixed with the one in the directory."""
    if holds_run(directory) and not overwrite:
        raise LearnerError(
            f"{directory} holds a run. To resume it, use resume() (--resume=true); to replace it, "
            f"LearnerBuilder(directory, overwrite=True) (--overwrite=true); or choose another directory",
            code="directory-holds-run",
            directory=directory,
        )


def prepare(directory: Path, *, keep: bool) -> None:
    """Create the directory for a new run, or with `keep` leave the run in it to be resumed."""
    if holds_run(directory) and not keep:
        remove_run(directory)
    directory.mkdir(parents=True, exist_ok=True)


def remove_run(directory: Path) -> None:
    """Remove the files that a run wrote, and nothing else in the directory: no link, and no target of a link."""
    if (directory / "wandb").is_dir():  # before the file with the id of the run
        from learner.loggers.wandb import remove_run_files

        remove_run_files(directory)
    for path in [
        *(directory / name for name in (*FILES, *OF_LOGGERS)),
        *directory.glob("experiment-[0-9]*.log"),
    ]:
        _remove_file(path)
    if (directory / "tensorboard").is_dir():
        from learner.loggers.tensorboard import remove_event_files

        remove_event_files(directory / "tensorboard")
    _remove_profile(directory / "profile")
    _remove_samples(directory / SAMPLES)
    _remove_checkpoints(directory / "checkpoint")
    for place in _set_aside(directory):
        _remove_checkpoints(place / "checkpoint")
        _remove_file(place / MARK)
        _remove_logs(place)
        _remove_if_empty(place)
    _remove_if_empty(directory / "superseded")
    # Last: while there are logs, the directory counts as a run, so an interrupted removal is continued.
    _remove_logs(directory)


def remove_members(directory: Path) -> None:
    """Remove the runs of the members if the directory holds a population, and nothing else."""
    for member in read_members(directory):
        inside = directory / member["directory"]
        if inside.is_dir() and not inside.is_symlink():
            remove_run(inside)
            _remove_if_empty(inside)


def remove_waves(directory: Path) -> None:
    """Remove the runs of the waves if the directory holds a population in waves, and nothing else."""
    for name in read_waves(directory):
        inside = directory / name
        if inside.is_dir() and not inside.is_symlink():
            remove_members(inside)
            remove_run(inside)
            _remove_if_empty(inside)
    _remove_file(directory / WAVES)


def refuse_waves(directory: Path) -> None:
    """Raise `LearnerError` if the directory holds a population in waves, with which a run would be mixed."""
    if read_waves(directory):
        raise LearnerError(
            f"{directory} holds a population that trains in waves. To resume it, use population(..., waves=...) with "
            "resume(); to replace it, LearnerBuilder(directory, overwrite=True); or choose another directory",
            code="directory-holds-waves",
            directory=directory,
        )


def _remove_file(path: Path) -> None:
    if path.is_file() and not path.is_symlink():
        path.unlink()


def _remove_logs(directory: Path) -> None:
    for log in [directory / path for path in metric_files(directory)]:
        _remove_file(log)
        _remove_if_empty(log.parent)
        _remove_if_empty(log.parent.parent)


def _remove_checkpoints(place: Path) -> None:
    """Remove the checkpoints that are proven to be ours, and the records next to them."""
    if place.is_symlink() or not place.is_dir():
        return
    from learner.checkpoint.manifest import is_mark, remove_checkpoint  # imports JAX, which readers do not need
    from learner.checkpoint.records import is_record

    for path in _checkpoints(place):
        remove_checkpoint(path)
    # Marks are removed after the directories that they prove to be ours.
    for path in list(place.iterdir()):
        if is_mark(path) or is_record(path.name):
            _remove_file(path)
    _remove_if_empty(place)


def _checkpoints(place: Path) -> list[Path]:
    """Return the checkpoints of a run, including unfinished ones."""
    if place.is_symlink() or not place.is_dir():
        return []
    named = [path for path in place.iterdir() if path.name[0].isdecimal() and path.is_dir()]
    if not named:
        return []
    from learner.checkpoint.manifest import is_ours

    return [path for path in named if is_ours(path)]


def _set_aside(directory: Path) -> list[Path]:
    """Return the directories in which a run has archived newer files."""
    place = directory / "superseded"
    if place.is_symlink() or not place.is_dir():
        return []
    return [path for path in place.iterdir() if path.name.isdecimal() and path.is_dir() and not path.is_symlink()]


def _remove_profile(directory: Path) -> None:
    """Remove the traces and the profile of a run."""
    if any(path.is_symlink() for path in (directory, directory / "plugins", directory / "plugins/profile")):
        return
    traces = [path for path in directory.glob("plugins/profile/*/*") if path.name.endswith(TRACES)]
    for path in [*traces, directory / "profile.json"]:
        if path.parent.is_symlink():
            continue
        _remove_file(path)
        for parent in list(path.parents)[: len(path.relative_to(directory).parts)]:
            _remove_if_empty(parent)


def _remove_samples(directory: Path) -> None:
    """Remove the samples of a run."""
    if directory.is_symlink():
        return
    for path in directory.glob("step-*/*"):
        if FILE.fullmatch(f"{SAMPLES}/{path.parent.name}/{path.name}") and not path.parent.is_symlink():
            _remove_file(path)
            _remove_if_empty(path.parent)
    _remove_if_empty(directory)


def _remove_if_empty(directory: Path) -> None:
    """Remove a directory if it is empty. A link stays, as the next run also writes to its target."""
    if not directory.is_symlink() and directory.exists() and not any(directory.iterdir()):
        directory.rmdir()
