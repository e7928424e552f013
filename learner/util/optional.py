"""Values of optional libraries."""

import sys
from typing import Any


def is_instance_of(value: Any, module: str, name: str) -> bool:
    """Return True if a value is of a class of an optional library, which is never imported to find out."""
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(value, getattr(loaded, name))
