"""Settings of JAX that code of the user's may have around a run, and that a run does without."""

import contextlib
from collections.abc import Iterator

import jax


@contextlib.contextmanager
def own_context() -> Iterator[None]:
    """Return a context for what a run computes. `jax.set_mesh` has set no mesh in it: with one, JAX refuses arrays on
    other devices, such as a copy of a replicated array on one of them. And transfers are allowed: a run moves batches,
    and numbers such as the length of a dispatch, which `jax.transfer_guard("disallow")` forbids.

    >>> with jax.transfer_guard("disallow"), own_context():
    ...     jax.sharding.get_abstract_mesh().empty, float(jax.numpy.ones(()))
    (True, 1.0)
    """
    is_set = not jax.sharding.get_abstract_mesh().empty
    with jax.transfer_guard("allow"), jax.set_mesh(None) if is_set else contextlib.nullcontext():
        yield
