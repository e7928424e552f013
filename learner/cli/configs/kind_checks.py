"""Checks that the objects that a config names fit their places, before anything of the config is called.

They catch mistakes, and functions that no config needs, such as `os.system`. They are not a sandbox: a config can name
any other installed function, which is why `learner.cli.trust` asks first. The denylist of jsonargparse compares import
paths, so a module that imports `os` would circumvent it.
"""

import functools
import inspect
import re
import sys
import types
from typing import Any

from learner.cli.configs.importing import import_path
from learner.cli.configs.object_kinds import BASES
from learner.cli.configs.schema import NAMED
from learner.config.base import is_config
from learner.errors import LearnerError

COMPUTING = {
    *("array", "collections", "datetime", "decimal", "fractions", "functools", "itertools", "json", "math", "numbers"),
    *("operator", "pathlib", "random", "re", "statistics", "string", "textwrap", "types", "unicodedata", "uuid"),
    "zoneinfo",
}
"""Modules of Python's standard library whose classes and functions only compute values. Methods are excluded: those of
pathlib can remove files.
"""

OURS = ("learner", "optax")
"""Packages whose classes and functions may be called although a config has mistakes."""

CALLED = ("optimizer", "lr", "train_step", "valid_step", "predict_step", "update", "trainable", "batcher")
METHODS = {
    **dict.fromkeys(CALLED, ("__call__",)),
    "data": ("__iter__", "__next__", "__getitem__", "as_numpy_iterator", "__call__"),
}
"""The methods by place. A class that derives from no base class of its place needs one of them."""

OTHERS = ("learner.metrics.MetricBase", "learner.events.Listener", *(base for pair in BASES.values() for base in pair))
"""Base classes of what is not a model."""


def check_target(target: Any, path: str, key: str) -> None:
    """Raise `LearnerError` if a class or function does not fit its place in a config.

    Args:
      target: the class or function; anything else is not called, and is accepted.
      path: its import path, as written in the config.
      key: its place, such as `metrics.0` or `model.init_args.head`.

    >>> import os
    >>> check_target(os.getcwd, "os.getcwd", "model")
    Traceback (most recent call last):
    learner.errors.LearnerError: model is os.getcwd, of Python's module posix, which no config needs: name your \
own class or function
    """
    if not callable(target):
        return
    home = package_of(target)
    if home in sys.stdlib_module_names and not _computes(target, home):
        raise LearnerError(
            f"{key} is {path}, of Python's module {home}, which no config needs: name your own class or function",
            code="config-target-standard-library",
            key=key,
            path=path,
        )
    place = _part_of(key)
    if place is None:
        return
    bases = BASES.get(place) or tuple(base for _, base in NAMED.get(place, ()) if base)
    if inspect.isclass(target):
        _check_class(target, path, key, place, bases)
    elif home in sys.stdlib_module_names and place != "data":
        raise LearnerError(
            f"{key} is {path}, a function of Python's module {home}: it makes no {place}",
            code="config-target-standard-library",
            key=key,
            path=path,
            place=place,
        )
    elif place not in METHODS or place == "data":  # others may be used without a call, such as a schedule
        returned = _returned(target)
        if returned in (None, bool, int, float, str, bytes):
            raise LearnerError(
                f"{key} is {path}, a function that returns {returned}: it needs one that makes the object",
                code="config-target-returns-other",
                key=key,
                path=path,
            )


def _check_class(target: type, path: str, key: str, place: str, bases: tuple[str, ...]) -> None:
    if is_config(target):  # the error about its place is specific enough
        return
    if place == "model":
        if issubclass(target, BaseException) or issubclass(target, tuple(import_path(base, base) for base in OTHERS)):
            raise LearnerError(
                f"{key} is {path}, which is not a model: it needs a class or a function that makes one",
                code="config-target-no-model",
                key=key,
                path=path,
            )
        return
    needed = tuple(import_path(base, base) for base in bases)
    methods = METHODS.get(place, ())
    if not issubclass(target, needed) and not any(_has(target, name) for name in methods):
        names = " or ".join([*(base.rpartition(".")[2] for base in bases), *(f"a class with {m}" for m in methods[:1])])
        raise LearnerError(
            f"{key} is {path}, a class of another kind: it needs {names}",
            code="config-target-other-kind",
            key=key,
            path=path,
        )


def _has(target: type, name: str) -> bool:
    """Return True if instances of a class have a method; `type` itself has `__call__`."""
    return any(name in vars(each) for each in target.__mro__)


def _part_of(key: str) -> str | None:
    """Return the part of a config to which a key belongs, or None inside arguments.

    >>> [_part_of(key) for key in ("metrics.0", "valid.dev.dataset", "train", "train.batcher", "model.init_args.head")]
    ['metrics', 'data', 'data', 'batcher', None]
    """
    if ".init_args" in key:
        return None
    key = re.sub(r"(\.\d+)+$", "", key)
    if key.endswith(".batcher"):
        return "batcher"
    if re.fullmatch(r"(train|DATA|valid(\.[^.]+)?)(\.dataset)?", key):
        return "data"
    return key if key == "model" or key in METHODS or key in NAMED else None


def package_of(target: Any) -> str:
    """Return the name of the package that defines a class or function."""
    while isinstance(target, functools.partial):
        target = target.func
    owner = getattr(target, "__self__", None)
    own = getattr(target, "__module__", None)  # methods of builtin objects have none
    if not isinstance(own, str):
        own = type(target if owner is None else owner).__module__
    return own.partition(".")[0]


def _computes(target: Any, home: str) -> bool:
    if inspect.isclass(target):
        return home == "builtins" or home.lstrip("_") in COMPUTING
    function = isinstance(target, types.FunctionType | types.BuiltinFunctionType)
    return function and home.lstrip("_") in COMPUTING and "." not in target.__qualname__


def _returned(target: Any) -> Any:
    """Return the annotated return type of a function, or `Any` if it is unknown."""
    annotations = getattr(target, "__annotations__", {})
    returned = annotations.get("return", Any) if isinstance(annotations, dict) else Any
    plain = {each.__name__: each for each in (bool, int, float, str, bytes)} | {"None": None}
    return plain.get(returned, Any) if isinstance(returned, str) else returned
