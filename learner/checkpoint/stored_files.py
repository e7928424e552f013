"""The files of a checkpoint with their sizes and checksums, on a disk or in an object store."""

import base64
import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from learner.util.disk import read_bytes, to_disk
from learner.util.optional import import_optional
from learner.util.urls import one_line

LARGE = 1 << 24  # bytes from which checksums in threads pay off
OF_STORE = "md5:"  # prefix of a checksum that the object store computed from the received data, in base 64


class NoAnswerError(Exception):
    """An object store does not answer, or refuses to. Not an `OSError`, as that means a damaged file."""


@dataclasses.dataclass(frozen=True)
class StoredFile:
    """A file of a checkpoint.

    Attributes:
      path: a `pathlib.Path`, or one of `etils.epath`.
      size: bytes.
      of_store: the object store's checksum of the file, or None.
    """

    path: Any
    size: int
    of_store: str | None = None

    def has(self, checksum: str) -> bool:
        """Return True if the file has this checksum. The file is read, unless the object store has the checksum. An
        object store's checksum may also be compared with a copy on a disk.
        """
        if str(checksum).startswith(OF_STORE):
            return checksum == (self.of_store or _md5(self.path))
        return checksum == _sha256(self.path)


def is_local(path: Any) -> bool:
    """Return True for a path on a disk.

    >>> is_local("runs/digits"), is_local("gs://bucket/digits")
    (True, False)
    """
    return "://" not in str(path)


def read_text(path: Any) -> str:
    """Return the text of a small file.

    Raises:
      NoAnswerError: an object store does not return it, which proves nothing about the file.
    """
    if is_local(path):
        return read_bytes(path).decode()
    try:
        text: str = path.read_text()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise NoAnswerError(one_line(error)) from error
    return text


def stored_files(directory: Any) -> dict[str, StoredFile]:
    """Return the files in a directory and its subdirectories, by their relative names, in the order of the names.

    In an object store, the listing has sizes and checksums: one request for a thousand files.
    """
    files = _below(directory) if is_local(directory) else _listing(directory)
    return {file.path.relative_to(directory).as_posix(): file for file in sorted(files, key=lambda file: file.path)}


def checksums(files: Sequence[StoredFile]) -> list[str]:
    """Return the checksum of each of these files, all of one directory. Files on a disk are flushed to it.

    In an object store, only files without a stored checksum are read.
    """
    if not all(is_local(file.path) for file in files):
        return [file.of_store or _sha256(file.path) for file in files]
    paths = [file.path for file in files]
    if sum(file.size for file in files) < LARGE:
        _flush(paths)
        return [_sha256(path) for path in paths]
    # A thread for the disk, and two for the checksums, of which one may be slower than the disk.
    with ThreadPoolExecutor(3, "learner-checksums") as pool:
        flushing = pool.submit(_flush, paths)
        digests = list(pool.map(_sha256, paths))
        flushing.result()
    return digests


def flush_directories(directory: Any) -> None:
    """Flush a directory and its subdirectories: a file survives a power loss only if its directory entry does."""
    _flush([*(path for path in directory.rglob("*") if path.is_dir()), directory])


def _below(directory: Any) -> Iterator[StoredFile]:
    for path in directory.iterdir():
        if path.is_dir():
            yield from _below(path)
        elif path.is_file():  # reading a pipe would never end
            yield StoredFile(path, path.stat().st_size)


def _listing(directory: Any) -> Iterator[StoredFile]:
    fsspec = import_optional("fsspec", "stores", "a checkpoint in an object store")
    protocol, _, root = str(directory).partition("://")
    filesystem = fsspec.filesystem(protocol)
    filesystem.invalidate_cache()  # Orbax's writes bypass the cache
    for path, info in filesystem.find(root, detail=True).items():
        if not path.endswith("/"):  # other tools create such an object for a directory
            checksum = info.get("md5Hash")  # composite objects have none
            of_store = checksum and f"{OF_STORE}{checksum}"
            yield StoredFile(directory / path.removeprefix(f"{root}/"), info["size"], of_store)


def _flush(paths: Iterable[Any]) -> None:
    for path in paths:
        to_disk(path)


def _md5(path: Any) -> str:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).digest()
    return f"{OF_STORE}{base64.b64encode(digest).decode()}"


def _sha256(path: Any) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
