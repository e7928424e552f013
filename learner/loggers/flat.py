"""Nested settings as one flat table, for those who show them so."""

import json
from collections.abc import Mapping
from typing import Any

from learner.util.json_values import encode

Plain = str | float | int | bool


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Plain]:
    """Settings by dotted name. Lists of plain things stay on one line, and what is `None` is left out.

    >>> flat({"lr": 0.1, "model": {"class_path": "Net", "init_args": {"sizes": [64, 10], "bias": None}}})
    {'lr': 0.1, 'model.class_path': 'Net', 'model.init_args.sizes': '[64, 10]'}
    """
    found: dict[str, Plain] = {}
    for key, value in settings.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found |= flat(value, f"{name}.")
        elif isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
            found |= flat({str(number): item for number, item in enumerate(value)}, f"{name}.")
        elif isinstance(value, list | tuple):
            found[name] = json.dumps(encode(value), default=str)
        elif value is not None:
            found[name] = value if isinstance(value, str | bool | int | float) else str(value)
    return found
