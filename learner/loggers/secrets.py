"""Secrets among the arguments of loggers. They are read from the environment by name, and masked in messages."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from learner.errors import one_error

REFERENCE = re.compile(r"\$\{env:([^{}]*)\}")
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
SHORTEST, LONG = 4, 8  # characters of a part, and of a path component, masked separately: shorter ones are words


def resolve(value: Any) -> Any:
    """Return `value` with the values of environment variables in place of `${env:NAME}`.

    Texts are resolved anywhere in mappings, lists and tuples; everything else is returned unchanged.

    Raises:
      LearnerError: variables are not set; one error lists all of them.

    >>> import os
    >>> os.environ["HOOK_TOKEN"] = "a1b2"
    >>> resolve({"Authorization": "Bearer ${env:HOOK_TOKEN}", "X-Number": 5})
    {'Authorization': 'Bearer a1b2', 'X-Number': 5}
    >>> resolve("${env:NO_SUCH_VARIABLE}")
    Traceback (most recent call last):
    learner.errors.LearnerError: ${env:NO_SUCH_VARIABLE} needs the environment variable NO_SUCH_VARIABLE: it is not set
    """
    names = dict.fromkeys(name for text in _texts(value) for name in REFERENCE.findall(text))
    problems = [problem for name in names if (problem := _problem(name))]
    if problems:
        raise one_error(problems, "environment variables are missing", code="logger-environment-missing")
    return _resolved(value)


def _texts(value: object) -> Iterator[str]:
    """Yield the texts and paths anywhere in mappings, lists and tuples."""
    if isinstance(value, str | PurePath):
        yield str(value)
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(item)


def _problem(name: str) -> str:
    reference = f"${{env:{name}}}"
    if not NAME.fullmatch(name):
        return f"{reference} names no environment variable: a name has letters, digits and '_'"
    return "" if name in os.environ else f"{reference} needs the environment variable {name}: it is not set"


def _resolved(value: Any) -> Any:
    if isinstance(value, str):
        return REFERENCE.sub(lambda match: os.environ[match[1]], value)
    if isinstance(value, PurePath) and REFERENCE.search(str(value)):
        return type(value)(str(_resolved(str(value))))
    if type(value) is dict:
        return {key: _resolved(item) for key, item in value.items()}
    return type(value)(map(_resolved, value)) if type(value) in (list, tuple) else value


def is_literal(value: object) -> bool:
    """Return True if `value` contains a literal text rather than the name of an environment variable.

    >>> is_literal({"Authorization": "Bearer ${env:TOKEN}"}), is_literal(["https://example.org/T0"]), is_literal(5)
    (False, True, False)
    """
    return any(text and not REFERENCE.search(text) for text in _texts(value))


def parts_of(*texts: object) -> tuple[str, ...]:
    """Return the parts of addresses, tokens and headers that may be secret, in the form of `Listener.secrets`.

    >>> parts_of("https://me:word@example.org/T0/secret?key=a1b2", "Bearer c3d4")[2:]
    ('word', '/T0/secret?key=a1b2', 'a1b2', 'Bearer c3d4', 'Bearer', 'c3d4')
    """
    collected: list[str] = []
    for text in texts:
        if not isinstance(text, str):
            continue
        collected.append(text)
        if "://" not in text:
            collected += text.split()
            continue
        try:
            parts = urlsplit(text)
        except ValueError:
            continue
        user = parts.netloc.rpartition("@")[0]
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        named = [value for _, value in parse_qsl(parts.query)]
        steps = [step for step in parts.path.split("/") if len(step) >= LONG]
        pieces = [user, *user.split(":", 1)[1:], target, *steps, *named, parts.fragment]
        collected += [form for piece in pieces for form in dict.fromkeys((piece, unquote(piece)))]
    return tuple(dict.fromkeys(text for text in collected if len(text) >= SHORTEST))


def texts_in(value: object) -> Sequence[str]:
    """Return the texts in a config's arguments of loggers, without the names of their classes."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        named = "class_path" in value
        return [text for key, item in value.items() if not (named and key == "class_path") for text in texts_in(item)]
    return [text for item in value for text in texts_in(item)] if isinstance(value, list | tuple) else []
