"""The table of metrics beside the progress bar: current value, best value and trend."""

from collections.abc import Sequence

from learner.renderers.trends import BLOCKS, Trend, important, sparkline
from learner.util.text import count, printable, short, truncate

GAP = 2
WIDEST_NAME, SHORTEST_NAME = 28, 10
NARROWEST = 6  # of a column of numbers
SHORTEST_TREND, LONGEST_TREND = 8, 32


def board(
    trends: Sequence[Trend], width: int, most: int, monitor: str | None = None, characters: str = BLOCKS
) -> list[str]:
    """Return a line of titles and one for each metric. If space is short, names are cut, then the epoch of the best
    value is left out, then the trend, then the best value.

    Args:
      trends: of the metrics.
      width: what a line may take, in characters.
      most: lines for metrics; the most important ones get them.
      monitor: the metric that decides about the best checkpoint, if any.
      characters: of the trend, from low to high.

    >>> from learner.events import MetricInfo
    >>> loss = Trend(MetricInfo("valid", "Loss", higher_is_better=False))
    >>> for epoch in range(1, 9):
    ...     loss.add(epoch, 45 * epoch, 1 / epoch)
    >>> print("\\n".join(board([loss], width=44, most=4)))
    metric         now    best  epoch  trend
    valid/Loss   0.125   0.125      8  █▄▃▂▂▁▁▁
    """
    shown = important(trends, most, monitor)
    if not shown:
        return []
    rows = [("now", "best", "epoch"), *map(cells, shown)]
    numbers = list(map(_column, zip(*rows, strict=True)))
    now, best, epoch = (GAP + len(column[0]) for column in numbers)
    names = [printable(trend.info.key) for trend in shown]
    least = min(max(SHORTEST_NAME, width - now - best - GAP - SHORTEST_TREND), width - now)
    name = max(len("metric"), min(WIDEST_NAME, least, max(map(len, names))))
    room = width - name - now
    if room < 0:
        return []
    kept = [room >= best, room >= best + GAP + SHORTEST_TREND, room >= best + epoch + GAP + SHORTEST_TREND]
    numbers = [column for column, is_kept in zip(numbers, (True, kept[0], kept[2]), strict=True) if is_kept]
    columns = [[truncate(text, name).ljust(name) for text in ("metric", *names)], *numbers]
    if kept[1]:
        length = min(LONGEST_TREND, room - best - (epoch if kept[2] else 0) - GAP)
        columns.append(["trend", *(_trend(trend, length, characters) for trend in shown)])
    lines = [(" " * GAP).join(row).rstrip() for row in zip(*columns, strict=True)]
    hidden = len(trends) - len(shown)
    return [*lines, *([truncate(f"and {count(hidden, 'more metric')}", width)] if hidden else [])]


def cells(trend: Trend, absent: str = "-") -> tuple[str, str, str]:
    """Return the texts of the current value, the best value and its epoch."""
    now = absent if trend.now is None else short(trend.now)
    return (now, absent, absent) if trend.best is None else (now, short(trend.best.value), str(trend.best.epoch))


def _column(texts: Sequence[str]) -> list[str]:
    width = max(NARROWEST if texts[0] != "epoch" else 0, *map(len, texts))
    return [text.rjust(width) for text in texts]


def _trend(trend: Trend, length: int, characters: str) -> str:
    return sparkline([value for _, value in trend.points(length)], characters)
