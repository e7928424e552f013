"""Tests of the line of the user's code to which an error is attributed, in files, notebook cells and prompts."""

import sys
from types import SimpleNamespace

import pytest

from learner.util.code_location import code_location

CODE = "import numpy as np\n\nnp.stack([])\n"  # raises in a file of NumPy


def location_of(filename):
    """Return the location of an error that code of this file name raises inside NumPy."""
    with pytest.raises(ValueError, match="at least one array") as raised:
        exec(compile(CODE, filename, "exec"), {})
    return code_location(raised.value)


@pytest.mark.parametrize("filename", ["/home/me/train.py", "<stdin>", "<python-input-4>", "<ipython-input-4-5d7f>"])
def test_location_is_the_users_line_and_not_the_librarys(filename):
    assert location_of(filename) == f"{filename}, line 3"


def test_generated_code_is_skipped():
    assert location_of("<string>").startswith(__file__)


def test_cell_has_the_name_that_tracebacks_show(monkeypatch):
    compiler = pytest.importorskip("IPython.core.compilerop").CachingCompiler()
    shell = SimpleNamespace(compile=compiler)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert location_of(compiler.cache(CODE, 7)) == "Cell In[7], line 3"
    assert location_of("/home/me/train.py") == "/home/me/train.py, line 3"


def test_callers_follow_from_innermost_to_outermost():
    names = {}
    exec(compile("def layer():\n    raise ValueError\n", "/home/me/layers.py", "exec"), names)
    exec(compile("def model():\n    layer()\n\n\ndef step():\n    model()\n", "/home/me/train.py", "exec"), names)
    with pytest.raises(ValueError) as raised:  # noqa: PT011
        names["step"]()
    assert code_location(raised.value) == "/home/me/layers.py, line 2"
    inner = "/home/me/layers.py, line 2, called from /home/me/train.py, line 2"
    assert code_location(raised.value, callers=1) == inner
    assert code_location(raised.value, callers=2) == f"{inner}, from /home/me/train.py, line 6"


def test_older_ipython_has_no_cell_numbers(monkeypatch):
    shell = SimpleNamespace(compile=SimpleNamespace())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert location_of("<ipython-input-4-5d7f>") == "<ipython-input-4-5d7f>, line 3"
