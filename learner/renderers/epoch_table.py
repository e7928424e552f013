"""The table of epochs as lines of text: two title lines, then one for each epoch as it ends."""

from collections.abc import Mapping, Sequence

from learner.events import MetricInfo
from learner.util.text import duration, printable, short, truncate

NARROWEST = 7
WIDEST = 16
GAP = 2


class EpochTable:
    """Columns for the numeric metrics that fit into a width. The losses come first if not all fit.

    Args:
      metrics: of the run.
      width: of the terminal, in characters.

    >>> table = EpochTable([MetricInfo("train", "Loss"), MetricInfo("valid", "Loss")], width=80)
    >>> print("\\n".join(table.titles()))
               train    valid
    epoch       Loss     Loss     time
    >>> print(table.row("1", {"train/Loss": 0.5, "valid/Loss": 0.625}, seconds=1.24))
    1            0.5    0.625    1.2 s
    """

    def __init__(self, metrics: Sequence[MetricInfo], width: int) -> None:
        numeric = [info for info in metrics if info.numeric]
        room = width - 2 * (NARROWEST + GAP)
        chosen: set[str] = set()
        for info in sorted(numeric, key=lambda info: (info.name != "Loss", info.split != "train")):
            if room >= GAP + _width(info) or not chosen:
                room -= GAP + _width(info)
                chosen.add(info.key)
        self._columns = [info for info in numeric if info.key in chosen]

    def titles(self) -> list[str]:
        """Return the splits, each over the first of its columns, and the metrics' names."""
        splits = [info.split for info in self._columns]
        first = [split if splits.index(split) == number else "" for number, split in enumerate(splits)]
        names = [_name(info) for info in self._columns]
        return [self._line("", list(map(printable, first)), "").rstrip(), self._line("epoch", names, "time")]

    def row(self, label: str, values: Mapping[str, float | str], seconds: float) -> str:
        """Return one line from `values` by key, blank where a value is missing."""
        texts = [short(values[info.key]) if info.key in values else "" for info in self._columns]
        return self._line(label, texts, duration(seconds))

    def _line(self, label: str, texts: Sequence[str], end: str) -> str:
        cells = [text.rjust(_width(info)) for text, info in zip(texts, self._columns, strict=True)]
        return (" " * GAP).join([label.ljust(NARROWEST), *cells, end.rjust(NARROWEST)])


def _name(info: MetricInfo) -> str:
    return truncate(printable(info.name), WIDEST)


def _width(info: MetricInfo) -> int:
    return max(NARROWEST, len(_name(info)))
