"""The help texts of the command line."""

import inspect
from argparse import SUPPRESS
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from learner.builder import LearnerBuilder
from learner.cli.configs.builder_options import methods
from learner.cli.configs.config_arguments import parameters_of
from learner.cli.configs.importing import import_path
from learner.cli.configs.recipes import named
from learner.cli.configs.schema import CONTEXT, SELECTIONS, names_for
from learner.cli.configs.signatures import random_parameters, signature_parser
from learner.cli.parsing import entries, fit_to_terminal
from learner.cli.usage import TOPICS
from learner.errors import LearnerError, near

IN_PYTHON = ("population",)
"""Methods of the builder that a config cannot call: `learner sweep` lists the values of members."""


def topic_lines(topic: str) -> list[str]:
    """Return the help of any topic except `processes`, before it is wrapped: all keys, or the classes that a key
    accepts, with their parameters.
    """
    key, _ = TOPICS[topic]
    if key:
        return _choices(key)
    options = {name: _first_line(method) + _defaults(method) for name, method in methods(LearnerBuilder).items()}
    options |= {name: f"With learner sweep --together only. {options[name]}" for name in SELECTIONS}
    named = {name: text for name, text in options.items() if name not in CONTEXT and name not in IN_PYTHON}
    return ["keys:", *entries(CONTEXT), "", "keys that are methods of LearnerBuilder:", *entries(named)]


def key_help(key: str, path: str, content: Mapping[str, Any]) -> str:
    """Return the help of `--KEY.help CLASS`: the choices for a key, or the arguments of a class.

    Args:
      key: a key of the config, such as `optimizer` or `train.dataset`.
      path: the class or function, by import path or short name; empty for the one in the config, or for all that have a
        short name.
      content: the content of the config.

    Raises:
      LearnerError: there is no such key or class.
    """
    place, names = f"--{key}.help", names_for(key)
    known = list(dict.fromkeys([*CONTEXT, *methods(LearnerBuilder)]))
    if key.partition(".")[0] not in known:
        hint = near(key, known, "learner fit --help=keys lists all keys")
        raise LearnerError(f"there is no option {key!r}: {hint}", code="config-key-unknown", key=key)
    value = content.get(key)
    if isinstance(value, Mapping):
        value = value.get("class_path", "")
    path = path or (value if isinstance(value, str) else "")
    if not path and names:
        return fit_to_terminal("\n".join(_choices(key)))
    if not path:
        raise LearnerError(
            f"{place} needs a class or a function: {place} CLASS", code="cli-help-class-missing", place=place
        )
    target = named(path, place, names)
    if not callable(target):
        raise LearnerError(
            f"{place}: {path} is a {type(target).__name__}, which takes no arguments",
            code="config-target-not-callable",
            place=place,
            path=path,
        )
    skip = [name for name, each in parameters_of(target).items() if inspect.isbuiltin(each.default)]  # see `_arguments`
    parser, _ = signature_parser(target, place, [*skip, *(random_parameters(target) if key == "model" else ())])
    parser.usage = SUPPRESS
    for action in parser._actions:  # `--NAME+`, which appends to lists, exists only in jsonargparse
        action.option_strings = [name for name in action.option_strings if not name.endswith("+")]
    for group in parser._action_groups:
        group.title = (group.title or "").rstrip(":.")  # the first line of a docstring; argparse appends a colon
    return f"{path}, as init_args or as --{key}.NAME=VALUE\n\n{parser.format_help().strip()}"


def _first_line(thing: Callable[..., Any]) -> str:
    return (inspect.getdoc(thing) or "").split("\n\n")[0].replace("\n", " ").replace("`", "")


def _defaults(method: Callable[..., Any]) -> str:
    """Return the arguments of a key that takes several, with their defaults."""
    parameters = list(inspect.signature(method).parameters.values())[1:]
    return f" Arguments: {_arguments(parameters)}." if len(parameters) > 1 else ""


def _choices(key: str) -> list[str]:
    """Return a signature such as `AdamW(b1=0.9, ...)` for each class that needs no import path."""
    lines = [f"{key} is one of these, or your own by import path:"]
    for name, path in names_for(key).items():
        arguments = _arguments(inspect.signature(import_path(path, key)).parameters.values())
        lines.append(f"  {name}({arguments})")
    return lines


def _arguments(parameters: Iterable[inspect.Parameter]) -> str:
    """Return parameters with their defaults, without clocks, which are for tests."""
    shown = [p for p in parameters if not inspect.isbuiltin(p.default)]
    return ", ".join(p.name if p.default is p.empty else f"{p.name}={_as_text(p.default)}" for p in shown)


def _as_text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_as_text, value))}]"
    if value == "":
        return "''"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
