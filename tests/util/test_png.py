"""Tests of images written as PNG, which Pillow reads back."""

import io

import numpy as np
import pytest
from PIL import Image

from learner.util.png import pixels, png
from tests.support.codes import raises_code


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (4, 2, 3)], ids=str)
def test_pixels_round_trip(shape):
    picture = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    with Image.open(io.BytesIO(png(picture))) as image:
        assert image.format == "PNG"
        assert image.mode == ("L" if len(shape) == 2 else "RGB")
        np.testing.assert_array_equal(np.asarray(image), picture)


@pytest.mark.parametrize(
    "picture", [np.zeros((2, 2), np.float32), np.zeros((2, 2, 4), np.uint8), np.zeros((0, 2), np.uint8), np.uint8(1)]
)
def test_arrays_that_are_not_images_are_refused(picture):
    with raises_code("logger-picture-shape"):
        png(picture)
    with raises_code("logger-picture-shape"):
        pixels(picture)
