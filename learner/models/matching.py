"""Selection of parameters by path: regular expressions and predicates."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from learner.errors import LearnerError, near_path
from learner.util.signatures import accepts
from learner.util.text import name_of

Pattern = str | re.Pattern[str]
Match = Pattern | Sequence[Pattern] | Callable[[str, Any], bool]
"""Which parameters: a regular expression that is searched for in their paths (`conv1`, `^head`, `bias$`), as a text or
compiled, several of which one has to match, or a predicate `(path, array) -> bool`."""


def patterns_of(match: Any) -> list[Pattern]:
    """Return the regular expressions of an argument, one or several, or an empty list if it is anything else."""
    if isinstance(match, str | re.Pattern):
        return [match]
    return list(match) if isinstance(match, Iterable) and not isinstance(match, type) else []


def check_predicate(predicate: Callable[..., Any]) -> None:
    """Raise `LearnerError` if a predicate cannot be called with a path and an array."""
    if not accepts(predicate, "", None):
        raise LearnerError(
            f"the predicate {name_of(predicate)} cannot be called with (path, array), as it has to be",
            code="params-predicate-signature",
        )


def matcher(match: Match) -> Callable[[str, Any], bool]:
    """Return a predicate of paths and arrays.

    Raises:
      LearnerError: the argument is none of the three, or not a valid regular expression.

    >>> matcher(["^head", "bias$"])("conv1.bias", None)
    True
    """
    if callable(match) and not isinstance(match, type):
        check_predicate(match)
        return match
    patterns = patterns_of(match)
    if not patterns or not all(map(_is_pattern, patterns)):
        raise LearnerError(
            f"{match!r} chooses no parameters: give a regular expression for their paths, a list of such, or a "
            "predicate (path, array) -> bool",
            code="params-match-type",
        )
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise LearnerError(
                f"{pattern!r} is not a regular expression: {error}", code="params-pattern-malformed", pattern=pattern
            ) from error
    return lambda path, _: any(re.search(pattern, path) for pattern in patterns)


def _is_pattern(pattern: Any) -> bool:
    text = pattern.pattern if isinstance(pattern, re.Pattern) else pattern
    return isinstance(text, str) and bool(text)


def match_text(match: Match) -> str:
    """Return the text of a `Match` for error messages.

    >>> match_text("^head"), match_text(re.compile("bias$"))
    ("'^head'", "'bias$'")
    """
    patterns = [] if callable(match) else patterns_of(match)
    texts = [pattern if isinstance(pattern, str) else pattern.pattern for pattern in patterns]
    return ", ".join(map(repr, texts)) or name_of(match)


def matching_paths(match: Match, leaves: Mapping[str, Any], what: str) -> list[str]:
    """Return the paths of the leaves that match.

    Args:
      match: see `Match`. Each of several patterns must match something.
      leaves: the leaves by path.
      what: the caller, for the message.

    Raises:
      LearnerError: nothing matches.

    >>> matching_paths("bias", {"out.kernel": 1, "out.bias": 2}, "a group")
    ['out.bias']
    """
    matches = matcher(match)
    for pattern in [] if callable(match) else patterns_of(match):
        if not any(re.search(pattern, path) for path in leaves):
            text = pattern.pattern if isinstance(pattern, re.Pattern) else pattern
            raise LearnerError(
                f"{what} {text!r} matches no parameter: {near_path(text, list(leaves))}",
                code="params-pattern-unmatched",
            )
    paths = [path for path, leaf in leaves.items() if matches(path, leaf)]
    if not paths:
        some = ", ".join(list(leaves)[:8]) + (" and others" if len(leaves) > 8 else "")
        raise LearnerError(f"{what} {match_text(match)} chooses no parameter of {some}", code="params-match-empty")
    return paths
