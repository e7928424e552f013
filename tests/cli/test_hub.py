"""Tests of `learner push` and `learner pull`."""

from pathlib import Path

import numpy as np
import pytest

from tests.support.hub import TOKEN, serving

pytest.importorskip("huggingface_hub", reason="the extra hub is not installed")


@pytest.fixture
def server(tmp_path, monkeypatch):
    with serving(tmp_path, monkeypatch) as server:
        yield server


@pytest.mark.full
def test_pulled_model_is_evaluated_if_its_config_is_trusted(server, learner, trained):
    code, out, err = learner("push", "run", "me/line", "--card={license: mit}", "--checkpoint=latest")
    assert code == 0, err
    assert out.startswith(f"{server.endpoint}/me/line/commit/")
    files = server.newest("me/line")
    assert b"license: mit" in files["README.md"]
    assert b"mymodule.linear" in files["config.yaml"]
    assert all(TOKEN.encode() not in path.read_bytes() for path in Path("run").rglob("*") if path.is_file())
    assert learner("pull", "me/line", "line")[:2] == (0, PULLED)
    code, _, err = learner("evaluate", "line")
    assert (code, "line was pulled from the Hub" in err) == (2, True)
    values = learner("evaluate", "run")[1].splitlines()[1:]
    assert learner("evaluate", "line", "--trust")[1].splitlines() == values
    np.savez("data.npz", x=np.ones((5, 3), np.float32), y=np.zeros(5, np.float32))
    predictions = []
    for directory in ("run", "line"):
        code, _, err = learner("predict", directory, "data.npz", "-o", "out.npz", "--trust")
        assert code == 0, err
        predictions.append(np.load("out.npz")["predictions"])
    np.testing.assert_array_equal(*predictions)
    code, _, err = learner("evaluate", "line", "--trust", "--model=mymodule.liner")
    assert (code, "linear" in err) == (2, True)
    code, _, err = learner("resume", "line", "--trust")
    assert (code, "nothing to resume" in err) == (2, True)
    assert sorted(path.name for path in Path("line").iterdir()) == [
        "README.md",
        "config.yaml",
        "hub.json",
        "model.safetensors",
    ]


PULLED = """\
line
next:
  learner evaluate line --trust   # runs the code that line/config.yaml names
"""


@pytest.mark.full
@pytest.mark.parametrize(
    "words", [["pull", "me/none"], ["push", "run", "me/line", "--card=mit"], ["push", "none", "a"]]
)
def test_invalid_arguments_are_refused(server, learner, trained, words):
    code, out, err = learner(*words)
    assert (code, out, err.startswith("learner: "), server.branches) == (2, "", True, {})
