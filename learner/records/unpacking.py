"""Reading of untrusted files in bounded memory, with one clear error for any fault."""

import binascii
import contextlib
import dataclasses
import gzip
import io
import json
import zlib
from collections.abc import Iterator
from typing import Any

from learner.errors import LearnerError
from learner.records.leaves import Leaves
from learner.util.text import printable, size

WIDEST = 16  # bytes of a number in the widest precision
PER_ARRAY = 2048  # bytes: its path, shape and dtype
LEAST = 2**20
USUAL = 20  # the ratio that gzip does not exceed on weights
FEW = 10_000  # arrays
SMALL = 512  # bytes of an array, on average over arrays that the model does not have
PIECE = 2**20
LONGEST = 400  # characters of a reason, which may quote the file


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits on the content of a file.

    Attributes:
      room: the maximum number of bytes, decompressed.
      arrays: the maximum number of arrays.
      numbers: the maximum number of JSON numbers.
    """

    room: int
    arrays: int
    numbers: int


def limits_for(leaves: Leaves, size: int, packed: bool) -> Limits:
    """Return the limits on a file of `size` bytes, compressed or not, that is loaded into a model.

    - Decompressed, it may have the size of the model in the widest precision, or some twenty times its own.
    - It may have some ten thousand arrays, several times the model's, or as many as could have a fair size. Each takes
      memory, and may be 30 bytes in the file.
    - It may have a few times the model's numbers. In JSON, each takes some ten times the memory of its text while the
      file is read.
    """
    arrays, numbers = len(leaves.arrays), sum(int(x.size) for x in leaves.arrays.values())
    room = max(LEAST + 2 * (WIDEST * numbers + PER_ARRAY * arrays), USUAL * size) if packed else size
    return Limits(room, FEW + 4 * arrays + room // SMALL, 4 * numbers)


def check_count(what: str, count: int, most: int) -> None:
    """Raise `LearnerError` for a map with too many entries."""
    if count > most:
        raise LearnerError(
            f"{what} has more than {most} entries, which is far more than it needs",
            code="record-too-many-entries",
            most=most,
        )


def parsed(text: bytes, most: int, *, numbers: int = 0, **hooks: Any) -> Any:
    """Parse a JSON text, like `json.loads`. It may have as many values as `most` arrays need, plus `numbers`: Python
    builds all of them at once, and needs some thirty bytes for each byte of `[[],[],...`.

    Raises:
      LearnerError: the text has more values.
      ValueError: the text is not JSON.
    """
    lists, maps, quotes, commas = (text.count(character) for character in (b"[", b"{", b'"', b","))
    if lists + maps > 4 * most or quotes > 16 * most + 2 * numbers or commas > 8 * most + numbers:
        raise LearnerError(
            "it has far more values than a record of its size, or this model, needs", code="record-too-many-entries"
        )
    return json.loads(text, **hooks)


def unpacked(file: Any, room: int) -> io.BufferedReader:
    """Return a gzip stream as a file for sequential reading, which raises `LearnerError` after `room` bytes."""
    return io.BufferedReader(_Bounded(gzip.GzipFile(fileobj=file, mode="rb"), room), PIECE)


class _Bounded(io.RawIOBase):
    def __init__(self, file: Any, room: int):
        self._file, self._room, self._left = file, room, room

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count: int = self._file.readinto(memoryview(buffer)[:PIECE])  # allocates the same amount again
        self._left -= count
        if self._left < 0:
            raise LearnerError(
                f"it is longer than {size(self._room)} when it is unpacked, which is far more than this model needs; "
                "if that is intended, unpack it with gunzip first",
                code="record-too-large",
            )
        return count


def reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs of a JSON object as a dict.

    Raises:
      LearnerError: a name appears twice.
    """
    content: dict[str, Any] = {}
    for name, value in pairs:
        if name in content:
            raise LearnerError(f"it has {name!r} twice", code="record-key-twice", name=name)
        content[name] = value
    return content


@contextlib.contextmanager
def readable(what: str) -> Iterator[None]:
    """Convert every failure while a file is read into one error that names the file."""
    import msgpack

    reason: str
    try:
        yield
        return
    except LearnerError as error:
        reason, cause = str(error), error.__cause__
    except (EOFError, msgpack.OutOfData) as error:
        reason, cause = "it is cut off", error
    except gzip.BadGzipFile as error:
        reason, cause = f"it is not as gzip wrote it ({error})", error
    except (RecursionError, msgpack.StackError) as error:
        reason, cause = "it is nested too deeply", error
    except (zlib.error, binascii.Error, msgpack.UnpackException, ValueError, TypeError, OverflowError) as error:
        reason, cause = f"it is not what it should be ({error or type(error).__name__})", error
    reason = reason if len(reason) <= LONGEST else f"{reason[:LONGEST]}..."
    raise LearnerError(printable(f"{what} cannot be read: {reason}"), code="record-unreadable") from cause
