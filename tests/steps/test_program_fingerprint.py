"""Tests of program fingerprints: equal for equal functions in any process, different for different functions."""

import collections
import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from learner.steps import program_fingerprint
from learner.steps.program_fingerprint import jaxpr_fingerprint
from tests.support import traced_steps

SUPPORT = Path(traced_steps.__file__).parent
X = jnp.ones((4, 3))


def of(fn, *given):
    return jaxpr_fingerprint(jax.make_jaxpr(fn)(*(given or (X,))))


@functools.cache
def fingerprint_of(name):
    return traced_steps.PROGRAMS[name]()


FEW = ["nnx", "equinox_state", "dict", "warmup", "dropout 0.4"]
few_and_all = pytest.mark.parametrize(
    "names",
    [pytest.param(FEW, id="few"), pytest.param(list(traced_steps.PROGRAMS), id="all", marks=pytest.mark.full)],
)


@pytest.mark.full
@few_and_all
def test_another_process_computes_equal_fingerprints(tmp_path, names):
    """The process has another directory and another hash seed."""
    environment = os.environ | {"PYTHONHASHSEED": "31337", "PYTHONPATH": str(SUPPORT.parents[1])}
    command = [sys.executable, str(SUPPORT / "traced_steps.py"), *names]
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as process:
        expected = {name: fingerprint_of(name) for name in names}
        assert json.loads(process.communicate(timeout=300)[0]) == expected


@pytest.mark.full
@few_and_all
def test_every_change_to_a_step_changes_its_fingerprint(names):
    counts = collections.Counter(map(fingerprint_of, names))
    assert [name for name in names if counts[fingerprint_of(name)] > 1] == []
    assert {len(text) for text in counts} == {64}


def test_constants_count_by_their_values():
    table = np.arange(1000.0, dtype=np.float32)
    other = table.copy()
    other[777] += 1
    fingerprints = [of(lambda x, t=t: x.sum() + jnp.asarray(t).sum()) for t in (table, table.copy(), other)]
    assert fingerprints[0] == fingerprints[1] != fingerprints[2]
    assert of(lambda x: x + 0.0) != of(lambda x: x + -0.0)
    assert of(lambda x: x + jnp.float32([1, 2, 3])[None]) != of(lambda x: x + jnp.float32([1, 2, 4])[None])


def test_what_leads_to_no_output_counts_only_on_request():
    def program(*unused):
        def fn(x):
            for value in unused:
                jnp.sin(x).at[0].add(jnp.asarray(value))
            return 2 * x

        return jax.make_jaxpr(fn)(X)

    tables = np.zeros(3, np.float32), np.ones(3, np.float32)
    programs = [program(), *map(program, tables), program(*tables)]
    assert len({jaxpr_fingerprint(each) for each in programs}) == 1
    assert len({jaxpr_fingerprint(each, unused=True) for each in programs}) == 4


def test_inner_programs_count():
    def scanned(factor, length=3):
        return lambda x: jax.lax.scan(lambda c, _: (c * factor, None), x, None, length=length)[0]

    def either(factor):
        return lambda x: jax.lax.cond(x.sum() > 0, lambda: x * factor, lambda: x)

    functions = [scanned(2.0), scanned(3.0), scanned(2.0, 4), either(2.0), either(3.0)]
    functions += [jax.jit(lambda x: x * 2), jax.jit(lambda x: x * 3), jax.checkpoint(lambda x: jnp.sin(x) * 2)]
    assert len({of(fn) for fn in functions}) == len(functions)
    assert [of(fn) for fn in functions] == [of(fn) for fn in functions]


def test_order_and_arguments_count():
    two = X, 2 * X
    assert len({of(lambda a, b: a - b, *two), of(lambda a, b: b - a, *two), of(lambda a, b: a - a, *two)}) == 3
    assert of(lambda a, b: (a, b), *two) != of(lambda a, b: (b, a), *two)


def test_a_jitted_function_may_be_renamed():
    def one(x):
        return x * 2

    def two(x):
        return x * 2

    assert of(jax.jit(one)) == of(jax.jit(two))


def test_random_numbers_count_by_their_generator():
    def noise(x, key):
        return x + jax.random.normal(key, x.shape)

    fingerprints = [of(noise, X, jax.random.key(0, impl=impl)) for impl in ("threefry2x32", "rbg", "threefry2x32")]
    assert fingerprints[0] == fingerprints[2] != fingerprints[1]
    with jax.threefry_partitionable(False):
        assert of(noise, X, jax.random.key(0)) != fingerprints[0]
    keys = [jax.random.key(seed) for seed in (1, 1, 2)]
    closed = [of(lambda x, key=key: x + jax.random.normal(key, x.shape)) for key in keys]
    assert closed[0] == closed[1] != closed[2]


def test_host_functions_count_by_their_names_not_their_addresses():
    shape = jax.ShapeDtypeStruct(X.shape, X.dtype)

    def calling(name):
        def host(x):
            return x

        host.__qualname__ = name
        return lambda x: jax.pure_callback(host, shape, x)

    assert of(calling("first")) == of(calling("first")) != of(calling("second"))


def test_differentiation_rules_contain_no_addresses():
    def program():
        @jax.custom_vjp
        def f(x):
            return jnp.sin(x)

        f.defvjp(lambda x: (f(x), x), lambda x, g: (g * x,))
        return lambda x: f(x) + jax.nn.relu(x)

    assert of(program()) == of(program())
    assert of(lambda x: jax.grad(lambda x: program()(x).sum())(x)) == of(
        lambda x: jax.grad(lambda x: program()(x).sum())(x)
    )


def test_constants_of_small_dtypes_count():
    x = jnp.ones(3, jnp.bfloat16)
    assert of(lambda x: x * jnp.bfloat16(0.5), x) != of(lambda x: x * jnp.bfloat16(0.25), x)
    assert of(lambda x: x + jnp.int32(5), jnp.arange(3)) != of(lambda x: x + jnp.int32(6), jnp.arange(3))
    assert of(lambda x: x, X) != of(lambda x: x, x)


def test_numpy_types_and_objects_contain_no_addresses():
    canonical = program_fingerprint._Canonical()
    assert canonical.value(np.float32) == "float32"
    assert canonical.value(np.array([object()])) == "object(1,)"


def test_a_sharding_counts_by_its_axes_not_its_devices():
    def program(count):
        mesh = jax.make_mesh((count,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
        where = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
        return jax.make_jaxpr(lambda x: jax.lax.with_sharding_constraint(x, where))(jnp.ones(8))

    assert jaxpr_fingerprint(program(1)) == jaxpr_fingerprint(program(4))
