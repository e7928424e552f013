"""Classes generated from functions that a config file cannot call directly.

optax creates optimizers and schedules by functions, which need the learning rate in the same call as all other
settings. A config fixes the other settings and leaves the rate to the program. So each function becomes a small frozen
dataclass: its fields are the parameters that YAML can represent, and calling an instance passes the rest.
"""

import dataclasses
import functools
import inspect
import operator
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, Union

_SPELLED = """
AdaBelief AdaDelta AdaFactor AdaGrad AdamaxW AdamW AdEMAMix AMSGrad COCOB DAdapt DoG DoWG DPSGD GaLore LAMB LARS LBFGS
MADGRAD MoMo NAdam NAdamW NovoGrad OneCycle RAdam RMSProp RProp SGD SGDR SM3
"""
_WORDS = {word.lower(): word for word in _SPELLED.split()}


def camel_case(name: str) -> str:
    """Return the name of a class for a function's name.

    >>> camel_case("rmsprop"), camel_case("schedule_free_adamw"), camel_case("cosine_decay_schedule")
    ('RMSProp', 'ScheduleFreeAdamW', 'CosineDecaySchedule')
    """
    return "".join(_WORDS.get(word, word.capitalize()) for word in name.split("_"))


def yaml_type(annotation: Any, classes: Mapping[Any, type]) -> Any:
    """Return the part of a type that a config can represent, or None if there is none.

    Args:
      annotation: a parameter's type. A config cannot represent functions, arrays and trees.
      classes: types that are represented by one of our own classes instead.

    >>> yaml_type(Union[float, Callable[[int], float], None], {})
    float | None
    >>> yaml_type(Sequence[int], {}), yaml_type(Callable[[int], float], {})
    (list[int], None)
    """
    if annotation in (bool, int, float, str, types.NoneType):
        return annotation
    if annotation in classes:
        return classes[annotation]
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return annotation
    if origin in (Union, types.UnionType):
        return _union(args)
    if origin is Callable:
        return None
    kept = [a if a is Ellipsis else yaml_type(a, classes) for a in args]
    if not kept or None in kept or not isinstance(origin, type):
        return None
    for abstract, kind in ((tuple, tuple), (Mapping, dict), (Iterable, list)):
        if issubclass(origin, abstract):
            return types.GenericAlias(kind, tuple(kept))
    return None


def _union(args: Sequence[Any]) -> Any:
    """Return the union of the types that a config can represent. A number is a float, even where arrays and functions
    of the step are allowed; trees and `Any` are left out.
    """
    containers = [a for a in args if typing.get_origin(a) is not Literal]
    trees = any(isinstance(inner, str | typing.ForwardRef) for a in containers for inner in typing.get_args(a))
    kept = [] if trees or Any in args else [kind for kind in (yaml_type(a, {}) for a in args) if kind is not None]
    if float in kept:
        kept = [kind for kind in kept if kind not in (bool, int)]
    return functools.reduce(operator.or_, kept) if set(kept) - {types.NoneType} else None


def make_class(
    function: Callable[..., Any],
    name: str,
    base: type,
    free: Collection[str],
    classes: Mapping[Any, type],
    extra: Sequence[tuple[str, Any, Any, str]] = (),
) -> type:
    """Return a frozen dataclass whose fields are the parameters of `function`.

    Args:
      function: the function that instances represent; it becomes the class's `function`.
      name: the function's public name (`optax.adamw`), for the docstring.
      base: the class to derive from.
      free: parameters that are not fields, because the caller of the instance passes them.
      classes: as in `yaml_type`.
      extra: further fields: name, type, default and description.
    """
    fields: list[tuple[str, Any, Any]] = []
    left_out: list[str] = []
    parameters = inspect.signature(function).parameters
    for parameter in parameters.values():
        if parameter.name in free or (parameter.name == "seed" and "key" in parameters):  # an old name of `key`
            continue
        kind, default = _field(parameter, classes)
        if kind is None:
            left_out.append(parameter.name)
        else:
            fields.append((parameter.name, kind, dataclasses.field(default=default)))
    fields += [(field, kind, dataclasses.field(default=default)) for field, kind, default, _ in extra]
    namespace = {
        "function": staticmethod(function),
        "__doc__": _docstring(function, name, [field for field, *_ in fields], left_out, extra),
    }
    cls = dataclasses.make_dataclass(
        camel_case(name.rpartition(".")[2]), fields, bases=(base,), namespace=namespace, frozen=True, kw_only=True
    )
    cls.__module__ = base.__module__
    return cls


def _field(parameter: inspect.Parameter, classes: Mapping[Any, type]) -> tuple[Any, Any]:
    """Return a parameter's type (None to leave it out) and default."""
    default = dataclasses.MISSING if parameter.default is parameter.empty else parameter.default
    if "dtype" in parameter.name.split("_"):
        return str | None, getattr(default, "__name__", default)
    if parameter.name == "key":  # a random key, or the seed of one
        return int, 0
    kind = yaml_type(parameter.annotation, classes)
    if kind is float and type(default) is int:
        return int | float, default
    return kind, default


def _docstring(
    function: Callable[..., Any],
    name: str,
    fields: Collection[str],
    left_out: Collection[str],
    extra: Sequence[tuple[str, Any, Any, str]],
) -> str:
    """Return the function's first line and its text about each field, in the form that jsonargparse reads."""
    import docstring_parser

    doc = docstring_parser.parse(inspect.getdoc(function) or "")
    about = {p.arg_name: " ".join((p.description or "").split()) for p in doc.params}
    about |= {field: text for field, _, _, text in extra}
    lines = [(doc.short_description or name).replace("\n", " "), "", f"This is `{name}`."]
    if left_out:
        lines.append(f"A config cannot give {', '.join(left_out)}: write a function for that and name it.")
    return "\n".join([*lines, "", "Args:", *(f"    {field}: {about.get(field) or 'see optax'}" for field in fields)])
