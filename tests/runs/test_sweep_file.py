"""Tests of the file of a sweep."""

import json

import pytest

from learner.runs.sweep_file import NAME, refuse_other_sweep, write_sweep
from tests.support.codes import raises_code

CONFIG = {"num_epochs": 2, "model": "my.MLP", "model.features": [64, 10]}
MEMBERS = [{"directory": f"00{i}-lr={lr}", "values": {"lr": lr}} for i, lr in enumerate((0.1, float("inf")))]


def test_equal_sweep_is_accepted(tmp_path):
    refuse_other_sweep(tmp_path / "sweep", CONFIG, MEMBERS)
    write_sweep(tmp_path / "sweep", CONFIG, MEMBERS)
    (tmp_path / "sweep" / "000-lr=0.1").mkdir()
    refuse_other_sweep(tmp_path / "sweep", CONFIG, MEMBERS)
    content = json.loads((tmp_path / "sweep" / NAME).read_text())
    assert content["config"] == CONFIG
    assert content["members"][1] == {"directory": "001-lr=inf", "values": {"lr": "Infinity"}}


def test_different_sweep_is_refused(tmp_path):
    write_sweep(tmp_path, CONFIG, MEMBERS)
    with raises_code("sweep-different", "num_epochs was 2 and is 3", "seed was - and is 1"):
        refuse_other_sweep(tmp_path, CONFIG | {"num_epochs": 3, "seed": 1}, MEMBERS)
    with raises_code("sweep-different", "2 members", "has 1"):
        refuse_other_sweep(tmp_path, CONFIG, MEMBERS[:1])
    with raises_code("sweep-different", "000-lr=0.1 is 001-lr=inf now"):
        refuse_other_sweep(tmp_path, CONFIG, MEMBERS[::-1])
    with raises_code("sweep-different", "000-lr=0.1 has other values"):
        refuse_other_sweep(tmp_path, CONFIG, [{**MEMBERS[0], "values": {"lr": 0.10001}}, MEMBERS[1]])


def test_directory_with_a_run_or_members_without_a_sweep_is_refused(tmp_path):
    (tmp_path / "000-lr=0.1").mkdir()
    with raises_code("sweep-directory-used", "000-lr=0.1"):
        refuse_other_sweep(tmp_path, CONFIG, MEMBERS)
    (tmp_path / "journal.jsonl").touch()
    with raises_code("sweep-directory-used", "holds a run"):
        refuse_other_sweep(tmp_path, CONFIG, MEMBERS)


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"config": 1, "members": []}', '{"config": {}, "members": [1]}', "[" * 100_000]
)
def test_damaged_file_is_refused(tmp_path, text):
    (tmp_path / NAME).write_text(text)
    with raises_code("sweep-file-damaged", NAME):
        refuse_other_sweep(tmp_path, CONFIG, MEMBERS)
