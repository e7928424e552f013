"""Every example in a docstring runs, and gives what it says, under the strict settings of all tests."""

import doctest
import importlib.util
import pkgutil
from pathlib import Path

import pytest

import learner

MODULES = ["learner", *(module.name for module in pkgutil.walk_packages(learner.__path__, "learner."))]
MODULES.remove("learner.__main__")  # importing it runs the command line


def examples_of(module):
    """Return the examples of a module; it is imported only where its text has some."""
    if ">>> " not in Path(importlib.util.find_spec(module).origin).read_text():
        return []
    return [test for test in doctest.DocTestFinder().find(importlib.import_module(module)) if test.examples]


def package_of(module):
    return ".".join(module.split(".")[:2])


def cases():
    """Metrics compile each of their operations, and have tests of their own: those are in the full run."""
    slow = lambda package: package == "learner.metrics"  # noqa: E731
    packages = sorted({package_of(module) for module in MODULES})
    return [pytest.param(package, marks=pytest.mark.full if slow(package) else ()) for package in packages]


@pytest.mark.parametrize("package", cases())
def test_the_examples_of(package, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = []
    for module in MODULES:
        if package_of(module) == package:
            for test in examples_of(module):
                doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=said.append)
            assert list(tmp_path.iterdir()) == [], module
    assert not said, "".join(said)


def test_there_are_examples():
    assert sum(len(examples_of(module)) for module in MODULES) >= 50
