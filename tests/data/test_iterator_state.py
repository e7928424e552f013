"""The state of an iterator as JSON: what comes back is what was given."""

import collections
import enum
import json
import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.data.iterator_state import TAGS, from_json, to_json
from tests.support.codes import raises_code


def through_json(state):
    """As a checkpoint does it: nothing but plain JSON."""
    return from_json(json.loads(json.dumps(to_json(state, "train"), allow_nan=False)))


def same(a, b):
    """Equal, and of the same types all the way down."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(map(repr, a)) == list(map(repr, b)) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, np.ndarray | np.generic):
        return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    return a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b))


arrays = st.builds(
    lambda values, dtype: np.array(values).astype(dtype),
    st.lists(st.integers(0, 100), max_size=4),
    st.sampled_from(["?", "i1", "u4", ">i8", "f2", "f8", "c8"]),
)
keys = st.text(max_size=4) | st.sampled_from(TAGS)
leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5) | arrays
states = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(keys | st.integers() | st.binary(max_size=2), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(states)
def test_every_state_comes_back(state):
    assert same(through_json(state), state)


@pytest.mark.parametrize(
    "make", [np.random.PCG64, np.random.MT19937, np.random.Philox, np.random.SFC64], ids=lambda make: make.__name__
)
def test_numpys_generators_go_on_from_where_they_were(make):
    generator, other = np.random.Generator(make(3)), np.random.Generator(make(4))
    generator.normal(size=5)
    other.bit_generator.state = through_json(generator.bit_generator.state)
    assert other.normal(size=5).tolist() == generator.normal(size=5).tolist()


def test_pythons_generator_goes_on_from_where_it_was():
    generator, other = random.Random(3), random.Random(4)
    generator.gauss()
    other.setstate(through_json(generator.getstate()))
    assert [other.gauss() for _ in range(5)] == [generator.gauss() for _ in range(5)]


@pytest.mark.parametrize("x", [np.float32(0.1), np.int64(-3), np.bool_(True), np.array(7), np.zeros((2, 0, 3), "u1")])
def test_scalars_and_arrays_of_any_shape(x):
    assert same(through_json({"x": x})["x"], x)


def test_an_array_that_comes_back_can_be_written():
    through_json(np.zeros(3))[0] = 1


def test_dicts_of_other_kinds_come_back_as_dicts():
    assert same(through_json(collections.OrderedDict(a=1, b=2)), {"a": 1, "b": 2})


def test_plain_states_can_be_read_in_the_checkpoint():
    assert to_json({"next_index": 3, "parents": [{"pos": 0.5, "name": "a"}, None]}, "train") == {
        "next_index": 3,
        "parents": [{"pos": 0.5, "name": "a"}, None],
    }


def test_the_state_is_a_copy():
    """The iterator may go on with the one that it gave."""
    state = {"seen": [1], "order": np.arange(3)}
    stored = to_json(state, "train")
    state["seen"].append(2)
    state["order"][0] = 9
    assert same(from_json(stored), {"seen": [1], "order": np.arange(3)})


class Colour(enum.IntEnum):
    RED = 1


Point = collections.namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("state", "place", "kind"),
    [
        ({"rng": [0, object()]}, "rng[1]", "object"),
        (random.Random(0), "it", "random.Random"),
        ({"a": {"b": {1, 2}}}, "a.b", "set"),
        ({3: {"f": len}}, "[3].f", "builtin_function_or_method"),
        (np.array([object()]), "it", "numpy.ndarray of object"),
        ({"t": np.array(["x"])}, "t", "numpy.ndarray of <U1"),
        ({"c": Colour.RED}, "c", "Colour"),
        (Point(1, 2), "it", "Point"),
        ({(object(),): 1}, "a key of it[0]", "object"),
    ],
    ids=lambda value: "" if isinstance(value, str) else type(value).__name__,
)
def test_what_cannot_be_stored_is_named_with_its_place_and_type(state, place, kind):
    with raises_code("data-state-not-storable", f": {place} is a ", f"{kind}."):
        to_json(state, "train")
