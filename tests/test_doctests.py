"""Run every example in a docstring under the strict settings of all tests."""

import doctest
import importlib.util
import pkgutil
from pathlib import Path

import pytest

import learner

MODULES = ["learner", *(module.name for module in pkgutil.walk_packages(learner.__path__, "learner."))]
MODULES.remove("learner.__main__")  # importing it runs the command line


def text_of(module):
    return Path(importlib.util.find_spec(module).origin).read_text()


def examples_of(module):
    """Return the examples of a module, imported only if its text has some."""
    if ">>> " not in text_of(module):
        return []
    return [test for test in doctest.DocTestFinder().find(importlib.import_module(module)) if test.examples]


def package_of(module):
    return ".".join(module.split(".")[:2])


def cases():
    """Return the modules, marked as full for metrics and steps, whose operations are compiled and have other tests."""
    slow = ("learner.metrics", "learner.steps")
    packages = sorted({package_of(module) for module in MODULES})
    return [pytest.param(package, marks=pytest.mark.full if package in slow else ()) for package in packages]


@pytest.mark.parametrize("package", cases())
def test_the_examples_of(package, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    failures = []
    for module in MODULES:
        if package_of(module) == package:
            for test in examples_of(module):
                doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=failures.append)
            assert list(tmp_path.iterdir()) == [], module
    assert not failures, "".join(failures)


def test_there_are_examples():
    assert sum(">>> " in text_of(module) for module in MODULES) >= 50
