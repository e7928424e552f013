import jax
import jax.numpy as jnp
import pytest


@pytest.fixture
def rates():
    """Return a function that traces a schedule at some steps and checks that its rates are strongly typed float32."""

    def evaluate(schedule, steps):
        values = jax.jit(jax.vmap(schedule))(jnp.asarray(steps, jnp.int32))
        assert values.dtype == jnp.float32
        assert not values.weak_type
        return values.tolist()

    return evaluate
