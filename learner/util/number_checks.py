"""Checks of numbers from users and from files. Python counts True and False as integers, which is never meant."""

import math
from typing import Any, TypeGuard


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
