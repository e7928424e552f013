"""Arrays of an `.npz` file, read without trusting the sizes that the file claims.

`numpy.load` allocates the memory that an array's header claims, and decompresses the archive, before it reads the
content. Here both sizes are first compared with the size of the file.
"""

import dataclasses
import io
import math
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from learner.errors import LearnerError
from learner.util.machine import machine_memory

LARGEST_RATIO = 1032  # of decompressed to compressed bytes, for deflate
LONGEST_HEADER = 10_000
READERS = {1: (2, np.lib.format.read_array_header_1_0), 2: (4, np.lib.format.read_array_header_2_0)}


def read_npz(path: str | os.PathLike[str], memory: int | None = None) -> dict[str, np.ndarray]:
    """Return the arrays of an `.npz` file by name.

    Args:
      path: the path of a file written by `numpy.savez` or `numpy.savez_compressed`.
      memory: the bytes that all arrays may take together; default: the machine's memory.

    Raises:
      LearnerError: the file is missing or damaged, claims more than it contains or than there is memory for, or
        contains anything but arrays. Objects are never unpickled.

    >>> import tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "a.npz")
    >>> np.savez_compressed(path, x=np.zeros((3, 2), np.float32), y=np.arange(3))
    >>> {name: array.shape for name, array in read_npz(path).items()}
    {'x': (3, 2), 'y': (3,)}
    """
    try:
        if Path(path).exists() and not Path(path).is_file():
            raise LearnerError("it is not a regular file", code="npz-not-regular-file")  # a named pipe would block
        with zipfile.ZipFile(path) as archive:
            members = dict(members_of(archive, Path(path).stat().st_size))
            total = sum(_bytes_of(archive, info) for info in members.values())
            room = machine_memory() if memory is None else memory
            if total > room:
                raise LearnerError(
                    f"its arrays take {total} bytes, and there is memory for {room}", code="npz-too-large", total=total
                )
            return {name: _array(archive, info) for name, info in members.items()}
    except LearnerError as error:
        raise unreadable(path, error) from None
    except Exception as error:  # a damaged archive raises errors of many kinds
        raise unreadable(path, error) from error


def unreadable(path: str | os.PathLike[str], error: Exception) -> LearnerError:
    """Return the error for an `.npz` file whose arrays cannot be read. One with an empty array is not damaged."""
    if isinstance(error, LearnerError) and error.code == "npz-array-empty":
        return LearnerError(f"{path}: {error}", code="npz-unreadable", path=path)
    return LearnerError(f"{path} cannot be read as .npz: {error}", code="npz-unreadable", path=path)


def members_of(archive: zipfile.ZipFile, size: int) -> Iterator[tuple[str, zipfile.ZipInfo]]:
    """Yield the arrays of an archive by name. Raise `LearnerError` if they claim more than a file of `size` bytes."""
    seen: set[str] = set()
    packed = 0
    for info in archive.infolist():
        name = info.filename.removesuffix(".npy")
        packed += info.compress_size
        if name == info.filename or name in seen:
            raise LearnerError(
                f"it has {info.filename!r}, which is {'there twice' if name in seen else 'no array'}",
                code="npz-member-unexpected",
            )
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise LearnerError(
                f"{info.filename!r} is compressed by a method that NumPy does not use", code="npz-compression-unknown"
            )
        if packed > size or info.file_size > LARGEST_RATIO * (info.compress_size + 1):
            raise LearnerError(f"{info.filename!r} claims to hold more than the file can", code="npz-claims-too-much")
        seen.add(name)
        yield name, info


@dataclasses.dataclass(frozen=True)
class Header:
    """The header of an `.npy` file.

    Attributes:
      shape: the shape of the array.
      fortran: True if the first axis changes fastest.
      dtype: plain numbers or texts.
      start: the position of the array in the file, in bytes.
    """

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]
    start: int

    @property
    def bytes(self) -> int:
        """Return the size of the array."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_header(stream: IO[bytes], size: int, name: str) -> Header:
    """Return the header of an `.npy` file.

    Args:
      stream: the file, at its start.
      size: the size of the file in bytes, which must agree with the header.
      name: the name of the file, for messages.

    Raises:
      LearnerError: the file is not an `.npy` file, claims more or less than it contains, or has no plain numbers.
    """
    start = stream.read(8)
    if start[:6] != b"\x93NUMPY" or start[6] not in READERS:
        raise LearnerError(f"{name!r} is not an array of plain numbers", code="npz-not-numbers", name=name)
    width, read = READERS[start[6]]
    length = stream.read(width)
    header = int.from_bytes(length, "little")
    if header > LONGEST_HEADER:
        raise LearnerError(
            f"{name!r} has a header of {header} bytes; arrays of plain numbers need less",
            code="npz-header-too-large",
            name=name,
        )
    shape, fortran, dtype = read(io.BytesIO(length + stream.read(header)))
    if dtype.hasobject or dtype.itemsize == 0:
        raise LearnerError(
            f"{name!r} has the dtype {dtype}; it needs numbers (objects are not unpickled)",
            code="npz-not-numbers",
            name=name,
            dtype=dtype,
        )
    parsed = Header(shape, fortran, dtype, 8 + width + header)
    content = size - parsed.start
    if parsed.bytes != content or min(shape, default=0) < 0:
        raise LearnerError(
            f"{name!r} claims the shape {list(shape)} of {dtype}, {parsed.bytes} bytes, and has {content}",
            code="npz-size-mismatch",
            name=name,
            dtype=dtype,
        )
    if 0 in shape:
        lack = "no values" if shape[0] else "0 rows"
        raise LearnerError(f"{name!r} has {lack}: its shape is {list(shape)}", code="npz-array-empty", name=name)
    return parsed


def _bytes_of(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> int:
    """Return the memory that an array needs, which is also the size of its content in the archive."""
    with archive.open(info) as stream:
        return read_header(stream, info.file_size, info.filename).bytes


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(info) as stream:
        array: np.ndarray = np.lib.format.read_array(stream, allow_pickle=False)
    return array
