"""Tests of the types that a type checker infers."""

import subprocess
import sys
from pathlib import Path

import pytest

SETTINGS = Path(__file__).parents[1] / "pyproject.toml"
CODE = """
import optax
from flax import nnx
from learner import LearnerBuilder

class MLP(nnx.Module):
    def __call__(self, x: int) -> int:
        return x

def make() -> MLP:
    return MLP()

builder = LearnerBuilder("run")
learner = builder.build(MLP(), optax.sgd, 0.1)
reveal_type(learner)
reveal_type(builder.build(make, optax.sgd, 0.1).fit())
reveal_type(learner.fit().best_model)
reveal_type(learner.model_of(learner.init()))
reveal_type(builder.build({"w": 1}, optax.sgd, 0.1).fit().model)
"""


@pytest.mark.full
def test_the_model_has_a_type(tmp_path):
    (tmp_path / "code.py").write_text(CODE)
    words = [sys.executable, "-m", "mypy", "--strict", "--config-file", str(SETTINGS), str(tmp_path / "code.py")]
    ran = subprocess.run(words, capture_output=True, text=True, check=True)
    assert [line.split('"')[1] for line in ran.stdout.splitlines() if "Revealed type" in line] == [
        "learner.learner.Learner[code.MLP]",
        "learner.training.result.LearningResult[code.MLP]",
        "code.MLP",
        "code.MLP",
        "dict[str, int]",
    ]
