"""A context without JAX settings that the user's code may have set around a run."""

import contextlib
from collections.abc import Iterator

import jax


@contextlib.contextmanager
def own_context() -> Iterator[None]:
    """Return a context for the computations of a run. It clears the mesh of `jax.set_mesh`: with a mesh, JAX refuses
    arrays on other devices, such as a copy of a replicated array on one device. It allows transfers, which
    `jax.transfer_guard("disallow")` forbids: a run moves batches, and numbers such as the length of a dispatch.

    >>> with jax.transfer_guard("disallow"), own_context():
    ...     jax.sharding.get_abstract_mesh().empty, float(jax.numpy.ones(()))
    (True, 1.0)
    """
    is_set = not jax.sharding.get_abstract_mesh().empty
    with jax.transfer_guard("allow"), jax.set_mesh(None) if is_set else contextlib.nullcontext():
        yield
