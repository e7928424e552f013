"""Pytrees as leaves by path."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

PyTree = Any


def named_leaves(tree: PyTree) -> dict[str, Any]:
    """Return the leaves of a tree by their paths, in order.

    >>> named_leaves({"layers": [{"kernel": 1}, {"kernel": 2}]})
    {'layers.0.kernel': 1, 'layers.1.kernel': 2}
    """
    return {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def path_name(path: tuple[Any, ...]) -> str:
    """Return a JAX path in readable form: `layers.0.kernel`."""
    return jax.tree_util.keystr(path, simple=True, separator=".")


def layer_of(name: str) -> str:
    """Return the name of the layer that holds an array. Names of arrays of nnx modules in other trees end in `.value`.

    >>> layer_of("layers.0.kernel"), layer_of("net.norm.scale.value")
    ('layers.0', 'net.norm')
    """
    return name.removesuffix(".value").rpartition(".")[0]


def gathered(x: Any) -> np.ndarray:
    """Return an array in the memory of the host. For one that is sharded over several processes, all of them must call
    this, and each gets all of it.

    >>> gathered(jnp.arange(3))
    array([0, 1, 2], dtype=int32)
    """
    if isinstance(x, jax.Array) and not (x.is_fully_addressable or x.is_fully_replicated):
        from jax.experimental import multihost_utils

        x = multihost_utils.process_allgather(x, tiled=True)
    return np.asarray(x)


def is_key(leaf: Any) -> bool:
    """Return True for random keys, and for shapes of them."""
    return bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def key_impl(keys: Any) -> Any:
    """Return the implementation of random keys, or of their shapes."""
    implementations: list[Any] = []
    jax.eval_shape(lambda keys: implementations.append(jax.random.key_impl(keys)), keys)
    return implementations[0]


def nonfinite_leaves(tree: PyTree) -> list[str]:
    """Return the paths of leaves with a NaN or an infinity. Shapes without values have none."""
    arrays = {name: x for name, x in named_leaves(tree).items() if not isinstance(x, jax.ShapeDtypeStruct)}
    inexact = {name: x for name, x in arrays.items() if jnp.issubdtype(x.dtype, jnp.inexact)}
    remote = {name: x for name, x in inexact.items() if not getattr(x, "is_fully_addressable", True)}
    finite = dict(_finite(remote)) if remote else {}  # all processes compute it together
    parts: dict[Any, dict[str, Any]] = {}
    for name, x in inexact.items():
        finite.setdefault(name, True)
        for index, (device, part) in enumerate(_parts(x) if name not in remote else ()):
            parts.setdefault(device, {})[f"{index}/{name}"] = part
    for device, of_device in parts.items():
        # Each device separately, as threads that compute on several devices at once would wait for each other.
        known = _finite(of_device) if device is not None else {k: np.isfinite(x).all() for k, x in of_device.items()}
        for key, is_finite in known.items():
            finite[key.partition("/")[2]] &= bool(is_finite)
    return [name for name in inexact if not finite[name]]


def _parts(x: Any) -> list[tuple[Any, Any]]:
    """Return the parts of an array, each once, after their devices, or after None for parts in the host's memory."""
    if not isinstance(x, jax.Array):
        return [(None, np.asarray(x))]
    shards: list[Any] = [shard for shard in x.addressable_shards if shard.replica_id == 0]
    return [(None, np.asarray(s.data)) if s.device.platform == "cpu" else (s.device, s.data) for s in shards]


def nonfinite_rows(arrays: PyTree) -> dict[str, list[int]]:
    """Return the numbers of the rows with a NaN or an infinity, by the path of each array that has some.

    >>> nonfinite_rows({"x": np.array([[0.0, 1.0], [np.nan, np.inf], [2.0, 3.0]]), "y": np.arange(3)})
    {'x': [1]}
    """
    found = {}
    for name, x in named_leaves(arrays).items():
        if jnp.issubdtype(x.dtype, jnp.inexact):
            finite = np.isfinite(np.asarray(x))
            found[name] = np.flatnonzero(~finite.all(axis=tuple(range(1, finite.ndim)))).tolist()
    return {name: rows for name, rows in found.items() if rows}


def integer_ranges(arrays: PyTree) -> dict[str, tuple[int, int]]:
    """Return the minimum and maximum of each integer array, by path.

    >>> integer_ranges({"x": np.float32([1]), "text": np.array([[3, 64], [0, 7]])})
    {'text': (0, 64)}
    """
    integers = {name: x for name, x in named_leaves(arrays).items() if jnp.issubdtype(x.dtype, jnp.integer)}
    return {name: (int(x.min()), int(x.max())) for name, x in integers.items()}


@jax.jit
def _finite(arrays: dict[str, Any]) -> dict[str, Any]:
    return {name: jnp.isfinite(x).all() for name, x in arrays.items()}
