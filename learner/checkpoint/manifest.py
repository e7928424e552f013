"""The manifest that makes a directory a complete checkpoint: `manifest.json`, written last. It has the size and the
checksum of each file and of itself, and the facts that decide if the checkpoint is kept. Checksums are SHA-256, or an
object store's own, so that nothing is read back from there.
"""

import contextlib
import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from typing import Any

from learner.checkpoint.stored_files import checksums, flush_directories, is_local, read_text, stored_files
from learner.errors import LearnerError
from learner.util.disk import is_of_process, to_disk

ITEMS = ("model", "optim", "scheduler", "in_flight")  # branches of the arrays
NAME = "manifest.json"
PROGRESS = "progress/metadata"  # the path that Orbax's handler for JSON uses
NUMBERED = re.compile(r"(0|[1-9]\d*)(\.(partial|removed)(\..+)?)?", re.ASCII)
SAVING = re.compile(r"(\d+)\.saving", re.ASCII)
MARK = "a save of learner is under way: the directories of this step that end in .partial belong to it\n"
OF_ORBAX = "_CHECKPOINT_METADATA"


class DamagedError(LearnerError):
    """A checkpoint is damaged. The message names the file."""


class RemovedError(LearnerError):
    """A checkpoint was removed before it was read, by the run that trains."""


def write_manifest(directory: Any, facts: Mapping[str, Any]) -> None:
    """Write the manifest of a directory whose other files are complete, and flush all of them to the disk.

    Args:
      directory: a `pathlib.Path`, or one of `etils.epath`.
      facts: fields that can be read without the rest of the checkpoint, as JSON.
    """
    stored = stored_files(directory)
    digests = zip(stored, checksums([*stored.values()]), strict=True)
    content = {**facts, "files": {name: [stored[name].size, digest] for name, digest in digests}}
    # Other files are flushed to the disk with their checksums, and the manifest after them: if the manifest survives a
    # power loss, so do the other files.
    path = directory / NAME
    path.write_text(json.dumps({**content, "sha256": _digest(content)}))
    if is_local(directory):
        to_disk(path)
        flush_directories(directory)


def read_manifest(directory: Any) -> dict[str, Any]:
    """Return the content of a manifest. No other file is read.

    Raises:
      DamagedError: there is no manifest, or it is damaged.
    """
    path = directory / NAME
    try:
        content = json.loads(read_text(path))
        expected = content.pop("sha256")
    except FileNotFoundError:
        raise DamagedError(
            f"the checkpoint {directory} is damaged: {NAME} is missing",
            code="checkpoint-manifest-missing",
            directory=directory,
        ) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, LearnerError) as error:
        if is_of_process(error):
            raise
        raise DamagedError(
            f"the checkpoint {directory} is damaged: {NAME} cannot be read ({error})",
            code="checkpoint-manifest-unreadable",
            directory=directory,
        ) from None
    files = content.get("files")
    # A correct digest does not prove good intent: names must not lead out of the directory.
    if expected == _digest(content) and not (isinstance(files, dict) and all(map(_is_inside, files))):
        raise DamagedError(
            f"the checkpoint {directory} is damaged: {NAME} names other files than its own",
            code="checkpoint-manifest-names",
            directory=directory,
        )
    if expected != _digest(content):
        raise DamagedError(
            f"the checkpoint {directory} is damaged: {NAME} was changed after it was written",
            code="checkpoint-manifest-changed",
            directory=directory,
        )
    return dict(content)


def refuse_damage(directory: Any, contents: bool = True) -> None:
    """Compare every file of a checkpoint with its manifest. Files on a disk are read; if `contents` is False, only
    sizes are compared.

    Raises:
      DamagedError: a file is missing or damaged; the message names it.
    """
    expected, stored = read_manifest(directory)["files"], stored_files(directory)
    for name, (size, digest) in expected.items():
        file = stored.get(name)
        if file is None:
            raise DamagedError(
                f"the checkpoint {directory} is damaged: {name} is missing",
                code="checkpoint-file-missing",
                directory=directory,
                name=name,
            )
        # The size is compared first: it reveals a truncated file without reading gigabytes.
        if (actual := file.size) != size:
            raise DamagedError(
                f"the checkpoint {directory} is damaged: {name} has {actual} bytes and had {size}",
                code="checkpoint-file-size",
                directory=directory,
                name=name,
                size=size,
            )
        if contents and not file.has(digest):
            raise DamagedError(
                f"the checkpoint {directory} is damaged: {name} does not have the bytes that were written",
                code="checkpoint-file-changed",
                directory=directory,
                name=name,
            )


def is_ours(directory: Any) -> bool:
    """Return True if a directory is proven to be a checkpoint that learner wrote: by its manifest, or if that is
    damaged, by its progress. A directory that is being written or removed also counts if a save has marked it, and so
    does an empty one, as nothing can be lost. The target of a link is not ours.

    Other programs may have directories named by numbers, too, which must not be moved or removed.
    """
    match = NUMBERED.fullmatch(directory.name)
    if match is None or not directory.is_dir() or (is_local(directory) and directory.is_symlink()):
        return False
    step = int(match[1])
    # The step inside must equal the name: a copy of a checkpoint under another number proves nothing.
    if _is_of_step(directory / NAME, step, {"format", "step", "files", "sha256"}):
        return True
    if _is_of_step(directory / PROGRESS, step, {"format", "step"}):
        return True
    if match[2] is None or not is_local(directory):
        return False
    if match[3] == "partial" and is_mark(directory.with_name(f"{match[1]}.saving")):
        return True
    names = {path.name.partition(".orbax-checkpoint-tmp")[0] for path in directory.iterdir()}
    of_orbax = ".orbax-checkpoint-tmp" in directory.name or OF_ORBAX in names  # version 0.1.0 left no mark
    parts = {*ITEMS, "progress", NAME, OF_ORBAX, "commit_success.txt"}
    return not names or (of_orbax and names <= parts)


def is_mark(path: Any) -> bool:
    """Return True if a file is the mark of an unfinished save of learner."""
    try:
        is_link = is_local(path) and path.is_symlink()
        return SAVING.fullmatch(path.name) is not None and not is_link and read_text(path) in ("", MARK)
    except (OSError, ValueError, LearnerError):
        return False


def remove_checkpoint(directory: Any) -> None:
    """Remove a directory that is ours."""
    # The manifest goes last: it proves that the directory is ours, so an interrupted removal can be continued.
    for path in directory.iterdir():
        if path.name == NAME:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    (directory / NAME).unlink(missing_ok=True)
    with contextlib.suppress(FileNotFoundError):
        directory.rmdir()


def _is_of_step(path: Any, step: int, keys: set[str]) -> bool:
    try:
        content = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError, LearnerError):
        return False
    return isinstance(content, dict) and keys <= content.keys() and content["step"] == step


def _is_inside(name: str) -> bool:
    return not name.startswith("/") and ".." not in name.split("/")


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
