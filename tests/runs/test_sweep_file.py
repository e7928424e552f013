"""Tests of the file of a sweep."""

import json

import pytest

from learner.runs.lock import locked
from learner.runs.sweep_file import NAME, read_members, refuse_other_sweep, write_sweep
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


def train(directory, event="epoch"):
    """Write the journal of a run whose last event is this one."""
    directory.mkdir()
    lines = [{"event": "start"}, {"event": event, "epoch": 1, "step": 1, "values": {}}]
    (directory / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_different_sweep_is_refused(tmp_path):
    write_sweep(tmp_path, CONFIG, MEMBERS)
    for each in MEMBERS:
        train(tmp_path / each["directory"])
    with raises_code("sweep-different", "num_epochs was 2 and is 1", "seed was - and is 1"):
        refuse_other_sweep(tmp_path, CONFIG | {"num_epochs": 1, "seed": 1}, MEMBERS)
    with raises_code("sweep-different", "2 members", "has 1"):
        refuse_other_sweep(tmp_path, CONFIG, MEMBERS[:1])
    with raises_code("sweep-different", "has trained 001-lr=inf,"):
        refuse_other_sweep(tmp_path, CONFIG, MEMBERS[:1], may_grow=True)
    with raises_code("sweep-different", "has trained 000-lr=0.1,"):
        refuse_other_sweep(tmp_path, CONFIG, [{**MEMBERS[0], "values": {"lr": 0.10001}}, MEMBERS[1]])


def test_keys_that_a_sweep_has_in_addition_are_named(tmp_path):
    config = CONFIG | {"seed": 0}
    write_sweep(tmp_path, config, MEMBERS)
    train(tmp_path / "000-lr=0.1")
    axes = [{"directory": "002-lr=0.1-seed=0-b=1", "values": {"lr": 0.1, "seed": 0, "b": 1}}]
    with raises_code("sweep-different", "this one also sweeps seed, which was 0, and b;"):
        refuse_other_sweep(tmp_path, CONFIG, axes, may_grow=True)


def test_members_that_have_not_trained_may_change(tmp_path):
    """The file keeps them, so that no other member gets their directory."""
    write_sweep(tmp_path, CONFIG, MEMBERS)
    train(tmp_path / "000-lr=0.1")
    train(tmp_path / "001-lr=inf", event="error")
    changed = [MEMBERS[0], {"directory": "002-lr=0.2", "values": {"lr": 0.2}}]
    refuse_other_sweep(tmp_path, CONFIG, changed, may_grow=True)
    write_sweep(tmp_path, CONFIG, changed)
    assert [each["directory"] for each in read_members(tmp_path)] == ["000-lr=0.1", "001-lr=inf", "002-lr=0.2"]
    with raises_code("sweep-different", "seed was - and is 1"):
        refuse_other_sweep(tmp_path, CONFIG | {"seed": 1}, changed, may_grow=True)


def test_sweep_that_has_not_trained_may_be_replaced(tmp_path):
    write_sweep(tmp_path, CONFIG, MEMBERS)
    train(tmp_path / "000-lr=0.1", event="error")
    other = [{"directory": "000-lr=3", "values": {"lr": 3}}]
    refuse_other_sweep(tmp_path, {"seed": 1}, other)
    with locked(tmp_path / "000-lr=0.1"), raises_code("sweep-different", "num_epochs was 2"):  # it has just started
        refuse_other_sweep(tmp_path, {"seed": 1}, MEMBERS)
    with raises_code("sweep-different", "num_epochs was 2"):
        train(tmp_path / "001-lr=inf", event="save")
        refuse_other_sweep(tmp_path, {"seed": 1}, MEMBERS)
    (tmp_path / "001-lr=inf" / "journal.jsonl").unlink()
    write_sweep(tmp_path, {"seed": 1}, other)
    assert json.loads((tmp_path / NAME).read_text()) == {"config": {"seed": 1}, "members": other}


def test_directory_with_a_run_or_members_without_a_sweep_is_refused(tmp_path):
    (tmp_path / "000-lr=0.1").mkdir()
    with raises_code("sweep-directory-used", "000-lr=0.1"):
        refuse_other_sweep(tmp_path, CONFIG, MEMBERS)
    (tmp_path / "journal.jsonl").touch()
    with raises_code("sweep-directory-used", "holds a run"):
        refuse_other_sweep(tmp_path, CONFIG, MEMBERS)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        '{"config": 1, "members": []}',
        '{"config": {}, "members": [1]}',
        '{"config": {}, "members": [{"directory": "000-lr=0.1"}]}',
        "[" * 100_000,
    ],
)
def test_damaged_file_is_refused(tmp_path, text):
    (tmp_path / NAME).write_text(text)
    with raises_code("sweep-file-damaged", NAME):
        refuse_other_sweep(tmp_path, CONFIG, MEMBERS)
