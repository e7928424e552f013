"""Loggers for servers that cannot delete values. A file of the run records what each server has received."""

import contextlib
import dataclasses
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from learner.errors import LearnerError
from learner.events import RunStarted, SamplesLogged, SplitEnded, StepsEnded
from learner.loggers.base import RunLogger
from learner.runs.appended import refuse_special
from learner.util.disk import replacing

FORMAT = 1
SAMPLES = " samples"  # not the name of a split


class UploadCursor:
    """The position up to which a server has received a run, stored in a file.

    Args:
      path: the path of the file.

    Attributes:
      id: the server's id of the run; settable.
      known: True if the file existed.
      step: the last step whose values the server has.
      row: the last row of a table, for loggers that count rows.
      splits: the position of each split's newest sent values, `[epoch, step]`.
      names: the names of these values.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "server.json")
    >>> cursor = UploadCursor(path)
    >>> cursor.id, cursor.step = "a1", 40
    >>> with cursor.uploading():
    ...     pass  # here the server gets it
    >>> UploadCursor(path).id, UploadCursor(path).step
    ('a1', 40)
    """

    def __init__(self, path: Path):
        refuse_special(path)
        self._path = path
        self.known = path.exists()
        state = _read(path) if self.known else {}
        self.id: str = state.get("id", "")
        self.step: int = state.get("step", 0)
        self.row: int = state.get("row", -1)
        self.splits: dict[str, list[int]] = dict(state.get("splits", {}))
        self.names: dict[str, list[str]] = dict(state.get("names", {}))
        self._before = self._text() if self.known else None

    def new(self, split: str, epoch: int, step: int, names: Iterable[str]) -> list[str]:
        """Return the names whose values of a split have not been uploaded, and mark them as uploaded. A split may end
        several times at a step, each time with other names.
        """
        at, newest = [epoch, step], self.splits.get(split, [0, -1])
        had = self.names.get(split, []) if at == newest else []
        new_names = [name for name in names if name not in had] if at >= newest else []
        if new_names:
            self.splits[split], self.names[split] = at, [*had, *new_names]
        return new_names

    @contextlib.contextmanager
    def uploading(self) -> Iterator[None]:
        """Write the file, and restore it if the block raises. The file is written before the upload, because a process
        that is killed in between must not send anything twice.
        """
        text = self._text()
        self._write(text)
        try:
            yield
        except BaseException:
            self._write(self._before)
            raise
        self._before = text

    def _text(self) -> str:
        position = {"step": self.step, "row": self.row, "splits": self.splits, "names": self.names}
        return json.dumps({"format": FORMAT, "id": self.id, **position})

    def _write(self, text: str | None) -> None:
        if text is None:
            self._path.unlink(missing_ok=True)
            return
        with replacing(self._path, flushes=False) as file:
            file.write(text.encode())


class ExactlyOnceLogger(RunLogger):
    """Base class of loggers for servers that cannot delete values. When a resumed run repeats steps, values that the
    server has are not sent again. Repeated steps have the same values, to the bit, unless something was changed.

    Attributes:
      file: the file in the run's directory that records the position up to which the server has the run.
    """

    file: str = "server.json"

    def started(self, event: RunStarted) -> None:
        """Read the position up to which the server has the run."""
        self.cursor = UploadCursor(event.directory / self.file)

    def steps(self, event: StepsEnded, steps: range, values: dict[str, np.ndarray]) -> None:
        """Send the values that are new."""
        first = sum(step <= self.cursor.step for step in steps)
        if first < len(steps):
            self.cursor.step = steps[-1]
            self.send_steps(event, steps[first:], {name: column[first:] for name, column in values.items()})

    def split(self, event: SplitEnded) -> None:
        """Send the values that are new."""
        names = self.cursor.new(event.split, event.epoch, event.step, event.values)
        if names:
            values = {name: event.values[name] for name in names}
            pictures = {name: draw for name, draw in event.pictures.items() if name in names}
            self.send_split(dataclasses.replace(event, values=values, pictures=pictures))

    def samples(self, event: SamplesLogged) -> None:
        """Send the samples that are new."""
        names = self.cursor.new(SAMPLES, event.epoch, event.step, event.values)
        if names:
            self.send_samples(dataclasses.replace(event, values={name: event.values[name] for name in names}))

    def send_steps(self, event: StepsEnded, steps: range, values: dict[str, np.ndarray]) -> None:
        """Send values of steps; see `steps`. Called only with new values."""

    def send_split(self, event: SplitEnded) -> None:
        """Send values and pictures of a split; see `split`. Called only with new ones."""

    def send_samples(self, event: SamplesLogged) -> None:
        """Send samples; see `samples`. Called only with new ones."""


def new_id() -> str:
    """Return a unique id for a run."""
    return uuid.uuid4().hex[:12]


def _read(path: Path) -> Mapping[str, Any]:
    try:
        state = json.loads(path.read_text())
    except (OSError, ValueError):
        state = None
    numbers = ("step", "row")
    if (
        not isinstance(state, dict)
        or not isinstance(state.get("id"), str)
        or not all(isinstance(state.get(name), int) for name in numbers)
        or not isinstance(state.get("splits"), dict)
        or not isinstance(state.get("names", {}), dict)
    ):
        raise LearnerError(
            f"{path} is damaged: remove it, and the run is logged as a new one from here on",
            code="logger-state-damaged",
        )
    return state
