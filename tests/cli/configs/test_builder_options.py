"""Tests of builder methods as keys of configs."""

from learner.cli.configs.builder_options import methods, option
from learner.training.stopping import MetricEarlyStopping
from tests.support.codes import named_case, raises_code

NAMES = {"MetricEarlyStopping": "learner.training.stopping.MetricEarlyStopping"}


class Base:
    def length(self, n: int):
        """How long."""


class Builder(Base):
    """Record the calls of its methods."""

    def __init__(self):
        self.calls = []

    def __getattribute__(self, name):
        if name in ("calls", "__dict__") or name.startswith("_"):
            return object.__getattribute__(self, name)
        return lambda *positional, **named: self.calls.append((name, positional, named)) or self

    def saving(self, keep: int | None = 2, best: float = 1.0): ...

    def start(self): ...

    def objects(self, *objects: object): ...

    def stopping(self, stopping: MetricEarlyStopping): ...

    def silent(self, renderer: MetricEarlyStopping | None): ...

    def every(self, steps: int, fn: object): ...

    def show(self, show: bool = True): ...

    def build(self, model): ...

    def _private(self): ...


def calls(name, value, names=None):
    builder = Builder()
    setting = option(Builder, name, value, name, names)
    setting.apply(builder)
    return builder.calls, setting.value


def test_methods_are_public_and_exclude_build():
    assert list(methods(Builder)) == ["length", "saving", "start", "objects", "stopping", "silent", "every", "show"]


def test_values_become_calls():
    cases = [
        ("length", 3, [("length", (), {"n": 3})], 3),
        ("length", {"n": 3}, [("length", (), {"n": 3})], {"n": 3}),
        ("saving", {"keep": 5}, [("saving", (), {"keep": 5})], {"keep": 5, "best": 1.0}),
        ("saving", {}, [("saving", (), {})], {"keep": 2, "best": 1.0}),
        ("saving", None, [("saving", (), {"keep": None})], {"keep": None, "best": 1.0}),
        ("saving", 4, [("saving", (), {"keep": 4})], {"keep": 4, "best": 1.0}),
        ("saving", {"best": 2}, [("saving", (), {"best": 2.0})], {"best": 2, "keep": 2}),
        ("start", True, [("start", (), {})], True),
        ("start", False, [], False),
        ("show", False, [("show", (), {"show": False})], False),
        ("objects", [], [("objects", (), {})], []),
        ("objects", None, [("objects", (), {})], []),
        ("objects", 3, [("objects", (3,), {})], [3]),
        ("silent", None, [("silent", (), {"renderer": None})], None),
    ]
    for name, value, expected, saved in cases:
        with named_case((name, value, expected, saved)):
            assert calls(name, value) == (expected, saved)


def test_objects_are_created():
    described = {"class_path": "MetricEarlyStopping", "init_args": {"patience": 2}}
    cases = [
        ("MetricEarlyStopping", [5]),
        (described, [2]),
        ({"patience": 2}, [2]),
        ([described, "MetricEarlyStopping"], [2, 5]),
    ]
    for value, expected in cases:
        applied, saved = calls("stopping", value, NAMES)
        assert [arguments["stopping"].patience for _, _, arguments in applied] == expected
        first = saved[0] if isinstance(value, list) else saved
        assert first["init_args"].keys() == {"monitor", "mode", "patience", "min_delta", "warmup"}


def test_functions_are_given_by_import_path(importable):
    applied, saved = calls("every", {"steps": 5, "fn": "mymodule.halved"})
    assert applied[0][2]["fn"].__name__ == "halved"
    assert saved == {"steps": 5, "fn": "mymodule.halved"}
    applied, _ = calls("every", [{"steps": 5, "fn": "mymodule.halved"}, {"steps": 6, "fn": "mymodule.halved"}])
    assert [arguments["steps"] for _, _, arguments in applied] == [5, 6]
    part = {"class_path": "mymodule.step", "init_args": {"scale": 2}}
    applied, saved = calls("every", {"steps": 5, "fn": part})
    assert applied[0][2]["fn"].keywords == {"scale": 2.0}
    assert saved["fn"] == part


def test_invalid_values_are_refused():
    cases = [
        ("length", "x", "config-arguments-mismatch", ["length is 'x'"]),
        ("length", {"m": 1}, "config-arguments-mismatch", ["'m'"]),
        ("length", {"n": "x"}, "config-arguments-mismatch", ["length.n", "'x'"]),
        ("saving", {"kep": 1}, "config-arguments-mismatch", ["'kep'", "'keep'"]),
        ("start", 3, "config-argument-not-bool", ["is 3"]),
        ("stopping", "MetricEarlyStoping", "config-name-unknown", ["'MetricEarlyStoping'"]),
        ("stopping", None, "config-arguments-mismatch", ["stopping is None"]),
        ("every", {"steps": 5}, "config-arguments-mismatch", ["'fn'"]),
        ("every", [{"steps": 5, "fn": "nosuchmodule.f"}], "config-module-missing", ["every.0.fn", "'nosuchmodule.f'"]),
    ]
    for name, value, code, shown in cases:
        with named_case((name, value, code, shown)), raises_code(code, *shown):
            option(Builder, name, value, name, NAMES if name == "stopping" else None)
