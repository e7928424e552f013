"""Configs that runs saved: reading them, and restoring truncated ones."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from learner.checkpoint.manifest import DamagedError
from learner.checkpoint.store import CheckpointStore
from learner.cli.configs.missing import check_run
from learner.cli.configs.overrides import read_yaml
from learner.config.safe_yaml import read_bounded
from learner.distributed.process_group import hosts
from learner.errors import LearnerError
from learner.runs.appended import replace
from learner.runs.journal import OBSERVER_KEYS
from learner.runs.population import read_members
from learner.runs.sweep_file import NAME as SWEEP_FILE
from learner.util.stages import note

FROM_PYTHON = """\
{directory} has no config.yaml: the run was started from Python. There it {does} with

    {call}

with the same {same} as before."""

OF_POPULATION = """\
{directory} has no config.yaml, as its members were trained in one program: it resumes as a whole, by {how}. To \
evaluate or resume a member by itself, give its directory, such as {member}"""


def saved_config(directory: str, does: str, *, call: str, same: str = "metrics, model and step") -> dict[str, Any]:
    """Return the content of a run's `config.yaml`.

    Args:
      directory: the run directory.
      does: a verb that describes the command, for error messages.
      call: the equivalent call in Python; `same`: the parts that must equal those of the run's start.

    Raises:
      LearnerError: the run does not exist, or it was started from Python; the message then shows the call.
    """
    check_run(directory)
    path = Path(directory, "config.yaml")
    here = hosts()
    try:
        here.run_on_primary(lambda: _mend(path))
    except OSError as error:
        raise LearnerError(
            f"{error.filename or path} cannot be read: {error.strerror or error}", code="config-unreadable", path=path
        ) from error
    if not path.exists() and read_members(path.parent):
        raise LearnerError(_of_population(path.parent), code="run-of-population", directory=path.parent)
    if not path.exists():
        raise LearnerError(
            FROM_PYTHON.format(directory=directory, does=does, call=call, same=same), code="run-from-python"
        )
    if here.index == 0:
        note(f"{path} is trusted: the code that it names is imported and run now")
    return read_yaml(path)


def refuse_other_directory(overrides: Sequence[tuple[str, str]], directory: str) -> None:
    """Raise `LearnerError` if options name another directory than the run's, because a command cannot move a run."""
    for key, value in overrides:
        if key == "directory" and Path(value).expanduser().absolute() != Path(directory).absolute():
            raise LearnerError(
                f"--directory={value} is not the directory of the run, {directory}: leave it out, or train another "
                "run with learner fit CONFIG --directory=...",
                code="cli-directory-changed",
                directory=directory,
            )


def _of_population(directory: Path) -> str:
    is_sweep = any((place / SWEEP_FILE).exists() for place in (directory, *directory.parents[:2]))
    how = "the same learner sweep command" if is_sweep else "the same builder with resume()"
    member = str(directory / read_members(directory)[0]["directory"])
    return OF_POPULATION.format(directory=directory, how=how, member=member)


def _replace_config(path: Path, content: bytes) -> None:
    try:
        replace(str(path), content)
    except OSError as error:
        raise LearnerError(
            f"{path} is missing or cut off, and cannot be restored from the checkpoint: {error.strerror}. Copy the run "
            "to a directory that can be written to",
            code="config-not-restorable",
            path=path,
        ) from error


def _mend(path: Path) -> None:
    """Restore the config from the newest checkpoint if the file is missing or truncated. An edited file is kept."""
    text = read_bounded(path) if path.exists() else b""
    with contextlib.closing(CheckpointStore(path.parent.absolute() / "checkpoint")) as store:
        for entry in reversed(store.entries):
            with contextlib.suppress(DamagedError):
                saved = str(store.progress(entry.step, verified=False).get("config") or "").encode()
                if saved != text and saved.startswith(text):
                    store.verify(entry.step)
                    _replace_config(path, saved)
                    watching = [key for key in OBSERVER_KEYS if f"\n{key}:".encode() in saved]
                    lost = f", which keeps no arguments of {' and '.join(watching)}: give them again"
                    note(
                        f"{path} was {'cut off' if text else 'missing or empty'}; it is restored from the checkpoint "
                        f"of step {entry.step}{lost if watching else ''}"
                    )
                return
