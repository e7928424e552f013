"""Tests that files of every version load. Each file was written by the code of its version, and is never rewritten."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from learner import load_model

FIXTURES = Path(__file__).parent / "fixtures"
FILES = [
    f"{precision}.v1{extension}"
    for extension in (".mpk", ".json", ".safetensors")
    for precision, extension in (("full", extension), ("half", f"{extension}.gz"), ("double", extension))
]
FILES += ["full.v2.json", "half.v2.json.gz", "double.v2.json"]
MODEL = {
    "layers": [
        {
            "kernel": np.float32([[0.5, -1.25], [3.0, 0.0], [1e-3, -7.0]]),
            "bias": jnp.asarray([1.5, -2.0], jnp.bfloat16),
        },
        {"kernel": np.float64([[0.1], [2.5]]), "bias": np.float16([-0.75])},
    ],
    "seen": np.int32(123456),
    "table": np.int64([[-3, 7], [0, 32767]]),
    "flag": np.bool_([True, False, True]),
    "phase": np.complex64([1 - 2j]),
    "limits": np.float32([np.inf, -np.inf, np.nan]),
    "old_key": np.uint32([0, 42]),
    "key": jax.random.wrap_key_data(np.uint32([7, 4294967295])),
    "none": np.zeros((0, 3), np.float32),
}


@pytest.mark.parametrize("name", FILES)
def test_files_of_every_version_load(name):
    target = {**jax.tree.map(np.zeros_like, {**MODEL, "key": np.zeros(1)}), "key": jax.random.key(0)}
    model = load_model(FIXTURES / name, target)
    np.testing.assert_array_equal(jax.random.key_data(model.pop("key")), [7, 4294967295])
    exact = jax.tree.map(np.asarray, {part: x for part, x in MODEL.items() if part != "key"})
    if name.startswith("half"):
        exact["layers"][0]["kernel"] = np.float32([[0.5, -1.25], [3.0, 0.0], [0.0010004044, -7.0]])
        exact["layers"][1]["kernel"] = np.float64([[0.0999755859375], [2.5]])
    leaves = zip(jax.tree.leaves(model), jax.tree.leaves(exact), strict=True)
    for got, expected in leaves:
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)


def test_every_fixture_is_tested():
    assert sorted(path.name for path in FIXTURES.iterdir()) == sorted(FILES)
