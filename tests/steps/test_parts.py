"""Tests of compiling programs in parts: equal layers are compiled once, with the bits of eager operations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from learner.steps.parts import call_in_parts, with_barriers
from learner.training.programs.compilation import CompileTimes


def layers(key, *, count=8, shape=(5, 3)):
    """Initialize like a deep model: a key per layer, with scaled normal draws."""
    scale = jnp.sqrt(1 / shape[0])
    normal = [jax.random.normal(jax.random.fold_in(key, i), shape) * scale for i in range(count)]
    return {"normal": normal, "uniform": jax.random.uniform(key, shape), "zeros": jnp.zeros(shape)}


def by_split(key, *, count=6):
    """Use split keys, and draws that depend on other draws."""
    keys = jax.random.split(key, count)
    first = [jax.random.normal(key, 4) for key in keys]
    return [jax.random.bernoulli(key, jax.nn.sigmoid(x)) for key, x in zip(keys, first, strict=True)], first


def raw_key(key, *, count=6):
    """Use raw uint32 keys."""
    raw = jax.random.key_data(key)
    return [jax.random.truncated_normal(jax.random.fold_in(raw, i), -1.0, 1.0, (2, 3)) for i in range(count)]


def no_draws(key):
    return jnp.arange(3.0), {"shape": jnp.float32(key.size)}


FUNCTIONS = [layers, by_split, raw_key, no_draws]


def assert_same(got, expected):
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert (x.dtype, x.weak_type) == (y.dtype, y.weak_type)
        np.testing.assert_array_equal(x, y)


@pytest.mark.full
@pytest.mark.parametrize("function", FUNCTIONS)
def test_parts_have_the_bits_of_eager_operations(function):
    key = jax.random.key(3)
    expected = function(key)
    assert_same(call_in_parts(function, [key], lambda jitted: jitted), expected)


@pytest.mark.full
def test_barriers_separate_draws_from_their_scale():
    key = jax.random.key(3)
    assert_same(jax.jit(with_barriers(layers))(key), layers(key))


def call_with_barriers(function, arguments):
    return jax.jit(with_barriers(function))(*arguments)


@pytest.mark.parametrize("call", [call_in_parts, call_with_barriers])
def test_used_keys_are_found_in_the_function_only(call):
    """The keys that a program returns to the next one, or that pass a barrier, are unused."""

    def split(key):
        keys = jax.random.split(key, 6)
        return [jax.random.normal(jax.random.fold_in(key, i), 3) for i, key in enumerate(keys)]

    def reused(key):
        return jax.random.normal(key, 3), jax.random.uniform(key, 3)

    with jax.debug_key_reuse(True):
        assert len(call(split, [jax.random.key(3)])) == 6
        with pytest.raises(jax.errors.KeyReuseError):
            call(reused, [jax.random.key(3)])


@pytest.mark.full
def test_equal_layers_are_compiled_once():
    def programs(count):
        compiled = []
        call_in_parts(
            lambda key: layers(key, count=count), [jax.random.key(0)], lambda jitted: compiled.append(1) or jitted
        )
        return len(compiled)

    # Programs for the keys, the normal draws, the uniform draw, the end, and before the keys and the draws.
    assert programs(8) == programs(30) == 6
    assert programs(4) == 1  # too few layers to split


def test_a_function_is_traced_once():
    traces = []

    def function(key):
        traces.append(key)
        return layers(key)

    call_in_parts(function, [jax.random.key(0)], lambda jitted: jitted)
    assert len(traces) == 1


def test_captured_arrays_are_arguments():
    held, seen = np.arange(6.0, dtype=np.float32), []

    def compiled(jitted):
        return lambda *inputs: seen.append([np.shape(x) for x in inputs]) or jitted(*inputs)

    result = call_in_parts(lambda x: jnp.asarray(held) + x, [jnp.float32(1)], compiled)
    np.testing.assert_array_equal(result, held + 1)
    assert seen == [[(6,), ()]]


@pytest.mark.full
def test_effects_keep_their_order():
    seen = []

    def function(key):
        for number in range(6):
            jax.experimental.io_callback(lambda number=number: seen.append(number), None, ordered=True)
            key = jax.random.fold_in(key, number)
            jax.random.normal(key, 2)
        return jax.random.normal(key, 2)

    key = jax.random.key(1)
    expected = function(key)
    assert_same(call_in_parts(function, [key], lambda jitted: jitted), expected)
    assert_same(jax.jit(with_barriers(function))(key), expected)
    jax.effects_barrier()
    assert seen == [*range(6)] * 3


@pytest.mark.parametrize("function", [lambda x: x, lambda x: [x, x]])
def test_a_function_without_operations(function):
    x = jnp.arange(3.0)
    assert_same(call_in_parts(function, [x], lambda jitted: jitted), function(x))
    assert_same(jax.jit(with_barriers(function))(x), function(x))


@pytest.mark.full
def test_a_second_model_with_equal_layers_compiles_no_draws():
    from learner.util import executables

    executables.clear()
    compiled = lambda jitted: executables.share(jitted, jax.devices()[:1])  # noqa: E731
    call_in_parts(lambda key: layers(key, count=8), [jax.random.key(0)], compiled)
    with CompileTimes() as times:
        call_in_parts(lambda key: layers(key, count=9), [jax.random.key(0)], compiled)
    assert times.count <= 1  # the program of the results
