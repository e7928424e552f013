"""PNG files, written with the standard library only, and pictures of matrices."""

import struct
import zlib

import numpy as np

from learner.errors import LearnerError

SIGNATURE = b"\x89PNG\r\n\x1a\n"
GREY, RGB = 0, 2
PIXELS, MOST_PIXELS = 384, 1024  # the side of a picture of a small matrix, and of a large one


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


def matrix_picture(row: np.ndarray, column: np.ndarray, share: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Return a matrix of shares as a picture, uint8 `[height, width]`: 0 is white, and 1 black. Each cell is a square;
    those of a large matrix share pixels, each of which shows the darkest.

    Args:
      row: the rows of the cells that are not 0, int64 `[cells]`.
      column: their columns.
      share: their values, from 0 to 1.
      size: the numbers of rows and columns.

    >>> picture = matrix_picture(np.array([0, 0]), np.array([0, 1]), np.array([0.75, 0.25]), (2, 2))
    >>> picture.shape, picture[::192, ::192].tolist()
    ((384, 384), [[64, 191], [255, 255]])
    """
    longest = max(size)
    together = -(-longest // MOST_PIXELS)
    shares = np.zeros([-(-side // together) for side in size])
    np.maximum.at(shares, (row // together, column // together), share)
    cell = max(1, min(max(4, PIXELS // longest), MOST_PIXELS // longest))
    greys: np.ndarray = np.rint(255 * (1 - shares)).astype(np.uint8)
    return greys.repeat(cell, 0).repeat(cell, 1)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
