"""Tests of leaves of trees by path."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from learner.util.trees import nonfinite_leaves


@pytest.mark.parametrize("spec", [PartitionSpec("d"), PartitionSpec(None, "d"), PartitionSpec()])
@pytest.mark.parametrize("place", [(0, 0), (7, 15), None])
def test_nonfinite_values_are_detected_on_any_device(spec, place):
    mesh = jax.make_mesh((8,), ("d",), (AxisType.Auto,))
    x = np.ones((8, 16), np.float32)
    if place is not None:
        x[place] = np.inf
    tree = {"x": jax.device_put(x, NamedSharding(mesh, spec)), "one": jnp.ones(3), "n": np.arange(3), "k": np.ones(2)}
    assert nonfinite_leaves(tree) == (["x"] if place is not None else [])
    assert nonfinite_leaves({"y": np.array([np.nan]), "z": jax.ShapeDtypeStruct((2,), jnp.float32)}) == ["y"]


def test_nonfinite_leaves_are_named():
    tree = {
        "a": {"nan": np.array([1.0, np.nan]), "fine": jnp.ones(2)},
        "b": [jnp.array(jnp.inf), jnp.array(-jnp.inf, jnp.bfloat16), jnp.array([1, 2])],
        "c": np.array(1e308),
        "d": jnp.array([jnp.nan * 1j], jnp.complex64),
        "e": np.zeros((0, 3)),
    }
    assert nonfinite_leaves(tree) == ["a.nan", "b.0", "b.1", "d"]
    assert nonfinite_leaves({}) == []
