"""Tests of contact sheets."""

import numpy as np
import pytest

from learner.data.sheet import GAP, contact_sheet, is_image

RED = np.broadcast_to(np.uint8([255, 0, 0]), (50, 60, 3))


@pytest.mark.parametrize(
    ("shape", "answer"),
    [
        ((28, 28), True),
        ((8, 8, 1), True),
        ((4, 4096, 4), True),
        ((None, None, 3), True),
        ((28, 28, 2), False),
        ((3, 28), False),
        ((28, 4097), False),
        ((28,), False),
        ((), False),
        ((2, 28, 28, 3), False),
    ],
)
def test_is_image(shape, answer):
    assert is_image(shape) == answer


def test_images_are_side_by_side_in_order():
    shades = [np.full((50, 60), 10 * i, np.uint8) for i in range(5)]
    sheet = contact_sheet(shades, columns=3)
    assert sheet.shape == (2 * (50 + GAP) + GAP, 3 * (60 + GAP) + GAP, 3)
    middles = [[sheet[top, left].tolist() for left in (30, 92, 154)] for top in (25, 77)]
    assert middles == [[[0] * 3, [10] * 3, [20] * 3], [[30] * 3, [40] * 3, [255] * 3]]


def test_colors_and_transparency():
    assert contact_sheet([RED])[25, 25].tolist() == [255, 0, 0]
    assert contact_sheet([np.dstack([RED, np.zeros((50, 60), np.uint8)])])[25, 25].tolist() == [255, 0, 0]
    assert contact_sheet([np.full((50, 60, 1), 7, np.uint8)])[25, 25].tolist() == [7, 7, 7]
    assert contact_sheet([np.full((50, 60), 65_535, np.uint16)])[25, 25].tolist() == [255] * 3
    assert contact_sheet([np.ones((50, 60), np.bool_)])[25, 25].tolist() == [255] * 3


@pytest.mark.parametrize(
    ("values", "shades"),
    [
        ([0, 0.5, 1], [0, 128, 255]),
        ([-1, 0, 1], [0, 128, 255]),
        ([0, 100, 200], [0, 128, 255]),
        ([0.25, 0.5, np.nan], [64, 128, 0]),
    ],
)
def test_floats_are_scaled_together(values, shades):
    sheet = contact_sheet([np.full((50, 60), value, np.float32) for value in values])
    assert [sheet[25, 30 + 62 * i, 0] for i in range(3)] == shades


def test_small_images_are_enlarged():
    image = np.zeros((8, 4), np.uint8)
    image[0, 0] = 255
    sheet = contact_sheet([image])
    assert sheet.shape == (48 + 2 * GAP, 24 + 2 * GAP, 3)
    assert sheet[GAP : GAP + 6, GAP : GAP + 6].min() == 255
    assert sheet[GAP + 6, GAP + 6].max() == 0
