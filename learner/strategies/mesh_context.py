"""The mesh of `jax.set_mesh`, which a run does without: its arrays lie where its strategy says."""

import contextlib
from contextlib import AbstractContextManager
from typing import Any

import jax


def without_mesh() -> AbstractContextManager[Any]:
    """Return a context in which `jax.set_mesh` has set no mesh. With one, JAX refuses arrays on other devices, such as
    a copy of a replicated array on one of them.

    >>> with without_mesh():
    ...     jax.sharding.get_abstract_mesh().empty
    True
    """
    is_set = not jax.sharding.get_abstract_mesh().empty
    return jax.set_mesh(None) if is_set else contextlib.nullcontext()
