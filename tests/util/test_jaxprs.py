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
