"""Checks of numbers from users and files. True and False, which are integers in Python, are rejected."""

import math
import numbers
from typing import Any, TypeGuard

import numpy as np

from learner.errors import LearnerError


def is_int(value: Any) -> TypeGuard[int]:
    """Return True for an int that is not a boolean.

    >>> is_int(3), is_int(3.0), is_int(True)
    (True, False, False)
    """
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> TypeGuard[float]:
    """Return True for an int or a float that is not a boolean. It may be infinite or NaN."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_finite(value: Any) -> TypeGuard[float]:
    """Return True for an int or a float that is not a boolean, and finite.

    >>> is_finite(3), is_finite(float("nan")), is_finite("3")
    (True, False, False)
    """
    return is_number(value) and math.isfinite(value)


def plain_numbers(value: Any) -> Any:
    """Return a number of NumPy, or those in a list, as numbers of Python, and any other value unchanged. float64 is a
    kind of float already.

    >>> plain_numbers(np.int64(3)), plain_numbers(np.float32(0.5)), plain_numbers([np.int64(3), "3"])
    (3, 0.5, [3, '3'])
    """
    if isinstance(value, list):
        return list(map(plain_numbers, value))
    if isinstance(value, float):
        return value
    return value.item() if isinstance(value, np.number) else value


def check_int(name: str, value: Any, least: int, *, of: str = "", code: str | None = None) -> int:
    """Return `value`, which may be a NumPy integer, as an int. Raise a `LearnerError` with its name, and that of the
    class or function that it is an argument `of`, unless it is an integer of at least `least`.

    >>> check_int("batch_size", 32, least=1)
    32
    >>> check_int("batch_size", 0, least=1)
    Traceback (most recent call last):
    learner.errors.LearnerError: batch_size is 0: give a whole number, 1 or more
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        argument = f"{name} of {of}" if of else name
        raise LearnerError(
            f"{argument} is {value!r}: give a whole number, {least} or more",
            code=code or "data-number-value",
            name=name,
            value=value,
            least=least,
        )
    return int(value)
