"""How the installed package names itself, and the commands that add an extra to it."""

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
    """Put the package elsewhere, as if pip had installed it from the origin that a file of PEP 610 names."""

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


def test_a_clone_is_named_from_wherever_the_hint_is_read(monkeypatch, tmp_path):
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
def test_an_installed_package_is_named_by_its_origin(installed, origin, requirement):
    installed(origin)
    assert shlex.split(install_hint("plots")) == ["pip", "install", requirement]


def test_a_copy_that_pip_does_not_know_is_named_by_the_index(monkeypatch, tmp_path):
    def nothing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(distribution, "__file__", str(tmp_path / "learner" / "distribution.py"))
    monkeypatch.setattr(importlib.metadata, "distribution", nothing)
    assert install_hint("plots") == 'pip install "learner-jax[plots]"'


def test_the_project_has_this_name_and_this_version():
    assert PROJECT["project"]["name"] == distribution.NAME == "learner-jax"
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "learner.util.distribution.VERSION"}
    assert re.fullmatch(r"\d+\.\d+\.\d+", distribution.VERSION)


def test_the_first_command_brings_the_packages_that_its_output_advises():
    extras = PROJECT["project"]["optional-dependencies"]
    needs = {"learner-jax[reports,watch]", "plotext", "scikit-learn"}
    assert {re.split("[><=]", need)[0] for need in extras["examples"]} == needs


def test_no_text_names_the_other_project_of_the_index():
    """`learner[...]` is another project's; and each extra that is named exists."""
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


def test_the_documentation_lists_every_dependency():
    """With its extra. Those of tests and documentation, and the package's own extras, are left out."""
    name = lambda requirement: re.match(r"[\w-]+", requirement)[0]  # noqa: E731
    extras = PROJECT["project"]["optional-dependencies"]
    for_users = extras.keys() - {"docs", "test", "test-full", "dev"}
    expected = {(name(each), "") for each in PROJECT["project"]["dependencies"]}
    expected |= {(name(each), extra) for extra in for_users for each in extras[extra] if name(each) != "learner-jax"}
    required, optional = (ROOT / "docs" / "dependencies.md").read_text().split("\n## ")[1:3]
    listed = {(row[1], "") for row in re.finditer(r"^\| ([a-zA-Z][\w-]+) \|", required, re.MULTILINE)} - {
        ("Package", "")
    }
    for row in re.finditer(r"^\| ([a-z][\w, -]+) \| (`.+?`) \|", optional, re.MULTILINE | re.IGNORECASE):
        listed |= {(package, extra) for package in row[1].split(", ") for extra in re.findall(r"`([\w-]+)`", row[2])}
    assert listed == expected


def test_a_version_is_looked_up_once(monkeypatch):
    first = versions("pytest")
    monkeypatch.delattr(importlib.metadata, "version")
    assert versions("pytest") == first == {"pytest": pytest.__version__}
