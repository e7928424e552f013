"""Helpers for file sources: clear errors for missing files and packages, and memory limits."""

import codecs
import contextlib
import difflib
import glob
import gzip
import itertools
import os
import stat
import zlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import IO, NoReturn, cast

from learner.data.npz import LARGEST_RATIO
from learner.errors import LearnerError, near
from learner.util.machine import machine_memory
from learner.util.number_checks import check_int

PathLike = str | os.PathLike[str]  # after `list[PathLike]` in a union: jsonargparse takes a list for one such path
CHUNK = 2**20
GZIP = b"\x1f\x8b"
PACKERS = {
    GZIP: "gzip",
    b"PK\x03\x04": "zip",
    b"BZh91AY&SY": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
}
"""The program that packed a file, by the file's first bytes."""
LONGEST_SIGNATURE = max(map(len, PACKERS))
LEAST_MEMORY = 2**29  # bytes of memory that a file of any size may take
# Memory to file size: gzip compresses real tables up to 25 times, and Python's objects take up to 40 times a text.
MEMORY_RATIO = 1000
READERS = {
    ".npz": "numpy_arrays",
    ".npy": "numpy_arrays",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".jsonl": "json_lines",
    ".ndjson": "json_lines",
    ".tar": "TarShards",
    ".txt": "Lines",
    ".sqlite": "SQLiteTable",
    ".db": "SQLiteTable",
}
"""The reader in `learner.data` of each suffix."""
KINDS = {stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


def as_path(path: PathLike, what: str) -> Path:
    """Return the path with `~` expanded to the home directory.

    Raises:
      LearnerError: the argument is not a path.
    """
    if not isinstance(path, str | os.PathLike):
        raise LearnerError(f"{what}: the path is {path!r}; it needs a text", code="data-path-type", path=path)
    try:
        return Path(os.fsdecode(path)).expanduser()
    except RuntimeError as error:
        raise LearnerError(f"{what}: {path} cannot be found: {error}", code="data-path-not-found", path=path) from error


def reader_of(path: PathLike) -> str | None:
    """Return the name of the reader in `learner.data` for files with this suffix, or None.

    >>> reader_of("a.npz"), reader_of("a.csv.gz"), reader_of("mymodule.rows")
    ('numpy_arrays', 'csv', None)
    """
    return next((READERS[suffix] for suffix in reversed(Path(path).suffixes) if suffix in READERS), None)


def refuse_path(path: PathLike, what: str) -> NoReturn:
    """Raise `LearnerError` for a path passed as data: the file is missing, or needs a reader, named in the message."""
    if not as_path(path, what).exists():
        present(path, what)
    reader = reader_of(path)
    hint = f": {{class_path: {reader}, init_args: {{path: {path}}}}}, or learner.data.{reader}({str(path)!r})"
    raise LearnerError(
        f"{what} got the path {path}; it needs something that reads it{hint if reader else ''}",
        code="data-path-unread",
        path=path,
    )


def present(path: PathLike, what: str) -> Path:
    """Return the path of an existing file.

    Args:
      path: the path of the file; `~` is the home directory.
      what: the name of the reader, for messages.

    Raises:
      LearnerError: there is no such file; the message names files in the directory with similar names.

    >>> present("/no/such/file.csv", "csv")
    Traceback (most recent call last):
    learner.errors.LearnerError: csv: there is no file /no/such/file.csv (there is no directory /no/such)
    """
    file = as_path(path, what)
    refuse_special(file, what)
    with readable(file):
        if file.is_file():
            return file
        if file.is_dir():
            raise LearnerError(f"{what}: {file} is a directory; it needs a file", code="data-path-is-directory")
        if not file.parent.is_dir():
            raise LearnerError(
                f"{what}: there is no file {file} (there is no directory {file.parent})", code="data-file-missing"
            )
        close = difflib.get_close_matches(file.name, sorted(os.listdir(file.parent)))
    hint = f": did you mean {' or '.join(close)}?" if close else ""
    raise LearnerError(
        f"{what}: there is no file {file}{hint}",
        code="data-file-missing",
    )


def present_files(paths: list[PathLike] | PathLike, what: str) -> list[Path]:
    """Return the paths of existing files, in the order of a list; files that match a pattern are sorted by name.

    Args:
      paths: the path of a file, a pattern such as `part-*.csv`, or a list of both.
      what: the name of the reader, for messages.

    Raises:
      LearnerError: a file does not exist, no file matches a pattern, or the list is empty.
    """
    files: list[Path] = []
    for path in paths if isinstance(paths, list | tuple) else [paths]:
        text = str(as_path(path, what))
        if not glob.has_magic(text) or os.path.exists(text):
            files.append(present(path, what))
            continue
        directory, name = os.path.split(text)
        pattern = os.path.join(glob.escape(directory), name) if os.path.isdir(directory) else text
        matches = sorted(match for match in glob.glob(pattern, recursive=True) if not os.path.isdir(match))
        if not matches:
            raise LearnerError(f"{what}: no file matches {text}", code="data-files-missing", path=text)
        files += [present(match, what) for match in matches]
    if not files:
        raise LearnerError(f"{what}: the list of files is empty", code="data-files-missing")
    return files


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """Convert system errors for a path (no permission, name too long) into `LearnerError`."""
    try:
        yield
    except OSError as error:
        raise LearnerError(
            f"{path} cannot be read: {error.strerror or error}", code="data-file-unreadable", path=path
        ) from error


def refuse_special(path: str | Path, what: str) -> None:
    """Raise `LearnerError` for a named pipe, a socket or a device: opening or reading one may block without end."""
    try:
        kind = KINDS.get(stat.S_IFMT(os.stat(path).st_mode))
    except (OSError, ValueError):  # a missing file, which the caller reports
        return
    if kind is not None:
        raise LearnerError(
            f"{what}: {path} is {kind}; it needs a regular file", code="data-file-not-regular", path=path, kind=kind
        )


def folder(path: PathLike, what: str, where: str = "") -> Path:
    """Return the path of an existing directory.

    Raises:
      LearnerError: there is no such directory; the message ends with the hint `where`.
    """
    directory = as_path(path, what)
    with readable(directory):
        is_directory = directory.is_dir()
    if not is_directory:
        raise LearnerError(
            f"{what}: {directory} is not a directory" + (f"; {where}" if where else ""), code="data-directory-missing"
        )
    return directory


def published(directory: PathLike, names: Sequence[Sequence[str]], what: str, url: str) -> list[Path]:
    """Return the paths of the files of a published data set.

    Args:
      directory: the directory of the files.
      names: the alternative names of each file.
      what: the data set, for messages.
      url: the address of the data set.

    Raises:
      LearnerError: files are missing; the message names all of them, and the address.
    """
    where = f"get the files from {url} and put them there (nothing is downloaded automatically)"
    place = folder(directory, what, f"{where}: {', '.join(first for first, *_ in names)}")
    for name in itertools.chain(*names):
        refuse_special(place / name, what)
    paths = [next((place / name for name in options if (place / name).is_file()), None) for options in names]
    missing = [first for path, (first, *_) in zip(paths, names, strict=True) if path is None]
    if missing:
        raise LearnerError(
            f"{what}: {place} has no {', '.join(missing)}; {where}", code="data-files-missing", place=place
        )
    return [path for path in paths if path is not None]


def packer_of(start: bytes) -> str | None:
    """Return the program that packed a file with these first bytes, or None if it is not compressed."""
    return next((packer for signature, packer in PACKERS.items() if start.startswith(signature)), None)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading, decompressed if it is gzip.

    Raises:
      LearnerError: the file cannot be read, is damaged, or is compressed by another program than gzip.
    """
    try:
        with contextlib.ExitStack() as stack:
            stream: IO[bytes] = stack.enter_context(path.open("rb"))
            packer = packer_of(stream.read(LONGEST_SIGNATURE))
            if packer not in (None, "gzip"):
                raise LearnerError(
                    f"{path} is compressed by {packer}: decompress it, or compress it with gzip, which is decompressed "
                    "on reading",
                    code="data-file-packed",
                    path=path,
                )
            stream.seek(0)
            yield cast(IO[bytes], stack.enter_context(gzip.open(stream))) if packer else stream
    except (OSError, EOFError, zlib.error) as error:
        raise LearnerError(f"{path} cannot be read: {error}", code="data-file-unreadable", path=path) from error


class MemoryBudget:
    """A memory limit for the content of a file.

    A compressed file of a few kilobytes can hold gigabytes. Readers reserve memory before they allocate it.

    Args:
      path: the path of the file.
      max_memory: the limit in bytes. Default: 1000 times the file's size, at least 512 MiB, and at most the machine's
        memory.

    Raises:
      LearnerError: `max_memory` is not a positive integer.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp(), "a.csv")
    >>> _ = file.write_text("a,b")
    >>> MemoryBudget(file, max_memory=100).reserve(99)
    >>> MemoryBudget(file, max_memory=100).reserve(101)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    learner.errors.LearnerError: ...a.csv has 3 bytes and needs more than 100 bytes of memory...
    """

    def __init__(self, path: Path, max_memory: int | None = None) -> None:
        self._path, self._size, self._reserved = path, path.stat().st_size, 0
        if max_memory is None:
            self.limit = min(max(LEAST_MEMORY, MEMORY_RATIO * self._size), machine_memory())
        else:
            self.limit = check_int("max_memory", max_memory, least=1)

    def reserve(self, count: int) -> None:
        """Reserve `count` bytes permanently. Raise `LearnerError` if the file needs more than its limit."""
        self._reserved += count
        if self._reserved > self.limit:
            self.require(0)

    def require(self, count: int) -> None:
        """Raise `LearnerError` unless `count` bytes are left."""
        if self._reserved + count > self.limit:
            raise LearnerError(
                f"{self._path} has {self._size} bytes and needs more than {self.limit} bytes of memory, the limit "
                "that protects from decompression bombs: if you trust the file, raise the limit with max_memory= (in "
                "bytes)",
                code="data-file-too-large",
            )


def undecodable(path: Path, encoding: str) -> int:
    """Return the first line (from 1) of a text file with bytes that are invalid in its encoding."""
    decoder, lines = codecs.getincrementaldecoder(encoding)(), 1
    with opened(path) as stream:
        while True:
            piece = stream.read(CHUNK)
            try:
                lines += decoder.decode(piece, final=not piece).count("\n")
            except UnicodeDecodeError as error:
                return lines + error.object[: error.start].decode(encoding, "ignore").count("\n")
            if not piece:
                return lines


def most_bytes(path: Path) -> int:
    """Return the largest size that a file can have, decompressed if it is gzip, at most the machine's memory."""
    with readable(path), path.open("rb") as stream:
        ratio = LARGEST_RATIO if stream.read(2) == GZIP else 1
    return min(path.stat().st_size * ratio, machine_memory())


def read_exactly(stream: IO[bytes], count: int) -> bytearray:
    """Return the next `count` bytes, or fewer at the end of the file. Memory grows with the content."""
    content = bytearray()
    while len(content) < count and (part := stream.read(min(CHUNK, count - len(content)))):
        content += part
    return content


def check_split(name: str, split: str, splits: Collection[str]) -> None:
    """Raise `LearnerError` for a split that a data set does not have."""
    if split not in splits:
        raise LearnerError(
            f"{name} has no split {split!r}: {near(str(split), list(splits))}",
            code="data-split-unknown",
            name=name,
            split=split,
        )
