"""Configs of several parts: files that override each other, and references to values and to the environment."""

import os
import re
from collections.abc import Collection, Mapping
from typing import Any

from learner.config.safe_yaml import DEEPEST, parse_yaml
from learner.errors import LearnerError, Problem, near, one_error

REFERENCE = re.compile(r"\$\{([^{}]*)\}")
VARIABLES = "vars"
"""The key of values that are used only by references. It is not an option."""
MOST = 100_000  # values: references to references can grow exponentially


def merge(base: Any, other: Any) -> Any:
    """Return `base` with the values of `other`. Mappings are merged by key, and everything else is replaced. A
    different class drops the arguments of the previous class.

    >>> merge({"lr": 0.1, "model": {"class_path": "A", "init_args": {"n": 1}}}, {"model": {"init_args": {"m": 2}}})
    {'lr': 0.1, 'model': {'class_path': 'A', 'init_args': {'n': 1, 'm': 2}}}
    >>> merge({"model": {"class_path": "A", "init_args": {"n": 1}}}, {"model": {"class_path": "B"}})
    {'model': {'class_path': 'B'}}
    >>> merge({"optimizer": "AdamW"}, {"optimizer": {"init_args": {"b1": 0.8}}})   # the name alone is a class, too
    {'optimizer': {'class_path': 'AdamW', 'init_args': {'b1': 0.8}}}
    """
    if isinstance(base, str) and isinstance(other, dict) and "init_args" in other:
        base = {"class_path": base}
    if not (isinstance(base, dict) and isinstance(other, dict)):
        return other
    merged = dict(base)
    if "class_path" in other and other["class_path"] != base.get("class_path"):
        merged.pop("init_args", None)
    return merged | {key: merge(merged.get(key), value) for key, value in other.items()}


def resolve(content: dict[str, Any], keep: Collection[str] = ()) -> dict[str, Any]:
    """Return a config with its references resolved.

    `${model.hidden}` is the value of another key: with its type if it stands alone, otherwise as text. `${env:NAME}` is
    an environment variable, and `${env:NAME:default}` has a default. References can name values of `vars`, which is not
    part of the result.

    Args:
      content: the content of the config.
      keep: keys in whose values references to the environment are not resolved.

    Raises:
      LearnerError: a reference names nothing, or itself; one error lists the problems of all references.

    >>> model = {"class_path": "Net", "init_args": {"width": "${vars.n}"}}
    >>> resolve({"vars": {"n": 8}, "model": model, "directory": "runs/${model.width}"})
    {'model': {'class_path': 'Net', 'init_args': {'width': 8}}, 'directory': 'runs/8'}
    """
    resolver = _Resolver(content)
    resolved = {}
    for key, value in content.items():
        if key != VARIABLES:
            resolver.keeps_environment = key in keep
            resolved[key] = resolver.value(value, ())
    if resolver.problems:
        problems = list(dict.fromkeys(resolver.problems))
        raise one_error(problems, "references cannot be resolved", code="config-references-unresolved")
    return resolved


def variables_in(content: Any) -> set[str]:
    """Return the names of the values of `vars` that a config, or a part of it, refers to; "" stands for all of them.

    >>> sorted(variables_in({"model": ["${vars.width}", 8], "lr": "${vars.rate.first}", "seed": "${env:SEED}"}))
    ['rate', 'width']
    """
    if isinstance(content, dict | list | tuple):
        values = content.values() if isinstance(content, dict) else content
        return {name for value in values for name in variables_in(value)}
    references = REFERENCE.findall(content) if isinstance(content, str) else []
    return {f"{name}.".split(".")[1] for name in references if name.split(".")[0] == VARIABLES}


def refuse_unused_variable(key: str, used: Collection[str]) -> None:
    """Raise `LearnerError` if a key of an override is a value of `vars` to which nothing refers.

    Args:
      key: the key, such as `vars.width`.
      used: the names of values to which the config and the overrides refer.
    """
    section, _, name = key.partition(".")
    if section == VARIABLES and not {name.partition(".")[0], ""} & set(used):
        hint = near(name, sorted(used)) if used else f"the config has no reference to {VARIABLES}"
        raise LearnerError(
            f"{key} has no effect, because nothing refers to ${{{key}}}: {hint}", code="config-variable-unused", key=key
        )


class _Resolver:
    def __init__(self, content: Mapping[str, Any]) -> None:
        self._content = content
        self._values = 0
        self.keeps_environment = False
        self.problems: list[Problem] = []

    def value(self, value: Any, inside: tuple[str, ...]) -> Any:
        """Return a value with its references resolved. `inside`: the references that lead to it."""
        self._values += 1
        if self._values > MOST:
            raise LearnerError("the references of the config expand to too many values", code="config-reference-large")
        if isinstance(value, dict):
            return {key: self.value(item, inside) for key, item in value.items()}
        if isinstance(value, list):
            return [self.value(item, inside) for item in value]
        if not isinstance(value, str) or "${" not in value:
            return value
        try:
            if (match := REFERENCE.fullmatch(value)) is not None:
                return self._target(match[1], inside)
            return REFERENCE.sub(lambda match: self._text(match[1], inside), value)
        except LearnerError as error:
            if inside:
                raise
            self.problems.append(Problem(error, code=error.code, **error.fields))
            return None

    def _text(self, name: str, inside: tuple[str, ...]) -> str:
        value = self._target(name, inside)
        if isinstance(value, dict | list) or value is None:
            raise LearnerError(
                f"${{{name}}} is part of a text, but its value is a {type(value).__name__}; it needs a text or a "
                "number",
                code="config-reference-type",
                name=name,
            )
        return str(value).lower() if isinstance(value, bool) else str(value)

    def _target(self, name: str, inside: tuple[str, ...]) -> Any:
        if len(inside) > DEEPEST:
            raise LearnerError("the references of the config expand to too many values", code="config-reference-large")
        if name in inside:
            chain = " -> ".join([*inside, name])
            raise LearnerError(f"the reference ${{{name}}} leads to itself: {chain}", code="config-reference-circular")
        kind, colon, variable = name.partition(":")
        if kind == "env" and colon:
            return f"${{{name}}}" if self.keeps_environment else self._variable(variable)
        node: Any = self._content
        for step in name.split("."):
            if isinstance(node, dict) and "class_path" in node and step not in ("class_path", "init_args"):
                node = node.get("init_args") or {}
            if isinstance(node, list) and step.isdecimal() and int(step) < len(node):
                node = node[int(step)]
            elif isinstance(node, dict) and step in node:
                node = node[step]
            else:
                hint = near(step, list(map(str, node))) if isinstance(node, dict) else "there is nothing below it"
                if name.isupper():  # as variables of the environment are named, which shells write in the same way
                    hint = f"a variable of the environment is ${{env:{name}}}"
                raise LearnerError(
                    f"${{{name}}} names no value of the config, at {step!r}: {hint}",
                    code="config-reference-unknown",
                    name=name,
                )
        return self.value(node, (*inside, name))

    def _variable(self, name: str) -> Any:
        name, colon, default = name.partition(":")
        if name not in os.environ and not colon:
            raise LearnerError(
                f"${{env:{name}}} needs the environment variable {name}: it is not set; ${{env:{name}:default}} has a "
                "default",
                code="config-reference-environment",
                name=name,
            )
        text = os.environ.get(name, default)
        try:
            value = parse_yaml(text)
        except Exception:  # not YAML: plain text
            return text
        return value if isinstance(value, bool | int | float) else text
