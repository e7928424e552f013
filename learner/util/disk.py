"""Files that other users can write to: writing does not follow links, and reads are bounded."""

import contextlib
import errno
import itertools
import os
import re
import stat
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from learner.errors import LearnerError

LIMIT = "LEARNER_LARGEST_FILE"
"""The environment variable for the limit of `largest_file`."""
LONGEST_LINE = 1 << 26
CHUNK = 1 << 20
LONGEST_NAME = 255  # bytes, the limit of file systems
LONGEST_PATH = 1024 - 192 if sys.platform == "darwin" else 4096 - 512
"""The limit for paths, with room for the files of a checkpoint."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
OF_PROCESS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE, errno.ETIMEDOUT)
"""Errors that are about the process, the machine or the network, and not about the file."""
TENSORSTORE_NUMBER = re.compile(r"\[(?:OS error |os_error_code=')(\d+)")  # of earlier and current versions
NO_FOLLOW = os.O_NOFOLLOW
NO_WAIT = os.O_NONBLOCK  # opening a pipe would wait for its other end


def largest_file() -> int:
    """Return the maximum number of bytes to read into memory from a run's file. Metric logs are read in parts and may
    be larger.

    Raises:
      LearnerError: the environment variable is not a number of bytes.

    >>> largest_file()
    1073741824
    """
    text = os.environ.get(LIMIT) or str(1 << 30)
    if not (text.isascii() and text.isdecimal()):
        raise LearnerError(
            f"the environment variable {LIMIT} is {text!r}: it needs a number of bytes, such as {1 << 30}",
            code="file-limit-malformed",
            value=text,
        )
    return int(text)


def error_number(error: BaseException) -> int | None:
    """Return the number of the system's error, which TensorStore's errors have only in their text, and those of full
    disks sometimes only in words. Return None for other errors.

    >>> error_number(ValueError("PERMISSION_DENIED: Failed to open: a: Read-only file system [os_error_code='30']"))
    30
    >>> error_number(ValueError("Failed to write: No space left on device")) == errno.ENOSPC
    True
    """
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    if number := TENSORSTORE_NUMBER.search(str(error)):
        return int(number[1])
    return next((code for code in FULL if os.strerror(code) in str(error)), None)


def is_of_process(error: BaseException) -> bool:
    """Return True for an error about the process or the machine, such as too many open files: the file that could not
    be read may be intact.

    >>> is_of_process(OSError(errno.EMFILE, "Too many open files")), is_of_process(ValueError("not JSON"))
    (True, False)
    """
    return isinstance(error, MemoryError) or error_number(error) in OF_PROCESS


def to_disk(path: Any) -> None:
    """Flush the content of a file, or the entries of a directory, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str], flushes: bool = True, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Yield a file whose content replaces that of `path` when the block ends: readers see the old or the new content,
    never a part of either. If the block raises, the old content stays, and nothing remains of the new one.

    Args:
      path: the path of the file, in a directory that exists.
      flushes: flush it to the disk, so that this holds after a crash of the machine, too.
      mode: the permissions of the file.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "summary.json")
    >>> with replacing(path) as file:
    ...     _ = file.write(b"{}")
    >>> path.read_bytes()
    b'{}'
    """
    partial = f"{os.fspath(path)}.partial"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(partial)  # of a process that was killed; a link would be written through
    try:
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            yield file
            if flushes:
                file.flush()
                os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(partial)  # on a full disk it would take the room of other files
        raise


def make_directory(path: Path) -> None:
    """Create a directory and its parents, if missing. Raise `LearnerError` if that fails."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LearnerError(
            f"the directory {path} cannot be made: {error.strerror}", code="directory-unusable", directory=path
        ) from None  # the message covers pathlib's chain of errors


def read_bytes(path: str | os.PathLike[str], most: int | None = None) -> bytes:
    """Return the content of a regular file, following links.

    Args:
      path: the path of the file.
      most: the maximum number of bytes; default: `largest_file()`.

    Raises:
      LearnerError: the file is larger, or it is a pipe, a device or a directory.
      OSError: it cannot be read.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "summary.json")
    >>> path.write_bytes(b"{}")
    2
    >>> read_bytes(path)
    b'{}'
    """
    most = largest_file() if most is None else most
    descriptor = os.open(path, os.O_RDONLY | NO_WAIT)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise LearnerError(
                f"{os.fspath(path)} is {kind_of(status.st_mode)}; it needs a regular file", code="file-not-regular"
            )
        refuse_larger(path, status.st_size, most)
    except BaseException:
        os.close(descriptor)
        raise
    with open(descriptor, "rb") as file:
        content = file.read(most + 1)
    refuse_larger(path, len(content), most)  # the file may have grown meanwhile
    return content


def refuse_larger(path: str | os.PathLike[str], count: int, most: int) -> None:
    """Raise `LearnerError` if a file has more bytes than may be read into memory."""
    if count > most:
        raise LearnerError(
            f"{os.fspath(path)} has {count:,} bytes, more than the {most:,} that are read: it is damaged, or not what "
            "a run wrote (the environment variable LEARNER_LARGEST_FILE sets another limit)",
            code="file-too-large",
            count=count,
            most=most,
        )


def read_lines(path: str | os.PathLike[str]) -> Iterator[bytes]:
    """Yield the complete lines of a regular file, each with its line end. A last line without a line end is skipped.

    Raises:
      LearnerError: the file has more than `largest_file()` bytes, or a line more than `LONGEST_LINE`, so that memory is
        bounded even if the file is not text.
      OSError: it cannot be read.
    """
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | NO_WAIT)) as file:
        refuse_larger(path, os.fstat(file.fileno()).st_size, largest_file())
        for number in itertools.count(1):
            line = file.readline(LONGEST_LINE)
            if len(line) == LONGEST_LINE:
                raise LearnerError(
                    f"{os.fspath(path)} is damaged: line {number} is incomplete", code="file-damaged", number=number
                )
            if not line.endswith(b"\n"):
                return
            yield line


def checksum(path: str | os.PathLike[str], size: int) -> int:
    """Return the CRC-32 of the first `size` bytes of a file, reading it in parts."""
    value, left = 0, size
    with open(path, "rb") as file:
        while left and (part := file.read(min(CHUNK, left))):
            value, left = zlib.crc32(part, value), left - len(part)
    return value


def truncate(path: str | os.PathLike[str], size: int) -> None:
    """Truncate a file; symbolic links are not followed."""
    descriptor = os.open(path, os.O_WRONLY | NO_FOLLOW)
    try:
        os.ftruncate(descriptor, size)
    finally:
        os.close(descriptor)


def kind_of(mode: int) -> str:
    """Return the kind of a path, in words, from its `st_mode`.

    >>> kind_of(stat.S_IFLNK), kind_of(stat.S_IFIFO)
    ('a symbolic link', 'a pipe or device')
    """
    if stat.S_ISLNK(mode):
        return "a symbolic link"
    return "a directory" if stat.S_ISDIR(mode) else "a file" if stat.S_ISREG(mode) else "a pipe or device"


def problem_with_name(path: Path) -> str | None:
    """Return the reason why file systems or libraries cannot create files below a path, or `None`.

    >>> problem_with_name(Path("runs", "a" * 300))
    'a name in it has 300 bytes, and 255 are the most'
    """
    try:
        names = [part.encode() for part in path.parts]
    except UnicodeEncodeError:
        return "it is not UTF-8"
    if b"\0" in b"".join(names):
        return "it contains a null character"
    if b"\\" in b"".join(names):
        return "it contains a backslash, which the library that writes checkpoints takes for a slash"
    if (longest := max(map(len, names), default=0)) > LONGEST_NAME:
        return f"a name in it has {longest} bytes, and {LONGEST_NAME} are the most"
    if (length := len(os.fspath(path).encode())) > LONGEST_PATH:
        return f"it has {length} bytes, and {LONGEST_PATH} are the most"
    return None


def is_full(error: BaseException) -> bool:
    """Return True if an error means that the disk, the quota or the largest file of the process is full."""
    return isinstance(error, OSError) and error.errno in FULL
