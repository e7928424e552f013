"""The signatures of the user's functions."""

import inspect
from typing import Any


def positional_count(fn: Any, optional: str) -> int:
    """Return the number of arguments that a function takes by position: those without a default, and the one of the
    name `optional`. Return 0 if it has no signature, or is no function.

    >>> positional_count(lambda batch, rng, step=0, scale=1.0: batch, "step")
    3
    """
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return 0
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in kinds and (p.default is p.empty or p.name == optional) for p in parameters)


def accepts(fn: Any, *arguments: Any) -> bool:
    """Return True if a function can be called with these arguments by position, or has no signature.

    >>> accepts(lambda path, array: True, "", None), accepts(lambda path: True, "", None)
    (True, False)
    """
    try:
        inspect.signature(fn).bind(*arguments)
    except TypeError:
        return False
    except ValueError:  # some builtins have no signature
        return True
    return True
