"""The table of epochs as lines of text: two title lines, then one for each epoch as it ends."""

import itertools
from collections.abc import Mapping, Sequence

from learner.events import MetricInfo
from learner.util.metric_order import by_importance, ordered
from learner.util.text import abbreviate, duration, printable, short

NARROWEST = 7
WIDEST = 16
GAP = 2


class EpochTable:
    """A table of the most important numeric metrics, in the order of `learner.util.metric_order`.

    Args:
      metrics: the metrics of the run.
      width: the width of the terminal in characters.
      monitor: the metric that selects the best checkpoint, if any.

    Attributes:
      hidden: the number of metrics that do not fit.

    >>> table = EpochTable([MetricInfo("train", "Loss"), MetricInfo("valid", "Loss")], width=80)
    >>> print("\\n".join(table.titles()))
               valid    train
    epoch       Loss     Loss     time
    >>> print(table.row("1", {"train/Loss": 0.5, "valid/Loss": 0.625}, seconds=1.24, best="valid/Loss"))
    1          0.625*     0.5    1.2 s
    """

    def __init__(self, metrics: Sequence[MetricInfo], width: int, monitor: str | None = None) -> None:
        numeric = {info.key: info for info in metrics if info.numeric}
        important = [numeric[key] for key in by_importance(numeric, monitor)]
        used = itertools.accumulate((GAP + _width(info) for info in important), initial=2 * (NARROWEST + GAP))
        fitting = important[: max(1, sum(columns <= width for columns in used) - 1)]
        self._columns = [numeric[key] for key in ordered((info.key for info in fitting), monitor)]
        self.hidden = len(important) - len(fitting)

    def titles(self) -> list[str]:
        """Return the splits, each over the first of its columns, and the metrics' names."""
        splits = [info.split for info in self._columns]
        first = [split if split != before else "" for before, split in zip([None, *splits], splits, strict=False)]
        names = [_name(info) for info in self._columns]
        return [self._line("", list(map(printable, first)), "").rstrip(), self._line("epoch", names, "time")]

    def row(self, label: str, values: Mapping[str, float | str], seconds: float, best: str | None = None) -> str:
        """Return one line of `values` by key, blank where a value is missing, with a mark at the key `best`."""
        texts = [short(values[info.key]) if info.key in values else "" for info in self._columns]
        marks = ["*" if info.key == best else " " for info in self._columns]
        return self._line(label, texts, duration(seconds), marks)

    def _line(self, label: str, texts: Sequence[str], end: str, marks: Sequence[str] = ()) -> str:
        columns = zip(texts, self._columns, marks or " " * len(texts), strict=True)
        cells = "".join(text.rjust(GAP - 1 + _width(info)) + mark for text, info, mark in columns)  # a mark is in a gap
        return label.ljust(NARROWEST + 1) + cells + " " * (GAP - 1) + end.rjust(NARROWEST)


def _name(info: MetricInfo) -> str:
    return abbreviate(printable(info.name), WIDEST)


def _width(info: MetricInfo) -> int:
    return max(NARROWEST, len(_name(info)))
