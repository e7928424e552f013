"""A writer of run directories for custom training loops. `learner compare`, `report`, `plot` and `watch` read them.

with RunWriter("runs/own", config={"lr": 1e-3}, metrics=[Accuracy()]) as run:
    for epoch in range(10):
        ...
        run.end_epoch(step, {"train": {"Loss": loss}, "valid": {"Loss": valid_loss, "Accuracy": accuracy}})
"""

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np

from learner.errors import LearnerError
from learner.events import MetricInfo
from learner.runs.appended import shortest
from learner.runs.history import History, summarize
from learner.runs.journal import LARGEST, NUMBERS, OBSERVER_KEYS, read_journal
from learner.runs.layout import MARK
from learner.runs.lock import locked
from learner.runs.metric_logs import RunFiles
from learner.training.files.directory import holds_run, problem_with
from learner.training.files.run_metadata import commit, environment
from learner.util.disk import make_directory
from learner.util.number_checks import is_int

END = "the end of the loop"
SPLITS = ("train", "valid", "custom")


class Described(Protocol):
    """A metric of `learner.metrics`, or anything else that describes one."""

    @property
    def name(self) -> str:
        """The name, without the split."""

    @property
    def unit(self) -> str:
        """The unit of the values, or empty."""

    @property
    def higher_is_better(self) -> bool | None:
        """The direction, if it has one."""


class RunWriter:
    """Write the files of a run from a custom training loop: the journal, the metric logs and the summary.

    Entering the block locks the directory and writes the start of the run. Leaving it writes the summary and the reason
    for the end: the end of the loop, an interrupt, or an exception. Use it from one thread of one process.

    Args:
      directory: the directory of the run. It is created if it does not exist.
      config: settings, which `learner compare` shows. JSON must be able to represent the values.
      metrics: the metrics whose units and directions apply to values of the same name. Lower is better for a loss.
      resume_at: the optimizer step that the loop continues from; 0 starts over. Later epochs of the run in the
        directory are removed from its files. Default: a new run; raises if the directory already holds one.
      clock: a function that returns the seconds since 1970 (UTC).

    Raises:
      LearnerError: the directory holds a run and `resume_at` is not given, another process trains in it, or it cannot
        be written.

    >>> import tempfile
    >>> from learner.runs import RunReader
    >>> directory = tempfile.mkdtemp()
    >>> with RunWriter(directory, config={"lr": 0.1}) as run:
    ...     for loss in (0.5, 0.25):
    ...         run.step({"Loss": loss}, weight=32)
    ...     run.end_epoch(2, {"train": {"Loss": 0.375}, "valid": {"Loss": 0.4}})
    >>> written = RunReader(directory)
    >>> str(written.status), written.config, written.history["valid/Loss"]
    ('ended: the end of the loop', {'lr': 0.1}, [0.4])
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        config: Mapping[str, Any] | None = None,
        metrics: Sequence[Described] = (),
        resume_at: int | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._directory = Path(directory).expanduser().absolute()  # the loop may change the working directory
        if problem := problem_with(self._directory):
            raise LearnerError(problem, code="directory-unusable", directory=directory)
        if resume_at is None and holds_run(self._directory):
            raise LearnerError(
                f"{directory} holds a run: continue it with resume_at=STEP (0 starts it over), or choose another "
                "directory",
                code="directory-holds-run",
                directory=directory,
            )
        if resume_at is not None and not (is_int(resume_at) and 0 <= resume_at < LARGEST):
            raise LearnerError(
                f"resume_at is {resume_at!r}; it needs the number of an optimizer step, from 0 to below {LARGEST}",
                code="resume-at-value",
            )
        self._config = {str(key): value for key, value in (config or {}).items() if key not in OBSERVER_KEYS}
        self._metrics = {"Loss": ("", False), **{m.name: (m.unit, m.higher_is_better) for m in metrics}}
        self._resume_at = resume_at
        self._clock = clock
        self._files = RunFiles(self._directory, clock)
        self._history = History()
        self._epoch, self._step = 1, 0
        self._stack = contextlib.ExitStack()
        self._is_open = False

    def __enter__(self) -> Self:
        make_directory(self._directory)
        with contextlib.ExitStack() as stack:
            stack.enter_context(locked(self._directory))  # before any file of the run is changed
            stack.enter_context(contextlib.closing(self._files))
            if self._resume_at is not None:
                self._continue_at(self._resume_at)
            known = {info.key: {"unit": info.unit, "higher_is_better": info.higher_is_better} for info in self._infos()}
            metadata = {"metrics": known, "config": self._config, "environment": environment(), "commit": commit()}
            position = {"epoch": self._epoch, "step": self._step, "resumed": bool(self._history)}
            self._files.journal("start", **position, **metadata)
            self._began = self._clock()
            self._stack, self._is_open = stack.pop_all(), True
        return self

    def step(self, values: Mapping[str, Any], *, weight: float = 1, split: str = "train") -> None:
        """Write the values of one step.

        Args:
          values: a number for each metric by name. For a JAX array, this waits until it is computed.
          weight: the number of rows or tokens over which the values are means.
          split: `train`, `valid`, `valid-NAME` or `custom`.

        Raises:
          LearnerError: there is no such split, a value is not a number, or this is called outside of the block.
        """
        self._refuse_outside()
        columns = {name: np.array([_number(name, value)]) for name, value in values.items()}
        self._files.steps(_split(split), self._epoch, columns, np.array([_number("weight", weight)]))

    def end_epoch(self, step: int, values: Mapping[str, Mapping[str, Any]]) -> None:
        """Write the values of an epoch and begin the next one.

        Args:
          step: the number of optimizer steps so far, over all epochs.
          values: for each split, a mapping of metric names to numbers or texts:
            `{"train": {"Loss": 0.5}, "valid": {"Loss": 0.6}}`.

        Raises:
          LearnerError: there is no such split, a value is neither a number nor a text, the step is not a number from 0
            to below 2**53, or this is called outside of the block.
        """
        self._refuse_outside()
        # An int may be too large for a float.
        number = step if isinstance(step, int) else _number("step", step)
        if not 0 <= number < LARGEST:  # readers would take the line for a damaged one
            raise LearnerError(
                f"the step is {step}; it needs a number from 0 to below {LARGEST}", code="run-step-value"
            )
        step = int(number)
        plain = {
            _split(split): {name: v if isinstance(v, str) else _number(name, v) for name, v in named.items()}
            for split, named in values.items()
        }
        for split, named in plain.items():
            self._files.close_split(split, self._epoch, named, at_step=None)
            self._history.record(split, self._epoch, step, named)
        by_key = {f"{split}/{name}": value for split, named in plain.items() for name, value in named.items()}
        self._files.journal("epoch", epoch=self._epoch, step=step, values=by_key)
        self._epoch, self._step = self._epoch + 1, step

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_open = False
        with self._stack:  # releases the lock last
            position = {"epoch": max(self._epoch - 1, 1), "step": self._step}
            if error is not None and not isinstance(error, KeyboardInterrupt):
                with contextlib.suppress(Exception):  # the error of the loop is the one to raise
                    self._files.journal("error", **position, error=repr(error))
                return
            reason = END if error is None else "ctrl-c"
            summary = summarize(
                self._history,
                self._infos(),
                directory=self._directory,
                epochs=self._epoch - 1,
                steps=self._step,
                stopped_by=reason,
                checkpoints=[],
            )
            # Before the journal's end line: a reader that finds this line must find the summary, too.
            self._files.write_summary(summary)
            seconds = {"total": round(self._clock() - self._began, 6)}
            event = "end" if error is None else "stop"
            self._files.journal(event, **position, stopped_by=reason, seconds=seconds)

    def _refuse_outside(self) -> None:
        """Raise `LearnerError` outside of the block, where nothing locks the directory."""
        if not self._is_open:
            raise LearnerError(
                f"the RunWriter of {self._directory} is not open: write inside of `with RunWriter(...) as run:`",
                code="run-writer-closed",
                directory=self._directory,
            )

    def _continue_at(self, step: int) -> None:
        """Remove the lines of later epochs, and read the history of the others."""
        journal = read_journal(self._directory) if (self._directory / MARK).exists() else []
        numbers = [entry for _, entry in journal if entry.get("event") in NUMBERS]
        kept = [entry for entry in numbers if entry["step"] <= step]
        self._epoch = 1 + max((entry["epoch"] for entry in kept if entry["event"] == "epoch"), default=0)
        self._files.cut({"epoch_lines": len(kept), "epoch": self._epoch, "files": {}})
        for entry in kept:
            self._history.record_entry(entry)
        self._step = step
        (self._directory / "summary.json").unlink(missing_ok=True)

    def _infos(self) -> list[MetricInfo]:
        """Return the metrics that have values, or before the first value, the expected ones of a loop's splits."""
        keys = list(self._history) or [f"{split}/{name}" for split in ("train", "valid") for name in self._metrics]
        pairs = [key.split("/", 1) for key in keys]
        return [self._info(*pair) for pair in pairs]

    def _info(self, split: str, name: str) -> MetricInfo:
        unit, higher_is_better = self._metrics.get(name, ("", None))
        return MetricInfo(split, name, unit, higher_is_better)


def _split(name: str) -> str:
    if name not in SPLITS and not name.startswith("valid-"):
        raise LearnerError(
            f"the split is {name!r}; it needs one of {', '.join(SPLITS)}, or valid-NAME",
            code="run-split-unknown",
            name=name,
        )
    return name


def _number(name: str, value: Any) -> float:
    try:
        return shortest(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise LearnerError(
            f"the value of {name} is a {type(value).__name__}; it needs one number", code="run-value-type", name=name
        ) from error
