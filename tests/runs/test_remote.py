"""Copies of run directories, through fsspec's file systems in memory and on the disk."""

import contextlib
import json
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from learner.runs.remote import RemoteRun
from tests.support.codes import raises_code

JOURNAL = '{"event": "start", "time": 1.0}\n'


def written(directory, steps=(2,), journal=JOURNAL):
    """A run directory as a run leaves it, with checkpoints of a few bytes."""
    (directory / "train" / "epoch-1").mkdir(parents=True)
    (directory / "journal.jsonl").write_text(journal)
    (directory / "train" / "epoch-1" / "Loss.log").write_text("1.0,4\n")
    (directory / "run.lock").write_text("{}")
    for step in steps:
        add_checkpoint(directory, step)
    return directory


def add_checkpoint(directory, step):
    place = directory / "checkpoint" / str(step)
    (place / "state").mkdir(parents=True)
    (place / "state" / "data").write_bytes(bytes([step] * 8))
    (place / "manifest.json").write_text(json.dumps({"files": {"state/data": [8, "..."]}, "step": step}))


def files_of(directory):
    return {p.relative_to(directory).as_posix(): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


@pytest.fixture
def store(tmp_path):
    """Files of a store in memory, by name."""
    url = f"memory://{tmp_path.name}/run"
    files = fsspec.filesystem("memory")

    def content():
        return {path.partition("/run/")[2]: files.cat_file(path) for path in files.find(url)}

    content.url = url
    yield content
    with contextlib.suppress(FileNotFoundError):
        files.rm(f"/{tmp_path.name}", recursive=True)


def kept(directory):
    return {name: content for name, content in files_of(directory).items() if name != "run.lock"}


def test_a_run_comes_back_as_it_was(tmp_path, store):
    run, sizes = written(tmp_path / "run", steps=(2, 4)), []
    RemoteRun(store.url).upload(run)
    assert store() == kept(run)
    RemoteRun(f"{store.url}/").download(tmp_path / "back", lambda done, total: sizes.append((done, total)))
    assert files_of(tmp_path / "back") == kept(run)
    assert sizes[-1] == (sum(map(len, kept(run).values())),) * 2
    assert not [*tmp_path.glob("*.partial")]


def test_an_empty_directory_is_filled_in_place(tmp_path, store, monkeypatch):
    """Such as the working directory, or one on a disk of its own, where another cannot take its place."""
    run = written(tmp_path / "run")
    RemoteRun(store.url).upload(run)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    before = (tmp_path / "empty").stat().st_ino
    RemoteRun(store.url).download(Path())
    assert files_of(tmp_path / "empty") == kept(run)
    assert (tmp_path / "empty").stat().st_ino == before
    assert not [*tmp_path.rglob("*.partial")]


def test_only_what_is_new_is_copied(tmp_path, store, monkeypatch):
    run, copied = written(tmp_path / "run"), []
    remote, pipe = RemoteRun(store.url), MemoryFileSystem.pipe_file
    remote.upload(run)
    monkeypatch.setattr(
        MemoryFileSystem,
        "pipe_file",
        lambda self, path, *args, **kw: copied.append(path) or pipe(self, path, *args, **kw),
    )
    remote.upload(run)
    assert copied == []
    with (run / "journal.jsonl").open("a") as file:
        file.write("more\n")
    add_checkpoint(run, 4)
    remote.upload(run)
    assert [path.partition("/run/")[2] for path in copied] == [
        "journal.jsonl",
        "checkpoint/4/state/data",
        "checkpoint/4/manifest.json",
    ]
    assert store() == kept(run)


def test_removed_checkpoints_go_once_newer_ones_are_there(tmp_path, store):
    run = written(tmp_path / "run", steps=(2, 4))
    RemoteRun(store.url).upload(run)
    (run / "checkpoint" / "2").rename(tmp_path / "removed")
    add_checkpoint(run, 6)
    (run / "train" / "epoch-1" / "Loss.log").unlink()
    RemoteRun(store.url).upload(run)  # of the process that resumes
    assert {name.split("/")[1] for name in store() if name.startswith("checkpoint/")} == {"4", "6"}


@pytest.mark.parametrize("last", ["state/data", "manifest.json"])
def test_a_copy_that_is_cut_off_leaves_no_half_checkpoint(tmp_path, store, monkeypatch, last):
    run, pipe = written(tmp_path / "run", steps=(2,)), MemoryFileSystem.pipe_file
    RemoteRun(store.url).upload(run)
    add_checkpoint(run, 4)

    def cut_off(self, path, *args, **kw):
        if path.endswith(f"4/{last}"):
            raise ConnectionResetError(104, "Connection reset by peer")
        pipe(self, path, *args, **kw)

    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "pipe_file", cut_off)
        with pytest.raises(ConnectionResetError):
            RemoteRun(store.url).upload(run)
    RemoteRun(store.url).download(tmp_path / "between")
    assert [path.name for path in (tmp_path / "between" / "checkpoint").iterdir()] == ["2"]
    RemoteRun(store.url).upload(run)
    assert store() == kept(run)


def test_a_checkpoint_that_was_saved_again_replaces_the_one_of_its_step(tmp_path, store):
    """As by a run that resumed from an older checkpoint, in a new process or in the same one."""
    run = written(tmp_path / "run", steps=(2, 4))
    remote = RemoteRun(store.url)
    remote.upload(run)
    for content, uploads in ((b"again", RemoteRun(store.url)), (b"once more", remote)):
        (run / "checkpoint" / "4" / "state" / "data").write_bytes(content)
        facts = {"files": {"state/data": [len(content), content.decode()]}, "step": 4}
        (run / "checkpoint" / "4" / "manifest.json").write_text(json.dumps(facts))
        uploads.upload(run)
        assert store() == kept(run)


def test_a_store_that_has_vanished_is_an_error(tmp_path, store, monkeypatch):
    """S3 reports a bucket that is gone as a file that is not found, as the disk reports one that the run removes."""
    run = written(tmp_path / "run", steps=(2,))

    def gone(self, path, *args, **kw):
        raise FileNotFoundError("The specified bucket does not exist")

    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "pipe_file", gone)
        with pytest.raises(FileNotFoundError, match="bucket"):
            RemoteRun(store.url).upload(run)
    remote, pipe = RemoteRun(store.url), MemoryFileSystem.pipe_file

    def gone_later(self, path, *args, **kw):
        (gone if "checkpoint" in path else pipe)(self, path, *args, **kw)

    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "pipe_file", gone_later)
        with pytest.raises(FileNotFoundError, match="bucket"):
            remote.upload(run)
    remote.upload(run)
    assert store() == kept(run)


@pytest.mark.parametrize("moment", ["before", "while", "after"])
def test_a_file_that_the_run_removes_goes_from_the_copy(tmp_path, monkeypatch, moment):
    run, copy = written(tmp_path / "run"), tmp_path / "copy"
    remote, put = RemoteRun(copy), RemoteRun._put
    passing = run / "summary.json.tmp"
    passing.write_text("{}")

    def removed(self, path, name):
        if path == passing and moment == "before":
            passing.unlink()
        put(self, path, name)
        if path == passing and moment == "while":
            passing.unlink()

    monkeypatch.setattr(RemoteRun, "_put", removed)
    remote.upload(run)
    passing.unlink(missing_ok=True)
    (copy / passing.name).unlink(missing_ok=True)  # by an attempt that failed afterwards
    for _ in range(2):
        remote.upload(run)
    assert files_of(copy) == kept(run)


def test_files_of_other_lengths_and_links_are_read_as_they_are(tmp_path, monkeypatch):
    monkeypatch.setattr("learner.runs.remote.READ_AT_ONCE", 4)
    run = written(tmp_path / "run")
    (run / "config.yaml").symlink_to("/etc/hostname")
    (run / "checkpoint" / "4.partial").mkdir()
    (run / "checkpoint" / "4.saving").write_text("")
    (run / "checkpoint" / "model-1.mpk.gz").write_bytes(b"record")
    RemoteRun(tmp_path / "copy").upload(run)
    left_out = {"run.lock", "config.yaml", "checkpoint/4.saving"}
    assert files_of(tmp_path / "copy") == {n: c for n, c in files_of(run).items() if n not in left_out}


def test_names_that_lead_elsewhere_are_left_out(tmp_path, store):
    run = written(tmp_path / "run")
    RemoteRun(store.url).upload(run)
    MemoryFileSystem.store[f"/{tmp_path.name}/run/../../escaped"] = next(iter(MemoryFileSystem.store.values()))
    try:
        RemoteRun(store.url).download(tmp_path / "deep" / "back")
    finally:
        del MemoryFileSystem.store[f"/{tmp_path.name}/run/../../escaped"]
    assert not (tmp_path / "escaped").exists()
    assert files_of(tmp_path / "deep" / "back") == kept(run)


def test_another_run_is_refused(tmp_path, store):
    run = written(tmp_path / "run")
    remote = RemoteRun(store.url)
    remote.refuse_another(run, resumed=False)
    remote.upload(run)
    remote.refuse_another(run, resumed=True)
    for directory, resumed in ((run, False), (written(tmp_path / "other", journal=JOURNAL.replace("1", "2")), True)):
        with raises_code("remote-holds-another", url=store.url):
            remote.refuse_another(directory, resumed=resumed)


def test_the_copy_of_a_run_is_not_in_the_run(tmp_path):
    run = written(tmp_path / "run")
    for place in (run, run / "copy"):
        with raises_code("remote-inside-run", url=str(place)):
            RemoteRun(place).refuse_another(run, resumed=True)
    RemoteRun(tmp_path / "run-copy").refuse_another(run, resumed=True)


def test_wrong_places(tmp_path, store):
    with raises_code("remote-run-missing", url=store.url):
        RemoteRun(store.url).download(tmp_path / "back")
    with raises_code("remote-scheme-unknown", scheme="nowhere"):
        RemoteRun("nowhere://bucket/run")
    with raises_code("remote-address-user") as raised:
        RemoteRun("s3://key:secret@bucket/run")
    assert "secret" not in str(raised.value)
    run = written(tmp_path / "run")
    with raises_code("remote-directory-exists", str(run)):
        RemoteRun(store.url).download(run)


def test_a_place_that_cannot_be_written_is_an_error_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    with raises_code("remote-unwritable", url=str(tmp_path / "file" / "copy")):
        RemoteRun(tmp_path / "file" / "copy").refuse_unwritable()
    RemoteRun(tmp_path / "copy").refuse_unwritable()
    assert files_of(tmp_path) == {"file": b""}


@pytest.mark.parametrize("error", [ConnectionResetError(104, "Connection reset by peer"), KeyboardInterrupt()])
def test_a_download_that_fails_leaves_nothing_and_removes_nothing_else(tmp_path, store, monkeypatch, error):
    RemoteRun(store.url).upload(written(tmp_path / "run"))
    (tmp_path / "back.partial").mkdir()
    (tmp_path / "back.partial" / "notes").write_text("of somebody else")

    def fail(*args, **kw):
        raise error

    monkeypatch.setattr(MemoryFileSystem, "get_file", fail)
    is_interrupt = isinstance(error, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt) if is_interrupt else raises_code("remote-unreadable", url=store.url):
        RemoteRun(store.url).download(tmp_path / "back")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back.partial", "run"]
    assert files_of(tmp_path / "back.partial") == {"notes": b"of somebody else"}
