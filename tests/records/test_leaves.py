"""Tests of splitting models into leaves by path, and of building them again."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from learner import Linen
from learner.records.leaves import leaves_of
from tests.support.codes import raises_code
from tests.support.small_models import CASES, assert_equal_arrays

pytestmark = pytest.mark.usefixtures("compiled_once")


@pytest.mark.full
def test_paths_of_each_library():
    paths = {case.name: list(leaves_of(case.make()).arrays) for case in CASES}
    assert [p for p in paths["nnx"] if p.startswith(("drop", "norm"))] == [
        "drop.rngs.count",
        "drop.rngs.key",
        "norm.bias",
        "norm.mean",
        "norm.scale",
        "norm.var",
    ]
    assert "layers.1.kernel" not in paths["nnx"]  # shared with layers.0
    assert paths["linen"][:3] == ["batch_stats.norm.mean", "batch_stats.norm.var", "params.head.bias"]
    assert paths["equinox"] == ["hidden.weight", "hidden.bias", "head.weight", "head.bias", "offset"]
    assert paths["dict"] == ["head.w", "hidden.b", "hidden.w", "seen"]
    assert paths["list"] == ["0", "1"]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_leaves_that_are_not_replaced(case):
    model = case.make()
    assert_equal_arrays(case.arrays(leaves_of(model).build({})), case.arrays(model))


def test_mode_and_shared_parameters_are_kept():
    model = CASES[0].make()
    model.eval()
    leaves = leaves_of(model)
    rebuilt = leaves.build({"layers.0.kernel": jnp.ones((3, 3))})
    assert rebuilt.drop.deterministic
    assert rebuilt.layers[1].kernel is rebuilt.layers[0].kernel
    linen = leaves_of(Linen(nn.Dense(1), {"params": {"kernel": jnp.ones((1, 1))}}, rngs=("noise",)))
    assert linen.build({}).rngs == ("noise",)


@pytest.mark.parametrize(
    ("model", "code", "values"),
    [
        (nn.Dense(2), "model-linen-without-variables", ("Dense",)),
        (nnx.Linear, "record-model-is-function", ("the model (Linear)",)),
        (lambda: {"w": jnp.ones(1)}, "record-model-is-function", ("the model (<lambda>)",)),
        ({"f": 3.0, "s": "x"}, "record-model-empty", ("the model (dict)",)),
        (None, "record-model-empty", ("NoneType",)),
        ({"a.b": np.ones(1), "a": {"b": np.ones(1)}}, "model-leaf-name-twice", ("a.b",)),
        ({"w": np.array(["x"])}, "record-dtype-unsupported", ("w", "str32", "float64")),
        ({"w": np.array([None])}, "record-dtype-unsupported", ("w", "object")),
    ],
)
def test_values_that_are_no_models(model, code, values):
    from learner.records import JsonRecorder

    with raises_code(code, *values):
        JsonRecorder().check(model)


def test_arrays_of_several_devices_are_gathered():
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("x",))
    from learner.records import JsonRecorder

    split = jax.device_put(jnp.arange(8.0), jax.sharding.NamedSharding(mesh, jax.P("x")))
    assert JsonRecorder().to_bytes({"w": split}) == JsonRecorder().to_bytes({"w": np.arange(8, dtype=np.float32)})


def test_paths_of_an_nnx_state():
    def adapted(seed):
        rngs = nnx.Rngs(seed)
        return nnx.LoRA(3, 2, 3, base_module=nnx.Linear(3, 3, rngs=rngs), rngs=rngs)

    model, other = adapted(0), adapted(1)
    parts = leaves_of(nnx.state(model, nnx.LoRAParam))
    assert list(parts.arrays) == ["lora_a", "lora_b"]
    assert list(leaves_of(nnx.state(model)).arrays) == list(leaves_of(model).arrays)
    kept = jnp.array(other.lora_a[...])
    state = leaves_of(nnx.state(other, nnx.LoRAParam)).build(parts.arrays)
    np.testing.assert_array_equal(other.lora_a[...], kept)  # a state is not changed either
    nnx.update(other, state)
    np.testing.assert_array_equal(other.lora_a[...], model.lora_a[...])
