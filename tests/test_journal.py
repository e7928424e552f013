"""The lines of the journal."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.errors import LearnerError
from learner.journal import decode, encode, read_journal


@given(st.floats())
def test_every_number_survives(number):
    text = json.dumps(encode(number), allow_nan=False)
    back = decode(json.loads(text))
    assert back == number or (math.isnan(back) and math.isnan(number))


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (np.float32(0.5), 0.5),
        (np.float32("nan"), "NaN"),
        (np.int32(3), 3),
        (np.bool_(True), True),
        (None, None),
        (True, True),
        ("text", "text"),
        (Path("a/b"), "a/b"),
        ({"a": (1, [math.inf, -math.inf])}, {"a": [1, ["Infinity", "-Infinity"]]}),
    ],
)
def test_what_becomes_of_other_values(value, encoded):
    assert encode(value) == encoded
    assert type(encode(value)) is type(encoded)


def test_texts_are_not_numbers():
    assert [decode(value) for value in ("nan", "inf", "12", None, True, 3)] == ["nan", "inf", "12", None, True, 3]


@pytest.mark.parametrize("torn", [b"", b'{"event": "epo', b'{"event": "epoch"}', b"\xff\xfe"])
def test_a_torn_last_line_is_left_out(tmp_path, torn):
    (tmp_path / "journal.jsonl").write_bytes(b'{"event": "start"}\n' + torn)
    assert read_journal(tmp_path) == [(b'{"event": "start"}', {"event": "start"})]


@pytest.mark.parametrize("damaged", [b'{"event": "epo', b"\x00\x00", b"[1]", b""])
def test_a_damaged_line_is_named(tmp_path, damaged):
    (tmp_path / "journal.jsonl").write_bytes(b'{"event": "start"}\n' + damaged + b'\n{"event": "end"}\n')
    with pytest.warns(UserWarning, match=r"journal\.jsonl, line 2 is damaged"):
        entries = read_journal(tmp_path)
    assert entries == [
        (b'{"event": "start"}', {"event": "start"}),
        (damaged, {}),
        (b'{"event": "end"}', {"event": "end"}),
    ]


def test_a_directory_without_a_run_is_named(tmp_path):
    (tmp_path / "file").touch()
    for place in (tmp_path, tmp_path / "missing", tmp_path / "file"):
        with pytest.raises(LearnerError, match=f"{place} has no journal"):
            read_journal(place)
