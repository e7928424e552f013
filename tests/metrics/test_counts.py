"""Tests that counts are exact beyond the range of float32 and int32."""

from fractions import Fraction as Exact

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.metrics import Count, Fraction
from tests.support.stopped import some

few_examples = settings(max_examples=50, deadline=None, derandomize=True, database=None)
merge = jax.jit(lambda a, b: a.merge(b))


def count_of(number: int) -> Count:
    return Count(jnp.uint32(number >> 32), jnp.uint32(number & 0xFFFFFFFF))


def number_of(count: Count) -> int:
    return (int(count.high) << 32) + int(count.low)


@few_examples
@given(st.lists(st.integers(0, 2**59), min_size=1, max_size=8))
def test_merging_is_adding(numbers: list[int]) -> None:
    total = Count.zero()
    for number in numbers:
        total = merge(total, count_of(number))
    assert number_of(total) == sum(numbers)


@pytest.mark.parametrize("start", [0, 2**24, 2**31 - 1, 2**32 - 3, 10**10, 2**53], ids=hex)
def test_counting_by_ones(start: int) -> None:
    one = jnp.ones((), bool)
    total = jax.jit(lambda c: jax.lax.fori_loop(0, 1001, lambda i, c: c.add(one), c))(count_of(start))
    assert number_of(total) == start + 1001


@few_examples
@given(st.lists(st.booleans(), max_size=6))
def test_add_counts_true_values(which: list[bool]) -> None:
    assert number_of(Count.zero().add(jnp.array(which, bool))) == sum(which)


@pytest.mark.parametrize("rows", some([1, 32, 41, 47, 55, 61, 101, 1000], [41, 1000]))
def test_fraction_of_all_hits_is_exactly_1(rows: int) -> None:
    """If the number of rows is a constant of the program, XLA would multiply by its reciprocal."""

    @jax.jit
    def fraction(hits: jax.Array) -> jax.Array:
        return Fraction.zero().add(hits, jnp.ones(rows, bool)).value()

    assert fraction(np.ones(rows, bool)) == 1
    assert jax.jit(jax.vmap(fraction))(np.ones((1, rows), bool)) == 1
    assert fraction(np.arange(rows) % 3 == 0) == np.float32(-(-rows // 3) / rows)


@few_examples
@given(st.integers(0, 2**64 - 1))
def test_value_is_rounded_once(number: int) -> None:
    value = np.asarray(count_of(number).value())
    assert value.dtype == np.float32
    if number <= 2**24:
        assert value == number
    else:
        assert abs(float(value) - number) <= float(np.spacing(np.float32(number)))


@few_examples
@given(st.one_of(st.integers(1, 2**24), st.integers(1, 2**40)), st.floats(0, 1))
def test_fraction_is_right_to_3_ulp(total_count: int, part: float) -> None:
    hits = min(int(total_count * part), total_count)
    value = float(Fraction(count_of(hits), count_of(total_count - hits)).value())
    exact = float(Exact(hits, total_count))
    assert 0 <= value <= 1
    assert abs(value - exact) <= 3 * float(np.spacing(np.float32(exact)))
    if total_count <= 2**24:
        assert value == np.float32(exact)


def test_one_hit_in_ten_billion_is_counted() -> None:
    state = Fraction.zero().add(jnp.array([True, False]), jnp.array([True, True]))
    for _ in range(33):
        state = merge(state, state)
    state = state.add(jnp.array([True]), jnp.array([True]))
    assert (number_of(state.hits), number_of(state.misses)) == (2**33 + 1, 2**33)
    assert state.value() == 0.5


def test_masked_hits_do_not_count() -> None:
    state = Fraction.zero().add(jnp.array([[True, True], [False, True]]), jnp.array([[True, False], [True, False]]))
    assert (number_of(state.hits), number_of(state.misses)) == (1, 1)
    assert np.isnan(Fraction.zero().value())


def counts_of(numbers: list[int]) -> Count:
    return Count(*(jnp.array([f(n) for n in numbers], jnp.uint32) for f in (lambda n: n >> 32, lambda n: n % 2**32)))


NUMBERS = [2**40 + 3, 2**32 - 1, 1, 0, 2**53 + 2**31]


def test_sum_of_counts_is_exact() -> None:
    assert number_of(counts_of(NUMBERS).sum(0)) == sum(NUMBERS)
    pair = jax.tree.map(lambda x: jnp.stack([x, x]), counts_of(NUMBERS))
    assert [number_of(pair.sum(-1)[i]) for i in (0, 1)] == [sum(NUMBERS)] * 2
    assert [number_of(pair.sum(0)[i]) for i in range(5)] == [2 * number for number in NUMBERS]


def test_difference_of_counts_is_exact() -> None:
    less = [2**32 + 4, 2**32 - 1, 0, 0, 2**31 + 1]
    difference = counts_of(NUMBERS).minus(counts_of(less))
    assert [number_of(difference[i]) for i in range(5)] == [a - b for a, b in zip(NUMBERS, less, strict=True)]


def test_plus_adds_numbers() -> None:
    added = counts_of(NUMBERS).plus(jnp.full(5, 2**32 - 1, jnp.uint32))
    assert [number_of(added[i]) for i in range(5)] == [number + 2**32 - 1 for number in NUMBERS]
