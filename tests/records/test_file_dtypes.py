"""Tests of the dtypes in files of each precision, and of their limits."""

import jax
import jax.numpy as jnp
import msgpack
import numpy as np
import pytest

from learner.errors import LearnerError
from learner.records import CompactRecorder, JsonRecorder, MessagePackRecorder, SafetensorsRecorder
from learner.records.file_dtypes import out_of_range
from tests.support.codes import raises_code


def dtypes_in_file(precision, model):
    content = msgpack.unpackb(MessagePackRecorder(precision).to_bytes(model))
    return {path: array["dtype"] for path, array in content["model"].items()}


MODEL = {
    "f8": jnp.zeros(2, jnp.float8_e5m2),
    "bf16": jnp.zeros(2, jnp.bfloat16),
    "f16": jnp.zeros(2, jnp.float16),
    "f32": jnp.zeros(2),
    "f64": np.zeros(2),
    "one": jnp.float32(0),
    "i8": jnp.zeros(2, jnp.int8),
    "i32": jnp.zeros(2, jnp.int32),
    "i64": np.zeros(2, np.int64),
    "counter": jnp.int32(0),
    "u32": jnp.zeros(2, jnp.uint32),
    "bool": jnp.zeros(2, bool),
    "c64": jnp.zeros(2, jnp.complex64),
    "key": jax.random.key(0),
}
FULL = {
    **{"f8": "float8_e5m2", "bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64"},  # noqa: PIE800
    **{"one": "float32", "i8": "int8", "i32": "int32", "i64": "int64", "counter": "int32"},  # noqa: PIE800
    **{"u32": "uint32", "bool": "bool", "c64": "complex64", "key": "key<fry>"},  # noqa: PIE800
}


@pytest.mark.parametrize(
    ("precision", "changed"),
    [
        ("full", {}),
        ("half", {"f32": "float16", "f64": "float16", "one": "float16", "i32": "int16", "i64": "int16"}),
        (
            "double",
            dict.fromkeys(("f8", "bf16", "f16", "f32", "one"), "float64") | dict.fromkeys(("i8", "i32"), "int64"),
        ),
    ],
)
def test_dtypes_of_each_precision(precision, changed):
    assert dtypes_in_file(precision, MODEL) == {**FULL, **changed}


@pytest.mark.parametrize(
    ("array", "number"),
    [
        (np.float32([65504.0, -65504.0]), None),
        (np.float32([65505.0]), "65505"),
        (np.float32([1.0, -65505.0]), "-65505"),
        (np.float32([np.inf, -np.inf, np.nan]), None),
        (np.float32([np.nan, 7e4, np.inf]), "70000"),
        (np.float32([]), None),
        (np.float64(1e300), r"1e\+300"),
        (np.int32([32767, -32768]), None),
        (np.int32([32768]), "32768"),
        (np.int64([-32769, 0]), "-32769"),
        (np.int32(40000), None),  # a counter
        (np.uint32([70000]), None),
    ],
)
def test_half_precision_checks_its_limits(array, number):
    recorder, model = JsonRecorder("half"), {"fine": jnp.ones(1), "deep": {"leaf": array}}
    if number is None:
        loaded = recorder.from_bytes(recorder.to_bytes(model), model)
        np.testing.assert_array_equal(loaded["deep"]["leaf"], array)
        return
    message = rf"deep.leaf has {number}, and \w+ ends at \d+\nUse JsonRecorder\(precision='full', gzip=False\)"
    with pytest.raises(LearnerError, match=message):
        recorder.check(model)
    with pytest.raises(LearnerError, match=message):
        recorder.to_bytes(model)


def test_all_overflows_in_one_error():
    model = {"a": jnp.float32([1e5]), "b": jnp.int32([[1, 40000]]), "c": jnp.ones(3)}
    with pytest.raises(LearnerError) as caught:
        CompactRecorder().check(model)
    assert str(caught.value).split("\n") == [
        "half precision cannot hold this model:",
        "  a has 100000, and float16 ends at 65504",
        "  b has 40000, and int16 ends at 32767",
        "Use MessagePackRecorder(precision='full', gzip=True)",
    ]
    MessagePackRecorder(precision="full", gzip=True).check(model)


def test_limit_is_not_rounded_to_bfloat16():
    """float16 ends at 65504, which rounds to 65536 in bfloat16."""
    assert out_of_range(np.asarray([65536.0], jnp.bfloat16), np.dtype(np.float16)) == 65536.0
    assert out_of_range(np.asarray([65280.0], jnp.bfloat16), np.dtype(np.float16)) is None


@pytest.mark.parametrize(
    ("source", "target", "code", "values"),
    [
        (
            np.float32([7e4]),
            np.float16([0]),
            "record-model-differs",
            ("float32[1]", "float16[1]", "70000"),
        ),
        (np.int32([300]), np.uint8([0]), "record-model-differs", ("300", "uint8")),
        (np.int32([-1]), np.uint32([0]), "record-model-differs", ("-1", "uint32")),
        (np.float32([1]), np.int32([0]), "record-model-differs", ("another kind of number",)),
        (np.int32([1]), np.float32([0]), "record-model-differs", ("another kind of number",)),
        (np.complex64([1]), np.float32([0]), "record-model-differs", ("another kind of number",)),
        (np.bool_([1]), np.int32([0]), "record-model-differs", ("another kind of number",)),
    ],
)
def test_loading_never_changes_a_number(source, target, code, values):
    recorder = SafetensorsRecorder()
    with raises_code(code, *values):
        recorder.from_bytes(recorder.to_bytes({"x": source}), {"x": target})
