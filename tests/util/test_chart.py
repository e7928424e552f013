"""Tests of charts of curves as SVG."""

import base64
import math
import xml.etree.ElementTree as ET

import pytest

from learner.util.chart import COLOURS, DASHES, MARGIN, MARKS, chart, data_url, limits

SVG = "{http://www.w3.org/2000/svg}"


def shapes_in(curves, **size):
    """Return the points of the lines, and the positions of the dots."""
    root = ET.fromstring(chart(curves, **size))
    lines = [
        [tuple(map(float, pair.split(","))) for pair in line.get("points").split()]
        for line in root.iter(f"{SVG}polyline")
    ]
    return lines, [(float(dot.get("cx")), float(dot.get("cy"))) for dot in root.iter(f"{SVG}circle")]


def test_curves_share_a_frame_and_fill_it():
    """x from 10 to 50 maps to 46 to 246, y from 0 to 8 to 104 to 4: in SVG, y grows downwards."""
    curves = {"train": [(10, 8.0), (20, 2.0), (30, 0.0)], "valid": [(20, 4.0), (50, 4.0)]}
    lines, dots = shapes_in(curves, width=250, height=120)
    assert lines == [[(46, 4), (96, 79), (146, 104)], [(96, 54), (246, 54)]]
    assert dots == []


def test_values_that_are_not_finite_interrupt_a_line():
    nan, inf = math.nan, math.inf
    points = [(1, nan), (2, 1.0), (3, 2.0), (4, nan), (5, inf), (6, 1.0), (7, -inf)]
    lines, dots = shapes_in({"train": points}, width=150, height=70)
    assert lines == [[(46, 54), (71, 4)]]  # steps 2 to 6 become 46 to 146
    assert dots == [(146, 54)]


@pytest.mark.parametrize("points", [[], [(1, math.nan)], [(5, 2.0)], [(5, 2.0), (5, 2.0)], [(1, 1e308), (2, -1e308)]])
def test_curve_without_extent_stays_inside_the_frame(points):
    lines, dots = shapes_in({"train": points}, width=100, height=50)
    for x, y in [*dots, *(point for line in lines for point in line)]:
        assert MARGIN <= x <= 100 - MARGIN
        assert MARGIN <= y <= 50 - MARGIN
    assert limits({"train": []}) == ((0, 0), (0, 0))


def test_the_axes_have_ticks():
    """100 pixels for 0 to 8, and 200 for 10 to 50, leave room for about three ticks each."""
    root = ET.fromstring(chart({"train": [(10, 8.0), (50, 0.0)]}, width=250, height=120))
    texts = [(text.text, float(text.get("x")), float(text.get("y"))) for text in root.iter(f"{SVG}text")]
    assert texts == [("0", 42, 107), ("5", 42, 44.5), ("20", 96, 118), ("40", 196, 118)]


def test_curves_differ_in_color_and_dashes():
    curves = {str(number): [(1, 1.0), (2, float(number))] for number in range(5)}
    lines = list(ET.fromstring(chart(curves)).iter(f"{SVG}polyline"))
    styles = [(line.get("stroke"), line.get("stroke-dasharray")) for line in lines]
    assert len(set(styles[:4])) == 4
    assert styles[4] == styles[0] == (COLOURS[0], "none")
    assert len(COLOURS) == len(set(DASHES)) == len(set(MARKS))


def luminance(colour):
    """Return the relative luminance of WCAG 2.1."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("page", ["#ffffff", "#111111"])
@pytest.mark.parametrize("colour", COLOURS)
def test_colors_have_contrast_on_light_and_dark_pages(colour, page):
    """WCAG 2.1, section 1.4.11, requires a contrast of 3."""
    low, high = sorted((luminance(colour), luminance(page)))
    assert (high + 0.05) / (low + 0.05) >= 3


def test_data_url_contains_the_picture():
    kind, _, content = data_url("<svg>&\N{SNOWMAN}</svg>").partition(",")
    assert (kind, base64.b64decode(content).decode()) == ("data:image/svg+xml;base64", "<svg>&\N{SNOWMAN}</svg>")
