"""Arguments that take one value or several."""

import os
from collections.abc import Iterable
from typing import Any


def as_several(values: Any) -> Iterable[Any]:
    """Return an iterable unchanged, nothing for None, and any other value, such as a single text or path, in a tuple.

    >>> as_several("runs/a"), as_several(["runs/a", "runs/b"]), as_several(None)
    (('runs/a',), ['runs/a', 'runs/b'], ())
    """
    if values is None:
        return ()
    is_one = isinstance(values, str | os.PathLike) or not isinstance(values, Iterable)
    return (values,) if is_one else values
