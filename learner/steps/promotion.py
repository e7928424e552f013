"""The promotion of dtypes that optax relies on."""

import contextlib
from collections.abc import Iterator

import jax


@contextlib.contextmanager
def optax_promotion() -> Iterator[None]:
    """Allow implicit promotion for a while: optax mixes dtypes and ranks (`decay**count`), also for users who run their
    own code under strict promotion.
    """
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield
