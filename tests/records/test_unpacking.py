"""Tests of truncated, damaged and hostile files: each raises one error, within bounded memory."""

import base64
import gzip
import io
import json
import sys
import tracemalloc

import jax
import jax.numpy as jnp
import msgpack
import numpy as np
import pytest

from learner.errors import LearnerError
from learner.records import JsonRecorder, MessagePackRecorder, SafetensorsRecorder, unpacking
from learner.records.leaves import leaves_of
from learner.records.unpacking import limits_for, unpacked
from tests.support.codes import raises_code
from tests.support.stopped import some

MODEL = {"w": jnp.float32([[0.5, 1.0]]), "n": jnp.int32(3), "flag": jnp.array([True]), "key": jax.random.key(1)}
RECORDERS = [
    kind(gzip=packed) for kind in (MessagePackRecorder, JsonRecorder, SafetensorsRecorder) for packed in (False, True)
]
HEADER = {"format": "learner.record", "version": 1, "precision": "full"}
W = {"dtype": "float32", "shape": [1], "data": b"1234"}
DEEP = 30_000
NESTED = ("nested too deeply",) if sys.version_info < (3, 14) else ()  # later parsers read that many levels


def message_of(recorder, data, model=MODEL):
    """Return the message of the LearnerError that a file raises."""
    with pytest.raises(LearnerError) as caught:
        recorder.from_bytes(data, model)
    return str(caught.value)


@pytest.mark.parametrize("recorder", RECORDERS, ids=str)
def test_truncated_files(recorder):
    data = recorder.to_bytes(MODEL)
    whole = len(data.rstrip())  # without the line feed at the end of JSON
    for length in range(whole):
        messages = message_of(recorder, data[:length])
        assert "the record cannot be read: it " in messages
        assert "\n" not in messages


@pytest.mark.parametrize("recorder", some(RECORDERS, RECORDERS[::2]), ids=str)
def test_files_with_a_changed_byte(recorder):
    """A changed byte gives another number or raises an error."""
    data = recorder.to_bytes(MODEL)
    for position in range(len(data)):
        for flipped in (0x01, 0x80, 0xFF):
            wrong = data[:position] + bytes([data[position] ^ flipped]) + data[position + 1 :]
            try:
                loaded = recorder.from_bytes(wrong, MODEL)
            except LearnerError:
                continue
            assert {name: x.shape for name, x in loaded.items()} == {name: x.shape for name, x in MODEL.items()}


@pytest.mark.parametrize("recorder", RECORDERS, ids=str)
def test_data_after_the_end(recorder):
    data = recorder.to_bytes(MODEL)
    assert "cannot be read" in message_of(recorder, data + b"more")
    if recorder.gzip:
        assert "has data after its end" in message_of(recorder, data + gzip.compress(b"\x01")).replace(
            "Extra data", "has data after its end"
        )


@pytest.mark.parametrize("recorder", RECORDERS, ids=str)
def test_files_of_other_kinds(recorder):
    for data in (
        b"\x80\x04pickle",
        b"PK\x03\x04zip",
        b"\x89PNG\r\n",
        b"GIF89a",
        b"[1, 2]",
        b"null",
        b"\x00" * 64,
        b"\xff" * 64,
    ):
        messages = message_of(recorder, data)
        assert "cannot be read" in messages
        assert ("not compressed by gzip" in messages) == recorder.gzip
    assert "it is empty" in message_of(recorder, b"")
    if not recorder.gzip:
        assert "its name has to end with .gz" in message_of(recorder, gzip.compress(recorder.to_bytes(MODEL)))
    else:
        assert "not as gzip wrote it" in message_of(recorder, b"\x1f\x8b\x07" + b"0" * 30)


def packed(**parts):
    return msgpack.packb({**HEADER, **parts})


def pairs(*items):
    """Return a MessagePack map of the items, which may repeat a key; a bytearray is a packed value."""
    pack = msgpack.Packer()
    return pack.pack_map_header(len(items)) + b"".join(
        pack.pack(name) + (v if type(v) is bytearray else pack.pack(v)) for name, v in items
    )


MESSAGEPACK = {
    "a map longer than the file": (b"\xdf\xff\xff\xff\xff", ("record-unreadable", "cut off")),
    "a list longer than the file": (b"\x81\xa6format\xdd\xff\xff\xff\xff", ("record-unreadable", "max_array_len")),
    "lists in lists": (b"\x81\xa6format" + b"\x91" * 100_000, ("record-unreadable", "nested too deeply")),
    "maps in maps": (b"\x81\xa6format" + b"\x81\xa1a" * 100_000, ("record-unreadable", "nested too deeply")),
    "lists of lists": (
        b"\x81\xa6format" + (b"\xdc\x00\x20" + b"\x90" * 32) * 1000,
        ("record-unreadable",),
    ),
    "a text longer than the file": (b"\x81\xdb\xff\xff\xff\xff", ("record-unreadable", "cut off")),
    "bytes longer than the file": (b"\x81\xa6format\xc6\xff\xff\xff\xff", ("record-unreadable", "cut off")),
    "a type of its own": (b"\x81\xa6format\xd4\x05a", ("record-unreadable", "max_ext_len")),
    "no map": (b"\x93\x01\x02\x03", ("record-unreadable", "not what it should be")),
    "another format": (packed(format="flax", model={}), ("record-unreadable", "'flax'")),
    "no format": (msgpack.packb({"w": W}), ("record-unreadable",)),
    "the next version": (
        packed(version=2, model={"w": {"other": 1}}),
        ("record-unreadable", "2", "1"),
    ),
    "no model": (packed(), ("record-unreadable", "it has no model")),
    "a model that is none": (packed(model=3), ("record-unreadable", "not what it should be")),
    "an array that is none": (packed(model={"w": 3}), ("record-unreadable", "not what it should be")),
    "an array without data": (
        packed(model={"w": {"dtype": "float32", "shape": [1]}}),
        ("record-unreadable", "'w'"),
    ),
    "an array with more": (packed(model={"w": {**W, "code": "x"}}), ("record-unreadable", "'w'")),
    "data that is a text": (packed(model={"w": {**W, "data": "1234"}}), ("record-unreadable", "'w'")),
    "a dtype that is none": (
        packed(model={"w": {**W, "dtype": "object"}}),
        ("record-unreadable", "'object'"),
    ),
    "a dtype of bytes": (packed(model={"w": {**W, "dtype": b"float32"}}), ("record-unreadable", "'float32'")),
    "a negative shape": (packed(model={"w": {**W, "shape": [-1]}}), ("record-unreadable", "[-1]")),
    "a shape of truths": (packed(model={"w": {**W, "shape": [True]}}), ("record-unreadable",)),
    "a shape of texts": (packed(model={"w": {**W, "shape": ["1"]}}), ("record-unreadable",)),
    "a shape too large": (packed(model={"w": {**W, "shape": [2**61]}}), ("record-unreadable", "4")),
    "a shape that overflows": (packed(model={"w": {**W, "shape": [2**32, 2**32, 2**32]}}), ("record-unreadable", "4")),
    "no numbers in a huge shape": (
        packed(model={"w": {**W, "shape": [2**61, 2**61, 0], "data": b""}}),
        ("record-unreadable", "which no array has"),
    ),
    "33 axes": (packed(model={"w": {**W, "shape": [1] * 33}}), ("record-unreadable", "max_array_len")),
    "too few bytes": (packed(model={"w": {**W, "shape": [2]}}), ("record-unreadable", "'w'", "float32[2]", "4")),
    "a path that is a number": (packed(model={3: W}), ("record-unreadable", "3")),
    "a path that is not a text": (b"\x81\xa1\xff\x01", ("record-unreadable", "not what it should be")),
    "booleans of 7": (
        packed(model={"w": {"dtype": "bool", "shape": [1], "data": b"\x07"}}),
        ("record-unreadable", "booleans that are neither"),
    ),
    "a key without numbers": (
        packed(model={"w": {"dtype": "key<fry>", "shape": [], "data": b"1234"}}),
        ("record-unreadable", "which is invalid"),
    ),
    "an array twice": (
        pairs(*HEADER.items(), ("model", bytearray(pairs(("w", W), ("w", W))))),
        ("record-unreadable", "'w'"),
    ),
    "a part twice": (
        pairs(*HEADER.items(), ("model", {}), ("format", "learner.record")),
        ("record-unreadable", "'format'"),
    ),
    "a dtype twice": (
        pairs(*HEADER.items(), ("model", bytearray(pairs(("w", bytearray(pairs(*W.items(), ("dtype", "int8")))))))),
        ("record-unreadable", "'w'", "'dtype'"),
    ),
    "control characters": (packed(model={"\x1b[2J": {**W, "dtype": "x"}}), ("record-unreadable", "'x'")),
}


@pytest.mark.parametrize("case", MESSAGEPACK)
def test_hostile_messagepack(case):
    data, expected = MESSAGEPACK[case]
    with raises_code(*expected) as caught:
        MessagePackRecorder().from_bytes(data, MODEL)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


def text(**parts):
    w = {**W, "data": base64.b64encode(W["data"]).decode()}
    return json.dumps({**HEADER, "model": {"w": w}, **parts}).encode()


JSON = {
    "lists in lists": (b"[" * DEEP, ("record-unreadable", *NESTED)),
    "objects in objects": (b'{"a":' * DEEP, ("record-unreadable", *NESTED)),
    "no object": (b"[]", ("record-unreadable", "not a JSON object")),
    "a number of a million digits": (
        b'{"version": ' + b"9" * 10**6 + b"}",
        ("record-unreadable", "not what it should be"),
    ),
    "NaN": (b'{"version": NaN}', ("record-unreadable", "NaN")),
    "not UTF-8": (b'{"\xff": 1}', ("record-unreadable", "not what it should be")),
    "a format twice": (b'{"format": 1, "format": 2}', ("record-unreadable", "'format'")),
    "an array twice": (
        text().replace(b'"w":', b'"w": {"dtype": "float32", "shape": [1], "data": ""}, "w":'),
        ("record-unreadable", "'w'"),
    ),
    "another format": (text(format="x"), ("record-unreadable", "'x'")),
    "a format that is a list": (text(format=["learner.record"]), ("record-unreadable", "not a record of learner")),
    "the next version": (text(version=3, model=None), ("record-unreadable", "3", "2")),
    "a version that is a text": (text(version="1"), ("record-unreadable", "'1'")),
    "no model": (text(model=None), ("record-unreadable",)),
    "an array that is none": (text(model={"w": [1.0]}), ("record-unreadable",)),
    "too many numbers": (text(model={"w": {**W, "data": [1.0] * 9}}), ("record-unreadable", "'w'", "float32", "36")),
    "data that is a number": (text(model={"w": {**W, "data": 1.0}}), ("record-unreadable", "'w'")),
    "data of lists": (text(model={"w": {**W, "data": [[1.0]]}}), ("record-unreadable", "'w'")),
    "data of other words": (text(model={"w": {**W, "data": ["inf"]}}), ("record-unreadable", "'w'")),
    "a number that is too large": (text(model={"w": {**W, "data": [1e39]}}), ("record-unreadable", "'w'", "float32")),
    "truth among floats": (text(model={"w": {**W, "data": [True]}}), ("record-unreadable", "'w'", "float32")),
    "an integer of 400 digits": (text(model={"w": {**W, "data": [10**400]}}), ("record-unreadable", "'w'")),
    "one of 400 digits among floats": (
        text(model={"w": {**W, "data": [1.5, 10**400]}}),
        ("record-unreadable", "not what it should be"),
    ),
    "floats among integers": (text(model={"w": {**W, "dtype": "int8", "data": [1.0]}}), ("record-unreadable", "int8")),
    "an integer that is too large": (
        text(model={"w": {**W, "dtype": "int8", "data": [128]}}),
        ("record-unreadable", "int8"),
    ),
    "a negative one": (text(model={"w": {**W, "dtype": "uint8", "data": [-1]}}), ("record-unreadable", "uint8")),
    "numbers among truth": (text(model={"w": {**W, "dtype": "bool", "data": [1]}}), ("record-unreadable", "not bool")),
    "half a complex number": (
        text(model={"w": {**W, "dtype": "complex64", "data": [1.0]}}),
        ("record-unreadable", "'w'", "complex64"),
    ),
    "data that is not base64": (
        text(model={"w": {**W, "data": "MTIz!A=="}}),
        ("record-unreadable", "not what it should be"),
    ),
    "base64 without its end": (
        text(model={"w": {**W, "data": "MTIzNA"}}),
        ("record-unreadable", "not what it should be"),
    ),
    "a shape of floats": (text(model={"w": {**W, "shape": [1.0], "data": "MTIzNA=="}}), ("record-unreadable", "[1.0]")),
    "a shape of huge numbers": (
        text(model={"w": {**W, "shape": [10**400], "data": "MTIzNA=="}}),
        ("record-unreadable",),
    ),
    "33 axes": (
        text(model={"w": {**W, "shape": [1] * 33, "data": "MTIzNA=="}}),
        ("record-unreadable", "has the shape"),
    ),
}


@pytest.mark.parametrize("case", JSON)
def test_hostile_json(case):
    data, expected = JSON[case]
    with raises_code(*expected) as caught:
        JsonRecorder().from_bytes(data, MODEL)
    assert len(str(caught.value)) < 500


def tensors(header, body=b"", length=None):
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(head) if length is None else length).to_bytes(8, "little") + head + body


def entry(dtype="F32", shape=(1,), begin=0, end=4):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


OURS = {key: str(value) for key, value in HEADER.items()}
SAFETENSORS = {
    "a header longer than the file": (tensors(b"{}", length=2**63), ("record-unreadable",)),
    "a header of nothing": (tensors(b""), ("record-unreadable",)),
    "a header longer than what is there": (
        tensors(b"{}" + b" " * 9, length=12),
        ("record-unreadable", "does not begin with the length"),
    ),
    "lists in lists": (tensors(b"[" * DEEP), ("record-unreadable", *NESTED)),
    "objects in objects": (tensors(b'{"a":' * DEEP), ("record-unreadable", *NESTED)),
    "no object": (tensors(b"[]"), ("record-unreadable",)),
    "an array twice": (tensors(b'{"w":1,"w":2}'), ("record-unreadable", "'w'")),
    "metadata twice": (tensors(b'{"__metadata__":{"a":"1","a":"2"}}'), ("record-unreadable", "'a'")),
    "metadata that is none": (tensors({"__metadata__": 3}), ("record-unreadable",)),
    "the next version": (tensors({"__metadata__": {**OURS, "version": "2"}}), ("record-unreadable", "2")),
    "a version that is none": (tensors({"__metadata__": {**OURS, "version": "-1"}}), ("record-unreadable", "'-1'")),
    "keys that are none": (
        tensors({"__metadata__": {**OURS, "random_keys": '{"w": "key<fry>"}'}}),
        ("record-unreadable", "random_keys"),
    ),
    "keys of another kind": (
        tensors({"__metadata__": {**OURS, "random_keys": '{"w": "float64"}'}, "w": entry("U32")}, b"1234"),
        ("record-unreadable", "random_keys"),
    ),
    "keys that nest": (
        tensors({"__metadata__": {**OURS, "random_keys": "[" * DEEP}}),
        ("record-unreadable", *NESTED),
    ),
    "an array that is none": (tensors({"w": 3}), ("record-unreadable", "'w'")),
    "an array with more": (tensors({"w": {**entry(), "x": 1}}, b"1234"), ("record-unreadable", "'w'")),
    "a dtype that is none": (tensors({"w": entry("PY")}, b"1234"), ("record-unreadable", "'w'", "'PY'", "BF16")),
    "a dtype that is a list": (tensors({"w": entry(["F32"])}, b"1234"), ("record-unreadable", "has the unknown dtype")),
    "offsets that go back": (
        tensors({"w": entry(begin=4, end=0)}, b"1234"),
        ("record-unreadable", "which are invalid"),
    ),
    "offsets that are texts": (tensors({"w": entry(begin="0")}, b"1234"), ("record-unreadable", "which are invalid")),
    "arrays that overlap": (
        tensors({"w": entry(), "v": entry(end=4)}, b"1234"),
        ("record-unreadable", "0", "4"),
    ),
    "a hole": (tensors({"w": entry(begin=4, end=8)}, b"12345678"), ("record-unreadable", "'w'", "4", "0")),
    "more than the arrays": (tensors({"w": entry()}, b"12345678"), ("record-unreadable", "has data after its end")),
    "an array beyond the end": (
        tensors({"w": entry(shape=[10**12], end=4 * 10**12)}, b"1234"),
        ("record-unreadable", "'w'"),
    ),
    "an array that is cut off": (tensors({"w": entry(shape=[2], end=8)}, b"1234"), ("record-unreadable", "'w'")),
    "a shape that does not fit": (tensors({"w": entry(shape=[2**61, 16])}, b"1234"), ("record-unreadable", "4")),
    "no numbers in a huge shape": (
        tensors({"w": entry(shape=[0, 2**61, 2**61], end=0)}),
        ("record-unreadable", "which no array has"),
    ),
}


@pytest.mark.parametrize("case", SAFETENSORS)
def test_hostile_safetensors(case):
    data, expected = SAFETENSORS[case]
    with raises_code(*expected) as caught:
        SafetensorsRecorder().from_bytes(data, MODEL)
    assert len(str(caught.value)) < 500


# -- memory ------------------------------------------------------------------------------------------------------------


def peak(function):
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", [MessagePackRecorder, JsonRecorder, SafetensorsRecorder])
def test_gzip_bomb_is_not_unpacked(kind):
    """The file holds 50 MB of zeros, compressed to less than 0.25 MB."""
    size = 50_000_000
    if kind is MessagePackRecorder:
        start = (
            packed(model={})[:-1]
            + b"\x81\xa1w\x83\xa5dtype\xa5uint8\xa5shape\x91\xce\x0b\xeb\xc2\x00\xa4data\xc6\x0b\xeb\xc2\x00"
        )
    elif kind is JsonRecorder:
        start = text()[:-5].replace(b'"MTIzNA', b'"AAAA')
    else:
        start = tensors({"w": entry("U8", [size], 0, size)})
    bomb = gzip.compress(start + bytes(size), 1)
    assert len(bomb) < size / 200
    messages = []
    used = peak(lambda: messages.append(message_of(kind(gzip=True), bomb)))
    assert used < 15_000_000
    assert "longer than" in messages[0] or "cut off" in messages[0] or "exceeds" in messages[0]


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (MessagePackRecorder, b"\x81\xa6format" + b"\xdc\x00\x20" * 1000),
        (MessagePackRecorder, b"\xdf\xff\xff\xff\xff\xa6format\xde\xff\xff" * 1000),
        (SafetensorsRecorder, tensors({"w": entry(shape=[10**13], end=4 * 10**13)}, b"1234")),
        (SafetensorsRecorder, tensors(b"{}", length=10**12)),
    ],
)
def test_claimed_sizes_are_not_allocated(kind, data):
    messages = []
    assert peak(lambda: messages.append(message_of(kind(), data))) < 10_000_000


HEAD = b'{"format": "learner.record", "version": 1, "precision": "full", "model": {"w": '
NONE = {"dtype": "int8", "shape": [0], "data": ""}
MANY = {
    "JSON: lists": (JsonRecorder, HEAD + b"[" + b"[]," * 10**6 + b"[]]}}"),
    "JSON: objects": (JsonRecorder, HEAD + b"[" + b"{}," * 10**6 + b"{}]}}"),
    "JSON: numbers": (JsonRecorder, HEAD + b"[" + b"999," * 10**6 + b"9]}}"),
    "JSON: texts": (JsonRecorder, HEAD + b"[" + b'"ab",' * 10**6 + b'""]}}'),
    "JSON: arrays": (JsonRecorder, text(model={f"{i}": NONE for i in range(12_000)})),
    "MessagePack: arrays": (MessagePackRecorder, packed(model={f"{i}": {**NONE, "data": b""} for i in range(12_000)})),
    "MessagePack: keys": (MessagePackRecorder, msgpack.packb({f"{i}": 0 for i in range(10**5)})),
    "safetensors: lists": (SafetensorsRecorder, tensors(b'{"w":[' + b"[]," * 10**6 + b"[]]}")),
    "safetensors: arrays": (SafetensorsRecorder, tensors({f"{i}": entry(shape=[0], end=0) for i in range(12_000)})),
}


@pytest.mark.full
@pytest.mark.parametrize("case", MANY)
def test_many_small_values_take_no_memory(case):
    """Without a limit, each byte of such a file would become 20 to 30 bytes of Python objects."""
    kind, data = MANY[case]
    messages = []
    used = peak(lambda: messages.append(message_of(kind(), data)))
    assert used < 4 * len(data) + 14_000_000
    assert "far more values than" in messages[0] or "entries, which is far more than it needs" in messages[0]


@pytest.mark.parametrize("recorder", some(RECORDERS[::2], [JsonRecorder()]), ids=str)
def test_model_of_many_small_arrays(recorder, monkeypatch):
    """A file may have as many arrays as the model: here the limit is 100 + 4 * 1200 + 512 000 / 512."""
    monkeypatch.setattr(unpacking, "FEW", 100)
    model = {f"{i}": np.float32(i) for i in range(1200)}
    assert recorder.from_bytes(recorder.to_bytes(model), model)["1199"] == 1199
    assert limits_for(leaves_of(model), 512_000, packed=False).arrays == 100 + 4 * 1200 + 1000


def test_larger_model_is_no_bomb():
    """Loading a larger model lists its differences, even if gzip makes its weights much smaller."""
    large = {"w": np.zeros((100, 100), np.float32), "v": np.arange(10**6, dtype=np.float32)}
    data = MessagePackRecorder(gzip=True).to_bytes(large)
    assert "v: float32[1000000] in the file, not in the model" in message_of(MessagePackRecorder(gzip=True), data)


def test_memory_limit():
    """The limit is twice the model's numbers at 16 bytes each, or twenty times the file if that is more."""
    leaves = leaves_of({"w": np.zeros(10**6, np.float16)})
    assert 32 * 10**6 < limits_for(leaves, 1000, packed=True).room < 34 * 10**6
    assert limits_for(leaves, 10**7, packed=True).room == 2 * 10**8


def test_unpacked_bytes_are_counted():
    file = lambda: io.BytesIO(gzip.compress(b"a" * 100))  # noqa: E731
    assert unpacked(file(), 100).read() == b"a" * 100
    assert unpacked(file(), 100).read(30) == b"a" * 30
    buffer = np.zeros(120, np.uint8)
    assert unpacked(file(), 100).readinto(buffer.data) == 100
    assert buffer.tobytes() == b"a" * 100 + bytes(20)
    with raises_code("record-too-large", "99"):
        unpacked(file(), 99).read()
