"""Append-only files, atomic replacement of files, and numbers as text."""

import json
import os
import stat
import uuid
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from learner.errors import LearnerError
from learner.util.disk import NO_FOLLOW, checksum, kind_of, replacing

LARGEST_FLOAT32 = float(np.finfo(np.float32).max)


class AppendedFile:
    """An append-only file of lines. The first write opens it.

    Args:
      path: the path of the file, relative to the current working directory.
      size: the size in bytes.
      crc: the CRC-32 of those bytes, kept up to date; None keeps none.

    >>> import tempfile
    >>> file = AppendedFile(os.path.join(tempfile.mkdtemp(), "a.log"))
    >>> file.pending += ["0.5,32\\n", "0.25,32\\n"]
    >>> file.write()
    >>> file.size
    15
    """

    __slots__ = ("_descriptor", "_was_open", "crc", "path", "pending", "size")

    def __init__(self, path: str, size: int = 0, crc: int | None = None) -> None:
        self.path = os.path.abspath(path)
        self.size = size  # in bytes, of what was written
        self.crc = crc
        self.pending: list[str] = []
        self._descriptor: int | None = None
        self._was_open = False

    def write(self) -> None:
        """Pass the pending lines to the operating system. Lines that do not fit (a full disk) stay pending."""
        if self._descriptor is None:
            self._descriptor = self._open()
        left = "".join(self.pending).encode(errors="surrogateescape")
        try:
            while left:
                written = os.write(self._descriptor, left)
                self.size += written
                if self.crc is not None:
                    self.crc = zlib.crc32(left[:written], self.crc)
                left = left[written:]
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.path) from error
        finally:
            # The rest may begin inside a character.
            self.pending = [left.decode(errors="surrogateescape")] if left else []

    def _open(self) -> int:
        """Open the file, or reopen it. Only this process may have changed it in the meantime."""
        refuse_special(self.path)
        create = 0 if self._was_open else os.O_CREAT
        try:
            descriptor = os.open(self.path, os.O_WRONLY | create | os.O_APPEND | NO_FOLLOW, 0o666)
        except FileNotFoundError:
            if not self._was_open:
                raise
            raise LearnerError(
                f"{self.path} was removed while the run was writing to it", code="run-log-removed"
            ) from None
        size = os.lseek(descriptor, 0, os.SEEK_END)
        if self._was_open:
            try:
                self._refuse_size(size)
            except BaseException:
                os.close(descriptor)
                raise
        if size != self.size:
            self.size = size
            self.crc = None if self.crc is None else checksum(self.path, size)
        self._was_open = True
        return descriptor

    def _refuse_size(self, size: int) -> None:
        if size != self.size:
            raise LearnerError(
                f"{self.path} was changed while the run was writing to it: it has {size} bytes and had {self.size}",
                code="run-log-changed",
                size=size,
            )

    def refuse_loss(self) -> None:
        """Raise `LearnerError` if writes would be lost, or if a file with a CRC was changed. This takes two requests to
        the file system: for now and then, not for each write.
        """
        if self._descriptor is None:
            return
        if self.is_lost():
            raise LearnerError(
                f"{self.path} was removed or replaced while the run was writing to it", code="run-log-removed"
            )
        if self.crc is not None:
            self._refuse_size(os.fstat(self._descriptor).st_size)

    def is_lost(self) -> bool:
        """Return True if the file is open but has been removed or replaced, so that writes would be lost."""
        if self._descriptor is None:
            return False
        try:
            return not os.path.samestat(os.fstat(self._descriptor), os.stat(self.path))
        except FileNotFoundError:
            return True

    def close(self) -> None:
        """Close the descriptor; the next write opens the file again."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)


def close_all(files: Iterable[AppendedFile]) -> None:
    """Close all files."""
    for file in files:
        file.close()


def refuse_special(path: str | os.PathLike[str]) -> None:
    """Raise `LearnerError` for a link, which would change a file elsewhere, and for a pipe or a device, which would
    block. A path that does not exist is accepted.
    """
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise LearnerError(
            f"{path} is {kind_of(mode)}; a run writes only to files in its own directory: remove it",
            code="run-file-kind",
            path=path,
        )


def replace(path: str, content: bytes) -> None:
    """Replace a file atomically; see `replacing`."""
    with replacing(path) as file:
        file.write(content)


def replace_together(path: Path, content: bytes) -> None:
    """Replace a file that other processes may replace at the same time. None moves the half-written file of another."""
    own = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    try:
        replace(str(own), content)
        own.replace(path)
    finally:
        own.unlink(missing_ok=True)


def shortest(value: Any) -> float:
    """Return a number as a run writes it. A float32 or a narrower float becomes the shortest decimal that reads back to
    the same float32: 0.1, not 0.10000000149011612. So does a Python float with a fraction that equals a float32, such
    as `float(loss)`. Any other number becomes the same float64.

    Raises:
      TypeError, ValueError, OverflowError: the value is not a number, is several numbers, or an integer too large for a
        float.

    >>> [shortest(value) for value in (np.float32(0.1), float(np.float32(0.1)), 1 / 3, 16777217, np.int64(2**53))]
    [0.1, 0.1, 0.3333333333333333, 16777217.0, 9007199254740992.0]
    """
    number = value.item() if hasattr(value, "item") else value
    if not isinstance(number, float):
        return float(number)
    dtype = getattr(value, "dtype", None)
    if dtype is not None:
        is_narrow = dtype.itemsize <= 4
    else:
        has_fraction = abs(number) <= LARGEST_FLOAT32 and not number.is_integer()
        is_narrow = has_fraction and float(np.float32(number)) == number
    return float(str(np.float32(number)) if is_narrow else number)


def value_texts(values: np.ndarray) -> list[str]:
    """Return each number of `[count]` as the shortest digits that read back to the same float32, or float64 for wider
    dtypes.

    >>> value_texts(np.float32([0.1, 1, 1e20, float("nan"), float("-inf")]))
    ['0.1', '1.0', '1e+20', 'nan', '-inf']
    >>> value_texts(np.array([16777217, 1 / 3]))
    ['16777217.0', '0.3333333333333333']
    """
    return list(map(str, np.asarray(values, np.result_type(values, np.float32))))


def weight_texts(weights: np.ndarray) -> list[str]:
    """Return the text of each weight, as `value_texts` does, but write integers as such because weights are mostly
    counts.

    >>> weight_texts(np.float32([32, 0.5]))
    ['32', '0.5']
    """
    kind = np.result_type(weights, np.float32).type
    numbers = np.asarray(weights, kind).tolist()
    texts = {number: str(kind(number)).removesuffix(".0") for number in set(numbers)}  # few: batches have one size
    return [texts[number] for number in numbers]


def final_text(value: float | str) -> str:
    """Return the value of a split as text: the shortest digits that read back to it, as in `value_texts` for the
    `shortest` decimal of a float32. A text is written as JSON.

    >>> [final_text(value) for value in (0.1, 16777217.0, 1e300, "two\\nlines")]
    ['0.1', '16777217.0', '1e+300', '"two\\\\nlines"']
    """
    if isinstance(value, str):
        return json.dumps(value)
    number = float(value)
    text = repr(number) if abs(number) > LARGEST_FLOAT32 else str(np.float32(number))
    return text if float(text) == number else repr(number)
