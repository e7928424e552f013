"""Import paths: `package.module.Name`, and what went wrong when there is no such thing."""

import contextlib
import importlib
import inspect
import os
import pkgutil
import sys
import traceback
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from learner.errors import LearnerError, near
from learner.signals import TERMINATED


def import_path(path: str, key: str) -> Any:
    """What `path` names.

    Args:
      path: `package.module.Name`; attributes of classes (`package.module.Class.method`) are found as well.
      key: the part of the config that names it, for error messages.

    Raises:
      LearnerError: there is no such module or name, or importing the module failed, and where.

    >>> import_path("collections.Counter", "model")
    <class 'collections.Counter'>
    >>> import_path("collections.Conter", "model")
    Traceback (most recent call last):
    learner.errors.LearnerError: model is 'collections.Conter', but collections has no 'Conter': did you mean 'Counter'?
    """
    parts = path.split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise LearnerError(f"{key} is {path!r}; it needs an import path such as 'package.module.Name'")
    value = _module(parts[0], key, path)
    if value is None:
        place = f"(looked in {os.getcwd()} and in what is installed)"
        raise LearnerError(f"{key} is {path!r}, but there is no module {parts[0]!r} {place}")
    for done, part in enumerate(parts[1:], 1):
        found = getattr(value, part, None)
        if found is None and isinstance(value, ModuleType):
            found = _module(".".join(parts[: done + 1]), key, path)
        if found is None:
            raise LearnerError(
                f"{key} is {path!r}, but {'.'.join(parts[:done])} has no {part!r}: {near(part, _names(value))}"
            )
        value = found
    return value


def _module(name: str, key: str, path: str) -> ModuleType | None:
    """The module, or `None` if there is none of that name. One that fails while it is imported is an error."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            return None
        raise _broken(name, key, path, error) from error
    except (Exception, SystemExit) as error:
        if isinstance(error, SystemExit) and error.code == TERMINATED:
            raise  # no fault of the module's
        raise _broken(name, key, path, error) from error


def _broken(name: str, key: str, path: str, error: BaseException) -> LearnerError:
    said: object = error
    if isinstance(error, SyntaxError):
        said, place = error.msg, f"{error.filename}, line {error.lineno}"
    else:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen ")]
        own = [f for f in frames if "site-packages" not in f.filename and f.filename != __file__]
        frame = (own or frames)[-1]
        place = f"{frame.filename}, line {frame.lineno}"
    return LearnerError(
        f"{key} is {path!r}, but module {name} cannot be imported: {type(error).__name__}: {said} ({place})"
    )


def _names(value: Any) -> list[str]:
    names = [name for name in dir(value) if not name.startswith("_")]
    return names + [module.name for module in pkgutil.iter_modules(getattr(value, "__path__", []))]


def exports(module: str, base: str | None = None) -> dict[str, str]:
    """Short names for a config: what a module exports (`__all__`) and can be called, with the import paths.

    Args:
      module: its name.
      base: the import path of a class; then only its subclasses that are not abstract, or itself if it has none there.

    >>> exports("learner.cli.schedules")["LinearSchedule"]
    'learner.cli.schedules.LinearSchedule'
    """
    exported = importlib.import_module(module)
    found = {name: getattr(exported, name) for name in exported.__all__}
    if base is not None:
        parent = import_path(base, base)
        concrete = {n: v for n, v in found.items() if inspect.isclass(v) and not inspect.isabstract(v)}
        below = {name: value for name, value in concrete.items() if issubclass(value, parent)}
        found = {name: value for name, value in below.items() if value is not parent} or below
    return {name: f"{module}.{name}" for name, value in found.items() if callable(value)}


@contextlib.contextmanager
def current_directory_importable() -> Iterator[None]:
    """The current directory is first on the import path, as with `python -m`, so that configs can name own modules."""
    before = list(sys.path)
    sys.path.insert(0, os.getcwd())
    try:
        yield
    finally:
        sys.path[:] = before
