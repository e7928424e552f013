"""Small line charts as SVG, legible on light and dark pages."""

import base64
import math
from collections.abc import Mapping, Sequence

from learner.util.ticks import ticks

COLOURS = ("#3b82c4", "#d9730d", "#2e9e4f", "#9b6dd6")  # each has a contrast of 3 with white and with #111
DASHES = ("none", "6 3", "2 3", "8 3 2 3")  # for readers who cannot distinguish the colours
MARKS = ("\u2501\u2501", "\u2505\u2505", "\u2508\u2508", "\u2501\u2505")  # the same dashes, for a legend
FRAME = "#767676"  # also the colour of texts: a contrast of 4.5 with white
MARGIN, LEFT, BOTTOM = 4.0, 46.0, 16.0

Points = Sequence[tuple[int, float]]


# Not plotly, plotext or matplotlib: these optional packages take 5 to 40 ms per picture, for up to six pictures twice a
# second, beside a training loop that shares the interpreter; this takes 0.3 ms. Sites that show notebooks do not run
# scripts, which plotly needs, and plotext's characters are aligned only in terminals.
def chart(curves: Mapping[str, Points], width: int = 320, height: int = 160) -> str:
    """Return curves with ticks on both axes, each with its own colour and dashes, without a legend. Non-finite values
    are gaps, and a point between gaps is a dot.

    >>> print(chart({"train": [(1, 4.0), (3, 2.0)]}, width=70, height=40))
    <svg xmlns="http://www.w3.org/2000/svg" width="70" height="40" viewBox="0 0 70 40" font-family="sans-serif" \
font-size="10">
    <path d="M46 24H66M46 4H66" stroke="#767676" stroke-opacity="0.4"/>
    <g fill="#767676" text-anchor="end"><text x="42" y="27">2</text><text x="42" y="7">4</text></g>
    <g fill="#767676" text-anchor="middle"><text x="56" y="38">2</text></g>
    <polyline points="46,4 66,24" fill="none" stroke="#3b82c4" stroke-width="1.5" stroke-dasharray="none"/>
    </svg>
    """
    (first, last), (low, high) = limits(curves)
    right, bottom = width - MARGIN, height - BOTTOM

    def across(x: float) -> float:
        return LEFT + (right - LEFT) * share(x, first, last)

    def down(y: float) -> float:
        return bottom - (bottom - MARGIN) * share(y, low, high)

    rows = list(zip(*ticks(low, high, max(2, height // 36)), strict=True))
    columns = list(zip(*ticks(first, last, max(1, width // 70)), strict=True))
    lines = "".join(f"M{LEFT:g} {down(y):.4g}H{right:g}" for y, _ in rows)
    names = "".join(f'<text x="{LEFT - 4:g}" y="{down(y) + 3:.4g}">{text}</text>' for y, text in rows)
    steps = "".join(f'<text x="{across(x):.4g}" y="{height - 2}">{text}</text>' for x, text in columns)
    shapes = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="10">',
        f'<path d="{lines}" stroke="{FRAME}" stroke-opacity="0.4"/>',
        f'<g fill="{FRAME}" text-anchor="end">{names}</g>',
        f'<g fill="{FRAME}" text-anchor="middle">{steps}</g>',
    ]
    for number, points in enumerate(curves.values()):
        colour, dash = COLOURS[number % len(COLOURS)], DASHES[number % len(DASHES)]
        for part in _parts(points):
            at = [(across(x), down(y)) for x, y in part]
            if len(at) == 1:
                shapes.append(f'<circle cx="{at[0][0]:.4g}" cy="{at[0][1]:.4g}" r="2" fill="{colour}"/>')
                continue
            line = " ".join(f"{x:.4g},{y:.4g}" for x, y in at)
            how = f'fill="none" stroke="{colour}" stroke-width="1.5" stroke-dasharray="{dash}"'
            shapes.append(f'<polyline points="{line}" {how}/>')
    return "\n".join([*shapes, "</svg>"])


def limits(curves: Mapping[str, Points]) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the range of x, and the range of the finite y, over all curves.

    >>> limits({"train": [(1, 4.0), (2, math.nan)], "valid": [(2, 3.0)]})
    ((1, 2), (3.0, 4.0))
    """
    points = [point for curve in curves.values() for point in curve if math.isfinite(point[1])]
    xs, ys = ([point[axis] for point in points] or [0] for axis in (0, 1))
    return (min(xs), max(xs)), (min(ys), max(ys))


def data_url(svg: str) -> str:
    """Return a picture as a data URL, for pages that do not allow SVG."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()


def _parts(points: Points) -> list[list[tuple[int, float]]]:
    """Return the points between gaps."""
    parts: list[list[tuple[int, float]]] = [[]]
    for point in points:
        if math.isfinite(point[1]):
            parts[-1].append(point)
        elif parts[-1]:
            parts.append([])
    return [part for part in parts if part]


def share(value: float, low: float, high: float) -> float:
    """Return the position of a value between two limits, from 0 to 1; the middle if these are equal."""
    half = high / 2 - low / 2  # halves: a difference may overflow
    return (value / 2 - low / 2) / half if half else 0.5
