"""Precisions of records: the dtype of each array in a file, and checks for overflow.

| | full | half | double |
|---|---|---|---|
| floats | unchanged | float16 if wider than 16 bits | float64 |
| signed integers | unchanged | int16 if wider | int64 |
| signed integer scalars, unsigned integers, random keys | unchanged | unchanged | unchanged |
| booleans, complex numbers | unchanged | unchanged | unchanged |

A signed integer scalar is a counter, and unsigned integers are old-style random keys and nnx's counters: they are
stored at full width, since counters grow and keys need all bits.
"""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from learner.errors import LearnerError
from learner.records.stored import DTYPES, Stored

PRECISIONS = ("full", "half", "double")
_FLOATS: dict[str, np.dtype] = {"half": np.dtype(np.float16), "double": np.dtype(np.float64)}
_INTEGERS: dict[str, np.dtype] = {"half": np.dtype(np.int16), "double": np.dtype(np.int64)}


def file_dtype(stored: Stored, precision: str) -> np.dtype:
    """Return the dtype of an array in a file.

    >>> [file_dtype(Stored("int32", np.zeros(n, np.int32)), "half").name for n in ((2,), ())]
    ['int16', 'int32']
    """
    dtype = stored.data.dtype
    if stored.is_key or precision == "full":
        return dtype
    if jnp.issubdtype(dtype, jnp.floating):
        target = _FLOATS[precision]
    elif jnp.issubdtype(dtype, jnp.signedinteger) and stored.data.ndim:
        target = _INTEGERS[precision]
    else:
        return dtype
    more = target.itemsize - dtype.itemsize
    return target if (more > 0 if precision == "double" else more < 0) else dtype


def in_precision(stored: Stored, precision: str) -> Stored:
    """Return the array in its dtype in a file. `out_of_range` checks that its numbers fit."""
    dtype = file_dtype(stored, precision)
    return stored if dtype == stored.data.dtype else Stored(dtype.name, cast(stored.data, dtype))


def cast(data: np.ndarray, dtype: Any) -> np.ndarray:
    """Cast to another dtype without NumPy's warnings; infinities are kept. An array of that dtype is not copied."""
    with np.errstate(all="ignore"):
        return data.astype(dtype, copy=False)


def out_of_range(data: np.ndarray, dtype: Any) -> Any:
    """Return a number of the array that is too large for another dtype of its kind, or None if all fit. Infinities and
    NaN fit all floating-point dtypes that have them.

    >>> out_of_range(np.float32([1.0, -70000.0]), np.float16), out_of_range(np.float32([np.inf]), np.float16)
    (-70000.0, None)
    """
    if not data.size or data.dtype == dtype or not jnp.issubdtype(dtype, jnp.number):
        return None
    info: Any = jnp.finfo if jnp.issubdtype(dtype, jnp.inexact) else jnp.iinfo
    number: Any = float if info is jnp.finfo else int
    (least, most), (own_least, own_most) = (
        (number(info(kind).min), number(info(kind).max)) for kind in (dtype, data.dtype)
    )
    if own_least >= least and own_most <= most:
        return None
    if jnp.issubdtype(data.dtype, jnp.complexfloating):
        data = np.stack([data.real, data.imag])
    low, high = number(data.min()), number(data.max())
    if not (math.isfinite(low) and math.isfinite(high)):
        data = data[np.isfinite(data)]
        if not data.size:
            return None
        low, high = number(data.min()), number(data.max())
    return high if high > most else low if low < least else None


def refuse_overflow(arrays: dict[str, Stored], precision: str, instead: str) -> None:
    """Raise one error that names every array with a number outside the range of the precision.

    Args:
      arrays: the arrays of the model, by path.
      precision: one of `PRECISIONS`.
      instead: the recorder to recommend.
    """
    rows = []
    for path, stored in arrays.items():
        dtype = file_dtype(stored, precision)
        number = out_of_range(stored.data, dtype)
        if number is not None:
            limit = np.finfo(dtype).max if dtype.kind == "f" else np.iinfo(dtype).max
            rows.append(f"{path} has {number:.6g}, and {dtype.name} ends at {float(limit):g}")
    if rows:
        raise LearnerError(
            f"{precision} precision cannot hold this model:\n  " + "\n  ".join(rows) + f"\nUse {instead}",
            code="record-precision-too-low",
            precision=precision,
        )


def cast_problem(stored: Stored, dtype: Any) -> str | None:
    """Return the reason why an array of a file cannot be cast to the dtype of a model, or None if it can. Floats become
    floats, and integers become integers if their numbers fit; no other conversion is allowed.
    """
    kinds = (jnp.floating, jnp.integer, jnp.bool_, jnp.complexfloating)
    have, need = ([jnp.issubdtype(d, kind) for kind in kinds] for d in (DTYPES[stored.dtype], dtype))
    if have != need:
        return "another kind of number"
    number = out_of_range(stored.data, dtype)
    return None if number is None else f"it has {number:.6g}, which {np.dtype(dtype).name} cannot hold"
