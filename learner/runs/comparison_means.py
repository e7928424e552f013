"""Means over repeated runs, such as runs that differ only in the seed."""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from learner.errors import LearnerError, first_of, near
from learner.runs.comparison import (
    GAP,
    PROGRAM,
    Comparison,
    ComparisonTable,
    Row,
    Run,
    cell,
    compare,
    fitted_table,
    last_part,
    setting_column,
    setting_texts,
    sort_column,
    sort_rank,
)
from learner.runs.spread import FEWEST, Spread, counts_text
from learner.util.number_checks import is_number
from learner.util.several import as_several
from learner.util.text import count, join_names, printable

SHOWN = 4
"""The most keys in a note."""
WHICH = "best", "last"
STATISTICS = "count", "mean", "std", "low", "high"


@dataclasses.dataclass(frozen=True)
class ComparisonMeans(ComparisonTable):
    """The result of `compare_means`.

    Attributes:
      over: the settings in which the runs of a row differ.
      settings: the settings and facts in which the rows differ.
      varying: facts about the data that differ within a row.
      metrics: the keys of the metrics with numbers.
      texts: the keys of requested metrics that are texts, such as confusion matrices, which have no mean.
      rows: a mapping for each configuration: `runs` and `unended` (numbers of runs), `seconds` (their mean),
        `directories`, `steps` and each setting of `over` (tuples with a value for each run), the settings by key, and
        for each metric `<key> best mean` and `<key> last mean`, with `count` (the runs that have a finite value),
        `std`, `low` and `high` in place of `mean`; see `learner.runs.spread.Spread`. A number is `None` without enough
        values.
    """

    over: tuple[str, ...]
    settings: tuple[str, ...]
    varying: tuple[str, ...]
    metrics: tuple[str, ...]
    texts: tuple[str, ...]
    rows: tuple[Row, ...]

    def lines(self, settings: int | None = None, width: int | None = None) -> list[str]:
        """Return the means of the best values as a text table, with notes about runs that are hard to compare. Metrics
        without a best value have their last one.

        Args:
          settings: the largest number of settings; None shows all.
          width: the width of the terminal in characters. A table that is wider is transposed, or else its last columns
            are omitted.
        """
        title = last_part((*self.settings, *self.over))
        columns = [[title(key), *setting_texts(self.rows, key)] for key in self.settings[:settings]]
        columns.append(["runs", *map(self._runs, self.rows)])
        for key in self.metrics:
            columns += self._columns(key)
        columns = [list(map(printable, column)) for column in columns]
        text = fitted_table(columns, width, lambda: _first_columns(columns, width or 0), len(columns))
        return [*text, *self._notes()]

    def _runs(self, row: Row) -> str:
        """Return the number of runs, and of those with a finite value of any metric if it differs."""
        counts = [row[f"{key} {_shown(self.rows, key)} count"] for key in self.metrics]
        return counts_text(max(counts, default=row["runs"]), row["runs"])

    def _columns(self, key: str) -> list[list[str]]:
        which = _shown(self.rows, key)
        values = {name: [row[f"{key} {which} {name}"] for row in self.rows] for name in STATISTICS}
        columns = [[key, *map(cell, values["mean"])], ["std", *map(cell, values["std"])]]
        # Of one metric only, as the table would be too wide to read.
        if len(self.metrics) == 1 and any(number >= FEWEST for number in values["count"]):
            ends = zip(values["low"], values["high"], values["count"], strict=True)
            intervals = [f"{cell(low)} to {cell(high)}" if number >= FEWEST else "" for low, high, number in ends]
            columns.append(["95 % interval", *intervals])
        return columns

    def _notes(self) -> list[str]:
        notes = [f"{key} is a text and has no mean" for key in self.texts]
        if self.varying:
            notes.append(f"runs of one row also differ in {join_names(self.varying, SHOWN)}")
        # Without a setting that differs, all runs of a row repeat the first one.
        repeated = sum(row["runs"] - max(1, len({*self._repetitions(row)})) for row in self.rows)
        if repeated:
            verb, what = "repeats" if repeated == 1 else "repeat", " and ".join(self.over) or "settings"
            notes.append(f"{count(repeated, 'run')} {verb} the {what} of another run of the row")
        if uneven := [row["steps"] for row in self.rows if len({*row["steps"]}) > 1]:
            low, high = min(map(min, uneven)), max(map(max, uneven))
            notes.append(f"runs of one row have different numbers of steps, from {low:,} to {high:,}")
        if unended := sum(row["unended"] for row in self.rows):
            notes.append(f"{count(unended, 'run')} {'has' if unended == 1 else 'have'} not ended")
        for missing, keys in self._missing().items():
            verb = "has" if missing == 1 else "have"
            notes.append(f"{count(missing, 'run')} {verb} no finite value of {join_names(keys, SHOWN)}")
        return notes

    def _repetitions(self, row: Row) -> list[str]:
        """Return a text of the settings of `over` for each run of a row."""
        return [*map(repr, zip(*(row[setting_column(key)] for key in self.over), strict=True))]

    def _missing(self) -> dict[int, list[str]]:
        """Return the metrics that some runs do not have, by the number of these runs."""
        missing: dict[int, list[str]] = {}
        for key in self.metrics:
            name = f"{key} {_shown(self.rows, key)} count"
            if number := sum(row["runs"] - row[name] for row in self.rows):
                missing.setdefault(number, []).append(key)
        return missing


def compare_means(
    comparison: Comparison | Run | Iterable[Run], over: str | Sequence[str] = ("seed",), sort: str | None = None
) -> ComparisonMeans:
    """Return the mean, standard deviation and 95 % interval of the metrics over runs that differ only in some settings.

    Args:
      comparison: the runs, as `compare` takes or returns them.
      over: the settings in which the runs of a row differ, by key (`vars.fold`) or the end of it (`fold`). A key stands
        for all keys below it, too.
      sort: a column to sort by: a metric by its mean, the best first, and rows that lack the value of a run after the
        others; a setting, `runs` or `seconds`, the smallest first. Default: the order of the comparison.

    Raises:
      LearnerError: the runs have no such setting, or several; or there is no such column.
    """
    if not isinstance(comparison, Comparison):
        comparison = compare(comparison)
    repeated = {key for name in as_several(over) for key in _keys_of(comparison, name)}
    keys = [key for key in comparison.settings if key in repeated]
    others = [key for key in comparison.settings if key not in repeated]
    # Facts that follow from the repeated settings, such as the rows of a fold, must not divide a row. Those that differ
    # between runs of the same settings do: the runs were given other data. So do other programs: other models.
    given = [key for key in others if key not in comparison.facts]
    same = _grouped(comparison.rows, [*given, *keys])
    own = [key for key in others if key in comparison.facts and (key == PROGRAM or _differs(key, same))]
    groups = _grouped(comparison.rows, [*given, *own])
    varying = [key for key in others if key in comparison.facts and _differs(key, groups)]
    settings = [key for key in others if key not in varying]
    metrics = [key for key in comparison.metrics if any(is_number(row[f"{key} last"]) for row in comparison.rows)]
    texts = [key for key in comparison.metrics if key in comparison.requested and key not in metrics]
    rows = [_row(group, settings, keys, metrics) for group in groups]
    if sort is not None:
        rows = _sorted(rows, sort, settings, metrics, comparison.higher)
    return ComparisonMeans(tuple(keys), tuple(settings), tuple(varying), tuple(metrics), tuple(texts), tuple(rows))


def _keys_of(comparison: Comparison, name: str) -> list[str]:
    """Return the keys that a name stands for: the key and those below it, or the one key that ends with it."""
    known = [*comparison.settings, *sorted(comparison.equal)]
    if found := [key for key in known if key == name or key.startswith(f"{name}.")]:
        return found
    ending = [key for key in known if key.endswith(f".{name}")]
    # Of keys that do not differ, any will do: they change nothing.
    differing = [key for key in ending if key in comparison.settings]
    if len(differing) > 1:
        raise LearnerError(f"{name!r} is {' or '.join(differing)}: give the whole key", code="run-column-unknown")
    if not ending:
        known_text = near(name, known, first_of(known)) if known else "they have recorded none"
        raise LearnerError(f"the runs have no setting {name!r}: {known_text}", code="run-column-unknown")
    return differing or ending


def _grouped(rows: Iterable[Row], keys: Sequence[str]) -> list[list[Row]]:
    """Return the rows in groups of equal settings, in the order of the first row of each."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(repr([row[setting_column(key)] for key in keys]), []).append(row)
    return list(groups.values())


def _differs(key: str, groups: Iterable[Sequence[Row]]) -> bool:
    """Return True if a setting differs within a group."""
    return any(len({repr(row[setting_column(key)]) for row in group}) > 1 for group in groups)


def _row(group: Sequence[Row], settings: Iterable[str], over: Iterable[str], metrics: Iterable[str]) -> Row:
    row: Row = {setting_column(key): group[0][setting_column(key)] for key in settings}
    row |= {"runs": len(group), "unended": sum(not each["status"].startswith("ended") for each in group)}
    row["seconds"] = sum(each["seconds"] for each in group) / len(group)
    for column in ("steps", *map(setting_column, over)):
        row[column] = tuple(each[column] for each in group)
    row["directories"] = tuple(each["directory"] for each in group)
    for key in metrics:
        for which in WHICH:
            values = [each[f"{key} {which}"] for each in group]
            spread = Spread.of({}, [float(value) for value in values if is_number(value)])
            numbers = {name: getattr(spread, name) for name in STATISTICS}
            row |= {f"{key} {which} {name}": x if math.isfinite(x) else None for name, x in numbers.items()}
    return row


def _shown(rows: Sequence[Mapping[str, Any]], key: str) -> str:
    """Return `best`, or `last` for a metric without a direction."""
    return "best" if any(row[f"{key} best count"] for row in rows) else "last"


def _sorted(
    rows: list[Row], sort: str, settings: Sequence[str], metrics: Sequence[str], higher: frozenset[str]
) -> list[Row]:
    name = sort_column(sort, [*map(setting_column, settings), "runs", "seconds"], metrics, settings)
    if name not in metrics:
        return sorted(rows, key=lambda row: sort_rank(row[name], is_descending=False))
    column = f"{name} {_shown(rows, name)}"

    def rank(row: Row) -> tuple[bool, Any]:
        return row[f"{column} count"] < row["runs"], sort_rank(row[f"{column} mean"], is_descending=name in higher)

    return sorted(rows, key=rank)


def _first_columns(columns: Sequence[Sequence[str]], width: int) -> Sequence[Sequence[str]]:
    """Return the first columns, as many as fit into the width."""
    ends = itertools.accumulate(GAP + max(map(len, column)) for column in columns)
    return columns[: max(1, sum(end <= width + GAP for end in ends))]
