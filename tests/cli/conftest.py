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


# The smallest run, a line in plain arrays.
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
    """Change to a directory with a module of the user, `mymodule`, and forget its imports afterwards."""
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    (tmp_path / "mymodule.py").write_text(MODULE)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def importable(workplace, monkeypatch):
    """Change to the same directory, which is on the import path too, as for a command."""
    monkeypatch.syspath_prepend(str(workplace))
    return workplace


@pytest.fixture
def at_root(monkeypatch):
    """Change to the directory of the project, which contains `configs/` and `examples/`."""
    monkeypatch.chdir(ROOT)
    return ROOT


@pytest.fixture
def learner(capsys):
    """Return a function that runs a command, and returns its exit code and both output streams, without the stages of a
    run.
    """

    def run(*words):
        code = main([str(word) for word in words])
        printed = capsys.readouterr()
        return code, without_stages(printed.out), printed.err

    return run


@pytest.fixture
def line_config():
    """Return the config of the smallest run, a line in plain arrays."""
    return copy.deepcopy(LINE)


@pytest.fixture
def config(workplace):
    """Write the config file of the smallest run, whose directory is `run`, and return its name."""
    (workplace / "line.yaml").write_text(yaml.safe_dump(LINE))
    return "line.yaml"


@pytest.fixture(scope="module")
def shared_workplace(tmp_path_factory):
    """Return a directory for all tests of a file, with the module and the config of the smallest run."""
    directory = tmp_path_factory.mktemp("shared")
    (directory / "mymodule.py").write_text(MODULE)
    (directory / "line.yaml").write_text(yaml.safe_dump(LINE))
    return directory


@pytest.fixture(scope="module")
def _finished(shared_workplace, compiled_once):
    """Train the smallest run once for all tests of a file, and return its directory."""
    directory = shared_workplace
    with contextlib.chdir(directory), contextlib.redirect_stdout(io.StringIO()):
        assert main(["fit", "line.yaml"]) == 0
    del sys.modules["mymodule"]  # each test imports another one
    return directory / "run"


@pytest.fixture
def trained(_finished, config):
    """Copy the smallest run, which has ended, to `run`, and return its config file."""
    shutil.copytree(_finished, "run")
    return config


@pytest.fixture
def parameters():
    """Return a function that returns the parameters of a signature by name."""
    return lambda function: inspect.signature(function).parameters
