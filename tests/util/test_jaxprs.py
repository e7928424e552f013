"""Tests of traced programs: which outputs are unchanged inputs."""

import jax
import jax.numpy as jnp

from learner.util.jaxprs import forwarded_inputs


def input_indices(function, *arguments):
    return forwarded_inputs(jax.make_jaxpr(function)(*arguments).jaxpr)


def test_forwarded_inputs_are_traced_through_calls_and_casts():
    x, y = jnp.ones(3), jnp.zeros(3)
    swap = jax.jit(lambda a, b: (b, a))
    assert input_indices(lambda x, y: (*swap(x, y), x + y, 1.0), x, y) == [1, 0, None, None]
    assert input_indices(lambda x, y: jax.checkpoint(swap)(x, y.astype(jnp.bfloat16)), x, y) == [1, 0]
    assert input_indices(lambda x, y: jax.lax.cond(x[0] > 0, lambda: (x, y), lambda: (y, x)), x, y) == [None, None]


def test_a_scan_forwards_slices_that_all_iterations_return():
    """A rematerialised body hides them from JAX, which otherwise takes them out of the loop itself."""
    same = jax.checkpoint(lambda x, y, z: (x, y, z))

    def loop(carry, slices, constant):
        def body(carry, slices):
            kept, changed = carry
            kept, held, other = same(kept, slices[0], constant)
            return (kept, changed + held.sum()), (held, other, slices[1] * 2)

        return jax.lax.scan(body, carry, slices)

    x, scalar = jnp.ones((2, 3)), jnp.ones(())
    assert input_indices(loop, (scalar, scalar), (x, x), x[0]) == [0, None, 2, None, None]
