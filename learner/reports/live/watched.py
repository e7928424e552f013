"""The runs that `learner watch` shows, including runs that have not started."""

import contextlib
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from learner.errors import LearnerError, near
from learner.reports.live.live_run import LiveRun
from learner.runs.find import names_of, run_directories

SEARCH_EVERY = 5.0
"""Seconds between two searches for further runs."""
PART = 1 << 18
"""Bytes of a metric that are read before the terminal is updated again."""


class RunWatcher:
    """The runs in some directories, some of which may start later.

    Args:
      places: directories of runs, or of directories with runs. They need not exist yet.
      clock: returns the seconds since 1970.

    Raises:
      LearnerError: a place is a file.

    Attributes:
      runs: the existing runs, in order.
      waiting: the awaited directories, a text for each.
      problems: the problems with files, in the order in which they were noticed.
    """

    def __init__(self, places: Sequence[str | os.PathLike[str]], clock: Callable[[], float] = time.time):
        for place in map(Path, places):
            if place.exists() and not place.is_dir():
                raise LearnerError(
                    f"{place} is a file; learner watch needs the directory of a run, or one with runs",
                    code="run-path-is-file",
                    place=place,
                )
        self.runs: list[LiveRun] = []
        self.waiting: list[str] = []
        self.problems: list[str] = []
        self._places = list(places)
        self._clock = clock
        self._searched = -SEARCH_EVERY

    def refresh(self) -> None:
        """Poll the files of all runs, and search for new runs from time to time."""
        now = self._clock()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if self.waiting or not self.runs or not 0 <= now - self._searched < SEARCH_EVERY:
                self._searched = now
                with self._noting_errors():
                    self._search(now)
            for run in self.runs:
                with self._noting_errors():
                    run.refresh(now)
        for warning in caught:
            self._note(str(warning.message))

    def _search(self, now: float) -> None:
        directories, self.waiting = run_directories(self._places)
        known = {run.directory.resolve(): run for run in self.runs}
        runs = []
        for directory, name in zip(directories, names_of(directories), strict=True):
            with self._noting_errors():
                runs.append(known.get(directory.resolve()) or LiveRun(directory, name, now))
                runs[-1].name = name
        runs += [run for run in self.runs if run not in runs]
        self.runs = runs

    @contextlib.contextmanager
    def _noting_errors(self) -> Iterator[None]:
        """Note the problem of a file that cannot be read."""
        try:
            yield
        except (LearnerError, OSError) as error:
            self._note(str(error))

    def _note(self, text: str) -> None:
        if text not in self.problems:
            self.problems.append(text)

    def read(self, metrics: Sequence[str], limit: int = PART) -> bool:
        """Read further values of steps of some metrics. Return True if more remain."""
        more = False
        for run in self.runs:
            with self._noting_errors():
                more |= run.read([key for metric in metrics for key in keys_of(run, metric)], limit)
        return more

    @property
    def state(self) -> object:
        """A value that changes whenever there is new content to draw."""
        return [(run.name, len(run.run.journal), run.read_bytes, len(run.keys)) for run in self.runs]

    @property
    def now(self) -> float:
        """The current time in seconds since 1970."""
        return self._clock()

    def metrics(self) -> list[str]:
        """Return the names of all numeric metrics of all runs."""
        keys = [key for run in self.runs for key in run.keys if not run.run.is_text(key)]
        return list(dict.fromkeys(key.split("/", 1)[1] for key in keys))

    def problem_with(self, metric: str) -> str | None:
        """Return the reason why a metric cannot be drawn, or None."""
        keys = list(dict.fromkeys(key for run in self.runs for key in run.keys))
        if not keys or any(keys_of(run, metric) for run in self.runs):
            return None
        return f"no run has a metric {metric!r}: {near(metric, list(dict.fromkeys([*keys, *self.metrics()])))}"


def keys_of(run: LiveRun, metric: str) -> list[str]:
    """Return the keys of a run that match a key (`valid/Loss`) or a name (`Loss`)."""
    return [key for key in run.keys if metric in (key, key.split("/", 1)[1]) and not run.run.is_text(key)]
