"""Arrays in their stored form."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from learner.errors import LearnerError
from learner.util.trees import is_key

Buffer = Any  # bytes, or a memoryview

DTYPES = {
    np.dtype(kind).name: np.dtype(kind)
    for kind in (
        *(jnp.float64, jnp.float32, jnp.float16, jnp.bfloat16, jnp.float8_e4m3fn, jnp.float8_e5m2),
        *(jnp.int8, jnp.int16, jnp.int32, jnp.int64, jnp.uint8, jnp.uint16, jnp.uint32, jnp.uint64),
        *(jnp.bool_, jnp.complex64, jnp.complex128),
    )
}
"""The dtypes of arrays in files, by name. Random keys are `key<...>` and are stored as uint32."""

MOST_DIMS = 32


@dataclasses.dataclass(frozen=True)
class Stored:
    """An array in its stored form.

    Attributes:
      dtype: one of `DTYPES`, or `key<...>`.
      data: the numbers, on the host; for random keys uint32, with one more axis.
    """

    dtype: str
    data: np.ndarray

    @property
    def is_key(self) -> bool:
        """True for random keys."""
        return self.dtype.startswith("key<")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape in the model."""
        return self.data.shape[:-1] if self.is_key else self.data.shape

    @property
    def bytes(self) -> Buffer:
        """The numbers in row-major order, little-endian."""
        return np.ascontiguousarray(self.data).reshape(-1).view(np.uint8).data


def dtype_name(leaf: Any) -> str:
    """Return the name of a dtype: `float32`, or `key<fry>` for random keys."""
    return str(leaf.dtype) if is_key(leaf) else np.dtype(leaf.dtype).name


def stored_of(path: str, leaf: Any) -> Stored:
    """Copy an array of a model to the host, in its own dtype.

    Raises:
      LearnerError: it is a shape, is on other processes' devices, or cannot be stored.
    """
    name = dtype_name(leaf)
    if isinstance(leaf, jax.ShapeDtypeStruct):
        raise LearnerError(
            f"{path} is only a shape ({name}{list(leaf.shape)}), and cannot be saved",
            code="record-model-only-shapes",
            path=path,
            name=name,
        )
    if isinstance(leaf, jax.Array) and not (leaf.is_fully_addressable or leaf.is_fully_replicated):
        raise LearnerError(
            f"{path} is sharded over the devices of several processes, and one process cannot save it; load a "
            "checkpoint of the run in one process and save the model there",
            code="record-array-distributed",
            path=path,
        )
    if is_key(leaf):
        return Stored(name, np.asarray(jax.random.key_data(leaf)))
    if name not in DTYPES:
        raise LearnerError(
            f"{path} is an array of {name}, which cannot be stored; available: {', '.join(DTYPES)}",
            code="record-dtype-unsupported",
            path=path,
            name=name,
        )
    return Stored(name, np.asarray(leaf, DTYPES[name]))  # the byte order may be another machine's


def stored_from(path: str, dtype: Any, shape: Any, data: Buffer) -> Stored:
    """Return an array of a file; its size is checked before memory is allocated.

    Raises:
      LearnerError: the dtype or shape is invalid, or the number of bytes does not match.
    """
    kind, shape = check_claim(path, dtype, shape, len(data))
    return checked(path, dtype, np.frombuffer(data, kind).reshape(shape))


def dtype_of(path: str, dtype: Any) -> np.dtype:
    """Return the NumPy dtype that a file names; random keys are uint32."""
    key = isinstance(dtype, str) and dtype.startswith("key<")
    kind = np.dtype(np.uint32) if key else DTYPES.get(dtype) if isinstance(dtype, str) else None
    if kind is None:
        raise LearnerError(
            f"{path!r} has the unknown dtype {dtype!r}", code="record-dtype-unknown", path=path, dtype=dtype
        )
    return kind


def check_claim(path: str, dtype: Any, shape: Any, size: int) -> tuple[np.dtype, tuple[int, ...]]:
    """Return the NumPy dtype and the shape of an array that, according to the file, has `size` bytes."""
    kind, key = dtype_of(path, dtype), dtype.startswith("key<")
    is_shape = isinstance(shape, list | tuple) and all(type(n) is int and 0 <= n < 2**62 for n in shape)
    if not is_shape or len(shape) > MOST_DIMS or (key and not shape):
        raise LearnerError(
            f"{path!r} has the shape {shape!r}, which is invalid", code="record-shape-malformed", path=path, shape=shape
        )
    if math.prod(shape) * kind.itemsize != size:
        raise LearnerError(
            f"{path!r} is {dtype}{list(shape)} and has {size} bytes",
            code="record-size-mismatch",
            path=path,
            dtype=dtype,
            size=size,
        )
    if math.prod(n for n in shape if n) >= 2**62:
        raise LearnerError(
            f"{path!r} has the shape {shape!r}, which no array has",
            code="record-shape-malformed",
            path=path,
            shape=shape,
        )
    return kind, tuple(shape)


def checked(path: str, dtype: str, data: np.ndarray) -> Stored:
    """Return an array that was read, after checking that booleans are 0 or 1."""
    if data.dtype == np.bool_ and data.size and data.view(np.uint8).max() > 1:
        raise LearnerError(f"{path!r} has booleans that are neither 0 nor 1", code="record-bool-value", path=path)
    return Stored(dtype, data)
