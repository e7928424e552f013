"""Tests of `learner examples` and `learner new`."""

import importlib
import subprocess
import sys

import pytest
import yaml

import learner as package
from learner.util.distribution import VERSION


def test_list_has_scripts_and_configs(learner):
    code, out, _ = learner("examples")
    names = {line.split()[0] for line in out.splitlines() if not line.startswith("   ")}
    assert code == 0
    assert {"gan", "digits", "digits.yaml", "own_module.yaml"} <= names
    assert not {"__init__", "models"} & names
    assert "(Hu et al. 2021)" in " ".join(out.split())


@pytest.mark.parametrize("name", ["gan", "gan.py"])
def test_example_is_printed(learner, name):
    _, out, _ = learner("examples", name)
    assert "python -m examples.gan" in out
    compile(out, name, "exec")


def test_config_is_printed(learner):
    assert yaml.safe_load(learner("examples", "digits.yaml")[1])["directory"] == "runs/digits"
    code, _, err = learner("examples", "digit.yaml")
    assert (code, "did you mean 'digits.yaml'" in err) == (2, True)


@pytest.mark.full
def test_project_trains_and_its_test_passes(learner, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = learner("new", "mine/first")
    assert (code, out.splitlines()[0]) == (0, "mine/first/README.md")
    project = tmp_path / "mine" / "first"
    assert sorted(path.name for path in project.iterdir()) == ["README.md", "config.yaml", "model.py", "test_model.py"]
    code, _, err = learner("new", "mine/first")
    assert (code, "exists already" in err) == (2, True)
    monkeypatch.chdir(project)
    code, _, err = learner("fit", "config.yaml", "--num_epochs=1", "--renderer=null")
    assert (code, err) == (0, "")
    assert (project / "runs" / "first" / "summary.json").is_file()
    monkeypatch.syspath_prepend(project)
    importlib.import_module("test_model").test_the_model_learns_a_batch(tmp_path)


@pytest.mark.full
def test_pytest_runs_the_tests_of_a_project(learner, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert learner("new", "mine")[0] == 0
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."]
    ran = subprocess.run(words, cwd="mine", capture_output=True, text=True)
    assert (ran.returncode, "1 passed" in ran.stdout) == (0, True), ran.stdout


def test_directory_with_a_space_is_quoted(learner, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "\n  cd 'my project'\n" in learner("new", "my project")[1]


def test_version_of_the_package():
    assert package.__version__ == VERSION
