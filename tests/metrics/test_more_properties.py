"""Tests of properties of all metrics of sequences, segments and images; `test_properties` has the other metrics."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from learner.metrics import Info
from tests.support.more_metrics import CASES, COLLECTED, KINDS, ROWS, kept, make_data, make_output

CASE = pytest.mark.parametrize("case", CASES, ids=str)
MASKED = pytest.mark.parametrize("masked", [True, pytest.param(False, marks=pytest.mark.full)], ids=["masked", "all"])
INFO = Info(jnp.int32(0), jnp.float32(1))


def of_kind(kind):
    return [case.metric for case in CASES if KINDS[case.kind] == kind]


@functools.partial(jax.jit, static_argnums=0)
def batch_states(kind, data):
    """Return the states of a batch for all metrics of a kind, computed by one program."""
    return [metric.update(metric.init(), make_output(data), INFO) for metric in of_kind(kind)]


@functools.cache
def states(kind, masked, size):
    data = make_data(kind, masked)
    return [batch_states(kind, {k: v[i : i + size] for k, v in data.items()}) for i in range(0, ROWS, size)]


def states_of(case, masked=True, size=7):
    kind = KINDS[case.kind]
    return [batch[of_kind(kind).index(case.metric)] for batch in states(kind, masked, size)]


def merged(metric, parts):
    return functools.reduce(metric.merge, parts, metric.init())


def assert_same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.full
@CASE
@MASKED
@pytest.mark.parametrize("sizes", [(7,), pytest.param((1, 8, ROWS), marks=pytest.mark.full)], ids=["7", "more"])
def test_values_for_every_batch_size(case, masked, sizes):
    expected = case.expected(*kept(case, make_data(KINDS[case.kind], masked)))
    assert np.isfinite(expected)
    assert expected not in (0, 1)
    for size in sizes:
        value = case.metric.compute(merged(case.metric, states_of(case, masked, size)))
        assert (value.dtype, value.shape) == (jnp.float32, ())
        tolerance = 1e-5 if case.kind == "images" else 1e-6
        np.testing.assert_allclose(value, np.float32(expected), rtol=0 if case.exact else tolerance, err_msg=f"{size}")


@pytest.mark.full
@pytest.mark.parametrize("case", COLLECTED, ids=str)
@pytest.mark.parametrize("masked", [True, False], ids=["masked", "all"])
def test_values_of_collected_rows_for_every_batch_size(case, masked):
    data, metric = make_data(case.kind, masked), case.metric
    for size in (8, ROWS):
        batches = [{k: v[i : i + size] for k, v in data.items()} for i in range(0, ROWS, size)]
        parts = [metric.collect(make_output(batch)) for batch in batches]
        rows = jax.tree.map(lambda *x: np.concatenate(x), *parts)
        np.testing.assert_allclose(metric.compute(rows), case.expected(*kept(case, data)), rtol=1e-12)
    assert np.isnan(metric.compute(jax.tree.map(lambda x: x[:0], rows)))


@CASE
def test_value_without_rows_is_nan(case):
    metric = case.metric
    assert np.isnan(metric.compute(metric.init()))
    assert np.isnan(metric.compute(metric.merge(metric.init(), metric.init())))


@CASE
def test_masked_batch_does_not_count(case):
    kind = KINDS[case.kind]
    data = {k: v[:7].copy() for k, v in make_data(kind, masked=True).items()}
    data["mask"][:] = 0
    data["predictions"][:] = np.nan if kind == "images" else 99
    state = batch_states(kind, data)[of_kind(kind).index(case.metric)]
    assert np.isnan(case.metric.compute(state))
    before = states_of(case)[0]
    assert_same(case.metric.merge(before, state), before)


@CASE
def test_merge_is_commutative_and_has_an_identity(case):
    a, b, c = states_of(case)
    merge, value = case.metric.merge, case.metric.compute
    assert_same(merge(a, case.metric.init()), a)
    assert_same(merge(case.metric.init(), a), a)
    expected = value(merge(merge(a, b), c))
    orders = [merge(a, merge(b, c)), merge(merge(c, b), a), merge(merge(c, a), b)]
    np.testing.assert_allclose([value(order) for order in orders], expected, rtol=3e-7)
    assert value(a) != expected


@CASE
def test_states_keep_their_layout(case):
    metric, kind = case.metric, KINDS[case.kind]
    output = lambda: make_output({k: v[:7] for k, v in make_data(kind, masked=True).items()})  # noqa: E731
    layout = lambda make: jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), jax.eval_shape(make))  # noqa: E731
    first = layout(metric.init)
    assert first == layout(lambda: metric.update(metric.init(), output(), INFO))
    assert first == layout(lambda: metric.merge(metric.init(), metric.update(metric.init(), output(), INFO)))
    assert not any(leaf[2] for leaf in jax.tree.leaves(first, is_leaf=lambda x: isinstance(x, tuple)))


@pytest.mark.full
@CASE
def test_inside_a_loop_with_a_traced_count_and_under_vmap(case):
    metric, data = case.metric, make_data(KINDS[case.kind], masked=True)
    stacked = {k: np.stack([v[i : i + 7] for i in range(0, 21, 7)]) for k, v in data.items()}

    @jax.jit
    def loop(stacked, count):
        def body(i, state):
            batch = {k: jax.lax.dynamic_index_in_dim(v, i, keepdims=False) for k, v in stacked.items()}
            return metric.merge(state, metric.update(metric.init(), make_output(batch), INFO))

        return metric.compute(jax.lax.fori_loop(0, count, body, metric.init()))

    batch = states_of(case)
    np.testing.assert_allclose(loop(stacked, np.int32(2)), metric.compute(merged(metric, batch[:2])), rtol=1e-6)
    assert np.isnan(loop(stacked, np.int32(0)))
    mapped = jax.vmap(lambda data: metric.compute(metric.update(metric.init(), make_output(data), INFO)))(stacked)
    np.testing.assert_allclose(mapped, [metric.compute(state) for state in batch[:3]], rtol=1e-6)
