"""Settings as flat tables for trackers, with the keys that `learner compare` shows."""

import json
from collections.abc import Mapping
from typing import Any

from learner.runs.flat_config import flat
from learner.util.json_values import decode, encode

Plain = str | float | int | bool


def plain_settings(settings: Mapping[str, Any]) -> dict[str, Plain]:
    """Flatten settings to dotted keys. Lists become JSON, and None is left out.

    >>> plain_settings({"lr": 0.1, "model": {"class_path": "Net", "init_args": {"sizes": [64, 10], "bias": None}}})
    {'lr': 0.1, 'model': 'Net', 'model.sizes': '[64, 10]'}
    """
    pairs = flat(encode(settings))
    return {
        key: json.dumps(value) if isinstance(value, list) else decode(value)
        for key, value in pairs.items()
        if value is not None
    }
