"""Files that grow while they are read: each line is read once."""

import os
from pathlib import Path
from typing import BinaryIO

from learner.runs.series import CHUNK, LONGEST, is_plain
from learner.util.disk import LARGEST, refuse_larger

KNOWN_BY = 256
"""Bytes; two lines of a journal differ in their times."""


class GrowingLines:
    """The lines that a file has got since they were read last.

    Args:
      path: of the file; it need not be there yet.
      last: begin with the lines in so many bytes before its end; `None`: with the first line.

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
        """Whether the file is another one than before or lost something, and its new whole lines, without their ends:
        then all of them are new. A last line without its end comes when it is whole.

        A file that was removed may get its number back: it is known by what was read last, too.

        Raises:
          OSError: it cannot be read.
          LearnerError: it has got more than may be read into memory.
        """
        if not is_plain(self.path):
            return False, []
        with self.path.open("rb") as file:
            found = os.fstat(file.fileno())
            same = (found.st_dev, found.st_ino) == self._file and found.st_size >= self._at and self._goes_on(file)
            anew = not same and self._file != (0, 0)
            if not same:
                self._forget()
                self._file = found.st_dev, found.st_ino
                self._at = max(0, found.st_size - self._last) if self._last is not None else 0
                self._torn = self._at > 0  # it begins inside of a line, perhaps
            refuse_larger(self.path, found.st_size - self._at, LARGEST)
            file.seek(self._at)
            lines: list[bytes] = []
            while content := file.read(min(CHUNK, found.st_size - self._at)):
                self._at += len(content)
                self._end = (self._end + content)[-KNOWN_BY:]
                whole, newline, rest = (self._rest + content).rpartition(b"\n")
                self._rest = rest[-LONGEST:]
                lines += whole.split(b"\n") if newline else []
        if lines and self._torn:
            self._torn, lines = False, lines[1:]
        return anew, lines

    def _goes_on(self, file: BinaryIO) -> bool:
        """Whether what was read last still stands there."""
        file.seek(self._at - len(self._end))
        return file.read(len(self._end)) == self._end
