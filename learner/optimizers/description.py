"""Descriptions of optimizers: the name, and every setting with its value."""

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from learner.schedules.base import Schedule
from learner.util.text import name_of

PLAIN = (bool, int, float, str, type(None), re.Pattern)


def describe_optimizer(optimizer: Any) -> dict[str, Any]:
    """Return the name of an optimizer and its settings as texts, including defaults. Settings inside a lambda are
    unknown.

    >>> import optax
    >>> described = describe_optimizer(functools.partial(optax.sgd, momentum=0.9))
    >>> described["name"], described["settings"]["momentum"], described["settings"]["nesterov"]
    ('sgd', '0.9', 'False')
    """
    function, given = _function_and_settings(optimizer)
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        parameters = ()  # type: ignore[assignment]
    defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
    settings = {name: _text(value) for name, value in {**defaults, **given}.items()}
    return {"name": name_of(function), "settings": settings}


def optimizer_text(optimizer: Callable[..., Any]) -> str:
    """Return the name of an optimizer, with its fixed arguments.

    >>> import optax
    >>> optimizer_text(optax.sgd), optimizer_text(functools.partial(optax.adamw, weight_decay=0.1))
    ('sgd', 'adamw(weight_decay=0.1)')
    """
    fixed = getattr(optimizer, "keywords", {})
    plain = [f"{key}={value!r}" for key, value in fixed.items() if isinstance(value, str | int | float | bool)]
    return name_of(optimizer) + (f"({', '.join(plain)})" if plain else "")


def optimizer_change(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Return the difference between two descriptions, as `adam(b1=0.9) -> adam(b1=0.5)`, or None if they are equal.

    >>> import optax
    >>> optimizer_change(describe_optimizer(optax.adam), describe_optimizer(functools.partial(optax.adam, b1=0.5)))
    'adam(b1=0.9) -> adam(b1=0.5)'
    """
    names, settings = [x.get("name") for x in (before, now)], [_settings(x) for x in (before, now)]
    # A setting in only one of them comes from another version of the function.
    changed = [key for key in settings[0] if key in settings[1] and settings[0][key] != settings[1][key]]
    if names[0] != names[1]:
        return f"{names[0]} -> {names[1]}"
    if not changed:
        return None
    texts = [", ".join(f"{key}={x[key]}" for key in changed if key in x) for x in settings]
    return f"{names[0]}({texts[0]}) -> {names[1]}({texts[1]})"


def _settings(description: Mapping[str, Any]) -> Mapping[str, Any]:
    settings = description.get("settings")
    return settings if isinstance(settings, Mapping) else {}


def _function_and_settings(optimizer: Any) -> tuple[Any, dict[str, Any]]:
    if isinstance(optimizer, functools.partial):
        function, inner = _function_and_settings(optimizer.func)
        return function, {**inner, **optimizer.keywords}
    if dataclasses.is_dataclass(optimizer) and not isinstance(optimizer, type):
        fields = {field.name: getattr(optimizer, field.name) for field in dataclasses.fields(optimizer)}
        return getattr(optimizer, "function", type(optimizer)), fields  # `function`: of a class made for configs
    return optimizer, {}


def _text(value: Any) -> str:
    if isinstance(value, PLAIN):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, Schedule):
        return "schedule"  # the schedules of a run are described separately
    function, settings = _function_and_settings(value)
    if not callable(function):
        return type(value).__name__
    inside = ", ".join(f"{name}={_text(x)}" for name, x in settings.items())
    return name_of(function) + (f"({inside})" if inside else "")
