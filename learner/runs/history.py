"""The history of metric values by epoch: recorded during a run, in its summary, and read back from its journal."""

import math
import operator
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from learner.errors import LearnerError, near
from learner.events import MetricInfo
from learner.runs.journal import NUMBERS, is_value, read_journal
from learner.runs.thinning import group_size, thin
from learner.util.fragments import figures, fragment, table
from learner.util.json_values import decode, encode
from learner.util.metric_order import ordered
from learner.util.optional import import_optional
from learner.util.text import aligned, printable, short

MOST_POINTS = 200  # points of a curve in a notebook
MOST_TEXT = 2**20  # characters of a metric's texts: every checkpoint holds the history
ARTIFACTS = (
    "experiment.log",
    "config.yaml",
    "journal.jsonl",
    "population.json",
    "model.json",
    "checkpoint",
    "profile",
)


class Point(NamedTuple):
    """A value with the epoch (0 before the first one) and the optimizer step after which it was measured."""

    epoch: int
    step: int
    value: Any


Row = tuple[int, int, float | str]


class History(Mapping[str, list[Any]]):
    """The values of each metric over each split, in order, by key: floats, or texts of metrics that are not numeric.

    The history of a run under way holds as many of a metric's newest texts as fit into 2²⁰ characters, and at least
    one; the run's journal and logs hold all.

    >>> history = History()
    >>> history.record("train", epoch=1, step=45, values={"Loss": 0.5})
    >>> history.record("train", epoch=2, step=90, values={"Loss": 0.25})
    >>> history["train/Loss"]
    [0.5, 0.25]
    >>> history.best("train/Loss", higher_is_better=False)
    Point(epoch=2, step=90, value=0.25)
    >>> history
    key         values  first  last
    train/Loss       2    0.5  0.25
    """

    def __init__(self) -> None:
        self._points: dict[str, list[Row]] = {}  # plain, because there may be millions of them
        self._lengths: dict[str, int] = {}  # the characters of the texts of a key, once they are counted

    def record(self, split: str, epoch: int, step: int, values: Mapping[str, float | str]) -> None:
        """Add the metric values (by name) of a split. The oldest texts of a metric make room for its newest one."""
        for name, value in values.items():
            key = f"{split}/{name}"
            points = self._points.setdefault(key, [])
            if isinstance(value, str):
                length = self._lengths.get(key) or sum(map(_length, points))
                length += len(value)
                while length > MOST_TEXT and points:
                    length -= _length(points.pop(0))
                self._lengths[key] = length
            points.append((epoch, step, value))

    def record_entry(self, entry: Mapping[str, Any]) -> None:
        """Add the values of a journal line, by key."""
        epoch, step, points = entry["epoch"], entry["step"], self._points
        self._lengths.clear()
        for key, value in entry["values"].items():
            if key not in points:
                points[key] = []
            points[key].append((epoch, step, decode(value) if isinstance(value, str) else value))

    def points(self, key: str) -> list[Point]:
        """Return the values of a key such as `train/Loss` with their positions. Raise `KeyError` if there are none."""
        return list(map(Point._make, self._rows(key)))

    def best(self, key: str, higher_is_better: bool) -> Point | None:
        """Return the best finite number, the earliest of equal ones, or None."""
        numbers = [row for row in self._points.get(key, ()) if _is_finite(row[2])]
        choose = max if higher_is_better else min
        best = choose(numbers, key=operator.itemgetter(2), default=None)
        return None if best is None else Point._make(best)

    def last(self, key: str) -> Point | None:
        """Return the newest value, or None."""
        points = self._points.get(key)
        return Point._make(points[-1]) if points else None

    def replace_newest(self, values: Mapping[str, float]) -> None:
        """Replace the newest value of each of these keys.

        >>> history = History()
        >>> history.record("valid", epoch=1, step=45, values={"Loss": 0.5})
        >>> history.replace_newest({"valid/Loss": 0.25})
        >>> history.points("valid/Loss")
        [Point(epoch=1, step=45, value=0.25)]
        """
        for key, value in values.items():
            epoch, step, _ = self._points[key][-1]
            self._points[key][-1] = epoch, step, value

    def discard(self, keys: Collection[str]) -> None:
        """Remove all values of these keys."""
        for key in keys:
            self._points.pop(key, None)
            self._lengths.pop(key, None)

    def copy(self) -> "History":
        """Return an independent history with the same values."""
        history = History()
        history._points = {key: points.copy() for key, points in self._points.items()}
        return history

    def to_json(self) -> dict[str, Any]:
        """Return the history as plain lists, for `json`."""
        return {
            key: [[epoch, step, encode(value)] for epoch, step, value in points] for key, points in self._points.items()
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "History":
        """Return the history from the result of `to_json`.

        Raises:
          LearnerError: the value is not a result of `to_json`.

        >>> History.from_json({"valid/Loss": [[1, 45, "NaN"]]})["valid/Loss"]
        [nan]
        """
        history = cls()
        if not isinstance(content, Mapping):
            raise LearnerError("the history is damaged: it needs values by key", code="run-history-damaged")
        for key, points in content.items():
            if "/" not in key or not isinstance(points, list) or not points or not all(map(_is_point, points)):
                raise LearnerError(
                    f"the history of {short(key)!r} is damaged: it needs points [epoch, step, value]",
                    code="run-history-damaged",
                )
            history._points[key] = [(epoch, step, decode(value)) for epoch, step, value in points]
        return history

    def _rows(self, key: str) -> list[Row]:
        if key not in self._points:
            raise KeyError(f"no value of {key!r} yet; {near(key, list(self._points))}")
        return self._points[key]

    def __getitem__(self, key: str) -> list[Any]:
        return [value for _, _, value in self._rows(key)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._points)

    def __len__(self) -> int:
        return len(self._points)

    def __eq__(self, other: object) -> bool:
        return self.to_json() == other.to_json() if isinstance(other, History) else NotImplemented

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` with a row for each `epoch` and `step` at which values were measured (its index),
        and a column for each key. Missing values are NaN; texts, such as confusion matrices, are objects.

        Raises:
          LearnerError: pandas is not installed.
        """
        pandas = import_optional("pandas", "pandas", "History.to_pandas")
        rows: dict[tuple[int, int], dict[str, float | str]] = {}
        for key, points in self._points.items():
            for epoch, step, value in points:
                rows.setdefault((epoch, step), {})[key] = value
        places = sorted(rows)
        index = pandas.MultiIndex.from_tuples(places, names=["epoch", "step"])
        return pandas.DataFrame([rows[place] for place in places], index, ordered(self._points))

    def html(self, best: Mapping[str, Point | None] | None = None) -> str:
        """Return a table and the curves of the numeric metrics as HTML for a notebook.

        Args:
          best: the best value of each key, or None for a key without one; default: show no best values.
        """
        points_of = {key: self._points[key] for key in ordered(self._points)}
        numeric = {key: points for key, points in points_of.items() if not isinstance(points[-1][2], str)}
        head = ["metric", "first", *(["best", "epoch"] if best is not None else []), "last"]
        rows = []
        for key, points in numeric.items():
            point = (best or {}).get(key)
            middle = [short(point.value), str(point.epoch)] if point else ["", ""]
            rows.append([key, short(points[0][2]), *(middle if best is not None else []), short(points[-1][2])])
        splits = dict.fromkeys(key.partition("/")[0] for key in numeric)
        curves: dict[str, dict[str, list[tuple[int, float]]]] = {}
        for key, points in numeric.items():
            split, name = key.split("/", 1)
            _, steps, values = zip(*(row for row in points if not isinstance(row[2], str)), strict=True)
            series = thin(steps, values, group_size(len(steps), MOST_POINTS))
            line = list(zip(series.step.tolist(), series.mean.tolist(), strict=True))
            curves.setdefault(name, {each: [] for each in splits})[split] = line
        return table(head, rows) + figures(curves)

    def _repr_html_(self) -> str:
        return fragment(self.html())

    def __repr__(self) -> str:
        rows = [["key", "values", "first", "last"]]
        for key in ordered(self._points):
            points = self._points[key]
            ends = ("text" if isinstance(value, str) else short(value) for _, _, value in (points[0], points[-1]))
            rows.append([printable(key), str(len(points)), *ends])
        return "\n".join(aligned(rows))


def summarize(
    history: History,
    metrics: Sequence[MetricInfo],
    *,
    directory: str | os.PathLike[str],
    epochs: int,
    steps: int,
    stopped_by: str,
    checkpoints: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Return the content of `summary.json`. Nothing in it depends on a clock or on the directory's location.

    Args:
      history: the values.
      metrics: the order and the directions; other metrics of the history follow.
      directory: the run directory; paths are made relative to it.
      epochs: the number of completed epochs, over all resumes.
      steps: the number of optimizer steps, likewise.
      stopped_by: why the run ended.
      checkpoints: the checkpoints on disk, each with `epoch`, `step`, `path` and any further fields.

    Returns:
      `stopped_by`, `epochs`, `steps`; `metrics` by key, each with `unit`, `higher_is_better`, `best` and `last` (both
      with `value`, `epoch` and `step`, or `None`); `checkpoints`; and `artifacts`, the relative paths of the run's
      files.
    """
    infos = {info.key: info for info in metrics}
    infos |= {key: MetricInfo(*_parts(key)) for key in history if key not in infos}
    splits = dict.fromkeys(info.split for info in infos.values())
    return {
        "stopped_by": stopped_by,
        "epochs": epochs,
        "steps": steps,
        "metrics": {key: metric_summary(history, info) for key, info in infos.items()},
        "checkpoints": [{**checkpoint, "path": _relative(checkpoint["path"], directory)} for checkpoint in checkpoints],
        "artifacts": [name for name in (*ARTIFACTS, *splits) if Path(directory, name).exists()] + ["summary.json"],
    }


def read_history(directory: str | os.PathLike[str]) -> History:
    """Return the history of a run from only its `journal.jsonl`, even while the run is training or after it was killed.

    Raises:
      LearnerError: there is no journal.
    """
    history = History()
    for _, entry in read_journal(directory):
        if entry.get("event") in NUMBERS:
            history.record_entry(entry)
    return history


def _parts(key: str) -> tuple[str, str]:
    split, name = key.split("/", 1)
    return split, name


def _is_point(point: Any) -> bool:
    if not isinstance(point, list) or len(point) != 3:
        return False
    epoch, step, value = point
    return isinstance(epoch, int) and isinstance(step, int) and is_value(value)


def _length(row: Row) -> int:
    return len(row[2]) if isinstance(row[2], str) else 0


def _is_finite(value: float | str) -> bool:
    return not isinstance(value, str) and math.isfinite(value)


def metric_summary(history: History, info: MetricInfo) -> dict[str, Any]:
    """Return the unit, the direction, the best and the last value of a metric, as `summary.json` has them."""
    directed = info.higher_is_better is not None
    best = history.best(info.key, bool(info.higher_is_better)) if directed else None
    last = history.last(info.key)
    return {
        "unit": info.unit,
        "higher_is_better": info.higher_is_better,
        "best": best._asdict() if best else None,
        "last": last._asdict() if last else None,
    }


def _relative(path: str | os.PathLike[str], directory: str | os.PathLike[str]) -> str:
    """Return `path` relative to `directory`, or unchanged if it lies elsewhere (`gs://...`)."""
    below = os.path.join(os.path.abspath(directory), "")
    absolute = os.path.abspath(path)
    return absolute.removeprefix(below).replace(os.sep, "/") if absolute.startswith(below) else os.fspath(path)
