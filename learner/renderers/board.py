"""The table of metrics beside the progress bar: current value, best value and trend."""

from collections.abc import Sequence

from learner.renderers.trends import BLOCKS, Trend, important, sparkline
from learner.util.text import abbreviate, printable, short

GAP = 2
WIDEST_NAME, SHORTEST_NAME = 28, 10
NARROWEST = 6  # of a column of numbers
SHORTEST_TREND, LONGEST_TREND = 8, 32
WIDE = 120  # characters from which splits are shown side by side


def board(
    trends: Sequence[Trend], width: int, most: int, monitor: str | None = None, characters: str = BLOCKS
) -> list[str]:
    """Return a line of titles and one for each metric, in the order of `learner.util.metric_order`. If space is short,
    names are abbreviated, then the epoch of the best value is omitted, then the trend, then the best value. Otherwise
    validation and training are shown side by side.

    Args:
      trends: the trends of the metrics.
      width: the width of a line in characters.
      most: the largest number of lines for metrics; the first metrics are shown.
      monitor: the metric that selects the best checkpoint, if any.
      characters: the characters of the trend, from low to high.

    >>> from learner.events import MetricInfo
    >>> loss = Trend(MetricInfo("valid", "Loss", higher_is_better=False))
    >>> for epoch in range(1, 9):
    ...     loss.add(epoch, 45 * epoch, 1 / epoch)
    >>> print("\\n".join(board([loss], width=44, most=4)))
    metric         now    best  epoch  trend
    valid/Loss   0.125   0.125      8  █▄▃▂▂▁▁▁
    """
    splits = list(dict.fromkeys(trend.info.split for trend in important(trends, len(trends), monitor)))
    if width >= WIDE and len(splits) == 2:
        return _side_by_side(trends, splits, width, most, monitor, characters)
    shown = important(trends, most, monitor)
    if not shown:
        return []
    now, best = (GAP + len(column[0]) for column in _numbers(shown)[:2])
    least = min(max(SHORTEST_NAME, width - now - best - GAP - SHORTEST_TREND), width - now)
    names = _names([trend.info.key for trend in shown], least)
    block = _block(shown, width - len(names[0]), characters)
    if not block:
        return []
    return [*_joined(names, block), *_hidden(len(trends) - len(shown), width)]


def _side_by_side(
    trends: Sequence[Trend], splits: Sequence[str], width: int, most: int, monitor: str | None, characters: str
) -> list[str]:
    """Return a line for each metric name, with a block of columns for each split."""
    by_key = {trend.info.key: trend for trend in trends}
    names = list(dict.fromkeys(trend.info.name for trend in important(trends, len(trends), monitor)))
    shown = names[:most]
    if not shown:
        return []
    texts = _names(shown, width)
    room = (width - len(texts[0]) - GAP) // 2
    blocks = []
    for split in splits:
        lines = _block([by_key.get(f"{split}/{name}") for name in shown], room, characters)
        blocks.append([f"{'':{GAP}}{printable(split)}".ljust(len(lines[0])), *lines])
    hidden = sum(trend.info.name not in shown for trend in trends)
    gap = [" " * GAP] * (2 + len(shown))
    return [*_joined([" " * len(texts[0]), *texts], blocks[0], gap, blocks[1]), *_hidden(hidden, width)]


def _names(names: Sequence[str], room: int) -> list[str]:
    """Return the column of names with its title, within some characters."""
    width = max(len("metric"), min(WIDEST_NAME, room, max(map(len, names))))
    return [abbreviate(printable(text), width).ljust(width) for text in ("metric", *names)]


def _numbers(trends: Sequence[Trend | None]) -> list[list[str]]:
    """Return the columns of numbers with their titles; all texts of a column have the same length."""
    rows = [("now", "best", "epoch"), *(("", "", "") if trend is None else cells(trend) for trend in trends)]
    return list(map(_column, zip(*rows, strict=True)))


def _block(trends: Sequence[Trend | None], room: int, characters: str) -> list[str]:
    """Return the columns after the names, as far as they fit; empty if none fits."""
    now, best, epoch = _numbers(trends)
    columns = list[Sequence[str]]()
    for column, also_needed in ((now, 0), (best, 0), (epoch, GAP + SHORTEST_TREND)):
        if room < GAP + len(column[0]) + also_needed:
            break
        columns.append(column)
        room -= GAP + len(column[0])
    if len(columns) > 1 and room >= GAP + SHORTEST_TREND:
        length = min(LONGEST_TREND, room - GAP)
        curves = ["" if each is None else _trend(each, length, characters) for each in trends]
        columns.append([text.ljust(length) for text in ("trend", *curves)])
    return ["".join(" " * GAP + text for text in row) for row in zip(*columns, strict=True)]


def _joined(*blocks: Sequence[str]) -> list[str]:
    return ["".join(row).rstrip() for row in zip(*blocks, strict=True)]


def _hidden(number: int, width: int) -> list[str]:
    return [hidden_text(number, width)] if number else []


def hidden_text(number: int, width: int) -> str:
    """Return the line about metrics that do not fit, with the option that selects others.

    >>> hidden_text(9, width=80)
    'and 9 more: --renderer.metrics=[NAME, ...] selects'
    """
    texts = (f"and {number} more: --renderer.metrics=[NAME, ...] selects", f"and {number} more")
    return next((text for text in texts if len(text) <= width), "")


def cells(trend: Trend, absent: str = "-") -> tuple[str, str, str]:
    """Return the texts of the current value, the best value and its epoch."""
    now = absent if trend.now is None else short(trend.now)
    return (now, absent, absent) if trend.best is None else (now, short(trend.best.value), str(trend.best.epoch))


def _column(texts: Sequence[str]) -> list[str]:
    width = max(NARROWEST if texts[0] != "epoch" else 0, *map(len, texts))
    return [text.rjust(width) for text in texts]


def _trend(trend: Trend, length: int, characters: str) -> str:
    return sparkline([value for _, value in trend.points(length)], characters)
