"""Numbers of items: checks, and the arithmetic of views, shared by all kinds of datasets."""

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from learner.errors import LearnerError
from learner.util.number_checks import check_int

Rows = np.ndarray


def item_number(index: Any, length: int, name: str) -> int:
    """Return `index` counted from the start; negative ones count from the end.

    Raises:
      IndexError: `index` is out of range.
      TypeError: `index` is not a whole number.

    >>> item_number(-1, 5, "Squares")
    4
    >>> item_number(5, 5, "Squares")
    Traceback (most recent call last):
    IndexError: item 5 of Squares, which has 5: give 0 to 4, or -5 to -1
    """
    if isinstance(index, slice):
        raise TypeError(f"{name} takes the number of one item; its method slice(start, stop, step) selects several")
    try:
        number = operator.index(index)
    except TypeError as error:
        raise TypeError(
            f"{name} takes the number of one item, not {_short(index)}; its method select(rows) selects several"
        ) from error
    if not -length <= number < length:
        raise IndexError(f"item {number} of {name}, which has {length}: give 0 to {length - 1}, or -{length} to -1")
    return number + length if number < 0 else number


def select_indices(rows: Any, length: int) -> Rows:
    """Return row numbers from integers (negative ones count from the end), or from a mask with one value per row.

    >>> select_indices([0, -1], 5).tolist(), select_indices([False, True, True], 3).tolist()
    ([0, 4], [1, 2])
    """
    try:
        found = np.asarray(rows)
    except ValueError:
        found = np.array(None)
    if found.dtype == bool and found.shape == (length,):
        found = np.flatnonzero(found)
    if found.ndim != 1 or not (found.dtype.kind in "iu" or found.size == 0):
        raise LearnerError(
            f"select got {_short(rows)}: give the indices of items, or {length} booleans, one for each item",
            code="data-select-type",
            length=length,
        )
    if not found.size:
        raise LearnerError("select got no rows: a view needs at least one item", code="data-view-empty")
    outside = found[(found < -length) | (found >= length)]
    if outside.size:
        raise LearnerError(
            f"select got row {outside[0]} ({outside.size} are outside): there are {length} items",
            code="data-row-outside",
            length=length,
        )
    found = found.astype(np.intp)
    return np.where(found < 0, found + length, found)


def slice_indices(start: int | None, stop: int | None, step: int, length: int) -> slice:
    """Return a slice without open ends. As in Python, negative numbers count from the end.

    >>> slice_indices(-3, None, 2, length=10)
    slice(7, 10, 2)
    """
    for name, value in (("start", start), ("stop", stop)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | np.integer)):
            raise LearnerError(
                f"slice got {name}={value!r}: give a whole number", code="data-slice-value", name=name, value=value
            )
    found = range(length)[slice(start, stop, check_int("the step of slice", step, least=1))]
    if not found:
        raise LearnerError(
            f"slice({start}, {stop}, {step}) of {length} items has none: a view needs at least one",
            code="data-view-empty",
            start=start,
            stop=stop,
            step=step,
            length=length,
        )
    return slice(found.start, found.stop, found.step)


def shuffle_indices(length: int, seed: int) -> Rows:
    """Return a permutation by NumPy's Philox.

    >>> sorted(shuffle_indices(4, seed=0).tolist())
    [0, 1, 2, 3]
    """
    return _generator("shuffle", seed).permutation(length)


def split_indices(length: int, fractions: Any, seed: int | None) -> list[Rows]:
    """Return the rows of each part, in ascending order. Parts end at the rounded sums of the fractions.

    >>> [rows.tolist() for rows in split_indices(5, [0.6, 0.4], seed=None)]
    [[0, 1, 2], [3, 4]]
    """
    shares = _fractions(fractions)
    ends = [round(length * math.fsum(shares[: number + 1])) for number in range(len(shares))]
    sizes = np.diff([0, *ends[:-1], length])
    if (sizes < 1).any():
        raise LearnerError(
            f"split of {length} items in {list(shares)} leaves part {int(np.argmin(sizes))} without any: the parts "
            f"would have {sizes.tolist()}",
            code="data-split-part-empty",
            length=length,
        )
    return _cut(length, sizes, "split", seed)


def fold_indices(length: int, k: int, seed: int | None) -> list[tuple[Rows, Rows]]:
    """Return the rows for training and for validation, `k` times: every row is in one validation.

    >>> [valid.tolist() for _, valid in fold_indices(5, 2, seed=None)]
    [[0, 1, 2], [3, 4]]
    """
    k = check_int("k of k_fold", k, least=2)
    if k > length:
        raise LearnerError(
            f"k_fold makes {k} parts, but there are {length} items: give {length} or less",
            code="data-folds-too-many",
            k=k,
            length=length,
        )
    valid = _cut(length, [length // k + (number < length % k) for number in range(k)], "k_fold", seed)
    return [(np.setdiff1d(np.arange(length), rows, assume_unique=True), rows) for rows in valid]


def sample_indices(length: int, size: int | None, replacement: bool, weights: Any, seed: int) -> Rows:
    """Draw rows at random, with weights that need not add up to 1.

    >>> sample_indices(3, 2, replacement=True, weights=[0, 0, 2], seed=0).tolist()
    [2, 2]
    """
    size = length if size is None else check_int("the size of sample", size, least=1)
    if not isinstance(replacement, bool):
        raise LearnerError(f"replacement is {replacement!r}: give True or False", code="data-replacement-type")
    share = None if weights is None else _weights(weights, length)
    there = length if share is None else int(np.count_nonzero(share))
    if not replacement and size > there:
        which = "items" if share is None else "items with a weight above 0"
        raise LearnerError(
            f"sample of {size} from {there} {which}: give fewer, or replacement=True",
            code="data-sample-too-large",
            size=size,
        )
    return _generator("sample", seed).choice(length, size, replacement, share)


def window_starts(length: int, size: int, stride: int | None) -> tuple[int, int, int]:
    """Return the size, the stride and the number of windows.

    >>> window_starts(10, size=4, stride=3)
    (4, 3, 3)
    """
    size = check_int("the size of windows", size, least=1)
    stride = size if stride is None else check_int("the stride of windows", stride, least=1)
    if size > length:
        raise LearnerError(
            f"windows of {size} items, and there are {length}: give a size of {length} or less",
            code="data-windows-too-large",
            size=size,
            length=length,
        )
    return size, stride, (length - size) // stride + 1


def _cut(length: int, sizes: Sequence[int] | np.ndarray, name: str, seed: int | None) -> list[Rows]:
    order = np.arange(length) if seed is None else _generator(name, seed).permutation(length)
    return [np.sort(rows) for rows in np.split(order, np.cumsum(sizes)[:-1])]


def _generator(name: str, seed: int) -> np.random.Generator:
    entropy = np.random.SeedSequence(check_int(f"the seed of {name}", seed, least=0))
    return np.random.Generator(np.random.Philox(entropy))


def _fractions(fractions: Any) -> tuple[float, ...]:
    needed = "give numbers above 0 that add up to 1, such as [0.8, 0.2]"
    try:
        shares = tuple(float(fraction) for fraction in fractions)
    except (TypeError, ValueError):
        raise LearnerError(f"the fractions of split are {fractions!r}: {needed}", code="data-fractions-value") from None
    if not shares or not all(share > 0 for share in shares):
        raise LearnerError(f"the fractions of split are {list(shares)}: {needed}", code="data-fractions-value")
    total = math.fsum(shares)
    if abs(total - 1) > 1e-6:
        raise LearnerError(
            f"the fractions of split are {list(shares)}, which add up to {total:g}: {needed}",
            code="data-fractions-sum",
            total=total,
        )
    return shares


def _weights(weights: Any, length: int) -> np.ndarray:
    try:
        found = np.asarray(weights, np.float64)
    except (TypeError, ValueError):
        found = np.array(None)
    if found.shape != (length,):
        raise LearnerError(
            f"the weights of sample are {_short(weights)}: give {length} numbers, one for each item",
            code="data-weights-count",
            length=length,
        )
    wrong = np.flatnonzero(~(np.isfinite(found) & (found >= 0)))
    if wrong.size or not found.sum() > 0:
        what = f"{found[wrong[0]]:g} for item {wrong[0]}" if wrong.size else "all 0"
        raise LearnerError(
            f"the weights of sample are {what}: give numbers of 0 or more, and some above", code="data-weights-value"
        )
    share: np.ndarray = found / found.sum()
    return share


def _short(value: Any) -> str:
    shape = f" of shape {list(value.shape)}" if hasattr(value, "shape") else ""
    text = repr(value)
    return text if len(text) <= 60 and not shape else f"a {type(value).__name__}{shape}"
