"""Traced programs."""

from typing import Any


def inner_jaxprs(value: Any) -> list[Any]:
    """Return the programs in a parameter of an equation of a traced program."""
    if isinstance(value, tuple | list):
        return [jaxpr for item in value for jaxpr in inner_jaxprs(item)]
    if hasattr(value, "eqns"):
        return [value]
    return [value.jaxpr] if hasattr(value, "jaxpr") and hasattr(value.jaxpr, "eqns") else []
