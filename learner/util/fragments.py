"""HTML fragments for notebook cells, without scripts and style sheets. Texts are escaped."""

import html
import itertools
from collections.abc import Iterable, Mapping, Sequence

from learner.util.chart import COLOURS, MARKS, Points, chart, data_url, limits
from learner.util.text import printable, short

MOST_FIGURES = 6
CELL = "padding: 2px 12px 2px 0; text-align: right"
NAME = "padding: 2px 12px 2px 0; text-align: left; font-weight: normal; white-space: pre"
NUMBERS = "border-collapse: collapse; font-size: inherit; font-variant-numeric: tabular-nums; color: inherit"


def text(content: str) -> str:
    """Escape a text for HTML.

    >>> text("<b>a\\x1b & 'b'")
    '&lt;b&gt;a? &amp; &#x27;b&#x27;'
    """
    return html.escape(printable(content))


def fragment(*parts: str) -> str:
    """Return the parts as one output of a cell."""
    return f'<div style="font-size: 13px; line-height: 1.4; overflow-x: auto">{"".join(parts)}</div>'


def paragraph(content: str, strong: bool = False) -> str:
    """Return one line as HTML."""
    return f"<div>{'<b>' if strong else ''}{text(content)}{'</b>' if strong else ''}</div>"


def preformatted(lines: Iterable[str]) -> str:
    """Return lines with their layout."""
    laid_out = "\n".join(map(text, lines))
    return f'<pre style="margin: 0 0 8px; color: inherit; background: none">{laid_out}</pre>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table. The first cell of each row is its header, left-aligned, and keeps its blanks."""
    titles = "".join(
        f'<th scope="col" style="{CELL if number else NAME}">{text(title)}</th>' for number, title in enumerate(head)
    )
    body = "".join(
        f'<tr><th scope="row" style="{NAME}">{text(first)}</th>'
        + "".join(f'<td style="{CELL}">{text(cell)}</td>' for cell in cells)
        + "</tr>"
        for first, *cells in rows
    )
    return f'<table style="{NUMBERS}"><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>'


def figures(curves: Mapping[str, Mapping[str, Points]]) -> str:
    """Return a chart for each of the first metrics.

    Args:
      curves: steps and values by metric and by split. A split looks the same in all charts if each has all splits.
    """
    figures = [_figure(name, splits) for name, splits in itertools.islice(curves.items(), MOST_FIGURES)]
    style = "display: flex; flex-wrap: wrap; gap: 12px; margin: 8px 0"
    return f'<div style="{style}">{"".join(figures)}</div>' if figures else ""


def _figure(name: str, curves: Mapping[str, Points]) -> str:
    legend = " ".join(
        f'<span style="color: {COLOURS[number % len(COLOURS)]}" aria-hidden="true">{MARKS[number % len(MARKS)]}</span>'
        f" {text(split)}"
        for number, split in enumerate(curves)
        if curves[split]
    )
    (first, last), (low, high) = limits(curves)
    span = text(f"{short(low)} to {short(high)}, steps {first} to {last}")
    last_values = ", ".join(f"{split} {short(points[-1][1])}" for split, points in curves.items() if points)
    picture = f'<img src="{data_url(chart(curves))}" alt="{text(f"{name} over steps; last: {last_values}")}">'
    return (
        f'<figure style="margin: 0"><figcaption><b>{text(name)}</b> {legend}</figcaption>{picture}<br>{span}</figure>'
    )
