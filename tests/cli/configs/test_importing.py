"""Tests of import paths in configs."""

import os
import sys

import pytest

from learner.cli.configs.importing import exports, import_order, import_path
from learner.errors import LearnerError
from tests.support.codes import raises_code


def test_attributes_of_classes_are_imported(importable):
    assert import_path("fractions.Fraction.from_float", "model")(0.5) == 0.5
    assert import_path("mymodule.linear", "model").__name__ == "linear"


def test_function_takes_precedence_over_a_module_of_its_name(importable):
    (importable / "box").mkdir()
    (importable / "box" / "__init__.py").write_text("from box.thing import thing\n")
    (importable / "box" / "thing.py").write_text("def thing(): return 1\n")
    assert import_path("box.thing", "model")() == 1


@pytest.mark.parametrize(
    ("path", "code", "shown"),
    [
        ("linear", "config-path-malformed", ["'linear'"]),
        ("a b.c", "config-path-malformed", ["'a b.c'"]),
        ("nosuchmodule.linear", "config-module-missing", ["'nosuchmodule'"]),
        ("mymodule.liner", "config-name-missing", ["'liner'", "'linear'"]),
        ("time.Net", "config-name-missing", ["time has no 'Net'"]),
        ("mymodule.linear.part", "config-name-missing", ["mymodule.linear", "'part'"]),
        ("box.thingy.Thing", "config-name-missing", ["'thingy'", "'things'"]),
    ],
)
def test_missing_names_have_suggestions(importable, path, code, shown):
    (importable / "box").mkdir()
    (importable / "box" / "things.py").write_text("")
    with raises_code(code, *shown):
        import_path(path, "model")


def test_directory_without_modules_is_no_module(importable):
    """Python imports the directory of a run as a package, where a command runs beside it."""
    (importable / "moons" / "checkpoint").mkdir(parents=True)
    hint = f"(the directory {importable / 'moons'} contains none)"
    with raises_code("config-module-missing", "'moons'", hint):
        import_path("moons.Net", "model")
    (importable / "moons" / "inner").mkdir()
    (importable / "moons" / "inner" / "nets.py").write_text("def Net(): return 1\n")
    with raises_code("config-name-missing", "'iner'"):
        import_path("moons.iner.nets.Net", "model")
    (importable / "moons" / "nets.py").write_text("def Net(): return 1\n")
    with raises_code("config-name-missing", "'nets'"):
        import_path("moons.Net", "model")
    assert import_path("moons.nets.Net", "model")() == 1


def test_imported_modules_are_no_suggestions(importable):
    (importable / "mine.py").write_text("import numpy as np\n\ndef rows(): return 1\n")
    with raises_code("config-name-missing", "choose from 'rows'") as raised:
        import_path("mine.nope", "train")
    assert "'np'" not in str(raised.value)


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        (
            "import os\nimport nosuchthing\n",
            ["ModuleNotFoundError: No module named 'nosuchthing' (", "broken.py, line 2)"],
        ),
        ("x = 1\ny = x.z\n", ["AttributeError: ", "broken.py, line 2)"]),
        ("def f(:\n", ["SyntaxError: ", "broken.py, line 1)"]),
        ("import sys\n\nsys.exit(3)\n", ["SystemExit: 3 (", "broken.py, line 3)"]),
        ("import json\n\njson.loads('{')\n", ["JSONDecodeError: ", "json"]),
    ],
)
def test_error_of_a_module_names_its_line(importable, source, shown):
    (importable / "broken.py").write_text(source)
    with raises_code("config-import-failed", *shown, key="model", path="broken.Model", name="broken"):
        import_path("broken.Model", "model")


def test_exported_names():
    metrics = exports("learner.metrics", "learner.metrics.MetricBase")
    assert metrics["Accuracy"] == "learner.metrics.Accuracy"
    assert not {"Metric", "MetricBase", "Mean", "rows_mask"} & set(metrics)
    assert "digits" in exports("learner.data")


@pytest.mark.parametrize("first", ["", ".", "{here}"])
def test_current_directory_is_last_on_the_import_path(workplace, monkeypatch, first):
    monkeypatch.syspath_prepend(first.format(here=workplace))
    before = list(sys.path)
    others = before[1:]
    with import_order(own=True):
        assert sys.path == [*others, str(workplace)]
    with import_order(own=False):
        assert sys.path == others
    assert sys.path == before


def test_child_processes_import_pythons_modules_despite_files_of_their_names(workplace, monkeypatch):
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    with import_order(own=True):
        assert "PYTHONSAFEPATH" not in os.environ
    (workplace / "random.py").touch()
    with import_order(own=True):
        assert os.environ["PYTHONSAFEPATH"] == "1"
    assert "PYTHONSAFEPATH" not in os.environ


def test_import_path_in_a_removed_directory(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    before = list(sys.path)
    with import_order(own=True):
        assert sys.path == before


def test_module_hidden_by_another_is_reported(workplace):
    (workplace / "yaml.py").write_text("class Model: ...\n")
    with import_order(own=True), pytest.raises(LearnerError) as caught:
        import_path("yaml.Model", "model")
    assert "yaml has no 'Model'" in str(caught.value)
    assert "which is found before yaml.py in the current directory: rename that one" in str(caught.value)
