"""Run every example in a docstring under the strict settings of all tests."""

import ast
import builtins
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


def bound_names(node):
    """Return the names that a node of a program defines."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
            return {name}
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.ExceptHandler(name=name):
            return {name}
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return {(alias.asname or alias.name).split(".")[0] for alias in names}
    return set()


@pytest.mark.parametrize("package", sorted({package_of(module) for module in MODULES}))
def test_examples_use_names_that_the_module_or_they_define(package):
    """Without running them: the examples of some packages compile for long."""
    for test in (test for module in MODULES if package_of(module) == package for test in examples_of(module)):
        if any(doctest.SKIP in example.options for example in test.examples):
            continue  # a sketch, with the user's own names
        nodes = list(ast.walk(ast.parse("".join(example.source for example in test.examples))))
        used = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
        bound = set().union(*map(bound_names, nodes))
        assert used - bound - set(test.globs) - set(dir(builtins)) == set(), test.name
