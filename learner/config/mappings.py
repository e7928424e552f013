"""Mappings in YAML and JSON files, read as untrusted input and written so that they read back unchanged."""

import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from learner.config.safe_yaml import BITS, DEEPEST, LARGEST, UnsafeYamlError, parse_yaml, read_bounded
from learner.errors import LearnerError, first_of, near

SUFFIXES = (".json", ".yaml", ".yml")
MOST_INCLUDED = 100  # files


def read_mapping(path: str | os.PathLike[str], what: str = "config file", *, includes: bool = False) -> dict[str, Any]:
    """Return the content of a file: JSON if its name ends with `.json`, and YAML otherwise.

    Args:
      path: the path of the file.
      what: the kind of file, for error messages.
      includes: replace `!include NAME` in YAML by the content of that file, relative to the including file. Only for
        trusted files: they can name any file.

    Raises:
      LearnerError: the file does not exist, is neither YAML nor JSON, is not a mapping, has a key twice, or is absurdly
        large.
    """
    mapping = _content(Path(path), what, [] if includes else None, ())
    if not isinstance(mapping, dict) or not all(isinstance(key, str) for key in mapping):
        problem = "is empty" if mapping is None else f"is a {type(mapping).__name__}"
        raise LearnerError(
            f"the {what} {os.fspath(path)} {problem}; it needs a mapping of options by name", code="config-not-mapping"
        )
    return mapping


def _content(path: Path, what: str, included: list[Path] | None, inside: tuple[Path, ...]) -> Any:
    """Return the content of a file. `included`: the files included so far, or None if includes are not allowed;
    `inside`: the files that lead to this one.
    """
    named = f"the {what} {os.fspath(path)}"
    try:
        content = read_bounded(path)
        if len(content) > LARGEST:
            raise LearnerError(f"{named} has more than {LARGEST} bytes", code="config-file-too-large")
        text = content.decode("utf-8-sig")
    except FileNotFoundError as error:
        beside = sorted(other.name for other in path.parent.glob("[!.]*") if other.suffix in SUFFIXES)
        hint = f": {near(path.name, beside, first_of(beside))}" if beside else ""
        raise LearnerError(f"there is no {what} {os.fspath(path)}{hint}", code="config-file-missing") from error
    except (OSError, UnicodeDecodeError) as error:
        raise LearnerError(f"{named} cannot be read: {error}", code="config-unreadable") from error
    if path.suffix == ".json":
        return _json(text, named)

    def include(name: str) -> Any:
        assert included is not None
        file = path.parent / name
        included.append(file)
        if file.resolve() in (*inside, path.resolve()) or len(included) > MOST_INCLUDED:
            problem = "itself" if len(included) <= MOST_INCLUDED else f"more than {MOST_INCLUDED} files"
            raise LearnerError(f"{named} includes {problem}: {name}", code="config-include", name=name)
        return _content(file, "included file", included, (*inside, path.resolve()))

    return _yaml(text, named, None if included is None else include)


def json_text(value: Any, indent: str = "") -> str:
    """Return a value as JSON with one key per line; lists of numbers stay on one line. `indent`: before each line.

    >>> print(json_text({"widths": [64, 10], "rate": 1e-3, "name": None}))
    {
      "widths": [64, 10],
      "rate": 0.001,
      "name": null
    }
    """
    inner = indent + "  "
    if isinstance(value, Mapping) and value:
        keys = [name if isinstance(name, str) else json.dumps(name) for name in value]
        items = zip(keys, value.values(), strict=True)
        lines = [f"{inner}{json.dumps(key, ensure_ascii=False)}: {json_text(item, inner)}" for key, item in items]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(item, dict | list) and item for item in value):
        return "[\n" + ",\n".join(inner + json_text(item, inner) for item in value) + f"\n{indent}]"
    return json.dumps(value, ensure_ascii=False)


def yaml_text(content: Any) -> str:
    """Return the content as YAML. Texts that YAML would read as another type are quoted.

    >>> print(yaml_text({"widths": [64, 10], "name": "1e-3"}), end="")
    widths: [64, 10]
    name: '1e-3'
    """
    text: str = yaml.dump(
        content, Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=100, allow_unicode=True
    )
    return text


def is_deep(value: Any, deepest: int = DEEPEST) -> bool:
    """Return True if mappings and lists are nested more than `deepest` levels deep in a value: recursive functions
    would exceed Python's recursion limit.

    >>> import functools
    >>> is_deep({"a": [{"b": 1}]}), is_deep(functools.reduce(lambda inner, _: [inner], range(51), 1))
    (False, True)
    """
    level = [value]
    for _ in range(deepest + 1):
        level = [each for each in level if isinstance(each, Mapping | list | tuple)]
        if not level:
            return False
        level = [item for each in level for item in (each.values() if isinstance(each, Mapping) else each)]
    return True


def _scalar(dumper: Any, text: str) -> Any:
    node = dumper.represent_scalar("tag:yaml.org,2002:str", text)
    try:
        same = "\n" in text or parse_yaml(text) == text
    except yaml.YAMLError:  # such as ": "; PyYAML quotes it by itself
        same = True
    return node if same else dumper.represent_scalar("tag:yaml.org,2002:str", text, style="'")


class _Dumper(yaml.SafeDumper):
    """A dumper that writes repeated objects in full instead of as aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.add_representer(str, _scalar)


def _json(text: str, named: str) -> Any:
    deep = f"{named} is nested more than {DEEPEST} levels deep"
    try:
        content = json.loads(text, object_pairs_hook=lambda pairs: _unique_keys(pairs, named), parse_int=_integer)
    except LearnerError:
        raise
    except ValueError as error:
        raise LearnerError(f"{named} is not JSON: {error}", code="config-not-json") from error
    except RecursionError as error:
        raise LearnerError(deep, code="config-too-deep") from error
    if is_deep(content):
        raise LearnerError(deep, code="config-too-deep")
    return content


def _integer(digits: str) -> int:
    if len(digits) > BITS or (value := int(digits)).bit_length() > BITS:
        raise ValueError("an integer that is absurdly large")
    return value


def _unique_keys(pairs: Iterable[tuple[str, Any]], named: str) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for key, value in pairs:
        if key in content:
            raise LearnerError(f"{named} has the key {key!r} twice", code="config-key-twice", key=key)
        content[key] = value
    return content


def _yaml_problem(error: Any) -> str:
    """Return the problem and its place, without the line itself, which may contain a secret."""
    problem, mark = getattr(error, "problem", None), getattr(error, "problem_mark", None)
    if problem is None or mark is None:
        return " ".join(str(error).split())
    return f"{problem}, line {mark.line + 1}, column {mark.column + 1}"


def _yaml(text: str, named: str, include: Callable[[str], Any] | None) -> Any:
    try:
        return parse_yaml(text, include)
    except UnsafeYamlError as error:
        raise LearnerError(f"{named} {error}", code="config-unsafe-yaml") from error
    except yaml.YAMLError as error:
        raise LearnerError(f"{named} is not YAML: {_yaml_problem(error)}", code="config-not-yaml") from error
