"""The parameters of a run's model, read from `model.json`."""

import dataclasses
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from learner.runs.journal import LARGEST
from learner.util.disk import read_bytes

FILE = "model.json"
LONGEST = 32 << 20
"""The largest size in bytes of a file that is read: some 200,000 arrays."""
BITS = re.compile(r"(?:b?float|u?int|complex)(\d{1,3})")
ROOT_LABEL = "(all of it)"


@dataclasses.dataclass(frozen=True)
class Array:
    """An array of a model.

    Attributes:
      path: the names joined by `/`; empty if the model is a single array.
      shape: the shape.
      dtype: the name of the dtype.
      kind: `params`, or the name of another collection, such as `batch_stats`.
      trainable: True if the optimizer updates it.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    kind: str = "params"
    trainable: bool = True

    @property
    def count(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """The size in bytes; 0 for an unknown dtype.

        >>> [Array("w", (3, 2), dtype).bytes for dtype in ("float32", "bfloat16", "bool", "float8_e4m3fn")]
        [24, 12, 6, 6]
        """
        bits = BITS.match(self.dtype)
        each = -(-int(bits[1]) // 8) if bits else int(self.dtype == "bool")
        return self.count * each

    @property
    def part(self) -> str:
        """The first name of the path."""
        return self.path.partition(".")[0] or ROOT_LABEL


def read_parameters(directory: Path) -> tuple[Array, ...]:
    """Return the arrays of a run's model, or none if the untrusted `model.json` is missing or invalid."""
    path = directory / FILE
    try:
        content = None if path.is_symlink() else json.loads(read_bytes(path, LONGEST))
    except (OSError, ValueError, RecursionError):
        return ()
    entries = content.get("arrays") if isinstance(content, dict) else None
    arrays = [_array(entry) for entry in entries] if isinstance(entries, list) else []
    return tuple(array for array in arrays if array is not None)


def by_part(arrays: Sequence[Array]) -> dict[str, list[Array]]:
    """Group arrays by the first name of their paths, in order.

    >>> {part: len(group) for part, group in by_part([Array("a.w", (2,), "int8"), Array("a.b", (1,), "int8")]).items()}
    {'a': 2}
    """
    parts: dict[str, list[Array]] = {}
    for array in arrays:
        parts.setdefault(array.part, []).append(array)
    return parts


def _array(entry: Any) -> Array | None:
    if not isinstance(entry, Mapping):
        return None
    path, shape, dtype, kind = (entry.get(key) for key in ("path", "shape", "dtype", "kind"))
    if not isinstance(path, str) or not isinstance(shape, list) or not isinstance(dtype, str):
        return None
    if len(shape) > 64 or not all(isinstance(length, int) and 0 <= length < LARGEST for length in shape):
        return None
    kind = kind if isinstance(kind, str) else "params"
    array = Array(path, tuple(map(int, shape)), dtype, kind, entry.get("trainable") is not False)
    return array if array.count < LARGEST else None
