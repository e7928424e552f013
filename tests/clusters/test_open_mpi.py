"""Check that `mpirun` connects the processes of a run: JAX finds them in Open MPI's variables."""

import os
import subprocess
import sys

import pytest

from tests.support.clusters import SETTINGS, STEPS, check_same_run, fit_by_hand, skip_without, write_config
from tests.support.runs import journal_of

pytestmark = pytest.mark.cluster
skip_without("mpirun")
MPIRUN = ["mpirun", "-n", "2", "--allow-run-as-root", "--oversubscribe"]


def mpirun(*command):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    environment.update(SETTINGS)
    words = [*MPIRUN, sys.executable, *map(str, command)]
    return subprocess.run(words, capture_output=True, text=True, timeout=200, env=environment, check=False)


def test_mpirun_trains_one_run_in_two_processes(tmp_path):
    run = tmp_path / "run"
    fit = ["fit", write_config(tmp_path), f"--directory={run}", "--num_epochs=2", "--distributed"]
    ended = mpirun("-m", "learner", *fit)
    assert ended.returncode == 0, ended.stderr
    assert journal_of(run)[-1]["step"] == 2 * STEPS
    assert "sharded over 2 devices" in (run / "experiment.log").read_text()
    assert (run / "experiment-1.log").exists()
    check_same_run(fit_by_hand(tmp_path, 2), run)


FAILS = """\
import learner, os
learner.init_distributed()
if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
    raise ValueError("this machine has no data")
builder = learner.LearnerBuilder(os.environ["RUN"]).num_epochs(100_000).renderer(None)
from learner.examples.models import MLP
from learner.data import digits
from flax import nnx
import optax
builder.build(lambda rngs: MLP([64, 8, 10], rngs=rngs), optax.sgd, 0.1).fit(digits("train"))
"""


def test_a_process_that_fails_ends_the_others(tmp_path, monkeypatch):
    """`mpirun` sends SIGTERM to the others once one has ended, which may come before learner's own message."""
    program = tmp_path / "fails.py"
    program.write_text(FAILS)
    monkeypatch.setenv("RUN", str(tmp_path / "run"))
    ended = mpirun(program)
    assert ended.returncode not in (0, None)
    assert "ValueError: this machine has no data" in ended.stderr
