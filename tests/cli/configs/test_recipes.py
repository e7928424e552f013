"""Tests of objects that configs describe by an import path and arguments."""

import functools
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from learner.cli.configs.recipes import Recipe, Seeds, named, nested, objects, recipe
from tests.support.codes import raises_code

MODULE = "test_recipes_objects"


class Part(nnx.Module):
    def __init__(self, size: int, *, rngs: nnx.Rngs):
        self.w = nnx.Param(rngs.params.normal((size,)))


class Whole(nnx.Module):
    def __init__(self, parts: list, first: Any = None, scale: float = 1.0, *, rngs: nnx.Rngs):
        self.parts, self.first, self.scale = nnx.List(parts), first, scale
        self.w = nnx.Param(rngs.params.normal((2,)))


class Scaled:
    def __init__(self, factor: float = 2.0):
        self.factor = factor

    def __call__(self, x):
        return self.factor * x


def keys(count: int, *, key):
    return [jax.random.normal(key) for _ in range(count)]


def seeded(size: int, seed: int = 7):
    return size, seed


def scaled(x, factor: float = 1.0):
    return factor * x


thing = {"a": 1}


@pytest.fixture(autouse=True)
def module(monkeypatch):
    """Make the objects above importable under another module name."""
    import sys
    import types

    importable = types.ModuleType(MODULE)
    vars(importable).update({name: value for name, value in globals().items() if not name.startswith("test_")})
    monkeypatch.setitem(sys.modules, MODULE, importable)


def spec(name, **init_args):
    return {"class_path": f"{MODULE}.{name}", **({"init_args": init_args} if init_args else {})}


def test_object_and_its_full_config():
    description = recipe(spec("Scaled"), "optimizer")
    assert description.make()(3) == 6
    assert description.config() == spec("Scaled", factor=2.0)
    assert recipe(description.config(), "optimizer").config() == description.config()
    assert recipe(f"{MODULE}.Scaled", "optimizer").config() == description.config()


def test_short_names():
    names = {"Scaled": f"{MODULE}.Scaled"}
    assert recipe({"class_path": "Scaled", "init_args": {"factor": 3}}, "optimizer", names).make()(2) == 6
    assert recipe("Scaled", "optimizer", names).config()["class_path"] == "Scaled"
    with raises_code("config-name-unknown", "'Scaled'", key="optimizer", path="Scalde"):
        named("Scalde", "optimizer", names)


@pytest.mark.parametrize(
    ("value", "code", "shown"),
    [
        (3, "config-recipe-type", ["is 3"]),
        ({"init_args": {}}, "config-recipe-type", []),
        ({"class_path": 3}, "config-recipe-type", []),
        (
            {"class_path": "a.b", "hidden": 3},
            "config-argument-beside-class-path",
            ["'hidden'", "class_path", "init_args"],
        ),
        ({"class_path": f"{MODULE}.Scaled", "init_args": [1]}, "config-init-args-type", ["model.init_args"]),
        ({"class_path": f"{MODULE}.thing", "init_args": {"x": 1}}, "config-target-not-callable", []),
    ],
)
def test_malformed_objects_are_refused(value, code, shown):
    with raises_code(code, *shown):
        recipe(value, "model")


def test_path_without_arguments():
    assert recipe(f"{MODULE}.thing", "model").make() is thing
    assert recipe(f"{MODULE}.scaled", "lr", alone=True).make() is scaled
    assert recipe(f"{MODULE}.scaled", "lr", alone=True).config() == f"{MODULE}.scaled"
    assert isinstance(recipe(f"{MODULE}.Scaled", "optimizer", alone=True).make(), Scaled)
    with raises_code("config-arguments-mismatch", "'x'"):
        recipe(f"{MODULE}.scaled", "model")


def test_function_with_some_arguments():
    description = recipe(spec("scaled", factor=3), "train_step", alone=True, partial=True)
    assert isinstance(description.make(), functools.partial)
    assert description.make()(2) == 6
    assert description.config() == spec("scaled", factor=3)
    assert isinstance(recipe(spec("Scaled", factor=3), "optimizer", partial=True).make(), Scaled)


def test_parts_of_a_model_share_one_random_stream():
    config = spec("Whole", parts=[spec("Part", size=2), spec("Part", size=2)], first=spec("Part", size=2), scale=2)
    description = recipe(config, "model", model=True)
    model = description.make(Seeds(0))
    drawn = [model.parts[0].w, model.parts[1].w, model.first.w, model.w]
    assert len({float(w[0]) for w in drawn}) == 4
    assert model.scale == 2.0
    second = description.make(Seeds(0))
    np.testing.assert_array_equal(second.first.w[...], model.first.w[...])
    assert float(description.make(Seeds(1)).w[0]) != float(model.w[0])
    assert description.config() == config


def test_missing_keys_and_seeds_follow_the_seed():
    assert recipe(spec("seeded", size=1), "model", model=True).make(Seeds(5)) == (1, 5)
    assert recipe(spec("seeded", size=1, seed=2), "model", model=True).make(Seeds(5)) == (1, 2)
    assert recipe(spec("seeded", size=1), "train.dataset").make() == (1, 7)
    first, second = (recipe(spec("keys", count=1), "model", model=True).make(Seeds(seed)) for seed in (0, 1))
    assert first != second


def test_keys_differ_each_time():
    seeds = Seeds(0)
    assert not np.array_equal(jax.random.key_data(seeds.key), jax.random.key_data(seeds.key))
    assert seeds.rngs is seeds.rngs


def test_mistakes_inside_an_object_have_their_place():
    with raises_code("config-arguments-mismatch", "model.init_args.parts.1.init_args.size", "'x'"):
        recipe(spec("Whole", parts=[spec("Part", size=2), spec("Part", size="x")]), "model", model=True)


def test_nested_objects():
    given = nested({"a": [1, {"b": spec("Scaled")}], "c": {"d": 2}}, "every")
    assert objects(given) == ["a"]
    assert isinstance(given["a"][1]["b"], Recipe)


def test_values_that_optax_refuses_are_an_error_of_the_config():
    arguments = {"init_value": 0.1, "decay_steps": 0}
    with raises_code("config-optax-refused", "decay_steps=0", path="optax.cosine_decay_schedule"):
        recipe({"class_path": "optax.cosine_decay_schedule", "init_args": arguments}, "lr", kind="lr").make()
    with pytest.raises(ZeroDivisionError):  # of other code, with its traceback
        recipe({"class_path": "fractions.Fraction", "init_args": {"numerator": 1, "denominator": 0}}, "model").make()
