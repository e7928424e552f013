import contextlib
import copy
import inspect
import io
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from learner.cli.main import main
from tests.support.shown import without_stages

ROOT = Path(__file__).parents[2]

MODULE = """
import jax
import jax.numpy as jnp
import numpy as np
import optax

from learner import RegressionOutput


def linear(size: int):
    return {"w": jnp.zeros((size,))}


def step(model, batch, scale: float = 1.0):
    return RegressionOutput.from_predictions(scale * (batch["x"] @ model["w"]), batch["y"])


def prediction(model, batch):
    return batch["x"] @ model["w"]


def rows(count: int = 12, size: int = 3):
    x = np.arange(count * size, dtype=np.float32).reshape(count, size) / (count * size)
    return {"x": x, "y": x.sum(1)}


def stored(path: str):
    with np.load(path) as content:
        return dict(content)


def batches():
    data = rows()
    return [{name: column[i : i + 4] for name, column in data.items()} for i in range(0, 12, 4)]


def momentum(learning_rate, decay: float):
    return optax.sgd(learning_rate, decay)


def broken_step(model, batch):
    return 1 / 0


def halved(step):
    return 0.1 * 0.5**step
"""


# The smallest run: a line, in plain arrays.
LINE = {
    "directory": "run",
    "num_epochs": 2,
    "model": {"class_path": "mymodule.linear", "init_args": {"size": 3}},
    "optimizer": "SGD",
    "lr": 0.1,
    "train": {"dataset": "mymodule.rows", "batch_size": 4, "shuffle": True},
    "valid": {"dataset": "mymodule.rows", "batch_size": 12},
    "train_step": "mymodule.step",
    "valid_step": "mymodule.step",
    "with_file_checkpointer": {"keep_last": 2},
}


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A directory to work in, with a module of the user's, `mymodule`; its imports are forgotten again."""
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    (tmp_path / "mymodule.py").write_text(MODULE)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def importable(workplace, monkeypatch):
    """The same, with the directory on the import path, as the command has it."""
    monkeypatch.syspath_prepend(str(workplace))
    return workplace


@pytest.fixture
def at_root(monkeypatch):
    """In the directory of the project, where `configs/` and `examples/` are."""
    monkeypatch.chdir(ROOT)
    return ROOT


@pytest.fixture
def learner(capsys):
    """Runs a command, and gives its exit code and what it printed on both streams, without the stages of a run."""

    def run(*words):
        code = main([str(word) for word in words])
        said = capsys.readouterr()
        return code, without_stages(said.out), said.err

    return run


@pytest.fixture
def line_config():
    """The smallest run: a line, in plain arrays."""
    return copy.deepcopy(LINE)


@pytest.fixture
def config(workplace):
    """The config file of the smallest run; its directory will be `run`."""
    (workplace / "line.yaml").write_text(yaml.safe_dump(LINE))
    return "line.yaml"


@pytest.fixture(scope="module")
def shared_workplace(tmp_path_factory):
    """A directory for all tests of a file, with the module and the config of the smallest run."""
    directory = tmp_path_factory.mktemp("shared")
    (directory / "mymodule.py").write_text(MODULE)
    (directory / "line.yaml").write_text(yaml.safe_dump(LINE))
    return directory


@pytest.fixture(scope="module")
def _finished(shared_workplace, compiled_once):
    """A directory with the smallest run, for all tests of a file."""
    directory = shared_workplace
    with contextlib.chdir(directory), contextlib.redirect_stdout(io.StringIO()):
        assert main(["fit", "line.yaml"]) == 0
    del sys.modules["mymodule"]  # each test has one of its own
    return directory / "run"


@pytest.fixture
def trained(_finished, config):
    """The config file of the smallest run, beside which the run lies: it has ended."""
    shutil.copytree(_finished, "run")
    return config


@pytest.fixture
def parameters():
    """The parameters of a signature, by name."""
    return lambda function: inspect.signature(function).parameters
