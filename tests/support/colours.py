"""Contrasts and perceived distances of colours, each a red, green and blue value from 0 to 1."""

import itertools

import numpy as np

# Björn Ottosson, "A perceptual color space for image processing" (2020).
CONES = [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566]]
CONES += [[0.0883024619, 0.2817188376, 0.6299787005]]
OPPONENTS = [[0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099]]
OPPONENTS += [[0.0259040371, 0.7827717662, -0.8086757660]]


def channels(text):
    """Return the three channels of `#rrggbb`."""
    return [int(text[at : at + 2], 16) / 255 for at in (1, 3, 5)]


def linear(colour):
    """Undo sRGB's transfer function."""
    return np.array([x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in colour])


def contrast(one, other):
    """Return the contrast ratio of WCAG 2."""
    first, second = sorted(float(linear(colour) @ [0.2126, 0.7152, 0.0722]) for colour in (one, other))
    return (second + 0.05) / (first + 0.05)


def oklab(colour):
    """Return the lightness and the two opponent channels of OKLab, where distances are about those that people see."""
    return np.array(OPPONENTS) @ np.cbrt(np.array(CONES) @ linear(colour))


def smallest_distance(colours):
    """Return the smallest distance between two of the colours in OKLab, where black and white are 1 apart."""
    return min(float(np.linalg.norm(oklab(one) - oklab(two))) for one, two in itertools.combinations(colours, 2))
