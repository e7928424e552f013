"""The dtype promotion that optax relies on."""

import contextlib
from collections.abc import Iterator

import jax


@contextlib.contextmanager
def optax_promotion() -> Iterator[None]:
    """Allow implicit promotion inside the block, even if the user has set strict promotion: optax mixes dtypes and
    ranks (`decay**count`).
    """
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield
