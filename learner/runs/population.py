"""The files of a population's directory: the names of its members and their values, or its waves."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from learner.errors import LearnerError
from learner.runs.appended import replace
from learner.util.disk import read_bytes

NAME = "population.json"
WAVES = "waves.json"


def write_members(directory: Path, members: Sequence[Mapping[str, Any]]) -> None:
    """Write the members of a population, each with its `directory` and its values, one per line."""
    rows = ",\n".join(map(json.dumps, members))
    replace(str(directory / NAME), f'{{"members": [\n{rows}\n]}}\n'.encode())


def member_index(directory: Path) -> int | None:
    """Return the index of the member with this directory in its population, or None if it belongs to none."""
    names = [member["directory"] for member in read_members(directory.parent)]
    return names.index(directory.name) if directory.name in names else None


def read_members(directory: Path) -> list[dict[str, Any]]:
    """Return the members of the population in a directory, or an empty list if there is none. Members outside the
    directory are left out.
    """
    try:
        content = json.loads(read_bytes(directory / NAME))
        members = content["members"]
        known = [m for m in members if Path(m["directory"]).name == m["directory"] and m["directory"] not in ("", "..")]
    except (OSError, LearnerError, ValueError, KeyError, TypeError, RecursionError):
        return []
    return known


def write_waves(directory: Path, waves: Mapping[str, Sequence[str]]) -> None:
    """Write the names of the members of each wave of a population, by the wave's directory, one wave per line."""
    rows = ",\n".join(json.dumps({"directory": name, "members": list(members)}) for name, members in waves.items())
    replace(str(directory / WAVES), f'{{"waves": [\n{rows}\n]}}\n'.encode())


def read_waves(directory: Path) -> dict[str, list[str]]:
    """Return the names of the members of each wave of the population in a directory, by the directory of the wave.
    Empty if there are none.
    """
    try:
        content = json.loads(read_bytes(directory / WAVES))
        waves = {wave["directory"]: list(wave["members"]) for wave in content["waves"]}
    except (OSError, LearnerError, ValueError, KeyError, TypeError, RecursionError):
        return {}
    return {name: members for name, members in waves.items() if Path(name).name == name and name not in ("", "..")}
