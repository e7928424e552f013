"""The random key of a run, for optimizers that draw random numbers."""

import contextlib
import itertools
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import jax

from learner.steps.key_streams import RUN_STREAM

Array = Any

_keys: ContextVar[Iterator[Array] | None] = ContextVar("keys", default=None)


def run_key() -> Array:
    """Return a random key for the initial state of an optimizer that draws random numbers.

    Within the `init` of an optimizer it follows from the seed of the run, or of the member of a population, and each
    call returns another key. Elsewhere it is that of seed 0.

    >>> import jax.numpy as jnp, optax
    >>> def noise(params):
    ...     return run_key()
    >>> def noisy(updates, key, params=None):
    ...     key, now = jax.random.split(key)
    ...     return updates + 0.1 * jax.random.normal(now, updates.shape), key
    >>> transformation = optax.GradientTransformation(noise, noisy)
    >>> updates, _ = transformation.update(jnp.zeros(2), transformation.init(jnp.zeros(2)))
    >>> updates.shape
    (2,)
    """
    keys = _keys.get()
    return next(_from(jax.random.key(0)) if keys is None else keys)


@contextlib.contextmanager
def run_keys(rng: Array) -> Iterator[None]:
    """Make `run_key` return keys that follow from the root key of a run, inside the block."""
    token = _keys.set(_from(rng))
    try:
        yield
    finally:
        _keys.reset(token)


def _from(rng: Array) -> Iterator[Array]:
    """Yield keys. Nothing is computed before the first, as few optimizers need one."""
    stream = jax.random.fold_in(rng, RUN_STREAM)
    for number in itertools.count():
        yield jax.random.fold_in(stream, number)
