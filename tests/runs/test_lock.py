"""Tests of the lock that allows one process at a time in the directory of a run."""

import errno
import json
import math
import os
import platform
import signal
import subprocess
import sys

import pytest

from learner.runs import lock
from learner.runs.lock import is_locked, locked
from tests.support.codes import raises_code
from tests.support.runs import STEPS, batches, build_line, quiet, tree_of

pytestmark = pytest.mark.usefixtures("compiled_once")

HOLDER = "import sys; from pathlib import Path; from learner.runs.lock import is_locked, locked\n"
HOLDER += "with locked(Path(sys.argv[1])): print('here', flush=True); sys.stdin.readline()"


@pytest.fixture
def other(tmp_path):
    """Yield another process that holds the lock."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], env=environment, **pipes) as process:
        assert process.stdout.readline() == "here\n"
        yield process
        process.kill()


def test_the_note_names_the_namespace_of_the_process(tmp_path, namespace):
    with locked(tmp_path):
        assert json.loads((tmp_path / "run.lock").read_text())["pid_namespace"] == namespace


def test_lock_file_is_removed(tmp_path):
    with locked(tmp_path):
        note = json.loads((tmp_path / "run.lock").read_text())
        assert (note["host"], note["pid"]) == (platform.node(), os.getpid())
        assert is_locked(tmp_path) is True
    assert list(tmp_path.iterdir()) == []


def test_locking_twice_in_one_process_is_refused(tmp_path):
    here = {"pid": os.getpid(), "host": platform.node()}
    with locked(tmp_path), raises_code("run-in-use", **here) as refusal, locked(tmp_path):
        pass
    assert "another run of this process" in str(refusal.value)
    assert "remove" not in str(refusal.value)
    with locked(tmp_path):
        pass


def test_lock_of_another_process_is_respected(tmp_path, other):
    with raises_code("run-in-use", pid=other.pid, host=platform.node()), locked(tmp_path):
        pass
    other.communicate("\n")
    with locked(tmp_path):
        pass


def test_lock_of_a_killed_process_is_released(tmp_path, other):
    other.send_signal(signal.SIGKILL)
    other.wait()
    assert (tmp_path / "run.lock").exists()
    with locked(tmp_path):
        pass


@pytest.fixture(params=[errno.ENOLCK, errno.ENOTSUP])
def no_locks(monkeypatch, request):
    """Simulate a file system without locks."""

    def flock(descriptor, how):
        raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr(lock.fcntl, "flock", flock)


def test_without_file_locks_a_living_process_holds_the_lock(tmp_path, other, no_locks):
    with raises_code("run-in-use", pid=other.pid, host=platform.node()), locked(tmp_path):
        pass
    assert (tmp_path / "run.lock").exists()


def test_without_file_locks_a_dead_process_does_not(tmp_path, other, no_locks):
    other.send_signal(signal.SIGKILL)
    other.wait()
    with locked(tmp_path):
        pass


@pytest.mark.parametrize("content", ["", "\0\0\0"])
def test_without_file_locks_an_empty_file_does_not(tmp_path, no_locks, content):
    (tmp_path / "run.lock").write_text(content)
    with locked(tmp_path):
        pass


def test_without_file_locks_another_machine_holds_the_lock(tmp_path, no_locks):
    (tmp_path / "run.lock").write_text('{"host": "far-away", "pid": 1}')
    with raises_code("run-in-use", pid=1, host="far-away"), locked(tmp_path):
        pass


@pytest.fixture
def namespace():
    """Return the namespace of this process's id."""
    if not os.path.exists("/proc/self/ns/pid"):
        pytest.skip("only Linux has namespaces of process ids")
    return int(os.readlink("/proc/self/ns/pid").removeprefix("pid:[").removesuffix("]"))


DEAD = 2**22 + 1  # above Linux's largest process id


@pytest.mark.parametrize(
    ("is_alive", "elsewhere", "expected"), [(True, 0, True), (False, 0, False), (True, 1, None), (False, 1, None)]
)
def test_process_ids_of_another_namespace_prove_nothing(tmp_path, namespace, is_alive, elsewhere, expected):
    process = os.getpid() if is_alive else DEAD
    note = {"host": platform.node(), "pid": process, "pid_namespace": namespace + elsewhere}
    (tmp_path / "run.lock").write_text(json.dumps(note))
    assert is_locked(tmp_path) is expected


@pytest.mark.parametrize("namespace", ["a", [1], math.inf, None])
def test_other_namespaces_of_damaged_notes_are_ignored(tmp_path, namespace):
    (tmp_path / "run.lock").write_text(json.dumps({"host": "another", "pid": 1, "pid_namespace": namespace}))
    assert is_locked(tmp_path) is None
    (tmp_path / "run.lock").write_text(json.dumps({"host": platform.node(), "pid": math.inf}))
    assert is_locked(tmp_path) is False


def test_without_file_locks_a_process_of_another_namespace_holds_the_lock(tmp_path, no_locks, namespace):
    note = {"host": platform.node(), "pid": DEAD, "pid_namespace": namespace + 1}
    (tmp_path / "run.lock").write_text(json.dumps(note))
    with raises_code("run-in-use", pid=DEAD), locked(tmp_path):
        pass


OTHERS = {
    "a link to a file": lambda lock, mine: lock.symlink_to(mine),
    "a link to an empty file": lambda lock, mine: (mine.write_text(""), lock.symlink_to(mine)),
    "a link to nothing": lambda lock, mine: lock.symlink_to(mine.with_name("nothing")),
    "a second name of a file": lambda lock, mine: os.link(mine, lock),
    "another content": lambda lock, mine: lock.write_text("mine"),
    "JSON of another kind": lambda lock, mine: lock.write_text('{"host": "far away"}'),
    "a long text that begins as a lock": lambda lock, mine: lock.write_text('{"host": "a", "pid": 1}' + " " * 9000),
    "a directory": lambda lock, mine: lock.mkdir(),
    "a pipe": lambda lock, mine: os.mkfifo(lock),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_foreign_file_is_neither_changed_nor_removed(tmp_path, kind):
    """Anyone who can write to the directory could place a link there that leads to a file of the user."""
    lock, mine = tmp_path / "run" / "run.lock", tmp_path / "authorized_keys"
    lock.parent.mkdir()
    mine.write_text("ssh-ed25519 AAAA me")
    OTHERS[kind](lock, mine)
    before, mode = tree_of(tmp_path), lock.lstat().st_mode
    with raises_code("run-lock-malformed", path=str(lock)), locked(lock.parent):
        pass
    assert (tree_of(tmp_path), lock.lstat().st_mode) == (before, mode)
    assert not mine.with_name("nothing").exists()
    with raises_code("run-lock-malformed", path=str(lock)):
        build_line(quiet(lock.parent)).fit(batches())
    assert tree_of(tmp_path) == before


@pytest.mark.parametrize(("resumes", "code"), [(False, "directory-holds-run"), (True, "run-in-use")])
def test_second_run_in_one_directory_is_refused(tmp_path, resumes, code):
    """The second run changes no file of the first."""
    errors = []

    def begin_another(info, model):
        if not errors:
            before = tree_of(tmp_path)
            builder = quiet(tmp_path / "run", saves=True)
            with raises_code(code) as caught:
                build_line(builder.resume() if resumes else builder).fit(batches())
            errors.append(caught.value)
            assert tree_of(tmp_path) == before

    build_line(quiet(tmp_path / "run", saves=True).num_epochs(2).on_epoch_end(begin_another)).fit(batches())
    assert len(errors) == 1
    assert not (tmp_path / "run" / "run.lock").exists()


@pytest.mark.full
def test_second_run_in_one_checkpoint_directory_is_refused(tmp_path):
    """Otherwise the second run would remove checkpoints of the first while it trains."""
    place, errors = tmp_path / "saved", []

    def learner(name, hook=lambda info, model: None):
        builder = quiet(tmp_path / name, overwrite=True).with_file_checkpointer(directory=str(place))
        return build_line(builder.num_epochs(2).on_epoch_end(hook))

    def begin_another(info, model):
        with raises_code("run-in-use", path=str(place / "run.lock")) as caught:
            learner("second").fit(batches())
        errors.append(caught.value)
        assert tree_of(tmp_path / "second") == {}

    learner("first", begin_another).fit(batches())
    assert len(errors) == 2
    assert sorted(path.name for path in place.iterdir()) == sorted([str(STEPS), str(2 * STEPS)])
    learner("second").fit(batches())


def test_run_may_save_into_its_own_directory_through_a_link(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    builder = quiet(tmp_path / "run").with_file_checkpointer(directory=str(tmp_path / "link" / "run"))
    build_line(builder.num_epochs(1)).fit(batches())
    assert (tmp_path / "run" / str(STEPS)).is_dir()


def test_without_file_locks_two_runs_that_start_together_are_one(tmp_path, no_locks, monkeypatch):
    """The second one reads the note while the first one is about to write its own."""
    others, holder = [], lock._holder

    def meanwhile(descriptor):
        monkeypatch.setattr(lock, "_holder", holder)
        with raises_code("run-in-use"), locked(tmp_path):
            pass
        others.append(descriptor)
        return holder(descriptor)

    monkeypatch.setattr(lock, "_holder", meanwhile)
    (tmp_path / "run.lock").touch()
    with locked(tmp_path), raises_code("run-in-use", pid=os.getpid()), locked(tmp_path):
        pass
    assert len(others) == 1
    assert list(tmp_path.iterdir()) == []


def test_without_file_locks_the_claim_of_a_dead_process_expires(tmp_path, no_locks):
    claim = tmp_path / "run.lock.claim"
    claim.touch()
    with raises_code("run-in-use"), locked(tmp_path):
        pass
    os.utime(claim, (1, 1))
    with locked(tmp_path):
        assert not claim.exists()
