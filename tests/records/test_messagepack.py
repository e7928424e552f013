"""Tests of MessagePackRecorder against the `msgpack` library."""

import msgpack
import numpy as np

from learner.records import MessagePackRecorder, messagepack
from learner.records.stored import Stored
from tests.support.codes import raises_code

MODEL = {"head": {"kernel": np.float32([[1.0, -2.0]])}, "n": np.int32(7)}


def test_msgpack_reads_a_record():
    assert msgpack.unpackb(MessagePackRecorder("double").to_bytes(MODEL)) == {
        "format": "learner.record",
        "version": 1,
        "precision": "double",
        "model": {
            "head.kernel": {"dtype": "float64", "shape": [1, 2], "data": np.float64([1, -2]).tobytes()},
            "n": {"dtype": "int32", "shape": [], "data": b"\x07\0\0\0"},
        },
    }


def test_record_written_by_msgpack():
    """The other library chooses other widths for integers, and another order for the parts of an array."""
    arrays = {"n": {"data": b"\x09\0\0\0", "shape": [], "dtype": "int32"}}
    arrays["head.kernel"] = {"shape": (1, 2), "dtype": "float32", "data": np.float32([3, 4]).tobytes()}
    data = msgpack.packb({"precision": "full", "version": 1, "format": "learner.record", "model": arrays})
    loaded = MessagePackRecorder().from_bytes(data, MODEL)
    assert loaded["head"]["kernel"].tolist() == [[3.0, 4.0]]
    assert loaded["n"] == 9


def test_arrays_that_are_too_large(monkeypatch):
    monkeypatch.setattr(messagepack, "MOST", 7)
    with raises_code("record-array-too-large", "7", "head.kernel", "8"):
        MessagePackRecorder().check(MODEL)


def test_writing_does_not_copy_arrays():
    array = np.arange(6.0).reshape(2, 3)
    chunks = list(MessagePackRecorder()._chunks({"w": Stored("float64", array)}))
    assert np.shares_memory(np.frombuffer(chunks[-1]), array)
