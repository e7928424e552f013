"""Tests of copies of run directories, on fsspec's file systems in memory and on the disk."""

import contextlib
import json
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from learner.runs.remote import RemoteRun
from tests.support.codes import raises_code

JOURNAL = '{"event": "start", "time": 1.0}\n'


def write_run(directory, steps=(2,), journal=JOURNAL):
    """Write the directory of a run, with checkpoints of a few bytes."""
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
    """Return a function that reads a store in memory: contents by name."""
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


def test_run_round_trips(tmp_path, store):
    run, sizes = write_run(tmp_path / "run", steps=(2, 4)), []
    RemoteRun(store.url).upload(run)
    assert store() == kept(run)
    RemoteRun(f"{store.url}/").download(tmp_path / "back", lambda done, total: sizes.append((done, total)))
    assert files_of(tmp_path / "back") == kept(run)
    assert sizes[-1] == (sum(map(len, kept(run).values())),) * 2
    assert not [*tmp_path.glob("*.partial")]


def test_empty_directory_is_filled_in_place(tmp_path, store, monkeypatch):
    """A rename cannot replace the working directory or a mount point."""
    run = write_run(tmp_path / "run")
    RemoteRun(store.url).upload(run)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    before = (tmp_path / "empty").stat().st_ino
    RemoteRun(store.url).download(Path())
    assert files_of(tmp_path / "empty") == kept(run)
    assert (tmp_path / "empty").stat().st_ino == before
    assert not [*tmp_path.rglob("*.partial")]


def test_only_changed_files_are_copied(tmp_path, store, monkeypatch):
    run, copied = write_run(tmp_path / "run"), []
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


def test_removed_checkpoint_is_deleted_after_newer_ones_are_copied(tmp_path, store):
    run = write_run(tmp_path / "run", steps=(2, 4))
    RemoteRun(store.url).upload(run)
    (run / "checkpoint" / "2").rename(tmp_path / "removed")
    add_checkpoint(run, 6)
    (run / "train" / "epoch-1" / "Loss.log").unlink()
    RemoteRun(store.url).upload(run)  # in the process that resumes
    assert {name.split("/")[1] for name in store() if name.startswith("checkpoint/")} == {"4", "6"}


@pytest.mark.parametrize("last", ["state/data", "manifest.json"])
def test_interrupted_copy_leaves_no_partial_checkpoint(tmp_path, store, monkeypatch, last):
    run, pipe = write_run(tmp_path / "run", steps=(2,)), MemoryFileSystem.pipe_file
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


def test_checkpoint_saved_again_replaces_the_copy(tmp_path, store):
    """A run that resumed from an older checkpoint, in a new process or the same one, saves a step again."""
    run = write_run(tmp_path / "run", steps=(2, 4))
    remote = RemoteRun(store.url)
    remote.upload(run)
    for content, uploads in ((b"again", RemoteRun(store.url)), (b"a third time", remote)):
        (run / "checkpoint" / "4" / "state" / "data").write_bytes(content)
        facts = {"files": {"state/data": [len(content), content.decode()]}, "step": 4}
        (run / "checkpoint" / "4" / "manifest.json").write_text(json.dumps(facts))
        uploads.upload(run)
        assert store() == kept(run)


def test_vanished_store_is_an_error(tmp_path, store, monkeypatch):
    """S3 reports a missing bucket as FileNotFoundError, like a local file that the run has removed."""
    run = write_run(tmp_path / "run", steps=(2,))

    def fail(self, path, *args, **kw):
        raise FileNotFoundError("The specified bucket does not exist")

    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "pipe_file", fail)
        with pytest.raises(FileNotFoundError, match="bucket"):
            RemoteRun(store.url).upload(run)
    remote, pipe = RemoteRun(store.url), MemoryFileSystem.pipe_file

    def fail_at_checkpoints(self, path, *args, **kw):
        (fail if "checkpoint" in path else pipe)(self, path, *args, **kw)

    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "pipe_file", fail_at_checkpoints)
        with pytest.raises(FileNotFoundError, match="bucket"):
            remote.upload(run)
    remote.upload(run)
    assert store() == kept(run)


@pytest.mark.parametrize("moment", ["before", "while", "after"])
def test_file_removed_by_the_run_is_removed_from_the_copy(tmp_path, monkeypatch, moment):
    run, copy = write_run(tmp_path / "run"), tmp_path / "copy"
    remote, put = RemoteRun(copy), RemoteRun._put
    passing = run / "summary.json.partial"
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
    (copy / passing.name).unlink(missing_ok=True)  # a failed attempt may have removed it
    for _ in range(2):
        remote.upload(run)
    assert files_of(copy) == kept(run)


def test_links_and_unfinished_checkpoints_are_not_copied(tmp_path, monkeypatch):
    monkeypatch.setattr("learner.runs.remote.READ_AT_ONCE", 4)
    run = write_run(tmp_path / "run")
    (run / "config.yaml").symlink_to("/etc/hostname")
    (run / "checkpoint" / "4.partial").mkdir()
    (run / "checkpoint" / "4.saving").write_text("")
    (run / "checkpoint" / "model-1.mpk.gz").write_bytes(b"record")
    RemoteRun(tmp_path / "copy").upload(run)
    left_out = {"run.lock", "config.yaml", "checkpoint/4.saving"}
    assert files_of(tmp_path / "copy") == {n: c for n, c in files_of(run).items() if n not in left_out}


def test_names_outside_of_the_directory_are_skipped(tmp_path, store):
    run = write_run(tmp_path / "run")
    RemoteRun(store.url).upload(run)
    MemoryFileSystem.store[f"/{tmp_path.name}/run/../../escaped"] = next(iter(MemoryFileSystem.store.values()))
    try:
        RemoteRun(store.url).download(tmp_path / "deep" / "back")
    finally:
        del MemoryFileSystem.store[f"/{tmp_path.name}/run/../../escaped"]
    assert not (tmp_path / "escaped").exists()
    assert files_of(tmp_path / "deep" / "back") == kept(run)


def test_store_of_another_run_is_refused(tmp_path, store):
    run = write_run(tmp_path / "run")
    remote = RemoteRun(store.url)
    remote.refuse_another(run, resumed=False)
    remote.upload(run)
    remote.refuse_another(run, resumed=True)
    for directory, resumed in ((run, False), (write_run(tmp_path / "other", journal=JOURNAL.replace("1", "2")), True)):
        with raises_code("remote-holds-another", url=store.url):
            remote.refuse_another(directory, resumed=resumed)


def test_copy_inside_the_run_is_refused(tmp_path):
    run = write_run(tmp_path / "run")
    for place in (run, run / "copy"):
        with raises_code("remote-inside-run", url=str(place)):
            RemoteRun(place).refuse_another(run, resumed=True)
    RemoteRun(tmp_path / "run-copy").refuse_another(run, resumed=True)


def test_invalid_places_are_refused(tmp_path, store):
    with raises_code("remote-run-missing", url=store.url):
        RemoteRun(store.url).download(tmp_path / "back")
    with raises_code("remote-scheme-unknown", scheme="nowhere"):
        RemoteRun("nowhere://bucket/run")
    with raises_code("remote-address-user") as raised:
        RemoteRun("s3://key:secret@bucket/run")
    assert "secret" not in str(raised.value)
    run = write_run(tmp_path / "run")
    with raises_code("remote-directory-exists", str(run)):
        RemoteRun(store.url).download(run)


def test_unwritable_place_is_refused_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    with raises_code("remote-unwritable", url=str(tmp_path / "file" / "copy")):
        RemoteRun(tmp_path / "file" / "copy").refuse_unwritable()
    RemoteRun(tmp_path / "copy").refuse_unwritable()
    assert files_of(tmp_path) == {"file": b""}


@pytest.mark.parametrize("error", [ConnectionResetError(104, "Connection reset by peer"), KeyboardInterrupt()])
def test_failed_download_removes_its_own_files_only(tmp_path, store, monkeypatch, error):
    RemoteRun(store.url).upload(write_run(tmp_path / "run"))
    (tmp_path / "back.partial").mkdir()
    (tmp_path / "back.partial" / "notes").write_text("of another program")

    def fail(*args, **kw):
        raise error

    monkeypatch.setattr(MemoryFileSystem, "get_file", fail)
    is_interrupt = isinstance(error, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt) if is_interrupt else raises_code("remote-unreadable", url=store.url):
        RemoteRun(store.url).download(tmp_path / "back")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back.partial", "run"]
    assert files_of(tmp_path / "back.partial") == {"notes": b"of another program"}
