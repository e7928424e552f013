"""Means over runs that repeat each other, such as runs that differ only in the seed."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from learner.errors import LearnerError, first_of, near
from learner.runs.comparison import PROGRAM, Comparison, Row, last_part, setting_column, sort_rank
from learner.runs.flat_config import text_of
from learner.runs.spread import FEWEST, Spread
from learner.util.fragments import fragment, preformatted
from learner.util.text import abbreviate, aligned, count, join_names, printable, short

CELL = 24
"""The most characters of a setting."""
SHOWN = 4
"""The most keys in a note."""
WHICH = "best", "last"
STATISTICS = "count", "mean", "std", "low", "high"


@dataclasses.dataclass(frozen=True)
class ComparisonMeans:
    """The result of `compare_means`.

    Attributes:
      over: the settings in which the runs of a row differ.
      settings: the settings in which the rows differ, and facts about the data that differ between rows only.
      varying: facts about the data, and the train step, that differ within a row.
      metrics: the keys of the metrics with numbers.
      rows: a mapping for each configuration: `runs` and `unended` (numbers of runs), `directories`, the settings by
        key, and for each metric `<key> best mean` and `<key> last mean`, with `count` (the runs that have a finite
        value), `std`, `low` and `high` in place of `mean`; see `learner.runs.spread.Spread`. A number is `None` without
        enough values.
    """

    over: tuple[str, ...]
    settings: tuple[str, ...]
    varying: tuple[str, ...]
    metrics: tuple[str, ...]
    rows: tuple[Row, ...]

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        """Return the table for a notebook."""
        return fragment(preformatted(self.lines()))

    def columns(self) -> list[str]:
        """Return the column names, in order."""
        return list(self.rows[0])

    def lines(self, settings: int | None = None, width: int | None = None) -> list[str]:
        """Return the means of the best values as a text table, with notes about runs that are not comparable. Metrics
        without a best value have their last one.

        Args:
          settings: the largest number of settings; None shows all.
          width: the width of the terminal in characters. A table that is wider is transposed.
        """
        title = last_part(self.settings)
        columns = [
            [title(key), *(abbreviate(_text(row[setting_column(key)]), CELL) for row in self.rows)]
            for key in self.settings[:settings]
        ]
        columns.append(["runs", *(str(row["runs"]) for row in self.rows)])
        for key in self.metrics:
            columns += self._columns(key, _shown(self.rows, key))
        table = [list(map(printable, row)) for row in zip(*columns, strict=True)]
        text = aligned(table)
        if width is not None and max(map(len, text)) > width:
            text = aligned([list(row) for row in zip(*table, strict=True)])
        return [*text, *self._notes()]

    def _columns(self, key: str, which: str) -> list[list[str]]:
        cell = lambda value: "-" if value is None else short(value)  # noqa: E731
        mean, std, low, high, number = (
            [row[f"{key} {which} {name}"] for row in self.rows] for name in ("mean", "std", "low", "high", "count")
        )
        columns = [[key, *map(cell, mean)], ["std", *map(cell, std)]]
        # Of one metric only, as the table would be too wide to read.
        if len(self.metrics) == 1 and any(n >= FEWEST for n in number):
            ends = zip(low, high, number, strict=True)
            columns.append(["95 % interval", *(f"{short(a)} to {short(b)}" if n >= FEWEST else "" for a, b, n in ends)])
        return columns

    def _notes(self) -> list[str]:
        notes = []
        if self.varying:
            notes.append(f"runs of one row also differ in {join_names(self.varying, SHOWN)}")
        if unended := sum(row["unended"] for row in self.rows):
            notes.append(f"{unended} of {count(sum(row['runs'] for row in self.rows), 'run')} have not ended")
        for missing, keys in self._missing().items():
            notes.append(f"{count(missing, 'run')} without a finite value of {join_names(keys, SHOWN)}")
        return notes

    def _missing(self) -> dict[int, list[str]]:
        """Return the metrics that some runs do not have, by the number of these runs."""
        missing: dict[int, list[str]] = {}
        for key in self.metrics:
            name = f"{key} {_shown(self.rows, key)} count"
            if number := sum(row["runs"] - row[name] for row in self.rows):
                missing.setdefault(number, []).append(key)
        return missing


def compare_means(comparison: Comparison, over: Sequence[str] = ("seed",), sort: str | None = None) -> ComparisonMeans:
    """Return the mean, standard deviation and 95 % interval of the metrics over runs that differ only in some settings.

    Args:
      comparison: the runs, as `compare` returns them.
      over: the settings in which the runs of a row differ, by key (`vars.fold`) or the end of it (`fold`).
      sort: a column to sort by: a metric by its mean, the best first; a setting or `runs`, the smallest first. Default:
        the order of the comparison.

    Raises:
      LearnerError: the runs have no such setting, or there is no such column.
    """
    keys = [_key_of(comparison, name) for name in over]
    others = [key for key in comparison.settings if key not in keys]
    given = [key for key in others if not _is_fact(key)]
    groups: dict[str, list[Row]] = {}
    for row in comparison.rows:
        groups.setdefault(repr([row[setting_column(key)] for key in given]), []).append(row)
    # Facts follow from the settings: of runs with other seeds or folds, they may differ as well.
    varying = [key for key in others if _is_fact(key) and any(map(_differ_in(setting_column(key)), groups.values()))]
    settings = [key for key in others if key not in varying]
    metrics = [key for key in comparison.metrics if any(_is_number(row[f"{key} last"]) for row in comparison.rows)]
    rows = [_row(group, settings, metrics) for group in groups.values()]
    if sort is not None:
        rows = _sorted(rows, sort, settings, metrics, comparison.higher)
    return ComparisonMeans(tuple(keys), tuple(settings), tuple(varying), tuple(metrics), tuple(rows))


def _key_of(comparison: Comparison, name: str) -> str:
    known = [*comparison.settings, *sorted(comparison.equal)]
    title = last_part(comparison.settings)
    matching = [key for key in known if key == name] or [
        key for key in known if name == title(key) or key.endswith(f".{name}")
    ]
    if not matching:
        raise LearnerError(
            f"the runs have no setting {name!r}: {near(name, known, first_of(known))}",
            code="run-column-unknown",
        )
    return matching[0]


def _is_fact(key: str) -> bool:
    return key == PROGRAM or key.startswith("data.")


def _differ_in(column: str) -> Any:
    return lambda rows: len({repr(row[column]) for row in rows}) > 1


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _row(group: Sequence[Row], settings: Iterable[str], metrics: Iterable[str]) -> Row:
    row: Row = {setting_column(key): group[0][setting_column(key)] for key in settings}
    row |= {
        "runs": len(group),
        "unended": sum(not of_run["status"].startswith("ended") for of_run in group),
        "directories": [of_run["directory"] for of_run in group],
    }
    for key in metrics:
        for which in WHICH:
            values = [of_run[f"{key} {which}"] for of_run in group]
            spread = Spread.of({}, [float(value) for value in values if _is_number(value)])
            row |= {f"{key} {which} {name}": _finite(getattr(spread, name)) for name in STATISTICS}
    return row


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _shown(rows: Sequence[Mapping[str, Any]], key: str) -> str:
    """Return `best`, or `last` for a metric without a direction."""
    return "best" if any(row[f"{key} best count"] for row in rows) else "last"


def _sorted(
    rows: list[Row], sort: str, settings: Sequence[str], metrics: Sequence[str], higher: frozenset[str]
) -> list[Row]:
    title = last_part(settings)
    names = {title(key): setting_column(key) for key in settings}
    key = next((key for key in metrics if sort in (key, key.split("/", 1)[1])), None)
    column = f"{key} {_shown(rows, key)} mean" if key else names.get(sort, sort)
    if column not in rows[0]:
        known = [*metrics, *names, *(setting_column(key) for key in settings), "runs"]
        raise LearnerError(
            f"there is no column {sort!r} to sort by: {near(sort, list(dict.fromkeys(known)))}",
            code="run-column-unknown",
        )
    return sorted(rows, key=lambda row: sort_rank(row[column], is_descending=key in higher))


def _text(value: Any) -> str:
    return " ".join(text_of(value).split())
