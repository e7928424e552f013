"""Tests of JsonRecorder against Python's `json`."""

import base64
import json

import jax.numpy as jnp
import numpy as np
import pytest

from learner.records import JsonRecorder
from learner.records.stored import DTYPES

MODEL = {"head": {'ker\u00e4nel "1"': np.float32([[1.0, -2.0]])}, "limits": np.float32([np.nan, np.inf])}


def test_json_reads_a_record():
    content = json.loads(JsonRecorder().to_bytes(MODEL))
    assert [content.pop(name) for name in ("format", "version", "precision")] == ["learner.record", 2, "full"]
    (path, kernel), (_, limits) = content.pop("model").items()
    assert path == 'head.ker\u00e4nel "1"'
    assert kernel == {"dtype": "float32", "shape": [1, 2], "data": [1.0, -2.0]}
    assert limits == {"dtype": "float32", "shape": [2], "data": ["NaN", "Infinity"]}
    assert content == {}


def test_record_written_by_json():
    content = json.loads(JsonRecorder().to_bytes(MODEL))
    data = json.dumps(content, indent=4, sort_keys=True, ensure_ascii=False).encode()
    loaded = JsonRecorder().from_bytes(
        data, {"head": {'ker\u00e4nel "1"': np.zeros((1, 2), np.float32)}, "limits": np.zeros(2)}
    )
    assert loaded["head"]['ker\u00e4nel "1"'].tolist() == [[1, -2]]
    np.testing.assert_array_equal(loaded["limits"], [np.nan, np.inf])


def test_numbers_in_the_file():
    model = {
        "float32": np.float32([0.1, -0.0, 1e-45]),
        "bfloat16": jnp.asarray([0.1], jnp.bfloat16),
        "int64": np.int64([-(2**63), 2**63 - 1]),
        "uint64": np.uint64([2**64 - 1]),
        "bool": np.bool_([True, False]),
        "complex64": np.complex64([1 - 2j]),
        "none": np.zeros((0, 3), np.float32),
        "one": np.float64(0.1),
    }
    content = json.loads(JsonRecorder().to_bytes(model))["model"]
    assert {path: array["data"] for path, array in content.items()} == {
        "float32": [0.10000000149011612, -0.0, 1.401298464324817e-45],
        "bfloat16": [0.10009765625],
        "int64": [-9223372036854775808, 9223372036854775807],
        "uint64": [18446744073709551615],
        "bool": [True, False],
        "complex64": [1.0, -2.0],
        "none": [],
        "one": [0.1],
    }


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_every_dtype_round_trips_exactly(dtype):
    """The data contain NaNs with payloads, and more numbers than one block of the writer."""
    rng = np.random.default_rng(0)
    if dtype == np.bool_:
        data = rng.integers(0, 2, 70_000).astype(np.bool_)
    else:
        data = rng.integers(0, 256, 70_000 * dtype.itemsize, np.uint8).view(dtype)
    quiet = np.array([0, 1]).astype(dtype)
    limits = quiet if dtype.kind in "iub" else np.array([np.nan, -0.0, *jnp.finfo(dtype).max * np.ones(1)], dtype)
    model = {"data": data, "quiet": quiet, "limits": limits}
    text = JsonRecorder().to_bytes(model)
    assert isinstance(json.loads(text)["model"]["quiet"]["data"], list)
    assert isinstance(json.loads(text)["model"]["limits"]["data"], list)
    loaded = JsonRecorder().from_bytes(text, {name: np.zeros_like(x) for name, x in model.items()})
    for name, expected in model.items():
        assert loaded[name].tobytes() == expected.tobytes(), name


def test_integers_are_read_as_floats():
    """JavaScript writes 1.0 as 1."""
    text = JsonRecorder().to_bytes({"w": np.float32([1.0, 2.5])}).replace(b"1.0", b"1")
    assert JsonRecorder().from_bytes(text, {"w": np.zeros(2, np.float32)})["w"].tolist() == [1.0, 2.5]


def test_base64_of_version_1():
    w = base64.b64encode(np.float32([1.5]).tobytes()).decode()
    content = {"format": "learner.record", "version": 1, "precision": "full"}
    content["model"] = {"w": {"dtype": "float32", "shape": [1], "data": w}}
    assert JsonRecorder().from_bytes(json.dumps(content).encode(), {"w": np.zeros(1)})["w"].tolist() == [1.5]
