"""The line that a warning points to."""

import contextlib
import functools
import inspect
import threading
import warnings
from pathlib import Path

import pytest

import learner
from learner.util.user_warnings import LearnerWarning, warn

PACKAGE = Path(learner.__file__).parent


def in_package(source, **names):
    """Return the function `f` of code that lies in the package, as far as Python can tell."""
    exec(compile(source, str(PACKAGE / "part.py"), "exec"), names)
    return names["f"]


def line_of(call):
    with pytest.warns(LearnerWarning) as caught:
        call()
    (warning,) = caught
    return warning.filename, warning.lineno


def here():
    return inspect.currentframe().f_back.f_lineno


direct = in_package("def f(): warn('x')", warn=warn)
deep = in_package("def f(): return inner()", inner=direct)
generator = in_package("def f():\n    inner()\n    yield 1", inner=direct)
manager = in_package("@manager\ndef f():\n    inner()\n    yield", inner=direct, manager=contextlib.contextmanager)
entered = in_package("def f():\n    with inner(): pass", inner=manager)
cached = in_package("class f:\n    x = prop(lambda self: inner())", inner=deep, prop=functools.cached_property)


@pytest.mark.parametrize(
    "call",
    [direct, deep, lambda: list(generator()), manager().__enter__, entered, lambda: cached().x],
    ids=["direct", "deep", "generator", "manager", "entered", "property"],
)
def test_it_is_the_first_outside_of_the_package(call):
    assert line_of(lambda: call())[0] == __file__


def test_a_hook_is_such_a_line_inside_of_fit():
    lines = []

    def hook():
        lines.append(here() + 1)
        deep()

    assert line_of(in_package("def f(): hook()", hook=hook)) == (__file__, lines[0])


def test_a_neighbor_of_the_package_is_outside():
    names = {"f": direct}
    path = f"{PACKAGE}_experiments/train.py"
    assert line_of(lambda: exec(compile("\nf()", path, "exec"), names)) == (path, 2)


def test_a_thread_of_the_package_has_its_own_line():
    def run():
        thread = threading.Thread(target=deep)
        thread.start()
        thread.join()

    assert line_of(run) == (str(PACKAGE / "part.py"), 1)


def test_a_line_warns_once_by_default():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            deep()
        deep()
    assert [each.lineno for each in caught] == [here() - 2, here() - 1]
