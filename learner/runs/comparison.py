"""Comparison of runs: the settings that differ, and the results."""

import abc
import collections
import dataclasses
import functools
import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from learner.errors import LearnerError, near
from learner.runs.flat_config import text_of
from learner.runs.history import Point
from learner.runs.run_reader import RunReader
from learner.util.fragments import fragment, preformatted
from learner.util.metric_order import ordered
from learner.util.several import as_several
from learner.util.text import abbreviate, aligned, by_number, count, duration, printable, short

ALWAYS_DIFFER = ("directory",)
FIXED = ("run", "directory", "status", "epochs", "steps", "seconds")
PROGRAM = "train step"
DERIVED = (".batches", ".rows per batch", ".first row")
NEUTRAL = ("optimizer.weight_decay_on", "all")
"""A default that only the classes for configs have. It equals an absent setting."""
SECONDARY = ("last", "steps", "epoch", "epochs")
"""Columns that narrow terminals omit, the first ones first."""
OF_TRAINING = ("train/", "custom/", "valid/", "valid-")
"""The beginnings of the keys of metrics that `fit` measures."""
GAP = 2
CELL = 24
"""The most characters of a setting."""
Row = dict[str, Any]
Run = RunReader | str | os.PathLike[str]


class ComparisonTable(abc.ABC):
    """Base class of comparisons: rows by column, and their form as a text table.

    Attributes:
      rows: a mapping for each row, all with the same keys.
    """

    rows: tuple[Row, ...]

    @abc.abstractmethod
    def lines(self, settings: int | None = None, width: int | None = None) -> list[str]:
        """Return the comparison as a text table."""

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        """Return the table for a notebook."""
        return fragment(preformatted(self.lines()))

    def columns(self) -> list[str]:
        """Return the column names, in order."""
        return list(self.rows[0])


@dataclasses.dataclass(frozen=True)
class Comparison(ComparisonTable):
    """The result of `compare`.

    Attributes:
      settings: the keys of the configs that differ; the facts about the data that differ (`data.train.rows`); and
        `train step`, if steps of one config compute something else.
      metrics: the keys of the shown metrics.
      requested: the columns that `lines` shows at any width: requested metrics and the sort column.
      rows: a mapping for each run: `run`, `directory`, `status`, `epochs`, `steps`, `seconds`, the settings by key
        (with the prefix `config.` if another column has that name), and for each metric `<key> best`, `<key> best
        epoch` and `<key> last`, or `None` if the run has no value.
      higher: the metrics of which higher values are better.
      equal: the keys of the settings and facts that do not differ.
      facts: the keys of facts about the data, and of the train step, which no config has.
    """

    settings: tuple[str, ...]
    metrics: tuple[str, ...]
    requested: tuple[str, ...]
    rows: tuple[Row, ...]
    higher: frozenset[str]
    equal: frozenset[str]
    facts: frozenset[str]

    def lines(self, settings: int | None = None, width: int | None = None) -> list[str]:
        """Return the comparison as a text table.

        Args:
          settings: the largest number of settings; None shows all.
          width: the width of the terminal in characters. If the table is wider, first whole columns are omitted; then
            the table is transposed; then only the columns that fit are shown: the requested ones, the first metric, and
            the first settings before the rest.
        """
        first = {*self.settings[:settings]}
        shown = [key for key in self.settings if key in first or setting_column(key) in self.requested]
        columns = self._columns(shown, ())
        if width is None:
            return _table(columns.values())
        for number in range(len(SECONDARY) + 1):
            columns = self._columns(shown, SECONDARY[:number])
            if max(map(len, text := _table(columns.values()))) <= width:
                return text
        every = len(self._columns(shown, ()))
        return fitted_table(list(columns.values()), width, lambda: self._fitting(columns, shown, width), every)

    def _columns(self, settings: Sequence[str], left_out: Sequence[str]) -> dict[str, list[str]]:
        """Return the columns as texts, titles first, by their names in `rows`; metrics by their keys."""
        columns: dict[str, tuple[str, list[str]]] = {}

        def add(name: str, title: str, texts: Iterable[str]) -> None:
            if title not in left_out or name in self.requested:
                columns[name] = title, list(texts)

        add("run", "run", (row["run"] for row in self.rows))
        add("status", "status", (row["status"].partition(":")[0] for row in self.rows))
        add("epochs", "epochs", (str(row["epochs"]) for row in self.rows))
        add("steps", "steps", (str(row["steps"]) for row in self.rows))
        add("seconds", "time", (duration(row["seconds"]) for row in self.rows))
        title = last_part(self.settings)
        for key in settings:
            columns[setting_column(key)] = title(key), setting_texts(self.rows, key)
        for key in self.metrics:
            best, epoch, last = ([row[f"{key} {what}"] for row in self.rows] for what in ("best", "best epoch", "last"))
            if "last" in left_out:
                best = [b if a is None else a for a, b in zip(best, last, strict=True)]
            add(key, key, map(cell, best))
            add(f"{key} best epoch", "epoch", map(cell, epoch))
            add(f"{key} last", "last", map(cell, last))
        return {name: list(map(printable, [title, *texts])) for name, (title, texts) in columns.items()}

    def _fitting(self, columns: Mapping[str, list[str]], settings: Sequence[str], width: int) -> list[list[str]]:
        """Return the columns that fit, in order: always the requested ones, then the most important ones."""
        needed = [name for name in ("run", *self.requested, *self.metrics[:1]) if name in columns]
        others = ["status", *map(setting_column, settings), *self.metrics, *columns]
        kept, used = set(), -GAP
        for name in dict.fromkeys([*needed, *others]):
            size = max(map(len, columns[name])) + GAP
            if name in needed or used + size <= width:
                kept.add(name)
                used += size
        return [column for name, column in columns.items() if name in kept]


@dataclasses.dataclass(frozen=True)
class _RunSummary:
    """The values of a run that a comparison shows. Hundreds of long runs need not be in memory at once."""

    fixed: Row
    from_file: bool
    config: dict[str, Any]
    fingerprint: dict[str, Any]
    optimizer: dict[str, Any]
    best: dict[str, Point | None]
    last: dict[str, Point | None]
    higher: frozenset[str]

    @classmethod
    def of(cls, given: RunReader | str | os.PathLike[str]) -> "_RunSummary":
        run = given if isinstance(given, RunReader) else RunReader(given)
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
        return cls(fixed, run.has_config, run.config, run.fingerprint, run.optimizer, best, last, higher)

    @functools.cached_property
    def settings(self) -> dict[str, Any]:
        """The config and the other recorded facts: data, program, seed and learning rate."""
        return {**self.fingerprint, **self.config}

    def in_common_form(self) -> "_RunSummary":
        """Return the summary with the model and the schedule in the form common to runs from configs and from
        Python.
        """
        config = dict(self.config)
        if isinstance(model := config.get("model"), str):
            config["model"] = model.partition(" (")[0].rpartition(".")[2]
        if isinstance(config.get("lr"), str):
            config["lr"] = self.fingerprint.get("lr", config["lr"])
        return dataclasses.replace(self, config=config)

    def with_recorded_optimizer(self) -> "_RunSummary":
        """Return the summary with the optimizer as the run recorded it, however it was specified."""
        config: dict[str, Any] = {}
        for key, value in self.config.items():
            if key == "optimizer":
                config |= {k: None if (k, v) == NEUTRAL else v for k, v in self.optimizer.items()}
            elif not key.startswith("optimizer."):
                config[key] = value
        return dataclasses.replace(self, config=config)


def compare(runs: Run | Iterable[Run], metrics: str | Sequence[str] = (), sort: str | None = None) -> Comparison:
    """Compare runs.

    Args:
      runs: one or more runs, or their directories. Each is released before the next is read, so a generator needs the
        memory of one run.
      metrics: keys (`valid/Loss`) or names (`Loss`, for all splits that have it); default: the validation metrics that
        most of the runs have, else the training metrics; and all metrics of evaluations, such as `test/Loss`.
      sort: a column to sort by: a metric by its best value, the best run first; a setting or `seconds`, `steps`,
        `epochs`, `status` or `run`, the smallest first. Runs without a value come last. Default: the given order.

    Raises:
      LearnerError: there is no such metric or column.
    """
    summaries = list(map(_RunSummary.of, as_several(runs)))
    if len({run.from_file for run in summaries if run.config}) > 1:
        summaries = [run.in_common_form() for run in summaries]
    optimized = [run for run in summaries if "optimizer" in run.config]
    # Only configs of one optimizer have the same keys for its settings and for those of nested optimizers.
    is_same = all(run.from_file for run in optimized) and len({str(run.config["optimizer"]) for run in optimized}) == 1
    if not is_same and all(run.optimizer for run in optimized):
        summaries = [run.with_recorded_optimizer() for run in summaries]
    known = list(dict.fromkeys(key for run in summaries for key in run.last))
    chosen = [key for name in as_several(metrics) for key in _keys(name, known)] or _usual(summaries, known)
    requested = list(chosen) if metrics else []
    chosen += [sort] if sort in known and sort not in chosen else []
    settings = _differing(summaries)
    rows = [_row(run, settings, chosen) for run in summaries]
    higher = frozenset().union(*(run.higher for run in summaries))
    if sort is not None:
        column = sort_column(sort, rows[0], chosen, settings)
        rows = _sorted(rows, column, is_descending=column in higher)
        requested = [*requested, column]
    every = {key for run in summaries for key in run.settings}
    facts = {key for key in every if key == PROGRAM or key.startswith("data.")}.difference(
        *(run.config for run in summaries)
    )
    return Comparison(
        tuple(settings),
        tuple(chosen),
        tuple(dict.fromkeys(requested)),
        tuple(rows),
        higher,
        frozenset(every.difference(settings)),
        frozenset(facts),
    )


def _keys(name: str, known: Sequence[str]) -> list[str]:
    matching = [key for key in known if name in (key, key.split("/", 1)[1])]
    if not matching:
        names = [*known, *dict.fromkeys(key.split("/", 1)[1] for key in known)]
        raise LearnerError(f"no run has a metric {name!r}: {near(name, names)}", code="run-metric-unknown", name=name)
    return matching


def _usual(runs: Sequence[_RunSummary], known: Sequence[str]) -> list[str]:
    """Return the numeric metrics of validations, or else of training, and of evaluations. Those that less than half of
    the runs have are left out, except for evaluations: often only the best of many runs meet the test data.
    """
    last = {key: [point.value for run in runs if (point := run.last.get(key)) is not None] for key in known}
    usual = [
        key
        for key in known
        if (2 * len(last[key]) >= len(runs) or not key.startswith(OF_TRAINING)) and not isinstance(last[key][0], str)
    ]
    monitor = next(filter(None, (run.config.get("with_file_checkpointer.monitor") for run in runs)), None)
    common = ordered(usual, monitor)
    hidden = ("train/",) if any(key.startswith(("valid/", "valid-")) for key in common) else ()
    # Of the numbers of hooks, only those that were monitored have a direction, and so a best value.
    aside = {key for key in common if key.startswith("custom/") and all(run.best.get(key) is None for run in runs)}
    return [key for key in common if key not in aside and not key.startswith(hidden)]


def _differing(runs: Sequence[_RunSummary]) -> list[str]:
    """Return the settings and facts that differ, first those of all runs, then those that some runs lack."""
    configs = [run for run in runs if run.config]
    keys = dict.fromkeys(key for run in configs for key in run.config if key not in ALWAYS_DIFFER)
    settings = [key for key in keys if _differs(key, configs)]
    facts = _differing_facts([run for run in runs if run.fingerprint], settings)
    found = _without_duplicates(settings, facts, runs)
    return sorted(found, key=lambda key: any(run.settings.get(key) is None for run in configs))


def _differs(key: str, runs: Sequence[_RunSummary]) -> bool:
    """Return True if a setting differs between the runs that may have it: configs and runs from Python have different
    keys. None equals an absent setting, because both look the same in the table.
    """
    kinds = {run.from_file for run in runs if key in run.config}
    first, *others = (run.settings.get(key) for run in runs if run.from_file in kinds or key in run.settings)
    return any(type(value) is not type(first) or value != first for value in others)


def _without_duplicates(settings: Sequence[str], facts: Sequence[str], runs: Sequence[_RunSummary]) -> list[str]:
    """Return settings and facts without duplicates: of `train.batch_size` and the fact `data.train.batch_size`, keep
    the setting, or the fact if only that is known for all runs.
    """
    by_name: dict[str, list[str]] = {}
    for key in settings:
        by_name.setdefault(_name(key), []).append(key)
    dropped: set[str] = set()
    for fact in facts:
        values = [run.settings.get(fact) for run in runs]
        named = {key: [run.settings.get(key) for run in runs] for key in by_name.get(_name(fact), ())}
        duplicates = {
            k: own for k, own in named.items() if all(a in (None, b) for a, b in zip(own, values, strict=True))
        }
        dropped |= {fact} if values in duplicates.values() else set(duplicates)
    return [key for key in (*settings, *facts) if key not in dropped]


def _name(key: str) -> str:
    return key.rpartition(".")[2].removeprefix("with_")


def _differing_facts(runs: Sequence[_RunSummary], settings: Sequence[str]) -> list[str]:
    """Return the keys of the fingerprints that differ. Programs of different configs always differ, and derived facts
    are shown only if no other fact differs.
    """
    keys = dict.fromkeys(key for run in runs for key in run.fingerprint if key.startswith("data."))
    facts = [key for key in keys if len({str(run.fingerprint.get(key)) for run in runs}) > 1]
    facts = [key for key in facts if not key.endswith(DERIVED)] or facts
    programs: dict[str, set[str]] = {}
    for run in runs:
        # The seed makes no other program, so that runs of other models show it even if they share no seed.
        config = str([run.fingerprint.get("versions"), *(run.config.get(key) for key in settings if key != "seed")])
        programs.setdefault(config, set()).add(str(run.fingerprint.get(PROGRAM)))
    return facts + [PROGRAM] * any(len(matching) > 1 for matching in programs.values())


def _row(run: _RunSummary, settings: Sequence[str], metrics: Sequence[str]) -> Row:
    row = {**run.fixed, **{setting_column(key): run.settings.get(key) for key in settings}}
    for key in metrics:
        best, last = run.best.get(key), run.last.get(key)
        row |= {f"{key} best": best and best.value, f"{key} best epoch": best and best.epoch}
        row[f"{key} last"] = last and last.value
    return row


def sort_column(sort: str, columns: Collection[str], metrics: Sequence[str], settings: Sequence[str]) -> str:
    """Return the key of the metric, or the column, that `sort` names."""
    key = next((key for key in metrics if sort in (key, key.split("/", 1)[1])), None)
    if key is not None:
        return key
    title = last_part(settings)
    names = {title(setting): setting_column(setting) for setting in settings}
    column = names.get(sort, "seconds" if sort == "time" else sort)
    if column not in columns:
        raise LearnerError(
            f"there is no column {sort!r} to sort by: {near(sort, [*dict.fromkeys([*metrics, *names, *columns])])}",
            code="run-column-unknown",
        )
    return column


def _sorted(rows: list[Row], column: str, is_descending: bool) -> list[Row]:
    if column not in rows[0]:  # a metric
        best = f"{column} best"
        column = best if any(row[best] is not None for row in rows) else f"{column} last"
    return sorted(rows, key=lambda row: sort_rank(row[column], is_descending))


def sort_rank(value: Any, is_descending: bool) -> tuple[int, float, Any]:
    """Return the sort key of a value of a column: numbers, then texts, then missing values and NaN."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return 2, 0.0, []
    if isinstance(value, int | float):
        return 0, -value if is_descending else value, []
    return 1, 0.0, by_number(text_of(value))


def setting_texts(rows: Sequence[Row], setting: str) -> list[str]:
    """Return the values of a setting as texts, abbreviated if they stay different."""
    texts = [" ".join(text_of(row[setting_column(setting)]).split()) for row in rows]
    short = [abbreviate(text, CELL) for text in texts]
    return short if len({*short}) == len({*texts}) else texts


def setting_column(setting: str) -> str:
    """Return the column of a setting, whose key may equal that of another column."""
    return f"config.{setting}" if setting in FIXED else setting


def _table(columns: Iterable[Sequence[str]]) -> list[str]:
    return aligned(list(zip(*columns, strict=True)))


def fitted_table(
    columns: Sequence[Sequence[str]], width: int | None, fitting: Callable[[], Sequence[Sequence[str]]], every: int
) -> list[str]:
    """Return columns as lines of text that fit into the width: as a table, transposed, or only those of `fitting`, with
    the number of the others among all `every` columns.
    """
    text, turned = _table(columns), aligned(columns)
    if width is None or max(map(len, text)) <= width:
        return text
    if max(map(len, turned)) <= width:
        return turned
    shown = fitting()
    hidden = count(every - len(shown), "further column")
    return [*_table(shown), f"{hidden}: --metric=NAME selects, --csv has all"]


def cell(value: float | str | None) -> str:
    """Return the value of a metric as text, or a dash."""
    if value is None:
        return "-"
    if isinstance(value, str):  # for example a confusion matrix: a cell has room for its first row at most
        return "text"
    return str(value) if isinstance(value, int) else short(value)


def last_part(keys: Sequence[str]) -> Callable[[str], str]:
    """Return the shortest unique suffix of each key that does not begin with an index."""
    number = collections.Counter(end for key in keys for end in _ends(key))

    def name(key: str) -> str:
        unique = (end for end in _ends(key) if not end.partition(".")[0].isdecimal() and number[end] == 1)
        return next(unique, key)

    return name


def _ends(key: str) -> list[str]:
    """Return the suffixes of a key, the shortest first.

    >>> _ends("model.layers.0")
    ['0', 'layers.0', 'model.layers.0']
    """
    parts = key.split(".")
    return [".".join(parts[-length:]) for length in range(1, len(parts) + 1)]
