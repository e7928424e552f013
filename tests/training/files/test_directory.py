"""Tests of the run directory: runs are never mixed, and only files of a run are removed."""

import io
import json
import os
import re
import resource
import shutil
import sys
from pathlib import Path

import psutil
import pytest

from learner import LearnerError
from learner.loggers import Csv
from learner.renderers import PlainRenderer
from learner.runs import RunReader
from learner.runs.history import read_history
from learner.runs.journal import read_journal
from learner.runs.layout import read_summary
from learner.training.files.directory import holds_run, prepare, problem_with, refuse_foreign, refuse_run, remove_run
from tests.support.codes import raises_code
from tests.support.runs import (
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

pytestmark = pytest.mark.usefixtures("compiled_once")


def write(directory, *paths):
    for path in paths:
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text("mine")
        if match := re.fullmatch(r".*checkpoint/(\d+)/manifest\.json", path):
            manifest = {"format": 1, "step": int(match[1]), "files": {}, "sha256": ""}
            (directory / path).write_text(json.dumps(manifest))
        if path == "wandb.json":
            state = {"format": 1, "id": "0123456789ab", "step": 0, "row": 0, "splits": {}, "names": {}}
            (directory / path).write_text(json.dumps(state))


OURS = [
    "journal.jsonl",
    "experiment.log",
    "config.yaml",
    "model.json",
    "summary.json",
    "checkpoint/6/manifest.json",
    "checkpoint/6/model/d/0",
    "checkpoint/12.partial.orbax-checkpoint-tmp/model/d/0",
    "superseded/1/checkpoint/18/manifest.json",
    "superseded/1/checkpoint/18/model/d/0",
    "superseded/1/journal.jsonl",
    "superseded/1/train/epoch-3/Loss.log",
    "train/epoch-1/Loss.log",
    "valid/epoch-1/Loss.log",
    "valid-ood/epoch-12/Top-5_Accuracy.log",
    "custom/epoch-1/norm.log",
    "metrics.jsonl",
    "metrics.csv",
    "mlflow.json",
    "wandb.json",
    "wandb/run-20261127_201700-0123456789ab/files/output.log",
    "wandb/offline-run-20261127_201758-0123456789ab-f50b767936d9/run-0123456789ab.wandb",
    "tensorboard/events.out.tfevents.1700000000.host.learner",
]
THEIRS = [
    "notes.md",
    "model.py",
    "checkpoint/readme.txt",
    "checkpoint/best/model",
    "checkpoint/2023/photo.raw",
    "checkpoint/2024/model/photo.raw",
    "checkpoint/7.partial/photo.raw",
    "superseded/2023/photo.raw",
    "superseded/2/checkpoint/4/photo.raw",
    "superseded/why.txt",
    "train/data.csv",
    "train/epoch-1/notes.txt",
    "train/epoch-x/Loss.log",
    "data/epoch-1/download.log",
    "valid-ood/images/1.png",
    "wandb/offline-run-1/run.wandb",
    "wandb/offline-run-20261127_201758-ba9876543210/run-ba9876543210.wandb",
    "tensorboard-of-others/events.out.tfevents.1700000000.host.learner",
]


# -- what is a run -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("left", ["journal.jsonl", "checkpoint/6/manifest.json", "train/epoch-1/Loss.log"])
def test_remains_of_a_run_are_a_run(tmp_path, left):
    write(tmp_path, left)
    assert holds_run(tmp_path)


def test_other_files_are_not_a_run(tmp_path):
    write(tmp_path, *THEIRS)
    assert not holds_run(tmp_path)
    assert not holds_run(tmp_path / "nothing")


def test_the_error_of_an_existing_run_names_the_remedies(tmp_path):
    write(tmp_path, "journal.jsonl")
    with pytest.raises(LearnerError) as error:
        refuse_run(tmp_path, overwrite=False)
    assert str(tmp_path) in str(error.value)
    assert "resume()" in str(error.value)
    assert "overwrite=True" in str(error.value)
    refuse_run(tmp_path, overwrite=True)
    refuse_run(tmp_path / "nothing", overwrite=False)


def test_only_files_of_a_run_are_removed(tmp_path):
    write(tmp_path, *OURS, *THEIRS)
    (tmp_path / "empty").mkdir()
    remove_run(tmp_path)
    assert set(tree_of(tmp_path)) == set(THEIRS)
    assert (tmp_path / "empty").is_dir()
    assert not (tmp_path / "custom").exists()
    assert not (tmp_path / "valid-ood" / "epoch-12").exists()
    assert not holds_run(tmp_path)


def test_removing_a_run_leaves_an_empty_directory(tmp_path):
    write(tmp_path / "run", *OURS)
    remove_run(tmp_path / "run")
    assert list((tmp_path / "run").iterdir()) == []


def test_checkpoints_behind_a_link_are_kept(tmp_path):
    """A new run refuses the link; `with_file_checkpointer(directory=...)` is the way to save elsewhere."""
    write(tmp_path / "run", "journal.jsonl")
    (tmp_path / "run" / "checkpoint").symlink_to(tmp_path / "big")
    write(tmp_path / "big", "6/manifest.json", "6/model/d/0", "checkpoint/6/manifest.json")
    before = tree_of(tmp_path / "big")
    remove_run(tmp_path / "run")
    assert tree_of(tmp_path / "big") == before
    assert (tmp_path / "run" / "checkpoint").is_symlink()


def test_links_of_wandb_to_a_removed_run_go_with_it(tmp_path):
    """Of other runs, links and directories stay, and so do all without the id of the run."""
    own = "offline-run-20261127_201758-0123456789ab-f50b767936d9"
    write(tmp_path, "wandb.json", f"wandb/{own}/logs/debug.log")
    links = {
        "latest-run": own,
        "debug.log": f"{own}/logs/debug.log",
        "best": "offline-run-20261127_201758-ba9876543210",
        "here": ".",
    }
    for name, target in links.items():
        (tmp_path / "wandb" / name).symlink_to(target)
    (tmp_path / "wandb" / own / "logs" / "outside").symlink_to(tmp_path)
    remove_run(tmp_path)
    assert sorted(path.name for path in (tmp_path / "wandb").iterdir()) == ["best", "here"]

    write(tmp_path, f"wandb/{own}/run.wandb")
    for damaged in (None, "{", '{"id": ".*"}'):
        if damaged is not None:
            (tmp_path / "wandb.json").write_text(damaged)
        remove_run(tmp_path)
        assert (tmp_path / "wandb" / own / "run.wandb").is_file()


def test_files_behind_other_links_are_kept(tmp_path):
    """Removing a checkpoint, split, epoch or log that is a link keeps the link's target."""
    run, other = tmp_path / "run", tmp_path / "other"
    write(other, "7/model", "epoch-1/Loss.log", "Loss.log", "events.out.tfevents.1700000000.host.learner")
    write(run, "journal.jsonl", "checkpoint/6/manifest.json", "valid/epoch-1/Loss.log", "train/epoch-1/Loss.log")
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
    links = ["checkpoint/7", "tensorboard", "train/epoch-1/Linked.log", "valid-linked", "valid/epoch-2"]
    assert [path for path in left if (run / path).is_symlink()] == links
    assert len(left) == len(links) + 4  # the directories of the targets


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
def test_malformed_summaries_are_ignored(tmp_path, content):
    (tmp_path / "summary.json").write_text(content)
    assert read_summary(tmp_path) is None


def test_an_endless_summary_is_not_read(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "summary.json")
    monkeypatch.setattr(Path, "read_text", lambda path: pytest.fail("this would never end"))
    assert read_summary(tmp_path) is None


# -- unwritable places -------------------------------------------------------------------------------------------------


def test_a_directory_that_can_be_created_is_accepted(tmp_path):
    assert problem_with(tmp_path) is None
    assert problem_with(tmp_path / "a" / "b" / "c") is None
    assert problem_with(Path("runs/somewhere")) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("below", ["", "run", "a/b/run"])
def test_a_file_in_place_of_the_directory_is_refused(tmp_path, below):
    write(tmp_path, "file")
    problem = problem_with(tmp_path / "file" / below)
    assert f"{tmp_path / 'file'} is a file" in problem
    with pytest.raises(LearnerError, match="is a file"):
        build_line(quiet(tmp_path / "file" / below))


def test_a_directory_that_is_not_writable(tmp_path, monkeypatch):
    """Permissions do not apply to root, so the answer of the system is faked."""
    asked = []
    monkeypatch.setattr(os, "access", lambda path, mode: asked.append((Path(path), mode)))
    assert problem_with(tmp_path / "a" / "run") == f"the directory {tmp_path / 'a' / 'run'} is not writable"
    assert asked == [(tmp_path, os.W_OK | os.X_OK)]
    with pytest.raises(LearnerError, match="is not writable"):
        build_line(quiet(tmp_path / "run"))


def test_a_journal_that_is_not_writable(tmp_path, monkeypatch):
    (tmp_path / "journal.jsonl").touch()
    monkeypatch.setattr(os, "access", lambda path, mode: os.path.isdir(path))
    assert problem_with(tmp_path) == f"{tmp_path / 'journal.jsonl'} is not writable"


@pytest.mark.parametrize(("mode", "other", "is_refused"), [(0o1777, 1, True), (0o777, 1, False), (0o1777, 0, False)])
def test_files_of_another_user_below_a_sticky_directory(tmp_path, monkeypatch, mode, other, is_refused):
    (tmp_path / "journal.jsonl").touch()
    tmp_path.chmod(mode)
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + other)
    text = f"{tmp_path} is of another user, whose files cannot be replaced there (its sticky bit is set)"
    assert problem_with(tmp_path) == (text if is_refused else None)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_without_write_permission(tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(LearnerError, match="is not writable"):
        build_line(quiet(tmp_path / "locked" / "run"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may look anywhere")
@pytest.mark.parametrize("name", ["", "run"])
def test_a_directory_without_search_permission(tmp_path, name):
    (tmp_path / "closed").mkdir(mode=0)
    with pytest.raises(LearnerError, match="is not writable"):
        build_line(quiet(tmp_path / "closed" / name))


def test_a_file_created_between_build_and_fit_is_refused(tmp_path):
    learner = build_line(quiet(tmp_path / "run"))
    write(tmp_path, "run")
    with pytest.raises(LearnerError, match="run is a file"):
        learner.fit(batches())
    assert set(tree_of(tmp_path)) == {"run"}


def test_a_file_in_place_of_the_checkpoint_directory_is_refused(tmp_path):
    write(tmp_path, "file")
    learner = build_line(quiet(tmp_path / "run").with_file_checkpointer(directory=tmp_path / "file" / "c"))
    with pytest.raises(LearnerError, match="file is a file"):
        learner.fit(batches())
    assert set(tree_of(tmp_path)) == {"file"}


# -- runs --------------------------------------------------------------------------------------------------------------


def test_a_second_run_is_refused_and_changes_nothing(tmp_path):
    """Other files do not prevent a run; a run without its journal does."""
    write(tmp_path / "run", *THEIRS)
    build_line(quiet(tmp_path / "run")).fit(batches())
    assert set(THEIRS) <= set(tree_of(tmp_path / "run"))
    assert "train/epoch-1/Loss.log" in logs_of(tmp_path / "run")
    before = tree_of(tmp_path)
    with raises_code("directory-holds-run"):
        build_line(quiet(tmp_path / "run")).fit(batches())
    assert tree_of(tmp_path) == before
    (tmp_path / "run" / "journal.jsonl").unlink()
    before = tree_of(tmp_path)
    with pytest.raises(LearnerError, match="holds a run"):
        build_line(quiet(tmp_path / "run")).fit(batches())
    assert tree_of(tmp_path) == before


@pytest.mark.parametrize("name", ["config.yaml", "model.json", "summary.json"])
def test_files_of_the_user_are_not_replaced(tmp_path, name):
    write(tmp_path, name)
    with raises_code("directory-unusable") as error:
        refuse_foreign(tmp_path, ["train"], config=True)
    assert f"no run wrote {tmp_path / name}, and a run would replace it: move it" in str(error.value)
    if name != "config.yaml":
        with raises_code("directory-unusable"):
            build_line(quiet(tmp_path)).fit(batches())
    assert tree_of(tmp_path).keys() == {name}
    assert (tmp_path / name).read_text() == "mine"


def test_remains_of_a_run_may_be_replaced(tmp_path):
    """A `config.yaml` may stay if the run writes none, and a file truncated by a crash may be replaced."""
    build_line(quiet(tmp_path)).fit(batches())
    kept = [path for path in tmp_path.iterdir() if path.name in ("model.json", "summary.json")]
    assert len(kept) == 2
    (tmp_path / "journal.jsonl").unlink()
    shutil.rmtree(tmp_path / "train")
    write(tmp_path, "config.yaml")
    assert not holds_run(tmp_path)
    refuse_foreign(tmp_path, ["train"])
    os.truncate(tmp_path / "config.yaml", 0)
    refuse_foreign(tmp_path, ["train"], config=True)


@pytest.mark.full
def test_overwriting_leaves_a_new_run_and_the_users_files(tmp_path):
    builder = quiet(tmp_path / "run", saves=True).num_epochs(3).with_file_checkpointer(keep_last=4)
    build_line(builder).fit(batches(), {"old": valid_data()})
    write(tmp_path / "run", *THEIRS)
    again = build_line(quiet(tmp_path / "run", overwrite=True, saves=True).num_epochs(2)).fit(batches(), valid_data())
    fresh = build_line(quiet(tmp_path / "fresh", saves=True).num_epochs(2)).fit(batches(), valid_data())
    assert model_bits(again.model) == model_bits(fresh.model)
    kept = {path for path in tree_of(tmp_path / "run") if path not in THEIRS and not path.startswith("checkpoint/")}
    assert kept == {path for path in tree_of(tmp_path / "fresh") if not path.startswith("checkpoint/")}
    mine = {path: text for path, (text, _) in tree_of(tmp_path / "run").items() if path in THEIRS}
    assert mine == dict.fromkeys(THEIRS, b"mine")
    assert saved_steps(tmp_path / "run") == [2 * STEPS, 2023, 2024]  # 2023 and 2024 are the user's
    assert saved_steps(tmp_path / "fresh") == [2 * STEPS]
    assert [entry["event"] for entry in journal_of(tmp_path / "run")].count("start") == 1


@pytest.mark.full
def test_resume_with_overwrite_resumes(tmp_path):
    build_line(quiet(tmp_path / "run", saves=True).num_epochs(1)).fit(batches())
    result = build_line(quiet(tmp_path / "run", overwrite=True, saves=True).num_epochs(2).resume()).fit(batches())
    assert len(result.history["train/Loss"]) == 2
    assert [entry["step"] for entry in journal_of(tmp_path / "run") if entry["event"] == "start"] == [0, STEPS]


@pytest.mark.full
@pytest.mark.parametrize("relative", [pytest.param(False, marks=pytest.mark.full), True])
def test_checkpoints_in_another_directory(tmp_path, monkeypatch, relative):
    monkeypatch.chdir(tmp_path)
    place = "elsewhere" if relative else str(tmp_path / "elsewhere")
    make = lambda name, **options: quiet(tmp_path / name, **options).with_file_checkpointer(directory=place)  # noqa: E731
    first = build_line(make("one").num_epochs(2)).fit(shuffled())
    assert [entry["step"] for entry in first.summary["checkpoints"]] == [6, 12]
    assert not (tmp_path / "one" / "checkpoint").exists()
    before = tree_of(tmp_path)
    with raises_code("directory-holds-checkpoints", "elsewhere"):
        build_line(make("two")).fit(shuffled())
    assert tree_of(tmp_path) == before
    more = build_line(make("one").num_epochs(3).resume()).fit(shuffled())
    assert more.summary["steps"] == 3 * STEPS
    build_line(make("one", overwrite=True).num_epochs(1)).fit(shuffled())
    assert sorted(path.name for path in (tmp_path / "elsewhere").iterdir()) == ["6"]


def test_checkpoints_of_a_concurrent_run_are_kept(tmp_path):
    """Two runs have one checkpoint directory, and the second run checked it before the first one saved."""
    place = tmp_path / "elsewhere"
    make = lambda name: build_line(quiet(tmp_path / name).with_file_checkpointer(directory=str(place)))  # noqa: E731

    def data():
        if not place.exists():
            make("one").fit(batches())
        return iter(batches())

    with raises_code("directory-holds-checkpoints", "elsewhere"):
        make("two").fit(data)
    assert [path.name for path in place.iterdir()] == ["6"]


# -- links and other files in place of the run's files -----------------------------------------------------------------

FILES = ["journal.jsonl", "config.yaml", "model.json", "summary.json", "experiment.log"]
DIRECTORIES = ["checkpoint", "superseded", "train", "valid-a_b", "custom", "train/epoch-7"]


@pytest.mark.parametrize("name", [*FILES, *DIRECTORIES])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_link_in_place_of_a_file_of_the_run_is_refused_before_writing(tmp_path, name, overwrite):
    run, outside = tmp_path / "run", tmp_path / "outside"
    (run / name).parent.mkdir(parents=True)
    outside.write_text("mine") if name in FILES else write(outside, "6/manifest.json", "epoch-1/Loss.log")
    (run / name).symlink_to(outside)
    before = sorted(tmp_path.rglob("*"))
    content = tree_of(outside) if outside.is_dir() else outside.read_text()
    builder = quiet(run, overwrite=overwrite, saves=True)
    with pytest.raises(LearnerError, match=rf"{name} is a symbolic link; a run needs a|holds a run"):
        build_line(builder).fit(batches(), {"a b": batches()})
    assert sorted(tmp_path.rglob("*")) == before
    assert content == (tree_of(outside) if outside.is_dir() else outside.read_text())


def test_a_directory_in_place_of_a_file_is_refused(tmp_path):
    (tmp_path / "run" / "summary.json").mkdir(parents=True)
    with raises_code("directory-unusable", "summary.json"):
        build_line(quiet(tmp_path / "run")).fit(batches())
    assert os.listdir(tmp_path / "run") == ["summary.json"]


def test_the_directory_and_its_parents_may_be_links(tmp_path):
    (tmp_path / "home" / "first").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "home")
    (tmp_path / "home" / "latest").symlink_to("first")
    build_line(quiet(tmp_path / "link" / "latest")).fit(batches())
    assert (tmp_path / "home" / "first" / "summary.json").is_file()


@pytest.mark.full
def test_overwriting_keeps_directories_that_are_no_checkpoints(tmp_path):
    theirs = ["checkpoint/2023/photo.raw", "checkpoint/7/model/photo.raw", "superseded/2023/photo.raw"]
    for _ in range(2):
        build_line(quiet(tmp_path, saves=True, overwrite=True)).fit(batches())
        write(tmp_path, *theirs)
        assert saved_steps(tmp_path) == [STEPS, 7, 2023]
    assert [(tmp_path / name).read_text() for name in theirs] == ["mine"] * 3


def test_a_save_does_not_replace_other_files_of_its_name(tmp_path):
    write(tmp_path, f"checkpoint/{STEPS}/photo.raw")
    with raises_code("checkpoint-path-in-the-way", f"checkpoint/{STEPS}"):
        build_line(quiet(tmp_path, saves=True)).fit(batches())
    assert (tmp_path / f"checkpoint/{STEPS}/photo.raw").read_text() == "mine"


# -- names and changing working directories ----------------------------------------------------------------------------

NAMES = {
    "a" * 300: "has 300 bytes",
    "é" * 128: "has 256 bytes",
    "\udcff": "is not UTF-8",
    "a\0b": "null character",
    "a\\b": "backslash",
}


@pytest.mark.parametrize("name", [*NAMES, "/".join(["d" * 200] * 25)])
def test_unusable_directory_names_are_refused(tmp_path, name):
    """`build` raises, not the first save."""
    message = NAMES.get(name, r"it has \d+ bytes, and 3584 are the most")
    with pytest.raises(LearnerError, match=message):
        build_line(quiet(tmp_path / name / "run"))
    builder = quiet(tmp_path / "run").with_file_checkpointer(directory=f"{tmp_path}/{name}")
    with pytest.raises(LearnerError, match=message):
        build_line(builder)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.full
def test_a_hook_may_change_the_working_directory(tmp_path, monkeypatch):
    """Relative paths are resolved when they are passed; notebooks may change the working directory."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    builder = quiet("runs/a").num_epochs(1).with_file_checkpointer(directory="saved").metric_loggers(Csv())
    builder.every(4, lambda info, model: os.chdir(tmp_path / "elsewhere"))
    result = build_line(builder).fit(shuffled(), valid_data())
    assert result.best_model is not None
    monkeypatch.chdir(tmp_path)
    builder = quiet("runs/b").num_epochs(1).initial_from("runs/a/../../saved", "latest")
    learner = build_line(builder)
    monkeypatch.chdir(tmp_path / "elsewhere")
    learner.fit(shuffled(), valid_data())
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "runs", "saved"]
    assert (tmp_path / "runs/a/summary.json").is_file()
    assert (tmp_path / "runs/b/summary.json").is_file()


def test_messages_show_the_directory_as_passed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stream = io.StringIO()
    build_line(quiet("runs/a").renderer(PlainRenderer(stream))).fit(batches())
    assert stream.getvalue().startswith("runs/a: ")


# -- too large files ---------------------------------------------------------------------------------------------------


def sparse(path, size=3 << 30):
    with path.open("r+b" if path.exists() else "wb") as file:
        file.truncate(size)


@pytest.mark.full
@pytest.mark.skipif(sys.platform == "darwin", reason="macOS does not limit the memory of a process")
def test_a_huge_file_is_refused_and_not_read(tmp_path):
    """The file is sparse and has 3 GB; the process may allocate 256 MB."""
    build_line(quiet(tmp_path)).fit(batches())
    sparse(tmp_path / "summary.json")
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = psutil.Process().memory_info().vms
    try:
        resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), limits[1]))
        with pytest.warns(UserWarning, match=r"summary\.json has 3,221,225,472 bytes"):
            assert read_summary(tmp_path) is None
        sparse(tmp_path / "journal.jsonl")
        for read in (read_history, RunReader, read_journal):
            with raises_code("file-too-large", "journal.jsonl", "3", "221"):
                read(tmp_path)
        sparse(tmp_path / "journal.jsonl", 224 << 20)
        with raises_code("file-damaged", number=4):
            read_journal(tmp_path)
        assert RunReader(tmp_path).epochs == 1
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
