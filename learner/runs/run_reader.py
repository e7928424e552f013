"""A run, read from its files."""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from learner.config.mappings import is_deep, read_mapping
from learner.errors import LearnerError, near
from learner.events import MetricInfo
from learner.runs.evaluations import read_evaluations
from learner.runs.flat_config import DEEPEST, flat, optimizer_config
from learner.runs.growing import GrowingLines
from learner.runs.history import History, Point
from learner.runs.journal import ENDS, EVALUATION, LARGEST, NUMBERS, OBSERVER_KEYS, entry_of
from learner.runs.layout import MARK, end_word, missing_text, read_summary
from learner.runs.lock import is_locked
from learner.runs.samples import SampleFile, sample_files
from learner.runs.series import epochs_in, has_steps, step_values
from learner.runs.thinning import Floats, Series
from learner.util.fragments import fragment, paragraph
from learner.util.number_checks import is_finite
from learner.util.text import duration, printable
from learner.util.user_warnings import warn

OF_LINES = ("config", "nested_config", "metrics", "known", "ends", "_running")  # caches derived from the journal
SCHEDULE = "the schedule"
"""The key of the learning rate's schedule in a fingerprint."""
TIME_PARTS = ("total", "compile", "data", "train", "valid", "save", "other")
SILENT = 300
"""Seconds without a new line after which a run on another machine counts as dead."""
AFTER = 1e-6
"""The distance, in steps, from the last step before a start to that start."""


@dataclasses.dataclass(frozen=True)
class Status:
    """The status of a run.

    Attributes:
      word: `running`, `ended` (nothing is left to train), `stopped` (before its end, as by Ctrl-C), `failed` (by an
        exception) or `died` (without recording its end, as when it is killed).
      why: the reason for its end, such as `num_epochs` or the exception; empty while it is training.
    """

    word: str
    why: str = ""

    def __str__(self) -> str:
        return f"{self.word}: {self.why}" if self.why else self.word


class RunReader:
    """A run, read from its files. The content is cached; `refresh` reads what was added since.

    Args:
      directory: the run directory.
      name: the name in tables and plots; default: the directory's own name.
      now: the seconds since 1970.

    Raises:
      LearnerError: there is no run.

    Attributes:
      directory: the run directory.
      name: the given name.
      history: the value of each metric at the end of each split, by key (`valid/Loss`).
      journal: the lines of the journal, as mappings.
      evaluations: the evaluations of checkpoints, as lines of `evaluations.jsonl`.
    """

    def __init__(self, directory: str | os.PathLike[str], name: str | None = None, now: float | None = None):
        self.directory = Path(directory)
        if not self.directory.is_dir():
            raise LearnerError(missing_text(self.directory), code="run-directory-missing", directory=self.directory)
        self.name = name or self.directory.resolve().name
        if not os.path.isfile(self.directory / MARK):
            problem = f"has no {MARK}: it is not the directory of a run"
            readable = os.access(self.directory, os.X_OK)
            raise LearnerError(
                f"{self.directory} {problem if readable else 'cannot be read: Permission denied'}",
                code="run-directory-unreadable",
            )
        self._lines = GrowingLines(self.directory / MARK)
        self._reset()
        self.refresh(now)

    def _reset(self) -> None:
        self.journal: list[dict[str, Any]] = []
        self.evaluations: list[dict[str, Any]] = []
        self.history = History()
        self._count = 0

    def refresh(self, now: float | None = None) -> bool:
        """Read new lines of the journal, and update the status of the run.

        Args:
          now: the seconds since 1970.

        Returns:
          True if the run was restarted since the last call, so steps read before may have changed.

        Raises:
          LearnerError: the journal cannot be read.
        """
        try:
            anew, lines = self._lines.read()
        except OSError as error:
            raise LearnerError(
                f"{self.directory} cannot be read: {error.strerror}", code="run-directory-unreadable"
            ) from error
        self._now = time.time() if now is None else now
        for name in ("status", "seconds", *(OF_LINES if lines or anew else ())):
            self.__dict__.pop(name, None)
        if anew:
            self._reset()
        path = self.directory / MARK
        new = [_entry(line, f"{path}, line {number}") for number, line in enumerate(lines, self._count + 1)]
        self._count += len(new)
        self.journal += [entry for entry in new if entry]
        for entry in new:
            if entry.get("event") in NUMBERS:
                self.history.record_entry(entry)
        self._refresh_evaluations()
        return anew or any(entry.get("event") == "start" for entry in new)

    def _refresh_evaluations(self) -> None:
        """Read the evaluations of checkpoints, which other processes may add at any time."""
        evaluations = read_evaluations(self.directory, self.journal)
        if evaluations == self.evaluations:
            return
        self.history.discard({key for entry in self.evaluations for key in entry["values"]})
        self.evaluations = evaluations
        for entry in evaluations:
            self.history.record_entry(entry)
        for name in OF_LINES:
            self.__dict__.pop(name, None)

    def _repr_html_(self) -> str:
        facts = f"{self.status}, {self.epochs} epochs, {self.step:,} steps, {duration(self.seconds)}"
        values = self.history.html({key: self.best(key) for key in self.history})
        return fragment(paragraph(self.name, strong=True), paragraph(facts), values)

    @functools.cached_property
    def status(self) -> Status:
        """The status of the run, from its journal and from the lock that a running process holds."""
        marks: list[dict[str, Any]] = []
        for entry in self.journal:
            # Older versions recorded errors before a line `start`: a run that had ended was not changed by them.
            if entry.get("event") == "error" and marks and marks[-1]["event"] in ENDS:
                continue
            marks += [entry] if entry.get("event") in ("start", *ENDS, "error") else []
        if marks and marks[-1]["event"] in ENDS:
            reason = str(marks[-1].get("stopped_by", ""))
            return Status(end_word(reason), reason)
        if marks and marks[-1]["event"] == "error":
            return Status("failed", str(marks[-1].get("error", "")))
        locked = is_locked(self.directory)
        if locked is None:
            locked = self._now - self.last_sign < SILENT
        return Status("running") if locked else Status("died")

    @functools.cached_property
    def config(self) -> dict[str, Any]:
        """The config of the run, flat: `{"model": "examples.models.MLP", "model.dropout": 0.3}`. For a run started from
        Python, it comes from the journal. Loggers and renderers are left out.
        """
        return flat(self.nested_config)

    @functools.cached_property
    def nested_config(self) -> dict[str, Any]:
        """The config of the run, nested as it was written."""
        config = self._recorded("config")
        if self.has_config:
            try:
                config = read_mapping(self.directory / "config.yaml")
            except LearnerError as error:
                if os.access(self.directory / "config.yaml", os.R_OK):  # it may be readable only by its owner
                    warn(str(error))
                    config = {}
        return {key: value for key, value in config.items() if key not in OBSERVER_KEYS}

    @property
    def has_config(self) -> bool:
        """True if the run has a config file. A link does not count, because it may lead anywhere."""
        path = self.directory / "config.yaml"
        return path.is_file() and not path.is_symlink()

    @property
    def environment(self) -> dict[str, Any]:
        """Versions, devices and the machine of the newest start, and the commit, if any."""
        commit = self._recorded_value("commit")
        return {**flat(self._recorded("environment")), **({"commit": commit} if commit else {})}

    @property
    def fingerprint(self) -> dict[str, Any]:
        """Facts about the data of the newest start by dotted keys (`data.train.rows`); `train step`, eight digits that
        differ if the train step or the optimizer computes something else; and `seed` and `lr`, which all runs record.
        Runs of old versions have none.
        """
        recorded = self._recorded("fingerprint")
        data, programs = recorded.get("data"), recorded.get("programs")
        facts = flat({"data": data}) if isinstance(data, Mapping) else {}
        if isinstance(settings := recorded.get("settings"), Mapping):
            schedules = settings.get("schedules")
            schedule = schedules.get(SCHEDULE) if isinstance(schedules, Mapping) else None
            values = {"seed": settings.get("seed"), "lr": schedule or settings.get("learning rate")}
            facts |= {key: value for key, value in values.items() if value is not None}
        if isinstance(programs, Mapping) and isinstance(hashes := programs.get("hashes"), Mapping):
            parts = [f"{name} {text}" for name, text in sorted(hashes.items()) if not name.startswith("valid")]
            facts["train step"] = hashlib.sha256("".join(parts).encode()).hexdigest()[:8]
            facts["versions"] = str(programs.get("versions"))  # other values of these trace other programs
        return facts

    @property
    def optimizer(self) -> dict[str, Any]:
        """The optimizer of the newest start by dotted keys, in the same form however it was specified: `{"optimizer":
        "adamw", "optimizer.b1": 0.9}`. Runs of old versions have none.
        """
        settings = self._recorded("fingerprint").get("settings")
        described = settings.get("optimizer") if isinstance(settings, Mapping) else None
        if not isinstance(described, Mapping) or not isinstance(described.get("settings"), Mapping):
            return {}
        return flat({"optimizer": optimizer_config(described)})

    def _recorded(self, what: str) -> Mapping[str, Any]:
        value = self._recorded_value(what)
        return value if isinstance(value, Mapping) else {}

    def _recorded_value(self, what: str) -> Any:
        """Return a value from the newest start line of the journal."""
        starts = [entry for entry in self.journal if entry.get("event") == "start"]
        return starts[-1].get(what) if starts else None

    @functools.cached_property
    def samples(self) -> list[SampleFile]:
        """The texts, pictures and histograms that hooks logged, in order of their steps."""
        return sample_files(self.directory, self.journal)

    @functools.cached_property
    def metrics(self) -> dict[str, MetricInfo]:
        """Properties of each metric that has a value, by key."""
        return {key: self.info(key) for key in self.history}

    @functools.cached_property
    def known(self) -> dict[str, MetricInfo]:
        """Properties of the metrics that the run declares, by key, before they have values."""
        infos = (read_summary(self.directory) or {}).get("metrics")
        infos = infos if isinstance(infos, Mapping) else {}
        for entry in (*self.journal, *self.evaluations):
            if entry.get("event") in ("start", EVALUATION) and isinstance(entry.get("metrics"), Mapping):
                infos = {**infos, **entry["metrics"]}
        return {key: _info(key, content) for key, content in infos.items() if "/" in key}

    def info(self, key: str) -> MetricInfo:
        """Return the properties of a metric."""
        return self.known.get(key) or _info(key, None)

    @property
    def epochs(self) -> int:
        """The number of completed epochs."""
        return max(self.ends, default=0)

    @functools.cached_property
    def ends(self) -> dict[int, int]:
        """The last step of each completed epoch."""
        return {entry["epoch"]: entry["step"] for entry in self.journal if entry.get("event") == "epoch"}

    @property
    def steps_per_epoch(self) -> int:
        """The number of optimizer steps in an epoch, or 0 if it is unknown."""
        return non_negative_int(self._recorded_value("steps_per_epoch"))

    @property
    def step(self) -> int:
        """The last optimizer step of the run. A start at an earlier step has removed the steps after it."""
        last = 0
        for entry in self.journal:
            step = non_negative_int(entry.get("step"))
            last = step if entry.get("event") == "start" and "step" in entry else max(last, step)
        return last

    @property
    def start_step(self) -> int:
        """The optimizer step after which the newest start of the run began."""
        return non_negative_int(self._recorded_value("step"))

    @functools.cached_property
    def seconds(self) -> float:
        """The running time in seconds, over all resumes, including time lost between a checkpoint and a crash. A start
        that has ended recorded its total, including the time before its first line in the journal.
        """
        if not self.journal:
            return 0.0
        idle = max(0.0, self._now - time_of(self.journal[-1])) if self.status.word == "running" else 0.0
        began = unrecorded = 0.0
        for entry, running in zip(self.journal, self._running, strict=True):
            if entry.get("event") == "start":
                began = running
            elif (total := _time_parts(entry).get("total")) is not None:
                unrecorded, began = unrecorded + total - (running - began), running
        return self._running[-1] + idle + unrecorded

    @property
    def time_parts(self) -> dict[str, float]:
        """The running time in seconds by part, over all completed resumes; empty if nothing was recorded.

        `total`; `compile`: tracing and compiling; `data`: waiting for batches; `train`: the rest of the training steps;
        `valid`: validations; `save`: waiting for checkpoints; `other`: everything else.
        """
        totals: dict[str, float] = {}
        for name, value in itertools.chain.from_iterable(_time_parts(entry).items() for entry in self.journal):
            totals[name] = totals.get(name, 0.0) + value
        return {name: totals[name] for name in TIME_PARTS if name in totals}

    @functools.cached_property
    def _running(self) -> list[float]:
        """The running time in seconds at each line of the journal, without breaks."""
        total, began, seconds = 0.0, 0.0, []
        is_running, before = True, time_of(self.journal[0]) if self.journal else 0.0
        for entry in self.journal:
            event, now, elapsed = entry.get("event"), time_of(entry), entry.get("elapsed")
            if event == "start":
                began = total
            elif is_running:
                # Lines of older versions have only the time of a clock, which may be set.
                total = max(total, began + elapsed if _is_plausible(elapsed) else total + now - before)
            seconds.append(total)
            # Until the next start the time stands still, whatever is recorded in between, such as an error of an
            # attempt that did not start.
            is_running = event == "start" or (is_running and event not in (*ENDS, "error"))
            before = now
        return seconds

    @property
    def keys(self) -> list[str]:
        """The metrics that have values: of splits, or of single training steps, which are available earlier."""
        steps = [key for key in self.known if key.startswith("train/") and key not in self.history]
        return [*self.history, *(key for key in steps if has_steps(self.directory, *key.split("/", 1)))]

    def best(self, key: str) -> Point | None:
        """Return the best value of a metric in its own direction, or None."""
        direction = self.metrics[key].higher_is_better if key in self.metrics else None
        return None if direction is None else self.history.best(key, direction)

    def rank(self, key: str) -> float:
        """Return the number by which runs are sorted: the best one by a metric first, those without a value last."""
        best = self.best(key)
        if best is None:
            return math.inf
        return -best.value if self.metrics[key].higher_is_better else float(best.value)

    def points(self, key: str) -> list[Point]:
        """Return the values of a metric with their positions.

        Raises:
          LearnerError: the run has no such metric.
        """
        if key not in self.history:
            raise LearnerError(
                f"{self.directory} has no metric {key!r}: {near(key, list(self.history))}",
                code="run-metric-unknown",
                key=key,
            )
        return self.history.points(key)

    def is_text(self, key: str) -> bool:
        """Return True if the values of a metric over splits are texts, such as a confusion matrix."""
        return key in self.history and all(isinstance(value, str) for value in self.history[key])

    def split_values(self, key: str) -> tuple[Floats, Floats]:
        """Return steps and values of a metric over splits, float64 `[points]`: NaN for a text."""
        points = self.history.points(key) if key in self.history else []
        values = [math.nan if isinstance(point.value, str) else point.value for point in points]
        return np.array([point.step for point in points], np.float64), np.array(values, np.float64)

    def steps(self, key: str, most: int | None = None) -> Series:
        """Return the values of a training metric at each optimizer step.

        Args:
          key: the key of the metric, such as `train/Loss`.
          most: the largest number of points; neighbouring steps are merged until it is reached, as for a plot.
        """
        split, name = key.split("/", 1)
        return step_values(self.directory, split, name, self.ends, most)

    def axes(self, step: Floats) -> dict[str, Floats]:
        """Convert optimizer steps to other axes.

        Args:
          step: float64 `[steps]`.

        Returns:
          `epoch`: the number of epochs trained, float64 `[steps]`. `time`: the seconds that the run had been running.
          Both are exact at steps in the journal (the ends of epochs, of validations inside them, and saved
          checkpoints), linear between such steps, and extrapolated after the last.
        """
        steps, epochs = [0.0, *self.ends.values()], [0.0, *self.ends]
        points = [(0.0, 0.0)]
        for entry, seconds in zip(self.journal, self._running, strict=True):
            position = float(non_negative_int(entry.get("step")))
            if entry.get("event") == "start":  # the steps after it were repeated
                points = [point for point in points if point[0] <= position]
            elif entry.get("event") in (*NUMBERS, "save") and position > points[-1][0]:  # each step once
                points.append((position, seconds))
        places, times = (list(column) for column in zip(*points, strict=True))
        return {
            "epoch": _between(step, steps, epochs, 1 / self.steps_per_epoch if self.steps_per_epoch else None),
            "time": _between(step, places, times),
        }

    def log(self, most: int) -> list[str] | None:
        """Return the lines within the last `most` bytes of the log, or None without a log. A link does not count."""
        path = self.directory / "experiment.log"
        if not path.is_file() or path.is_symlink():
            return None
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - most))
            return file.read(most).decode(errors="replace").splitlines()

    def times(self, step: Floats) -> Floats:
        """Return the times of optimizer steps, in seconds since 1970.

        Args:
          step: float64 `[steps]`.

        Returns:
          float64 `[steps]`: the journal's times at the steps that it records, linear between them and beyond the last;
          0 if it records none. Steps before a break have times before it.
        """
        points = self._recorded_times()
        if not points:
            return np.zeros(len(step))
        places, times = (list(column) for column in zip(*points, strict=True))
        pairs = [(b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise(points)]
        pace = next((seconds / steps for steps, seconds in reversed(pairs) if steps > 2 * AFTER), 0.0)
        return _between(step, places, times, pace)

    def _recorded_times(self) -> list[tuple[float, float]]:
        """Return recorded steps and their times, both ascending. No step runs during a break: one point lies before it,
        at the checkpoint if one was recorded, and another just after it, at the restart.
        """
        points: list[tuple[float, float]] = []
        saved: dict[int, float] = {}
        before = 0.0
        for entry in self.journal:
            event, step, now = entry.get("event"), non_negative_int(entry.get("step")), time_of(entry)
            if event == "start":
                points = [point for point in points if point[0] <= step]
                last = saved.get(step, before)
                if points and step > points[-1][0] and last > points[-1][1]:
                    points.append((float(step), last))
            elif event == "save":
                saved[step] = now
            position = step + AFTER if event == "start" else float(step)
            if event in ("start", *NUMBERS) and (not points or position > points[-1][0]):
                points.append((position, now))
            before = now
        return points

    @property
    def last_sign(self) -> float:
        """The modification time of the newest file, in seconds since 1970."""
        times = [0.0]
        for path in (self.directory / MARK, self.directory / "experiment.log", *self._newest_files()):
            with contextlib.suppress(OSError):
                times.append(path.stat().st_mtime)
        return max(times)

    def _newest_files(self) -> Iterator[Path]:
        """Yield the metric files of the last epoch of each split."""
        with contextlib.suppress(OSError):
            for split in self.directory.iterdir():
                epochs = epochs_in(split)
                if epochs:
                    yield from (split / f"epoch-{epochs[-1]}").glob("*.log")


def _entry(line: bytes, location: str) -> dict[str, Any]:
    """Parse a line of the journal. Values that are nested too deeply are left out, with a warning."""
    entry = entry_of(line, location)
    if line.count(b"{") + line.count(b"[") <= DEEPEST:
        return entry
    deep = [key for key, value in entry.items() if is_deep(value, DEEPEST)]
    if deep:
        named = printable(", ".join(deep))
        warn(f"{location}: {named} is nested more than {DEEPEST} deep and is left out")
    return {key: value for key, value in entry.items() if key not in deep}


def _info(key: str, content: Any) -> MetricInfo:
    split, name = key.split("/", 1)
    content = content if isinstance(content, Mapping) else {}
    direction = content.get("higher_is_better")
    if not isinstance(direction, bool):
        direction = False if not content and name == "Loss" else None  # before any summary: the loss always exists
    return MetricInfo(split, name, str(content.get("unit") or ""), direction)


def _between(x: Floats, known: Sequence[float], values: Sequence[float], slope: float | None = None) -> Floats:
    """Interpolate linearly between known points; extrapolate with `slope`, or with the last slope."""
    inside = np.interp(x, known, values)
    if slope is None and len(known) > 1 and known[-1] > known[-2]:
        slope = (values[-1] - values[-2]) / (known[-1] - known[-2])
    return np.where(x > known[-1], values[-1] + (slope or 0.0) * (x - known[-1]), inside)


def time_of(entry: Mapping[str, Any]) -> float:
    """Return the time of a journal line, in seconds since 1970, or 0 if it has no valid time."""
    value = entry.get("time")
    return float(value) if isinstance(value, int | float) and abs(value) < LARGEST else 0.0


def _time_parts(entry: Mapping[str, Any]) -> dict[str, float]:
    """Return the valid seconds by part that the last line of a start records."""
    parts = entry.get("seconds") if entry.get("event") in (*ENDS, "error") else None
    pairs = parts.items() if isinstance(parts, dict) else ()
    return {name: x for name, x in pairs if name in TIME_PARTS and _is_plausible(x)}


def _is_plausible(seconds: Any) -> TypeGuard[float]:
    """Return True for a number of seconds that a run can take."""
    return is_finite(seconds) and 0 <= seconds < LARGEST


def non_negative_int(value: Any) -> int:
    """Return a number of a journal or a config, or 0 if it is not a plausible one."""
    return value if isinstance(value, int) and 0 <= value < LARGEST else 0
