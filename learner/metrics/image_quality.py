"""Metrics of images: the similarity of an image to its target."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from learner.errors import LearnerError
from learner.metrics.base import Array, Info, WeightedMean
from learner.metrics.class_arguments import is_integral
from learner.metrics.means import MeanMetric
from learner.metrics.rows import kept_rows, wide
from learner.util.number_checks import is_number

SCALES = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)
"""The weights of the scales of MS-SSIM, from the finest, as measured by its authors."""


class _OfImages(MeanMetric):
    """A value per image, mean over images."""

    higher_is_better = True
    fields = ("predictions", "targets")
    undefined = "there are no images, or one that counts has a pixel that is not a finite number"

    def __init__(self, data_range: float) -> None:
        if not is_number(data_range) or not 0 < data_range < math.inf:
            raise LearnerError(
                f"data_range of {type(self).__name__} is {data_range!r}; it needs a positive number, from the smallest "
                "value that a pixel may have to the largest: 1 for 0 to 1, 255 for bytes",
                code="metric-data-range-value",
            )
        self._range = float(data_range)

    def update(self, state: WeightedMean, output: Any, info: Info) -> WeightedMean:
        """Add a batch: `predictions` and `targets` `[batch, height, width]` or `[batch, height, width, channels]`, and
        a `mask` `[batch]`, if any.
        """
        predictions, targets = jnp.asarray(output.predictions), jnp.asarray(output.targets)
        if predictions.ndim not in (3, 4) or predictions.shape != targets.shape:
            raise LearnerError(
                f"{self.name} got predictions of shape {predictions.shape} and targets of shape {targets.shape}; it "
                "needs images of one shape: [batch, height, width] or [batch, height, width, channels]",
                code="metric-image-shapes",
            )
        kept = kept_rows(self.name, output, targets.shape[:1])
        around = (-1, *[1] * (targets.ndim - 1))
        images = [jnp.where(kept.reshape(around), x, 0) for x in wide(predictions, targets)]
        if targets.ndim == 3:
            images = [x[..., None] for x in images]
        return state.add(self._per_image(*images), kept)

    def _per_image(self, a: Array, b: Array) -> Array:
        """Return the value of each image, `[batch]`; images are `[batch, height, width, channels]`."""
        raise NotImplementedError


class PSNR(_OfImages):
    """The peak signal-to-noise ratio in decibels, `10·log₁₀(data_range² / mean squared error)` of each image, mean over
    images. It is infinite for an image that equals its target.

    Args:
      data_range: the difference between the largest and the smallest possible pixel value.

    Raises:
      LearnerError: the range is not a positive number; when updated with anything but images of one shape.

    >>> from learner.steps.outputs import RegressionOutput
    >>> out = RegressionOutput.from_predictions(jnp.full((1, 4, 4), 0.6), jnp.full((1, 4, 4), 0.5))
    >>> metric, info = PSNR(), Info(step=jnp.int32(0), weight=jnp.float32(1))
    >>> print(f"{metric.compute(metric.update(metric.init(), out, info)):.2f}")   # 10 log10(1 / 0.01)
    20.00
    """

    unit = "dB"
    description = "peak signal-to-noise ratio in decibels, mean over images"

    def __init__(self, data_range: float = 1.0) -> None:
        super().__init__(data_range)
        self.name = _named("PSNR", data_range)

    def _per_image(self, a: Array, b: Array) -> Array:
        error = jnp.square((a - b) / self._range).mean((1, 2, 3))
        return -10 * jnp.log10(error)


class SSIM(_OfImages):
    """The structural similarity of each image to its target, up to 1, mean over images.

    In a window around each pixel, with means `μ`, variances `σ²` and the covariance `σ₁₂`:
    `(2·μ₁·μ₂ + C₁)·(2·σ₁₂ + C₂) / ((μ₁² + μ₂² + C₁)·(σ₁² + σ₂² + C₂))`, where `C₁ = (0.01·range)²` and
    `C₂ = (0.03·range)²`; mean over the pixels whose window lies in the image, and over channels.

    The default window is the authors': 11 pixels, weighted by a Gaussian of 1.5 pixels, which is scikit-image's
    `structural_similarity(gaussian_weights=True, use_sample_covariance=False)`. With `gaussian=False` all its pixels
    weigh the same, and variances are sample variances: scikit-image's default with `window=7`.

    Source: Wang, Bovik, Sheikh, Simoncelli, "Image quality assessment: from error visibility to structural similarity",
    2004.

    Args:
      data_range: the difference between the largest and the smallest possible pixel value.
      window: the width of the window, an odd number of pixels.
      gaussian: weight the pixels of the window by a Gaussian.

    Raises:
      LearnerError: an argument is invalid; when updated with anything but images of one shape, or with images smaller
        than the window.

    >>> from learner.steps.outputs import RegressionOutput
    >>> image = jnp.linspace(0, 1, 256).reshape(1, 16, 16)
    >>> out = RegressionOutput.from_predictions(image, image)
    >>> metric, info = SSIM(), Info(step=jnp.int32(0), weight=jnp.float32(1))
    >>> print(f"{metric.compute(metric.update(metric.init(), out, info)):.4f}")
    1.0000
    """

    unit = ""
    description = "structural similarity to the target, mean over images, up to 1"

    def __init__(self, data_range: float = 1.0, window: int = 11, gaussian: bool = True) -> None:
        super().__init__(data_range)
        self._window = _window(type(self).__name__, window, gaussian)
        self._gaussian = gaussian
        how = "" if window == 11 else f" of {window} pixels"
        self.name = _named("SSIM", data_range) + how + ("" if gaussian else " uniform")

    def _per_image(self, a: Array, b: Array) -> Array:
        _large_enough(self.name, a, len(self._window))
        luminance, contrast = _similarities(a, b, self._window, self._range, not self._gaussian)
        return (luminance * contrast).mean((1, 2, 3))


class MSSSIM(_OfImages):
    """The multi-scale structural similarity of each image to its target, from 0 to 1, mean over images.

    `l^w · Π csᵢ^wᵢ`, with the contrast and structure part `cs` of SSIM at each scale, and its luminance part `l` at the
    coarsest. Between scales, 2 by 2 pixels are averaged. A `cs` below 0 counts as 0. It is computed per channel, then
    averaged.

    Source: Wang, Simoncelli, Bovik, "Multiscale structural similarity for image quality assessment", 2003.

    Args:
      data_range: the difference between the largest and the smallest possible pixel value.
      window: the width of the window of `SSIM`, an odd number of pixels.
      weights: the weights of the scales, from the finest; default: the authors' five.

    Raises:
      LearnerError: an argument is invalid; when updated with anything but images of one shape, or with images smaller
        than the window at the coarsest scale (five scales and 11 pixels need 176).

    >>> from learner.steps.outputs import RegressionOutput
    >>> image = jnp.linspace(0, 1, 1024).reshape(1, 32, 32)
    >>> out = RegressionOutput.from_predictions(image, image)
    >>> metric, info = MSSSIM(weights=(0.5, 0.5)), Info(step=jnp.int32(0), weight=jnp.float32(1))
    >>> print(f"{metric.compute(metric.update(metric.init(), out, info)):.4f}")
    1.0000
    """

    unit = ""
    description = "structural similarity to the target at several scales, mean over images, 0 to 1"

    def __init__(self, data_range: float = 1.0, window: int = 11, weights: Sequence[float] = SCALES) -> None:
        super().__init__(data_range)
        self._window = _window(type(self).__name__, window, True)
        given, weights = weights, tuple(weights) if isinstance(weights, Iterable) else ()
        if not weights or not all(isinstance(w, int | float) and 0 <= w < math.inf for w in weights):
            raise LearnerError(
                f"weights of MSSSIM is {given!r}; it needs a number for each scale, 0 or more: weights=(0.5, 0.5)",
                code="metric-msssim-weights",
            )
        self._weights = weights
        how = "" if window == 11 else f" of {window} pixels"
        scales = "" if weights == SCALES else " by " + " ".join(f"{w:g}".replace(".", ",") for w in weights)
        self.name = _named("MS-SSIM", data_range) + how + scales

    def _per_image(self, a: Array, b: Array) -> Array:
        _large_enough(self.name, a, len(self._window) * 2 ** (len(self._weights) - 1))
        product = jnp.ones((len(a), a.shape[-1]), a.dtype)
        for scale, weight in enumerate(self._weights):
            if scale:
                a, b = _halved(a), _halved(b)
            luminance, contrast = _similarities(a, b, self._window, self._range, False)
            last = scale == len(self._weights) - 1
            part = (luminance * contrast if last else contrast).mean((1, 2))
            product *= jnp.maximum(part, 0) ** weight
        return product.mean(1)


def _named(name: str, data_range: float) -> str:
    return name if data_range == 1 else f"{name} to {data_range:g}".replace(".", ",")


def _window(name: str, width: int, gaussian: bool) -> np.ndarray:
    """Return the weights along one axis. A window's weights are their products."""
    if not is_integral(width) or width < 3 or width % 2 == 0:
        raise LearnerError(
            f"window of {name} is {width!r}; it needs an odd number of pixels, 3 or more",
            code="metric-window-value",
            name=name,
            width=width,
        )
    places = np.arange(width) - width // 2
    weights = np.exp(-(places**2) / (2 * 1.5**2)) if gaussian else np.ones(width)
    window: np.ndarray = weights / weights.sum()
    return window


def _large_enough(name: str, images: Array, least: int) -> None:
    if min(images.shape[1:3]) < least:
        raise LearnerError(
            f"{name} got images of {images.shape[1]} x {images.shape[2]} pixels; it needs {least} each way, or a "
            "smaller window",
            code="metric-image-too-small",
            name=name,
            least=least,
        )


def _similarities(a: Array, b: Array, window: np.ndarray, data_range: float, samples: bool) -> tuple[Array, Array]:
    """Return both parts of SSIM, luminance and contrast with structure: `[batch, height, width, channels]`, for the
    pixels whose window lies in the image.
    """
    # Variances are differences of squares, which keep more digits for small numbers.
    middle = 0.5 * (a.mean((1, 2, 3), keepdims=True) + b.mean((1, 2, 3), keepdims=True))
    a, b, middle = (a - middle) / data_range, (b - middle) / data_range, middle / data_range
    mean_a, mean_b = _smoothed(a, window), _smoothed(b, window)
    pixels = len(window) ** 2
    correction = pixels / (pixels - 1) if samples else 1.0
    var_a = correction * (_smoothed(a * a, window) - mean_a * mean_a)
    var_b = correction * (_smoothed(b * b, window) - mean_b * mean_b)
    both = correction * (_smoothed(a * b, window) - mean_a * mean_b)
    mean_a, mean_b = mean_a + middle, mean_b + middle
    c1, c2 = 0.01**2, 0.03**2
    luminance = (2 * mean_a * mean_b + c1) / (mean_a * mean_a + mean_b * mean_b + c1)
    return luminance, (2 * both + c2) / (var_a + var_b + c2)


def _smoothed(images: Array, window: np.ndarray) -> Array:
    """Return the mean over each window, by shifted sums: convolutions inside loops are slow on CPUs."""
    for axis in (1, 2):
        length = images.shape[axis] - len(window) + 1
        shifted = [jax.lax.slice_in_dim(images, i, i + length, axis=axis) * float(w) for i, w in enumerate(window)]
        images = sum(shifted[1:], shifted[0])
    return images


def _halved(images: Array) -> Array:
    """Return the means of 2 by 2 pixels. An odd row or column at the edge is dropped."""
    batch, height, width, channels = images.shape
    images = images[:, : height // 2 * 2, : width // 2 * 2]
    return images.reshape(batch, height // 2, 2, width // 2, 2, channels).mean((2, 4))
