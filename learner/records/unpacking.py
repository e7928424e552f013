"""Reading files of others within bounded memory, and with one clear error for whatever is wrong with them."""

import binascii
import contextlib
import dataclasses
import gzip
import json
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from learner.errors import LearnerError
from learner.records.leaves import Leaves
from learner.util.text import printable, size

WIDEST = 16  # bytes of a number in the widest precision
PER_ARRAY = 2048  # bytes: its path, shape and dtype
LEAST = 2**20
USUAL = 20  # times: more than this gzip does not save on weights
FEW = 10_000  # arrays
SMALL = 512  # bytes of an array, on the average of those that the model has not
PIECE = 2**20
CACHED = 2**18
LONGEST = 400  # characters of a reason, which may quote the file


def room_for(leaves: Leaves, packed: int) -> int:
    """The most bytes that a file of `packed` bytes may have when it is unpacked: what the model takes in the widest
    precision, or some twenty times the file.
    """
    numbers = sum(int(x.size) for x in leaves.arrays.values())
    return max(LEAST + 2 * (WIDEST * numbers + PER_ARRAY * len(leaves.arrays)), USUAL * packed)


def most_arrays(leaves: Leaves, room: int) -> int:
    """The most arrays that a file of `room` bytes may have: some ten thousand, several times those of the model, or as
    many as are of some size. Each takes memory of its own, and may be 30 bytes in the file.
    """
    return FEW + 4 * len(leaves.arrays) + room // SMALL


def most_numbers(leaves: Leaves) -> int:
    """The most numbers that a file may have as numbers of JSON: a few times those of the model. Each takes some ten
    times its text while the file is read.
    """
    return 4 * sum(int(x.size) for x in leaves.arrays.values())


@dataclasses.dataclass(frozen=True)
class Limits:
    """How much a file may have.

    Attributes:
      room: bytes, unpacked.
      arrays: how many there may be.
      numbers: how many there may be that Python makes objects of.
    """

    room: int
    arrays: int
    numbers: int


def check_count(what: str, count: int, most: int) -> None:
    """Raises `LearnerError` for a map of more entries than it may have."""
    if count > most:
        raise LearnerError(f"{what} has more than {most} entries, which is far more than it needs")


def parsed(text: bytes, most: int, *, numbers: int = 0, **hooks: Any) -> Any:
    """What a text in JSON says, as `json.loads` gives it. It may have as many values as `most` arrays have, and so many
    `numbers` besides: Python makes all of them at once, and takes some thirty bytes for each byte of `[[],[],...`.

    Raises:
      LearnerError: it has more.
      ValueError: it is no JSON.
    """
    lists, maps, quotes, commas = _counts(text, b'[{",')
    if lists + maps > 4 * most or quotes > 16 * most + 2 * numbers or commas > 8 * most + numbers:
        raise LearnerError("it has far more values than a record of its size, or this model, needs")
    return json.loads(text, **hooks)


def _counts(text: bytes, characters: bytes) -> list[int]:
    """How often each of the characters is in the text. A piece at a time stays in the cache, which makes it three times
    as fast as `bytes.count`.
    """
    codes = np.frombuffer(text, np.uint8)
    counts = [0] * len(characters)
    for first in range(0, len(codes), CACHED):
        piece = codes[first : first + CACHED]
        for index, character in enumerate(characters):
            counts[index] += int(np.count_nonzero(piece == character))
    return counts


class Unpacked:
    """A gzip stream as a file that is read from its beginning to its end, and is not longer than `room`."""

    def __init__(self, file: Any, room: int):
        self._file, self._room, self._read = gzip.GzipFile(fileobj=file, mode="rb"), room, 0

    def _counted(self, count: int) -> None:
        self._read += count
        if self._read > self._room:
            raise LearnerError(
                f"it is longer than {size(self._room)} when it is unpacked, which is far more than this model needs; "
                "if it is what it should be, unpack it with gunzip first"
            )

    def read(self, count: int = -1) -> bytes:
        """The next bytes, all of them by default."""
        pieces: list[bytes] = []
        left = count
        while left and (piece := self._file.read(PIECE if left < 0 else min(PIECE, left))):
            self._counted(len(piece))
            pieces.append(piece)
            left -= len(piece) if left > 0 else 0
        return b"".join(pieces)

    def readinto(self, buffer: Any) -> int:
        """Fills the buffer as far as there are bytes; how many there were."""
        view, done = memoryview(buffer).cast("B"), 0
        while done < len(view) and (count := self._file.readinto(view[done : done + PIECE])):
            self._counted(count)
            done += count
        return done


def reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The pairs of an object in JSON.

    Raises:
      LearnerError: a name is there twice.
    """
    made: dict[str, Any] = {}
    for name, value in pairs:
        if name in made:
            raise LearnerError(f"it has {name!r} twice")
        made[name] = value
    return made


@contextlib.contextmanager
def readable(what: str) -> Iterator[None]:
    """Turns whatever goes wrong while a file is read into one error that names the file."""
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
    raise LearnerError(printable(f"{what} cannot be read: {reason}")) from cause
