"""What the sources share: files and packages that are not there, and reading no more than is claimed."""

import codecs
import contextlib
import difflib
import gzip
import importlib
import os
import stat
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, cast

from learner.data.npz import LARGEST_RATIO, machine_memory
from learner.data.plan import whole_number
from learner.errors import LearnerError
from learner.util.distribution import install_hint

PathLike = str | os.PathLike[str]
CHUNK = 2**20
GZIP = b"\x1f\x8b"
LEAST_MEMORY = 2**29  # bytes that a file of any size may take
# Of memory to a file: gzip packs real tables up to 25 times, and Python's objects take up to 40 times a text.
MEMORY_RATIO = 1000
KINDS = {stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


def as_path(path: PathLike, what: str) -> Path:
    """A path, where `~` is the home directory.

    Raises:
      LearnerError: it is none.
    """
    if not isinstance(path, str | os.PathLike):
        raise LearnerError(f"{what}: the path is {path!r}; it needs a text", code="data-path-type", path=path)
    try:
        return Path(os.fsdecode(path)).expanduser()
    except RuntimeError as error:
        raise LearnerError(f"{what}: {path} cannot be found: {error}", code="data-path-not-found", path=path) from error


def present(path: PathLike, what: str) -> Path:
    """The path of a file that is there.

    Args:
      path: of the file; `~` is the home directory.
      what: who needs it, for the message.

    Raises:
      LearnerError: there is no such file; it names those with a similar name beside it.

    >>> present("/no/such/file.csv", "csv")
    Traceback (most recent call last):
    learner.errors.LearnerError: csv: there is no file /no/such/file.csv (there is no directory /no/such)
    """
    found = as_path(path, what)
    refuse_special(found, what)
    with readable(found):
        if found.is_file():
            return found
        if found.is_dir():
            raise LearnerError(f"{what}: {found} is a directory; it needs a file", code="data-path-is-directory")
        if not found.parent.is_dir():
            raise LearnerError(
                f"{what}: there is no file {found} (there is no directory {found.parent})", code="data-file-missing"
            )
        close = difflib.get_close_matches(found.name, sorted(os.listdir(found.parent)))
    raise LearnerError(
        f"{what}: there is no file {found}" + (f": did you mean {' or '.join(close)}?" if close else ""),
        code="data-file-missing",
    )


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """Raise what the system says of a path (no permission, too long a name) as a `LearnerError`."""
    try:
        yield
    except OSError as error:
        raise LearnerError(
            f"{path} cannot be read: {error.strerror or error}", code="data-file-unreadable", path=path
        ) from error


def refuse_special(path: str | Path, what: str) -> None:
    """Refuse what blocks or never ends when it is opened.

    Raises:
      LearnerError: the path is a named pipe, a socket or a device.
    """
    try:
        kind = KINDS.get(stat.S_IFMT(os.stat(path).st_mode))
    except (OSError, ValueError):  # there is none, which the caller reports
        return
    if kind is not None:
        raise LearnerError(
            f"{what}: {path} is {kind}; it needs a regular file", code="data-file-not-regular", path=path, kind=kind
        )


def folder(path: PathLike, what: str, where: str = "") -> Path:
    """The path of a directory that is there.

    Raises:
      LearnerError: there is none; it says `where` to get what belongs there.
    """
    found = as_path(path, what)
    with readable(found):
        is_directory = found.is_dir()
    if not is_directory:
        raise LearnerError(
            f"{what}: {found} is no directory" + (f"; {where}" if where else ""), code="data-directory-missing"
        )
    return found


def published(directory: PathLike, names: Sequence[Sequence[str]], what: str, url: str) -> list[Path]:
    """The files of a published data set.

    Args:
      directory: where they are.
      names: for each file the names that it may have.
      what: the data set, for the message.
      url: where people get it.

    Raises:
      LearnerError: some of them are not there; it names all of those, and where to get them.
    """
    where = f"get the files from {url} and put them there (nothing is downloaded by itself)"
    place = folder(directory, what, f"{where}: {', '.join(alike[0] for alike in names)}")
    for name in (name for alike in names for name in alike):
        refuse_special(place / name, what)
    found = [next((place / name for name in alike if (place / name).is_file()), None) for alike in names]
    missing = [alike[0] for path, alike in zip(found, names, strict=True) if path is None]
    if missing:
        raise LearnerError(
            f"{what}: {place} has no {', '.join(missing)}; {where}", code="data-files-missing", place=place
        )
    return [path for path in found if path is not None]


@contextlib.contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """A file for reading, unpacked where it is gzip.

    Raises:
      LearnerError: it cannot be read, or is damaged.
    """
    try:
        with contextlib.ExitStack() as stack:
            stream: IO[bytes] = stack.enter_context(path.open("rb"))
            packed = stream.read(2) == GZIP
            stream.seek(0)
            yield cast(IO[bytes], stack.enter_context(gzip.open(stream))) if packed else stream
    except (OSError, EOFError, zlib.error) as error:
        raise LearnerError(f"{path} cannot be read: {error}", code="data-file-unreadable", path=path) from error


class MemoryBudget:
    """The memory that the content of a file may take.

    A compressed file of a few kilobytes can hold gigabytes. Readers reserve memory before they allocate it.

    Args:
      path: of the file.
      max_memory: in bytes. Default: 1000 times the file's size, at least 512 MiB, and at most the machine's memory.

    Raises:
      LearnerError: `max_memory` is not a positive whole number.

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
            self.limit = whole_number("max_memory", max_memory, least=1)

    def reserve(self, count: int) -> None:
        """Reserve `count` bytes, which stay reserved. Raise `LearnerError` if the file needs more than its limit."""
        self._reserved += count
        if self._reserved > self.limit:
            self.require(0)

    def require(self, count: int) -> None:
        """Raise `LearnerError` unless `count` bytes are left."""
        if self._reserved + count > self.limit:
            raise LearnerError(
                f"{self._path} has {self._size} bytes and needs more than {self.limit} bytes of memory, the limit "
                "against files that unpack without end: if you trust it, give more by max_memory= (in bytes)",
                code="data-file-too-large",
            )


def undecodable(path: Path, encoding: str) -> int:
    """The first line (from 1) of a text file with bytes that are none of its encoding."""
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
    """As many bytes as a file can hold, unpacked where it is gzip, and as the machine has memory for."""
    with readable(path), path.open("rb") as stream:
        ratio = LARGEST_RATIO if stream.read(2) == GZIP else 1
    return min(path.stat().st_size * ratio, machine_memory())


def read_exactly(stream: IO[bytes], count: int) -> bytearray:
    """The next `count` bytes, or fewer at the end of the file. Memory grows with what is there, not with `count`."""
    found = bytearray()
    while len(found) < count:
        part = stream.read(min(CHUNK, count - len(found)))
        if not part:
            break
        found += part
    return found


def needed(module: str, package: str, extra: str, what: str) -> Any:
    """A module that not everybody has.

    Raises:
      LearnerError: it is not there; it says what to install.

    >>> needed("no_such_module", "Pillow", "images", "an image folder")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    learner.errors.LearnerError: an image folder needs Pillow: pip install ...
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise LearnerError(
            f"{what} needs {package}: {install_hint(extra)}", code="data-package-missing", package=package
        ) from error
