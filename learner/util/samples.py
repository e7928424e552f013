"""Images and histograms that hooks log in addition to numbers and texts."""

import dataclasses
from typing import Any

import numpy as np

from learner.errors import LearnerError
from learner.util.png import pixels

BINS = 50
ROUNDING = 1e-3  # tolerance for values of images outside of 0 and 1: less than a step of uint8


@dataclasses.dataclass(frozen=True, eq=False, init=False)
class Image:
    """An image that a hook logs.

    Args:
      values: uint8, or floats from 0 to 1: `[height, width]`, `[height, width, 1]` or `[height, width, 3]`. Floats
        outside by at most 0.001, as by rounding, are clipped.

    Attributes:
      pixels: uint8 `[height, width]` or `[height, width, 3]`.

    Raises:
      LearnerError: the array has another shape or dtype, other values, or NaN.

    >>> Image(np.float32([[0.0, 0.5, 1.0]])).pixels
    array([[  0, 128, 255]], dtype=uint8)
    """

    pixels: np.ndarray

    def __init__(self, values: Any):
        array = np.array(values)  # a copy: a hook may draw the next picture before loggers have written this one
        if array.ndim == 3 and array.shape[2] == 1:
            array = array[:, :, 0]
        if array.dtype.kind == "f" or array.dtype.name == "bfloat16":
            array = array.astype(np.float32)
            if np.isnan(array).any():
                raise LearnerError(
                    "an image of floats needs values from 0 to 1, but this one has NaN: look for its cause, or replace "
                    "it, such as np.nan_to_num(x)",
                    code="sample-image-values",
                )
            if not ((array >= -ROUNDING) & (array <= 1 + ROUNDING)).all():
                raise LearnerError(
                    f"an image of floats needs values from 0 to 1, but this one has {array.min():.7g} to "
                    f"{array.max():.7g}; scale or clip it, such as np.clip((x + 1) / 2, 0, 1) for x from -1 to 1, or "
                    "pass uint8",
                    code="sample-image-values",
                    lowest=float(array.min()),
                    highest=float(array.max()),
                )
            array = np.clip(array, 0, 1)
            array = np.floor(255 * array + 0.5).astype(np.uint8)
        object.__setattr__(self, "pixels", pixels(array))


@dataclasses.dataclass(frozen=True, eq=False, init=False)
class Histogram:
    """The distribution of an array's values, which a hook logs.

    Args:
      values: numbers of any shape. The real and imaginary parts of complex numbers count separately.
      bins: the number of bins, of equal width.

    Attributes:
      counts: int64 `[bins]`.
      edges: float64 `[bins + 1]`: the edges of the bins.
      nonfinite: the number of NaN and infinite values, which are in no bin.

    Raises:
      LearnerError: there are no values, or no bins.

    >>> histogram = Histogram([0.0, 1.0, 1.5, 2.0, float("nan")], bins=2)
    >>> histogram.counts, histogram.edges, histogram.nonfinite
    (array([1, 3]), array([0., 1., 2.]), 1)
    """

    counts: np.ndarray
    edges: np.ndarray
    nonfinite: int

    def __init__(self, values: Any, bins: int = BINS):
        given = np.asarray(values)
        given = np.stack([given.real, given.imag]) if np.iscomplexobj(given) else given
        # As float32, for which no bins are too narrow: float64 values can be closer than the edges of bins.
        with np.errstate(over="ignore"):
            numbers = given.astype(np.float32).astype(np.float64).ravel()
        if not numbers.size or bins < 1:
            raise LearnerError("a histogram needs values and bins, one or more of each", code="sample-histogram-empty")
        finite = numbers[np.isfinite(numbers)]
        counts, edges = np.histogram(finite, bins)
        for name, value in (("counts", counts), ("edges", edges), ("nonfinite", int(numbers.size - finite.size))):
            object.__setattr__(self, name, value)


Sample = str | Image | Histogram
