"""Tests of placing the arrays of a population's members on several devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from learner.strategies.members import Members
from learner.training.programs.compilation import CompileTimes


@pytest.mark.full
def test_members_are_split_by_copying_without_compiling():
    """Placing compiles no program per shape, and copies, because steps donate the placed arrays."""
    strategy, arrays = Members(jax.devices()[:4]), [jnp.arange(float(8 * n)).reshape(8, n) for n in range(1, 20)]
    expected = [np.array(x) for x in arrays]
    jax.block_until_ready(arrays)
    with CompileTimes() as compiled:
        placed = strategy.place_members(arrays)
    assert compiled.count == 0
    change = strategy.compile(lambda xs: [x + 1 for x in xs], ("state",), "state", (0,))
    for x, y, new in zip(arrays, expected, change(placed), strict=True):
        assert [shard.data.shape[0] for shard in new.addressable_shards] == [2] * 4
        np.testing.assert_array_equal(new, y + 1)
        np.testing.assert_array_equal(x, y)
    keys = strategy.place_members(jax.random.split(jax.random.key(0), 8))
    np.testing.assert_array_equal(*map(jax.random.key_data, (keys, jax.random.split(jax.random.key(0), 8))))
