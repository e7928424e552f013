"""The directory of a run: never mixed with another, never more removed than a run wrote."""

import json
import os
from pathlib import Path

import pytest
from runs import (
    STEPS,
    batches,
    build_line,
    journal_of,
    logs_of,
    model_bits,
    quiet,
    saved_steps,
    shuffled,
    tree_of,
    valid_data,
)

from learner import LearnerError
from learner.directory import holds_run, prepare, problem_with, read_summary, refuse_run, remove_run

pytestmark = pytest.mark.usefixtures("compiled_once")


def write(directory, *paths):
    for path in paths:
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text("mine")


OURS = [
    "journal.jsonl",
    "experiment.log",
    "config.yaml",
    "model.json",
    "summary.json",
    "checkpoint/6/model/d/0",
    "checkpoint/12.partial.orbax-checkpoint-tmp/model/d/0",
    "superseded/1/checkpoint/18/model/d/0",
    "superseded/1/train/epoch-3/Loss.log",
    "train/epoch-1/Loss.log",
    "valid/epoch-1/Loss.log",
    "valid-ood/epoch-12/Top-5_Accuracy.log",
    "custom/epoch-1/norm.log",
    "metrics.jsonl",
    "metrics.csv",
    "mlflow.json",
    "wandb.json",
    "tensorboard/events.out.tfevents.1700000000.host.learner",
]
THEIRS = [
    "notes.md",
    "model.py",
    "checkpoint/readme.txt",
    "checkpoint/best/model",
    "superseded/why.txt",
    "train/data.csv",
    "train/epoch-1/notes.txt",
    "train/epoch-x/Loss.log",
    "data/epoch-1/download.log",
    "valid-ood/images/1.png",
    "wandb/offline-run-1/run.wandb",
    "tensorboard-of-others/events.out.tfevents.1700000000.host.learner",
]


# -- what is a run -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("left", ["journal.jsonl", "checkpoint/6/model/d/0", "train/epoch-1/Loss.log"])
def test_a_part_of_a_run_is_one(tmp_path, left):
    write(tmp_path, left)
    assert holds_run(tmp_path)


def test_other_files_are_no_run(tmp_path):
    write(tmp_path, *THEIRS)
    assert not holds_run(tmp_path)
    assert not holds_run(tmp_path / "nothing")


def test_a_run_is_refused_with_what_can_be_done(tmp_path):
    write(tmp_path, "journal.jsonl")
    with pytest.raises(LearnerError) as error:
        refuse_run(tmp_path, overwrite=False)
    assert str(tmp_path) in str(error.value)
    assert "resume()" in str(error.value)
    assert "overwrite=True" in str(error.value)
    refuse_run(tmp_path, overwrite=True)
    refuse_run(tmp_path / "nothing", overwrite=False)


def test_only_what_a_run_wrote_is_removed(tmp_path):
    write(tmp_path, *OURS, *THEIRS)
    (tmp_path / "empty").mkdir()
    remove_run(tmp_path)
    assert set(tree_of(tmp_path)) == set(THEIRS)
    assert (tmp_path / "empty").is_dir()
    assert not (tmp_path / "custom").exists()
    assert not (tmp_path / "valid-ood" / "epoch-12").exists()
    assert not holds_run(tmp_path)


def test_a_run_alone_leaves_nothing(tmp_path):
    write(tmp_path / "run", *OURS)
    remove_run(tmp_path / "run")
    assert list((tmp_path / "run").iterdir()) == []


def test_checkpoints_behind_a_link_are_removed_and_the_link_stays(tmp_path):
    (tmp_path / "big").mkdir()
    write(tmp_path / "run", "journal.jsonl")
    (tmp_path / "run" / "checkpoint").symlink_to(tmp_path / "big")
    write(tmp_path / "big", "6/model/d/0", "others.txt")
    remove_run(tmp_path / "run")
    assert set(tree_of(tmp_path / "big")) == {"others.txt"}
    assert (tmp_path / "run" / "checkpoint").is_symlink()


def test_nothing_is_removed_behind_other_links(tmp_path):
    """Neither a checkpoint, nor a split, an epoch or a log that is a link takes with it what it leads to."""
    run, other = tmp_path / "run", tmp_path / "other"
    write(other, "7/model", "epoch-1/Loss.log", "Loss.log", "events.out.tfevents.1700000000.host.learner")
    write(run, "journal.jsonl", "checkpoint/6/model", "valid/epoch-1/Loss.log", "train/epoch-1/Loss.log")
    (run / "checkpoint/7").symlink_to(other / "7")
    (run / "valid-linked").symlink_to(other)
    (run / "tensorboard").symlink_to(other)
    (run / "valid/epoch-2").symlink_to(other / "epoch-1")
    (run / "train/epoch-1/Linked.log").symlink_to(other / "Loss.log")
    before = tree_of(other)
    assert holds_run(run)
    remove_run(run)
    assert tree_of(other) == before
    assert not holds_run(run)
    left = sorted(p.relative_to(run).as_posix() for p in run.rglob("*"))
    assert left == ["tensorboard", "valid", "valid-linked", "valid/epoch-2"]


def test_prepare(tmp_path):
    prepare(tmp_path / "a" / "b", keep=False)
    assert (tmp_path / "a" / "b").is_dir()
    write(tmp_path / "run", *OURS, *THEIRS)
    prepare(tmp_path / "run", keep=True)
    assert set(tree_of(tmp_path / "run")) == {*OURS, *THEIRS}
    prepare(tmp_path / "run", keep=False)
    assert set(tree_of(tmp_path / "run")) == set(THEIRS)


def test_read_summary(tmp_path):
    assert read_summary(tmp_path) is None
    write(tmp_path, "summary.json")
    assert read_summary(tmp_path) is None
    (tmp_path / "summary.json").write_text(json.dumps({"steps": 3}))
    assert read_summary(tmp_path) == {"steps": 3}


@pytest.mark.parametrize("content", ["[1]", "null", '"text"', "[" * 100_000, "9" * 5000])
def test_a_summary_that_is_none(tmp_path, content):
    (tmp_path / "summary.json").write_text(content)
    assert read_summary(tmp_path) is None


def test_a_summary_that_has_no_end_is_not_read(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "summary.json")
    monkeypatch.setattr(Path, "read_text", lambda path: pytest.fail("this would never end"))
    assert read_summary(tmp_path) is None


# -- where nothing can be written --------------------------------------------------------------------------------------


def test_a_directory_that_can_be_made_is_no_problem(tmp_path):
    assert problem_with(tmp_path) is None
    assert problem_with(tmp_path / "a" / "b" / "c") is None
    assert problem_with(Path("runs/somewhere")) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("below", ["", "run", "a/b/run"])
def test_a_file_in_the_way(tmp_path, below):
    write(tmp_path, "file")
    problem = problem_with(tmp_path / "file" / below)
    assert f"{tmp_path / 'file'} is a file" in problem
    with pytest.raises(LearnerError, match="is a file"):
        build_line(quiet(tmp_path / "file" / below))


def test_a_directory_that_is_not_writable(tmp_path, monkeypatch):
    """Permissions do not stop root, so the answer of the system is stood in for."""
    asked = []
    monkeypatch.setattr(os, "access", lambda path, mode: asked.append((Path(path), mode)))
    assert problem_with(tmp_path / "a" / "run") == f"the directory {tmp_path / 'a' / 'run'} is not writable"
    assert asked == [(tmp_path, os.W_OK | os.X_OK)]
    with pytest.raises(LearnerError, match="is not writable"):
        build_line(quiet(tmp_path / "run"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_is_really_not_writable(tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(LearnerError, match="is not writable"):
        build_line(quiet(tmp_path / "locked" / "run"))


def test_a_file_that_comes_between_build_and_fit(tmp_path):
    learner = build_line(quiet(tmp_path / "run"))
    write(tmp_path, "run")
    with pytest.raises(LearnerError, match="run is a file"):
        learner.fit(batches())
    assert set(tree_of(tmp_path)) == {"run"}


def test_a_checkpoint_directory_that_is_a_file(tmp_path):
    write(tmp_path, "file")
    learner = build_line(quiet(tmp_path / "run").with_file_checkpointer(directory=tmp_path / "file" / "c"))
    with pytest.raises(LearnerError, match="file is a file"):
        learner.fit(batches())
    assert set(tree_of(tmp_path)) == {"file"}


# -- runs --------------------------------------------------------------------------------------------------------------


def test_a_second_run_is_refused_and_changes_nothing(tmp_path):
    build_line(quiet(tmp_path / "run")).fit(batches())
    before = tree_of(tmp_path)
    with pytest.raises(LearnerError, match=r"holds a run.*resume\(\).*overwrite=True"):
        build_line(quiet(tmp_path / "run")).fit(batches())
    assert tree_of(tmp_path) == before


def test_a_run_whose_journal_is_gone_is_refused(tmp_path):
    build_line(quiet(tmp_path / "run")).fit(batches())
    (tmp_path / "run" / "journal.jsonl").unlink()
    before = tree_of(tmp_path)
    with pytest.raises(LearnerError, match="holds a run"):
        build_line(quiet(tmp_path / "run")).fit(batches())
    assert tree_of(tmp_path) == before


def test_overwriting(tmp_path):
    """What is there afterwards is what a run in an empty directory leaves, and the user's files."""
    builder = quiet(tmp_path / "run", saves=True).num_epochs(4).with_file_checkpointer(keep_last=4)
    build_line(builder).fit(shuffled(), {"old": valid_data()})
    write(tmp_path / "run", *THEIRS)
    again = build_line(quiet(tmp_path / "run", overwrite=True, saves=True).num_epochs(2)).fit(batches(), valid_data())
    fresh = build_line(quiet(tmp_path / "fresh", saves=True).num_epochs(2)).fit(batches(), valid_data())
    assert model_bits(again.model) == model_bits(fresh.model)
    kept = {path for path in tree_of(tmp_path / "run") if path not in THEIRS and not path.startswith("checkpoint/")}
    assert kept == {path for path in tree_of(tmp_path / "fresh") if not path.startswith("checkpoint/")}
    mine = {path: text for path, (text, _) in tree_of(tmp_path / "run").items() if path in THEIRS}
    assert mine == dict.fromkeys(THEIRS, b"mine")
    assert saved_steps(tmp_path / "run") == saved_steps(tmp_path / "fresh") == [2 * STEPS]
    assert [entry["event"] for entry in journal_of(tmp_path / "run")].count("start") == 1


def test_files_that_are_no_run_are_no_hindrance(tmp_path):
    write(tmp_path / "run", *THEIRS)
    build_line(quiet(tmp_path / "run")).fit(batches())
    assert set(THEIRS) <= set(tree_of(tmp_path / "run"))
    assert "train/epoch-1/Loss.log" in logs_of(tmp_path / "run")


def test_overwrite_and_resume_goes_on(tmp_path):
    build_line(quiet(tmp_path / "run", saves=True).num_epochs(1)).fit(batches())
    result = build_line(quiet(tmp_path / "run", overwrite=True, saves=True).num_epochs(2).resume()).fit(batches())
    assert len(result.history["train/Loss"]) == 2
    assert [entry["step"] for entry in journal_of(tmp_path / "run") if entry["event"] == "start"] == [0, STEPS]


@pytest.mark.parametrize("relative", [False, True])
def test_checkpoints_elsewhere(tmp_path, monkeypatch, relative):
    monkeypatch.chdir(tmp_path)
    place = "elsewhere" if relative else str(tmp_path / "elsewhere")
    make = lambda name, **options: quiet(tmp_path / name, **options).with_file_checkpointer(directory=place)  # noqa: E731
    first = build_line(make("one").num_epochs(2)).fit(shuffled())
    assert [entry["step"] for entry in first.summary["checkpoints"]] == [6, 12]
    assert not (tmp_path / "one" / "checkpoint").exists()
    before = tree_of(tmp_path)
    with pytest.raises(LearnerError, match=r"elsewhere holds the checkpoints of a run.*overwrite=True"):
        build_line(make("two")).fit(shuffled())
    assert tree_of(tmp_path) == before
    more = build_line(make("one").num_epochs(3).resume()).fit(shuffled())
    assert more.summary["steps"] == 3 * STEPS
    build_line(make("one", overwrite=True).num_epochs(1)).fit(shuffled())
    assert sorted(path.name for path in (tmp_path / "elsewhere").iterdir()) == ["6"]
