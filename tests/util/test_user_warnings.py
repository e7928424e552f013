"""The line that a warning points to."""

import contextlib
import functools
import inspect
import threading
import warnings
from pathlib import Path

import jax.numpy as jnp
import pytest

import learner
from learner import LearnerBuilder, Output
from learner.events import Listener, Message
from learner.util.user_warnings import LearnerWarning, warn
from tests.support.runs import batches, build_line

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


IGNORED = "ignores the learning rate"


def warn_in_a_run(directory, renderer):
    """Train with an `update=` that ignores its rate, of which the run warns."""

    def update(state, batch, lr, rng):
        return {"w": state["w"] * 0.5}, Output(state["w"].sum())

    builder = LearnerBuilder(directory).num_epochs(1).renderer(renderer)
    builder.build({"w": jnp.ones(2)}, None, 0.1, update=update).fit([{"x": jnp.ones(2)}])


class Listened(Listener):
    def __init__(self, messages):
        self.messages = messages

    def on_event(self, event):
        if isinstance(event, Message):
            self.messages.append(event.text)


@pytest.mark.parametrize("action", ["default", "error", "ignore"])
def test_a_filter_is_also_for_the_warnings_of_a_run(tmp_path, action):
    messages, expected = [], pytest.raises(LearnerWarning) if action == "error" else contextlib.nullcontext()
    with warnings.catch_warnings(), expected:
        warnings.filterwarnings(action, message=f".*{IGNORED}", category=LearnerWarning)
        warn_in_a_run(tmp_path / "run", Listened(messages))
    assert sum(IGNORED in text for text in messages) == (1 if action == "default" else 0)
    assert IGNORED in (tmp_path / "run" / "experiment.log").read_text()


def test_a_filter_for_every_category_is_not_for_the_warnings_of_a_run(tmp_path):
    messages = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warn_in_a_run(tmp_path / "run", Listened(messages))
    assert any(IGNORED in text for text in messages)


@pytest.mark.parametrize(("action", "count"), [("default", 1), ("ignore", 0), ("error", 0)])
def test_without_a_renderer_python_shows_the_warnings_of_a_run(tmp_path, action, count):
    """They do not end it, unless a filter for their category makes them errors."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter(action)
        warn_in_a_run(tmp_path / "run", None)
    found = [(each.category, each.filename) for each in caught if IGNORED in str(each.message)]
    assert found == [(LearnerWarning, __file__)] * count
    assert IGNORED in (tmp_path / "run" / "experiment.log").read_text()


def test_warnings_of_threads_have_the_line_that_trains(tmp_path):
    """That of a logger that raises comes from the logger's thread."""

    class Broken(Listener):
        def on_event(self, event):
            raise OSError("the server is gone")

    builder = LearnerBuilder(tmp_path / "run").num_epochs(1).renderer(None).metric_loggers(Broken())
    with pytest.warns(LearnerWarning, match="the server is gone") as caught:
        build_line(builder).fit(batches())
    assert [(each.filename, each.lineno) for each in caught] == [(__file__, here() - 1)]
