"""Runs that another user may have written are not run without a word."""

import contextlib
import os
import sys

import pytest

from learner.cli.parsing import Parser
from learner.cli.trust import doubt_about, require_trust
from tests.support.codes import raises_code


@pytest.fixture
def run(tmp_path):
    (tmp_path / "run").mkdir(mode=0o755)
    (tmp_path / "run" / "config.yaml").write_text("model: m.Model\n")
    os.chmod(tmp_path / "run" / "config.yaml", 0o644)
    return tmp_path / "run"


def trusted(*options):
    parser = Parser("it", "", keys=True)
    parser.add_run()
    return parser.read(["run", *options]).trust


def test_what_only_this_user_can_write_is_trusted(run):
    require_trust(str(run), trusted())
    (run / "config.yaml").unlink()
    require_trust(str(run), trusted())
    require_trust(str(run / "nothing"), trusted())


@pytest.mark.parametrize(("name", "mode"), [("", 0o777), ("", 0o757), ("config.yaml", 0o666), ("config.yaml", 0o646)])
def test_what_others_can_write_is_not_trusted_without_the_option(run, name, mode):
    if os.geteuid() == 0:
        os.chown(run / name, 0, 54321)  # otherwise the group may be this user's own
    os.chmod(run / name, mode)
    with raises_code("cli-untrusted-config", f"(mode {mode:o})", "config.yaml"):
        require_trust(str(run), trusted())
    with raises_code("cli-untrusted-config"):
        require_trust(str(run), trusted("--trust=false"))
    require_trust(str(run), trusted("--trust"))
    require_trust(str(run), trusted("--trust=true"))
    with raises_code("cli-switch-value", "'maybe'", name="trust"):
        require_trust(str(run), trusted("--trust=maybe"))


def test_a_group_of_one_user_is_no_other_user(run):
    os.chmod(run, 0o775)
    found = run.stat()
    assert (doubt_about(run) is None) == (found.st_gid == found.st_uid)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("name", ["", "config.yaml"])
def test_what_belongs_to_another_user_is_not_trusted(run, name, learner, monkeypatch):
    os.chown(run / name, 54321, 54321)
    monkeypatch.chdir(run.parent)
    for words in ("resume", "evaluate", "predict data.npz -o out.npz", "export -o model.mpk"):
        name, *rest = words.split()
        code, _, err = learner(name, run, *rest)
        assert (code, "belongs to another user (uid 54321)" in err) == (2, True), err
        assert "Read" in err
        code, _, err = learner(name, run, *rest, "--trust")
        assert "belongs to another user" not in err
    assert learner("compare", run)[0] == 2  # nothing of it is run: it is not a run at all


@pytest.mark.parametrize(
    ("answer", "runs"), [("y", True), ("Yes", True), ("", False), ("no", False), ("yesterday", False)]
)
def test_the_question_on_a_terminal(run, monkeypatch, answer, runs):
    os.chmod(run, 0o777)
    terminal, side = os.openpty()
    with os.fdopen(side, "r") as stdin, os.fdopen(os.dup(side), "w") as stderr:
        monkeypatch.setattr(sys, "stdin", stdin)
        monkeypatch.setattr(sys, "stderr", stderr)
        os.write(terminal, f"{answer}\n".encode())
        if runs:
            require_trust(str(run), trusted())
        else:
            with raises_code("cli-untrusted-config"):
                require_trust(str(run), trusted())
        monkeypatch.undo()
    shown = b""
    with contextlib.suppress(OSError):  # the other side is closed
        while b"[y/N]" not in shown:
            shown += os.read(terminal, 10_000)
    os.close(terminal)
    assert b"Run it? [y/N]" in shown
