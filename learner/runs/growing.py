"""Reading growing files, each line once."""

import os
from pathlib import Path
from typing import BinaryIO

from learner.runs.series import CHUNK, LONGEST
from learner.util.disk import largest_file, refuse_larger

KNOWN_BY = 256
"""Bytes; two lines of a journal differ in their times."""


class GrowingLines:
    """The lines appended to a file since the last read.

    Args:
      path: the path of the file; it need not exist yet.
      last: start with the lines within this many bytes of the end; None starts with the first line.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "a.log")
    >>> lines = GrowingLines(path)
    >>> lines.read()
    (False, [])
    >>> path.write_bytes(b"one\\ntwo\\nthr")
    11
    >>> lines.read()
    (False, [b'one', b'two'])
    >>> with path.open("ab") as file:
    ...     file.write(b"ee\\n")
    3
    >>> lines.read()
    (False, [b'three'])
    """

    def __init__(self, path: Path, last: int | None = None):
        self.path = path
        self._last = last
        self._forget()

    def _forget(self) -> None:
        self._at, self._rest, self._file, self._torn, self._end = 0, b"", (0, 0), False, b""

    def read(self) -> tuple[bool, list[bytes]]:
        """Return True if the file was replaced or truncated, and the new complete lines without line ends (all lines
        after a replacement). A partial last line is returned once it is complete.

        A new file may get the inode number of a removed one, so the last line read is compared, too.

        Raises:
          OSError: it cannot be read.
          LearnerError: it has more new data than may be read into memory.
        """
        if not os.path.isfile(self.path):  # reading a pipe or a device might never end
            return False, []
        with self.path.open("rb") as file:
            status = os.fstat(file.fileno())
            same = (status.st_dev, status.st_ino) == self._file and status.st_size >= self._at and self._continues(file)
            anew = not same and self._file != (0, 0)
            if not same:
                self._forget()
                self._file = status.st_dev, status.st_ino
                self._at = max(0, status.st_size - self._last) if self._last is not None else 0
                self._torn = self._at > 0  # it may begin inside a line
            refuse_larger(self.path, status.st_size - self._at, largest_file())
            file.seek(self._at)
            lines: list[bytes] = []
            while content := file.read(min(CHUNK, status.st_size - self._at)):
                self._at += len(content)
                self._end = (self._end + content)[-KNOWN_BY:]
                complete, newline, rest = (self._rest + content).rpartition(b"\n")
                self._rest = rest[-LONGEST:]
                lines += complete.split(b"\n") if newline else []
        if lines and self._torn:
            self._torn, lines = False, lines[1:]
        return anew, lines

    def _continues(self, file: BinaryIO) -> bool:
        """Return True if the last line read is still in its place."""
        file.seek(self._at - len(self._end))
        return file.read(len(self._end)) == self._end
