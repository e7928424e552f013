"""The rows of an output: masks of the rows that count, and the dtypes of computations in metrics."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from learner.errors import LearnerError
from learner.metrics.base import Array, rows_mask


def kept_rows(name: str, output: Any, shape: Sequence[int]) -> Array:
    """Return the mask of the values that count: bool of `shape`, from the output's mask over the leading axes. Without
    a mask, all values count.

    Raises:
      LearnerError: the mask does not fit; `name` is the metric's name in the message.

    >>> from learner.steps.outputs import RegressionOutput
    >>> out = RegressionOutput.from_predictions(jnp.ones((2, 3)), jnp.ones((2, 3)), mask=jnp.array([1, 0]))
    >>> kept_rows("Mine", out, (2, 3)).tolist()
    [[True, True, True], [False, False, False]]
    """
    shape = tuple(shape)
    mask = rows_mask(output)
    if mask is None:
        return jnp.ones(shape, bool)
    if mask.shape != shape[: mask.ndim]:
        raise LearnerError(
            f"{name} got a mask of shape {mask.shape}; it needs {shape}, or the first of these axes",
            code="metric-mask-shape",
            name=name,
            shape=shape,
        )
    return jnp.broadcast_to(mask.astype(bool).reshape(mask.shape + (1,) * (len(shape) - mask.ndim)), shape)


def combine_masks(a: Array, b: Array) -> Array | None:
    """Return the bool mask of the values that both masks keep; None if the masks do not fit. One of them may have only
    some of the first axes.

    >>> combine_masks(jnp.array([True, False]), jnp.array([[True, False], [True, True]])).tolist()
    [[True, False], [False, False]]
    """
    if a.shape != b.shape[: a.ndim] and b.shape != a.shape[: b.ndim]:
        return None
    axes = max(a.ndim, b.ndim)
    a, b = (x.reshape(x.shape + (1,) * (axes - x.ndim)) for x in (a, b))
    shape = np.broadcast_shapes(a.shape, b.shape)
    return jnp.broadcast_to(a, shape) & jnp.broadcast_to(b, shape)


class MaskedOutput:
    """An output with another mask."""

    def __init__(self, output: Any, mask: Array) -> None:
        self._output, self.mask = output, mask

    def __getattr__(self, name: str) -> Any:
        return getattr(self._output, name)


def wide(*arrays: Array) -> list[Array]:
    """Return the arrays in the dtype for differences and ranks: float64 if one of them has 64 bits, which requires
    `jax_enable_x64`, else float32.

    >>> [x.dtype.name for x in wide(jnp.bfloat16(0.1), jnp.int32(1))]
    ['float32', 'float32']
    """
    dtype = jnp.float64 if any(x.dtype in (jnp.float64, jnp.int64, jnp.uint64) for x in arrays) else jnp.float32
    return [x.astype(dtype) for x in arrays]


def as_int32(labels: Array) -> Array:
    """Cast labels to int32 with saturation: they must not wrap to an ignored label.

    >>> import numpy as np
    >>> as_int32(jnp.array(np.uint32([3, 4294967196])))
    Array([         3, 2147483647], dtype=int32)
    """
    if jnp.issubdtype(labels.dtype, jnp.integer) and not jnp.can_cast(labels.dtype, jnp.int32):
        lowest = 0 if jnp.issubdtype(labels.dtype, jnp.unsignedinteger) else -(2**31)
        labels = jnp.clip(labels, jnp.asarray(lowest, labels.dtype), jnp.asarray(2**31 - 1, labels.dtype))
    return labels.astype(jnp.int32)
