"""Import paths such as `package.module.Name`, and error messages for paths that cannot be imported."""

import contextlib
import importlib
import inspect
import os
import pkgutil
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from learner.errors import LearnerError, near_path
from learner.training.signals import TERMINATED

SAFE_PATH = "PYTHONSAFEPATH"
"""Python's environment variable that keeps the current directory off the import path of a new process."""


def import_path(path: str, key: str) -> Any:
    """Return the object that an import path names.

    Args:
      path: `package.module.Name`; attributes of classes (`package.module.Class.method`) also work.
      key: the part of the config that names it, for error messages.

    Raises:
      LearnerError: the module or name does not exist, or importing the module failed (with the location).

    >>> import_path("collections.Counter", "model")
    <class 'collections.Counter'>
    >>> import_path("collections.Conter", "model")
    Traceback (most recent call last):
    learner.errors.LearnerError: model is 'collections.Conter', but collections has no 'Conter': did you mean 'Counter'?
    """
    # jsonargparse's import of a path suggests no names, and does not report which line of a module failed.
    parts = path.split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise LearnerError(
            f"{key} is {path!r}; it needs an import path such as 'package.module.Name'",
            code="config-path-malformed",
            key=key,
            path=path,
        )
    value = _module(parts[0], key, path)
    if value is None:
        raise _missing(parts[0], key, path)
    for depth, part in enumerate(parts[1:], 1):
        found = getattr(value, part, None)
        if found is None and isinstance(value, ModuleType):
            found = _module(".".join(parts[: depth + 1]), key, path)
        if found is None and depth == 1 and (directory := _directory_without_modules(value)) is not None:
            raise _missing(parts[0], key, path, f" (the directory {directory} contains none)")
        if found is None:
            raise LearnerError(
                f"{key} is {path!r}, but {'.'.join(parts[:depth])} has no {part!r}: {near_path(part, _names(value))}"
                f"{_shadowed(parts[0])}",
                code="config-name-missing",
                key=key,
                path=path,
            )
        value = found
    return value


def _missing(name: str, key: str, path: str, hint: str = "") -> LearnerError:
    place = f"in {os.getcwd()} and among installed packages"
    return LearnerError(
        f"{key} is {path!r}, but there is no module {name!r} {place}{hint}: check the spelling, run the "
        f"command in the directory that contains {name}.py, or install the package",
        code="config-module-missing",
        key=key,
        path=path,
        place=place,
    )


def _directory_without_modules(module: ModuleType) -> str | None:
    """Return the directory that Python imported as a package, as it does with any directory, such as that of a run with
    the module's name, if nothing in it can be imported.
    """
    if getattr(module, "__file__", None) is not None or not hasattr(module, "__path__"):
        return None
    directory = next(iter(module.__path__))
    return None if _names(module) or any(Path(directory).rglob("*.py")) else directory


def _module(name: str, key: str, path: str) -> ModuleType | None:
    """Return the module, or None if it does not exist. Raise `LearnerError` if importing it fails."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            return None
        raise _broken(name, key, path, error) from error
    except (Exception, SystemExit) as error:
        if isinstance(error, SystemExit) and error.code == TERMINATED:
            raise  # not an error of the module
        raise _broken(name, key, path, error) from error


def _broken(name: str, key: str, path: str, error: BaseException) -> LearnerError:
    message: object = error
    if isinstance(error, SyntaxError):
        message, location = error.msg, f"{error.filename}, line {error.lineno}"
    else:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen ")]
        user_frames = [f for f in frames if "site-packages" not in f.filename and f.filename != __file__]
        frame = (user_frames or frames)[-1]
        location = f"{frame.filename}, line {frame.lineno}"
    return LearnerError(
        f"{key} is {path!r}, but module {name} cannot be imported: {type(error).__name__}: {message} ({location})",
        code="config-import-failed",
        key=key,
        path=path,
        name=name,
    )


def _shadowed(name: str) -> str:
    """Return a hint if another module hides a module in the current directory."""
    found = getattr(sys.modules[name], "__file__", None) or "a part of Python"
    own = [place for place in (f"{name}.py", os.path.join(name, "__init__.py")) if os.path.isfile(place)]
    if not own or (os.path.exists(found) and os.path.samefile(found, own[0])):
        return ""
    return f" ({name} is {found}, which is found before {own[0]} in the current directory: rename that one)"


def _names(value: Any) -> list[str]:
    """Return the names in a module or a class, without the modules that it imports."""
    content = vars(value) if isinstance(value, ModuleType) else {}
    imported = {name for name, each in content.items() if isinstance(each, ModuleType)}
    names = [name for name in dir(value) if not name.startswith("_") and name not in imported]
    return names + [module.name for module in pkgutil.iter_modules(getattr(value, "__path__", []))]


def exports(module: str, base: str | None = None) -> dict[str, str]:
    """Return the short names of the callables that a module exports (`__all__`), with their import paths.

    Args:
      module: the name of the module.
      base: the import path of a class, to return only its concrete subclasses, or the class itself if the module has
        none.

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
def import_order(*, own: bool) -> Iterator[None]:
    """Prevent files in the current directory from being imported in place of modules of Python, installed packages or
    ours.

    Args:
      own: append the current directory to the import path, so that configs can name modules in it; otherwise remove it.
    """
    try:
        here, names = os.path.realpath(os.getcwd()), {name.partition(".")[0] for name in os.listdir(".")}
    except OSError:  # the directory was removed, or may not be listed
        yield
        return
    before, safe_path = list(sys.path), os.environ.get(SAFE_PATH)
    sys.path[:] = [place for place in sys.path if os.path.realpath(place) != here] + ([here] if own else [])
    if names & sys.stdlib_module_names:
        # New Python processes, such as worker processes of loaders, import modules before they get this import path.
        os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        sys.path[:] = before
        if safe_path is None:
            os.environ.pop(SAFE_PATH, None)
