"""What makes a directory a complete checkpoint: `manifest.json`, written last, with the size and the SHA-256 of each of
its files and of itself, and with what decides whether the checkpoint stays.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from learner.disk import to_disk
from learner.errors import LearnerError

NAME = "manifest.json"


class DamagedError(LearnerError):
    """A checkpoint is not as it was saved; the message names the file."""


def write_manifest(directory: Any, facts: Mapping[str, Any]) -> None:
    """Writes the manifest of a directory whose other files are complete, and hands all of them to the disk.

    Args:
      directory: a `pathlib.Path`, or one of `etils.epath`.
      facts: what else is to be read without the rest, as JSON can hold it.
    """
    files = {name: _described(directory / name) for name in _files(directory)}
    content = {**facts, "files": files}
    path = directory / NAME
    path.write_text(json.dumps({**content, "sha256": _digest(content)}))
    _described(path)
    if _is_local(directory):
        for place in (*(each for each in directory.rglob("*") if each.is_dir()), directory):
            to_disk(place)


def read_manifest(directory: Any) -> dict[str, Any]:
    """The content of a manifest, without a look at the other files.

    Raises:
      DamagedError: there is none, or it is not as it was written.
    """
    path = directory / NAME
    try:
        content = json.loads(path.read_text())
        expected = content.pop("sha256")
    except FileNotFoundError:
        raise DamagedError(f"the checkpoint {directory} is damaged: {NAME} is missing") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedError(f"the checkpoint {directory} is damaged: {NAME} cannot be read ({error})") from None
    files = content.get("files")
    if expected == _digest(content) and not (isinstance(files, dict) and all(map(_is_inside, files))):
        raise DamagedError(f"the checkpoint {directory} is damaged: {NAME} names other files than its own")
    if expected != _digest(content):
        raise DamagedError(f"the checkpoint {directory} is damaged: {NAME} is not as it was written")
    return dict(content)


def refuse_damage(directory: Any) -> None:
    """Reads every file of a checkpoint.

    Raises:
      DamagedError: one of them is missing or is not as it was written; the message names it.
    """
    for name, (size, digest) in read_manifest(directory)["files"].items():
        path = directory / name
        if not path.is_file():
            raise DamagedError(f"the checkpoint {directory} is damaged: {name} is missing")
        if (actual := path.stat().st_size if _is_local(path) else path.stat().length) != size:
            raise DamagedError(f"the checkpoint {directory} is damaged: {name} has {actual} bytes and had {size}")
        if _sha256(path) != digest:
            raise DamagedError(f"the checkpoint {directory} is damaged: {name} has other bytes than were written")


def _is_inside(name: str) -> bool:
    return not name.startswith("/") and ".." not in name.split("/")


def _files(directory: Any) -> list[str]:
    return sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())


def _described(path: Any) -> list[Any]:
    """Size and checksum of a file, which is on the disk afterwards, not only in the system's memory."""
    if _is_local(path):
        to_disk(path)
        return [path.stat().st_size, _sha256(path)]
    return [path.stat().length, _sha256(path)]


def _sha256(path: Any) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_local(path: Any) -> bool:
    return "://" not in str(path)


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
