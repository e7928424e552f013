"""Check that the files of a release agree with the package."""

import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from learner.util.distribution import VERSION

ROOT = Path(__file__).parents[1]


def test_every_file_has_the_version():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == VERSION
    assert (ROOT / "CHANGELOG.md").read_text().partition("\n## ")[2].startswith(f"{VERSION},")


def test_a_release_of_another_version_is_refused():
    if not (ROOT / ".git").exists():
        pytest.skip("this is not a clone")
    ran = subprocess.run([ROOT / ".ci" / "release", "99.0.0"], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (1, "")
    named = {line.split()[1] for line in ran.stderr.splitlines()}
    assert {"learner/util/distribution.py", "CITATION.cff", "CHANGELOG.md"} <= named
    assert not (ROOT / "dist" / "learner_jax-99.0.0.tar.gz").exists()


def test_the_site_is_built_from_what_there_is():
    site = yaml.safe_load((ROOT / ".readthedocs.yaml").read_text())
    assert (ROOT / site["sphinx"]["configuration"]).is_file()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (install,) = site["python"]["install"]
    assert set(install["extra_requirements"]) <= extras.keys()
