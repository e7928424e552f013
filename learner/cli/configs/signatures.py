"""Checks of arguments from a config against the signature of their function, by jsonargparse."""

import contextlib
import copy
import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from jsonargparse import ArgumentParser, Namespace, _loaders_dumpers

from learner.cli.configs.config_arguments import config_kinds, default_of, parameters_of, read_argument
from learner.config.base import is_config
from learner.config.fields import write
from learner.config.safe_yaml import ConfigLoader
from learner.config.types import in_words, shown
from learner.errors import LearnerError, Problem, near, one_error

OF_TYPES = (
    "Expected a <class",
    "Expected a typing",
    "Does not validate against any",
    "Expected an import path",
    "Not a valid subclass",
    "are required",
)
"""The prefixes of jsonargparse's messages about values of the wrong type."""
RATES = dict.fromkeys(("lr", "learning_rate"), "the learning rate is the key lr, as in --lr=1e-3")
"""Hints for arguments that optimizers of other libraries have."""
MODULES = re.compile(r"(?<!['\w.])(?:[A-Za-z_]\w*[.])+")
"""The modules before the name of a type, but not in the texts of a `Literal`."""


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Arguments that fit a signature.

    Attributes:
      values: a function that returns the arguments, converted to the types of the signature.
      defaults: the omitted optional arguments, in the form of a config.
      written: the arguments that are or contain a `learner.Config`, complete, in the form of a config.
    """

    values: Callable[[], dict[str, Any]]
    defaults: Mapping[str, Any]
    written: Mapping[str, Any]


def check(
    target: Any,
    given: Mapping[str, Any],
    key: str,
    path: str,
    *,
    skip: Collection[str] = (),
    objects: Collection[str] = (),
    partial: bool = False,
) -> Arguments:
    """Check arguments against the signature of `target`.

    Args:
      target: a class or function.
      given: the arguments.
      key: their path in the config, and `path`: the function they are for, for error messages.
      skip: parameters that the caller sets.
      objects: arguments that are objects yet to be created; only their names are checked.
      partial: True if parameters may be missing.

    Raises:
      LearnerError: arguments are unknown, missing, or of the wrong type.

    >>> def head(classes: int, bias: bool = True): ...
    >>> check(head, {"classes": 10}, "model.init_args", "head").defaults
    {'bias': True}
    >>> check(head, {"classes": 10, "bais": False}, "model.init_args", "head")
    Traceback (most recent call last):
    learner.errors.LearnerError: model.init_args: head has no argument 'bais': did you mean 'bias'?
    """
    what = path if path == key else f"{key}: {path}"
    kinds = config_kinds(target)
    without = {*skip, *kinds}
    parser, others = signature_parser(target, what, without)
    known, parameters = [*others, *kinds], parameters_of(target)
    missing = [name for name in known if _is_required(parameters.get(name)) and name not in given and not partial]
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    unknown = [name for name in given if name not in known and not takes_any]
    hints = RATES if key == "optimizer.init_args" else {}
    problems = [f"{what} has no argument {name!r}: {hints.get(name) or near(name, known)}" for name in unknown]
    problems += [f"{what} needs {' and '.join(map(repr, missing))}"] if missing else []
    configs = {
        name: read_argument(kinds[name], given[name], f"{key}.{name}", problems)
        for name in kinds
        if name in given and name not in objects
    }
    left_out = [name for name in others if name not in given]
    values = {name: value for name, value in given.items() if name in others and name not in objects}
    skip = {*skip, *kinds, *objects, *missing, *(left_out if partial else ())}
    if skip != without:
        parser, _ = signature_parser(target, key, skip)
    parser, parsed = _parse(target, parser, values, key, skip, problems)
    if is_config(target) and not (problems or partial or objects):
        target.read_fields(given, key, problems)  # the error of its __post_init__
    if problems:
        raise one_error(problems, f"{key} cannot be used", code="config-arguments-mismatch")
    defaults: dict[str, Any] = {}
    if not partial:
        plain = {name: _as_dict(parser.get_defaults().get(name)) for name in left_out}
        defaults = {name: value for name, value in plain.items() if _round_trips(parser, values, name, value)}
        defaults |= {name: write(kind, default_of(target, name)) for name, kind in kinds.items() if name not in given}
    written = {name: write(kinds[name], each) for name, each in configs.items()}
    return Arguments(lambda: {**_instantiated(parser, parsed), **configs}, defaults, written)


def signature_parser(target: Any, what: str, skip: Collection[str] = ()) -> tuple[ArgumentParser, list[str]]:
    """Return jsonargparse's parser of a signature, and the names of the parameters that it knows.

    Raises:
      LearnerError: the signature of `what` cannot be read.
    """
    left_out: set[str | int] = {*skip}
    if isinstance(target, functools.partial):
        left_out |= {*target.keywords, len(target.args)}
        target = target.func
    parser = ArgumentParser(exit_on_error=False, allow_abbrev=False, add_help=False, print_config=None)
    add = parser.add_class_arguments if inspect.isclass(target) else parser.add_function_arguments
    try:
        added = add(target, skip=left_out, fail_untyped=False, as_positional=False)
    except Exception as error:  # any error that jsonargparse causes in foreign code
        raise LearnerError(
            f"{what}: its signature cannot be read; it needs a class or a function ({error})",
            code="config-signature-unreadable",
        ) from error
    return parser, list(dict.fromkeys(name.split(".")[0] for name in added))


def random_parameters(target: Callable[..., Any]) -> Iterator[str]:
    """Return the names of the parameters for random numbers: `rngs`, `key` and `seed`, except for a `key` that is a
    text.

    >>> def layer(size: int, *, key): ...
    >>> def table(key: str, seed: int = 0): ...
    >>> list(random_parameters(layer)), list(random_parameters(table))
    (['key'], ['seed'])
    """
    for name, parameter in parameters_of(target).items():
        open_ = parameter.default is parameter.empty or parameter.default is None
        if (
            (name == "rngs" and open_)
            or (name == "key" and open_ and parameter.annotation not in (str, int, "str", "int"))
            or (name == "seed" and parameter.annotation in (int, "int", parameter.empty))
        ):
            yield name


def _is_required(parameter: inspect.Parameter | None) -> bool:
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return parameter is not None and parameter.default is parameter.empty and parameter.kind not in variable


def _parse(
    target: Callable[..., Any],
    parser: ArgumentParser,
    given: Mapping[str, Any],
    key: str,
    skip: Collection[str],
    problems: list[str],
) -> tuple[ArgumentParser, Namespace | None]:
    """Return jsonargparse's parser of the signature, and the arguments as it reads them.

    Append the problems of all values: jsonargparse names the first one that is wrong, and reads the rest without it,
    with a parser of its own.
    """
    try:
        return parser, _parse_object(parser, given)
    except Exception as error:  # any error of a user's type; it is about the argument
        name, message = _message(str(error), given, key, target)
        problems.append(Problem(message, code="config-arguments-mismatch"))
        rest = {each: value for each, value in given.items() if each != name}
        if not name:
            return parser, None
        parser, _ = signature_parser(target, key, {*skip, name})
        return _parse(target, parser, rest, key, {*skip, name}, problems)


def _parse_object(parser: ArgumentParser, given: Mapping[str, Any]) -> Namespace:
    with _our_yaml():
        # jsonargparse replaces the names of objects inside of mappings, and the config is saved afterwards.
        parsed: Namespace = parser.parse_object(copy.deepcopy(dict(given)), defaults=False)
    return parsed


def _instantiated(parser: ArgumentParser, parsed: Namespace | None) -> dict[str, Any]:
    with _our_yaml():
        return {**vars(parser.instantiate(parsed))}


@contextlib.contextmanager
def _our_yaml() -> Iterator[None]:
    """Make jsonargparse use our YAML loader. jsonargparse parses texts in place of other values as YAML again, by YAML
    1.1 and without a depth limit. Its public `set_loader` does not cover all of these places.
    """
    before = _loaders_dumpers.yaml_default_loader
    vars(_loaders_dumpers)["yaml_default_loader"] = ConfigLoader
    try:
        yield
    finally:
        vars(_loaders_dumpers)["yaml_default_loader"] = before


def _message(text: str, given: Mapping[str, Any], key: str, target: Callable[..., Any]) -> tuple[str, str]:
    """Return the argument in jsonargparse's message, if any, and the message as one line."""
    match = re.match(
        r'Parser key "([^".]+)[^"]*"[^:]*:\s*(.*)|the following arguments (are required): (\w+)', text, re.DOTALL
    )
    if match is None or (match[1] or match[4]) not in given:
        return "", f"{key}: {' '.join(text.split())}"
    name, reason = match[1] or match[4], match[2] or match[3]  # null counts as missing for a required argument
    if reason.startswith("Expected a dot import path"):
        reason = "it needs an import path such as 'package.module.Name'"
    elif reason.startswith(OF_TYPES):
        annotation = parameters_of(target)[name].annotation if name in parameters_of(target) else "another type"
        expected = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
        needed = MODULES.sub("", expected)
        reason = f"it needs {in_words(needed)}"
        if re.fullmatch(r"[A-Z]\w+", needed) and needed != "Path" and not isinstance(given[name], dict):  # a class
            reason += ", as a mapping of its arguments"
        if given[name] in ("nan", "inf", "-inf"):  # texts in YAML
            reason += f" (YAML writes {given[name].replace('nan', '.nan').replace('inf', '.inf')})"
    return name, f"{key}.{name} is {shown(given[name])}: {' '.join(reason.split())}"


def _round_trips(parser: ArgumentParser, given: Mapping[str, Any], name: str, default: Any) -> bool:
    """Return True if a config can represent this default. Functions cannot be saved, and tuples only if the annotation
    is a tuple.
    """
    if not _plain(default):
        return False
    try:
        written = list(default) if isinstance(default, tuple) else default
        read = _as_dict(_parse_object(parser, {**given, name: written})[name])
    except Exception:  # a default of another type than its annotation
        return False
    return type(read) is type(default) and bool(read == default)


def _as_dict(value: Any) -> Any:
    """Return jsonargparse's namespace of a dataclass as a dict, and other values unchanged."""
    return value.as_dict() if isinstance(value, Namespace) else value


def _plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(name, str | int) and _plain(item) for name, item in value.items())
    if isinstance(value, list | tuple):
        return all(map(_plain, value))
    return value is None or type(value) in (bool, int, float, str)
