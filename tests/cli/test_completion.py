"""Completion in a shell, by the shell itself."""

import shutil
import subprocess
import sys

import pytest

from learner.cli.completion import SHELLS


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    command = [sys.executable, "-m", "learner", "completion", "bash"]
    path = tmp_path_factory.mktemp("completion") / "learner.bash"
    path.write_text(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return path


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
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
def test_bash_completes(script, words, expected):
    line = f"source {script}; COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; _learner; "
    done = subprocess.run(["bash", "-c", f"{line} echo ${{COMPREPLY[@]}}"], capture_output=True, text=True, check=True)
    assert done.stdout.split() == expected


def test_a_script_for_each_shell(learner):
    for shell in SHELLS:
        code, out, _ = learner("completion", shell)
        assert code == 0
        assert "find-lr" in out


def test_wrong_input(learner, monkeypatch):
    assert learner("completion")[0] == 2
    code, _, err = learner("completion", "fish")
    assert (code, "'fish'" in err) == (2, True)
    monkeypatch.setitem(sys.modules, "shtab", None)
    code, _, err = learner("completion", "bash")
    assert (code, "[completion]" in err) == (2, True)
