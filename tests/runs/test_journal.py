"""Tests of the lines of the journal."""

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.runs.journal import read_journal
from learner.util.json_values import decode, encode
from tests.support.codes import raises_code


@given(st.floats())
def test_numbers_round_trip(number):
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
def test_other_values_are_encoded(value, encoded):
    assert encode(value) == encoded
    assert type(encode(value)) is type(encoded)


def test_texts_are_not_decoded_as_numbers():
    assert [decode(value) for value in ("nan", "inf", "12", None, True, 3)] == ["nan", "inf", "12", None, True, 3]


@pytest.mark.parametrize("torn", [b"", b'{"event": "epo', b'{"event": "epoch"}', b"\xff\xfe"])
def test_torn_last_line_is_skipped(tmp_path, torn):
    (tmp_path / "journal.jsonl").write_bytes(b'{"event": "start"}\n' + torn)
    assert read_journal(tmp_path) == [(b'{"event": "start"}', {"event": "start"})]


def epoch(**changes):
    """Return a line of an epoch, with changes."""
    line = {"event": "epoch", "epoch": 1, "step": 45, "values": {"train/Loss": 0.5}}
    return json.dumps({**line, **changes}).encode()


@pytest.mark.parametrize(
    "damaged",
    [
        b'{"event": "epo',
        b"\x00\x00",
        b"[1]",
        b"",
        b"[" * 100_000,
        b'{"event": ' * 100_000,
        b'{"step": ' + b"9" * 5000 + b"}",
        b'{"event": "epoch"}',
        epoch(epoch="1"),
        epoch(step=None),
        epoch(values=[1]),
        epoch(values={"Loss": 0.5}),
        epoch(values={"train/Loss": [0.5]}),
        epoch(values={"train/Loss": None}),
        epoch(values={"train/Loss": 10**400}),
    ],
)
def test_damaged_line_is_reported(tmp_path, damaged):
    (tmp_path / "journal.jsonl").write_bytes(b'{"event": "start"}\n' + damaged + b'\n{"event": "end"}\n')
    with pytest.warns(UserWarning, match=r"journal\.jsonl, line 2 is damaged"):
        entries = read_journal(tmp_path)
    assert entries == [
        (b'{"event": "start"}', {"event": "start"}),
        (damaged, {}),
        (b'{"event": "end"}', {"event": "end"}),
    ]


def test_valid_lines_of_numbers_are_read(tmp_path):
    """Each damaged line above differs from these in one field."""
    values = {"train/Loss": 0.5, "valid/Loss": "NaN", "valid/Rows": 10**300, "valid/a/b": 1}
    lines = [epoch(), epoch(event="validation", values=values), epoch(event="save", values=None)]
    (tmp_path / "journal.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    assert [line for line, entry in read_journal(tmp_path) if entry == json.loads(line)] == lines


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.symlink("/dev/zero", path)], ids=["pipe", "device"])
def test_pipes_and_devices_are_not_read(tmp_path, monkeypatch, make):
    make(tmp_path / "journal.jsonl")
    monkeypatch.setattr(Path, "read_bytes", lambda path: pytest.fail("reading would not end"))
    with raises_code("run-not-a-run", directory=str(tmp_path)):
        read_journal(tmp_path)


def test_directory_without_a_run_is_refused(tmp_path):
    (tmp_path / "file").touch()
    for place in (tmp_path, tmp_path / "missing", tmp_path / "file"):
        with raises_code("run-not-a-run", directory=str(place)):
            read_journal(place)
