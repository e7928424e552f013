"""The file of a sweep's directory: the config that its members share, and the values in which they differ."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from learner.errors import LearnerError
from learner.runs.appended import replace_together
from learner.runs.flat_config import text_of
from learner.runs.journal import read_journal
from learner.runs.layout import MARK
from learner.runs.lock import is_locked
from learner.util.disk import read_bytes
from learner.util.json_values import encode
from learner.util.number_checks import is_int
from learner.util.text import count, join_names

NAME = "sweep.json"
MOST = 8  # names in an error
LENGTHS = ("num_epochs", "num_steps")
"""Settings that may become larger."""
TRAINED = ("epoch", "save")
"""The events of the journal of a run that another config must not continue."""
AGAIN = "give another --directory, or the same options as before"


def read_members(directory: Path) -> list[dict[str, Any]]:
    """Return the members of the sweep in a directory, each with its `directory` and its `values` by key. Empty without
    the file, or if none of its members has a complete epoch or a checkpoint: then any other sweep may replace it.
    """
    members = list(_read(directory / NAME)["members"]) if (directory / NAME).exists() else []
    return members if any(has_trained(directory / each["directory"]) for each in members) else []


def has_trained(directory: Path) -> bool:
    """Return True if the run of a member has a complete epoch or a checkpoint, or if a process trains it."""
    # A population is locked as a whole, in the directory above its members.
    if any(is_locked(place) is not False for place in (directory, directory.parent)):
        return True
    if not (directory / MARK).is_file():
        return False
    return any(entry.get("event") in TRAINED for _, entry in read_journal(directory))


def write_sweep(directory: Path, config: Mapping[str, Any], members: Sequence[Mapping[str, Any]]) -> None:
    """Create the directory with the file, or replace the file of a sweep that has changed. Members that the sweep no
    longer has stay in the file, so that no other member gets their directory.

    Args:
      directory: the sweep directory.
      config: the settings that the members share, by dotted key.
      members: each with its `directory` and its `values` by key.

    Raises:
      LearnerError: the file cannot be written.
    """
    known = read_members(directory)
    names = {each["directory"] for each in known}
    new = [each for each in _as_saved(members) if each["directory"] not in names]
    content = {"config": _as_saved(config), "members": [*known, *new]}
    if (directory / NAME).exists() and _read(directory / NAME) == content:
        return
    try:
        directory.mkdir(parents=True, exist_ok=True)
        # Another task of a job array may write the same file meanwhile.
        replace_together(directory / NAME, (json.dumps(content, indent=1) + "\n").encode())
    except OSError as error:
        raise LearnerError(
            f"the sweep cannot be written to {directory}: {error.strerror}",
            code="sweep-not-writable",
            directory=directory,
        ) from error


def refuse_other_sweep(
    directory: Path, config: Mapping[str, Any], members: Sequence[Mapping[str, Any]], *, may_grow: bool = False
) -> None:
    """Raise `LearnerError` if the directory contains a run, another sweep, or members of no sweep. A sweep of which no
    member has trained may be replaced by any other.

    Args:
      directory: see `write_sweep`.
      config: see `write_sweep`.
      members: see `write_sweep`.
      may_grow: accept further members, and drop or replace those that have not trained.
    """
    if (directory / MARK).exists() and not (directory / NAME).exists():  # members in one program have a run here
        raise LearnerError(
            f"{directory} holds a run; a sweep needs its own directory: --directory=...",
            code="sweep-directory-used",
            directory=directory,
        )
    # Listed before the check for the file: another task of a job array writes the file first and then creates its
    # member.
    present = [str(each["directory"]) for each in members if (directory / each["directory"]).exists()]
    if (directory / NAME).exists():
        before, known = _read(directory / NAME)["config"], read_members(directory)
        problem = _missing(directory, known, _as_saved(members), may_grow) or _difference(before, _as_saved(config))
        if known and problem:
            problem += _further_axes(before, known[0]["values"], members[0]["values"])
            raise LearnerError(
                f"{directory} holds another sweep: {problem}; {AGAIN}", code="sweep-different", directory=directory
            )
    elif present:
        raise LearnerError(
            f"{directory} has {join_names(present, MOST)}, and no {NAME} that names them; {AGAIN}",
            code="sweep-directory-used",
            directory=directory,
        )


def _read(path: Path) -> dict[str, Any]:
    """Return the content of the file."""
    try:
        content = json.loads(read_bytes(path))
        if isinstance(content["config"], dict) and all(map(_is_member, content["members"])):
            return dict(content)
        problem = "it is not a sweep"
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        problem = f"{type(error).__name__}: {error}"
    raise LearnerError(f"{path} cannot be read: {problem}", code="sweep-file-damaged", path=path)


def _is_member(entry: Mapping[str, Any]) -> bool:
    return isinstance(entry["directory"], str) and isinstance(entry["values"], dict)


def _as_saved(content: Any) -> Any:
    """Return settings or members as they are read from the file."""
    return json.loads(json.dumps(encode(content)))


def _missing(directory: Path, known: Sequence[Any], members: Sequence[Any], may_grow: bool) -> str:
    """Return the members that a sweep lacks as a text, empty if it may have these members."""
    if not may_grow and len(known) != len(members):
        return f"it has {count(len(known), 'member')}, and this one has {len(members)}"
    present = {each["directory"]: each["values"] for each in members}
    names = [each["directory"] for each in known if present.get(each["directory"]) != each["values"]]
    missing = [name for name in names if not may_grow or has_trained(directory / name)]
    return f"it has trained {join_names(missing, MOST)}, which this one lacks" if missing else ""


def _further_axes(config: Mapping[str, Any], old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Return the keys that a sweep has in addition to a previous one, with their values in its config, as a text, empty
    if there are none.
    """
    values = {key: config.get(key.replace(".init_args", "")) for key in new if key not in old}
    texts = [key if value is None else f"{key}, which was {text_of(value)}" for key, value in values.items()]
    return f"; this one also sweeps {', and '.join(texts)}" if texts else ""


def _difference(old: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """Return the difference between the shared settings of a sweep and the previous ones as a text, empty if there is
    none.
    """
    changed = [key for key in {**old, **config} if old.get(key, MARK) != config.get(key, MARK)]
    changed = [key for key in changed if not (key in LENGTHS and _is_larger(config.get(key), old.get(key)))]
    texts = [f"{key} was {text_of(old.get(key))} and is {text_of(config.get(key))}" for key in changed[:MOST]]
    return ", ".join(texts) + (", ..." if len(changed) > MOST else "")


def _is_larger(number: Any, before: Any) -> bool:
    return is_int(number) and is_int(before) and number > before
