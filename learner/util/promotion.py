"""The dtype promotion that other libraries rely on."""

import contextlib
from collections.abc import Iterator

import jax


@contextlib.contextmanager
def standard_promotion() -> Iterator[None]:
    """Allow implicit promotion inside the block, even if the user has set strict promotion: other libraries mix dtypes
    and ranks, as optax in `decay**count`.
    """
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield
