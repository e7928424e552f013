"""Tests of the configs in the package, in a clone and in a wheel."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from learner.cli.main import main
from learner.examples import CONFIGS, SCRIPTS

ROOT = Path(__file__).parents[2]
RUN = "import sys; sys.path.insert(0, sys.argv.pop(1)); from learner.cli.main import main; sys.exit(main())"


def test_a_bundled_config_trains_in_any_directory(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["fit", "configs/digits.yaml", "--print_config", "--num_epochs=3"]) == 0
    out, err = capsys.readouterr()
    assert yaml.safe_load(out)["model"]["class_path"] == "learner.examples.models.MLP"
    assert err == f"learner: there is no configs/digits.yaml here; using {CONFIGS / 'digits.yaml'}\n"


def test_a_file_of_the_user_comes_first(tmp_path, monkeypatch, capsys):
    (tmp_path / "configs").mkdir()
    text = (CONFIGS / "digits.yaml").read_text()
    (tmp_path / "configs" / "digits.yaml").write_text(text.replace("num_epochs: 20", "num_epochs: 7"))
    monkeypatch.chdir(tmp_path)
    assert main(["fit", "configs/digits.yaml", "--print_config"]) == 0
    out, err = capsys.readouterr()
    assert (yaml.safe_load(out)["num_epochs"], err) == (7, "")


@pytest.mark.parametrize("path", ["configs/digit.yaml", "mine/configs/digits.yaml", "digits.yaml"])
def test_other_paths_are_files(tmp_path, monkeypatch, capsys, path):
    monkeypatch.chdir(tmp_path)
    assert main(["fit", path]) == 2
    assert f"there is no config file {path}" in capsys.readouterr().err


def test_a_dangling_link_is_not_replaced(tmp_path, monkeypatch, capsys):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "digits.yaml").symlink_to("nowhere.yaml")
    monkeypatch.chdir(tmp_path)
    assert main(["fit", "configs/digits.yaml"]) == 2


def test_the_configs_of_the_package_are_those_of_the_repository():
    assert CONFIGS.resolve() == ROOT / "configs"


def test_the_gallery_shows_every_example():
    text = (ROOT / "docs" / "gallery.md").read_text()
    names = [path.name for path in (*SCRIPTS.glob("*.py"), *SCRIPTS.glob("*.yaml"), *CONFIGS.glob("*.yaml"))]
    assert [name for name in names if name not in ("__init__.py", "models.py") and name not in text] == []


@pytest.mark.full
def test_a_wheel_has_them(tmp_path):
    pytest.importorskip("setuptools", minversion="77", reason="the build of a wheel needs it")
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("learner", "configs", "examples"):
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    build = "import setuptools.build_meta as build; print(build.build_wheel('.'))"
    built = subprocess.run([sys.executable, "-c", build], cwd=copy, capture_output=True, text=True, check=True)
    name = built.stdout.splitlines()[-1]
    assert name.startswith("learner_jax-0.")
    zipfile.ZipFile(copy / name).extractall(tmp_path / "installed")
    words = ["fit", "configs/digits.yaml", "--num_epochs=1", "--renderer=null"]
    ran = subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path / "installed"), *words], cwd=tmp_path, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    assert str(tmp_path / "installed" / "learner" / "examples" / "configs" / "digits.yaml") in ran.stderr
    assert (tmp_path / "runs" / "digits" / "summary.json").is_file()
    words = [sys.executable, "-c", RUN, str(tmp_path / "installed"), "examples", "gan"]
    printed = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert printed == (ROOT / "examples" / "gan.py").read_text()
    words[-2:] = "new", "mine"
    subprocess.run(words, cwd=tmp_path, capture_output=True, check=True)
    assert (tmp_path / "mine" / "model.py").is_file()
