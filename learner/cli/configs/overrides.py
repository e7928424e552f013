"""The config file, and the overrides on the command line: `--num_epochs=3 --model.hidden=64`."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from learner.cli.configs.problems import Problems
from learner.config.composition import merge, refuse_unused_variable, resolve, variables_in
from learner.config.mappings import is_deep, read_mapping
from learner.config.safe_yaml import DEEPEST, UnsafeYamlError, parse_yaml
from learner.config.types import shown
from learner.errors import LearnerError, near
from learner.examples import CONFIGS, bundled_config
from learner.runs.journal import OBSERVER_KEYS
from learner.util.stages import note

COMMENT = re.compile(r"(?:^|\s)#")
MARKED = ("!", "|", ">")
"""The beginnings of YAML's texts with a tag, as in `!!str 5`, and of its blocks of lines."""


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Return the content of a config file, or of the bundled config if `configs/NAME.yaml` does not exist.

    Raises:
      LearnerError: the file does not exist, is not YAML, is not a mapping, has a duplicate key, or is too large.
    """
    if path == "-":
        raise LearnerError(
            "standard input is not read: write the config to a file, and give its name", code="cli-standard-input"
        )
    name = os.fspath(path)
    if not name:
        raise LearnerError("the name of a config file is empty", code="config-file-missing")
    if os.path.isdir(path):
        of_run = os.path.join(name, "config.yaml")
        example = f", such as {of_run}" if os.path.isfile(of_run) else ""
        raise LearnerError(
            f"{name} is a directory, but a config is a file{example}; learner resume {name} continues a run",
            code="cli-config-directory",
            path=name,
        )
    if not os.path.lexists(path):
        bundled = bundled_config(path)
        is_option = re.match(r"[a-z_][\w.]*=", name)  # unlike the directory of a member of a sweep, 007-b1=0.9/
        hint = f": options begin with two dashes, --{name}" if is_option else _bundled_hint(name)
        if bundled is None and hint:
            raise LearnerError(f"there is no config file {name}{hint}", code="config-file-missing")
        if bundled is not None:
            note(f"there is no {name} here; using {bundled}")
            path = bundled
    return read_mapping(path, includes=True)


def _bundled_hint(name: str) -> str:
    """Return a hint about a bundled config, if the directory of a missing file does not exist."""
    if os.path.isdir(os.path.dirname(name) or "."):
        return ""
    hint = near(name, [f"configs/{path.name}" for path in CONFIGS.glob("*.yaml")], "")
    return f": {hint}" if hint else ""


def read_configs(paths: Sequence[str | Path]) -> dict[str, Any]:
    """Return the merged content of config files. Later files override earlier ones; see `merge`."""
    content: dict[str, Any] = {}
    for path in paths:
        content = merge(content, read_yaml(path))
    return content


def value_of(text: str) -> Any:
    """Return the value of an option, parsed as YAML. Texts that are not YAML are returned unchanged, and so are texts
    of which YAML would drop a part unless they were quoted: a comment, as in `runs/try #1`, an anchor, as in `&x y`, or
    a line break.

    Raises:
      LearnerError: the value is too large or too deep, has a duplicate key, or is not UTF-8.

    >>> value_of("1e-3"), value_of("[64, 10]"), value_of("true"), value_of("a: b: c"), value_of("Warning:")
    (0.001, [64, 10], True, 'a: b: c', 'Warning:')
    """
    try:
        text.encode()
        value = parse_yaml(text) if text else ""
    except UnicodeEncodeError as error:  # Python keeps other bytes of a command line as lone surrogates
        raise LearnerError(f"the value {shown(text)} is not UTF-8", code="cli-value-encoding") from error
    except UnsafeYamlError as error:
        raise LearnerError(f"the value {shown(text)} {error}", code="cli-value-malformed") from error
    except yaml.YAMLError:
        return text
    bare = isinstance(value, dict) and value and not any(value.values()) and ": " not in text
    start = text.lstrip()[:1]
    quoted = start in ("'", '"', "[", "{")
    folded = isinstance(value, str) and value != text.strip() and start not in MARKED
    return text if bare or start == "&" or (not quoted and (folded or COMMENT.search(text))) else value


def apply_overrides(content: dict[str, Any], overrides: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return the content of a config after applying the overrides of the command line (keys and values as text) and
    resolving references. References to the environment in arguments of loggers are kept, because their values may be
    secret.
    """
    problems, used = Problems(), variables_in(content)  # before an override of a class drops arguments
    for key, text in overrides:
        with problems.collect():
            value = value_of(text)
            used |= variables_in(value)
            override(content, key, value)
    for key, _ in overrides:
        with problems.collect():
            refuse_unused_variable(key, used)
    problems.raise_all()
    if is_deep(content) or is_deep(content := resolve(content, keep=OBSERVER_KEYS)):
        raise LearnerError(f"the config is nested more than {DEEPEST} levels deep", code="config-too-deep")
    return content


def override(config: dict[str, Any], key: str, value: Any) -> None:
    """Set `key` in `config`, in place.

    Dots lead into mappings, into lists by number, and into the arguments of an object: `model.hidden` is short for
    `model.init_args.hidden`. Another class drops the arguments of the previous one.

    >>> config = {"model": {"class_path": "m.MLP", "init_args": {"hidden": 8}}, "metrics": ["Accuracy"]}
    >>> override(config, "model.hidden", 64)
    >>> override(config, "metrics.0.ignore", -1)
    >>> override(config, "with_file_checkpointer.keep_last", 3)
    >>> config["model"], config["metrics"]
    ({'class_path': 'm.MLP', 'init_args': {'hidden': 64}}, [{'class_path': 'Accuracy', 'init_args': {'ignore': -1}}])
    >>> config["with_file_checkpointer"]
    {'keep_last': 3}
    """
    # jsonargparse's dotted overrides do not reach into lists, and in untyped mappings they drop the other keys.
    node: Any = config
    steps = key.split(".")
    if len(steps) > DEEPEST:
        raise LearnerError(f"--{shown(key)} leads more than {DEEPEST} levels deep", code="cli-option-too-deep")
    for depth, (step, following) in enumerate(zip(steps, [*steps[1:], None], strict=True), 1):
        if isinstance(node, dict) and "class_path" in node and step not in ("class_path", "init_args"):
            node = node.setdefault("init_args", {})
        index = _index(node, step, ".".join(steps[:depth]))
        if following is None:
            if step == "class_path" and node.get(step) != value:
                node.pop("init_args", None)
            node[index] = value
        else:
            node = _as_container(node, index)


def _index(node: Any, step: str, key: str) -> str | int:
    if not isinstance(node, list):
        return step
    if not step.isdecimal() or int(step) >= len(node):
        raise LearnerError(
            f"--{key}: this is a list of {len(node)}; it needs a number from 0 to {len(node) - 1}",
            code="cli-list-index",
            key=key,
        )
    return int(step)


def _as_container(node: Any, index: Any) -> Any:
    """Return the item at `index` as a mapping or list, and create it if needed. An import path becomes a mapping."""
    inner = node.get(index) if isinstance(node, dict) else node[index]
    if isinstance(inner, str):
        inner = {"class_path": inner}
    elif not isinstance(inner, dict | list):
        inner = {}
    node[index] = inner
    return inner
