"""Every example trains, shortened, and does what it says."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, confusion_matrix

from learner.cli.main import main
from learner.data import digits
from learner.history import read_history

ROOT = Path(__file__).parents[2]
WITH_CONFIG = {  # by config: how it is shortened on the command line, and the example by its arguments
    "digits": (["--num_epochs=2"], {"num_epochs": 2}),
    "digits_cnn": (["--num_epochs=1"], {"num_epochs": 1}),
    "regression": (["--num_epochs=9"], {"num_epochs": 9}),
    "charlm": (["--train.dataset.max_rows=40", "--valid.dataset.max_rows=40"], {"max_rows": 40}),
}
CLASSIFIERS = ["equinox_model", "linen_model", "pytree"]
OTHERS = ["gan", "own_metric"]
NO_SCRIPTS = {"__init__", "models", "own_module"}

pytestmark = pytest.mark.usefixtures("compiled_once")


@pytest.fixture(autouse=True)
def as_a_user(tmp_path, monkeypatch):
    """In an empty directory beside the examples, with the settings of JAX that users have."""
    for name in ("configs", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT))
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def example(name):
    return importlib.import_module(f"examples.{name}")


def test_no_example_is_left_out():
    scripts = {path.stem for path in (ROOT / "examples").glob("*.py")} - NO_SCRIPTS
    assert scripts == {*WITH_CONFIG, *CLASSIFIERS, *OTHERS}
    assert {path.stem for path in (ROOT / "configs").glob("*.yaml")} == set(WITH_CONFIG)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "digits" else pytest.mark.full) for name in WITH_CONFIG]
)
def test_a_config_and_its_example_are_the_same_run(name, capsys):
    words, arguments = WITH_CONFIG[name]
    assert main(["fit", f"configs/{name}.yaml", *words]) == 0
    result = example(name).main("runs/example", **arguments)
    theirs = read_history(f"runs/{name}")
    assert dict(result.history) == dict(theirs)
    assert len(theirs["valid/Loss"]) >= 1
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "equinox_model" else pytest.mark.full) for name in CLASSIFIERS]
)
def test_two_epochs_learn_most_digits(name):
    result = example(name).main("runs/example", num_epochs=2)
    accuracy = result.history["valid/Accuracy"]
    assert len(accuracy) == 2
    assert accuracy[-1] > 0.8
    assert result.best_model is not None
    if name == "equinox_model":
        (network, state), (first, before) = result.model, first_equinox()
        assert network.norm.inference
        assert not first.norm.inference
        assert state.get(network.norm.batch_counter) == before.get(first.norm.batch_counter) + 90
    if name == "linen_model":
        mean = result.model.variables["batch_stats"]["BatchNorm_0"]["mean"]
        assert np.abs(mean).max() > 0.1  # it is 0 at first
        assert not result.model.train


def first_equinox():
    import equinox as eqx

    return eqx.nn.make_with_state(example("equinox_model").Network)(jax.random.key(0))


def test_own_metrics_are_those_of_scikit_learn():
    module = example("own_metric")
    result = module.main("runs/example", num_epochs=1)
    rows = digits("valid").arrays
    predicted = np.asarray(result.model(rows["image"])).argmax(-1)
    expected = balanced_accuracy_score(rows["label"], predicted)
    assert result.history["valid/Balanced Accuracy"][-1] == pytest.approx(expected, abs=1e-6)
    wrong = confusion_matrix(rows["label"], predicted, labels=range(10)) * (1 - np.eye(10, dtype=int))
    text = result.history["valid/Most Confused"][-1]
    label, taken_for, times = (int(word) for word in text.replace(",", "").split() if word.isdigit())
    assert times == wrong.max() == wrong[label, taken_for]
    assert module.Confusion(3).text(np.eye(3)) == "none"


def test_the_generator_finds_the_circle():
    module = example("gan")
    result = module.main("runs/example")
    errors = result.history["valid/Mean Absolute Error"]
    assert errors[0] > 0.2
    assert min(errors) < 0.12
    points = module.apply(result.model["generator"], jax.random.normal(jax.random.key(7), (500, module.NOISE)))
    angles = np.arctan2(points[:, 1], points[:, 0])
    assert np.histogram(angles, bins=4, range=(-np.pi, np.pi))[0].min() > 25  # all around it
    assert set(result.history) == {"train/Loss", "train/Critic Loss", "valid/Mean Absolute Error", "valid/Loss"}


def test_a_config_names_ones_own_module(capsys):
    assert main(["fit", "examples/own_module.yaml", "--num_epochs=4", "--model.width=32"]) == 0
    history = read_history("runs/own_module")
    assert history["valid/Accuracy"][-1] > 0.6
    assert 0.5 < history["valid/Confidence"][-1] <= 1
    assert main(["evaluate", "runs/own_module"]) == 0
    assert "valid/Confidence" in capsys.readouterr().out


@pytest.mark.full
def test_an_example_is_a_program():
    command = [sys.executable, "-W", "error", "-m", "examples.pytree"]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert max(read_history("runs/pytree")["valid/Accuracy"]) >= 0.97
