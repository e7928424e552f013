"""Contact sheets: several images side by side in one."""

import math
from collections.abc import Sequence

import numpy as np

SMALLEST, WIDEST = 4, 4096  # of an image, in pixels
SHOWN = 48  # pixels to which a small image is enlarged
GAP = 2


def is_image(shape: Sequence[int | None]) -> bool:
    """Return True if rows of this shape look like images: `[height, width]`, or with 1, 3 or 4 channels last.

    >>> is_image([28, 28]), is_image([32, 32, 3]), is_image([128]), is_image([10, 2])
    (True, True, False, False)
    """
    channels = shape[2:] in ((), []) or (len(shape) == 3 and shape[2] in (1, 3, 4))
    sides = shape[:2]
    return channels and len(sides) == 2 and all(side is None or SMALLEST <= side <= WIDEST for side in sides)


def contact_sheet(images: Sequence[np.ndarray], columns: int = 8) -> np.ndarray:
    """Return images side by side as one.

    Args:
      images: images of any size, with shapes that `is_image` accepts: integers from 0 to the largest of their type, or
        floats. The smallest float of all images becomes black and the largest white (but 0 and 1 if all are between).
      columns: images per row.

    Returns:
      uint8 `[height, width, 3]`; transparent parts are shown without transparency.

    >>> contact_sheet([np.zeros((28, 28)), np.ones((28, 28))]).shape
    (60, 118, 3)
    """
    low, high = _range(images)
    shown = [_enlarged(_colours(image, low, high)) for image in images]
    height, width = (max(image.shape[axis] for image in shown) + GAP for axis in (0, 1))
    columns = min(columns, len(shown))
    sheet = np.full((math.ceil(len(shown) / columns) * height + GAP, columns * width + GAP, 3), 255, np.uint8)
    for number, image in enumerate(shown):
        top, left = number // columns * height + GAP, number % columns * width + GAP
        sheet[top : top + image.shape[0], left : left + image.shape[1]] = image
    return sheet


def _range(images: Sequence[np.ndarray]) -> tuple[float, float]:
    """Return the values that are shown as black and as white."""
    if images[0].dtype.kind in "biu":
        return 0, 1 if images[0].dtype.kind == "b" else np.iinfo(images[0].dtype).max
    finite = [image[np.isfinite(image)].astype(np.float64) for image in images]
    low = min(float(part.min(initial=0)) for part in finite)
    high = max(float(part.max(initial=1)) for part in finite)
    return low, high


def _colours(image: np.ndarray, low: float, high: float) -> np.ndarray:
    scaled = (np.nan_to_num(image.astype(np.float64), nan=low, posinf=high, neginf=low) - low) / (high - low)
    pixels = (scaled.clip(0, 1) * 255).round().astype(np.uint8)
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels[..., :3]
    return np.broadcast_to(pixels, (*pixels.shape[:2], 3))


def _enlarged(image: np.ndarray) -> np.ndarray:
    times = max(1, math.ceil(SHOWN / max(image.shape[:2])))
    return image.repeat(times, axis=0).repeat(times, axis=1)
