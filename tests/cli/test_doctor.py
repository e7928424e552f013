"""Tests of `learner doctor`."""

import json
import subprocess
import sys

import pytest

from learner.diagnostics.check_result import QUESTIONS
from tests.support.runs import tree_of

pytestmark = pytest.mark.usefixtures("compiled_once")
FAST = "--only=overlap,gradients,initial-loss"


@pytest.mark.full
def test_answers_as_a_table(learner, config, workplace):
    before = tree_of(workplace)
    code, out, err = learner("doctor", config, FAST)
    assert (code, err) == (1, "")  # the config trains and validates with the same rows
    lines = out.splitlines()
    assert lines[0].split() == ["question", "verdict", "number", "finding"]
    assert lines[1].split()[:3] == ["overlap", "failed", "12"]
    assert [line.split()[:2] for line in lines if line.startswith(("initial-loss", "gradients"))] == [
        ["initial-loss", "skipped"],
        ["gradients", "ok"],
    ]
    assert lines[-1] == "1 ok, 1 failed, 1 skipped"
    assert tree_of(workplace) == before


@pytest.mark.full
def test_existing_run_does_not_change(learner, trained, workplace):
    before = tree_of(workplace)
    for words in ([], ["--resume=true"]):
        assert learner("doctor", trained, "--only=gradients,one-batch", "--steps=2", *words)[0] == 0
    assert tree_of(workplace) == before


@pytest.mark.full
def test_json(learner, config):
    code, out, err = learner("doctor", config, "--json", FAST, "--skip=overlap")
    assert (code, err) == (0, "")
    content = json.loads(out)
    assert content["ok"] is True
    assert [(answer["name"], answer["verdict"]) for answer in content["answers"]] == [
        ("initial-loss", "skipped"),
        ("gradients", "ok"),
    ]
    code, out, _ = learner("doctor", config, "--json", "--only=overlap")
    assert (code, json.loads(out)["ok"]) == (1, False)


@pytest.mark.full
def test_keys_of_the_config_and_steps(learner, config):
    code, out, _ = learner("doctor", config, "--only=one-batch", "--steps=3", "--lr=0.125", "--train.batch_size=6")
    assert code == 0
    assert "The loss of 6 rows" in out
    assert "in 3 steps at the rate 0.12" in " ".join(out.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the following arguments are required: CONFIG; learner doctor CONFIG"),
        (["line.yaml", "--only=gradient"], "there is no question 'gradient': did you mean 'gradients'?"),
        (["line.yaml", "--only=memory", "--skip=memory"], "only and skip leave no question"),
        (["line.yaml", "--steps=0"], "steps is 0; it needs a whole number, 1 or more"),
        (["line.yaml", "--stepz=3"], "there is no option 'stepz': did you mean 'steps'?"),
        (["line.yaml", "--train=null"], "train"),
    ],
)
def test_invalid_arguments_are_refused(learner, config, words, message):
    code, out, err = learner("doctor", *words)
    assert (code, out) == (2, "")
    assert message in err


def test_error_in_the_step_has_a_traceback(learner, config):
    code, _, err = learner("doctor", config, "--train_step=mymodule.broken_step")
    assert code == 1
    assert "ZeroDivisionError" in err


def test_help_lists_every_question_without_jax():
    code = "import sys; sys.modules['jax'] = sys.modules['numpy'] = None\n"
    code += "from learner.cli.main import main\nmain(['doctor', '--help'])"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    for question in QUESTIONS:
        assert sum(line.startswith(f"  {question.name} ") for line in printed.splitlines()) == 1, question.name
    for option in ("--only", "--skip", "--steps", "--json"):
        assert option in printed
