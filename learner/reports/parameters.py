"""The parameters of a run's model, read from `model.json`."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from learner.events import ArrayInfo
from learner.runs.journal import LARGEST
from learner.util.disk import read_bytes

FILE = "model.json"
LONGEST = 32 << 20
"""The largest size in bytes of a file that is read: some 200,000 arrays."""
BITS = re.compile(r"(?:b?float|u?int|complex)(\d{1,3})")
ROOT_LABEL = "(all of it)"


def read_parameters(directory: Path) -> tuple[ArrayInfo, ...]:
    """Return the arrays of a run's model, or none if the untrusted `model.json` is missing or invalid."""
    path = directory / FILE
    try:
        content = None if path.is_symlink() else json.loads(read_bytes(path, LONGEST))
    except (OSError, ValueError, RecursionError):
        return ()
    entries = content.get("arrays") if isinstance(content, dict) else None
    arrays = [_array(entry) for entry in entries] if isinstance(entries, list) else []
    return tuple(array for array in arrays if array is not None)


def by_part(arrays: Sequence[ArrayInfo]) -> dict[str, list[ArrayInfo]]:
    """Group arrays by the first name of their paths, in order."""
    parts: dict[str, list[ArrayInfo]] = {}
    for array in arrays:
        parts.setdefault(array.path.partition(".")[0] or ROOT_LABEL, []).append(array)
    return parts


def _array(entry: Any) -> ArrayInfo | None:
    if not isinstance(entry, Mapping):
        return None
    path, shape, dtype, kind = (entry.get(key) for key in ("path", "shape", "dtype", "kind"))
    if not isinstance(path, str) or not isinstance(shape, list) or not isinstance(dtype, str):
        return None
    if len(shape) > 64 or not all(isinstance(length, int) and 0 <= length < LARGEST for length in shape):
        return None
    kind, count = kind if isinstance(kind, str) else "params", math.prod(shape)
    size = count * _item_size(dtype)
    array = ArrayInfo(path, tuple(map(int, shape)), dtype, kind, entry.get("trainable") is not False, size)
    return array if count < LARGEST else None


def _item_size(dtype: str) -> int:
    """Return the size in bytes of an element; 0 for an unknown dtype.

    >>> [_item_size(dtype) for dtype in ("float32", "bfloat16", "bool", "float8_e4m3fn")]
    [4, 2, 1, 1]
    """
    bits = BITS.match(dtype)
    return -(-int(bits[1]) // 8) if bits else int(dtype == "bool")
