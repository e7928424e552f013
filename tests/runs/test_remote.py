"""Copies of run directories, through fsspec's file systems in memory and on the disk."""

import contextlib
import json

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
    assert not (tmp_path / "back.partial").exists()


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


def test_files_of_other_lengths_and_links_are_read_as_they_are(tmp_path, monkeypatch):
    monkeypatch.setattr("learner.runs.remote.WHOLE", 4)
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


def test_a_download_that_fails_leaves_nothing(tmp_path, store, monkeypatch):
    RemoteRun(store.url).upload(written(tmp_path / "run"))

    def reset(*args, **kw):
        raise ConnectionResetError(104, "Connection reset by peer")

    monkeypatch.setattr(MemoryFileSystem, "get_file", reset)
    with raises_code("remote-unreadable", url=store.url):
        RemoteRun(store.url).download(tmp_path / "back")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]
