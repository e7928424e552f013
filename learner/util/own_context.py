"""Contexts without JAX settings that the user's code may have set around a run."""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
from jax.sharding import AxisType, Mesh

WAYS = ("host_to_device", "device_to_device", "device_to_host")


@contextlib.contextmanager
def own_context() -> Iterator[None]:
    """Return a context, or a decorator, for the computations of a run. It clears the mesh of `jax.set_mesh`: with a
    mesh, JAX refuses arrays on other devices, such as a copy of a replicated array on one device. It allows transfers,
    which `jax.transfer_guard("disallow")` forbids: a run moves batches, and numbers such as the length of a dispatch.

    >>> with jax.transfer_guard("disallow"), own_context():
    ...     jax.sharding.get_abstract_mesh().empty, float(jax.numpy.ones(()))
    (True, 1.0)
    """
    with allow_transfers(), jax.set_mesh(None) if _mesh() is not None else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def allow_transfers() -> Iterator[None]:
    """Return a context, or a decorator, that allows transfers; see `own_context`. Without a guard it takes 2 µs."""
    config: Any = jax.config  # its type lacks the settings
    guards = [getattr(config, f"jax_transfer_guard_{way}") for way in WAYS]
    with jax.transfer_guard("allow") if any(guards) else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def automatic_mesh() -> Iterator[None]:
    """Return a context, or a decorator, for calls of functions that make models, and for single steps. It keeps the
    mesh of `jax.set_mesh`, which flax needs for annotated parameters, with axes of the type `Auto`: explicit ones would
    become a part of the arrays' types.
    """
    mesh = _mesh()
    with contextlib.nullcontext() if mesh is None else jax.set_mesh(automatic(mesh)):
        yield


def automatic(mesh: Mesh) -> Mesh:
    """Return the mesh with axes of the type `Auto`: with explicit ones, ordinary models cannot be traced."""
    if set(mesh.axis_types) == {AxisType.Auto}:
        return mesh
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))


def _mesh() -> Mesh | None:
    """Return the mesh that is set, or None without one, and where JAX traces the caller, so that it cannot change."""
    if jax.sharding.get_abstract_mesh().empty:
        return None
    try:
        return jax.sharding.get_mesh()
    except ValueError:
        return None
