"""The ordered worker: reads what the device computed and writes the run's files.

It is part of the run: what goes wrong here is raised in `fit`, and a full queue holds the loop. Everything that the run
knows on the host (history, log lengths, collected rows) is known here, in order, so a checkpoint is completed here too.
"""

import dataclasses
import functools
import itertools
import math
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from learner.errors import LearnerError
from learner.events import EpochEnded, EpochStarted, Event, ListenerThread, SplitEnded, StepsEnded
from learner.metrics.base import CollectingMetric, HostMetric, Metric, MetricBase
from learner.runs.history import History
from learner.runs.metric_logs import NoFiles, RunFiles
from learner.steps.finite import HALTS, KINDS
from learner.steps.program import StepOutputs
from learner.training.oom import OomContext

PyTree = Any


@dataclasses.dataclass(frozen=True)
class Made:
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
class Closed:
    """A split's last steps were dispatched; `values` by metric are still on the device."""

    split: str
    epoch: int
    step: int
    at_step: int | None
    values: Mapping[str, PyTree]


@dataclasses.dataclass(frozen=True)
class Abandoned:
    """A validation was cut short: it will be made again."""

    split: str


@dataclasses.dataclass(frozen=True)
class EpochClosed:
    """An epoch and its validation are over."""

    epoch: int
    step: int


@dataclasses.dataclass(frozen=True)
class Halt:
    """The step that ended the run, because its loss or its gradients are not finite; `kind`: which of them."""

    epoch: int
    step: int
    kind: str


@dataclasses.dataclass(frozen=True)
class Call:
    """Something to do in order, on the worker's thread."""

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


HEED = 1  # seconds

Item = Made | Closed | Abandoned | EpochClosed | Call | Event


class Pace:
    """How long a step takes, measured where steps end; it bounds how much is dispatched at once.

    Args:
      seconds: what is aimed at.
      compilations: how many there were so far. Steps that had to wait for one count only until others were measured.

    Attributes:
      ended: how many steps ended so far, those of validation included.
      per_step: seconds, or `None` as long as nothing is known.
    """

    def __init__(self, seconds: float = 0.5, compilations: Callable[[], int] = lambda: 0):
        self._aim, self._compilations = seconds, compilations
        self.per_step: float | None = None
        self._compiled, self._rough = compilations(), True
        self.ended = 0

    def measured(self, steps: int, seconds: float) -> None:
        """Steps ended."""
        self.ended += steps
        now, compiled = seconds / max(steps, 1), self._compilations()
        waited, self._compiled = compiled != self._compiled, compiled
        if self.per_step is None or self._rough:
            self.per_step, self._rough = now, waited
        elif not waited:
            self.per_step = 0.5 * self.per_step + 0.5 * now

    @property
    def steps(self) -> int:
        """How many steps fit into the time aimed at; 1 as long as nothing is known."""
        return 1 if self.per_step is None else max(1, int(self._aim / max(self.per_step, 1e-6)))


class Flight:
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
    def together(self) -> int:
        """How many dispatches are best read at once: those of some 5 ms, a few where they are that short."""
        return max(1, min(self._most // 4, int(self._seconds / 20 / self._each)))

    def take_off(self, seconds: float | None = None) -> bool:
        """Waits until another dispatch may be under way, so long at most; whether it may."""
        with self._changed:
            free = self._changed.wait_for(lambda: not self.full, seconds)
            self._flying += free
        return free

    def landed(self, count: int, seconds: float, now: float = 0.0) -> None:
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


class Worker:
    """Delivers a run's items in order: device values to files and history, events to listeners.

    Attributes:
      history: what every metric was.
      collected: the rows that collecting metrics hold, by split and metric: lists of the leaves of each batch.
      row_trees: the structures of those rows, by metric.
      epoch_values: those of the epoch under way that are closed, by key.
      spent: seconds of the steps so far, of `train` and of `valid`; compiling and waiting for batches are not counted.
      times: of the loop and the worker.
      halted: the step that ended the run. What was dispatched after it leaves nothing.
    """

    def __init__(
        self,
        metrics: Mapping[str, Sequence[MetricBase]],
        files: RunFiles | NoFiles | None,
        history: History,
        outlets: Sequence[ListenerThread],
        pace: Pace,
        clock: Callable[[], float] = time.time,
        collected: dict[str, dict[str, list[list[np.ndarray]]]] | None = None,
        skipped: Callable[[int, str], None] = lambda step, kind: None,
        overflowed: Callable[[int, int], None] = lambda step, scale: None,
        flight: Flight | None = None,
        heed: Callable[[], None] = lambda: None,
        undefined: Callable[[str], None] = lambda text: None,
        now: Callable[[], float] = time.perf_counter,
    ):
        """`skipped(step, kind)` is told of steps that were skipped, or ended the run, as their `kind` is not finite;
        `overflowed(step, scale)` of those that did no more than to lower the loss scale. `heed()` is called now and
        then while something is waited for; it may raise. `undefined(text)` is told once of each metric whose value of
        a whole split is NaN although the loss is a number. `now` is the clock that steps are measured by, in seconds.
        """
        self.now = now
        self.history = history
        self.halted: Halt | None = None
        self.spent = {"train": 0.0, "valid": 0.0}
        self.times = Times()
        self._left_out: set[str] = set()  # splits of which steps were, until they end
        self._skipped, self._overflowed, self._heed = skipped, overflowed, heed
        # A process before this one, of the same run, has reported those already.
        self._undefined, self._undefined_before = undefined, _undefined_in(history)
        self.collected: dict[str, dict[str, list[list[np.ndarray]]]] = collected or {}
        self.row_trees: dict[str, Any] = {}
        self.flight = flight or Flight()
        self._metrics, self._files, self._outlets, self._pace, self._clock = metrics, files, outlets, pace, clock
        self.epoch_values: dict[str, float | str] = {}
        self._last = self._back = self.now()
        self._split_began: dict[str, float] = {}
        self._epoch_began = self._last
        self._error: BaseException | None = None
        self._held: list[Item] = []
        self._queue: queue.SimpleQueue[tuple[list[Item] | None, bool]] = queue.SimpleQueue()
        self._space = threading.Semaphore(256)
        self._thread = threading.Thread(target=self._work, name="learner-worker", daemon=True)
        self._thread.start()

    # -- the loop's side -----------------------------------------------------------------------------------------------

    def take_off(self) -> None:
        """Waits until another dispatch may be under way."""
        full, began = self.flight.full, self.now()
        if full:
            self._hand_over()
        while not self.flight.take_off(HEED):
            self._heed()
        self.times.dispatches += 1
        if full:
            self.times.held += self.now() - began

    def put(self, item: Item) -> None:
        """Queues an item, waiting where the queue is full; raises what went wrong before.

        Short dispatches are handed over several at once: waking a thread for each costs more than they take.
        """
        self.check()
        self._held.append(item)
        if not isinstance(item, Made) or len(self._held) >= self.flight.together:
            self._hand_over()

    def _hand_over(self) -> None:
        if self._held:
            self._space.acquire()
            self._queue.put((self._held, True))
            self._held = []

    def idle(self, since: float) -> float:
        """Seconds since then, by the clock of `now`, in which the device had nothing to do."""
        return self.flight.idle(since, self.now(), sum(isinstance(item, Made) for item in self._held))

    def put_soon(self, item: Item) -> None:
        """Queues an item from another thread, without waiting."""
        self._queue.put(([item], False))

    def check(self) -> None:
        """Raises what went wrong on the worker's thread, with its own traceback."""
        if self._error is not None:
            raise self._error

    @property
    def failure(self) -> BaseException | None:
        """What went wrong on the worker's thread."""
        return self._error

    def wait(self) -> None:
        """Until everything that was put is done."""
        done = threading.Event()
        self.put(Call(done.set))
        for waits in itertools.count(1):
            if done.wait(0.1):
                break
            self.check()
            if waits % (10 * HEED) == 0:
                self._heed()
        self.check()

    def close(self, seconds: float | None = None) -> None:
        """Does what is queued, then ends the thread; raises nothing. What hangs is left behind after `seconds`."""
        self._queue.put((self._held, False))
        self._queue.put((None, False))
        self._thread.join(seconds)

    def host_states(self) -> dict[str, dict[str, Any]]:
        """What the metrics on the host want to be kept, by split and name. To be called on the worker's thread."""
        states: dict[str, dict[str, Any]] = {}
        for split, metrics in self._metrics.items():
            for metric in metrics:
                if isinstance(metric, HostMetric) and (state := metric.get_state()) is not None:
                    states.setdefault(split, {})[metric.name] = state
        return states

    # -- the worker's thread -------------------------------------------------------------------------------------------

    def _work(self) -> None:
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
        made: list[Made] = []
        for item in items:
            if isinstance(item, Made):
                made.append(item)
                continue
            self._steps(made)
            made = []
            self._other(item)
            self._back = self.now()
        self._steps(made)

    def _other(self, item: Item) -> None:
        if self.halted is not None and isinstance(item, Closed | EpochClosed | EpochStarted):
            return
        if isinstance(item, Closed):
            with OomContext(item.split):
                self._close_split(item)
        elif isinstance(item, Abandoned):
            self._abandon(item.split)
        elif isinstance(item, EpochClosed):
            self._close_epoch(item)
        elif isinstance(item, Call):
            item.fn()
        elif isinstance(item, Event):
            self.emit(item)

    def emit(self, event: Event) -> None:
        """To every listener."""
        for outlet in self._outlets:
            outlet.put(event)

    def _steps(self, made: list[Made]) -> None:
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
        self.flight.landed(len(made), seconds, now)
        self._pace.measured(steps, seconds)
        for m in made:
            self.spent["train" if m.split == "train" else "valid"] += own * m.count / steps
        for _, group in itertools.groupby(zip(made, read, strict=True), lambda pair: (pair[0].split, pair[0].epoch)):
            if self.halted is None:
                self._dispatches(list(group), seconds / steps, own / steps)

    def _dispatches(self, read: list[tuple[Made, StepOutputs]], seconds: float, own: float) -> None:
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
            self._collect(made, values)
        if self._files is not None:
            self._files.steps(last.split, last.epoch, columns, weights)
        if self._outlets:
            left = total - count
            where = last.split, last.epoch, read[0][0].first, count, last.in_epoch - left, last.total, last.step - left
            self.emit(StepsEnded(self._clock(), *where, columns, weights, seconds * count))

    def _look(self, first: Made, nonfinite: np.ndarray) -> int:
        """Reports steps that are not finite; how many steps there are, up to one that ends the run."""
        for index in np.flatnonzero(nonfinite):
            self._left_out.add(first.split)
            code = int(nonfinite[index])
            step = first.first + int(index)
            if code < 0:
                self._overflowed(step, -code)
                continue
            kind = KINDS[code % HALTS]
            self._skipped(step, kind)
            if code > HALTS:
                self.halted = Halt(first.epoch, step, kind)
                return int(index) + 1
        return len(nonfinite)

    def _collect(self, made: Made, values: StepOutputs) -> None:
        collecting = [m for m in self._metrics[made.split] if isinstance(m, CollectingMetric)]
        if not collecting:
            return
        tails = values.tail if isinstance(values.tail, list) else [values.tail] if values.tail else []
        parts = [jax.tree.map(lambda x: _joined(x, made.batches - len(tails)), values.rows)] if values.rows else []
        held = self.collected.setdefault(made.split, {})
        for part in [*parts, *tails]:
            for metric, rows in zip(collecting, part, strict=True):
                leaves, self.row_trees[metric.name] = jax.tree.flatten(rows)
                held.setdefault(metric.name, []).append(leaves)

    def _collected_rows(self, split: str, name: str) -> PyTree:
        """All rows of a split for one metric, in order."""
        parts = self.collected.get(split, {}).get(name, [])
        columns = list(zip(*parts, strict=True))
        for column in columns:
            if len(shapes := {rows.shape[1:] for rows in column}) > 1:
                raise LearnerError(
                    f"{name} collects rows of several shapes in the {split} split, {sorted(shapes)}: pad its batches "
                    "to one length"
                )
        leaves = [np.concatenate(column) for column in columns]
        return self.row_trees[name].unflatten(leaves)

    def _close_split(self, closed: Closed) -> None:
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
        self.collected.pop(split, None)
        self._split_began.pop(split, None)
        for metric in self._metrics.get(split, ()):
            if isinstance(metric, HostMetric):
                metric.reset()

    def _split_values(self, closed: Closed) -> tuple[dict[str, float | str], dict[str, Callable[[], np.ndarray]]]:
        """The values by name, and what draws those that have a picture."""
        read = jax.device_get(dict(closed.values))
        values: dict[str, float | str] = {}
        pictures: dict[str, Callable[[], np.ndarray]] = {}
        for metric in self._metrics.get(closed.split, ()):
            if isinstance(metric, Metric):
                value = read[metric.name]
            elif isinstance(metric, CollectingMetric):
                value = metric.compute(self._collected_rows(closed.split, metric.name))
            else:
                assert isinstance(metric, HostMetric)
                value = metric.compute()
                metric.reset()
            values[metric.name] = _number(value) if metric.numeric else metric.text(value)
            if callable(draw := getattr(metric, "picture", None)):
                pictures[metric.name] = functools.partial(draw, value)
        self.collected.pop(closed.split, None)
        self._tell_undefined(closed, values)
        return values | {name: _number(v) for name, v in read.items() if name not in values}, pictures

    def _tell_undefined(self, closed: Closed, values: Mapping[str, float | str]) -> None:
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
            self._undefined(
                f"{closed.split}/{metric.name} of epoch {closed.epoch} is not defined (NaN), which is said once: "
                f"{metric.undefined}"
            )

    def _close_epoch(self, closed: EpochClosed) -> None:
        values, self.epoch_values = self.epoch_values, {}
        now = self.now()
        seconds, self._epoch_began = now - self._epoch_began, now
        if self._files is not None:
            self._files.journal("epoch", epoch=closed.epoch, step=closed.step, values=values)
        self.emit(EpochEnded(self._clock(), closed.epoch, closed.step, values, seconds))


def _read(made: list[Made]) -> list[StepOutputs]:
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
