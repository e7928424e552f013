"""Which rows of an output count."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from learner.errors import LearnerError
from learner.metrics.base import Array, rows_mask


def kept_rows(name: str, output: Any, shape: Sequence[int]) -> Array:
    """Which values count: bool of `shape`, from the output's mask over its leading axes (no mask: all of them).

    Raises:
      LearnerError: if the mask does not fit; `name` says which metric found it.

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
        raise LearnerError(f"{name} got a mask of shape {mask.shape}; it needs {shape}, or the first of these axes")
    return jnp.broadcast_to(mask.astype(bool).reshape(mask.shape + (1,) * (len(shape) - mask.ndim)), shape)
