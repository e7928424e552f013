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

from learner.events import RunEnded, RunFailed, RunStarted, SamplesLogged, SplitEnded, StepsEnded
from learner.loggers.base import EVERY_DEAR, RunLogger
from learner.loggers.secrets import resolve
from learner.loggers.tfevents import EPOCH, SAMPLE, STEP, Records, folder_of
from learner.runs.appended import refuse_special
from learner.util.optional import refuse_missing
from learner.util.samples import Image

FILE = re.compile(r"events\.out\.tfevents\.\d{10}\..*\.learner")
OF_SPLIT = ".split"
"""A mark in the file names of splits: one run's directory may lie inside another's."""
SECONDS_BETWEEN_WRITES = 2.0


class TensorBoard(RunLogger):
    """Write event files for TensorBoard: `tensorboard --logdir runs` shows all runs below `runs`.

    Each split has its own directory, so TensorBoard draws all splits of a metric in one card: values of whole splits
    are `epoch/Loss`, values of single steps `step/Loss`; both are logged at the optimizer step. Metrics that are not
    numbers are texts, and also pictures if they can be drawn. Texts, pictures and histograms of hooks are
    `sample/NAME`. Config, environment, commit and summary are also texts, and the config provides the run's
    hyper-parameters. A resumed run writes further files, which begin with a record that makes TensorBoard discard the
    repeated steps.

    Needs tensorboardX, of the extra `tensorboard`.

    Args:
      directory: the directory of the files; default: `tensorboard` in the run's directory.
      every_steps: see `RunLogger`.
      every_epochs: see `RunLogger`.
      clock: returns seconds; the files are written every two seconds.

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
        self.place, self._clock = resolve(directory), clock
        self._files: dict[str, Any] = {}
        self._records: dict[str, Records] = {}
        self._written = clock()

    def started(self, event: RunStarted) -> None:
        """Open the next file of the run and of each split."""
        folder = Path(self.place) if self.place is not None else event.directory / "tensorboard"
        refuse_special(folder)
        if not event.resumed:
            remove_event_files(folder)
        self._folder, self._started = folder, event
        run = self._of("")
        for split in dict.fromkeys(key.partition("/")[0] for key in event.history):
            self._of(split)  # it may contain values to discard; no other split can
        documents = {"config": event.config, "environment": event.environment, "commit": event.commit}
        for name, content in documents.items():
            if content:
                run.text(f"run/{name}", content, event.time, event.step)
        metrics = [(info.split, f"{EPOCH}/{info.name}") for info in event.metrics if info.numeric]
        self._end = run.settings(event.config, metrics, event.time)
        self._write()

    def steps(self, event: StepsEnded, steps: range, values: dict[str, np.ndarray]) -> None:
        """Write scalars of steps."""
        records, tags = self._of(event.split), [f"{STEP}/{name}" for name in values]
        for step, *numbers in zip(steps, *(column.tolist() for column in values.values()), strict=True):
            records.scalars(event.time, step, tags, numbers)
        if self._clock() - self._written >= SECONDS_BETWEEN_WRITES:
            self._write()

    def split(self, event: SplitEnded) -> None:
        """Write scalars, texts and pictures of a split."""
        records = self._of(event.split)
        records.values(event.values, event.time, event.step)
        for name, draw in event.pictures.items():
            records.picture(f"{EPOCH}/{name}", draw(), event.time, event.step)
        self._write()

    def samples(self, event: SamplesLogged) -> None:
        """Write texts, pictures and histograms."""
        records = self._of("custom")
        for name, value in event.values.items():
            if isinstance(value, str):
                records.text(f"{SAMPLE}/{name}", value, event.time, event.step)
            elif isinstance(value, Image):
                records.picture(f"{SAMPLE}/{name}", value.pixels, event.time, event.step)
            else:
                records.histogram(f"{SAMPLE}/{name}", value, event.time, event.step)
        self._write()

    def ended(self, event: RunEnded) -> None:
        """Write the summary, and end the session of hyper-parameters."""
        self._of("").text("run/summary", event.summary, event.time, event.step)
        self._end(event.time)

    def failed(self, event: RunFailed) -> None:
        """Write the error as a text."""
        if self._files:
            self._of("").text("run/error", event.error, event.time, event.step)

    def close(self) -> None:
        """Write pending records and close the files."""
        files, self._files, self._records = self._files, {}, {}  # a later run may have the same logger
        with contextlib.ExitStack() as stack:
            for file in files.values():
                stack.callback(file.close)
                stack.callback(file.flush)

    def _of(self, split: str) -> Records:
        """Return the records of a split, or of the run if the name is empty. The first call opens their file."""
        if split not in self._records:
            from tensorboardX.record_writer import RecordWriter

            event, folder = self._started, self._folder / folder_of(split)
            refuse_special(folder)
            folder.mkdir(parents=True, exist_ok=True)
            earlier = _own_files(folder)
            self._files[split] = RecordWriter(_next_file(folder, int(event.time), OF_SPLIT if split else ""))
            self._records[split] = records = Records(self._files[split].write)
            records.begin(event.time)
            if event.resumed:
                counts = {key: sum(step == event.step for _, step, _ in rows) for key, rows in event.history.items()}
                known = {key.replace(f"{split}/", f"{EPOCH}/", 1) if split else key: n for key, n in counts.items()}
                records.resume(event.time, event.step, earlier, known)
        return self._records[split]

    def _write(self) -> None:
        for file in self._files.values():
            file.flush()
        self._written = self._clock()


def remove_event_files(directory: Path) -> None:
    """Remove the event files of earlier runs of `learner`; keep others, and those behind a link."""
    if directory.is_symlink() or not directory.is_dir():
        return
    splits = [folder for folder in directory.iterdir() if folder.is_dir() and not folder.is_symlink()]
    for folder, end in (*((split, f"{OF_SPLIT}.learner") for split in splits), (directory, ".learner")):
        for path in folder.glob("events.out.tfevents.*"):
            if FILE.fullmatch(path.name) and path.name.endswith(end):
                path.unlink()
        with contextlib.suppress(OSError):  # others are there
            folder.rmdir()


def _own_files(folder: Path) -> list[Path]:
    """Return the event files that `learner` wrote, in the order in which TensorBoard reads them."""
    return sorted(path for path in folder.iterdir() if FILE.fullmatch(path.name) and path.is_file())


def _next_file(folder: Path, second: int, mark: str) -> str:
    """Return a name that sorts after all other files: TensorBoard orders files by name, and by the seconds in it."""
    seconds = [int(path.name.split(".")[3]) for path in _own_files(folder)]
    second = max([second, *(used + 1 for used in seconds)])
    return os.fspath(folder / f"events.out.tfevents.{second:010d}.{platform.node()}{mark}.learner")
