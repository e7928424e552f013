"""Comparison of runs: the settings that differ, and the results."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from learner.errors import LearnerError, near
from learner.runs.flat_config import text_of
from learner.runs.history import Point
from learner.runs.run_reader import RunReader
from learner.util.metric_order import ordered
from learner.util.text import aligned, by_number, count, duration, printable, short

ALWAYS_DIFFER = ("directory",)
FIXED = ("run", "directory", "status", "epochs", "steps", "seconds")
PROGRAM = "train step"
SECONDARY = ("last", "steps", "epoch", "epochs")
"""Columns that narrow terminals do without, the first ones first."""
GAP = 2
Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The result of `compare`.

    Attributes:
      settings: the keys of the configs that differ; facts of the data that do (`data.train.rows`); and `train step`,
        where steps of one config compute something else.
      metrics: the keys of the metrics that are shown.
      rows: a mapping for each run: `run`, `directory`, `status`, `epochs`, `steps`, `seconds`, the settings by key
        (with `config.` before one that is called like another column), and for each metric `<key> best`, `<key> best
        epoch` and `<key> last`, `None` where a run has none.
    """

    settings: tuple[str, ...]
    metrics: tuple[str, ...]
    rows: tuple[Row, ...]

    def columns(self) -> list[str]:
        """Return the column names, in order."""
        return list(self.rows[0])

    def lines(self, settings: int | None = None, width: int | None = None) -> list[str]:
        """Return the comparison as a text table.

        Args:
          settings: the largest number of settings; None shows all.
          width: of the terminal, in characters. If the table is wider, columns are left out whole, then rows and
            columns change places, and then the last columns are counted only.
        """
        shown = self.settings[:settings]
        if width is None:
            return aligned(self._table(shown, ()))
        tables = [self._table(shown, SECONDARY[:number]) for number in range(len(SECONDARY) + 1)]
        for table in (*tables, list(map(list, zip(*tables[-1], strict=True)))):
            text = aligned(table)
            if max(map(len, text)) <= width:
                return text
        columns = list(zip(*tables[-1], strict=True))
        used = itertools.accumulate(max(map(len, column)) + GAP for column in columns)
        fitting = max(1, sum(end - GAP <= width for end in used))
        text = aligned(list(zip(*columns[:fitting], strict=True)))
        return [*text, f"{count(len(columns) - fitting, 'further column')}: --metric=NAME selects, --csv has all"]

    def _table(self, settings: Sequence[str], left_out: Sequence[str]) -> list[list[str]]:
        """Return a row of titles and one for each run, without the columns `left_out`."""
        names = ["run", "status", "epochs", "steps", "time", *map(_last_part(self.settings), settings)]
        for key in self.metrics:
            names += [key, "epoch", "last"]
        kept = [number for number, name in enumerate(names) if name not in left_out or 5 <= number < 5 + len(settings)]
        rows = [list(map(printable, names)), *(self._cells(row, settings, "last" in left_out) for row in self.rows)]
        return [[row[number] for number in kept] for row in rows]

    def _cells(self, row: Row, shown: Sequence[str], best_or_last: bool) -> list[str]:
        cells = [printable(row["run"]), printable(row["status"].partition(":")[0]), str(row["epochs"])]
        cells += [str(row["steps"]), duration(row["seconds"]), *(short(text_of(row[_column(key)])) for key in shown)]
        for key in self.metrics:
            best, epoch, last = (row[f"{key} {what}"] for what in ("best", "best epoch", "last"))
            cells += map(_cell, (last if best is None and best_or_last else best, epoch, last))
        return cells


@dataclasses.dataclass(frozen=True)
class _RunSummary:
    """The values of a run that a comparison shows, so that hundreds of long runs need not be in memory at once."""

    fixed: Row
    config: dict[str, Any]
    fingerprint: dict[str, Any]
    best: dict[str, Point | None]
    last: dict[str, Point | None]
    higher: frozenset[str]

    @classmethod
    def of(cls, run: RunReader) -> "_RunSummary":
        fixed = {
            "run": run.name,
            "directory": str(run.directory),
            "status": str(run.status),
            "epochs": run.epochs,
            "steps": run.step,
            "seconds": round(run.seconds, 3),
        }
        best, last = ({key: find(key) for key in run.history} for find in (run.best, run.history.last))
        higher = frozenset(key for key, info in run.metrics.items() if info.higher_is_better)
        return cls(fixed, run.config, run.fingerprint, best, last, higher)

    @property
    def settings(self) -> dict[str, Any]:
        """The config, the facts about the data, and the program."""
        return {**self.config, **self.fingerprint}


def compare(runs: Iterable[RunReader], metrics: Sequence[str] = (), sort: str | None = None) -> Comparison:
    """Compare runs.

    Args:
      runs: one or more. Each is let go before the next one is taken, so a generator needs the memory of one.
      metrics: keys (`valid/Loss`) or names (`Loss`, for all splits that have it); default: those of validation that
        most of the runs have, else those of training.
      sort: a column to sort by: a metric by its best value, the best run first; a setting or `seconds`, `steps`,
        `epochs`, `status` or `run`, the smallest first. Runs without it are last. Default: in the order given.

    Raises:
      LearnerError: there is no such metric or column.
    """
    summaries = list(map(_RunSummary.of, runs))
    known = list(dict.fromkeys(key for run in summaries for key in run.last))
    chosen = [key for name in metrics for key in _keys(name, known)] or _usual(summaries, known)
    chosen += [sort] if sort in known and sort not in chosen else []
    settings = _differing(summaries)
    rows = [_row(run, settings, chosen) for run in summaries]
    if sort is not None:
        rows = _sorted(rows, summaries, sort, chosen, settings)
    return Comparison(tuple(settings), tuple(chosen), tuple(rows))


def _keys(name: str, known: Sequence[str]) -> list[str]:
    matching = [key for key in known if name in (key, key.split("/", 1)[1])]
    if not matching:
        names = [*known, *dict.fromkeys(key.split("/", 1)[1] for key in known)]
        raise LearnerError(f"no run has a metric {name!r}: {near(name, names)}", code="run-metric-unknown", name=name)
    return matching


def _usual(runs: Sequence[_RunSummary], known: Sequence[str]) -> list[str]:
    """Return the numeric metrics of validations and evaluations, or else of training, that at least half of the runs
    have.
    """
    last = {key: [point.value for run in runs if (point := run.last.get(key)) is not None] for key in known}
    usual = [key for key in known if 2 * len(last[key]) >= len(runs) and not isinstance(last[key][0], str)]
    monitor = next(filter(None, (run.config.get("with_file_checkpointer.monitor") for run in runs)), None)
    common = ordered(usual, monitor)
    other = [key for key in common if key.partition("/")[0] not in ("train", "custom")]
    return other or [key for key in common if key.startswith("train/")]


def _differing(runs: Sequence[_RunSummary]) -> list[str]:
    keys = dict.fromkeys(key for run in runs for key in run.config)
    configs = [run.config for run in runs if run.config]
    differing = [
        key
        for key in keys
        if key not in ALWAYS_DIFFER
        and any(_differ(config.get(key), configs[0].get(key)) for config in configs)  # None is shown as an absent one
    ]
    return differing + _differing_facts([run for run in runs if run.fingerprint], differing)


def _differing_facts(runs: Sequence[_RunSummary], settings: Sequence[str]) -> list[str]:
    """Return the keys of the fingerprints that differ. Programs of different configs always differ, and the first row
    of the data is shown only where no other fact differs.
    """
    keys = dict.fromkeys(key for run in runs for key in run.fingerprint if key.startswith("data."))
    facts = [key for key in keys if len({str(run.fingerprint.get(key)) for run in runs}) > 1]
    facts = [key for key in facts if not key.endswith("first row")] or facts
    programs: dict[str, set[str]] = {}
    for run in runs:
        config = str([run.fingerprint.get("versions"), *(run.config.get(key) for key in settings)])
        programs.setdefault(config, set()).add(str(run.fingerprint.get(PROGRAM)))
    return facts + [PROGRAM] * any(len(matching) > 1 for matching in programs.values())


def _differ(a: Any, b: Any) -> bool:
    return type(a) is not type(b) or a != b


def _row(run: _RunSummary, settings: Sequence[str], metrics: Sequence[str]) -> Row:
    row = {**run.fixed, **{_column(key): run.settings.get(key) for key in settings}}
    for key in metrics:
        best, last = run.best.get(key), run.last.get(key)
        row |= {f"{key} best": _value(best), f"{key} best epoch": best and best.epoch, f"{key} last": _value(last)}
    return row


def _value(point: Point | None) -> float | str | None:
    return None if point is None else point.value


def _sorted(
    rows: list[Row], runs: Sequence[_RunSummary], sort: str, metrics: Sequence[str], settings: Sequence[str]
) -> list[Row]:
    key = next((key for key in metrics if sort in (key, key.split("/", 1)[1])), None)
    names = {_last_part(settings)(setting): _column(setting) for setting in settings}
    column, sign = names.get(sort, "seconds" if sort == "time" else sort), 1.0
    if key is not None:
        best = f"{key} best"
        column = best if any(row[best] is not None for row in rows) else f"{key} last"
        sign = -1.0 if any(key in run.higher for run in runs) else 1.0
    if column not in rows[0]:
        raise LearnerError(
            f"there is no column {sort!r} to sort by: {near(sort, [*metrics, *names, *rows[0]])}",
            code="run-column-unknown",
        )

    def rank(row: Row) -> tuple[int, float, Any]:
        value = row[column]
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return 2, 0.0, []
        number = isinstance(value, int | float)
        return (0, sign * value, []) if number else (1, 0.0, by_number(text_of(value)))

    return sorted(rows, key=rank)


def _column(setting: str) -> str:
    """Return the column of a setting, whose key may equal that of another column."""
    return f"config.{setting}" if setting in FIXED else setting


def _cell(value: float | str | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):  # a confusion matrix, say, of which a cell has room for the first row at most
        return "text"
    return str(value) if isinstance(value, int) else short(value)


def _last_part(keys: Sequence[str]) -> Callable[[str], str]:
    """Return the shortest unique suffix of each key that does not begin with an index."""

    def name(key: str) -> str:
        parts = key.split(".")
        for length in range(1, len(parts)):
            end = "." + ".".join(parts[-length:])
            if not parts[-length].isdecimal() and sum(("." + other).endswith(end) for other in keys) == 1:
                return end[1:]
        return key

    return name
