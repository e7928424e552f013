"""Small line charts as SVG, legible on light and dark pages."""

import base64
import math
from collections.abc import Mapping, Sequence

COLOURS = ("#3b82c4", "#d9730d", "#2e9e4f", "#9b6dd6")  # each has a contrast of 3 with white and with #111
DASHES = ("none", "6 3", "2 3", "8 3 2 3")  # for readers who cannot distinguish the colours
MARKS = ("\u2501\u2501", "\u2505\u2505", "\u2508\u2508", "\u2501\u2505")  # the same, for a legend
FRAME = "#808080"
MARGIN = 4.0

Points = Sequence[tuple[int, float]]


# Not plotly, plotext or matplotlib: optional packages that take 5 to 40 ms for a picture, of up to six twice a second,
# beside a training loop that shares the interpreter; this takes 0.3 ms. Sites that show notebooks run no scripts, which
# plotly needs, and plotext's characters line up in terminals only.
def chart(curves: Mapping[str, Points], width: int = 280, height: int = 140) -> str:
    """Return curves in one frame that they fill, each in a colour and with dashes of its own. Non-finite values are
    gaps, and a point between gaps is a dot. Legend and limits are not included.

    >>> print(chart({"train": [(1, 4.0), (2, 2.0), (3, 3.0)]}, width=28, height=18))
    <svg xmlns="http://www.w3.org/2000/svg" width="28" height="18" viewBox="0 0 28 18">
    <rect x="0.5" y="0.5" width="27" height="17" fill="none" stroke="#808080" stroke-opacity="0.5"/>
    <polyline points="4,4 14,14 24,9" fill="none" stroke="#3b82c4" stroke-width="1.5" stroke-dasharray="none"/>
    </svg>
    """
    spans = limits(curves)
    size = f'width="{width}" height="{height}"'
    inside = f'x="0.5" y="0.5" width="{width - 1}" height="{height - 1}"'
    shapes = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {width} {height}">',
        f'<rect {inside} fill="none" stroke="{FRAME}" stroke-opacity="0.5"/>',
    ]
    for number, points in enumerate(curves.values()):
        colour, dash = COLOURS[number % len(COLOURS)], DASHES[number % len(DASHES)]
        for part in _parts(points):
            at = [(_to_pixels(x, *spans[0], width), height - _to_pixels(y, *spans[1], height)) for x, y in part]
            if len(at) == 1:
                shapes.append(f'<circle cx="{at[0][0]:.4g}" cy="{at[0][1]:.4g}" r="2" fill="{colour}"/>')
                continue
            line = " ".join(f"{x:.4g},{y:.4g}" for x, y in at)
            how = f'fill="none" stroke="{colour}" stroke-width="1.5" stroke-dasharray="{dash}"'
            shapes.append(f'<polyline points="{line}" {how}/>')
    return "\n".join([*shapes, "</svg>"])


def limits(curves: Mapping[str, Points]) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the range of x, and that of the finite y, over all curves.

    >>> limits({"train": [(1, 4.0), (2, math.nan)], "valid": [(2, 3.0)]})
    ((1, 2), (3.0, 4.0))
    """
    points = [point for curve in curves.values() for point in curve if math.isfinite(point[1])]
    xs, ys = ([point[axis] for point in points] or [0] for axis in (0, 1))
    return (min(xs), max(xs)), (min(ys), max(ys))


def data_url(svg: str) -> str:
    """Return a picture as a data URL, which pages that allow no SVG still show."""
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


def _to_pixels(value: float, low: float, high: float, size: int) -> float:
    half = high / 2 - low / 2  # halves: a difference may overflow
    return MARGIN + (size - 2 * MARGIN) * ((value / 2 - low / 2) / half if half else 0.5)
