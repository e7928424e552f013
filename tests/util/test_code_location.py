"""The line of the user's code that an error comes from, in files, cells and at prompts."""

import sys
from types import SimpleNamespace

import pytest

from learner.util.code_location import code_location

CODE = "import numpy as np\n\nnp.stack([])\n"  # raises in a file of NumPy


def location_of(filename):
    with pytest.raises(ValueError, match="at least one array") as raised:
        exec(compile(CODE, filename, "exec"), {})
    return code_location(raised.value)


@pytest.mark.parametrize("filename", ["/home/me/train.py", "<stdin>", "<python-input-4>", "<ipython-input-4-5d7f>"])
def test_the_line_is_the_users_and_not_of_the_library_that_it_calls(filename):
    assert location_of(filename) == f"{filename}, line 3"


def test_code_that_a_library_generates_is_not_the_users():
    assert location_of("<string>").startswith(__file__)


def test_a_cell_has_the_name_of_its_tracebacks(monkeypatch):
    compiler = pytest.importorskip("IPython.core.compilerop").CachingCompiler()
    shell = SimpleNamespace(compile=compiler)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert location_of(compiler.cache(CODE, 7)) == "Cell In[7], line 3"
    assert location_of("/home/me/train.py") == "/home/me/train.py, line 3"


def test_callers_are_named_from_the_inside_out():
    names = {}
    exec(compile("def layer():\n    raise ValueError\n", "/home/me/layers.py", "exec"), names)
    exec(compile("def model():\n    layer()\n\n\ndef step():\n    model()\n", "/home/me/train.py", "exec"), names)
    with pytest.raises(ValueError) as raised:  # noqa: PT011
        names["step"]()
    assert code_location(raised.value) == "/home/me/layers.py, line 2"
    inner = "/home/me/layers.py, line 2, called from /home/me/train.py, line 2"
    assert code_location(raised.value, callers=1) == inner
    assert code_location(raised.value, callers=2) == f"{inner}, from /home/me/train.py, line 6"


def test_an_older_ipython_names_no_cells(monkeypatch):
    shell = SimpleNamespace(compile=SimpleNamespace())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert location_of("<ipython-input-4-5d7f>") == "<ipython-input-4-5d7f>, line 3"
