"""Tests of the trust that a command needs to run code of a config that another user may have written."""

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


def trust_option(*options):
    parser = Parser("it", "", keys=True)
    parser.add_run()
    return parser.read(["run", *options]).trust


def test_private_run_is_trusted(run):
    require_trust(str(run), trust_option())
    (run / "config.yaml").unlink()
    require_trust(str(run), trust_option())
    require_trust(str(run / "nothing"), trust_option())


@pytest.mark.parametrize(("name", "mode"), [("", 0o777), ("", 0o757), ("config.yaml", 0o666), ("config.yaml", 0o646)])
def test_run_that_others_can_write_needs_the_option(run, name, mode):
    if os.geteuid() == 0:
        os.chown(run / name, 0, 54321)  # a group other than the user's
    os.chmod(run / name, mode)
    with raises_code("cli-untrusted-config", f"(mode {mode:o})", "config.yaml"):
        require_trust(str(run), trust_option())
    with raises_code("cli-untrusted-config"):
        require_trust(str(run), trust_option("--trust=false"))
    require_trust(str(run), trust_option("--trust"))
    require_trust(str(run), trust_option("--trust=true"))
    with raises_code("cli-switch-value", "'maybe'", name="trust"):
        require_trust(str(run), trust_option("--trust=maybe"))


def test_group_of_one_user_is_trusted(run):
    os.chmod(run, 0o775)
    status = run.stat()
    assert (doubt_about(run) is None) == (status.st_gid == status.st_uid)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("name", ["", "config.yaml"])
def test_run_of_another_user_needs_the_option(run, name, learner, monkeypatch):
    os.chown(run / name, 54321, 54321)
    monkeypatch.chdir(run.parent)
    for words in ("resume", "evaluate", "predict data.npz -o out.npz", "export -o model.mpk"):
        name, *rest = words.split()
        code, _, err = learner(name, run, *rest)
        assert (code, "belongs to another user (uid 54321)" in err) == (2, True), err
        assert "Read" in err
        code, _, err = learner(name, run, *rest, "--trust")
        assert "belongs to another user" not in err
    assert learner("compare", run)[0] == 2  # compare imports no code, and fails because this is not a run


@pytest.mark.parametrize(
    ("answer", "runs"), [("y", True), ("Yes", True), ("", False), ("no", False), ("yesterday", False)]
)
def test_question_on_a_terminal(run, monkeypatch, answer, runs):
    os.chmod(run, 0o777)
    terminal, side = os.openpty()
    with os.fdopen(side, "r") as stdin, os.fdopen(os.dup(side), "w") as stderr:
        monkeypatch.setattr(sys, "stdin", stdin)
        monkeypatch.setattr(sys, "stderr", stderr)
        os.write(terminal, f"{answer}\n".encode())
        if runs:
            require_trust(str(run), trust_option())
        else:
            with raises_code("cli-untrusted-config"):
                require_trust(str(run), trust_option())
        monkeypatch.undo()
        stderr.flush()
        shown = b""
        while b"[y/N]" not in shown:  # before the other end is closed, which on macOS waits for a reader
            shown += os.read(terminal, 10_000)
    os.close(terminal)
    assert b"Run it? [y/N]" in shown
