"""What loggers have handed to servers, which take nothing back: kept in a file of the run."""

import contextlib
import dataclasses
import json
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from learner.errors import LearnerError
from learner.events import RunStarted, SplitEnded, StepsEnded
from learner.loggers.base import RunLogger
from learner.runs.appended import refuse_special

FORMAT = 1


class UploadCursor:
    """How far a server has a run, in a file.

    Args:
      path: of the file.

    Attributes:
      id: by which the server knows the run; settable.
      known: whether the file was there.
      step: the last step whose values it has.
      row: the last row of a table, for those who count them.
      splits: where each split was when its newest values were handed over, `[epoch, step]`.
      names: what those were called.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "server.json")
    >>> handed = UploadCursor(path)
    >>> handed.id, handed.step = "a1", 40
    >>> with handed.over():
    ...     pass  # here the server gets it
    >>> UploadCursor(path).id, UploadCursor(path).step
    ('a1', 40)
    """

    def __init__(self, path: Path):
        refuse_special(path)
        self._path = path
        self.known = path.exists()
        said = _read(path) if self.known else {}
        self.id: str = said.get("id", "")
        self.step: int = said.get("step", 0)
        self.row: int = said.get("row", -1)
        self.splits: dict[str, list[int]] = dict(said.get("splits", {}))
        self.names: dict[str, list[str]] = dict(said.get("names", {}))
        self._before = self._text() if self.known else None

    def new(self, split: str, epoch: int, step: int, names: Iterable[str]) -> list[str]:
        """Those whose values of a whole split were not handed over yet; they are from now on. A split may end more than
        once at a step, each time with other names.
        """
        at, newest = [epoch, step], self.splits.get(split, [0, -1])
        had = self.names.get(split, []) if at == newest else []
        found = [name for name in names if name not in had] if at >= newest else []
        if found:
            self.splits[split], self.names[split] = at, [*had, *found]
        return found

    @contextlib.contextmanager
    def over(self) -> Iterator[None]:
        """Writes the file, and takes that back if the block raises: a process that is killed meanwhile must not send
        anything twice.
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
        told = {"step": self.step, "row": self.row, "splits": self.splits, "names": self.names}
        return json.dumps({"format": FORMAT, "id": self.id, **told})

    def _write(self, text: str | None) -> None:
        if text is None:
            self._path.unlink(missing_ok=True)
            return
        temporary = self._path.with_name(self._path.name + ".tmp")
        temporary.unlink(missing_ok=True)  # of a process that was killed; a link would be written through
        with temporary.open("x") as file:
            file.write(text)
        os.replace(temporary, self._path)


class ExactlyOnceLogger(RunLogger):
    """Base of loggers whose servers take nothing back: what one has of a run stands, and is not sent again when the run
    makes those steps once more. They have the same values then, to the bit, unless something else was changed.

    Attributes:
      file: where in the run's directory it is kept how far the server has the run.
    """

    file = "server.json"

    def started(self, event: RunStarted) -> None:
        """Reads how far the server has the run."""
        self.handed = UploadCursor(event.directory / self.file)

    def steps(self, event: StepsEnded, steps: range, values: dict[str, np.ndarray]) -> None:
        """Sends those that are new."""
        first = sum(step <= self.handed.step for step in steps)
        if first < len(steps):
            self.handed.step = steps[-1]
            self.send_steps(event, steps[first:], {name: column[first:] for name, column in values.items()})

    def split(self, event: SplitEnded) -> None:
        """Sends those that are new."""
        names = self.handed.new(event.split, event.epoch, event.step, event.values)
        if names:
            values = {name: event.values[name] for name in names}
            pictures = {name: draw for name, draw in event.pictures.items() if name in names}
            self.send_split(dataclasses.replace(event, values=values, pictures=pictures))

    def send_steps(self, event: StepsEnded, steps: range, values: dict[str, np.ndarray]) -> None:
        """As `steps`, of those that are new."""

    def send_split(self, event: SplitEnded) -> None:
        """As `split`, with the values and pictures that are new."""


def new_id() -> str:
    """A name that no other run has."""
    return uuid.uuid4().hex[:12]


def _read(path: Path) -> Mapping[str, Any]:
    try:
        said = json.loads(path.read_text())
    except (OSError, ValueError):
        said = None
    numbers = ("step", "row")
    if (
        not isinstance(said, dict)
        or not isinstance(said.get("id"), str)
        or not all(isinstance(said.get(name), int) for name in numbers)
        or not isinstance(said.get("splits"), dict)
        or not isinstance(said.get("names", {}), dict)
    ):
        raise LearnerError(f"{path} is damaged: remove it, and the run is logged as a new one from here on")
    return said
