"""Records in JSON, for programs that can read nothing else.

    {"format": "learner.record", "version": 2, "precision": "full",
     "model": {"head.kernel": {"dtype": "float32", "shape": [64, 10], "data": [0.25, -1.5, ...]}, ...}}

`data` is the list of the numbers in row-major order, each as Python writes it, so that it reads back to the same bits;
a complex number has its real and its imaginary part. JSON has no non-finite numbers: they are the strings "NaN",
"Infinity" and "-Infinity". An array with nonstandard NaNs is the base64 of its bytes, the lowest byte of each number
first. In version 1 all arrays are base64; both versions load.
"""

import base64
import binascii
import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from learner.errors import LearnerError
from learner.records.recorder import FORMAT, Content, Recorder, check_header
from learner.records.stored import Buffer, Stored, check_claim, dtype_of, stored_from
from learner.records.unpacking import Limits, check_count, parsed, reject_duplicate_keys
from learner.util.json_values import WORDS, encode

JSON_VERSION = 2
PIECE = 2**16  # numbers written at once


@dataclasses.dataclass(frozen=True)
class JsonRecorder(Recorder):
    """JSON, `.json` or `.json.gz`.

    >>> import json
    >>> import jax.numpy as jnp
    >>> data = JsonRecorder().to_bytes({"w": jnp.float32([1.0, 0.1])})
    >>> json.loads(data)["model"]
    {'w': {'dtype': 'float32', 'shape': [2], 'data': [1.0, 0.10000000149011612]}}
    """

    suffix = ".json"
    called = "JSON"

    def _chunks(self, arrays: Mapping[str, Stored]) -> Iterator[Buffer]:
        header = json.dumps({"format": FORMAT, "version": JSON_VERSION, "precision": self.precision})
        yield header[:-1].encode() + b', "model": {'
        for index, (path, stored) in enumerate(arrays.items()):
            described = json.dumps({"dtype": stored.dtype, "shape": stored.data.shape})
            yield (",\n" if index else "\n").encode() + json.dumps(path).encode() + b": "
            yield described[:-1].encode() + b', "data": '
            yield from _data(stored)
            yield b"}"
        yield b"\n}}\n"

    def _read(self, file: Any, limits: Limits) -> Content:
        hooks = {"object_pairs_hook": _map, "parse_constant": _refuse}
        content = parsed(file.read(), limits.arrays, numbers=limits.numbers, **hooks)
        if not isinstance(content, dict):
            raise LearnerError("it is not a record of learner: it is not a JSON object", code="record-not-a-record")
        header = (content.get(key) for key in ("format", "version", "precision"))
        version, precision = check_header(*header, newest=JSON_VERSION)
        model = content.get("model")
        if not isinstance(model, dict) or not all(isinstance(array, _Array) for array in model.values()):
            raise LearnerError(
                "its model is not a mapping of arrays, each with dtype, shape and data", code="record-model-malformed"
            )
        check_count("its model", len(model), limits.arrays)
        return Content(version, precision, {path: array.stored(path) for path, array in model.items()})


def _data(stored: Stored) -> Iterator[bytes]:
    """Return the numbers of an array in JSON."""
    numbers = _flat(stored.data)
    if jnp.issubdtype(numbers.dtype, jnp.floating):
        with np.errstate(all="ignore"):
            nans = numbers[np.isnan(numbers)]
            if nans.tobytes() != np.full(nans.size, np.nan).astype(numbers.dtype).tobytes():
                yield json.dumps(base64.b64encode(stored.bytes).decode()).encode()
                return
            numbers = numbers.astype(np.float64)  # represents all of them exactly
    for first in range(0, numbers.size, PIECE):
        piece = numbers[first : first + PIECE]
        values = piece.tolist()
        if piece.dtype == np.float64 and not np.isfinite(piece).all():
            values = [value if math.isfinite(value) else encode(value) for value in values]
        yield (b", " if first else b"[") + json.dumps(values)[1:-1].encode()
    yield b"]" if numbers.size else b"[]"


def _flat(data: np.ndarray) -> np.ndarray:
    """Return the numbers of an array in row-major order, complex numbers as their parts."""
    flat = np.ascontiguousarray(data).reshape(-1)
    if flat.dtype.kind == "c":
        return flat.view(np.float32 if flat.dtype.itemsize == 8 else np.float64)
    return flat


class _Array(dict[str, Any]):
    """A JSON object with the keys of an array."""

    def stored(self, path: str) -> Stored:
        data = self.pop("data")  # frees the larger part
        dtype, shape = self["dtype"], self["shape"]
        if isinstance(data, str):
            return stored_from(path, dtype, shape, binascii.a2b_base64(data, strict_mode=True))
        if not isinstance(data, np.ndarray):
            raise LearnerError(
                f"{path!r} has data that is neither a text nor a list of numbers", code="record-data-type", path=path
            )
        return _array(path, dtype, shape, data)


def _array(path: str, dtype: Any, shape: Any, numbers: np.ndarray) -> Stored:
    """Return the array of a file's numbers."""
    part = kind = dtype_of(path, dtype)
    if kind.kind == "c":
        part = np.dtype(f"f{kind.itemsize // 2}")
    kind, shape = check_claim(path, dtype, shape, numbers.size * part.itemsize)
    with np.errstate(all="ignore"):
        cast = numbers.astype(part)
    if numbers.size and not _fit(numbers, cast):
        raise LearnerError(f"{path!r} has values that are not {part.name}", code="record-data-type", path=path)
    return Stored(dtype, cast.view(kind).reshape(shape))


def _fit(numbers: np.ndarray, cast: np.ndarray) -> bool:
    """Return True if a dtype represents the numbers. Floats may be rounded; other values must not change."""
    if jnp.issubdtype(cast.dtype, jnp.floating):
        rounded = cast.astype(np.float64)
        same = all((check(rounded) == check(numbers)).all() for check in (np.isnan, np.isinf))
        return numbers.dtype.kind in "iuf" and same
    if cast.dtype == np.bool_:
        return numbers.dtype == np.bool_
    limits = np.iinfo(cast.dtype)
    return numbers.dtype.kind in "iu" and int(numbers.min()) >= limits.min and int(numbers.max()) <= limits.max


def _map(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = reject_duplicate_keys(pairs)
    if mapping.keys() != {"dtype", "shape", "data"}:
        return mapping
    if isinstance(mapping["data"], list):  # convert it at once: a list takes several times an array's memory
        mapping["data"] = _numbers(mapping["data"])
    return _Array(mapping)


def _numbers(values: list[Any]) -> Any:
    """Return the values as an array of NumPy's widest dtype, or None if they are not all numbers of one kind."""
    kinds = set(map(type, values))
    if kinds <= {bool}:
        return np.array(values, np.bool_)
    if kinds == {int}:
        low, high = min(values), max(values)
        if high >= 2**63:
            return np.array(values, np.uint64) if low >= 0 and high < 2**64 else None
        return np.array(values, np.int64) if low >= -(2**63) else None
    if not kinds <= {int, float, str}:
        return None
    if str in kinds:
        values = [WORDS.get(value) if type(value) is str else value for value in values]
        if None in values:
            return None
    return np.array(values, np.float64)


def _refuse(constant: str) -> None:
    raise LearnerError(f"it has {constant}, which is not JSON", code="record-json-constant")
