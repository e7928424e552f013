"""Records in MessagePack (https://msgpack.org): small, fast, and readable from nearly every language.

A file is one map:

    {"format": "learner.record", "version": 1, "precision": "full",
     "model": {"head.kernel": {"dtype": "float32", "shape": [64, 10], "data": <bytes>}, ...}}

`data` has the numbers in row-major order, the lowest byte of each first.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from learner.errors import LearnerError
from learner.records.recorder import FORMAT, VERSION, Content, Recorder, check_header
from learner.records.stored import MOST_DIMS, Buffer, Stored, stored_from
from learner.records.unpacking import Limits, check_count
from learner.util.text import size

MOST = 2**32 - 1  # bytes of one array
LONGEST = 4096  # bytes of a path
BUFFER = 2**18
MOST_KEYS = 100  # of a map that is not the model


@dataclasses.dataclass(frozen=True)
class MessagePackRecorder(Recorder):
    """MessagePack, `.mpk` or `.mpk.gz`. Each array may have up to 4 GB; larger arrays need a `SafetensorsRecorder`.

    >>> import msgpack
    >>> import jax.numpy as jnp
    >>> data = MessagePackRecorder(precision="half").to_bytes({"w": jnp.ones(3)})
    >>> msgpack.unpackb(data)["model"]
    {'w': {'dtype': 'float16', 'shape': [3], 'data': b'\\x00<\\x00<\\x00<'}}
    """

    suffix = ".mpk"
    called = "MessagePack"

    def _refuse(self, arrays: Mapping[str, Stored]) -> None:
        large = [f"{path} ({size(stored.data.nbytes)})" for path, stored in arrays.items() if stored.data.nbytes > MOST]
        if large:
            raise LearnerError(
                f"MessagePack holds arrays of at most {size(MOST)}, and the model has {', '.join(large)}: use "
                "SafetensorsRecorder()",
                code="record-array-too-large",
            )

    def _chunks(self, arrays: Mapping[str, Stored]) -> Iterator[Buffer]:
        import msgpack

        pack = msgpack.Packer()
        yield pack.pack_map_header(4)
        for name, value in (("format", FORMAT), ("version", VERSION), ("precision", self.precision)):
            yield pack.pack(name) + pack.pack(value)
        yield pack.pack("model") + pack.pack_map_header(len(arrays))
        for path, stored in arrays.items():
            described = {"dtype": stored.dtype, "shape": stored.data.shape}
            items = b"".join(pack.pack(name) + pack.pack(value) for name, value in described.items())
            head = pack.pack(path) + pack.pack_map_header(3) + items + pack.pack("data")
            yield head + b"\xc6" + stored.data.nbytes.to_bytes(4, "big")  # and the bytes, without a copy of them
            yield stored.bytes

    def _read(self, file: Any, limits: Limits) -> Content:
        import msgpack

        largest = min(limits.room, MOST)
        sizes = {"max_array_len": MOST_DIMS, "max_str_len": LONGEST, "max_bin_len": largest, "max_ext_len": 0}
        read = {"read_size": BUFFER, "max_buffer_size": max(2**20, min(2 * limits.room, MOST))}
        # Maps are read key by key, and lists hold shapes: deeper nesting is an error here.
        walk = msgpack.Unpacker(file, object_pairs_hook=_refuse_map, list_hook=_shape, **sizes, **read)
        content: dict[str, Any] = {}
        for name in _keys(walk, "the record"):
            if name == "model":
                check_header(*(content.get(key) for key in ("format", "version", "precision")))
                content[name] = {path: _stored(walk, path) for path in _keys(walk, "the model", limits.arrays)}
            else:
                content[name] = walk.unpack()
        try:
            walk.unpack()
        except msgpack.OutOfData:
            version, precision = check_header(*(content.get(key) for key in ("format", "version", "precision")))
            if "model" not in content:
                raise LearnerError("it has no model", code="record-model-missing") from None
            return Content(version, precision, content["model"])
        raise LearnerError("it has data after its end", code="record-trailing-bytes")


def _keys(walk: Any, what: str, most: int = MOST_KEYS) -> Iterator[str]:
    """Yield the keys of the next map; the caller reads the value of each."""
    seen = set()
    for number in range(walk.read_map_header()):
        check_count(what, number + 1, most)
        key = walk.unpack()
        if not isinstance(key, str):
            raise LearnerError(f"{what} has the key {key!r}, which is not a text", code="record-key-type", key=key)
        if key in seen:
            raise LearnerError(f"{what} has {key!r} twice", code="record-key-twice", key=key)
        seen.add(key)
        yield key


def _stored(walk: Any, path: str) -> Stored:
    content = {key: walk.unpack() for key in _keys(walk, repr(path))}
    if content.keys() != {"dtype", "shape", "data"} or not isinstance(content["data"], bytes):
        raise LearnerError(
            f"{path!r} is not an array: it needs dtype, shape and data", code="record-array-malformed", path=path
        )
    return stored_from(path, content["dtype"], content["shape"], content["data"])


def _refuse_map(pairs: Any) -> None:
    raise LearnerError("it has a map in an unexpected place", code="record-map-unexpected")


def _shape(items: list[Any]) -> list[Any]:
    if not all(type(item) is int for item in items):
        raise LearnerError("it has a list of other things than whole numbers", code="record-list-type")
    return items


@dataclasses.dataclass(frozen=True, repr=False)
class CompactRecorder(MessagePackRecorder):
    """The smallest files: MessagePack in half precision, compressed, `.mpk.gz`.

    >>> CompactRecorder().extension
    '.mpk.gz'
    """

    precision: str = dataclasses.field(default="half", init=False)
    gzip: bool = dataclasses.field(default=True, init=False)

    def __repr__(self) -> str:
        return "CompactRecorder()"
