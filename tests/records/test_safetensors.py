"""Tests of SafetensorsRecorder against the `safetensors` library."""

import json

import jax
import numpy as np
import safetensors
import safetensors.numpy
from flax import nnx

from learner.records import SafetensorsRecorder
from tests.support.codes import raises_code

MODEL = {
    "a": np.int8([1, -1, 1]),
    "b": {"kernel": np.float64([[0.5, 2.0]]), "n": np.int32(5)},
    "c": np.float16([1.5]),
    "d": np.zeros((0, 2), np.float32),
}


def flatten(model):
    return {
        jax.tree_util.keystr(p, simple=True, separator="."): x for p, x in jax.tree_util.tree_leaves_with_path(model)
    }


def test_safetensors_reads_a_record(tmp_path):
    data = SafetensorsRecorder().to_bytes(MODEL)
    read = safetensors.numpy.load(data)
    assert sorted(read) == ["a", "b.kernel", "b.n", "c", "d"]
    for name, x in flatten(MODEL).items():
        assert read[name].dtype == x.dtype
        np.testing.assert_array_equal(read[name], x)
    (tmp_path / "x.safetensors").write_bytes(data)
    with safetensors.safe_open(tmp_path / "x.safetensors", "numpy") as file:
        assert file.metadata() == {"format": "learner.record", "version": "1", "precision": "full"}


def test_arrays_are_aligned():
    data = SafetensorsRecorder().to_bytes(MODEL)
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    assert length % 8 == 0
    assert [header[name]["data_offsets"][0] % x.dtype.itemsize for name, x in flatten(MODEL).items()] == [0] * 5


def test_file_written_by_safetensors():
    changed = {name: np.asarray(x + np.ones((), x.dtype)) for name, x in flatten(MODEL).items()}
    loaded = SafetensorsRecorder().from_bytes(safetensors.numpy.save(changed), MODEL)
    for name, x in flatten(loaded).items():
        np.testing.assert_array_equal(x, changed[name])


def test_files_without_random_streams():
    """Random streams keep the model's values; any other missing array is an error."""
    model = nnx.Dropout(0.5, rngs=nnx.Rngs(3))
    net = nnx.Sequential(nnx.Linear(1, 1, rngs=nnx.Rngs(0)), model)
    data = safetensors.numpy.save({"layers.0.kernel": np.float32([[5]]), "layers.0.bias": np.float32([6])})
    loaded = SafetensorsRecorder().from_bytes(data, net)
    assert loaded.layers[0].kernel[...] == 5
    assert loaded.layers[1].rngs() == model.rngs()
    with raises_code("record-model-differs", "layers.0.bias"):
        SafetensorsRecorder().from_bytes(safetensors.numpy.save({"layers.0.kernel": np.float32([[5]])}), net)


def test_unsupported_dtypes_and_names():
    model = {"__metadata__": np.ones(1), "w": np.complex128([1])}
    with raises_code("record-safetensors-unsupported", "complex128", "__metadata__"):
        SafetensorsRecorder().to_bytes(model)
