"""Tests of arguments that are checked against signatures."""

import functools
from collections.abc import Callable
from typing import Any, Literal

import equinox
import jax
import pytest
from flax import nnx
from jsonargparse import ArgumentParser

from learner.cli.configs import signatures
from learner.cli.configs.signatures import check, random_parameters
from learner.errors import LearnerError
from tests.support.codes import named_case, raises_code


def function(
    size: int,
    rate: float = 0.5,
    mode: Literal["a", "b"] = "a",
    pair: tuple[int, int] = (1, 2),
    loose=(3, 4),
    activation: Callable = jax.nn.relu,
):
    return locals()


class Module(nnx.Module):
    def __init__(self, size: int, *, rngs: nnx.Rngs):
        self.size = size


class Tree(equinox.Module):
    size: int
    name: str = "tree"


class Child(Module):
    def __init__(self, depth: int = 1, **settings):
        super().__init__(**settings)


class Instance:
    def method(self, x): ...


def check_arguments(target, given, **options):
    return check(target, given, "model.init_args", "it", **options)


def test_values_have_the_types_of_the_signature():
    given = {"size": 3, "rate": 1, "pair": [5, 6], "loose": [7], "activation": "jax.nn.gelu", "mode": "b"}
    values = check_arguments(function, given).values()
    assert values == {"size": 3, "rate": 1.0, "pair": (5, 6), "loose": (7,), "activation": jax.nn.gelu, "mode": "b"}
    assert isinstance(values["rate"], float)


def test_defaults_are_values_that_a_config_can_contain():
    assert check_arguments(function, {"size": 3}).defaults == {
        "rate": 0.5,
        "mode": "a",
        "pair": (1, 2),
        "loose": (3, 4),
    }


def test_invalid_arguments_are_refused():
    cases = [
        ({}, "config-arguments-mismatch", ["model.init_args", "'size'"]),
        ({"size": 1, "rat": 2}, "config-arguments-mismatch", ["'rat'", "'rate'"]),
        ({"size": "x"}, "config-arguments-mismatch", ["model.init_args.size", "'x'"]),
        ({"size": 1.5}, "config-arguments-mismatch", ["model.init_args.size", "is 1.5"]),
        ({"size": 1, "rate": "nan"}, "config-arguments-mismatch", ["model.init_args.rate", "(YAML writes .nan)"]),
        ({"size": None}, "config-arguments-mismatch", ["model.init_args.size"]),
        ({"size": True}, "config-arguments-mismatch", ["model.init_args.size"]),
        ({"size": 1, "rate": [1]}, "config-arguments-mismatch", ["model.init_args.rate"]),
        ({"size": 1, "mode": "c"}, "config-arguments-mismatch", ["model.init_args.mode", "'c'", "'a'", "'b'"]),
        ({"size": 1, "pair": [1]}, "config-arguments-mismatch", ["model.init_args.pair"]),
        (
            {"size": 1, "activation": "jax.nn.reloo"},
            "config-arguments-mismatch",
            ["model.init_args.activation", "'jax.nn.reloo'"],
        ),
    ]
    for given, code, shown in cases:
        with named_case((given, code, shown)):
            with raises_code(code, *shown) as error:
                check_arguments(function, given)
            assert "\n" not in str(error.value)


def test_invalid_arguments_are_reported_together():
    with pytest.raises(LearnerError) as caught:
        check_arguments(function, {"size": "x", "rat": 1, "rate": 2, "mode": "c", "pair": [1]})
    assert [problem.split(" is ")[0].split(": ")[0] for problem in caught.value.problems] == [
        "model.init_args",
        "model.init_args.size",
        "model.init_args.mode",
        "model.init_args.pair",
    ]


def test_classes_of_every_kind():
    assert check_arguments(Module, {"size": 3}, skip=["rngs"]).values() == {"size": 3}
    assert check_arguments(Tree, {"size": 3}).defaults == {"name": "tree"}
    assert check_arguments(Child, {"size": 3}, skip=["rngs"]).defaults == {"depth": 1}
    with raises_code("config-arguments-mismatch", "'size'"):
        check_arguments(Tree, {})


def test_unknown_arguments_are_accepted_with_var_keywords():
    def anything(size: int = 1, **more: Any):
        return size, more

    assert check_arguments(anything, {"size": 2, "colour": "red"}).values() == {"size": 2}


def test_partial_has_no_required_arguments():
    arguments = check_arguments(function, {"rate": 2}, partial=True)
    assert arguments.values() == {"rate": 2.0}
    assert arguments.defaults == {}


def test_objects_are_checked_by_name_only():
    assert check_arguments(function, {"size": object(), "rate": 2}, objects=["size"]).values() == {"rate": 2.0}
    with raises_code("config-arguments-mismatch", "'sice'"):
        check_arguments(function, {"sice": object()}, objects=["sice"])


def test_callables_other_than_functions():
    partial = functools.partial(function, 3, mode="b")
    assert check_arguments(partial, {"rate": 2}).values() == {"rate": 2.0}
    with raises_code("config-arguments-mismatch", "'mode'"):
        check_arguments(partial, {"mode": "a"})
    assert check_arguments(jax.jit(function), {"rate": 2}, partial=True).values() == {"rate": 2.0}
    with raises_code("config-signature-unreadable"):
        check_arguments(Instance().method, {"x": 2})


def key_is_a_name(key: str): ...
def key_is_random(size, *, key): ...
def key_may_be_random(key=None): ...
def key_is_set(key=3): ...
def seed_is_set(seed: int = 3): ...
def seed_is_a_name(seed: str = "a"): ...


@pytest.mark.parametrize(
    ("target", "names"),
    [
        (Module, ["rngs"]),
        (Tree, []),
        (function, []),
        (key_is_a_name, []),
        (key_is_random, ["key"]),
        (key_may_be_random, ["key"]),
        (key_is_set, []),
        (seed_is_set, ["seed"]),
        (seed_is_a_name, []),
    ],
)
def test_random_parameters(target, names):
    assert list(random_parameters(target)) == names


def test_texts_for_other_types_are_parsed_as_yaml():
    def head(flag: bool = False, either: bool | str = False, count: int = 0, sizes: list[int] = [], any=None): ...  # noqa: B006

    assert check(head, {"flag": "true", "either": "on"}, "k", "head").values() == {"flag": True, "either": "on"}
    with raises_code("config-arguments-mismatch", "k.flag", "'on'"):
        check(head, {"flag": "on"}, "k", "head")
    deep = "[" * 30_000
    for name in ("flag", "count", "sizes"):
        with raises_code("config-arguments-mismatch", f"k.{name}") as caught:
            check(head, {name: deep}, "k", "head")
        assert len(str(caught.value)) < 300
    assert check(head, {"any": deep}, "k", "head").values() == {"any": deep}


def test_signature_is_parsed_once(monkeypatch):
    parsers = []
    monkeypatch.setattr(signatures, "ArgumentParser", lambda **options: parsers.append(1) or ArgumentParser(**options))
    assert check(function, {"size": 3}, "k", "function").values()["size"] == 3
    assert len(parsers) == 1
