"""Tests of the recorders: models of every library round-trip in every format and precision."""

import gzip
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from learner.records import CompactRecorder, JsonRecorder, MessagePackRecorder, SafetensorsRecorder
from learner.records.recorder import check_header
from tests.support.codes import raises_code
from tests.support.small_models import CASES, assert_equal_arrays, copied
from tests.support.stopped import some

KINDS = [MessagePackRecorder, JsonRecorder, SafetensorsRecorder]
RECORDERS = [kind(p, g) for kind in KINDS for p in ("full", "half", "double") for g in (False, True)]
FEW = {
    JsonRecorder("full", True),
    MessagePackRecorder("double"),
    SafetensorsRecorder(),
    MessagePackRecorder("half", True),
}

pytestmark = pytest.mark.usefixtures("compiled_once")


def perturb(model):
    """Return the model with every number and random key changed."""

    def perturb_array(x):
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            return jax.random.key(99) if not x.shape else jax.random.split(jax.random.key(99), x.shape)
        if x.dtype == bool:
            return ~x
        return x + np.ones((), x.dtype)

    def leaf(x):
        return perturb_array(x) if isinstance(x, jax.Array | np.ndarray) else x

    if isinstance(model, nnx.Module) or any(isinstance(x, nnx.Module) for x in getattr(model, "values", list)()):
        graph, state = nnx.split(model)  # one variable may be in two places
        return nnx.merge(graph, jax.tree.map(leaf, state))
    if hasattr(model, "variables"):
        return type(model)(model.module, jax.tree.map(leaf, model.variables))
    return jax.tree.map(leaf, model)


@pytest.mark.parametrize(
    ("recorder", "case"),
    some(
        [(r, c) for r in RECORDERS for c in CASES],
        [(r, c) for r in FEW for c in CASES if c.name == "nnx"]
        + [(MessagePackRecorder("half", True), c) for c in CASES if c.name != "nnx_vmapped"],
    ),
    ids=str,
)
def test_round_trip(recorder, case):
    model = case.make()
    before = copied(case.arrays(model))
    target = perturb(model)
    target_before = copied(case.arrays(target))
    loaded = recorder.from_bytes(recorder.to_bytes(model), target)
    assert type(loaded) is type(model)
    assert loaded is not target
    assert_equal_arrays(case.arrays(model), before)
    assert_equal_arrays(case.arrays(target), target_before)
    if recorder.precision == "half":
        before = {name: in_half(x) for name, x in before.items()}
    assert_equal_arrays(case.arrays(loaded), before)


def in_half(x):
    return x.astype(np.float16).astype(x.dtype) if x.dtype == np.float32 else x


@pytest.mark.parametrize("recorder", some(RECORDERS, FEW), ids=str)
def test_random_streams_round_trip(recorder):
    model, target = CASES[0].make(), CASES[0].make()
    model.drop.rngs()  # the counter is 1
    model.drop.rngs.key[...] = jax.random.key(5)
    loaded = recorder.from_bytes(recorder.to_bytes(model), target)
    assert loaded.drop.rngs.count[...] == 1
    assert target.drop.rngs.count[...] == 0
    expected = jax.random.bits(jax.random.fold_in(jax.random.key(5), 1))
    assert jax.random.bits(loaded.drop.rngs()) == expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_random_keys_of_any_kind(kind, impl):
    model = {"keys": jax.random.split(jax.random.key(3, impl=impl), (2, 3)), "old": jax.random.PRNGKey(2**31)}
    target = jax.tree.map(lambda x: x[::-1], model)
    loaded = kind("half").from_bytes(kind("half").to_bytes(model), target)
    np.testing.assert_array_equal(jax.random.key_data(loaded["keys"]), jax.random.key_data(model["keys"]))
    np.testing.assert_array_equal(loaded["old"], np.asarray(model["old"]))
    wrong = {**model, "keys": jax.random.split(jax.random.key(3, impl="unsafe_rbg"), (2, 3))}
    with raises_code("record-model-differs", "keys: key<", ">[2", "3]", "key<urbg>[2"):
        kind().from_bytes(kind().to_bytes(model), wrong)


def test_any_precision_loads_any():
    """Arrays are cast to the dtypes of the model. A recorder of any precision reads the file."""
    model = {"f": jnp.float32([0.5, -3.0]), "i": jnp.int32([[7, -7]]), "n": jnp.int32(70000), "b": jnp.array([True])}
    target = {
        "f": jnp.zeros(2, jnp.bfloat16),
        "i": np.zeros((1, 2), np.int64),
        "n": jnp.uint32(0),
        "b": jnp.array([False]),
    }
    for kind, written, read in itertools.product(KINDS, ("full", "half", "double"), ("full", "half")):
        loaded = kind(read).from_bytes(kind(written).to_bytes(model), target)
        assert {name: x.dtype for name, x in loaded.items()} == {name: x.dtype for name, x in target.items()}
        assert {name: np.asarray(x).tolist() for name, x in loaded.items()} == {
            "f": [0.5, -3.0],
            "i": [[7, -7]],
            "n": 70000,
            "b": [True],
        }
        assert isinstance(loaded["i"], np.ndarray)
        assert loaded["i"].flags.writeable
        assert isinstance(loaded["f"], jax.Array)


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_of_every_shape_and_dtype(kind):
    rng = np.random.default_rng(1)
    dtypes = [np.float64, np.float32, np.float16, jnp.bfloat16, jnp.float8_e4m3fn, jnp.float8_e5m2, np.complex64]
    dtypes += [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64, np.bool_]
    shapes = [(), (1,), (0,), (3, 0), (2, 3), (1, 2, 1, 3)]
    model = [np.asarray(rng.integers(0, 2, shape)).astype(d) for d in dtypes for shape in shapes]
    model += [np.float32([np.nan, np.inf, -np.inf, -0.0, 1e-45]), np.asfortranarray(np.arange(6.0).reshape(2, 3))]
    model += [np.arange(3, dtype=">i4"), np.arange(6.0)[::2]]
    target = [np.ones_like(x) for x in model]
    loaded = kind().from_bytes(kind().to_bytes(model), target)
    for x, y in zip(model, loaded, strict=True):
        assert x.dtype == y.dtype
        assert x.shape == y.shape
        native = x.astype(x.dtype.newbyteorder("="))
        assert native.tobytes() == y.astype(native.dtype).tobytes()


def test_abstract_models_and_shardings():
    devices = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("x",))
    sharding = jax.sharding.NamedSharding(devices, jax.P("x"))
    data = MessagePackRecorder().to_bytes({"w": jnp.arange(4.0), "b": jnp.float32(2)})
    target = {"w": jax.device_put(jnp.zeros(4), sharding), "b": jax.ShapeDtypeStruct((), jnp.float16)}
    loaded = MessagePackRecorder().from_bytes(data, target)
    assert loaded["w"].sharding == sharding
    assert loaded["w"].tolist() == [0, 1, 2, 3]
    assert loaded["b"].dtype == jnp.float16
    free = MessagePackRecorder().from_bytes(data, {"w": jnp.zeros(4), "b": jnp.float32(0)})
    assert not free["w"].committed  # like the given array, which may be combined with arrays on any device
    assert not loaded["b"].committed
    abstract = nnx.eval_shape(lambda: nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
    linear = nnx.Linear(2, 3, rngs=nnx.Rngs(1))
    restored = MessagePackRecorder().from_bytes(MessagePackRecorder().to_bytes(linear), abstract)
    np.testing.assert_array_equal(restored.kernel[...], linear.kernel[...])
    with raises_code("record-model-only-shapes", path="bias"):
        MessagePackRecorder().to_bytes(abstract)
    only = MessagePackRecorder().to_bytes({"w": jnp.zeros(4)})
    with raises_code("record-model-only-shapes", "b"):
        MessagePackRecorder().from_bytes(only, target, strict=False)


@pytest.mark.parametrize("recorder", RECORDERS, ids=str)
def test_bytes_are_deterministic(recorder):
    data = recorder.to_bytes(CASES[0].make())
    assert data == recorder.to_bytes(CASES[0].make())
    if recorder.gzip:
        assert data[3:8] == bytes(5)  # no flags, hence no file name, and no time
    assert gzip.decompress(CompactRecorder().to_bytes({"w": jnp.ones(1)}))[:1] == b"\x84"  # a map of four


def test_attributes_of_recorders():
    assert CompactRecorder().extension == MessagePackRecorder("half", gzip=True).extension == ".mpk.gz"
    assert repr(CompactRecorder()) == "CompactRecorder()"
    with raises_code("record-precision-unknown", "JsonRecorder", "'f16'", "'full'", "'half'", "'double'"):
        JsonRecorder("f16")
    with raises_code("record-gzip-type", "JsonRecorder", "1"):
        JsonRecorder(gzip=1)


@pytest.mark.parametrize(
    ("header", "code", "values"),
    [
        (("other", 1, "full"), "record-not-a-record", ("'other'",)),
        ((None, 1, "full"), "record-not-a-record", ("'None'",)),
        (("learner.record", 0, "full"), "record-version-unknown", ("'0'",)),
        (("learner.record", True, "full"), "record-version-unknown", ("'True'",)),
        (("learner.record", 2, "full"), "record-newer-version", ("2", "1")),
        (("learner.record", 1, "quarter"), "record-precision-unknown", ("'quarter'",)),
    ],
)
def test_a_wrong_header(header, code, values):
    with raises_code(code, *values):
        check_header(*header)
