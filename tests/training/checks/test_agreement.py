"""The description of a run that its processes compare."""

import jax
import jax.numpy as jnp
import numpy as np

from learner.training.checks.agreement import digest


def test_the_digest_of_arrays_covers_each_value():
    """Random keys, too, and halves; the dtype is compared elsewhere."""
    trees = [
        {"w": jnp.ones(2), "key": jax.random.key(0)},
        {"w": jnp.ones(2).at[1].set(2), "key": jax.random.key(0)},
        {"w": jnp.ones(2), "key": jax.random.key(1)},
        {"w": jnp.ones(2, jnp.bfloat16), "key": jax.random.key(0)},
    ]
    assert len({digest(tree) for tree in trees}) == 4
    assert digest(trees[0]) == digest({"w": np.ones(2, np.float32), "key": jax.random.key(0)})


def test_the_digest_covers_numbers_of_python():
    """nnx.Variable(0.5) holds one."""
    assert digest({"w": 0.5}) == digest({"w": 0.5}) != digest({"w": 0.25})
