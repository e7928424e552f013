"""Public names of a package, imported at their first use, so that a new class needs only one new file."""

import ast
import functools
import importlib
import importlib.util
import inspect
import pkgutil
import sys
from collections.abc import Callable, Mapping
from typing import Any

from learner.errors import closest


def import_lazily(package: str, base: str | None = None) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the functions `__getattr__` and `__dir__` of a package whose names are imported at their first use.

    The package imports its names in a block `if TYPE_CHECKING:`, as themselves (`from x import A as A`), which makes
    them public for type checkers. At run time this block is parsed at the first access to a name. `__all__` has these
    names, and those of the functions that the package defines.

    Args:
      package: the import path of the package, `__name__`.
      base: the import path of a class. Its subclasses in any module of the package are also names of the package; see
        `export_classes`.
    """

    @functools.cache
    def modules() -> dict[str, str]:
        return _modules_for_type_checkers(sys.modules[package])

    @functools.cache
    def listed() -> list[str]:
        own = {name for name, x in vars(sys.modules[package]).items() if getattr(x, "__module__", None) == package}
        return sorted({*modules(), *(name for name in own if not name.startswith("_"))})

    @functools.cache
    def discover() -> None:
        if base is not None:
            parent, _, name = base.rpartition(".")
            export_classes(package, getattr(importlib.import_module(parent), name), listed())

    def get(name: str) -> Any:
        module = sys.modules[package]
        if name == "__all__":
            discover()
            return vars(module).setdefault(name, listed())
        if not name.startswith("_"):
            if name in modules():
                value = getattr(importlib.import_module(modules()[name]), name)
                return vars(module).setdefault(name, value)
            if importlib.util.find_spec(f"{package}.{name}") is not None:
                return importlib.import_module(f"{package}.{name}")
            discover()
            if name in vars(module):
                return vars(module)[name]
        raise missing_attribute(package, name, {each: each for each in get("__all__")})

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *get("__all__")})

    return get, names


def missing_attribute(package: str, name: str, names: Mapping[str, str]) -> AttributeError:
    """Return the error for an attribute that a package does not have. `names`: the public names, with their paths for
    the message.
    """
    close = [] if name.startswith("_") else closest(name, list(names))
    hint = f"; did you mean {' or '.join(names[each] for each in close)}?" if close else ""
    return AttributeError(f"module {package!r} has no attribute {name!r}{hint}")


def names_in_packages(*packages: str) -> dict[str, str]:
    """Return the public names of packages, with their paths. Modules of lazy packages are not imported."""
    modules = [importlib.import_module(package) for package in packages]
    names = {m.__name__: vars(m).get("__all__") or _modules_for_type_checkers(m) for m in modules}
    return {name: f"{package}.{name}" for package in names for name in names[package]}


def export_classes(package: str, base: type, names: list[str]) -> None:
    """Add classes of all modules of a package to its attributes, and set its `__all__` to `names` and their names.
    These are the concrete subclasses of `base` with a public name that are no base of another class of the package.

    Type checkers see only the names that the package itself imports.
    """
    module = sys.modules[package]
    for info in pkgutil.iter_modules(module.__path__):
        importlib.import_module(f"{package}.{info.name}")
    # After all imports: only then are all subclasses known.
    found = {value.__name__: value for value in _derived(base, f"{package}.") if _is_leaf(value, f"{package}.")}
    vars(module).update(found, __all__=sorted({*names, *found}))


def _modules_for_type_checkers(package: Any) -> dict[str, str]:
    """Return the modules of the names that a package imports `if TYPE_CHECKING`."""
    source = package.__spec__.loader.get_source(package.__name__)
    if source is None:  # only compiled files are installed
        names = [f"{package.__name__}.{info.name}" for info in pkgutil.iter_modules(package.__path__)]
        return {name: module for module in names for name in vars(importlib.import_module(module)) if name[0] != "_"}
    (block,) = (x for x in ast.parse(source).body if isinstance(x, ast.If) and ast.unparse(x.test) == "TYPE_CHECKING")
    imports = [statement for statement in block.body if isinstance(statement, ast.ImportFrom)]
    return {name.name: str(statement.module) for statement in imports for name in statement.names}


def _derived(base: type, prefix: str) -> set[type]:
    below: list[type] = base.__subclasses__()
    every = {value for derived in below for value in (derived, *_derived(derived, prefix))}
    return {value for value in every if value.__module__.startswith(prefix)}


def _is_leaf(value: type, prefix: str) -> bool:
    return not (value.__name__.startswith("_") or inspect.isabstract(value) or _derived(value, prefix))
