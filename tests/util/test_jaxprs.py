"""Traced programs: which outputs are inputs."""

import jax
import jax.numpy as jnp

from learner.util.jaxprs import forwarded_inputs


def sources(function, *arguments):
    return forwarded_inputs(jax.make_jaxpr(function)(*arguments).jaxpr)


def test_outputs_that_are_inputs_are_known_through_calls_and_casts():
    x, y = jnp.ones(3), jnp.zeros(3)
    swap = jax.jit(lambda a, b: (b, a))
    assert sources(lambda x, y: (*swap(x, y), x + y, 1.0), x, y) == [1, 0, None, None]
    assert sources(lambda x, y: jax.checkpoint(swap)(x, y.astype(jnp.bfloat16)), x, y) == [1, 0]
    assert sources(lambda x, y: jax.lax.cond(x[0] > 0, lambda: (x, y), lambda: (y, x)), x, y) == [None, None]
