"""Conversion of values to and from JSON, including numbers that are not finite."""

import math
import os
from collections.abc import Mapping
from typing import Any

WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def encode(value: Any) -> Any:
    """Return a value that JSON can represent: non-finite numbers and paths become strings, NumPy numbers become Python
    numbers.

    >>> from pathlib import Path
    >>> encode({"loss": [0.5, float("inf")], "at": Path("a/b")})
    {'loss': [0.5, 'Infinity'], 'at': 'a/b'}
    """
    # The common types first, as a history may have millions of values: the test for a mapping is slow.
    if value is None or isinstance(value, (str, bool, int)) or (type(value) is float and math.isfinite(value)):
        return value
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    number = value.item() if hasattr(value, "item") else value
    if not isinstance(number, float) or math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def decode(value: Any) -> Any:
    """Return the number of an encoded non-finite value, and other values unchanged."""
    return WORDS.get(value, value) if isinstance(value, str) else value
