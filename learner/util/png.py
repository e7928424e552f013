"""PNG files, written with the standard library only."""

import struct
import zlib

import numpy as np

from learner.errors import LearnerError

SIGNATURE = b"\x89PNG\r\n\x1a\n"
GREY, RGB = 0, 2


def png(picture: np.ndarray) -> bytes:
    """Return a picture as a lossless PNG file (ISO/IEC 15948).

    Args:
      picture: uint8 `[height, width]` in greys, or `[height, width, 3]` in red, green and blue.

    Raises:
      LearnerError: the array has another shape or dtype.

    >>> png(np.zeros((2, 3), np.uint8))[:8]
    b'\\x89PNG\\r\\n\\x1a\\n'
    """
    array = pixels(picture)
    height, width = array.shape[:2]
    header = struct.pack(">IIBBBBB", width, height, 8, GREY if array.ndim == 2 else RGB, 0, 0, 0)
    unfiltered = b"".join(b"\0" + row.tobytes() for row in array)
    return SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(unfiltered)) + _chunk(b"IEND", b"")


def pixels(picture: np.ndarray) -> np.ndarray:
    """Return the picture if it is valid: uint8 `[height, width]` or `[height, width, 3]`.

    Raises:
      LearnerError: the array has another shape or dtype.
    """
    array = np.asarray(picture)
    if array.dtype != np.uint8 or array.shape[2:] not in ((), (3,)) or array.ndim < 2 or 0 in array.shape:
        raise LearnerError(
            f"a picture is {array.dtype}{list(array.shape)}; it needs uint8 [height, width] or [height, width, 3]",
            code="logger-picture-shape",
        )
    return array


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
