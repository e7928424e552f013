"""A run that may still be training, read incrementally."""

import collections
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from learner.runs.control_files import pending
from learner.runs.following import GrowingSeries
from learner.runs.growing import GrowingLines
from learner.runs.run_reader import RunReader, Status, non_negative_int, time_of
from learner.runs.series import FINAL, epochs_in, location_of
from learner.runs.thinning import Floats

LOG = 1 << 16  # bytes of a log that existed before
LOG_LINES = 1000
END = 512  # bytes in which the last line of a file is searched
RATE_OVER = 20.0  # seconds
TRAIN = "train/"


class LiveRun:
    """The current state of a run. `refresh` polls its files, and `read` reads values of steps.

    Args:
      directory: the run directory.
      name: the display name.
      now: the seconds since 1970.

    Raises:
      LearnerError: the journal cannot be read.

    Attributes:
      run: the run.
      directory: the directory of the run.
      name: the display name.
      log: the newest lines of its log, without their ends.
      pending: requests that the run has not consumed yet.
      keys: the metrics, including those without a value so far.
      read_bytes: the number of bytes of step values read so far.
    """

    def __init__(self, directory: Path, name: str, now: float):
        self.run = RunReader(directory, now=now)
        self.directory, self.name = directory, name
        self.log: collections.deque[str] = collections.deque(maxlen=LOG_LINES)
        self.pending: list[str] = []
        self.keys: list[str] = []
        self.read_bytes = 0
        self._log_lines = GrowingLines(directory / "experiment.log", last=LOG)
        self._series: dict[str, GrowingSeries] = {}
        self._epochs: list[int] = []
        self._ends: dict[Path, tuple[int, float | None]] = {}  # of metric files: their sizes and last values
        self._paces: collections.deque[tuple[float, int]] = collections.deque()
        self._gone = False
        self._now = now

    @property
    def monitor(self) -> str:
        """The metric that selects the best checkpoint."""
        return str(self.run.config.get("with_file_checkpointer.monitor") or "valid/Loss")

    @property
    def status(self) -> Status:
        """The status of the run; `gone` if its files were removed."""
        return Status("gone") if self._gone else self.run.status

    def refresh(self, now: float) -> None:
        """Poll the files of the run, except for values of steps.

        Raises:
          LearnerError: the journal cannot be read.
          OSError: another file cannot be read.
        """
        self._now = now
        if self.run.refresh(now):  # restarted, perhaps from an earlier step
            for known in (self._series, self._ends, self._paces):
                known.clear()
        _ = self.run.config  # kept by the run: a warning about it belongs here, not to the drawing code
        self._gone = not os.path.isfile(self.directory / "journal.jsonl")
        self._epochs = epochs_in(self.directory / "train")
        self.keys = self._find_keys()
        anew, lines = self._log_lines.read()
        if anew:
            self.log.clear()
        self.log += [line.decode(errors="replace") for line in lines]
        self.pending = pending(self.directory)
        if self.status.word != "running":
            self._paces.clear()

    def read(self, keys: Sequence[str], limit: int) -> bool:
        """Read values of steps of training metrics, at most `limit` bytes of each.

        Args:
          keys: the keys of the metrics to read.
          limit: bytes of each.

        Returns:
          True if there is more to read.
        """
        more = False
        runs = self.status.word == "running"
        timed = next((key for key in self.keys if runs and key.startswith(TRAIN)), None)  # shows the newest step
        for key in dict.fromkeys([*keys, *([timed] if timed else [])]):
            if not key.startswith(TRAIN):
                continue
            try:
                if key not in self._series:
                    self._series[key] = GrowingSeries(self.directory, "train", key.removeprefix(TRAIN))
                    self._series[key].sketch(self._epochs, self.run.ends)
                    if self._series[key].is_sketched:
                        more = True  # a picture first
                        continue
                read = self._series[key].read(self._epochs, self.run.ends, limit)
                self.read_bytes += read
                more |= read == limit
                if key == timed and read < limit:
                    self._note_pace(max(self.run.step, self._series[key].last_step))
            except (FileNotFoundError, ValueError):  # the run begins again, and its journal will say so
                del self._series[key]
        return more

    def _note_pace(self, step: int) -> None:
        """Record the time at which this step was the newest, from the first step of a start on: it compiles before."""
        if not self._paces and step <= self.run.start_step:
            return
        if self._paces and step < self._paces[-1][1]:
            self._paces.clear()  # the run went back
        if not self._paces or self._paces[-1][0] < self._now:
            self._paces.append((self._now, step))
        while self._paces[0][0] < self._now - RATE_OVER:
            self._paces.popleft()

    def _find_keys(self) -> list[str]:
        """Return the keys in the order of the run, losses first."""
        keys = sorted(dict.fromkeys([*self.run.known, *self.run.history]), key=lambda key: not key.endswith("/Loss"))
        files = {key: location_of(Path(), *key.split("/", 1))[1] for key in keys if key.startswith(TRAIN)}
        if self._epochs:
            newest = self.directory / "train" / f"epoch-{self._epochs[-1]}"
            names = sorted(path.name for path in newest.glob("*.log"))
            keys += [TRAIN + name.removesuffix(".log") for name in names if name not in files.values()]
        return keys

    def each_step(self, key: str, since: float = 0) -> tuple[Floats, Floats]:
        """Return steps and values of a training metric, float64 `[points]`, as far as they have been read, from `since`
        or an earlier step.
        """
        if key not in self._series:
            return np.zeros(0), np.zeros(0)
        series = self._series[key].series(since)
        return series.step.astype(np.float64), series.mean

    def newest(self, key: str) -> float | None:
        """Return the value of a training metric at the newest step, or the newest value of another metric."""
        if not key.startswith(TRAIN):
            last = self.run.history.last(key)
            return None if last is None or isinstance(last.value, str) else last.value
        if not self._epochs:
            return None
        place, file = location_of(self.directory, *key.split("/", 1))
        path = place / f"epoch-{self._epochs[-1]}" / file
        if not os.path.isfile(path):
            return None
        try:
            size = path.stat().st_size
            if self._ends.get(path, (-1, None))[0] != size:
                self._ends = {other: end for other, end in self._ends.items() if other.parent == path.parent}
                self._ends[path] = size, _last_value(path, size)
        except OSError:
            return None  # removed meanwhile: the run goes back
        return self._ends[path][1]

    @property
    def step(self) -> int:
        """The newest known optimizer step."""
        return max([self.run.step, *(series.last_step for series in self._series.values())])

    @property
    def epoch(self) -> int:
        """The current epoch, or the last one."""
        return max([self.run.epochs, *self._epochs[-1:]])

    @property
    def age(self) -> float | None:
        """Seconds since the newest line in the run's files; None if they are gone."""
        newest = self.run.last_sign
        return max(0.0, self._now - newest) if newest else None

    @property
    def epochs(self) -> int | None:
        """The planned number of epochs, or None if it is unknown."""
        return non_negative_int(self.run.config.get("num_epochs")) or None

    @property
    def steps(self) -> int | None:
        """The planned number of steps, or None if it is unknown."""
        planned = non_negative_int(self.run.config.get("num_steps"))
        return planned or (self.epochs or 0) * self.run.steps_per_epoch or None

    @property
    def rate(self) -> float | None:
        """Recent steps per second of a run that is training."""
        if len(self._paces) < 2 or self._paces[-1][0] <= self._paces[0][0]:
            return None
        (began, first), (now, last) = self._paces[0], self._paces[-1]
        return (last - first) / (now - began)

    @property
    def saved(self) -> tuple[int, float] | None:
        """The step and the age in seconds of the newest checkpoint."""
        saves = [entry for entry in self.run.journal if entry.get("event") == "save"]
        step, time = (saves[-1].get("step"), time_of(saves[-1])) if saves else (None, 0.0)
        return (step, max(0.0, self._now - time)) if isinstance(step, int) and time else None


def _last_value(path: Path, size: int) -> float | None:
    """Return the value of the last complete line that belongs to a step, or None."""
    with path.open("rb") as file:
        file.seek(max(0, size - END))
        lines = file.read(END).split(b"\n")[:-1]
    for line in reversed(lines[1:] if size > END else lines):
        if FINAL not in line:
            try:
                return float(line.partition(b",")[0])
            except ValueError:
                return None
    return None
