"""Tests of the name and version of the distribution, and of the commands that install its extras."""

import importlib.metadata
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from learner.util import distribution
from learner.util.distribution import install_hint, versions

ROOT = Path(distribution.__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Return a function that moves the package to a directory of installed packages, with a given PEP 610 origin."""

    def install(origin=None):
        packages = tmp_path / "site-packages"
        info = packages / "learner_jax-0.1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.4\nName: learner-jax\nVersion: 0.1.0\n")
        if origin is not None:
            (info / "direct_url.json").write_text(origin)
        monkeypatch.syspath_prepend(packages)
        monkeypatch.setattr(distribution, "__file__", str(packages / "learner" / "distribution.py"))

    return install


def test_hint_names_the_clone_from_any_directory(monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    assert install_hint("reports") == 'pip install -e ".[reports]"'
    monkeypatch.chdir(tmp_path)
    assert shlex.split(install_hint("reports")) == ["pip", "install", "-e", f"{ROOT}[reports]"]


@pytest.mark.parametrize(
    ("origin", "requirement"),
    [
        (None, "learner-jax[plots]"),
        ('{"url": "file:///src/learner", "dir_info": {}}', "learner-jax[plots] @ file:///src/learner"),
        (
            '{"url": "https://host/l.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}}',
            "learner-jax[plots] @ git+https://host/l.git",
        ),
        ('{"url": "https://host/l.whl", "archive_info": {}}', "learner-jax[plots] @ https://host/l.whl"),
    ],
)
def test_hint_names_the_origin_of_an_installed_package(installed, origin, requirement):
    installed(origin)
    assert shlex.split(install_hint("plots")) == ["pip", "install", requirement]


def test_hint_for_a_copy_unknown_to_pip_names_the_index(monkeypatch, tmp_path):
    def nothing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(distribution, "__file__", str(tmp_path / "learner" / "distribution.py"))
    monkeypatch.setattr(importlib.metadata, "distribution", nothing)
    assert install_hint("plots") == 'pip install "learner-jax[plots]"'


def test_project_has_the_name_and_version_of_the_module():
    assert PROJECT["project"]["name"] == distribution.NAME == "learner-jax"
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "learner.util.distribution.VERSION"}
    assert re.fullmatch(r"\d+\.\d+\.\d+", distribution.VERSION)


def test_extra_examples_has_the_packages_that_its_output_recommends():
    extras = PROJECT["project"]["optional-dependencies"]
    needs = {"learner-jax[reports,watch]", "plotext", "scikit-learn"}
    assert {re.split("[><=]", need)[0] for need in extras["examples"]} == needs


def test_no_text_installs_the_other_project_of_the_index():
    """On the index, `learner[...]` is another project. Every extra that a text names exists."""
    extras = PROJECT["project"]["optional-dependencies"]
    texts = [
        *ROOT.glob("*.*"),
        *(path for part in ("learner", "docs", "examples") for path in (ROOT / part).rglob("*.*")),
    ]
    for path in texts:
        if path.suffix not in (".py", ".md", ".toml", ".yaml") or path.name == "CHANGELOG.md":
            continue
        text = path.read_text()
        assert re.findall(r"(?<![\w/-])learner\[[a-z,-]+\]", text) == [], path
        named = re.findall(r"install_hint\([\"'](\w+)[\"']\)", text) + re.findall(r"the extra `(\w+)`", text)
        assert set(named) <= set(extras), path


def test_documentation_lists_every_dependency():
    """Each row names its extra. Extras of tests and documentation, and the package's own extras, are left out."""
    name = lambda requirement: re.match(r"[\w-]+", requirement)[0]  # noqa: E731
    extras = PROJECT["project"]["optional-dependencies"]
    for_users = extras.keys() - {"docs", "test", "test-full", "dev"}
    expected = {(name(package), "") for package in PROJECT["project"]["dependencies"]}
    expected |= {(name(p), extra) for extra in for_users for p in extras[extra] if name(p) != "learner-jax"}
    required, optional = (ROOT / "docs" / "dependencies.md").read_text().split("\n## ")[1:3]
    listed = {(row[1], "") for row in re.finditer(r"^\| ([a-zA-Z][\w-]+) \|", required, re.MULTILINE)} - {
        ("Package", "")
    }
    for row in re.finditer(r"^\| ([a-z][\w, -]+) \| (`.+?`) \|", optional, re.MULTILINE | re.IGNORECASE):
        listed |= {(package, extra) for package in row[1].split(", ") for extra in re.findall(r"`([\w-]+)`", row[2])}
    assert listed == expected


def test_documentation_lists_the_required_versions():
    page = (ROOT / "docs" / "dependencies.md").read_text()
    (section,) = [part for part in page.split("\n## ") if part.startswith("Versions\n")]
    listed = dict(re.findall(r"^\| ([\w-]+) \| ([\d.]+) \|", section, re.MULTILINE))
    assert PROJECT["project"]["requires-python"] == f">={listed.pop('Python')}"
    assert len(listed) == 4
    assert {f"{name}>={version}" for name, version in listed.items()} <= set(PROJECT["project"]["dependencies"])


def test_version_is_looked_up_once(monkeypatch):
    first = versions("pytest")
    monkeypatch.delattr(importlib.metadata, "version")
    assert versions("pytest") == first == {"pytest": pytest.__version__}
