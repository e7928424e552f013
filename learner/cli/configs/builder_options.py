"""Builders from a config: each public method of the builder is a key, and the value is its arguments.

    num_epochs: 10                          # .num_epochs(10)
    summary: true                           # .summary(True)
    with_file_checkpointer: {keep_last: 3}  # .with_file_checkpointer(keep_last=3)
    metrics: [Accuracy]                     # .metrics(Accuracy())

A new method of the builder becomes a key without a change to this module.
"""

import dataclasses
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from learner.cli.configs.problems import Problems, problems_of, read_each, read_list
from learner.cli.configs.recipes import Recipe, check_given, mapped, nested, predicate, recipe, recipes_in
from learner.cli.configs.schema import names_for
from learner.errors import LearnerError, Problem, near, one_error

SWITCHES = ("resume",)
"""Methods that `true` calls without their optional arguments, and `false` does not call."""

ASSUMED = {"renderer": "learner.renderers.default_renderer"}
"""The class of arguments without a `class_path`, for methods that take objects of several classes."""

REPEATED = {"fn", "split"}
"""Parameters of methods that may be called several times: a list makes one call for each item."""

PREDICATES = ("freeze",)
"""Methods that take texts and predicates."""


@dataclasses.dataclass(frozen=True)
class Option:
    """A method of a builder and its arguments.

    Attributes:
      name: the name of the method.
      calls: the arguments of each call.
      value: the value in the complete config.
    """

    name: str
    calls: tuple[Recipe, ...]
    value: Any

    @property
    def is_ours(self) -> bool:
        """See `Recipe.is_ours`."""
        return all(each.is_ours for call in self.calls for each in recipes_in([call.positional, call.given]))

    def apply(self, target: Any) -> Any:
        """Call the method of `target` and return the result. Each further call is made on the result of the previous
        one: the same builder, or a view of a view.
        """
        for call in self.calls:
            target = getattr(target, self.name)(*mapped(call.positional, Recipe.make), **call.arguments())
        return target


def methods(builder: type) -> dict[str, Callable[..., Any]]:
    """Return the methods of a builder that are options, by name, in the order of the source."""
    found = {name: method for each in reversed(builder.__mro__) for name, method in vars(each).items()}
    return {n: m for n, m in found.items() if inspect.isfunction(m) and not n.startswith("_") and n != "build"}


def option(builder: type, name: str, value: Any, key: str, names: Mapping[str, str] | None = None) -> Option:
    """Return the option `name` of a builder, set to `value`.

    Args:
      builder: the class.
      name: the name of one of its `methods`.
      value: the arguments by name; or the only argument (or the first); a list for several calls, if the method takes
        an object; true or false if it takes no arguments.
      key: the path in the config, for error messages.
      names: the short names of the objects that it takes, if any.

    Raises:
      LearnerError: the value does not fit.

    >>> from learner.data import DataLoaderBuilder
    >>> option(DataLoaderBuilder, "batch_size", 32, "train.batch_size").value
    32
    >>> option(DataLoaderBuilder, "batch_size", "many", "train.batch_size")
    Traceback (most recent call last):
    learner.errors.LearnerError: train.batch_size is 'many': it needs a whole number
    """
    method = methods(builder)[name]
    parameters = list(inspect.signature(method).parameters.values())[1:]
    if not parameters or (name in SWITCHES and not isinstance(value, Mapping | list)):
        return _switch(name, value, key, [each.name for each in parameters])
    several = isinstance(value, list)
    if parameters[0].kind is inspect.Parameter.VAR_POSITIONAL:
        if isinstance(value, Mapping) and len(parameters) > 1 and "class_path" not in value:
            return _lists(name, method, [each.name for each in parameters[1:]], value, key)
        items = value if several else [] if value is None else [value]
        read = predicate if name in PREDICATES else lambda v, place: _object(v, place, names, alone=True)
        given = _objects(items, lambda i, v: read(v, f"{key}.{i}"))
        return Option(name, (Recipe(name, method, positional=given),), mapped(given, Recipe.config))
    if several and (names is not None or not REPEATED.isdisjoint(p.name for p in parameters)):
        calls = read_list(value, lambda index, item: _named(method, parameters, item, f"{key}.{index}", names))
        return Option(name, tuple(call for call, _ in calls), [values for _, values in calls])
    call, values = _named(method, parameters, value, key, names)
    return Option(name, (call,), values)


def _lists(name: str, method: Callable[..., Any], known: list[str], value: Mapping[str, Any], key: str) -> Option:
    """Return the option of a method that takes lists of objects by name, in addition to unnamed objects."""

    def read(parameter: str, items: Any) -> list[Any]:
        if parameter not in known:
            raise LearnerError(
                f"{key} has no argument {parameter!r}: {near(str(parameter), known)}",
                code="config-argument-unknown",
                key=key,
                parameter=parameter,
            )
        if not isinstance(items, list):
            raise LearnerError(
                f"{key}.{parameter} is a {type(items).__name__}; it needs a list",
                code="config-argument-not-list",
                key=key,
                parameter=parameter,
            )
        short = names_for(f"{name}.{parameter}")
        return _objects(items, lambda i, item: _object(item, f"{key}.{parameter}.{i}", short))

    given = read_each(value, read)
    call = Recipe(name, method, given)
    return Option(name, (call,), mapped(given, Recipe.config))


def _objects(items: list[Any], read: Callable[[int, Any], Any]) -> list[Any]:
    """Return `read(index, item)` of each item, or raise one error with the problems of all items. For items that could
    be read, these are the arguments that our own classes refuse.
    """
    problems, objects = Problems(), list[Any]()
    for index, item in enumerate(items):
        with problems.collect():
            objects.append(read(index, item))
    for each in [each for each in recipes_in(objects) if problems and each.is_ours]:
        with problems.collect():
            each.make()
    problems.raise_all()
    return objects


def _switch(name: str, value: Any, key: str, arguments: Sequence[str]) -> Option:
    if not isinstance(value, bool):
        or_arguments = "".join(f", or {{{each}: ...}}" for each in arguments)
        raise LearnerError(
            f"{key} is {value!r}: it needs true or false{or_arguments}", code="config-argument-not-bool", key=key
        )
    return Option(name, (Recipe(name, None),) if value else (), value)


def _named(
    method: Callable[..., Any],
    parameters: list[inspect.Parameter],
    value: Any,
    key: str,
    names: Mapping[str, str] | None,
) -> tuple[Recipe, Any]:
    """Return a call with named arguments, and its complete form in a config."""
    first = parameters[0].name
    assumed = ASSUMED.get(method.__name__) or (next(iter(names)) if names and len(names) == 1 else None)
    if assumed is not None and _is_by_name(value) and not any(each.name in value for each in parameters):
        value = {"class_path": assumed, "init_args": value}
    by_name = _is_by_name(value)

    def read(parameter: str, argument: Any) -> Any:
        place = f"{key}.{parameter}" if by_name else key
        if parameter == "fn":
            return recipe(argument, place, alone=True, partial=True)
        short = names if parameter == first and not _is_word(argument, parameters[0], names) else None
        return _object(argument, place, short or names_for(f"{method.__name__}.{parameter}") or None)

    given = dict(value) if by_name else {first: value}
    try:
        given, checked = check_given(method, given, key, key, read, skip=["self"])
    except LearnerError as error:
        if by_name:
            raise
        problems = [
            Problem(each.replace(f"{key}.{first}", key, 1), code=each.code, **each.fields)
            for each in problems_of(error)
        ]
        raise one_error(problems, f"{key} cannot be used", code=error.code) from error
    call = Recipe(key, method, given, checked)
    values = {**mapped(given, Recipe.config), **checked.defaults}
    return call, values[first] if len(parameters) == 1 and not by_name else values


def _is_by_name(value: Any) -> bool:
    return isinstance(value, dict) and "class_path" not in value


def _is_word(value: Any, parameter: inspect.Parameter, names: Mapping[str, str] | None) -> bool:
    """Return True if a value is a text for the method itself rather than the short name of an object."""
    if not isinstance(value, str) or "." in value or value in (names or {}):
        return False
    return str in typing.get_args(parameter.annotation)


def _object(value: Any, key: str, names: Mapping[str, str] | None, alone: bool = False) -> Any:
    """Return `value` with its objects as recipes. `alone`: the whole value is an object, if it has short names."""
    if names is not None and (alone or isinstance(value, str)):
        return recipe(value, key, names)
    return nested(value, key, names)
