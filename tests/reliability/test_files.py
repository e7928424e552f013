"""Checkpoint files that are cut off, damaged, or cannot be written."""

import shutil

import pytest
from runs import build_line, journal_of, logs_of, quiet, saved_steps, shuffled, tree_of, valid_data

from learner import LearnerError
from learner.checkpoint import DamagedError

pytestmark = pytest.mark.usefixtures("compiled_once")


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGES = {"truncated": lambda p: p.write_bytes(p.read_bytes()[:-1]), "flipped": flip, "deleted": lambda p: p.unlink()}


def build(directory, epochs=3):
    return build_line(quiet(directory).num_epochs(epochs).with_file_checkpointer(keep_last=3).resume())


@pytest.fixture(scope="module")
def three(tmp_path_factory, compiled_once):
    """A run of three epochs with all its checkpoints."""
    directory = tmp_path_factory.mktemp("three") / "run"
    build(directory).fit(shuffled(), valid_data())
    return directory


@pytest.fixture
def copy(three, tmp_path):
    shutil.copytree(three, tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("name", ["manifest.json", "progress/metadata", "model/manifest.ocdbt"])
def test_truncate_each_file(copy, three, name, how):
    """`resume` goes on from the one before, says so, and ends like a run that was never damaged."""
    DAMAGES[how](copy / "checkpoint" / "18" / name)
    build(copy, 4).fit(shuffled(), valid_data())
    log = (copy / "experiment.log").read_text()
    (warning,) = [line for line in log.splitlines() if "WARNING" in line]
    assert f"{copy}/checkpoint/18 is damaged: {name}" in warning
    assert "goes on from the checkpoint of step 12" in warning
    assert (copy / "superseded" / "1" / "checkpoint" / "18").is_dir()
    whole = copy.parent / "whole"
    build(whole, 4).fit(shuffled(), valid_data())
    assert logs_of(copy) == logs_of(whole)
    assert saved_steps(copy) == saved_steps(whole)
    assert [line["step"] for line in journal_of(copy) if line["event"] == "start"] == [0, 12]


@pytest.mark.parametrize("asked", [{"epoch": 3}, {"step": 18}, {"epoch": "latest"}])
def test_flip_one_byte(copy, asked):
    """A checkpoint that was asked for by name is not replaced by another."""
    flip(copy / "checkpoint" / "18" / "optim" / "_METADATA")
    before = tree_of(copy)
    learner = build_line(quiet(copy).num_epochs(4).with_file_checkpointer(keep_last=3).checkpoint(**asked))
    with pytest.raises(DamagedError, match="18 is damaged: optim/_METADATA has other bytes"):
        learner.fit(shuffled(), valid_data())
    assert tree_of(copy) == before


def test_all_of_them_are_damaged(copy):
    for step in saved_steps(copy):
        flip(copy / "checkpoint" / str(step) / "manifest.json")
    before = tree_of(copy)
    with pytest.raises(LearnerError, match="no checkpoint that could be used") as error:
        build(copy, 4).fit(shuffled(), valid_data())
    assert all(f"checkpoint/{step} is damaged" in str(error.value) for step in (6, 12, 18))
    assert "overwrite=True" in str(error.value)
    assert tree_of(copy) == before


def test_the_best_model_of_those_that_are_left(copy):
    """The losses fall, so that the newest is the best."""
    best = build(copy).fit(shuffled(), valid_data()).best_model
    flip(copy / "checkpoint" / "18" / "model" / "_METADATA")
    second = build(copy, 3).fit(shuffled(), valid_data())
    assert second.best_model["w"].tolist() == best["w"].tolist()  # it trained the third epoch again
    assert saved_steps(copy) == [6, 12, 18]
