"""Events of a run, as values, and the threads that deliver them.

The loop passes device arrays to one ordered worker (`learner.training.reporting.reporter`), which reads them, writes
the run's own files and sends the events below. Everything else is a `Listener` with its own thread and bounded queue
(`ListenerThread`), so it can neither slow nor stop training.
"""

import collections
import dataclasses
import math
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from learner.util.code_location import code_location
from learner.util.device_threads import with_precision
from learner.util.samples import Sample
from learner.util.text import masked

MOST = 64  # times the size of a queue: the limit for events other than `StepsEnded`
QUIET_SECONDS = 10.0  # a longer wait for a listener shows a message


@dataclasses.dataclass(frozen=True)
class MetricInfo:
    """The description of a metric. `numeric`: its values are numbers, which are plotted; otherwise they are texts."""

    split: str
    name: str
    unit: str = ""
    higher_is_better: bool | None = None
    numeric: bool = True

    @property
    def key(self) -> str:
        """The key in monitors and histories, such as `train/Loss`."""
        return f"{self.split}/{self.name}"


@dataclasses.dataclass(frozen=True)
class Event:
    """Base of events. `time` is in seconds since the epoch (UTC), from the run's own clock."""

    time: float


@dataclasses.dataclass(frozen=True)
class ArrayInfo:
    """An array of a model. `kind` is `params`, the name of its collection or variable type (`batch_stats`), or
    `optimizer` in the state of `update=`. `bytes` is the size of the whole array.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    kind: str
    trainable: bool
    bytes: int

    @property
    def count(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


@dataclasses.dataclass(frozen=True)
class Overview(Event):
    """The overview of a run, for display. With the builder's `summary()`, it is sent before `RunStarted`.

    Attributes:
      model: the class of the model and its library.
      arrays: the arrays of the model.
      optimizer: a description of the optimizer, or `None` if `update=` replaces it.
      strategy: a description of the strategy; `devices`: the number of its devices.
      rows: the number of rows in a batch; `spread`: the number of devices that share them.
      accumulate: the number of batches in an optimizer step; `split`: the number of parts that each is computed in.
      batches: the number of batches in an epoch, None if unknown; `steps_per_epoch`, `num_epochs` and `steps` (of the
        run) likewise.
      flops: floating-point operations of one optimizer step over all devices; `flops_exact`: False if there may be
        more.
      memory: bytes on each device by their use, before anything is computed.
      room: bytes of memory on each device, or None if unknown.
      peak: peak bytes of the compiled training on each device, None before it is compiled; `temporaries`: the part of
        them that is in use only while it runs.
      depth: the depth of the displayed tree of arrays; None chooses a useful depth.
    """

    model: str
    arrays: tuple[ArrayInfo, ...]
    optimizer: str | None
    strategy: str
    devices: int
    rows: int
    spread: int
    accumulate: int
    batches: int | None
    steps_per_epoch: int | None
    num_epochs: int | None
    steps: int | None
    flops: int
    flops_exact: bool
    memory: Mapping[str, int]
    room: int | None = None
    peak: int | None = None
    temporaries: int | None = None
    depth: int | None = None
    split: int = 1


@dataclasses.dataclass(frozen=True)
class RunStarted(Event):
    """The run is about to take its first step. `num_epochs`, `num_steps` and `steps_per_epoch` are None if unknown or
    not set.

    A resumed run (`resumed`) continues after `step`. `history` has the values of whole splits up to that step, by key,
    each as `(epoch, step, value)`. `monitor` is the metric that selects the best checkpoint. `config` has the
    hyper-parameters, `environment` the versions and devices, and `commit` is the git commit of the working directory.
    JSON can represent all three. `directory` is absolute, `shown` is as the user wrote it (empty if unknown).
    """

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
    history: Mapping[str, Sequence[tuple[int, int, float | str]]] = dataclasses.field(default_factory=dict)
    monitor: str | None = None
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    environment: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    commit: str | None = None
    shown: str = ""


@dataclasses.dataclass(frozen=True)
class Compiling(Event):
    """A program is about to be compiled: number `number`, from 1, of `total` known programs. Number 0: all of them are
    compiled.
    """

    number: int
    total: int


@dataclasses.dataclass(frozen=True)
class EpochStarted(Event):
    """An epoch begins, or is resumed. Epochs count from 1."""

    epoch: int
    steps: int | None


@dataclasses.dataclass(frozen=True)
class StepsEnded(Event):
    """One or more dispatches ended: `count` optimizer steps of `train`, or batches of a validation split.

    `first` is the number of the first one: in the run for `train` (the first step is 1), in the split otherwise (the
    first batch is 1). `in_epoch` is the number of steps or batches in this epoch (or this validation) up to and
    including the last one; `total` is its final value, if known. `values` has an array `[count]` for each numeric
    metric with values per step, float32 for metrics on the device, else float64. `weights` is `[count]`.
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
    """The values of a split, after its last step of an epoch or after a validation; that before the first step is of
    epoch 0.

    `values` maps a metric's name to a float, or to a text if it is not numeric. `at_step` is the optimizer step of a
    validation inside an epoch; `None` for a single validation at the end. `pictures` maps each metric that can be drawn
    to a function that returns uint8 `[height, width]` or `[height, width, 3]`; listeners call it if they need it.
    """

    split: str
    epoch: int
    step: int
    values: Mapping[str, Any]
    seconds: float
    at_step: int | None = None
    pictures: Mapping[str, Callable[[], np.ndarray]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class SamplesLogged(Event):
    """Texts, pictures (`Image`) and histograms (`Histogram`) that hooks returned after an optimizer step, by name."""

    epoch: int
    step: int
    values: Mapping[str, Sample]


@dataclasses.dataclass(frozen=True)
class EpochEnded(Event):
    """All values of an epoch by key (`train/Loss`), after its validation."""

    epoch: int
    step: int
    values: Mapping[str, Any]
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
    """A message of the run. `level` is a `logging` level (20: info, 30: warning)."""

    level: int
    text: str


@dataclasses.dataclass(frozen=True)
class RunEnded(Event):
    """The run completed, or was stopped. `summary` is the content of `summary.json`; `show_summary` is True if it is to
    be printed.
    """

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

    An exception detaches it with one warning; training continues.

    Attributes:
      monitors: the keys of the metrics that it needs; a run without one of them does not start.
      secrets: texts to mask in the warning about its exception, such as a token.
      seconds_to_close: how long a run that has ended waits for the listener to handle its last events; may be infinite.
      place: a path or an address outside of the run's directory that it writes to, which two runs cannot share; None
        if there is none.

    >>> class Printer(Listener):
    ...     def on_event(self, event):
    ...         print(type(event).__name__)
    >>> Printer().on_event(Message(0.0, 20, "hello"))
    Message
    """

    monitors: Sequence[str] = ()
    secrets: Sequence[str] = ()
    seconds_to_close: float = QUIET_SECONDS  # importing the client of a server can take seconds
    place: str | None = None

    def on_event(self, event: Event) -> None:
        """Handle an event."""

    def close(self) -> None:
        """Release resources. Called when the run has ended, also after an error."""

    def abandon(self) -> None:
        """Release shared resources without waiting. Called when the run has ended and `on_event` hangs."""


class ListenerThread:
    """Deliver events to one listener through its own thread and bounded queue.

    If `size` events are queued, further `StepsEnded` events are dropped and counted. The other events are few and
    important, such as the end of a run or a split's values. They are dropped only if a listener hangs and `MOST * size`
    events are queued. A listener that raises is detached, with one call of `warn`, and one of `log` with the traceback.
    """

    def __init__(
        self,
        listener: Listener,
        warn: Callable[[str], None],
        log: Callable[[str], None] = lambda text: None,
        size: int = 1024,
    ):
        self._listener, self._warn, self._log, self._size = listener, warn, log, size
        self._waiting: collections.deque[Event] = collections.deque()
        self._news = threading.Condition()  # its lock is held for no longer than an event is put or taken
        self._dropped = 0
        self._detached = self._closing = self._busy = False
        name = f"learner-{type(listener).__name__}"
        self._thread = threading.Thread(target=with_precision(self._work), name=name, daemon=True)
        self._thread.start()

    def put(self, event: Event) -> None:
        """Queue an event. It never blocks and never raises."""
        most = self._size if isinstance(event, StepsEnded) else MOST * self._size
        with self._news:
            if self._detached or self._closing:
                return
            if len(self._waiting) < most:
                self._waiting.append(event)
                self._news.notify_all()
            else:
                self._dropped += 1

    @property
    def seconds_to_close(self) -> float:
        """Seconds that the listener may take to close."""
        return self._listener.seconds_to_close

    def flush(self, seconds: float) -> bool:
        """Wait for the listener to handle the queued events. Return False if it has not after `seconds`."""

        def handled(seconds: float) -> bool:
            with self._news:
                return self._news.wait_for(lambda: not (self._waiting or self._busy), seconds)

        return self._wait(handled, seconds)

    def end(self) -> None:
        """Accept no more events; the listener is closed once the queue is empty. Returns at once."""
        with self._news:
            self._closing = True
            self._news.notify_all()

    def close(self, seconds: float = 5.0) -> None:
        """Deliver the queued events and close the listener; one that hangs is abandoned after `seconds`."""

        def closed(seconds: float) -> bool:
            self._thread.join(seconds)
            return not self._thread.is_alive()

        self.end()
        name = type(self._listener).__name__
        if not self._wait(closed, seconds):
            self._call(self._listener.abandon)
            self._warn(f"{name} hangs and was left behind")
        if self._dropped:
            self._warn(f"{name} was too slow: {self._dropped} events were not shown to it")

    def _wait(self, ended: Callable[[float], bool], seconds: float) -> bool:
        """Return True if `ended` returns True within `seconds`. Warn if the wait is long."""
        quiet = min(seconds, QUIET_SECONDS)
        if ended(quiet):
            return True
        if seconds <= quiet:
            return False
        self._warn(f"waiting for {type(self._listener).__name__}, for {seconds - quiet:.0f} s at most")
        return ended(min(seconds - quiet, threading.TIMEOUT_MAX))

    def _work(self) -> None:
        while (event := self._next()) is not None:
            if not self._detached:
                self._call(lambda event=event: self._listener.on_event(event))  # type: ignore[misc]
        self._call(self._listener.close)

    def _next(self) -> Event | None:
        """Wait for the next event. Return None if there are no more."""
        with self._news:
            self._busy = False
            self._news.notify_all()  # `flush`
            self._news.wait_for(lambda: self._waiting or self._closing)
            self._busy = bool(self._waiting)
            return self._waiting.popleft() if self._waiting else None

    def _call(self, deliver: Callable[[], None]) -> None:
        try:
            deliver()
        except BaseException as error:  # sys.exit() too would end the thread silently
            was, self._detached = self._detached, True
            if not was:
                text = masked(f"{error!r} ({code_location(error)})", self._listener.secrets)
                self._warn(f"{type(self._listener).__name__} failed and is detached; training continues: {text}")
                # Without chained errors: they may quote parts of a secret address.
                lines = traceback.format_exception(error, chain=False)
                self._log(masked(f"the traceback:\n{''.join(lines).rstrip()}", self._listener.secrets))
