"""The first of many named arrays that differs between two sides, compared bit by bit."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from learner.util.trees import is_key, named_leaves

PyTree = Any
Arrays = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class ArrayDifference:
    """The difference between two arrays of one path.

    Attributes:
      path: the path of the arrays, such as `params/layers.0.kernel`.
      kinds: the dtype and shape of both, such as `float32[3, 1]`; None for a side without the array.
      differing: the number of values whose bits differ; 0 if dtypes or shapes differ.
      size: the number of values.
      ulps: the largest distance in units in the last place; None if the values are not floats of 16 bits or more, or
        NaN.
      largest: the largest absolute difference; None if no pair of values has one.
      index: the index of the largest difference, or of the first value that differs.
      values: both values at `index`.
      further: the number of further arrays of the same part (`params`, `batch`, ...) that differ.
    """

    path: str
    kinds: tuple[str | None, str | None]
    differing: int = 0
    size: int = 0
    ulps: int | None = None
    largest: float | None = None
    index: tuple[int, ...] | None = None
    values: tuple[Any, Any] | None = None
    further: int = 0

    def lines(self) -> list[str]:
        """Return the difference as text."""
        rest = [f"{self.further} more of {_part(self.path)}"] if self.further else []
        if self.values is None:
            a, b = (kind or "not there" for kind in self.kinds)
            return [f"{self.path} is {a} in the first run, {b} in the second", *rest]
        text = f"{self.path} differs in {self.differing} of {self.size} values"
        if self.largest is not None:
            text += f", by at most {self.largest:.6g}"
        if self.ulps is not None:
            text += f" and {self.ulps:,} ulp{'' if self.ulps == 1 else 's'}"
        a, b = map(_shown, self.values)
        return [text, f"at {list(self.index or ())}: {a} and {b}", *rest]


def named_arrays(part: str, tree: PyTree) -> Arrays:
    """Return the leaves of a tree on the host, by paths that start with the name of the part. Random keys become their
    numbers.

    >>> list(named_arrays("params", {"b": np.zeros(1), "a": {"w": np.zeros(2)}}))
    ['params/a.w', 'params/b']
    >>> list(named_arrays("lr_scale", np.float32(1)))
    ['lr_scale']
    """
    leaves = {f"{part}/{name}" if name else part: x for name, x in named_leaves(tree).items()}
    numbers = {name: jax.random.key_data(x) if hasattr(x, "dtype") and is_key(x) else x for name, x in leaves.items()}
    return {name: np.asarray(x) for name, x in jax.device_get(numbers).items()}


def first_difference(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> ArrayDifference | None:
    """Return the difference of the first array, in the order of `a`, whose dtype, shape or bits differ from the array
    at the same path in `b`. Return None if all are equal.

    >>> x, y = {"w": np.float32([1, 2])}, {"w": np.nextafter(np.float32([1, 2]), np.float32([1, 3]))}
    >>> first_difference(x, x), first_difference(x, y).index, first_difference(x, y).ulps
    (None, (1,), 1)
    """
    paths = [path for path in dict.fromkeys([*a, *b]) if not _is_same(a.get(path), b.get(path))]
    if not paths:
        return None
    path = paths[0]
    further = sum(_part(other) == _part(path) for other in paths[1:])
    return dataclasses.replace(_difference(path, a.get(path), b.get(path)), further=further)


def _is_same(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    return a is not None and b is not None and _kind(a) == _kind(b) and a.tobytes() == b.tobytes()


def _difference(path: str, a: np.ndarray | None, b: np.ndarray | None) -> ArrayDifference:
    kinds = _kind(a), _kind(b)
    if a is None or b is None or kinds[0] != kinds[1]:
        return ArrayDifference(path, kinds)
    places = np.unique(np.flatnonzero(_bytes(a) != _bytes(b)) // a.dtype.itemsize)
    first, second = a.reshape(-1)[places], b.reshape(-1)[places]
    with np.errstate(invalid="ignore", over="ignore"):
        wide = np.complex128 if jnp.issubdtype(a.dtype, jnp.complexfloating) else np.float64
        distances = np.abs(first.astype(wide) - second.astype(wide))
    comparable = ~np.isnan(distances)
    largest = int(np.argmax(np.where(comparable, distances, -1)))
    place = int(places[largest if comparable.any() else 0])
    index = tuple(int(i) for i in np.unravel_index(place, a.shape))
    return ArrayDifference(
        path,
        kinds,
        differing=len(places),
        size=a.size,
        ulps=_largest_ulps(first[comparable], second[comparable]),
        largest=float(distances[largest]) if comparable.any() else None,
        index=index,
        values=(a[index].item(), b[index].item()),
    )


def _largest_ulps(a: np.ndarray, b: np.ndarray) -> int | None:
    """Return the largest number of steps between neighbouring floats from one value to the other."""
    size = a.dtype.itemsize
    if not (len(a) and jnp.issubdtype(a.dtype, jnp.floating) and size >= 2):
        return None
    sign = np.uint64(1 << (8 * size - 1))
    bits = [x.view(f"u{size}").astype(np.uint64) for x in (a, b)]
    magnitudes = [x & ~sign for x in bits]
    difference = np.maximum(*magnitudes) - np.minimum(*magnitudes)
    # Between two signs, the path leads through zero, which has two bit patterns.
    across = (bits[0] ^ bits[1]) & sign != 0
    return int(np.where(across, magnitudes[0] + magnitudes[1], difference).max())


def _bytes(x: np.ndarray) -> np.ndarray:
    return np.frombuffer(x.tobytes(), np.uint8)


def _kind(x: np.ndarray | None) -> str | None:
    return None if x is None else f"{x.dtype}{list(x.shape)}"


def _part(path: str) -> str:
    return path.partition("/")[0]


def _shown(value: Any) -> str:
    return f"{value:.9g}" if isinstance(value, float) else str(value)
