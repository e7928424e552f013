"""The file of a sweep's directory: the config that its members share, and the values in which they differ."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from learner.errors import LearnerError
from learner.runs.appended import replace_together
from learner.runs.flat_config import text_of
from learner.runs.layout import MARK
from learner.util.disk import read_bytes
from learner.util.json_values import encode
from learner.util.text import count, join_names

NAME = "sweep.json"
MOST = 8  # names in an error
AGAIN = "give another --directory, or the same options as before"


def read_members(directory: Path) -> list[dict[str, Any]]:
    """Return the members of the sweep in a directory, each with its `directory` and its `values` by key. Empty without
    the file.
    """
    return list(_read(directory / NAME)["members"]) if (directory / NAME).exists() else []


def write_sweep(directory: Path, config: Mapping[str, Any], members: Sequence[Mapping[str, Any]]) -> None:
    """Create the directory with the file, or replace the file of a sweep that has grown.

    Args:
      directory: the sweep directory.
      config: the settings that the members share, by dotted key.
      members: each with its `directory` and its `values` by key.

    Raises:
      LearnerError: the file cannot be written.
    """
    if len(read_members(directory)) == len(members):
        return
    content = {"config": encode(config), "members": encode(members)}
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
    """Raise `LearnerError` if the directory contains a run, another sweep, or members of no sweep. The arguments are
    those of `write_sweep`; `may_grow` accepts further members after the existing ones.
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
        before = _read(directory / NAME)
        if problem := _difference(before, encode(config), json.loads(json.dumps(encode(members))), may_grow):
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
        if isinstance(content["config"], dict) and all("directory" in dict(each) for each in content["members"]):
            return dict(content)
        problem = "it is not a sweep"
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        problem = f"{type(error).__name__}: {error}"
    raise LearnerError(f"{path} cannot be read: {problem}", code="sweep-file-damaged", path=path)


def _difference(before: Mapping[str, Any], config: Mapping[str, Any], members: Sequence[Any], may_grow: bool) -> str:
    """Return the difference between a sweep and the previous one as a text, empty if there is none."""
    number = len(before["members"])
    if number > len(members) or (number < len(members) and not may_grow):
        return f"it has {count(number, 'member')}, and this one has {len(members)}"
    for one, other in zip(before["members"], members, strict=False):
        if one != other:
            old_name, name = one["directory"], other["directory"]
            return f"{name} has other values" if name == old_name else f"{old_name} is {name} now"
    old = before["config"]
    changed = [key for key in {**old, **config} if old.get(key, MARK) != config.get(key, MARK)]
    texts = [f"{key} was {text_of(old.get(key))} and is {text_of(config.get(key))}" for key in changed[:MOST]]
    return ", ".join(texts) + (", ..." if len(changed) > MOST else "")
