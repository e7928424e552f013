"""Numbers that change, or become equal, as JAX computes with 32 bits."""

from typing import Any

import jax
import numpy as np

from learner.data.batch_arrays import field_text
from learner.util.trees import named_leaves

AT_ONCE = 2**20  # numbers looked at in one operation
ROWS = 1_000  # the first rows, whose values are compared
COLUMNS = 8  # columns of a field whose values are compared
FEWEST = 10  # different values, of which half must remain
NARROW = 2.0**-13  # float32 cannot make most of 1,000 values equal that spread over a larger part of their size
NOISE = 2.0**-43  # relative differences up to this one are errors of float64


def rounding_warnings(arrays: Any, split: str) -> dict[str, str]:
    """Return, by field, a warning about numbers that JAX rounds as it computes with 32 bits, so that different ones may
    become equal: ids, times, coordinates.

    Args:
      arrays: a batch, or all rows of the data: NumPy arrays `[rows, ...]`.
      split: the name of the split.

    >>> rounding_warnings({"id": np.array([16777217.0, 1.5])}, "train")["id"].partition(":")[0]
    "'id' of a train batch holds 16777217 (float64), which is 16777216 as float32"
    """
    warnings = {}
    for name, array in named_leaves(arrays).items():
        if not array.size or array.dtype != np.float64 or jax.dtypes.canonicalize_dtype(array.dtype) != np.float32:
            continue
        field = f"{field_text(name)} of a {split} batch"
        if (whole := _first_rounded(array)) is not None:
            warnings[name] = (
                f"{field} holds {whole:.0f} (float64), which is {np.float32(whole):.0f} as float32: give ids as "
                "integers, in a separate field, and subtract the first time from times. Ignore this warning for "
                "measurements"
            )
        elif (equal := equal_as_float32(array)) is not None:
            warnings[name] = (
                f"{field} has values that float32 cannot tell apart, such as {equal[0]!r} and {equal[1]!r}: of its "
                "first rows, fewer than half remain different. Subtract the first time from times, and the mean from "
                "coordinates. Ignore this warning if such differences do not matter"
            )
    return warnings


def equal_as_float32(array: np.ndarray) -> tuple[float, float] | None:
    """Return two values of a column, which are different as float64 and equal as float32, if less than half of the
    values in its first rows remain different; otherwise None.

    >>> equal_as_float32(1.7e9 + np.arange(100) / 4)
    (1700000000.0, 1700000000.25)
    >>> equal_as_float32(np.arange(100) / 4) is None
    True
    """
    first = array[: min(ROWS, _rows_at_once(array))]
    columns = first.reshape(len(first), -1)
    with np.errstate(invalid="ignore", over="ignore"):
        low, high = np.fmin.reduce(columns), np.fmax.reduce(columns)  # without NaN
        size = np.maximum(np.abs(low), np.abs(high))
        for number in np.flatnonzero((low < high) & (high - low < NARROW * size))[:COLUMNS]:
            values = np.unique(columns[:, number][~np.isnan(columns[:, number])])
            values = values[np.diff(values, prepend=-np.inf) > NOISE * size[number]]
            narrow = values.astype(np.float32)
            if len(values) >= FEWEST and 2 * len(np.unique(narrow)) < len(values):
                place = int(np.argmax(narrow[1:] == narrow[:-1]))
                return float(values[place]), float(values[place + 1])
    return None


def _first_rounded(array: np.ndarray) -> np.float64 | None:
    """Return the first whole number that float32 changes. Beyond 2**53 each float64 is a whole number, and it may well
    be a measurement.
    """
    rows = _rows_at_once(array)
    for start in range(0, len(array), rows):
        part = array[start : start + rows]
        if not max(-np.fmin.reduce(part, axis=None), np.fmax.reduce(part, axis=None)) > 2**24:
            continue  # the usual case, without temporary arrays
        whole = part[(np.abs(part) > 2**24) & (np.abs(part) < 2**53) & (part == np.rint(part))]
        rounded = whole[whole.astype(np.float32) != whole]
        if rounded.size:
            return np.float64(rounded[0])
    return None


def _rows_at_once(array: np.ndarray) -> int:
    return max(1, AT_ONCE * len(array) // array.size)
