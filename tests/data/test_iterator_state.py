"""Tests of storing the state of an iterator as JSON: values and types round-trip."""

import collections
import enum
import json
import math
import random
import sys
import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.data.iterator_state import TAGS, from_json, to_json
from tests.support.codes import raises_code


def through_json(state):
    """Return a state after a round trip through plain JSON, as in a checkpoint."""
    return from_json(json.loads(json.dumps(to_json(state, "train"), allow_nan=False)))


def same(a, b):
    """Return True if two states have equal values of the same types, recursively."""
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


@pytest.mark.full
@settings(deadline=None, max_examples=40)
@given(states)
def test_states_round_trip(state):
    assert same(through_json(state), state)


@pytest.mark.parametrize(
    "make", [np.random.PCG64, np.random.MT19937, np.random.Philox, np.random.SFC64], ids=lambda make: make.__name__
)
def test_numpy_generators_round_trip(make):
    generator, other = np.random.Generator(make(3)), np.random.Generator(make(4))
    generator.normal(size=5)
    other.bit_generator.state = through_json(generator.bit_generator.state)
    assert other.normal(size=5).tolist() == generator.normal(size=5).tolist()


def test_python_generator_round_trips():
    generator, other = random.Random(3), random.Random(4)
    generator.gauss()
    other.setstate(through_json(generator.getstate()))
    assert [other.gauss() for _ in range(5)] == [generator.gauss() for _ in range(5)]


@pytest.mark.parametrize("x", [np.float32(0.1), np.int64(-3), np.bool_(True), np.array(7), np.zeros((2, 0, 3), "u1")])
def test_scalars_and_arrays_of_any_shape(x):
    assert same(through_json({"x": x})["x"], x)


def test_restored_arrays_are_writable():
    through_json(np.zeros(3))[0] = 1


class Tensor(np.ndarray):
    """The part of PyTorch's tensors that states need, without PyTorch."""

    device = types.SimpleNamespace(type="cpu")
    layout = "strided"

    def detach(self):
        return self

    def contiguous(self):
        return np.ascontiguousarray(self).view(Tensor).reshape(self.shape)


@pytest.mark.parametrize("x", [np.arange(6, dtype="u1"), np.float32([[1, 2], [3, 4]]).T, np.array(7), np.zeros((2, 0))])
def test_tensors_on_the_cpu_stay_tensors(monkeypatch, x):
    """torchdata's StatefulDataLoader(shuffle=True) has the state of a torch.Generator in its own."""
    torch = types.ModuleType("torch")
    torch.Tensor, torch.strided, torch.uint8 = Tensor, "strided", np.uint8
    torch.empty = lambda shape, dtype: np.empty(shape, dtype).view(Tensor)
    setattr(torch, str(x.dtype), x.dtype)
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert same(through_json({"generator": x.view(Tensor)}), {"generator": x.view(Tensor)})
    on_gpu = x.view(Tensor)
    on_gpu.device = types.SimpleNamespace(type="cuda")
    with raises_code("data-state-not-storable", "generator is a "):
        to_json({"generator": on_gpu}, "train")


@pytest.mark.full
def test_tensors_of_pytorch_stay_tensors():
    torch = pytest.importorskip("torch")
    generator, other = torch.Generator().manual_seed(3), torch.Generator()
    other.set_state(through_json(generator.get_state()))
    assert torch.equal(torch.randperm(9, generator=other), torch.randperm(9, generator=generator))
    for x in (torch.tensor([1.5, -2], dtype=torch.bfloat16, requires_grad=True), torch.arange(6).reshape(2, 3).T):
        assert torch.equal(through_json(x), x)
        assert through_json(x).dtype == x.dtype
    with raises_code("data-state-not-storable", "x is a torch.Tensor"):
        to_json({"x": torch.zeros(2, device="meta")}, "train")


def test_subclasses_of_dict_become_dicts():
    assert same(through_json(collections.OrderedDict(a=1, b=2)), {"a": 1, "b": 2})


def test_plain_states_are_stored_as_they_are():
    assert to_json({"next_index": 3, "parents": [{"pos": 0.5, "name": "a"}, None]}, "train") == {
        "next_index": 3,
        "parents": [{"pos": 0.5, "name": "a"}, None],
    }


def test_stored_state_is_a_copy():
    """An iterator may change the state that it returned."""
    state = {"seen": [1], "order": np.arange(3)}
    stored = to_json(state, "train")
    state["seen"].append(2)
    state["order"][0] = 9
    assert same(from_json(stored), {"seen": [1], "order": np.arange(3)})


class Colour(enum.IntEnum):
    RED = 1


Point = collections.namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("state", "path", "kind"),
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
def test_unsupported_values_are_named_with_path_and_type(state, path, kind):
    with raises_code("data-state-not-storable", f": {path} is a ", f"{kind}."):
        to_json(state, "train")
