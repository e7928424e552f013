"""Arguments from a config, checked against the signature of what they are for, by jsonargparse."""

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from learner.errors import LearnerError, near


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Arguments that fit a signature.

    Attributes:
      parser: jsonargparse's parser of the signature.
      parsed: what is given, as the parser read it.
      defaults: what is left out and could have been given, as a config would say it.
    """

    parser: ArgumentParser
    parsed: Namespace
    defaults: Mapping[str, Any]

    def values(self) -> dict[str, Any]:
        """What is given, in the types that the signature asks for."""
        return dict(vars(self.parser.instantiate(self.parsed)))


def check(
    target: Callable[..., Any],
    given: Mapping[str, Any],
    key: str,
    path: str,
    *,
    skip: Collection[str] = (),
    objects: Collection[str] = (),
    partial: bool = False,
) -> Arguments:
    """Checks arguments against the signature of `target`.

    Args:
      target: a class or function.
      given: the arguments.
      key: where they stand in the config, and `path` what they are for, for error messages.
      skip: parameters that somebody else gives.
      objects: arguments that are objects still to be made: only their names are checked.
      partial: whether parameters may be missing.

    Raises:
      LearnerError: an unknown argument, a missing one, or one of the wrong type.

    >>> def head(classes: int, bias: bool = True): ...
    >>> check(head, {"classes": 10}, "model.init_args", "head").defaults
    {'bias': True}
    >>> check(head, {"clases": 10}, "model.init_args", "head")
    Traceback (most recent call last):
    learner.errors.LearnerError: model.init_args: head has no argument 'clases': did you mean 'classes'?
    """
    what = path if path == key else f"{key}: {path}"
    try:
        parser, known = signature_parser(target, skip)
    except Exception as error:  # whatever jsonargparse meets in code that is not ours
        raise LearnerError(f"{what}: its signature cannot be read; it needs a class or a function ({error})") from error
    unknown = [name for name in given if name not in known]
    if unknown and not _takes_anything(target):
        raise LearnerError(f"{what} has no argument {unknown[0]!r}: {near(unknown[0], known)}")
    missing = [name for name in known if name in _required(target) and name not in given]
    if missing and not partial:
        raise LearnerError(f"{what} needs {' and '.join(map(repr, missing))}")
    values = {name: value for name, value in given.items() if name in known and name not in objects}
    left_out = [name for name in known if name not in given]
    if objects or partial:
        parser, _ = signature_parser(target, {*skip, *objects, *(left_out if partial else ())})
    defaults = {} if partial else {name: parser.get_default(name) for name in left_out}
    return Arguments(
        parser,
        _parse(parser, values, key, target),
        {name: default for name, default in defaults.items() if _comes_back(parser, values, name, default)},
    )


def signature_parser(target: Callable[..., Any], skip: Collection[str] = ()) -> tuple[ArgumentParser, list[str]]:
    """jsonargparse's parser of a signature, and the names of the parameters that it knows."""
    left_out: set[str | int] = {*skip}
    if isinstance(target, functools.partial):
        left_out |= {*target.keywords, len(target.args)}
        target = target.func
    parser = ArgumentParser(exit_on_error=False, allow_abbrev=False, add_help=False, print_config=None)
    add = parser.add_class_arguments if inspect.isclass(target) else parser.add_function_arguments
    added = add(target, skip=left_out, fail_untyped=False, as_positional=False)
    return parser, list(dict.fromkeys(name.split(".")[0] for name in added))


def random_parameters(target: Callable[..., Any]) -> Iterator[str]:
    """The parameters that are random numbers, by name: `rngs`, `key` and `seed`; not a `key` that is a text.

    >>> def layer(size: int, *, key): ...
    >>> def table(key: str, seed: int = 0): ...
    >>> list(random_parameters(layer)), list(random_parameters(table))
    (['key'], ['seed'])
    """
    for name, parameter in _parameters(target).items():
        open_ = parameter.default is parameter.empty or parameter.default is None
        if (
            (name == "rngs" and open_)
            or (name == "key" and open_ and parameter.annotation not in (str, int, "str", "int"))
            or (name == "seed" and parameter.annotation in (int, "int", parameter.empty))
        ):
            yield name


def _parameters(target: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """By name. Of a class those of `__init__`: a metaclass such as nnx's hides them from `inspect.signature`."""
    initialised = inspect.isclass(target) and target.__init__ is not object.__init__
    try:
        parameters = inspect.signature(target.__init__ if initialised else target).parameters
    except (ValueError, TypeError):  # some builtins have none
        return {}
    return {name: p for name, p in parameters.items() if not (initialised and name == "self")}


def _required(target: Callable[..., Any]) -> list[str]:
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [n for n, p in _parameters(target).items() if p.default is p.empty and p.kind not in variable]


def _takes_anything(target: Callable[..., Any]) -> bool:
    return any(p.kind is p.VAR_KEYWORD for p in _parameters(target).values())


def _parse(parser: ArgumentParser, given: Mapping[str, Any], key: str, target: Callable[..., Any]) -> Namespace:
    try:
        parsed: Namespace = parser.parse_object(dict(given), defaults=False)
    except Exception as error:  # whatever a type of the user's raises; it is about the argument
        raise LearnerError(_message(str(error), given, key, target)) from error
    return parsed


def _message(text: str, given: Mapping[str, Any], key: str, target: Callable[..., Any]) -> str:
    """jsonargparse's message in one line."""
    match = re.match(
        r'Parser key "([^".]+)[^"]*"[^:]*:\s*(.*)|the following arguments (are required): (\w+)', text, re.DOTALL
    )
    if match is None or (match[1] or match[4]) not in given:
        return f"{key}: {' '.join(text.split())}"
    name, reason = match[1] or match[4], match[2] or match[3]  # null is as good as missing where it is required
    if reason.startswith(("Expected a <class", "Expected a typing", "Does not validate against any", "are required")):
        annotation = _parameters(target)[name].annotation if name in _parameters(target) else "another type"
        reason = f"it needs {annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)}"
    return f"{key}.{name} is {given[name]!r}: {' '.join(reason.split())}"


def _comes_back(parser: ArgumentParser, given: Mapping[str, Any], name: str, default: Any) -> bool:
    """Whether a config can say this default: not a function, nor a tuple where nothing says that it is one."""
    if not _plain(default):
        return False
    try:
        written = list(default) if isinstance(default, tuple) else default
        read = parser.parse_object({**given, name: written}, defaults=False)[name]
    except Exception:  # a default of another type than its annotation
        return False
    return type(read) is type(default) and bool(read == default)


def _plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(name, str | int) and _plain(item) for name, item in value.items())
    if isinstance(value, list | tuple):
        return all(map(_plain, value))
    return value is None or type(value) in (bool, int, float, str)
