"""A run as an HTML fragment: its table, its curves and its messages. It needs no script and no style sheet."""

import html
import logging
from collections.abc import Mapping, Sequence

from learner.events import Message
from learner.renderers import lines
from learner.renderers.board import cells
from learner.renderers.chart import COLOURS, MARKS, chart, data_url, limits
from learner.renderers.trends import Trend, important
from learner.util.text import count, printable, short

MOST_CHARTS = 6
MOST_METRICS = 40
CELL = "padding: 2px 12px 2px 0; text-align: right"
NAME = "padding: 2px 12px 2px 0; text-align: left; font-weight: normal"
NUMBERS = "border-collapse: collapse; font-size: inherit; font-variant-numeric: tabular-nums; color: inherit"


def text(content: str) -> str:
    """Escape a text for HTML.

    >>> text("<b>a\\x1b & 'b'")
    '&lt;b&gt;a? &amp; &#x27;b&#x27;'
    """
    return html.escape(printable(content))


def paragraph(content: str, strong: bool = False) -> str:
    """Return one line as HTML."""
    return f"<div>{'<b>' if strong else ''}{text(content)}{'</b>' if strong else ''}</div>"


def table(trends: Sequence[Trend], monitor: str | None = None) -> str:
    """Return the current value of each metric, its best value and the epoch of that, or nothing if there are no
    metrics.
    """
    shown = important(trends, MOST_METRICS, monitor)
    if not shown:
        return ""
    titles = "".join(
        f'<th scope="col" style="{CELL if number else NAME}">{title}</th>'
        for number, title in enumerate(("metric", "now", "best", "epoch"))
    )
    rows = [f'<table style="{NUMBERS}"><thead><tr>{titles}</tr></thead><tbody>', *map(_row, shown), "</tbody></table>"]
    hidden = len(trends) - len(shown)
    return "".join([*rows, paragraph(f"and {count(hidden, 'more metric')}") if hidden else ""])


def charts(trends: Sequence[Trend], monitor: str | None = None) -> str:
    """Return a chart for each numeric metric, with its splits; the most important ones where there are many."""
    plotted = [trend for trend in trends if len(trend.splits) or len(trend.steps)]
    splits = dict.fromkeys(trend.info.split for trend in plotted)  # each looks the same in all charts
    first = sorted(plotted, key=lambda trend: (trend.info.key != monitor, trend.info.name != "Loss"))
    figures = []
    for name in list(dict.fromkeys(trend.info.name for trend in first))[:MOST_CHARTS]:
        curves: dict[str, list[tuple[int, float]]] = {split: [] for split in splits}
        curves |= {trend.info.split: trend.points() for trend in plotted if trend.info.name == name}
        figures.append(_figure(name, curves))
    style = "display: flex; flex-wrap: wrap; gap: 12px; margin: 8px 0"
    return f'<div style="{style}">{"".join(figures)}</div>' if figures else ""


def messages(content: Sequence[Message], earlier: int) -> str:
    """Return the newest messages, a line each; warnings are marked by a word, not by colour alone."""
    if not content:
        return ""
    first = [paragraph(f"{count(earlier, 'earlier message')} in experiment.log")] if earlier else []
    bold = [(line, entry.level >= logging.WARNING) for entry in content for line in lines.message(entry)]
    return f'<div style="margin: 8px 0">{"".join([*first, *(paragraph(*entry) for entry in bold)])}</div>'


def texts(values: Mapping[str, str]) -> str:
    """Return the text metrics with their layout."""
    shown = []
    for key, value in values.items():
        laid_out = html.escape("\n".join(map(printable, value.splitlines())))
        shown.append(f'{paragraph(key)}<pre style="margin: 0 0 8px; color: inherit; background: none">{laid_out}</pre>')
    return "".join(shown)


def _row(trend: Trend) -> str:
    unit = f" ({trend.info.unit})" if trend.info.unit else ""
    values = "".join(f'<td style="{CELL}">{value}</td>' for value in cells(trend, absent=""))
    return f'<tr><th scope="row" style="{NAME}">{text(trend.info.key + unit)}</th>{values}</tr>'


def _figure(name: str, curves: Mapping[str, Sequence[tuple[int, float]]]) -> str:
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
