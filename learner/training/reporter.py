"""The reporter: a thread that reads what the device computed, in order, and writes the run's files.

It is part of the run: an error here is raised in `fit`, and a full queue holds the loop. Everything that a run knows on
the host (history, log offsets, collected rows) is known here, in order, so `snapshot` gives checkpoints their part of
it.
"""

import contextlib
import dataclasses
import functools
import itertools
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from learner.errors import LearnerError
from learner.events import EpochEnded, EpochStarted, Event, ListenerThread, Message, Saved, SplitEnded, StepsEnded
from learner.metrics.base import CollectingMetric, HostMetric, Metric, MetricBase
from learner.runs.history import History
from learner.runs.metric_logs import NoFiles, RunFiles
from learner.steps.finite import HALTS, KINDS, NonFinitePolicy, nonfinite_text
from learner.steps.program import StepOutputs
from learner.training.oom import OomContext
from learner.training.timing import StepTimeEstimator
from learner.util.ownership import ThreadOwned

PyTree = Any


@dataclasses.dataclass(frozen=True)
class StepsDispatched:
    """Steps that were dispatched; their values are still on the device. `since`: by the worker's clock, when the loop
    began to work for them, so that what came before (a hook, a validation) is not their time. `apart`: seconds of that
    in which it compiled, or waited for batches. `dispatched`: by the same clock, when all of that was over.
    """

    split: str
    epoch: int
    first: int
    count: int
    batches: int
    in_epoch: int
    total: int | None
    step: int
    values: StepOutputs
    rows: int = 0
    since: float = 0.0
    apart: float = 0.0
    dispatched: float = math.inf

    def overhead(self, before: float) -> float:
        """Return the part of `apart` after `before`, when the steps before ended: what lies earlier delayed nothing."""
        return max(0.0, min(self.apart, self.dispatched - max(before, self.since)))


@dataclasses.dataclass(frozen=True)
class SplitFinished:
    """A split's last steps were dispatched; `values` by metric are still on the device."""

    split: str
    epoch: int
    step: int
    at_step: int | None
    values: Mapping[str, PyTree]


@dataclasses.dataclass(frozen=True)
class ValidationAborted:
    """A validation was cut short: it will be made again."""

    split: str


@dataclasses.dataclass(frozen=True)
class EpochFinished:
    """An epoch and its validation are over."""

    epoch: int
    step: int


@dataclasses.dataclass(frozen=True)
class NonFiniteStop:
    """The step that ended the run, because its loss or its gradients are not finite; `kind`: which of them."""

    epoch: int
    step: int
    kind: str


@dataclasses.dataclass(frozen=True)
class Callback:
    """Something to do in order, on the reporter's thread."""

    fn: Callable[[], None]


@dataclasses.dataclass
class Times:
    """What the loop and the worker did so far, for a profile.

    Attributes:
      dispatches: of training and validation.
      held: seconds for which the loop waited until it might dispatch more.
      reading: seconds for which the worker waited for values of the device.
      handling: seconds for which it did something with them.
    """

    dispatches: int = 0
    held: float = 0.0
    reading: float = 0.0
    handling: float = 0.0


POLL_SECONDS = 1  # seconds

Item = StepsDispatched | SplitFinished | ValidationAborted | EpochFinished | Callback | Event


class InFlightLimiter:
    """Bounds how far the host runs ahead of the device: in dispatches, and in seconds of work."""

    def __init__(self, most: int = 64, seconds: float = 0.1, least: int = 2):
        self._most, self._seconds, self._least = most, seconds, least
        self._changed = threading.Condition()
        self._flying, self._each, self._landed = 0, 1.0, 0.0

    @property
    def full(self) -> bool:
        """Whether the next dispatch would have to wait."""
        return self._flying >= max(self._least, min(self._most, int(self._seconds / self._each)))

    @property
    def read_batch_size(self) -> int:
        """How many dispatches are best read at once: those of some 5 ms, a few where they are that short."""
        return max(1, min(self._most // 4, int(self._seconds / 20 / self._each)))

    def acquire(self, seconds: float | None = None) -> bool:
        """Waits until another dispatch may be under way, so long at most; whether it may."""
        with self._changed:
            free = self._changed.wait_for(lambda: not self.full, seconds)
            self._flying += free
        return free

    def release(self, count: int, seconds: float, now: float = 0.0) -> None:
        """`count` dispatches ended within `seconds`, the last of them at `now`."""
        with self._changed:
            self._flying -= count
            self._each = max(seconds / count, 1e-6)
            self._landed = now
            self._changed.notify()

    def idle(self, since: float, now: float, held: int) -> float:
        """The seconds since then in which nothing was under way but what the loop still holds."""
        with self._changed:
            return 0.0 if self._flying > held else max(0.0, now - max(since, self._landed))

    def open(self) -> None:
        """Nobody waits any more."""
        with self._changed:
            self._most, self._flying = 1 << 30, -(1 << 30)
            self._changed.notify_all()


@dataclasses.dataclass(frozen=True)
class ReporterSnapshot:
    """The reporter's part of a checkpoint.

    Attributes:
      log: the offsets of the logs.
      epoch_values: the closed values of the current epoch, by key.
      host_metrics: the states of metrics on the host, by split and name.
      history: returns the history as JSON. It is called when the checkpoint is written: there may be very many values.
    """

    log: Mapping[str, Any]
    epoch_values: dict[str, float | str]
    host_metrics: dict[str, dict[str, Any]]
    history: Callable[[], dict[str, Any]]


class _LoopSide(ThreadOwned):
    """The loop's side of a reporter: items that wait to be handed over together, and the epoch that was announced."""

    def __init__(self) -> None:
        self.held: list[Item] = []
        self.announced: int | None = None


class RowCollector(ThreadOwned):
    """The rows that collecting metrics hold until their split ends.

    Attributes:
      collected: by split and metric: lists of the leaves of each batch.
      row_trees: the structures of those rows, by metric.
    """

    def __init__(
        self, collected: dict[str, dict[str, list[list[np.ndarray]]]] | None, row_trees: Mapping[str, Any] | None
    ):
        self.collected = collected or {}
        self.row_trees: dict[str, Any] = dict(row_trees or {})

    def add(self, made: StepsDispatched, values: StepOutputs, collecting: Sequence[MetricBase]) -> None:
        """Keep the rows of a dispatch for each of its collecting metrics."""
        if not collecting:
            return
        tails = values.tail if isinstance(values.tail, list) else [values.tail] if values.tail else []
        parts = [jax.tree.map(lambda x: _joined(x, made.batches - len(tails)), values.rows)] if values.rows else []
        held = self.collected.setdefault(made.split, {})
        for part in [*parts, *tails]:
            for metric, rows in zip(collecting, part, strict=True):
                leaves, self.row_trees[metric.name] = jax.tree.flatten(rows)
                held.setdefault(metric.name, []).append(leaves)

    def rows(self, split: str, name: str) -> PyTree:
        """Return all rows of a split for one metric, in order."""
        parts = self.collected.get(split, {}).get(name, [])
        columns = list(zip(*parts, strict=True))
        for column in columns:
            if len(shapes := {rows.shape[1:] for rows in column}) > 1:
                raise LearnerError(
                    f"{name} collects rows of several shapes in the {split} split, {sorted(shapes)}: pad its batches "
                    "to one length",
                    code="metric-row-shapes-differ",
                    name=name,
                    split=split,
                )
        leaves = [np.concatenate(column) for column in columns]
        return self.row_trees[name].unflatten(leaves)

    def discard(self, split: str) -> None:
        """Drop the rows of a split."""
        self.collected.pop(split, None)

    def to_store(self) -> dict[str, Any]:
        """Return the rows for a checkpoint: arrays by split, by the number of the metric and by that of the leaf."""
        rows: dict[str, Any] = {}
        for split, metrics in self.collected.items():
            for index, parts in enumerate(metrics.values()):
                columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
                rows.setdefault(split, {})[str(index)] = {str(i): column for i, column in enumerate(columns)}
        return rows


class Reporter(ThreadOwned):
    """Deliver a run's items in order: device values to files and history, events to listeners. Its attributes belong to
    its own thread; `_loop` belongs to the loop's.

    Args:
      metrics: by split.
      files: of the run; None if nothing is written.
      history: the values so far.
      outlets: the threads of the listeners.
      estimator: is given the time of steps.
      clock: seconds since 1970 (UTC), for events.
      collected: rows of collecting metrics that a checkpoint holds.
      row_trees: the structures of those rows, by metric.
      epoch_values: the closed values of the current epoch that a checkpoint holds.
      policy: of steps that are not finite; None if they are not reported.
      log: of the application.
      warn: shows a warning to people, and logs it.
      limiter: of dispatches in flight.
      check_peers: called now and then during a wait; it raises if another process has failed.
      now: the clock of steps, in seconds.
      steps_per_epoch: None if that is not known.

    Attributes:
      history: the value of every metric at every epoch and validation.
      rows: the rows of collecting metrics.
      epoch_values: the closed values of the current epoch, by key.
      spent: seconds so far of `train` and `valid` steps, without compiling and waiting for batches, and of `save`.
      times: of the loop and the reporter.
      halted: the step that ended the run, or None. What was dispatched after it leaves nothing.
      log: see above.
      warn: see above.
      flight: the limiter.
      summary: of the run, once it has ended.
      steps_per_epoch: see above.
    """

    def __init__(
        self,
        metrics: Mapping[str, Sequence[MetricBase]],
        files: RunFiles | NoFiles | None,
        history: History,
        outlets: Sequence[ListenerThread],
        estimator: StepTimeEstimator,
        clock: Callable[[], float] = time.time,
        collected: dict[str, dict[str, list[list[np.ndarray]]]] | None = None,
        *,
        row_trees: Mapping[str, Any] | None = None,
        epoch_values: Mapping[str, float | str] | None = None,
        policy: NonFinitePolicy | None = None,
        log: logging.Logger | None = None,
        warn: Callable[[str], None] = lambda text: None,
        limiter: InFlightLimiter | None = None,
        check_peers: Callable[[], None] = lambda: None,
        now: Callable[[], float] = time.perf_counter,
        steps_per_epoch: int | None = None,
    ):
        self.now, self.history, self.steps_per_epoch = now, history, steps_per_epoch
        self.log, self.warn = log or logging.getLogger(__name__), warn
        self.summary: Mapping[str, Any] = {}
        self._policy = policy
        self._skipped_before = False
        self.halted: NonFiniteStop | None = None
        self.spent = {"train": 0.0, "valid": 0.0, "save": 0.0}
        self.times = Times()
        self._left_out: set[str] = set()  # splits with skipped steps, until they end
        self._check_peers = check_peers
        self._undefined_before = _undefined_in(history)  # an earlier process of the run has reported those
        self.rows = RowCollector(collected, row_trees)
        self.flight = limiter or InFlightLimiter()
        self._metrics, self._files, self._outlets, self._pace, self._clock = metrics, files, outlets, estimator, clock
        self.epoch_values: dict[str, float | str] = dict(epoch_values or {})
        self._log_offsets_before_validation: Mapping[str, Any] = {}
        self._last = self._back = self.now()
        self._split_began: dict[str, float] = {}
        self._epoch_began = self._last
        self._error: BaseException | None = None
        self._loop = _LoopSide()
        self._queue: queue.SimpleQueue[tuple[list[Item] | None, bool]] = queue.SimpleQueue()
        self._space = threading.Semaphore(256)
        self._thread = threading.Thread(target=self._work, name="learner-worker", daemon=True)
        self._thread.start()  # the last line: from here on the attributes belong to that thread

    # -- the loop's side -----------------------------------------------------------------------------------------------

    def acquire(self) -> None:
        """Waits until another dispatch may be under way."""
        full, began = self.flight.full, self.now()
        if full:
            self._hand_over()
        while not self.flight.acquire(POLL_SECONDS):
            self._check_peers()
        self.times.dispatches += 1
        if full:
            self.times.held += self.now() - began

    def put(self, item: Item) -> None:
        """Queues an item, waiting where the queue is full; raises what went wrong before.

        Short dispatches are handed over several at once: waking a thread for each costs more than they take.
        """
        self.check()
        self._loop.held.append(item)
        if not isinstance(item, StepsDispatched) or len(self._loop.held) >= self.flight.read_batch_size:
            self._hand_over()

    def _hand_over(self) -> None:
        if self._loop.held:
            self._space.acquire()
            self._queue.put((self._loop.held, True))
            self._loop.held = []

    def begin_epoch(self, epoch: int) -> None:
        """Announce an epoch before its first dispatch, once."""
        if self._loop.announced != epoch:
            self._loop.announced = epoch
            self.put(EpochStarted(self._clock(), epoch, self.steps_per_epoch))

    def mark_logs(self) -> None:
        """Keep the log offsets before a validation: a checkpoint of one that is interrupted has these."""
        self.put(Callback(self._mark_logs))

    def newest(self, at: int | None = None) -> dict[str, float | str]:
        """Wait for the values of all steps, and return the newest value of every metric, or of those that were measured
        at a step.
        """
        self.wait()  # afterwards this thread may read the history: the reporter has nothing to do
        last = {key: self.history.last(key) for key in self.history}
        return {key: point.value for key, point in last.items() if point is not None and at in (None, point.step)}

    def journal(self, event: str, **fields: Any) -> None:
        """Write a line of the journal, in order."""
        self.put(Callback(lambda: self._journal(event, fields)))

    def write_model(self, model: Mapping[str, Any]) -> None:
        """Write the description of the model, in order."""
        self.put(Callback(lambda: None if self._files is None else self._files.write_model(model)))

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write the summary, in order, and wait for it."""
        self.put(Callback(lambda: self._write_summary(summary)))
        self.wait()

    def idle(self, since: float) -> float:
        """Seconds since then, by the clock of `now`, in which the device had nothing to do."""
        return self.flight.idle(since, self.now(), sum(isinstance(item, StepsDispatched) for item in self._loop.held))

    def put_nowait(self, item: Item) -> None:
        """Queues an item from another thread, without waiting."""
        self._queue.put(([item], False))

    def notify(self, text: str, log: bool = False) -> None:
        """Show a message to people, without waiting; from any thread. `log`: also write it to the log."""
        if log:
            self.log.info("%s", text)
        self.put_nowait(Message(self._clock(), logging.INFO, text))

    def report_save(self, epoch: int, step: int, path: Path, seconds: float) -> None:
        """Report a complete checkpoint, without waiting: the reporter may wait for the saver, which calls this."""
        self.put_nowait(Callback(lambda: self._journal("save", {"step": step, "path": str(path)})))
        self.put_nowait(Saved(self._clock(), epoch, step, path, seconds))

    def flush_logs(self, position: Mapping[str, Any]) -> None:
        """Write the logs up to a position to the disk, on the saver's thread. They are only read here."""
        if self._files is not None:
            self._files.to_disk(position)

    def check(self) -> None:
        """Raise the error of the reporter's thread, with its own traceback."""
        if self._error is not None:
            raise self._error

    @property
    def failure(self) -> BaseException | None:
        """What went wrong on the reporter's thread."""
        return self._error

    def wait(self) -> None:
        """Until everything that was put is done."""
        done = threading.Event()
        self.put(Callback(done.set))
        for waits in itertools.count(1):
            if done.wait(0.1):
                break
            self.check()
            if waits % (10 * POLL_SECONDS) == 0:
                self._check_peers()
        self.check()

    def close(self, seconds: float | None = None) -> None:
        """Does what is queued, then ends the thread; raises nothing. What hangs is left behind after `seconds`."""
        self._queue.put((self._loop.held, False))
        self._queue.put((None, False))
        self._thread.join(seconds)

    # -- the reporter's thread -----------------------------------------------------------------------------------------

    def snapshot(self, in_validation: bool) -> ReporterSnapshot:
        """Return the reporter's part of a checkpoint at this place in the order of items."""
        assert self._files is not None
        log = self._log_offsets_before_validation if in_validation else self._files.position()
        return ReporterSnapshot(log, self.epoch_values, self._host_states(), self.history.copy().to_json)

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Count the time of the block as waiting for a checkpoint."""
        began = self.now()
        try:
            yield
        finally:
            self.spent["save"] += self.now() - began

    def _host_states(self) -> dict[str, dict[str, Any]]:
        """Return what the metrics on the host keep for a checkpoint, by split and name."""
        states: dict[str, dict[str, Any]] = {}
        for split, metrics in self._metrics.items():
            for metric in metrics:
                if isinstance(metric, HostMetric) and (state := metric.get_state()) is not None:
                    states.setdefault(split, {})[metric.name] = state
        return states

    def _mark_logs(self) -> None:
        if self._files is not None:
            self._log_offsets_before_validation = self._files.position()

    def _write_summary(self, summary: Mapping[str, Any]) -> None:
        self.summary = summary
        if self._files is not None:
            self._files.write_summary(summary)

    def _journal(self, event: str, fields: Mapping[str, Any]) -> None:
        if self._files is not None:
            self._files.journal(event, **fields)

    def _work(self) -> None:
        self.claim()
        self.rows.claim()
        ended = False
        while not ended:
            entries = [self._queue.get()]
            while len(entries) < 32 and not self._queue.empty():
                entries.append(self._queue.get())
            ended = any(items is None for items, _ in entries)
            if self._error is None:
                began, reading = self.now(), self.times.reading
                try:
                    self._deliver([item for items, _ in entries for item in items or ()])
                    self.times.handling += self.now() - began - (self.times.reading - reading)
                except BaseException as error:
                    self._error = error
                    self.flight.open()
            for _, counted in entries:
                if counted:
                    self._space.release()

    def _deliver(self, items: list[Item]) -> None:
        """Reads from the device in runs of steps: one wait and one transfer for all that are queued."""
        made: list[StepsDispatched] = []
        for item in items:
            if isinstance(item, StepsDispatched):
                made.append(item)
                continue
            self._steps(made)
            made = []
            self._other(item)
            self._back = self.now()
        self._steps(made)

    def _other(self, item: Item) -> None:
        if self.halted is not None and isinstance(item, SplitFinished | EpochFinished | EpochStarted):
            return
        if isinstance(item, SplitFinished):
            with OomContext(item.split):
                self._close_split(item)
        elif isinstance(item, ValidationAborted):
            self._abandon(item.split)
        elif isinstance(item, EpochFinished):
            self._close_epoch(item)
        elif isinstance(item, Callback):
            item.fn()
        elif isinstance(item, Event):
            self.emit(item)

    def emit(self, event: Event) -> None:
        """To every listener."""
        for outlet in self._outlets:
            outlet.put(event)

    def _steps(self, made: list[StepsDispatched]) -> None:
        if not made:
            return
        began = self.now()
        read = _read(made)
        now, before = self.now(), self._last
        self.times.reading += now - began
        steps = sum(m.count for m in made)
        seconds = now - max(before, made[0].since)
        own = max(0.0, seconds - sum(m.overhead(before) for m in made))
        if self._back > before and self._pace.per_step is not None:
            # This thread was busy otherwise, and nobody knows when the steps ended meanwhile.
            most = max(now - self._back, self._pace.per_step * steps)
            seconds, own = min(seconds, most), min(own, most)
        self._last = now
        self.flight.release(len(made), seconds, now)
        self._pace.measured(steps, seconds)
        for m in made:
            self.spent["train" if m.split == "train" else "valid"] += own * m.count / steps
        for _, group in itertools.groupby(zip(made, read, strict=True), lambda pair: (pair[0].split, pair[0].epoch)):
            if self.halted is None:
                self._dispatches(list(group), seconds / steps, own / steps)

    def _dispatches(self, read: list[tuple[StepsDispatched, StepOutputs]], seconds: float, own: float) -> None:
        """Deliver dispatches of one split and epoch that were read together. Each of their steps took `seconds`, of
        which `own` remain without compiling and waiting for batches.
        """
        last, total = read[-1][0], sum(made.count for made, _ in read)
        self._split_began.setdefault(last.split, self._last - seconds * total)
        nonfinite = np.concatenate([values.nonfinite[: made.count] for made, values in read])
        count = self._look(read[0][0], nonfinite) if nonfinite.any() else total
        numbers = np.concatenate([values.numbers[: made.count] for made, values in read])[:count]
        weights = np.concatenate([values.weights[: made.count] for made, values in read])[:count]
        rows, weight = sum(made.rows for made, _ in read), float(weights.sum(dtype=np.float64))
        columns, index = {}, 0
        for metric in self._metrics[last.split]:
            if isinstance(metric, Metric) and metric.numeric:
                columns[metric.name] = numbers[:, index]
                index += 1
            elif isinstance(metric, HostMetric):
                metric.on_batches(rows, weight)
                columns[metric.name] = np.full(count, metric.update(count, own * count), np.float32)
        for made, values in read:
            collecting = [m for m in self._metrics[made.split] if isinstance(m, CollectingMetric)]
            self.rows.add(made, values, collecting)
        if self._files is not None:
            self._files.steps(last.split, last.epoch, columns, weights)
        if self._outlets:
            left = total - count
            where = last.split, last.epoch, read[0][0].first, count, last.in_epoch - left, last.total, last.step - left
            self.emit(StepsEnded(self._clock(), *where, columns, weights, seconds * count))

    def _look(self, first: StepsDispatched, nonfinite: np.ndarray) -> int:
        """Reports steps that are not finite; how many steps there are, up to one that ends the run."""
        for index in np.flatnonzero(nonfinite):
            self._left_out.add(first.split)
            code = int(nonfinite[index])
            step = first.first + int(index)
            if code < 0:
                self._report_overflow(step, -code)
                continue
            kind = KINDS[code % HALTS]
            self._report_nonfinite(step, kind)
            if code > HALTS:
                self.halted = NonFiniteStop(first.epoch, step, kind)
                return int(index) + 1
        return len(nonfinite)

    def _report_nonfinite(self, step: int, kind: str) -> None:
        """Report a step whose loss or gradients are not finite: people see the first one, the log has all."""
        if self._policy is None:
            return
        text = nonfinite_text(kind, step)
        if self._policy.policy != "skip":
            self.log.warning(text)
        elif self._skipped_before:
            self.log.warning("%s: it is skipped", text)
        else:
            self._skipped_before = True
            self.warn(f"{text}: it is skipped, and so are further ones, up to {self._policy.in_a_row} in a row")

    def _report_overflow(self, step: int, scale: int) -> None:
        """Report a step whose gradients overflowed, as a loss scale makes them do now and then."""
        if self._policy is not None:
            text = "the gradients of step %d overflowed: it is skipped, and the loss scale is now %d"
            self.log.info(text, step, scale)

    def _close_split(self, closed: SplitFinished) -> None:
        values, pictures = self._split_values(closed)
        now = self.now()
        seconds = now - self._split_began.pop(closed.split, now)
        if self._files is not None:
            self._files.close_split(closed.split, closed.epoch, values, closed.at_step)
            if closed.at_step is not None:
                keys = {f"{closed.split}/{name}": value for name, value in values.items()}
                self._files.journal("validation", epoch=closed.epoch, step=closed.step, values=keys)
        self.history.record(closed.split, closed.epoch, closed.step, values)
        where = closed.split, closed.epoch, closed.step, values, seconds, closed.at_step
        if closed.at_step is None:
            self.epoch_values |= {f"{closed.split}/{name}": value for name, value in values.items()}
        self.emit(SplitEnded(self._clock(), *where, pictures))

    def _abandon(self, split: str) -> None:
        self.rows.discard(split)
        self._split_began.pop(split, None)
        for metric in self._metrics.get(split, ()):
            if isinstance(metric, HostMetric):
                metric.reset()

    def _split_values(
        self, closed: SplitFinished
    ) -> tuple[dict[str, float | str], dict[str, Callable[[], np.ndarray]]]:
        """The values by name, and what draws those that have a picture."""
        read = jax.device_get(dict(closed.values))
        values: dict[str, float | str] = {}
        pictures: dict[str, Callable[[], np.ndarray]] = {}
        for metric in self._metrics.get(closed.split, ()):
            if isinstance(metric, Metric):
                value = read[metric.name]
            elif isinstance(metric, CollectingMetric):
                value = metric.compute(self.rows.rows(closed.split, metric.name))
            else:
                assert isinstance(metric, HostMetric)
                value = metric.compute()
                metric.reset()
            values[metric.name] = _number(value) if metric.numeric else metric.text(value)
            if callable(draw := getattr(metric, "picture", None)):
                pictures[metric.name] = functools.partial(draw, value)
        self.rows.discard(closed.split)
        self._tell_undefined(closed, values)
        return values | {name: _number(v) for name, v in read.items() if name not in values}, pictures

    def _tell_undefined(self, closed: SplitFinished, values: Mapping[str, float | str]) -> None:
        left_out = closed.split in self._left_out
        self._left_out.discard(closed.split)
        lost = not math.isfinite(float(values.get("Loss", math.nan)))  # which says enough of what is made of it
        for metric in self._metrics.get(closed.split, ()):
            value = values[metric.name]
            if not isinstance(value, float) or not math.isnan(value) or metric.name in self._undefined_before:
                continue
            if lost and "loss" in getattr(metric, "fields", ()):
                continue
            if left_out and getattr(metric, "per_step", False):
                continue  # of steps that were not made, which is told already
            self._undefined_before.add(metric.name)
            self.warn(
                f"{closed.split}/{metric.name} of epoch {closed.epoch} is not defined (NaN), which is said once: "
                f"{metric.undefined}"
            )

    def _close_epoch(self, closed: EpochFinished) -> None:
        values, self.epoch_values = self.epoch_values, {}
        now = self.now()
        seconds, self._epoch_began = now - self._epoch_began, now
        if self._files is not None:
            self._files.journal("epoch", epoch=closed.epoch, step=closed.step, values=values)
        self.emit(EpochEnded(self._clock(), closed.epoch, closed.step, values, seconds))


def _read(made: list[StepsDispatched]) -> list[StepOutputs]:
    """The values on the host. Where the device had no room, the first that have none say in which split."""
    try:
        read: list[StepOutputs] = jax.device_get([m.values for m in made])
        return read
    except jax.errors.JaxRuntimeError:
        for m in made:
            with OomContext(m.split):
                jax.device_get(m.values)
        raise


def _undefined_in(history: History) -> set[str]:
    """Return the names of metrics that had a NaN in a split whose loss was a number at that step."""
    names = set()
    for key in history:
        split, name = key.split("/", 1)
        steps = {step for _, step, value in history.points(key) if isinstance(value, float) and math.isnan(value)}
        losses = history.points(f"{split}/Loss") if steps and f"{split}/Loss" in history else []
        lost = {step for _, step, value in losses if not math.isfinite(float(value))}
        if steps - lost:
            names.add(name)
    return names


def _number(value: Any) -> float:
    """The shortest decimal number that reads back to the same float32: 0.1, not 0.10000000149011612."""
    return float(str(np.float32(value)))


def _joined(rows: np.ndarray, batches: int) -> np.ndarray:
    """The rows of the first `batches` micro-batches of a buffer `[steps, micro-batches, rows, ...]`, as `[all rows,
    ...]`.
    """
    kept = rows.reshape(-1, *rows.shape[2:])[:batches]
    return kept.reshape(-1, *rows.shape[3:])
