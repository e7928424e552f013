"""Arguments that are a `learner.Config` or contain one. The config's own class reads them, with its error messages.

A config has `init_args: {config: {hidden: 128}}`, or names a file that `Config.save` wrote: `{config: mlp.yaml}`.
"""

import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

from learner.cli.configs.importing import import_path
from learner.cli.configs.problems import read_each
from learner.config.base import Config, fields_of, is_config
from learner.config.fields import read
from learner.errors import LearnerError


def config_kinds(target: Callable[..., Any]) -> dict[str, Any]:
    """Return the parameters that are a `learner.Config` or contain one, with their types; for a config, return all
    fields.
    """
    if inspect.isclass(target) and issubclass(target, Config):
        return {name: field.kind for name, field in fields_of(target).items()}
    function = target.func if isinstance(target, functools.partial) else target
    try:
        hints = typing.get_type_hints(function.__init__ if inspect.isclass(function) else function)
    except Exception:  # names that exist only for type checkers
        hints = {}
    kinds = {name: hints.get(name, parameter.annotation) for name, parameter in parameters_of(target).items()}
    return {name: kind for name, kind in kinds.items() if _has_config(kind)}


def read_argument(kind: Any, value: Any, path: str, problems: list[str]) -> Any:
    """Return a config from a mapping, or from the file named in its place."""
    classes = [member for member in (kind, *typing.get_args(kind)) if is_config(member)]
    if isinstance(value, str) and len(classes) == 1 and str not in typing.get_args(kind):
        try:
            return classes[0].load(value)
        except LearnerError as error:
            problems += [f"{path}: {problem}" for problem in error.problems or (error,)]
            return None
    return read(kind, value, path, problems)


def default_of(target: Callable[..., Any], name: str) -> Any:
    """Return the default of an optional parameter, or of a field if the target is a config."""
    if not (inspect.isclass(target) and issubclass(target, Config)):
        return parameters_of(target)[name].default
    default = fields_of(target)[name].default
    return default() if default else None


def import_config_classes(value: Any, key: str) -> Any:
    """Import the classes of configs that a value names, and return the value."""
    if isinstance(value, Mapping) and isinstance(path := value.get("class_path"), str) and "." in path:
        import_path(path, f"{key}.class_path")
    items = value if isinstance(value, Mapping) else dict(enumerate(value if isinstance(value, list) else ()))
    read_each(items, lambda name, item: import_config_classes(item, f"{key}.{name}"))
    return value


def parameters_of(target: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters by name. For a class, they are the parameters of `__init__`, which a metaclass such as
    nnx's hides from `inspect.signature`.
    """
    initialised = inspect.isclass(target) and target.__init__ is not object.__init__
    try:
        parameters = inspect.signature(target.__init__ if initialised else target).parameters
    except (ValueError, TypeError):  # some builtins have no signature
        return {}
    return {name: p for name, p in parameters.items() if not (initialised and name == "self")}


def _has_config(kind: Any) -> bool:
    return is_config(kind) or any(map(_has_config, typing.get_args(kind)))
