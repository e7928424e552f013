"""Configs as flat mappings, for comparison."""

import ast
import math
from collections.abc import Iterator, Mapping
from typing import Any

from learner.util.json_values import encode

DEEPEST = 100
"""Nested mappings and lists."""


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten a config to dotted keys. A class has its own key, with its arguments below it; lists of plain values stay
    lists.

    >>> flat({"seed": 0, "model": {"class_path": "models.MLP", "init_args": {"features": [64, 10]}}})
    {'seed': 0, 'model': 'models.MLP', 'model.features': [64, 10]}
    >>> flat({"metrics": [{"class_path": "Accuracy"}, "Perplexity"]})
    {'metrics.0': 'Accuracy', 'metrics.1': 'Perplexity'}

    NaN becomes a text, so that two configs with NaN are equal:

    >>> flat({"missing": float("nan")})
    {'missing': 'NaN'}
    """
    return dict(_pairs("", config))


def text_of(value: Any) -> str:
    """Format a value of a config on one line.

    >>> [text_of(value) for value in ("adam", 1e-3, None, [64, 10], True)]
    ['adam', '0.001', '-', '[64, 10]', 'true']
    >>> text_of({"class_path": "SGD", "init_args": {"momentum": 0.9, "nesterov": True}})
    'SGD(momentum=0.9, nesterov=true)'
    """
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping) and isinstance(path := value.get("class_path"), str):
        arguments = value.get("init_args")
        pairs = arguments.items() if isinstance(arguments, Mapping) else ()
        return f"{path}({', '.join(f'{name}={text_of(each)}' for name, each in pairs)})" if pairs else path
    return value if isinstance(value, str) else str(encode(value))


def optimizer_config(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of an optimizer in the form of a config.

    >>> optimizer_config({"name": "adamw", "settings": {"b1": "0.9", "mask": "None", "mu_dtype": "bfloat16"}})
    {'class_path': 'adamw', 'init_args': {'b1': 0.9, 'mask': None, 'mu_dtype': 'bfloat16'}}
    """
    arguments = {name: _evaluated(str(text)) for name, text in description["settings"].items()}
    return {"class_path": description.get("name"), "init_args": arguments}


def _evaluated(text: str) -> Any:
    """Return the number, text, bool or None that a `repr` shows; for anything else, the `repr`."""
    try:
        value = ast.literal_eval(text)
    except Exception:  # the journal may come from anywhere
        return text
    return value if value is None or isinstance(value, bool | int | float | str) else text


def _pairs(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and "class_path" in value:
        yield key, value["class_path"]
        value = value.get("init_args") or {}
        value = value if isinstance(value, Mapping) else {}
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _pairs(f"{key}.{name}" if key else str(name), inner)
    elif isinstance(value, list) and any(isinstance(item, Mapping | list) for item in value):
        for index, inner in enumerate(value):
            yield from _pairs(f"{key}.{index}", inner)
    else:
        yield key, _plain(value)


def _plain(value: Any) -> Any:
    """Return a value that JSON can represent and that equals itself. YAML also has dates, sets and bytes."""
    if isinstance(value, list):
        return list(map(_plain, value))
    if isinstance(value, float) and math.isnan(value):
        return encode(value)
    return value if value is None or isinstance(value, str | bool | int | float) else str(value)
