"""Locations outside the directory of a run, which must be separate for each member of a sweep."""

import os
from collections.abc import Iterator, Mapping
from typing import Any

PLACES = {"RunMirror": "url", "TensorBoard": "directory", "JsonLines": "path", "Csv": "path"}
"""Loggers that write to their own location, and the argument that names it: a file if it is `path`."""


def separate_places(content: Mapping[str, Any], name: str) -> None:
    """Append the name of a member to the locations in its config, in place. Otherwise a member would resume from the
    checkpoints of another member, and replace its files.

    >>> content = {"with_file_checkpointer": {"directory": "gs://bucket/digits", "keep_last": 2}}
    >>> separate_places(content, "000-lr=0.1")
    >>> content
    {'with_file_checkpointer': {'directory': 'gs://bucket/digits/000-lr=0.1', 'keep_last': 2}}
    """
    _append(content.get("with_file_checkpointer"), "directory", name)
    for logger in _objects(content.get("metric_loggers")):
        path = str(logger["class_path"]).rpartition(".")[2]
        if path in PLACES:
            _append(logger.get("init_args"), PLACES[path], name)


def _append(arguments: Any, key: str, name: str) -> None:
    if isinstance(arguments, dict) and isinstance(arguments.get(key), str):
        stem, suffix = os.path.splitext(arguments[key]) if key == "path" else (arguments[key], "")
        arguments[key] = f"{stem}-{name}{suffix}" if key == "path" else f"{stem.rstrip('/')}/{name}"


def _objects(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the objects in a value of a config."""
    if isinstance(value, Mapping) and "class_path" in value:
        yield value
        return
    for item in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        yield from _objects(item)
