import jax
import jax.numpy as jnp
import pytest


@pytest.fixture
def rates():
    """The rates of a schedule at some steps, traced under strict promotion: all of them float32 with a strong type."""

    def at(schedule, steps):
        found = jax.jit(jax.vmap(schedule))(jnp.asarray(steps, jnp.int32))
        assert found.dtype == jnp.float32
        assert not found.weak_type
        return found.tolist()

    return at
