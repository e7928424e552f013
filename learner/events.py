"""What happens in a run, as values, and the threads that deliver it.

The loop hands device arrays to one ordered worker (`learner.worker`), which reads them, writes the run's own files and
turns them into the events below. Everybody else is a `Listener`: it has a thread and a bounded queue of its own
(`Outlet`), so that it can neither slow nor stop training.
"""

import dataclasses
import queue
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class MetricInfo:
    """What is known of a metric before it has a value."""

    split: str
    name: str
    unit: str = ""
    higher_is_better: bool | None = None
    numeric: bool = True
    plotted: bool = True

    @property
    def key(self) -> str:
        """`train/Loss`: how monitors and histories name it."""
        return f"{self.split}/{self.name}"


@dataclasses.dataclass(frozen=True)
class Event:
    """Something that happened. `time` is in seconds since the epoch (UTC), from the run's own clock."""

    time: float


@dataclasses.dataclass(frozen=True)
class RunStarted(Event):
    """Before the first step. `num_epochs`, `num_steps`, `steps_per_epoch`: `None` where not known or not set."""

    directory: Path
    num_epochs: int | None
    num_steps: int | None
    steps_per_epoch: int | None
    metrics: tuple[MetricInfo, ...]
    parameters: int
    epoch: int = 1
    step: int = 0
    resumed: bool = False
    initial: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class EpochStarted(Event):
    """An epoch begins, or goes on after a resume. Epochs count from 1."""

    epoch: int
    steps: int | None


@dataclasses.dataclass(frozen=True)
class StepsEnded(Event):
    """Steps that one or more dispatches made: optimizer steps of `train`, batches of a validation split.

    `first` is the number of the first one: of the run for `train` (the first step is 1), of the split otherwise (the
    first batch is 1). `in_epoch` counts those of this epoch (or this validation) up to and with the last of them,
    `total` what that count will end at where known. `values` has a float32 array `[count]` for each numeric metric that
    has values per step; `weights` `[count]`.
    """

    split: str
    epoch: int
    first: int
    count: int
    in_epoch: int
    total: int | None
    step: int
    values: Mapping[str, np.ndarray]
    weights: np.ndarray
    seconds: float


@dataclasses.dataclass(frozen=True)
class SplitEnded(Event):
    """A split's values over all of it: after its last step of an epoch, or after a validation.

    `values` maps a metric's name to a float, or to its text where it is not numeric. `at_step` tells validations inside
    an
    epoch: the optimizer step; `None` for the only one at the end.
    """

    split: str
    epoch: int
    step: int
    values: Mapping[str, float | str]
    seconds: float
    at_step: int | None = None


@dataclasses.dataclass(frozen=True)
class EpochEnded(Event):
    """All of an epoch's values by key (`train/Loss`), after its validation."""

    epoch: int
    step: int
    values: Mapping[str, float | str]
    seconds: float


@dataclasses.dataclass(frozen=True)
class Saved(Event):
    """A checkpoint is complete on disk."""

    epoch: int
    step: int
    path: Path
    seconds: float


@dataclasses.dataclass(frozen=True)
class Message(Event):
    """A line for people. `level` is a `logging` level (20: info, 30: warning)."""

    level: int
    text: str


@dataclasses.dataclass(frozen=True)
class RunEnded(Event):
    """The run ended as it should, or was stopped. `summary` is what `summary.json` holds; `show_summary`: print it."""

    epoch: int
    step: int
    stopped_by: str
    summary: Mapping[str, Any]
    seconds: float
    show_summary: bool


@dataclasses.dataclass(frozen=True)
class RunFailed(Event):
    """The run ended with an exception."""

    epoch: int
    step: int
    error: str


class Listener:
    """Base of loggers and renderers: one method for all events, called in order from a thread of its own.

    An exception detaches it with one warning; training goes on.

    >>> class Printer(Listener):
    ...     def on_event(self, event):
    ...         print(type(event).__name__)
    >>> Printer().on_event(Message(0.0, 20, "hello"))
    Message
    """

    def on_event(self, event: Event) -> None:
        """Something happened."""

    def close(self) -> None:
        """The run is over, also after an error: give back what was taken."""


class Outlet:
    """Delivers events to one listener from a thread and a bounded queue of its own.

    Where the queue is full, events are dropped and counted. A listener that raises is detached, with one call of
    `warn`.
    """

    def __init__(self, listener: Listener, warn: Callable[[str], None], size: int = 1024):
        self._listener, self._warn = listener, warn
        self._queue: queue.Queue[Event | None] = queue.Queue(size)
        self._dropped = 0
        self._detached = False
        name = f"learner-{type(listener).__name__}"
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def put(self, event: Event) -> None:
        """Never waits and never raises."""
        if self._detached:
            return
        try:
            self._queue.put_nowait(event)
        except queue.Full:
            self._dropped += 1

    def close(self, seconds: float = 5.0) -> None:
        """Delivers what is queued and closes the listener; one that hangs is left behind after `seconds`."""
        try:
            self._queue.put(None, timeout=seconds)
        except queue.Full:
            self._dropped += 1
        self._thread.join(seconds)
        name = type(self._listener).__name__
        if self._thread.is_alive():
            self._warn(f"{name} hangs and was left behind")
        if self._dropped:
            self._warn(f"{name} was too slow: {self._dropped} events were not shown to it")

    def _work(self) -> None:
        while (event := self._queue.get()) is not None:
            if not self._detached:
                self._call(lambda event=event: self._listener.on_event(event))  # type: ignore[misc]
        self._call(self._listener.close)

    def _call(self, deliver: Callable[[], None]) -> None:
        try:
            deliver()
        except BaseException as error:  # sys.exit() too would end the thread without a word
            was, self._detached = self._detached, True
            if not was:
                self._warn(f"{type(self._listener).__name__} failed and is detached; training goes on: {error!r}")
