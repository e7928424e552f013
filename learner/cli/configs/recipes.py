"""Objects that a config describes: an import path and arguments, all of which are checked before any object is created.

    class_path: learner.examples.models.MLP
    init_args: {features: [64, 128, 10]}

jsonargparse checks the arguments (`learner.cli.configs.signatures`). This module adds what it does not support:
functions without a return annotation in place of classes, also with an open argument; random keys derived from the
config's `seed`; short names of modules that are not imported yet; and objects in untyped arguments.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from learner.cli.configs.config_arguments import config_kinds, import_config_classes, parameters_of
from learner.cli.configs.importing import import_path
from learner.cli.configs.kind_checks import OURS, check_target, package_of
from learner.cli.configs.object_kinds import (
    GROUP,
    PREDICATE,
    argument_kinds,
    kind_of,
    metric_mappings,
    refuse_other,
)
from learner.cli.configs.overrides import value_of
from learner.cli.configs.problems import Problems, read_each, read_list
from learner.cli.configs.schema import OBJECTS, names_for
from learner.cli.configs.signatures import Arguments, check, random_parameters
from learner.config.base import is_config
from learner.errors import LearnerError, near
from learner.loggers.secrets import is_literal, resolve
from learner.util.number_checks import is_number


class Seeds:
    """The random numbers that initialise a model, as one stream for all of its parts.

    Args:
      seed: the config's seed.
      traced: the random streams of a member that trains together with others, in place of the seed.
    """

    def __init__(self, seed: int = 0, traced: Any = None) -> None:
        self._seed, self._traced = seed, traced
        self._keys = 0

    @property
    def seed(self) -> int:
        """The config's seed. Raise `LearnerError` if it is traced, because it is not an integer then."""
        if self._traced is not None:
            raise LearnerError(
                "the model takes a seed, which members that train together cannot give it: let it take rngs or key, or "
                "leave together out",
                code="sweep-together-seed",
            )
        return self._seed

    @functools.cached_property
    def rngs(self) -> Any:
        """The `nnx.Rngs` that all parts share. Each part draws the next numbers."""
        from flax import nnx

        return nnx.Rngs(self._seed) if self._traced is None else self._traced

    @property
    def key(self) -> Any:
        """A new JAX key at each access, the same for a seed and for its traced streams."""
        first = jax.random.key(self._seed) if self._traced is None else self._traced.default.key[...]
        self._keys += 1
        return jax.random.fold_in(first, self._keys - 1)


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A description of an object to create.

    Attributes:
      path: the import path, as written in the config.
      target: the class or function at that path.
      given: the arguments from the config, with recipes in place of objects.
      checked: the arguments that are not recipes, and the defaults; `None` if the target itself is the object.
      random: parameters that come from `Seeds`.
      partial: True to fix the arguments of a function rather than call it.
      positional: the positional arguments, which only methods of builders have.
    """

    path: str
    target: Any
    given: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    checked: Arguments | None = None
    random: tuple[str, ...] = ()
    partial: bool = False
    positional: Sequence[Any] = ()

    @property
    def is_ours(self) -> bool:
        """True if creating the object calls only code of this project and optax."""
        return package_of(self.target) in OURS and all(part.is_ours for part in recipes_in(dict(self.given)))

    def config(self) -> Any:
        """Return the complete form of the recipe in a config."""
        if self.checked is None:
            return self.path
        arguments = {**mapped(self.given, Recipe.config), **self.checked.written, **self.checked.defaults}
        return {"class_path": self.path, **({"init_args": arguments} if arguments else {})}

    def arguments(self, seeds: Seeds | None = None) -> dict[str, Any]:
        """Return the arguments, and create the objects in them."""
        checked = {} if self.checked is None else self.checked.values()
        # Only here: a saved config contains the names of environment variables, not their values.
        arguments = mapped(resolve({**self.given, **checked}), lambda recipe: recipe.make(seeds))
        return {**arguments, **({name: getattr(seeds, name) for name in self.random} if seeds is not None else {})}

    def make(self, seeds: Seeds | None = None) -> Any:
        """Create the object. Models and their parts need `seeds`. A generator function is not called, because data is
        read in each epoch and a generator can be read only once.
        """
        if self.checked is None:
            return self.target
        arguments = self.arguments(seeds)
        if self.partial or inspect.isgeneratorfunction(self.target):
            return functools.partial(self.target, **arguments) if arguments or self.partial else self.target
        try:
            return self.target(**arguments)
        except LearnerError:
            raise
        except Exception as error:
            if package_of(self.target) != "optax":  # other code is the user's, who needs the traceback
                raise
            raise LearnerError(f"{self.path}: {error}", code="config-optax-refused", path=self.path) from error


def recipe(
    value: Any,
    key: str,
    names: Mapping[str, str] | None = None,
    *,
    alone: bool = False,
    partial: bool = False,
    model: bool = False,
    kind: str | None = None,
) -> Recipe:
    """Return the recipe for the `value` of a config.

    Args:
      value: an import path, or a mapping of `class_path` and `init_args`.
      key: the path in the config, for error messages.
      names: short names and their import paths.
      alone: True if a path without arguments is the object itself, unless it names a class.
      partial: True if arguments of a function may be left open.
      model: True if missing random parameters come from `Seeds`.
      kind: `optimizer` or `lr` if the object must be one; see `learner.cli.configs.object_kinds`.

    Raises:
      LearnerError: the object does not exist, or its arguments are wrong; one error lists all mistakes.

    >>> halves = recipe({"class_path": "fractions.Fraction", "init_args": {"numerator": 1, "denominator": 2}}, "model")
    >>> halves.make()
    Fraction(1, 2)
    """
    path, given = _parts(value, key, "a name, " if names else "")
    if path not in (names or {}):
        refuse_other(kind, path, key)
    target = named(path, key, names, kind)
    refuse_other(kind, path, key, target)
    check_target(target, path, key)
    makes_schedule = kind == "lr" and inspect.isfunction(target) and kind_of(target) == "lr"  # one of optax
    if not given and not inspect.isclass(target) and not makes_schedule and (alone or not callable(target)):
        return Recipe(path, target)
    if not callable(target):
        raise LearnerError(
            f"{key}: {path} is a {type(target).__name__}; only classes and functions take init_args",
            code="config-target-not-callable",
            key=key,
            path=path,
        )
    partial = partial and not inspect.isclass(target)
    place, kinds = f"{key}.init_args", config_kinds(target)
    places, of_metrics = argument_kinds(target), metric_mappings(target) if names else ()

    def read(name: str, argument: Any) -> Any:
        if name in kinds:
            return import_config_classes(argument, f"{place}.{name}")
        argument = _named_objects(argument) if name in of_metrics else argument
        return nested(argument, f"{place}.{name}", names, model=model, kind=places.get(name))

    seeded = model and not is_config(target)  # a config's `seed` belongs to the config
    random = tuple(name for name in random_parameters(target) if seeded and name not in given)
    given, checked = check_given(target, given, place, path, read, skip=random, partial=partial)
    return Recipe(path, target, given, checked, random, partial)


def check_given(
    target: Any, given: Mapping[str, Any], key: str, path: str, read: Callable[[str, Any], Any], **options: Any
) -> tuple[dict[str, Any], Arguments]:
    """Return the results of `read(name, argument)`, which contain recipes, and the result of `check`.

    Raises:
      LearnerError: the problems of `read` and `check`, in one error.
    """
    problems, arguments, unread = Problems(), dict(given), list[str]()
    for name, argument in given.items():
        unread.append(name)
        with problems.collect():
            arguments[name] = read(name, argument)
            unread.pop()
    with problems.collect():
        checked = check(target, arguments, key, path, objects=[*objects(arguments), *unread], **options)
    problems.raise_all()
    return arguments, checked


def nested(
    value: Any, key: str, names: Mapping[str, str] | None = None, *, model: bool = False, kind: Any = None
) -> Any:
    """Return `value` with a recipe in place of each object in it: a mapping with a `class_path`, or a name in place of
    an object of a known kind. `kind`: the kind of the objects, or a mapping of the kinds by name, or None.
    """
    if isinstance(value, list):
        return read_list(value, lambda i, item: nested(item, f"{key}.{i}", names, model=model, kind=kind))
    is_object = _is_object(value)
    kinds = kind if isinstance(kind, Mapping) else {}
    if kind == PREDICATE:
        return predicate(value, key)
    if isinstance(kind, str) and (isinstance(value, str) or is_object):
        return recipe(value, key, names_for(kind), kind=kind, **OBJECTS[kind])
    if is_object:
        return recipe(value, key, {"Group": GROUP}) if kinds else recipe(value, key, names, model=model)
    if isinstance(value, Mapping):
        return read_each(value, lambda n, item: nested(item, f"{key}.{n}", names, model=model, kind=kinds.get(n)))
    return value


def _is_object(value: Any) -> bool:
    return isinstance(value, Mapping) and "class_path" in value


def _named_objects(value: Any) -> Any:
    """Return a mapping of objects with the mapping of an object in place of each name alone."""
    if not isinstance(value, Mapping) or _is_object(value):
        return value
    return {name: {"class_path": x} if isinstance(x, str) else x for name, x in value.items()}


def predicate(value: Any, key: str) -> Any:
    """Return a recipe for a function with some fixed arguments, or the text of a regular expression."""
    return recipe(value, key, partial=True) if isinstance(value, Mapping) else value


def check_initialised(model: Recipe) -> None:
    """Raise `LearnerError` if the model is a `Config` that cannot create a model."""
    if is_config(model.target) and not callable(getattr(model.target, "init", None)):
        raise LearnerError(
            f"model is {model.path}, a config without a method init(rngs) that makes the model: write one, or name a "
            f"model that takes the config (init_args: {{config: ...}})",
            code="config-model-is-config",
        )


def make_model(model: Recipe, seeds: Seeds) -> Any:
    """Return the model of a recipe: its object, or the result of a config's `init` with its random arguments."""
    instance = model.make(seeds)
    if not is_config(type(instance)):
        return instance
    return instance.init(**{name: getattr(seeds, name) for name in random_parameters(instance.init)})


def named(path: str, key: str, names: Mapping[str, str] | None = None, kind: str | None = None) -> Any:
    """Return the object with an import path or a short name. `kind`: as for `recipe`.

    Raises:
      LearnerError: there is no such thing.
    """
    is_path = "." in path and (kind != "lr" or all(map(str.isidentifier, path.split("."))))  # "0.1x" is a wrong number
    if is_path or not names:
        return import_path(path, key)
    if path not in names:
        if kind == "lr" and is_number(value_of(path)):
            raise LearnerError(
                f"{key} is the text {path!r}; write a number without quotes", code="config-number-quoted", key=key
            )
        problem = f"{path!r} is neither a number nor a schedule" if kind == "lr" else f"there is no {path!r}"
        raise LearnerError(
            f"{key}: {problem}: {_hint(path, names)} (your own by import path)",
            code="config-name-unknown",
            key=key,
            path=path,
        )
    return import_path(names[path], key)


def _hint(path: str, names: Mapping[str, str]) -> str:
    parts = path.split(",")
    return f"a list is [{path}]" if len(parts) > 1 and names.keys() >= set(parts) else near(path, list(names))


def has_literals(value: Any) -> bool:
    """Return True if an object of these recipes has a text argument that is not the default."""
    for each in recipes_in(value):
        parameters = parameters_of(each.target)
        for name, given in each.given.items():
            default = getattr(parameters.get(name), "default", None)
            defaults = (default, list(default) if isinstance(default, tuple) else default)
            if has_literals(given) or (given not in defaults and is_literal(given)):
                return True
    return False


def objects(given: Mapping[str, Any]) -> list[str]:
    """Return the names of arguments that contain recipes."""
    return [name for name, argument in given.items() if any(recipes_in(argument))]


def _parts(value: Any, key: str, or_name: str) -> tuple[str, dict[str, Any]]:
    if isinstance(value, str):
        return value, {}
    if not isinstance(value, Mapping) or not isinstance(value.get("class_path"), str):
        raise LearnerError(
            f"{key} is {value!r}; it needs {or_name}an import path, or a mapping of class_path and init_args",
            code="config-recipe-type",
            key=key,
        )
    problems = Problems()
    for name in [name for name in value if name not in ("class_path", "init_args")]:
        with problems.collect():
            raise LearnerError(
                f"{key} has {name!r} beside class_path: arguments belong under init_args",
                code="config-argument-beside-class-path",
                key=key,
                name=name,
            )
    problems.raise_all()  # here, because they may include required arguments
    given = value.get("init_args") or {}
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise LearnerError(
            f"{key}.init_args is {given!r}; it needs a mapping of arguments by name",
            code="config-init-args-type",
            key=key,
        )
    return value["class_path"], dict(given)


def recipes_in(value: Any) -> Iterator[Recipe]:
    """Yield the recipes in a value, but not those in their arguments."""
    if isinstance(value, Recipe):
        yield value
    for item in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        yield from recipes_in(item)


def mapped(value: Any, function: Callable[[Recipe], Any]) -> Any:
    """Return `value` with `function(recipe)` in place of each recipe in it."""
    if isinstance(value, Recipe):
        return function(value)
    if isinstance(value, Mapping):
        return {name: mapped(item, function) for name, item in value.items()}
    return [mapped(item, function) for item in value] if isinstance(value, list) else value
