"""The manifest that makes a directory a complete checkpoint: `manifest.json`, written last, with the size and the
SHA-256 of each of its files and of itself, and with the facts that decide whether the checkpoint stays.
"""

import contextlib
import hashlib
import json
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from learner.checkpoint.arrays import ITEMS
from learner.errors import LearnerError
from learner.util.disk import read_text, to_disk

NAME = "manifest.json"
PROGRESS = "progress/metadata"  # where Orbax's handler for JSON has it
NUMBERED = re.compile(r"(0|[1-9]\d*)(\.(partial|removed)(\..+)?)?", re.ASCII)
SAVING = re.compile(r"(\d+)\.saving", re.ASCII)
MARK = "a save of learner is under way: the directories of this step that end in .partial belong to it\n"
OF_ORBAX = "_CHECKPOINT_METADATA"
LARGE = 1 << 24  # bytes from which on checksums in threads pay


class DamagedError(LearnerError):
    """A checkpoint is not as it was saved; the message names the file."""


def write_manifest(directory: Any, facts: Mapping[str, Any]) -> None:
    """Write the manifest of a directory whose other files are complete, and flush all of them to the disk.

    Args:
      directory: a `pathlib.Path`, or one of `etils.epath`.
      facts: fields that are read without the rest of the checkpoint, as JSON.
    """
    names = _files(directory)
    files = dict(zip(names, _flushed([directory / name for name in names]), strict=True))
    content = {**facts, "files": files}
    # Other files reach the disk while their checksums are taken, and the manifest after them: a manifest that survives
    # a power cut vouches for files that did, too.
    path = directory / NAME
    path.write_text(json.dumps({**content, "sha256": _digest(content)}))
    if _is_local(directory):
        to_disk(path)
        # A file survives a power cut only if the entry in its directory does.
        _flush([*(path for path in directory.rglob("*") if path.is_dir()), directory])


def read_manifest(directory: Any) -> dict[str, Any]:
    """Return the content of a manifest. No other file is read.

    Raises:
      DamagedError: there is no manifest, or it is not as it was written.
    """
    path = directory / NAME
    try:
        content = json.loads(_text(path))
        expected = content.pop("sha256")
    except FileNotFoundError:
        raise DamagedError(
            f"the checkpoint {directory} is damaged: {NAME} is missing",
            code="checkpoint-manifest-missing",
            directory=directory,
        ) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, LearnerError) as error:
        raise DamagedError(
            f"the checkpoint {directory} is damaged: {NAME} cannot be read ({error})",
            code="checkpoint-manifest-unreadable",
            directory=directory,
        ) from None
    files = content.get("files")
    # A correct digest proves no good intent: names may not lead out of the directory.
    if expected == _digest(content) and not (isinstance(files, dict) and all(map(_is_inside, files))):
        raise DamagedError(
            f"the checkpoint {directory} is damaged: {NAME} names other files than its own",
            code="checkpoint-manifest-names",
            directory=directory,
        )
    if expected != _digest(content):
        raise DamagedError(
            f"the checkpoint {directory} is damaged: {NAME} is not as it was written",
            code="checkpoint-manifest-changed",
            directory=directory,
        )
    return dict(content)


def refuse_damage(directory: Any) -> None:
    """Read every file of a checkpoint.

    Raises:
      DamagedError: a file is missing or is not as it was written; the message names it.
    """
    for name, (size, digest) in read_manifest(directory)["files"].items():
        path = directory / name
        if not path.is_file():
            raise DamagedError(
                f"the checkpoint {directory} is damaged: {name} is missing",
                code="checkpoint-file-missing",
                directory=directory,
                name=name,
            )
        # The size is compared first: it finds a cut-off file without reading gigabytes.
        if (actual := path.stat().st_size if _is_local(path) else path.stat().length) != size:
            raise DamagedError(
                f"the checkpoint {directory} is damaged: {name} has {actual} bytes and had {size}",
                code="checkpoint-file-size",
                directory=directory,
                name=name,
                size=size,
            )
        if _sha256(path) != digest:
            raise DamagedError(
                f"the checkpoint {directory} is damaged: {name} has other bytes than were written",
                code="checkpoint-file-changed",
                directory=directory,
                name=name,
            )


def is_ours(directory: Any) -> bool:
    """Return True if a directory is proven to be a checkpoint that learner wrote: by its manifest, or if that is
    damaged by its progress. One that is being written or removed also counts if a save has marked it; an empty one
    has nothing that could be lost. The target of a link is not ours.

    Others keep directories that are named by numbers, too, and nothing of theirs may be moved or removed.
    """
    match = NUMBERED.fullmatch(directory.name)
    if match is None or not directory.is_dir() or (_is_local(directory) and directory.is_symlink()):
        return False
    step = int(match[1])
    # The step inside must be that of the name: a copy of a checkpoint under another number proves nothing.
    if _is_of_step(directory / NAME, step, {"format", "step", "files", "sha256"}):
        return True
    if _is_of_step(directory / PROGRESS, step, {"format", "step"}):
        return True
    if match[2] is None or not _is_local(directory):
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
        is_link = _is_local(path) and path.is_symlink()
        return SAVING.fullmatch(path.name) is not None and not is_link and _text(path) in ("", MARK)
    except (OSError, ValueError, LearnerError):
        return False


def remove_checkpoint(directory: Any) -> None:
    """Remove a directory that is ours."""
    # The manifest goes last: it proves that the directory is ours, so that a removal that was cut off can be continued.
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
        content = json.loads(_text(path))
    except (OSError, ValueError, RecursionError, LearnerError):
        return False
    return isinstance(content, dict) and keys <= content.keys() and content["step"] == step


def _text(path: Any) -> str:
    text: str = read_text(path) if _is_local(path) else path.read_text()
    return text


def _is_inside(name: str) -> bool:
    return not name.startswith("/") and ".." not in name.split("/")


def _files(directory: Any) -> list[str]:
    return sorted(path.relative_to(directory).as_posix() for path in files_below(directory))


def files_below(directory: Any) -> Iterator[Any]:
    """Yield the files in a directory and in those below. Paths of `etils.epath` cannot be searched for them."""
    for path in directory.iterdir():
        if path.is_dir():
            yield from files_below(path)
        else:
            yield path


def _flush(paths: Iterable[Any]) -> None:
    for path in paths:
        to_disk(path)


def _flushed(paths: Sequence[Any]) -> list[list[Any]]:
    """Flush files to the disk, and return the size and the checksum of each."""
    if not _is_local(paths[0]):
        return [[path.stat().length, _sha256(path)] for path in paths]
    sizes = [path.stat().st_size for path in paths]
    if sum(sizes) < LARGE:
        _flush(paths)
        digests = [_sha256(path) for path in paths]
    else:
        # A thread for the disk, and two for the checksums, of which one may be slower than the disk.
        with ThreadPoolExecutor(3, "learner-checksums") as pool:
            flushing = pool.submit(_flush, paths)
            digests = list(pool.map(_sha256, paths))
            flushing.result()
    return [[size, digest] for size, digest in zip(sizes, digests, strict=True)]


def _sha256(path: Any) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_local(path: Any) -> bool:
    return "://" not in str(path)


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
