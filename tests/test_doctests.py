"""Every example in a docstring runs, and gives what it says, under the strict settings of all tests."""

import doctest
import importlib
import pkgutil

import pytest

import learner

MODULES = ["learner", *(module.name for module in pkgutil.walk_packages(learner.__path__, "learner."))]
MODULES.remove("learner.__main__")  # importing it runs the command line


def examples_of(module):
    return [test for test in doctest.DocTestFinder().find(importlib.import_module(module)) if test.examples]


def cases():
    """Metrics compile each of their operations, and have tests of their own: those are in the full run."""
    slow = lambda module: module.startswith("learner.metrics.")  # noqa: E731
    return [pytest.param(module, marks=pytest.mark.full if slow(module) else ()) for module in MODULES]


@pytest.mark.parametrize("module", cases())
def test_the_examples_of(module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = []
    for test in examples_of(module):
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
        runner.run(test, out=said.append)
    assert not said, "".join(said)
    assert list(tmp_path.iterdir()) == []


def test_there_are_examples():
    assert sum(len(examples_of(module)) for module in MODULES) >= 50
