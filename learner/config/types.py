"""The types that fields may have: their names, and the types of their items."""

import collections.abc
import enum
import inspect
import numbers
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union

from learner.util.text import truncate

LISTS = {list: list, tuple: tuple, collections.abc.Sequence: tuple}
DICTS = (dict, collections.abc.Mapping)
LONGEST = 80  # characters of a value in a message

SCALARS: dict[Any, Callable[[Any], bool]] = {
    bool: lambda value: isinstance(value, bool),
    int: lambda value: isinstance(value, numbers.Integral) and not isinstance(value, bool),
    float: lambda value: isinstance(value, numbers.Real) and not isinstance(value, bool),
    str: lambda value: isinstance(value, str) and not isinstance(value, enum.Enum),
    types.NoneType: lambda value: value is None,
    Path: lambda value: isinstance(value, str | Path),
}
"""What is a value of each of them."""


def reads_itself(kind: Any) -> bool:
    """Return True if a type reads and writes itself (`read_fields`, `write_fields`), like a `learner.Config`."""
    return isinstance(kind, type) and hasattr(kind, "read_fields")


def plain_type(kind: Any) -> Any:
    """Return the type behind a `NewType` or a type alias."""
    while hasattr(kind, "__supertype__") or type(kind).__name__ == "TypeAliasType":
        kind = kind.__supertype__ if hasattr(kind, "__supertype__") else kind.__value__
    return types.NoneType if kind is None else kind


def inner_types(arguments: Sequence[Any], count: int) -> list[Any]:
    """Return the types of the items of a list or tuple with `count` items."""
    if not arguments:
        return [Any] * count
    return [arguments[0]] * count if len(arguments) == 1 or arguments[-1] is Ellipsis else list(arguments)


def same_shape(kind: Any, value: Any) -> bool:
    """Return True if a value can only be invalid in its items, not as a whole."""
    kind = plain_type(kind)
    origin = typing.get_origin(kind) or kind
    if isinstance(value, Mapping):
        return reads_itself(kind) or origin in DICTS
    if isinstance(value, str):
        return origin is Literal or (isinstance(kind, type) and issubclass(kind, enum.Enum))
    return isinstance(value, list | tuple) and origin in LISTS


def shown(value: Any) -> str:
    """Return the `repr` of a value for a message, truncated to `LONGEST` characters."""
    return truncate(repr(value), LONGEST, "...")


SINGULAR = {"int": "a whole number", "float": "a number", "str": "a text", "bool": "true or false"}
SINGULAR |= {"None": "null", "NoneType": "null"}
UNWRITABLE = ("Array", "ndarray", "np.ndarray", "jax.Array")  # types without a form in YAML
PLURAL = {"int": "whole numbers", "float": "numbers", "str": "texts", "Any": "any values"}


def in_words(kind: str) -> str:
    """Return the name of a type in words, for authors of YAML. Users' own types keep their names.

    >>> in_words("int | None"), in_words("Sequence[int | float]"), in_words("dict[str, Any]")
    ('a whole number or null', 'a list of numbers', 'a mapping')
    >>> in_words("tuple[int, str]"), in_words("list[list[float]]"), in_words("Path | Schedule")
    ('a list of a whole number and a text', 'a list of lists of numbers', 'Path or Schedule')
    >>> in_words("Union[int, Literal['auto'], NoneType]")
    "a whole number or 'auto' or null"
    >>> in_words("Array | float | Callable[[int | Array], float]")
    'a number or a function'
    """
    return _in_words(kind, SINGULAR, "a ")


def _in_words(kind: str, words: Mapping[str, str], article: str) -> str:
    union = re.fullmatch(r"Union\[(.*)\]", kind)
    parts = [part.strip() for part in (_split(union[1], ",") if union else _split(kind, "|"))]
    parts = [part for part in parts if part != "int" or "float" not in parts]
    parts = [part for part in parts if part not in UNWRITABLE] or parts
    return " or ".join(dict.fromkeys(_member_in_words(part, words, article) for part in parts))


def _member_in_words(kind: str, words: Mapping[str, str], article: str) -> str:
    if kind.startswith("Callable"):
        return f"{article}function" + ("" if article else "s")
    if literal := re.fullmatch(r"Literal\[(.*)\]", kind):
        return " or ".join(part.strip() for part in _split(literal[1], ","))
    match = re.fullmatch(r"(list|tuple|Sequence|dict|Mapping)(?:\[(.*)\])?", kind)
    if match is None:
        return words.get(kind, SINGULAR.get(kind, kind))
    name, inner = match[1], [part.strip() for part in _split(match[2] or "Any", ",")]
    ending = "" if article else "s"
    if name in ("dict", "Mapping"):
        return f"{article}mapping{ending}" + ("" if inner[-1] == "Any" else f" of {_in_words(inner[-1], PLURAL, '')}")
    if len(inner) > 1 and inner[-1] != "...":
        return f"{article}list{ending} of {' and '.join(map(in_words, inner))}"
    return f"{article}list{ending}" + ("" if inner[0] == "Any" else f" of {_in_words(inner[0], PLURAL, '')}")


def _split(text: str, separator: str) -> list[str]:
    """Return the parts between separators that are outside brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for character in text:
        if quote or character in "'\"":
            quote = "" if character == quote else quote or character
        depth += not quote and character in "[("
        depth -= not quote and character in "])"
        if character == separator and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def name_of(kind: Any) -> str:
    """Return the name of a type for messages.

    >>> name_of(int | None), name_of(dict[str, list[int]]), name_of(Path)
    ('int | None', 'dict[str, list[int]]', 'Path')
    """
    if typing.get_origin(kind) in (Union, types.UnionType):
        return " | ".join(map(name_of, typing.get_args(kind)))
    if typing.get_origin(kind) is Literal:
        return "one of " + ", ".join(map(repr, typing.get_args(kind)))
    if isinstance(kind, type) and not typing.get_args(kind):
        return "None" if kind is types.NoneType else kind.__name__
    return inspect.formatannotation(kind).replace("pathlib.", "").replace("typing.", "")
