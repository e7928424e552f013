"""Nested settings as one flat table."""

import json
from collections.abc import Mapping
from typing import Any

from learner.util.json_values import encode

Plain = str | float | int | bool


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Plain]:
    """Flatten settings to dotted names. Lists of plain values stay on one line, and None is left out.

    >>> flat({"lr": 0.1, "model": {"class_path": "Net", "init_args": {"sizes": [64, 10], "bias": None}}})
    {'lr': 0.1, 'model.class_path': 'Net', 'model.init_args.sizes': '[64, 10]'}
    """
    pairs: dict[str, Plain] = {}
    for key, value in settings.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            pairs |= flat(value, f"{name}.")
        elif isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
            pairs |= flat({str(number): item for number, item in enumerate(value)}, f"{name}.")
        elif isinstance(value, list | tuple):
            pairs[name] = json.dumps(encode(value), default=str)
        elif value is not None:
            pairs[name] = value if isinstance(value, str | bool | int | float) else str(value)
    return pairs
