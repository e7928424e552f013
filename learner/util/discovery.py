"""Public names of a package that follow from its modules, so that a new class is one new file."""

import importlib
import inspect
import pkgutil
import sys


def export_classes(package: str, base: type) -> None:
    """Add the classes of all modules of a package to its attributes and to its `__all__`: those derived from `base`
    that are concrete, have a public name, and are the base of no other class of the package.

    Type checkers know only the names that the package imports itself.
    """
    module = sys.modules[package]
    for info in pkgutil.iter_modules(module.__path__):
        importlib.import_module(f"{package}.{info.name}")
    # After all imports: only then is it known which classes are bases of others.
    found = {value.__name__: value for value in _derived(base, f"{package}.") if _is_leaf(value, f"{package}.")}
    vars(module).update(found, __all__=sorted({*vars(module)["__all__"], *found}))


def _derived(base: type, prefix: str) -> set[type]:
    below: list[type] = base.__subclasses__()
    every = {value for derived in below for value in (derived, *_derived(derived, prefix))}
    return {value for value in every if value.__module__.startswith(prefix)}


def _is_leaf(value: type, prefix: str) -> bool:
    return not (value.__name__.startswith("_") or inspect.isabstract(value) or _derived(value, prefix))
