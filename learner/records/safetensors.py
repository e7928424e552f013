"""Records as safetensors (https://github.com/huggingface/safetensors), a format of PyTorch, Hugging Face's libraries
and many others.

    8 bytes: the length of the header, the lowest first
    the header, JSON: {"__metadata__": {...}, "head.kernel": {"dtype": "F32", "shape": [64, 10],
                                                              "data_offsets": [0, 2560]}, ...}
    the numbers of one array after the other

The metadata of our files are `format`, `version`, `precision`, and `random_keys`: the arrays that are random keys, as
JSON. A file without this metadata is of another program.

The format is read and written here: docs/dependencies.md explains why its own library is not used.
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from learner.errors import LearnerError
from learner.records.recorder import FORMAT, VERSION, Content, Recorder, check_header
from learner.records.stored import Buffer, Stored, check_claim, checked
from learner.records.unpacking import Limits, check_count, parsed, reject_duplicate_keys

NAMES = {
    "bool": "BOOL",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "complex64": "C64",
    **{f"float{bits}": f"F{bits}" for bits in (16, 32, 64)},
    **{f"int{bits}": f"I{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"U{bits}" for bits in (8, 16, 32, 64)},
}
DTYPE_NAMES = {name: dtype for dtype, name in NAMES.items()}
ALIGNED = 64  # bytes
METADATA = "__metadata__"
MOST_HEADER = 2**25  # bytes: the header of some 200,000 arrays


@dataclasses.dataclass(frozen=True)
class SafetensorsRecorder(Recorder):
    """safetensors, `.safetensors` or `.safetensors.gz`. Most tools read only uncompressed files.

    >>> import jax.numpy as jnp
    >>> import safetensors.numpy
    >>> safetensors.numpy.load(SafetensorsRecorder().to_bytes({"w": jnp.float32([1.0])}))
    {'w': array([1.], dtype=float32)}
    """

    suffix = ".safetensors"
    called = "safetensors"

    def _refuse(self, arrays: Mapping[str, Stored]) -> None:
        odd = [f"{path} ({stored.dtype})" for path, stored in arrays.items() if _name(stored) is None]
        if METADATA in arrays:
            odd.append(METADATA)
        if odd:
            raise LearnerError(
                f"safetensors cannot hold {', '.join(odd)}: use MessagePackRecorder()",
                code="record-safetensors-unsupported",
            )

    def _chunks(self, arrays: Mapping[str, Stored]) -> Iterator[Buffer]:
        keys = {path: stored.dtype for path, stored in arrays.items() if stored.is_key}
        fields = {"format": FORMAT, "version": str(VERSION), "precision": self.precision}
        header: dict[str, Any] = {METADATA: fields | ({"random_keys": json.dumps(keys)} if keys else {})}
        # The widest first, so that each array is aligned to the size of its numbers.
        ordered = sorted(arrays.items(), key=lambda item: -item[1].data.dtype.itemsize)
        end = 0
        for path, stored in ordered:
            begin, end = end, end + stored.data.nbytes
            header[path] = {"dtype": _name(stored), "shape": stored.data.shape, "data_offsets": [begin, end]}
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        yield len(text).to_bytes(8, "little") + text
        for _, stored in ordered:
            yield stored.bytes

    def _read(self, file: Any, limits: Limits) -> Content:
        header = _header(file, limits)
        metadata = header.pop(METADATA, {})
        version, precision, keys = _read_metadata(metadata, header)
        claims = {path: _claim(path, entry) for path, entry in header.items()}
        arrays, position = {}, 0
        for path, (begin, end, dtype, shape) in sorted(claims.items(), key=lambda item: item[1][:2]):
            if begin != position:
                raise LearnerError(
                    f"{path!r} begins at byte {begin}, where byte {position} is next",
                    code="record-safetensors-offsets",
                    path=path,
                )
            if end > limits.room:
                raise LearnerError(f"it is cut off: {path!r} ends at byte {end}", code="record-cut-off", path=path)
            name = keys.get(path, dtype)
            kind, shape = check_claim(path, name, shape, end - begin)
            data = _aligned_bytes(end - begin).view(kind).reshape(shape)
            if file.readinto(data.reshape(-1).view(np.uint8).data) != end - begin:
                raise LearnerError(f"it is truncated inside {path!r}", code="record-cut-off", path=path)
            arrays[path], position = checked(path, name, data), end
        if file.read(1):
            raise LearnerError("it has data after its end", code="record-trailing-bytes")
        return Content(version, precision, {path: arrays[path] for path in header})


@dataclasses.dataclass(frozen=True)
class BinRecorder(SafetensorsRecorder):
    """Plain binary files, `.bin` or `.bin.gz`: safetensors under another name. Nothing in them is pickled.

    >>> BinRecorder().extension, BinRecorder(gzip=True).extension
    ('.bin', '.bin.gz')
    """

    suffix = ".bin"


def _aligned_bytes(count: int) -> np.ndarray:
    """Return bytes aligned so that JAX uses them on a CPU without a copy."""
    memory = np.empty(count + ALIGNED, np.uint8)
    first = -memory.ctypes.data % ALIGNED
    return memory[first : first + count]


def _name(stored: Stored) -> str | None:
    return "U32" if stored.is_key else NAMES.get(stored.dtype)


def _header(file: Any, limits: Limits) -> dict[str, Any]:
    first = file.read(8)
    length = int.from_bytes(first, "little")
    if len(first) < 8 or not 2 <= length <= min(MOST_HEADER, limits.room - 8):
        raise LearnerError("it does not begin with the length of a header", code="record-safetensors-header")
    text = file.read(length)
    if len(text) < length:
        raise LearnerError("it is truncated inside its header", code="record-cut-off")
    header = parsed(text, limits.arrays, object_pairs_hook=reject_duplicate_keys)
    if not isinstance(header, dict):
        raise LearnerError("its header is not a JSON object", code="record-safetensors-header")
    check_count("its header", len(header), limits.arrays)
    return header


def _read_metadata(metadata: Any, header: Mapping[str, Any]) -> tuple[int | None, str | None, dict[str, str]]:
    """Return version, precision and random keys; None, None and an empty dict for a file of another program."""
    if not isinstance(metadata, dict):
        raise LearnerError("its metadata is not a JSON object", code="record-safetensors-metadata")
    if metadata.get("format") != FORMAT:
        return None, None, {}
    text = metadata.get("version", "")
    number = int(text) if isinstance(text, str) and text.isdecimal() and len(text) < 9 else text
    version, precision = check_header(FORMAT, number, metadata.get("precision"))
    keys = json.loads(metadata.get("random_keys", "{}"))
    fits = isinstance(keys, dict) and all(
        isinstance(dtype, str)
        and dtype.startswith("key<")
        and isinstance(header.get(path), dict)
        and header[path].get("dtype") == "U32"
        for path, dtype in keys.items()
    )
    if not fits:
        raise LearnerError("its random_keys do not match its arrays", code="record-safetensors-random-keys")
    return version, precision, keys


def _claim(path: str, entry: Any) -> tuple[int, int, str, Any]:
    """Return the begin and the end of an array in the file, its dtype and its shape."""
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise LearnerError(
            f"{path!r} is not an array: it needs dtype, shape and data_offsets",
            code="record-array-malformed",
            path=path,
        )
    offsets, dtype = entry["data_offsets"], entry["dtype"]
    is_range = isinstance(offsets, list) and len(offsets) == 2 and all(type(n) is int for n in offsets)
    if not is_range or not 0 <= offsets[0] <= offsets[1]:
        raise LearnerError(
            f"{path!r} has the data_offsets {offsets!r}, which are invalid",
            code="record-safetensors-offsets",
            path=path,
        )
    if not isinstance(dtype, str) or dtype not in DTYPE_NAMES:
        raise LearnerError(
            f"{path!r} has the unknown dtype {dtype!r}; available: {', '.join(sorted(DTYPE_NAMES))}",
            code="record-dtype-unknown",
            path=path,
            dtype=dtype,
        )
    return offsets[0], offsets[1], DTYPE_NAMES[dtype], entry["shape"]
