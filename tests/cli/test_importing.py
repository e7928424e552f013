import sys

import pytest

from learner.cli.importing import current_directory_importable, exports, import_path
from learner.errors import LearnerError


def test_attributes_of_classes_are_found(importable):
    assert import_path("fractions.Fraction.from_float", "model")(0.5) == 0.5
    assert import_path("mymodule.linear", "model").__name__ == "linear"


def test_a_function_goes_before_a_module_of_its_name(importable):
    (importable / "box").mkdir()
    (importable / "box" / "__init__.py").write_text("from box.thing import thing\n")
    (importable / "box" / "thing.py").write_text("def thing(): return 1\n")
    assert import_path("box.thing", "model")() == 1


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("linear", "model is 'linear'; it needs an import path"),
        ("a b.c", "model is 'a b.c'; it needs an import path"),
        ("nosuchmodule.linear", "there is no module 'nosuchmodule'"),
        ("mymodule.liner", "mymodule has no 'liner': did you mean 'linear'"),
        ("mymodule.linear.part", "mymodule.linear has no 'part'"),
        ("box.thingy.Thing", "box has no 'thingy': did you mean 'things'"),
    ],
)
def test_what_is_not_there(importable, path, message):
    (importable / "box").mkdir()
    (importable / "box" / "things.py").write_text("")
    with pytest.raises(LearnerError, match=message):
        import_path(path, "model")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "import os\nimport nosuchthing\n",
            r"ModuleNotFoundError: No module named 'nosuchthing' \(.*broken.py, line 2\)",
        ),
        ("x = 1\ny = x.z\n", r"AttributeError: .* \(.*broken.py, line 2\)"),
        ("def f(:\n", r"SyntaxError: .* \(.*broken.py, line 1\)"),
        ("import sys\n\nsys.exit(3)\n", r"SystemExit: 3 \(.*broken.py, line 3\)"),
        ("import json\n\njson.loads('{')\n", r"JSONDecodeError: .* \(.*json.*, line \d+\)"),
    ],
)
def test_a_module_that_fails_says_where(importable, source, message):
    (importable / "broken.py").write_text(source)
    with pytest.raises(LearnerError, match=f"model is 'broken.Model', but module broken cannot be imported: {message}"):
        import_path("broken.Model", "model")


def test_exports():
    metrics = exports("learner.metrics", "learner.metrics.MetricBase")
    assert metrics["Accuracy"] == "learner.metrics.Accuracy"
    assert not {"Metric", "MetricBase", "Mean", "rows_mask"} & set(metrics)
    assert "digits" in exports("learner.data")


def test_the_current_directory_is_importable_for_a_while(workplace):
    before = list(sys.path)
    with current_directory_importable():
        assert sys.path[0] == str(workplace)
    assert sys.path == before
