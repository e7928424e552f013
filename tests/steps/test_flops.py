"""Tests of counting floating-point operations, against hand counts and XLA's counts."""

import itertools

import jax
import jax.numpy as jnp
import optax
import pytest
from jax.extend.core import Primitive
from jax.sharding import Mesh, PartitionSpec

from learner import LearnerBuilder
from learner.steps.flops import Flops, flops_of, step_flops
from tests.support.spread import KINDS
from tests.support.stopped import some

X, W = jnp.ones((8, 3)), jnp.ones((3, 3))
ONCE = 2 * 8 * 3 * 3 + 8 * 3  # a matrix product and a function of each number

ATTENTION = Primitive("dot_product_attention_fwd_wrapper")
ATTENTION.def_abstract_eval(lambda x: x)


def counted(fn, *given):
    return flops_of(jax.make_jaxpr(fn)(*given).jaxpr)


def by_xla(fn, *given):
    return jax.jit(fn).lower(*given).cost_analysis().get("flops", 0)


def layer(x, w):
    return jnp.tanh(x @ w)


def layers(x, w):
    return jax.lax.scan(lambda x, _: (layer(x, w), None), x, None, length=10)[0]


def until(x, w):
    return jax.lax.while_loop(lambda x: x.sum() > 0, lambda x: layer(x, w), x)


def either(x, w):
    return jax.lax.cond(x.sum() > 0, lambda x: layer(layer(x, w), w), lambda x: layer(x, w), x)


@pytest.mark.parametrize(
    ("fn", "number", "exact"),
    [
        (layer, ONCE, True),
        (layers, 10 * ONCE, True),
        (until, ONCE + 8 * 3, False),
        (either, 2 * ONCE + 8 * 3, True),
        (jax.jit(layers), 10 * ONCE, True),
        (jax.checkpoint(layer), ONCE, True),
        (lambda x, w: (x @ w).astype(jnp.int32) * 2, 2 * 8 * 3 * 3, True),
        (lambda x, w: jnp.where(x > 0, x, 0)[:, ::-1].T, 0, True),
        (lambda x, w: x.sum(0) + x.max(0), 2 * 24 + 3, True),
        (lambda x, w: jnp.cumsum(x, 0), 24, True),
        (lambda x, w: x.at[jnp.array([0, 1])].add(w[:2]), 6, True),
        (lambda x, w: jnp.linalg.inv(w), None, False),
        (lambda x, w: ATTENTION.bind(x), 0, False),
        (lambda x, w: (layer(x, w), x)[1], 0, True),
        (lambda x, w: jax.jit(lambda: (layer(x, w), x + x))()[1], 24, True),
    ],
)
def test_counts_equal_hand_counts(fn, number, exact):
    flops = counted(fn, X, W)
    assert (flops.number if number is not None else None, flops.exact) == (number, exact)


def test_counts_are_per_device():
    mesh = Mesh(jax.devices()[:2], ("data",))
    spec = PartitionSpec("data")
    parts = jax.shard_map(layer, mesh=mesh, in_specs=(spec, PartitionSpec()), out_specs=spec)
    assert counted(parts, X, W) == Flops(ONCE)


KINDS_OF_CONVOLUTIONS = (1, 2), ("SAME", "VALID", [(1, 1), (0, 1)]), (1, 2), (1, 2), (1, 3)
# Half of all combinations, which contain each pair of values of two options.
CASES = [
    tuple(values[i] for values, i in zip(KINDS_OF_CONVOLUTIONS, chosen, strict=True))
    for chosen in itertools.product(*(range(len(values)) for values in KINDS_OF_CONVOLUTIONS))
    if sum(chosen) % 2 == 1
]
SOME = {(2, "SAME", 1, 1, 1), (1, "VALID", 1, 2, 3)}


def cases():
    for stride, padding, *rest in CASES:
        if rest[0] == 1 or isinstance(padding, list):  # JAX refuses named padding with input dilation
            some = isinstance(padding, list) and rest == [2, 1, 3]
            some = some or (not isinstance(padding, list) and (stride, padding, *rest) in SOME)
            yield pytest.param(stride, padding, *rest, marks=() if some else pytest.mark.full)


@pytest.mark.parametrize(("stride", "padding", "spread", "apart", "groups"), [*cases()])
def test_counts_of_convolutions_equal_those_of_xla(stride, padding, spread, apart, groups):
    def convolved(x, w):
        where = (stride, stride), padding, (spread, spread), (apart, apart), ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, w, *where, feature_group_count=groups)

    def gradients(x, w):
        return jax.grad(lambda *given: convolved(*given).sum(), argnums=(0, 1))(x, w)

    x, w = jnp.ones((4, 9, 8, 6)), jnp.ones((3, 2, 6 // groups, 12))
    assert counted(convolved, x, w).number == by_xla(convolved, x, w)
    assert counted(gradients, x, w).number == by_xla(gradients, x, w)


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "accumulate"),
    some([*itertools.product(("mlp", "cnn", "transformer"), (1, 3))], {("cnn", 3)}),
)
def test_counts_of_steps_are_close_to_those_of_xla(tmp_path, kind, accumulate):
    """XLA also counts comparisons, and counts functions such as `exp` separately."""
    builder = LearnerBuilder(tmp_path / "run").grads_accumulation(accumulate)
    learner = builder.build(KINDS[kind].make(0.0), optax.adam, 0.1)
    state, rows = jax.eval_shape(learner.init), KINDS[kind].data(24, 1)
    batch = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jax.dtypes.canonicalize_dtype(x.dtype)), rows)
    step = learner.definition.step
    lowered = jax.jit(lambda state, *batches: step.unrolled_step(state, list(batches))).lower(
        state, *[batch] * accumulate
    )
    flops = step_flops(step, state, batch)
    assert flops.exact
    assert flops.number == pytest.approx(lowered.cost_analysis()["flops"], rel=0.06)


def test_sums_and_products():
    assert (Flops(2) + Flops(3, exact=False)) * 4 == Flops(20, exact=False)
