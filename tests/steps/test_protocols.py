"""Tests of the protocols of models with step methods."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import learner
from learner import TrainStep, ValidStep


class Both:
    def train_step(self, batch):
        return batch

    valid_step = train_step


class Random:
    def train_step(self, batch, rng):
        return batch


def test_isinstance_checks_the_method_names():
    assert isinstance(Both(), TrainStep)
    assert isinstance(Both(), ValidStep)
    assert isinstance(Random(), TrainStep)
    assert not isinstance(Random(), ValidStep)
    assert not isinstance(lambda model, batch: batch, TrainStep)


@pytest.mark.full
def test_a_type_checker_checks_the_protocols(tmp_path):
    """A model with the method is accepted; one whose step takes another type of batch is an error."""
    (tmp_path / "annotated.py").write_text(
        textwrap.dedent("""
        from learner import TrainStep

        class Model:
            def train_step(self, batch: dict[str, int], /) -> float:
                return 0.0

        good: TrainStep[dict[str, int], float] = Model()
        bad: TrainStep[str, float] = Model()
        """)
    )
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", str(tmp_path / "annotated.py")]
    # mypy does not follow the import hooks of editable installations
    environment = {**os.environ, "MYPYPATH": str(Path(learner.__file__).parents[1])}
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    errors = [line for line in ran.stdout.splitlines() if ": error:" in line]
    assert len(errors) == 1, ran.stdout
    assert "annotated.py:9" in errors[0]
