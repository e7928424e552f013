"""JSON, as Python's own module reads it."""

import base64
import json

import numpy as np

from learner.records import JsonRecorder

MODEL = {"head": {'ker\u00e4nel "1"': np.float32([[1.0, -2.0]])}, "limits": np.float32([np.nan, np.inf])}


def test_another_library_reads_what_is_written():
    content = json.loads(JsonRecorder().to_bytes(MODEL))
    assert [content.pop(name) for name in ("format", "version", "precision")] == ["learner.record", 1, "full"]
    (path, kernel), (_, limits) = content.pop("model").items()
    assert path == 'head.ker\u00e4nel "1"'
    assert kernel["dtype"] == "float32"
    assert kernel["shape"] == [1, 2]
    assert np.frombuffer(base64.b64decode(kernel["data"]), np.float32).tolist() == [1, -2]
    assert base64.b64decode(limits["data"]) == np.float32([np.nan, np.inf]).tobytes()
    assert content == {}


def test_what_another_library_wrote_is_read():
    content = json.loads(JsonRecorder().to_bytes(MODEL))
    data = json.dumps(content, indent=4, sort_keys=True, ensure_ascii=False).encode()
    loaded = JsonRecorder().from_bytes(
        data, {"head": {'ker\u00e4nel "1"': np.zeros((1, 2), np.float32)}, "limits": np.zeros(2)}
    )
    assert loaded["head"]['ker\u00e4nel "1"'].tolist() == [[1, -2]]
    np.testing.assert_array_equal(loaded["limits"], [np.nan, np.inf])
