"""A run as an HTML fragment: its table, its curves and its messages. It needs no scripts and no style sheets."""

import logging
from collections.abc import Mapping, Sequence

from learner.events import Message
from learner.renderers import lines
from learner.renderers.board import cells
from learner.renderers.trends import Trend, important
from learner.util.fragments import figures, paragraph, preformatted
from learner.util.fragments import table as rows_table
from learner.util.text import count

MOST_METRICS = 40


def table(trends: Sequence[Trend], monitor: str | None = None) -> str:
    """Return the current and the best value of each metric, and the epoch of the best. Empty without metrics."""
    shown = important(trends, MOST_METRICS, monitor)
    if not shown:
        return ""
    units = (f" ({trend.info.unit})" if trend.info.unit else "" for trend in shown)
    rows = [[trend.info.key + unit, *cells(trend, absent="")] for trend, unit in zip(shown, units, strict=True)]
    hidden = len(trends) - len(shown)
    more = paragraph(f"and {count(hidden, 'more metric')}") if hidden else ""
    return rows_table(["metric", "now", "best", "epoch"], rows) + more


def charts(trends: Sequence[Trend], monitor: str | None = None) -> str:
    """Return a chart for each numeric metric, with its splits; if there are many, only for the most important ones."""
    plotted = [trend for trend in trends if len(trend.splits) or len(trend.steps)]
    splits = dict.fromkeys(trend.info.split for trend in plotted)  # each split looks the same in all charts
    first = sorted(plotted, key=lambda trend: (trend.info.key != monitor, trend.info.name != "Loss"))
    curves: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for trend in first:
        of_metric = curves.setdefault(trend.info.name, {split: [] for split in splits})
        of_metric[trend.info.split] = trend.points()
    return figures(curves)


def messages(content: Sequence[Message], earlier: int) -> str:
    """Return the newest messages, one per line. Warnings are marked by a word, not only by colour."""
    if not content:
        return ""
    first = [paragraph(f"{count(earlier, 'earlier message')} in experiment.log")] if earlier else []
    bold = [(line, entry.level >= logging.WARNING) for entry in content for line in lines.message(entry)]
    return f'<div style="margin: 8px 0">{"".join([*first, *(paragraph(*entry) for entry in bold)])}</div>'


def texts(values: Mapping[str, tuple[str, int]]) -> str:
    """Return the text metrics with their layout and their epochs."""
    parts = (
        paragraph(f"{key} of epoch {epoch}") + preformatted(text.splitlines()) for key, (text, epoch) in values.items()
    )
    return "".join(parts)
