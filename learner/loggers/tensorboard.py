"""Logger for TensorBoard: scalars, texts, pictures and hyper-parameters in event files."""

import contextlib
import os
import platform
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from learner.events import RunEnded, RunFailed, RunStarted, SplitEnded, StepsEnded
from learner.loggers.base import EVERY_DEAR, RunLogger
from learner.loggers.secrets import resolve
from learner.loggers.tfevents import Records
from learner.runs.appended import refuse_special
from learner.util.optional import refuse_missing

FILE = re.compile(r"events\.out\.tfevents\.\d{10}\..*\.learner")
SECONDS_BETWEEN_WRITES = 2.0


class TensorBoard(RunLogger):
    """Write event files for TensorBoard: `tensorboard --logdir runs` shows all runs below `runs`.

    The values of whole splits are scalars by key (`valid/Loss`), those of single steps `step/train/Loss`; both lie at
    the optimizer step. Metrics without a number are texts, and pictures where they can be drawn. Config, environment,
    commit and summary are texts too, and the config is the run's hyper-parameters. A resumed run writes a further
    file, whose beginning tells TensorBoard to forget what the run makes again.

    Needs tensorboardX, of the extra `tensorboard`.

    Args:
      directory: of the files; default: `tensorboard` in the run's directory.
      every_steps: see `RunLogger`.
      every_epochs: see `RunLogger`.
      clock: seconds, by which the files are written every two of them.

    Raises:
      LearnerError: tensorboardX is not installed.
    """

    def __init__(
        self,
        directory: str | None = None,
        every_steps: int | None = EVERY_DEAR,
        every_epochs: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ):
        super().__init__(every_steps, every_epochs)
        refuse_missing("tensorboardX", "tensorboard", "TensorBoard")
        self._directory, self._clock = resolve(directory), clock
        self._file: Any = None
        self._written = clock()

    def started(self, event: RunStarted) -> None:
        """Open the next file."""
        from tensorboardX.record_writer import RecordWriter

        folder = Path(self._directory) if self._directory is not None else event.directory / "tensorboard"
        refuse_special(folder)
        if not event.resumed:
            remove_event_files(folder)
        folder.mkdir(parents=True, exist_ok=True)
        earlier = _own_files(folder)
        self._file = RecordWriter(_next_file(folder, int(event.time)))
        self._records = Records(self._file.write)
        self._records.begin(event.time)
        if event.resumed:
            counts = {key: sum(step == event.step for _, step, _ in points) for key, points in event.history.items()}
            self._records.go_on(event.time, event.step, earlier, counts)
        documents = {"config": event.config, "environment": event.environment, "commit": event.commit}
        for name, content in documents.items():
            if content:
                self._records.text(f"run/{name}", content, event.time, event.step)
        keys = [info.key for info in event.metrics if info.numeric]
        self._end = self._records.settings(event.config, keys, event.time)
        self._write()

    def steps(self, event: StepsEnded, steps: range, values: dict[str, np.ndarray]) -> None:
        """Write scalars of steps."""
        tags = [f"step/{event.split}/{name}" for name in values]
        for step, *numbers in zip(steps, *(column.tolist() for column in values.values()), strict=True):
            self._records.scalars(event.time, step, tags, numbers)
        if self._clock() - self._written >= SECONDS_BETWEEN_WRITES:
            self._write()

    def split(self, event: SplitEnded) -> None:
        """Write scalars, texts and pictures of a split."""
        numbers = {f"{event.split}/{name}": x for name, x in event.values.items() if not isinstance(x, str)}
        self._records.scalars(event.time, event.step, list(numbers), list(numbers.values()))
        for name, value in event.values.items():
            if isinstance(value, str):
                self._records.text(f"{event.split}/{name}", value, event.time, event.step)
        for name, draw in event.pictures.items():
            self._records.picture(f"{event.split}/{name}", draw(), event.time, event.step)
        self._write()

    def ended(self, event: RunEnded) -> None:
        """Write the summary, and end the session of hyper-parameters."""
        self._records.text("run/summary", event.summary, event.time, event.step)
        self._end(event.time)

    def failed(self, event: RunFailed) -> None:
        """Write the error as a text."""
        if self._file is not None:
            self._records.text("run/error", event.error, event.time, event.step)

    def close(self) -> None:
        """Write pending records and close the file."""
        if self._file is not None:
            file, self._file = self._file, None
            try:
                file.flush()
            finally:
                file.close()

    def _write(self) -> None:
        self._file.flush()
        self._written = self._clock()


def remove_event_files(directory: Path) -> None:
    """Remove the event files of earlier runs of `learner`; others stay, and so do those behind a link."""
    if directory.is_symlink() or not directory.is_dir():
        return
    for path in directory.glob("events.out.tfevents.*"):
        if FILE.fullmatch(path.name):
            path.unlink()
    with contextlib.suppress(OSError):  # others are there
        directory.rmdir()


def _own_files(folder: Path) -> list[Path]:
    """Return the event files that a run of ours has left, in the order in which TensorBoard reads them."""
    return sorted(path for path in folder.iterdir() if FILE.fullmatch(path.name) and path.is_file())


def _next_file(folder: Path, second: int) -> str:
    """Return a name after those of all other files: TensorBoard orders files by name, and by the seconds in it."""
    seconds = [int(path.name.split(".")[3]) for path in _own_files(folder)]
    second = max([second, *(used + 1 for used in seconds)])
    return os.fspath(folder / f"events.out.tfevents.{second:010d}.{platform.node()}.learner")
