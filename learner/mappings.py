"""Mappings in files: YAML and JSON, read without trust and written so that they come back as they were."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from learner.errors import LearnerError, near

SUFFIXES = (".json", ".yaml", ".yml")
LARGEST = 2**20  # of a file, in characters


def read_mapping(path: str | os.PathLike[str], what: str = "config file") -> dict[str, Any]:
    """The content of a file: JSON if its name ends with `.json`, and YAML otherwise.

    Args:
      path: of the file.
      what: it is, for error messages.

    Raises:
      LearnerError: there is no such file, it is neither YAML nor JSON, not a mapping, says a key twice, or is absurdly
        large.
    """
    named = f"the {what} {os.fspath(path)}"
    try:
        with open(path, encoding="utf-8-sig") as file:
            text = file.read(LARGEST + 1)
    except FileNotFoundError as error:
        beside = sorted(str(other) for other in Path(path).parent.glob("*") if other.suffix in SUFFIXES)
        hint = f": {near(str(path), beside)}" if beside else ""
        raise LearnerError(f"there is no {what} {os.fspath(path)}{hint}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise LearnerError(f"{named} cannot be read: {error}") from error
    content = _json(text, named) if Path(path).suffix == ".json" else _yaml(text, named)
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        found = "is empty" if content is None else f"is a {type(content).__name__}"
        raise LearnerError(f"{named} {found}; it needs a mapping of options by name")
    return content


def json_text(content: Mapping[str, Any]) -> str:
    """The content as JSON, one key on a line; numbers in lists stay on one.

    >>> print(json_text({"widths": [64, 10], "rate": 1e-3, "name": None}))
    {
      "widths": [64, 10],
      "rate": 0.001,
      "name": null
    }
    """
    return _indented(content, "")


def yaml_text(content: Any) -> str:
    """The content as YAML. A text that would come back as something else is quoted.

    >>> print(yaml_text({"widths": [64, 10], "name": "1e-3"}), end="")
    widths: [64, 10]
    name: '1e-3'
    """
    import yaml

    class Dumper(yaml.SafeDumper):
        """Writes what is alike in full, not as an alias."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    loader = yaml_loader()
    Dumper.add_representer(str, lambda dumper, text: _scalar(dumper, text, loader))
    text: str = yaml.dump(
        content, Dumper=Dumper, sort_keys=False, default_flow_style=None, width=100, allow_unicode=True
    )
    return text


def yaml_loader() -> Any:
    """What reads YAML: as PyYAML does, but for `1e-3`, which is a number."""
    from jsonargparse import get_loader

    return get_loader("yaml")


def _scalar(dumper: Any, text: str, loader: Any) -> Any:
    import yaml

    node = dumper.represent_scalar("tag:yaml.org,2002:str", text)
    try:
        same = "\n" in text or loader(text) == text
    except yaml.YAMLError:  # such as ": "; PyYAML quotes those by itself
        same = True
    return node if same else dumper.represent_scalar("tag:yaml.org,2002:str", text, style="'")


def _indented(value: Any, indent: str) -> str:
    inner = indent + "  "
    if isinstance(value, Mapping) and value:
        keys = [name if isinstance(name, str) else json.dumps(name) for name in value]
        items = zip(keys, value.values(), strict=True)
        lines = [f"{inner}{json.dumps(key, ensure_ascii=False)}: {_indented(item, inner)}" for key, item in items]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(item, dict | list) and item for item in value):
        return "[\n" + ",\n".join(inner + _indented(item, inner) for item in value) + f"\n{indent}]"
    return json.dumps(value, ensure_ascii=False)


def _json(text: str, named: str) -> Any:
    if len(text) > LARGEST:
        raise LearnerError(f"{named} has more than {LARGEST} characters")
    try:
        return json.loads(text, object_pairs_hook=lambda pairs: _once(pairs, named))
    except json.JSONDecodeError as error:
        raise LearnerError(f"{named} is not JSON: {error}") from error
    except RecursionError as error:
        raise LearnerError(f"{named} is nested too deeply") from error


def _once(pairs: Iterable[tuple[str, Any]], named: str) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for key, value in pairs:
        if key in content:
            raise LearnerError(f"{named} says {key!r} twice")
        content[key] = value
    return content


def _yaml(text: str, named: str) -> Any:
    import yaml

    from learner.untrusted import said_twice, too_large

    try:
        if problem := too_large(text) or said_twice(text):
            raise LearnerError(f"{named} {problem}")
        return yaml_loader()(text)
    except yaml.YAMLError as error:
        raise LearnerError(f"{named} is not YAML: {' '.join(str(error).split())}") from error
