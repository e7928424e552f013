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


def test_a_loop_hands_on_what_it_does_not_change():
    def layer(carry, slices):
        fixed, moving = carry
        return (fixed, moving + slices[0].sum()), (slices[0], slices[1] * 2)

    x = jnp.ones((4, 3))
    outputs = sources(lambda a, b, x, y: jax.lax.scan(layer, (a, b), (x, y)), jnp.ones(2), jnp.float32(0), x, x)
    assert outputs == [0, None, 2, None]
    swapped = sources(lambda a, b: jax.lax.scan(lambda c, _: ((c[1], c[0]), None), (a, b), length=3)[0], x, x)
    assert swapped == [None, None]
    repeated = sources(lambda a, x: jax.lax.scan(lambda c, s: (c, a), 0.0, x)[1], x, x)
    assert repeated == [None]
