"""Tests of completion in shells, run by the shell."""

import contextlib
import shutil
import subprocess
import sys

import pytest

from learner.cli.completion import SHELLS
from learner.cli.main import main


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    """Write the script for bash."""
    path = tmp_path_factory.mktemp("completion") / "learner.bash"
    with path.open("w") as file, contextlib.redirect_stdout(file):
        assert main(["completion", "bash"]) == 0
    return path


@pytest.mark.full
@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["learner", "fi"], ["fit", "find-lr"]),
        (["learner", "fit", "--num_"], ["--num_epochs", "--num_processes", "--num_steps"]),
        (["learner", "resume", "--resto"], ["--restore_best"]),
        (["learner", "compare", "--s"], ["--sort"]),
        (["learner", "he"], ["help"]),
        (["learner", "ver"], ["version"]),
        (["learner", "help", "ev"], ["evaluate"]),
        (["learner", "fit", "--train.b"], ["--train.batch_size", "--train.batcher"]),
        (["learner", "predict", "--valid.b"], ["--valid.batch_size", "--valid.batcher"]),
        (["learner", "fit", "--optimizer", "AdamW"], ["AdamW"]),
        (["learner", "fit", "--optimizer", "=", "AdaB"], ["AdaBelief"]),
        (["learner", "fit", "--seed", "=", "3", "--strategy", "="], ["Replicated", "Sharded", "SingleDevice", "fsdp"]),
    ],
)
def test_bash_completes_words(script, words, expected):
    line = f"source {script}; COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; _learner; "
    done = subprocess.run(["bash", "-c", f"{line} echo ${{COMPREPLY[@]}}"], capture_output=True, text=True, check=True)
    assert done.stdout.split() == expected


@pytest.mark.full
@pytest.mark.parametrize("shell", [shell for shell in SHELLS if shell != "bash"])
def test_other_shells_have_a_script(learner, shell):
    code, out, _ = learner("completion", shell)
    assert (code, "find-lr" in out) == (0, True)


def test_unknown_shell_and_missing_package_are_refused(learner, monkeypatch):
    assert learner("completion")[0] == 2
    code, _, err = learner("completion", "fish")
    assert (code, "'fish'" in err) == (2, True)
    monkeypatch.setitem(sys.modules, "shtab", None)
    code, _, err = learner("completion", "bash")
    assert (code, "[completion]" in err) == (2, True)
