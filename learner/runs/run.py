"""One run."""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import os
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from learner.config.mappings import is_deep, read_mapping
from learner.errors import LearnerError, near
from learner.events import MetricInfo
from learner.runs.flat import DEEPEST, flat
from learner.runs.following import epochs_in
from learner.runs.growing import GrowingLines
from learner.runs.history import History, Point
from learner.runs.journal import LARGEST, NUMBERS, UNTOLD, entry_of
from learner.runs.layout import MARK, read_summary
from learner.runs.lock import is_held
from learner.runs.series import Floats, Series, has_steps, is_plain, step_values
from learner.util.text import printable

OF_LINES = ("config", "nested_config", "metrics", "known", "ends", "_running")  # what is kept of the journal's lines
SPENT = ("total", "compile", "data", "train", "valid", "save", "other")
SILENT = 300
"""Seconds without a sign of a run on another machine, after which it counts as dead."""
AFTER = 1e-6
"""Steps by which the start of a run lies behind the last step before it."""


@dataclasses.dataclass(frozen=True)
class Status:
    """What became of a run.

    Attributes:
      word: `running`, `ended`, `failed` (by an exception) or `died` (without a word, as when it is killed).
      why: what ended it, such as `num_epochs` or the exception; empty while it goes on.
    """

    word: str
    why: str = ""

    def __str__(self) -> str:
        return f"{self.word}: {self.why}" if self.why else self.word


class Run:
    """A run as its files tell it. What was read is kept: `refresh` takes in what came since.

    Args:
      directory: of the run.
      name: what tables and plots call it; default: the directory's own name.
      now: the seconds since 1970.

    Raises:
      LearnerError: there is no run.

    Attributes:
      directory: of the run.
      name: as given.
      history: the value of each metric at the end of each split, by key (`valid/Loss`).
      journal: its lines, as mappings.
    """

    def __init__(self, directory: str | os.PathLike[str], name: str | None = None, now: float | None = None):
        self.directory = Path(directory)
        if not self.directory.is_dir():
            raise LearnerError(f"there is no directory {self.directory}")
        self.name = name or self.directory.resolve().name
        if not is_plain(self.directory / MARK):
            problem = f"has no {MARK}: it is not the directory of a run"
            readable = os.access(self.directory, os.X_OK)
            raise LearnerError(f"{self.directory} {problem if readable else 'cannot be read: Permission denied'}")
        self._lines = GrowingLines(self.directory / MARK)
        self._begin_anew()
        self.refresh(now)

    def _begin_anew(self) -> None:
        self.journal: list[dict[str, Any]] = []
        self.history = History()
        self._count = 0

    def refresh(self, now: float | None = None) -> bool:
        """Takes in what the journal has got since it was read last, and what has become of the run since then.

        Args:
          now: the seconds since 1970.

        Returns:
          Whether the run was started again since then, so that steps that were read may be others now.

        Raises:
          LearnerError: the journal cannot be read.
        """
        try:
            anew, lines = self._lines.read()
        except OSError as error:
            raise LearnerError(f"{self.directory} cannot be read: {error.strerror}") from error
        self._now = time.time() if now is None else now
        for name in ("status", "seconds", *(OF_LINES if lines or anew else ())):
            self.__dict__.pop(name, None)
        if anew:
            self._begin_anew()
        path = self.directory / MARK
        new = [_entry(line, f"{path}, line {number}") for number, line in enumerate(lines, self._count + 1)]
        self._count += len(new)
        self.journal += [entry for entry in new if entry]
        _record(self.history, new)
        return anew or any(entry.get("event") == "start" for entry in new)

    @functools.cached_property
    def status(self) -> Status:
        """Whether it goes on, and what ended it: by its journal, and by the lock that a running process holds."""
        marks = [entry for entry in self.journal if entry.get("event") in ("start", "end", "stop", "error")]
        if marks and marks[-1]["event"] in ("end", "stop"):
            return Status("ended", str(marks[-1].get("stopped_by", "")))
        if marks and marks[-1]["event"] == "error":
            return Status("failed", str(marks[-1].get("error", "")))
        held = is_held(self.directory)
        if held is None:
            held = self._now - self.last_sign < SILENT
        return Status("running") if held else Status("died")

    @functools.cached_property
    def config(self) -> dict[str, Any]:
        """What it was configured with, flat: `{"model": "examples.models.MLP", "model.dropout": 0.3}`. For a run that
        was started from Python what its journal says of it. What only watches it, such as its loggers, is left out.
        """
        return flat(self.nested_config)

    @functools.cached_property
    def nested_config(self) -> dict[str, Any]:
        """The same as it was written."""
        said = self._told("config")
        if self.has_config:
            try:
                said = read_mapping(self.directory / "config.yaml")
            except LearnerError as error:
                if os.access(self.directory / "config.yaml", os.R_OK):  # it may be for its owner alone
                    warnings.warn(str(error), stacklevel=2)
                    said = {}
        return {key: value for key, value in said.items() if key not in UNTOLD}

    @property
    def has_config(self) -> bool:
        """Whether it has a config file. A link is none: it may lead anywhere."""
        path = self.directory / "config.yaml"
        return path.is_file() and not path.is_symlink()

    @property
    def environment(self) -> dict[str, Any]:
        """Versions, devices and the machine where it was started last, and the commit, if there was one."""
        commit = self._told_value("commit")
        return {**flat(self._told("environment")), **({"commit": commit} if commit else {})}

    @property
    def fingerprint(self) -> dict[str, Any]:
        """Facts of its data by dotted keys (`data.train.rows`), and `train step`, eight digits that differ where the
        train step or the optimizer computes something else; of its newest start. Runs of old versions have none.
        """
        found = self._told("fingerprint")
        data, programs = found.get("data"), found.get("programs")
        facts = flat({"data": data}) if isinstance(data, Mapping) else {}
        if isinstance(programs, Mapping) and isinstance(hashes := programs.get("hashes"), Mapping):
            parts = [f"{name} {text}" for name, text in sorted(hashes.items()) if not name.startswith("valid")]
            facts["train step"] = hashlib.sha256("".join(parts).encode()).hexdigest()[:8]
            facts["versions"] = str(programs.get("versions"))  # of which other ones trace other programs
        return facts

    def _told(self, what: str) -> Mapping[str, Any]:
        said = self._told_value(what)
        return said if isinstance(said, Mapping) else {}

    def _told_value(self, what: str) -> Any:
        """What the newest line of the journal about a start says."""
        starts = [entry for entry in self.journal if entry.get("event") == "start"]
        return starts[-1].get(what) if starts else None

    @functools.cached_property
    def metrics(self) -> dict[str, MetricInfo]:
        """What is known of each metric that has a value, by key."""
        known = self.known
        return {key: known.get(key) or _info(key, None) for key in self.history}

    @functools.cached_property
    def known(self) -> dict[str, MetricInfo]:
        """What the run says of its metrics, by key, before they have values."""
        said = (read_summary(self.directory) or {}).get("metrics")
        said = said if isinstance(said, Mapping) else {}
        for entry in self.journal:
            if entry.get("event") == "start" and isinstance(entry.get("metrics"), Mapping):
                said = {**said, **entry["metrics"]}
        return {key: _info(key, content) for key, content in said.items() if "/" in key}

    def info(self, key: str) -> MetricInfo:
        """What is known of a metric."""
        split, name = key.split("/", 1)
        return self.metrics.get(key) or self.known.get(key) or MetricInfo(split, name)

    @property
    def epochs(self) -> int:
        """How many epochs ended."""
        return max(self.ends, default=0)

    @functools.cached_property
    def ends(self) -> dict[int, int]:
        """The last step of each epoch that ended."""
        return {entry["epoch"]: entry["step"] for entry in self.journal if entry.get("event") == "epoch"}

    @property
    def step(self) -> int:
        """The last optimizer step that the journal tells of."""
        return max((_whole(entry.get("step")) for entry in self.journal), default=0)

    @functools.cached_property
    def seconds(self) -> float:
        """How long it ran, over all its resumes; what was lost between a checkpoint and a crash counts too."""
        if not self.journal:
            return 0.0
        idle = max(0.0, self._now - time_of(self.journal[-1])) if self.status.word == "running" else 0.0
        return self._running[-1] + idle

    @property
    def spent(self) -> dict[str, float]:
        """The seconds of its parts (`total`, `compile`, `data`, `train`, `valid`, `save`, `other`), over all its
        resumes; a run that was killed could not say. Empty where nothing is known.
        """
        total: dict[str, float] = {}
        for entry in self.journal:
            said = entry.get("seconds") if entry.get("event") in ("end", "stop") else None
            for name, value in said.items() if isinstance(said, dict) else ():
                if name in SPENT and isinstance(value, int | float) and 0 <= value < LARGEST:
                    total[name] = total.get(name, 0.0) + value
        return total

    @functools.cached_property
    def _running(self) -> list[float]:
        """For each line of the journal how many seconds the run had been running: breaks do not count."""
        total, found = 0.0, []
        for entry, before in zip(self.journal, [{}, *self.journal], strict=False):
            if before and entry.get("event") != "start":
                total += max(0.0, time_of(entry) - time_of(before))
            found.append(total)
        return found

    @property
    def keys(self) -> list[str]:
        """The metrics that have values: of whole splits, or of single steps of training, which come sooner."""
        steps = [key for key in self.known if key.startswith("train/") and key not in self.history]
        return [*self.history, *(key for key in steps if has_steps(self.directory, *key.split("/", 1)))]

    def best(self, key: str) -> Point | None:
        """The best value of a metric in its own direction; `None` where it has none."""
        direction = self.metrics[key].higher_is_better if key in self.metrics else None
        return None if direction is None else self.history.best(key, direction)

    def points(self, key: str) -> list[Point]:
        """The values of a metric and where they were measured.

        Raises:
          LearnerError: the run has no such metric.
        """
        if key not in self.history:
            raise LearnerError(f"{self.directory} has no metric {key!r}: {near(key, list(self.history))}")
        return self.history.points(key)

    def steps(self, key: str, most: int | None = None) -> Series:
        """The values of a training metric at each optimizer step.

        Args:
          key: of the metric, such as `train/Loss`.
          most: put neighbouring steps together until there are no more points than this, as for a plot.
        """
        split, name = key.split("/", 1)
        return step_values(self.directory, split, name, self.ends, most)

    def axes(self, step: Floats) -> dict[str, Floats]:
        """Where optimizer steps are on other axes.

        Args:
          step: float64 `[steps]`.

        Returns:
          `epoch`: how many epochs had been trained, float64 `[steps]`. `time`: for how many seconds the run had been
          running. Both are exact where the journal tells a step (at the ends of epochs, of validations inside of them,
          and where a checkpoint was saved), linear between such places, and go on behind the last.
        """
        steps, epochs = [0.0, *self.ends.values()], [0.0, *self.ends]
        each = _whole(self._told_value("steps_per_epoch"))
        told = [(0.0, 0.0)]
        for entry, seconds in zip(self.journal, self._running, strict=True):
            place = float(_whole(entry.get("step")))
            if entry.get("event") == "start":  # what came behind it was made again
                told = [each for each in told if each[0] <= place]
            elif entry.get("event") in (*NUMBERS, "save") and place > told[-1][0]:  # each step once
                told.append((place, seconds))
        places, times = (list(column) for column in zip(*told, strict=True))
        return {
            "epoch": _between(step, steps, epochs, 1 / each if each else None),
            "time": _between(step, places, times),
        }

    def log(self, most: int) -> list[str] | None:
        """The lines of its log, the last `most` bytes of them; `None` where there is none. A link is none."""
        path = self.directory / "experiment.log"
        if not path.is_file() or path.is_symlink():
            return None
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - most))
            return file.read(most).decode(errors="replace").splitlines()

    def times(self, step: Floats) -> Floats:
        """When optimizer steps were made, in seconds since 1970.

        Args:
          step: float64 `[steps]`.

        Returns:
          float64 `[steps]`: the journal's times where it tells a step, linear between such places, and on behind the
          last; 0 where it tells none. Steps before a break have times before it.
        """
        told = self._told_times()
        if not told:
            return np.zeros(len(step))
        places, times = (list(column) for column in zip(*told, strict=True))
        pairs = [(b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise(told)]
        pace = next((seconds / steps for steps, seconds in reversed(pairs) if steps > 2 * AFTER), 0.0)
        return _between(step, places, times, pace)

    def _told_times(self) -> list[tuple[float, float]]:
        """Steps and their times, ascending in both. Over a break no step is made: there is one place before it, which
        is the checkpoint's where that is told, and one just behind it, where the run was started again.
        """
        told: list[tuple[float, float]] = []
        saved: dict[int, float] = {}
        before = 0.0
        for entry in self.journal:
            event, step, now = entry.get("event"), _whole(entry.get("step")), time_of(entry)
            if event == "start":
                told = [each for each in told if each[0] <= step]
                last = saved.get(step, before)
                if told and step > told[-1][0] and last > told[-1][1]:
                    told.append((float(step), last))
            elif event == "save":
                saved[step] = now
            place = step + AFTER if event == "start" else float(step)
            if event in ("start", *NUMBERS) and (not told or place > told[-1][0]):
                told.append((place, now))
            before = now
        return told

    @property
    def last_sign(self) -> float:
        """When one of its files got its newest line, in seconds since 1970."""
        times = [0.0]
        for path in (self.directory / MARK, self.directory / "experiment.log", *self._newest_files()):
            with contextlib.suppress(OSError):
                times.append(path.stat().st_mtime)
        return max(times)

    def _newest_files(self) -> Iterator[Path]:
        """Those of metrics in the last epoch of each split."""
        with contextlib.suppress(OSError):
            for split in self.directory.iterdir():
                epochs = epochs_in(split)
                if epochs:
                    yield from (split / f"epoch-{epochs[-1]}").glob("*.log")


def _record(history: History, entries: list[dict[str, Any]]) -> None:
    for entry in entries:
        if entry.get("event") in NUMBERS:
            history.record_entry(entry)


def _entry(line: bytes, where: str) -> dict[str, Any]:
    """What a line of the journal says, without what is nested absurdly deep, of which there is a warning."""
    entry = entry_of(line, where)
    if line.count(b"{") + line.count(b"[") <= DEEPEST:
        return entry
    deep = [key for key, value in entry.items() if is_deep(value, DEEPEST)]
    if deep:
        named = printable(", ".join(deep))
        warnings.warn(f"{where}: {named} is nested more than {DEEPEST} deep and is left out", stacklevel=3)
    return {key: value for key, value in entry.items() if key not in deep}


def _info(key: str, said: Any) -> MetricInfo:
    split, name = key.split("/", 1)
    said = said if isinstance(said, Mapping) else {}
    direction = said.get("higher_is_better")
    if not isinstance(direction, bool):
        direction = False if not said and name == "Loss" else None  # before any summary: the loss is always there
    return MetricInfo(split, name, str(said.get("unit") or ""), direction)


def _between(x: Floats, known: Sequence[float], values: Sequence[float], slope: float | None = None) -> Floats:
    """Linear between known places, and behind the last by `slope`, or as steep as before it."""
    inside = np.interp(x, known, values)
    if slope is None and len(known) > 1 and known[-1] > known[-2]:
        slope = (values[-1] - values[-2]) / (known[-1] - known[-2])
    return np.where(x > known[-1], values[-1] + (slope or 0.0) * (x - known[-1]), inside)


def time_of(entry: Mapping[str, Any]) -> float:
    """When a line of the journal was written, in seconds since 1970; 0 where that is no such number."""
    value = entry.get("time")
    return float(value) if isinstance(value, int | float) and abs(value) < LARGEST else 0.0


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and 0 <= value < LARGEST else 0
