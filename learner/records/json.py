"""Records in JSON: to be read where nothing else can be.

    {"format": "learner.record", "version": 1, "precision": "full",
     "model": {"head.kernel": {"dtype": "float32", "shape": [64, 10], "data": "<base64>"}, ...}}

`data` is the base64 of the numbers in the order of rows, the lowest byte of each first: exact, also for NaN and
infinities, which JSON has no numbers for, and some fifty times faster than decimal numbers.
"""

import base64
import binascii
import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any

from learner.errors import LearnerError
from learner.records.leaves import Buffer, Stored, stored_from
from learner.records.recorder import FORMAT, VERSION, Content, Recorder, check_header
from learner.records.unpacking import check_count, parsed, without_twins


@dataclasses.dataclass(frozen=True)
class JsonRecorder(Recorder):
    """JSON, `.json` or `.json.gz`.

    >>> import json
    >>> import jax.numpy as jnp
    >>> data = JsonRecorder().to_bytes({"w": jnp.float32([1.0])})
    >>> json.loads(data)["model"]
    {'w': {'dtype': 'float32', 'shape': [1], 'data': 'AACAPw=='}}
    """

    suffix = ".json"
    called = "JSON"

    def _chunks(self, arrays: Mapping[str, Stored]) -> Iterator[Buffer]:
        header = json.dumps({"format": FORMAT, "version": VERSION, "precision": self.precision})
        yield header[:-1].encode() + b', "model": {'
        for index, (path, stored) in enumerate(arrays.items()):
            described = json.dumps({"dtype": stored.dtype, "shape": stored.data.shape})
            yield (",\n" if index else "\n").encode() + json.dumps(path).encode() + b": "
            yield described[:-1].encode() + b', "data": "'
            yield base64.b64encode(stored.bytes)
            yield b'"}'
        yield b"\n}}\n"

    def _read(self, file: Any, room: int, most: int) -> Content:
        said = parsed(file.read(), most, object_pairs_hook=_map, parse_constant=_refuse)
        if not isinstance(said, dict):
            raise LearnerError("it is no record of learner: it is not a JSON object")
        version, precision = check_header(*(said.get(key) for key in ("format", "version", "precision")))
        model = said.get("model")
        if not isinstance(model, dict) or not all(isinstance(array, _Array) for array in model.values()):
            raise LearnerError("its model is no mapping of arrays, each with dtype, shape and data")
        check_count("its model", len(model), most)
        return Content(version, precision, {path: array.stored(path) for path, array in model.items()})


class _Array(dict[str, Any]):
    """An object that has what an array needs."""

    def stored(self, path: str) -> Stored:
        data = self.pop("data")  # the text is not needed any more, and is the larger one
        if not isinstance(data, str):
            raise LearnerError(f"{path!r} has data that is no text")
        return stored_from(path, self["dtype"], self["shape"], binascii.a2b_base64(data, strict_mode=True))


def _map(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = without_twins(pairs)
    return _Array(made) if made.keys() == {"dtype", "shape", "data"} else made


def _refuse(constant: str) -> None:
    raise LearnerError(f"it has {constant}, which is no JSON")
