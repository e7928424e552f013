"""Tests that damaged files load, or raise one LearnerError."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from learner.errors import LearnerError
from learner.records import BinRecorder, CompactRecorder, JsonRecorder, MessagePackRecorder, SafetensorsRecorder

RECORDERS = [
    kind(gzip=packed) for kind in (MessagePackRecorder, JsonRecorder, SafetensorsRecorder) for packed in (False, True)
]
MODEL = {
    "layers": [{"w": np.float32([[0.5, -1.25], [np.nan, np.inf]]), "b": jnp.asarray([1.5], jnp.bfloat16)}],
    "seen": np.int32(123456),
    "flag": np.bool_([True, False]),
    "phase": np.complex64([1 - 2j]),
    "key": jax.random.key(7),
    "none": np.zeros((0, 3), np.float32),
}


def mutate(data, rng):
    """Return the bytes with 1 to 3 random faults: a flipped bit, or bytes deleted, repeated, truncated or replaced."""
    data = bytearray(data)
    for _ in range(rng.integers(1, 4)):
        at, length = int(rng.integers(0, max(1, len(data)))), int(rng.integers(1, 9))
        fault = rng.integers(0, 6)
        if fault == 0 and data:
            data[at % len(data)] ^= 1 << int(rng.integers(0, 8))
        elif fault == 1:
            del data[at : at + length]
        elif fault == 2:
            data[at:at] = data[at : at + length] * int(rng.integers(1, 3))
        elif fault == 3:
            del data[at:]
        elif fault == 4:
            data[at : at + length] = rng.bytes(length)
        else:
            words = b"[", b"{", b'"', b"NaN", b"1e999", b"-", b"true", b"null", b"\xff" * 8, b"9" * 30, b"\0" * 8
            data[at : at + length] = words[int(rng.integers(0, len(words)))]
    return bytes(data)


@pytest.mark.parametrize("recorder", [*RECORDERS, CompactRecorder(), BinRecorder()], ids=repr)
@pytest.mark.parametrize("count", [150, pytest.param(5000, marks=pytest.mark.full)])
def test_damaged_file_loads_or_raises_one_error(recorder, count):
    rng, data, messages = np.random.default_rng(5), recorder.to_bytes(MODEL), []
    for number in range(count):
        damaged = mutate(data, rng)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                recorder.from_bytes(damaged, MODEL, strict=bool(number % 2), report=lambda report: None)
            except LearnerError as error:
                messages.append(str(error).replace("\n", ""))
            except BaseException as error:
                raise AssertionError(f"{type(error).__name__}: {error}, of {damaged!r}") from error
    assert len(messages) > count // 2
    assert all(map(str.isprintable, messages))
