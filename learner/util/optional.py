"""Optional packages: packages of extras, and other libraries that a program may use."""

import importlib
import importlib.util
import sys
from typing import Any

from learner.errors import LearnerError
from learner.util.distribution import install_hint


def is_instance_of(value: Any, module: str, name: str) -> bool:
    """Return True if a value is of a class of an optional library, without importing the library."""
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(value, getattr(loaded, name))


def import_optional(module: str, extra: str, what: str, package: str | None = None) -> Any:
    """Import and return a module of a package that an extra installs.

    Args:
      module: the full name of the module.
      extra: the extra of `learner`.
      what: the feature that needs it, for the error.
      package: the name of the package, for the error; default: the first part of the module's name.

    Raises:
      LearnerError: the package is not installed; the message has the command that installs it.

    >>> import_optional("no_such_module", "images", "an image folder", "Pillow")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    learner.errors.LearnerError: an image folder needs Pillow, which is not installed: pip install ...
    """
    root = module.partition(".")[0]
    try:
        importlib.import_module(root)
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name not in (root, module):  # the package is installed, but a dependency is missing
            raise
        raise _missing(package or root, extra, what) from error


def refuse_missing(module: str, extra: str, what: str, package: str | None = None) -> None:
    """Raise the error of `import_optional` if a package is not installed, without importing it, which can take seconds.

    >>> refuse_missing("no_such_module", "wandb", "NoLogger")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    learner.errors.LearnerError: NoLogger needs no_such_module, which is not installed: pip install ...
    """
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:  # a directory of that name is not a package
        raise _missing(package or module, extra, what)


def _missing(package: str, extra: str, what: str) -> LearnerError:
    return LearnerError(
        f"{what} needs {package}, which is not installed: {install_hint(extra)}",
        code="package-missing",
        package=package,
        extra=extra,
    )
