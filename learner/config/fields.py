"""The values of a config's fields, and their conversion from and to plain values.

Types are bool, int, float, str, None, `Path`, enumerations (files have the names), `Literal`, lists, tuples, dicts,
unions of all these, other configs, and `Any` for plain values.

jsonargparse, which checks all other arguments, accepts None for an int, reads "3" as a number in `int | str`, turns 3
in `float | int` into 3.0, and stops at the first mistake: saved values would not be restored exactly.
"""

import collections.abc
import enum
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union

from learner.config.types import (
    DICTS,
    LISTS,
    SCALARS,
    in_words,
    inner_types,
    name_of,
    plain_type,
    reads_itself,
    same_shape,
    shown,
)
from learner.errors import near


def read(kind: Any, value: Any, path: str, problems: list[str]) -> Any:
    """Convert a plain value to the type of its field.

    Args:
      kind: the type.
      value: a value from a file, or an object that already has the type.
      path: the path of the value, for error messages.
      problems: a list to which problems are appended; the result is then meaningless.

    >>> problems = []
    >>> read(tuple[float, ...], [1, 2.5], "rates", problems), read(dict[str, int], {"a": "b"}, "sizes", problems)
    ((1.0, 2.5), {'a': None})
    >>> problems
    ["sizes.a is 'b': it needs a whole number"]
    """
    kind = plain_type(kind)
    origin, arguments = typing.get_origin(kind) or kind, typing.get_args(kind)
    if origin in (Union, types.UnionType):
        return _read_union(kind, arguments, value, path, problems)
    if reads_itself(kind):
        return kind.read_fields(value, path, problems)
    if origin in LISTS:
        return _read_list(kind, origin, arguments, value, path, problems)
    if origin in DICTS:
        return _read_dict(kind, arguments, value, path, problems)
    if origin is Literal:
        return _read_choice({_literal(each): each for each in arguments}, _literal(value), value, path, problems)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _read_enum(kind, value, path, problems)
    if kind in (Any, object):
        return _read_any(value, path, problems)
    if kind not in SCALARS:
        problems.append(
            f"{path} has the type {name_of(kind)}, which no file can hold; it needs numbers, texts, Literal, "
            f"enumerations, configs, or lists, tuples and dicts of them"
        )
        return None
    if not SCALARS[kind](value):
        return add_type_problem(path, value, in_words(name_of(kind)), problems)
    return None if value is None else kind(value)


def write(kind: Any, value: Any) -> Any:
    """Convert a value to its plain form in a file, which `read` accepts."""
    kind = plain_type(kind)
    origin, arguments = typing.get_origin(kind) or kind, typing.get_args(kind)
    if origin in (Union, types.UnionType):
        configs = [member for member in arguments if reads_itself(member)]
        if any(isinstance(value, member) for member in configs):
            return configs[0].write_fields(value) if len(configs) == 1 else tagged(value)
        return write(_member(arguments, value), value)
    if reads_itself(kind):
        return kind.write_fields(value)
    if isinstance(value, list | tuple):
        return [write(inner, item) for inner, item in zip(inner_types(arguments, len(value)), value, strict=True)]
    if isinstance(value, dict):
        key_type, item_type = arguments or (Any, Any)
        return {write(key_type, key): write(item_type, item) for key, item in value.items()}
    if isinstance(value, enum.Enum):
        return value.name
    return str(value) if isinstance(value, Path) else value


def tagged(value: Any) -> dict[str, Any]:
    """Return a config as a mapping with its class, for fields whose type does not determine the class."""
    kind = type(value)
    return {"class_path": f"{kind.__module__}.{kind.__qualname__}", "init_args": kind.write_fields(value)}


def add_type_problem(path: str, value: Any, need: str, problems: list[str]) -> None:
    """Append the message that a value has the wrong type."""
    problems.append(f"{path} is {shown(value)}: it needs {need}")


def _literal(value: Any) -> Any:
    return type(value), value if isinstance(value, collections.abc.Hashable) else repr(value)


def _read_list(kind: Any, origin: Any, arguments: Any, value: Any, path: str, problems: list[str]) -> Any:
    exact = origin is tuple and arguments and arguments[-1] is not Ellipsis
    if not isinstance(value, list | tuple):
        return add_type_problem(path, value, in_words(name_of(kind)), problems)
    if exact and len(value) != len(arguments):
        return add_type_problem(path, value, f"{in_words(name_of(kind))}, which has {len(arguments)} items", problems)
    inner = list(arguments) if exact else inner_types(arguments, len(value))
    items = [read(each, item, f"{path}.{i}", problems) for i, (each, item) in enumerate(zip(inner, value, strict=True))]
    return LISTS[origin](items)


def _read_dict(kind: Any, arguments: Any, value: Any, path: str, problems: list[str]) -> Any:
    if not isinstance(value, Mapping):
        return add_type_problem(path, value, in_words(name_of(kind)), problems)
    key_type, item_type = arguments or (Any, Any)
    key_type = plain_type(key_type)
    items = {}
    for key, item in value.items():
        if key_type is int and isinstance(key, str) and key.removeprefix("-").isdecimal():
            key = int(key)  # JSON keys are always texts
        items[read(key_type, key, f"a key of {path}", problems)] = read(item_type, item, f"{path}.{key}", problems)
    return items


def _read_choice(choices: Mapping[Any, Any], key: Any, value: Any, path: str, problems: list[str]) -> Any:
    if key in choices:
        return choices[key]
    names = [each if isinstance(each, str) else repr(each) for _, each in choices]
    hint = (
        near(value, names) if isinstance(value, str) else "choose from " + ", ".join(repr(each) for _, each in choices)
    )
    problems.append(f"{path} is {shown(value)}: {hint}")
    return None


def _read_enum(kind: type[enum.Enum], value: Any, path: str, problems: list[str]) -> Any:
    if isinstance(value, kind):
        return value
    members = list(kind)
    by_value = {_literal(each.value): each for each in members}
    if not isinstance(value, enum.Enum) and _literal(value) in by_value and value not in kind.__members__:
        return by_value[_literal(value)]
    return _read_choice({_literal(each.name): each for each in members}, _literal(value), value, path, problems)


def _read_any(value: Any, path: str, problems: list[str]) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _read_any(item, f"{path}.{key}", problems) for key, item in value.items()}
    if isinstance(value, list):
        return [_read_any(item, f"{path}.{index}", problems) for index, item in enumerate(value)]
    if value is None or type(value) in (bool, int, float, str):
        return value
    return add_type_problem(path, value, "what a file can hold: None, bool, int, float, str, lists and dicts", problems)


def _member(arguments: Sequence[Any], value: Any) -> Any:
    """Return the member of a union that represents exactly this value."""
    for member in arguments:
        problems: list[str] = []
        result = read(member, value, "", problems)
        if not problems and repr(result) == repr(value):
            return member
    raise AssertionError(f"{value!r} is in none of {arguments}")


def _read_union(kind: Any, arguments: Sequence[Any], value: Any, path: str, problems: list[str]) -> Any:
    configs = [member for member in arguments if reads_itself(member)]
    if configs and isinstance(value, Mapping) and "class_path" in value:
        return configs[0].read_tagged(configs, value, path, problems)
    problems_of: dict[Any, list[str]] = {member: [] for member in arguments}
    values = {member: read(member, value, path, noted) for member, noted in problems_of.items()}
    fitting = [member for member in arguments if not problems_of[member]]
    if len({type(values[member]) for member in fitting if member in configs}) > 1:
        names = " and ".join(member.__name__ for member in fitting if member in configs)
        problems.append(f"{path} fits {names}: say which, as {{class_path: {configs[0].__name__}, init_args: ...}}")
        return None
    if fitting:  # 3 stays an int in `float | int`, and "x" a text in `Path | str`
        changed = {each: (repr(values[each]) != repr(value), type(values[each]) is not type(value)) for each in fitting}
        return values[min(fitting, key=lambda each: changed[each])]
    candidates = sorted((problems_of[member] for member in arguments if same_shape(member, value)), key=len)
    if len(candidates) == 1 or (candidates and len(candidates[0]) < len(candidates[1])):
        problems += candidates[0]  # of the most likely member
        return None
    return add_type_problem(path, value, in_words(name_of(kind)), problems)
