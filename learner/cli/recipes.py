"""Objects that a config describes: an import path and arguments, all checked before anything is made.

    class_path: examples.models.MLP
    init_args: {features: [64, 128, 10]}

jsonargparse checks the arguments (`learner.cli.signatures`). What it has no form for is here: functions in the place of
classes, also with an argument left free; random keys that come from the config's `seed`; and short names.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from learner.cli.importing import import_path
from learner.cli.signatures import Arguments, check, random_parameters
from learner.errors import LearnerError, near


class Seeds:
    """What a model is initialised with: one stream of random numbers for all of its parts.

    Attributes:
      seed: the config's seed.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._keys = 0

    @functools.cached_property
    def rngs(self) -> Any:
        """`nnx.Rngs`, the same for all parts: each takes the next numbers of it."""
        from flax import nnx

        return nnx.Rngs(self.seed)

    @property
    def key(self) -> Any:
        """A JAX key, another one each time."""
        import jax

        self._keys += 1
        return jax.random.fold_in(jax.random.key(self.seed), self._keys - 1)


@dataclasses.dataclass(frozen=True)
class Recipe:
    """An object to be made.

    Attributes:
      path: its import path, as the config says it.
      target: what that names.
      given: the arguments as the config says them, with recipes in place of objects.
      checked: those that are no recipes, and the defaults; `None` where the target is taken as it is.
      random: parameters that come from `Seeds`.
      partial: fix the arguments of a function rather than call it.
    """

    path: str
    target: Any
    given: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    checked: Arguments | None = None
    random: tuple[str, ...] = ()
    partial: bool = False

    def config(self) -> Any:
        """The recipe as a config says it in full."""
        if self.checked is None:
            return self.path
        arguments = {**mapped(self.given, Recipe.config), **self.checked.defaults}
        return {"class_path": self.path, **({"init_args": arguments} if arguments else {})}

    def arguments(self, seeds: Seeds | None = None) -> dict[str, Any]:
        """The arguments, with the objects in them made."""
        checked = {} if self.checked is None else self.checked.values()
        made = mapped({**self.given, **checked}, lambda recipe: recipe.make(seeds))
        return {**made, **({name: getattr(seeds, name) for name in self.random} if seeds is not None else {})}

    def make(self, seeds: Seeds | None = None) -> Any:
        """The object. Models and their parts need `seeds`."""
        if self.checked is None:
            return self.target
        if self.partial:
            return functools.partial(self.target, **self.arguments(seeds))
        return self.target(**self.arguments(seeds))


def recipe(
    value: Any,
    key: str,
    names: Mapping[str, str] | None = None,
    *,
    alone: bool = False,
    partial: bool = False,
    model: bool = False,
) -> Recipe:
    """The recipe that a config's `value` is.

    Args:
      value: an import path, or a mapping of `class_path` and `init_args`.
      key: where it stands in the config, for error messages.
      names: short names and the import paths they stand for.
      alone: whether a path without arguments, unless it names a class, is the object itself.
      partial: whether the arguments of a function leave the others free.
      model: whether random parameters that are left out come from `Seeds`.

    Raises:
      LearnerError: there is no such thing, or its arguments are wrong.

    >>> halves = recipe({"class_path": "fractions.Fraction", "init_args": {"numerator": 1, "denominator": 2}}, "model")
    >>> halves.make()
    Fraction(1, 2)
    """
    path, given = _parts(value, key)
    target = named(path, key, names)
    if not given and not inspect.isclass(target) and (alone or not callable(target)):
        return Recipe(path, target)
    if not callable(target):
        raise LearnerError(f"{key}: {path} is a {type(target).__name__}; only classes and functions take init_args")
    partial = partial and not inspect.isclass(target)
    given = nested(given, f"{key}.init_args", names, model=model)
    random = tuple(name for name in random_parameters(target) if model and name not in given)
    checked = check(target, given, f"{key}.init_args", path, skip=random, objects=objects(given), partial=partial)
    return Recipe(path, target, given, checked, random, partial)


def nested(value: Any, key: str, names: Mapping[str, str] | None = None, *, model: bool = False) -> Any:
    """`value` with recipes in place of the objects in it: of each mapping that has a `class_path`."""
    if isinstance(value, Mapping):
        if "class_path" in value:
            return recipe(value, key, names, model=model)
        return {name: nested(item, f"{key}.{name}", names, model=model) for name, item in value.items()}
    if isinstance(value, list):
        return [nested(item, f"{key}.{index}", names, model=model) for index, item in enumerate(value)]
    return value


def named(path: str, key: str, names: Mapping[str, str] | None = None) -> Any:
    """What a path is the import path or the short name of.

    Raises:
      LearnerError: there is no such thing.
    """
    if "." in path or not names:
        return import_path(path, key)
    if path not in names:
        raise LearnerError(f"{key}: there is no {path!r}: {near(path, list(names))} (your own by import path)")
    return import_path(names[path], key)


def objects(given: Mapping[str, Any]) -> list[str]:
    """The names of arguments with recipes in them."""
    return [name for name, argument in given.items() if any(_recipes(argument))]


def _parts(value: Any, key: str) -> tuple[str, dict[str, Any]]:
    if isinstance(value, str):
        return value, {}
    if not isinstance(value, Mapping) or not isinstance(value.get("class_path"), str):
        raise LearnerError(f"{key} is {value!r}; it needs an import path, or a mapping of class_path and init_args")
    for name in value:
        if name not in ("class_path", "init_args"):
            raise LearnerError(f"{key} has {name!r} beside class_path: arguments belong under init_args")
    given = value.get("init_args") or {}
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise LearnerError(f"{key}.init_args is {given!r}; it needs a mapping of arguments by name")
    return value["class_path"], dict(given)


def _recipes(value: Any) -> Iterator[Recipe]:
    if isinstance(value, Recipe):
        yield value
    for item in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        yield from _recipes(item)


def mapped(value: Any, function: Callable[[Recipe], Any]) -> Any:
    """`value` with `function` of each recipe in its place."""
    if isinstance(value, Recipe):
        return function(value)
    if isinstance(value, Mapping):
        return {name: mapped(item, function) for name, item in value.items()}
    return [mapped(item, function) for item in value] if isinstance(value, list) else value
