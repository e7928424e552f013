"""Contexts without JAX settings that the user's code may have set around a run."""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding


@contextlib.contextmanager
def own_context() -> Iterator[None]:
    """Return a context, or a decorator, for the computations of a run. It clears the mesh of `jax.set_mesh`: with a
    mesh, JAX refuses arrays on other devices, such as a copy of a replicated array on one device. It allows transfers,
    which `jax.transfer_guard("disallow")` forbids: a run moves batches, and numbers such as the length of a dispatch.

    >>> with jax.transfer_guard("disallow"), own_context():
    ...     jax.sharding.get_abstract_mesh().empty, float(jax.numpy.ones(()))
    (True, 1.0)
    """
    with jax.transfer_guard("allow"), jax.set_mesh(None) if _has_mesh() else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def context_of_models() -> Iterator[None]:
    """Return a context, or a decorator, for calls of functions that make models. It keeps the mesh of `jax.set_mesh`,
    which flax needs for annotated parameters, with axes of the type `Auto`: explicit ones would become a part of the
    arrays' types.
    """
    with jax.set_mesh(automatic(jax.sharding.get_mesh())) if _has_mesh() else contextlib.nullcontext():
        yield


def automatic(mesh: Mesh) -> Mesh:
    """Return the mesh with axes of the type `Auto`: with explicit ones, ordinary models cannot be traced."""
    if set(mesh.axis_types) == {AxisType.Auto}:
        return mesh
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))


def with_automatic_axes(tree: Any) -> Any:
    """Return the pytree with arrays whose mesh has axes of the type `Auto`."""

    def automatic_array(x: Any) -> Any:
        sharding = getattr(x, "sharding", None)
        if not isinstance(sharding, NamedSharding) or not isinstance(sharding.mesh, Mesh):
            return x
        mesh = automatic(sharding.mesh)
        return x if mesh is sharding.mesh else jax.device_put(x, NamedSharding(mesh, sharding.spec))

    return jax.tree.map(automatic_array, tree)


def _has_mesh() -> bool:
    """Return True if a mesh is set that can be changed, as JAX is not tracing the caller."""
    return not jax.sharding.get_abstract_mesh().empty and not isinstance(jnp.zeros(()), jax.core.Tracer)
