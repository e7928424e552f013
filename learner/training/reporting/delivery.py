"""Delivery of the reporter's items: as lines in files, points in the history, and events for listeners."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from learner.events import EpochEnded, EpochStarted, Event, ListenerThread, SamplesLogged, SplitEnded, StepsEnded
from learner.metrics.base import MetricBase
from learner.runs.history import History, Point
from learner.runs.layout import NONFINITE
from learner.runs.metric_logs import NoFiles, RunFiles
from learner.steps.finite import nonfinite_text
from learner.training.programs.oom import OomContext
from learner.training.reporting.host_metrics import HostMetrics, Pictures, Values
from learner.training.reporting.messages import (
    Callback,
    EpochFinished,
    Item,
    MemberStop,
    NonFiniteStop,
    Query,
    ReporterSnapshot,
    SplitFinished,
    StepsDispatched,
    ValidationAborted,
)
from learner.training.reporting.nonfinite_reports import NonFiniteReports
from learner.training.reporting.step_reader import StepReader, StepsRead
from learner.util.ownership import ThreadOwned


@dataclasses.dataclass(frozen=True)
class RunValues:
    """The metrics of a run, or of a member of a population, with their values so far, and the outputs that get them.

    Attributes:
      files: the files.
      listeners: the threads of the listeners.
      warn: shows a warning to people, and logs it.
      metrics: the metrics by split.
      history: the values so far.
      collected: rows of collecting metrics from a checkpoint.
      row_trees: the structures of these rows, by metric.
      epoch_values: the values of finished splits of the current epoch, from a checkpoint.
      halted, stopped: the end of a member that has ended before; see `NonFiniteReports` and `Delivery`.
    """

    files: RunFiles | NoFiles
    listeners: Sequence[ListenerThread]
    warn: Callable[[str], None]
    metrics: Mapping[str, Sequence[MetricBase]]
    history: History
    collected: dict[str, dict[str, list[list[np.ndarray]]]] | None = None
    row_trees: Mapping[str, Any] | None = None
    epoch_values: Mapping[str, float | str] | None = None
    halted: NonFiniteStop | None = None
    stopped: MemberStop | None = None


class Delivery(ThreadOwned):
    """Deliver the items of a run in order. It and its parts belong to the reporter's thread.

    Args:
      run: the values so far, and the outputs.
      reader: reads the device's outputs.
      host_metrics: the metrics on the host.
      nonfinite: reports non-finite steps.
      clock: seconds since 1970 (UTC), for events.
      now: the clock of steps, in seconds.

    Attributes:
      history: the value of every metric at every epoch and validation.
      reader, host_metrics, nonfinite: see above.
      stopped: the end of a member of a population while others train, or None.
      summary: the summary of the run, once it has ended.
      handling: seconds spent on values after they were read.
    """

    def __init__(
        self,
        run: RunValues,
        reader: StepReader,
        host_metrics: HostMetrics,
        nonfinite: NonFiniteReports,
        clock: Callable[[], float],
        now: Callable[[], float],
    ):
        self._files, self.history, self._listeners = run.files, run.history, run.listeners
        self.reader, self.host_metrics, self.nonfinite = reader, host_metrics, nonfinite
        self._clock, self._now = clock, now
        self.stopped = run.stopped
        self.summary: Mapping[str, Any] = {}
        self.handling = 0.0
        self._epoch_values: dict[str, float | str] = dict(run.epoch_values or {})
        self._log_offsets_before_validation: Mapping[str, Any] | None = None
        self._split_began: dict[str, float] = {}
        self._epoch_began = now()

    @property
    def has_listeners(self) -> bool:
        """True if listeners get the values of steps, in addition to the files."""
        return bool(self._listeners)

    def is_active(self, item: Item | None = None) -> bool:
        """Return True unless the member of a population has ended before the item."""
        if self.nonfinite.halted is not None:
            return False
        stopped = self.stopped
        ends = isinstance(item, EpochFinished) and stopped is not None and item.step == stopped.step
        return stopped is None or (ends and stopped.ends_epoch)

    def stop(self, stopped: MemberStop) -> None:
        """End a member of a population: from now on, only the end of its epoch is delivered."""
        self.stopped = stopped
        if not stopped.ends_epoch:
            self.journal_end()

    @property
    def end(self) -> MemberStop | None:
        """The end of a member of a population, or None while it trains."""
        if (halted := self.nonfinite.halted) is None:
            return self.stopped
        reason = f"{NONFINITE}: {nonfinite_text(halted.kind, halted.step)}"
        return MemberStop(reason, halted.epoch, halted.step, ends_epoch=False)

    def journal_end(self) -> None:
        """Write the end of a member of a population to its journal now, as the others may train for long."""
        if (end := self.end) is not None:
            self.journal("stop", {"epoch": end.epoch, "step": end.step, "stopped_by": end.reason})

    def claim(self) -> None:
        """Make the current thread the owner of this and its parts."""
        super().claim()
        for part in (self.reader, self.host_metrics, self.host_metrics.rows, self.nonfinite):
            part.claim()

    def deliver(self, items: Sequence[Item]) -> None:
        """Deliver items in order. Consecutive dispatches are read together."""
        began, reading = self._now(), self.reader.reading
        # Runs of dispatches: one wait and one transfer for all queued ones of a kind.
        for kind, group in itertools.groupby(items, lambda x: x.kind if isinstance(x, StepsDispatched) else None):
            if kind is not None:
                self._deliver_steps([item for item in group if isinstance(item, StepsDispatched)])
                continue
            for item in group:
                self.deliver_one(item)
            self.reader.mark_busy()
        self.handling += self._now() - began - (self.reader.reading - reading)

    def deliver_one(self, item: Item) -> None:
        """Deliver an item other than steps."""
        # The host dispatched these before it knew that a step ends the run: they describe steps that do not count.
        of_steps = SplitFinished, EpochFinished, EpochStarted, SamplesLogged
        if self.nonfinite.halted is not None and isinstance(item, of_steps):
            return
        if isinstance(item, SplitFinished):
            with OomContext(item.split):
                self.finish_split(item)
        elif isinstance(item, ValidationAborted):
            self.host_metrics.discard(item.split)
            self._split_began.pop(item.split, None)
        elif isinstance(item, EpochFinished):
            self._finish_epoch(item)
        elif isinstance(item, Callback):
            item.fn()
        elif isinstance(item, Query):
            item.run()
        elif isinstance(item, Event):
            if isinstance(item, SamplesLogged):
                self._files.write_samples(item.epoch, item.step, item.values)
            self.emit(item)

    def emit(self, event: Event) -> None:
        """Send an event to the listeners."""
        for listener in self._listeners:
            listener.put(event)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _deliver_steps(self, dispatched: Sequence[StepsDispatched]) -> None:
        if len(dispatched) > 1 and not self.reader.has_read(dispatched[0].kind):
            # The first one alone: its values show that training works, and those of the second come a step later.
            self._deliver_steps(dispatched[:1])
            dispatched = dispatched[1:]
        read = self.reader.read(dispatched)
        for _, pairs in itertools.groupby(read.pairs, lambda pair: (pair[0].split, pair[0].epoch)):
            # Checked for each group, as a step of the previous one may have ended the run.
            if self.nonfinite.halted is None:
                self.deliver_group(StepsRead(list(pairs), read.seconds, read.computing))

    def deliver_group(self, read: StepsRead) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Deliver dispatches of one split and epoch that were read together. Return the columns by metric, and the
        weights of the steps.
        """
        first, last = read.pairs[0][0], read.pairs[-1][0]
        total = sum(dispatched.count for dispatched, _ in read.pairs)
        self._split_began.setdefault(last.split, self.reader.last_end - read.seconds * total)
        columns, weights = self._measure(read)
        count = len(weights)
        self._files.steps(last.split, last.epoch, columns, weights)
        # Called for every dispatch: without listeners no event is built.
        if self._listeners:
            # `total` includes the steps after one that ended the run, and `count` does not: positions leave them out.
            event = StepsEnded(
                self._clock(),
                split=last.split,
                epoch=last.epoch,
                first=first.first,
                count=count,
                in_epoch=last.in_epoch - (total - count),
                total=last.total,
                step=last.step - (total - count),
                values=columns,
                weights=weights,
                seconds=read.seconds * count,
            )
            self.emit(event)
        return columns, weights

    def _measure(self, read: StepsRead) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Return the columns of some steps by metric, and their weights, up to a step that ends the run."""
        codes = np.concatenate([values.nonfinite[: dispatched.count] for dispatched, values in read.pairs])
        count = self.nonfinite.report(read.pairs[0][0], codes) if codes.any() else len(codes)
        numbers = np.concatenate([values.numbers[: dispatched.count] for dispatched, values in read.pairs])[:count]
        weights = np.concatenate([values.weights[: dispatched.count] for dispatched, values in read.pairs])[:count]
        return self.host_metrics.update(read, numbers, weights), weights

    # -- ends ----------------------------------------------------------------------------------------------------------

    def finish_split(self, finished: SplitFinished) -> Values:
        """Deliver the end of a split, and return its values by metric."""
        split, epoch, step, at_step = finished.split, finished.epoch, finished.step, finished.at_step
        values, pictures = self._compute(finished)
        by_key = {f"{split}/{name}": value for name, value in values.items()}
        self.nonfinite.report_split(split, epoch, values.get("Loss"), finished.advice)
        now = self._now()
        seconds = now - self._split_began.pop(split, now)
        self._files.close_split(split, epoch, values, at_step)
        if step == 0:
            epoch = 0  # before the first epoch; only its lines in the files are among those of epoch 1
        if at_step is not None:
            self._files.journal("validation", epoch=epoch, step=step, values=by_key)
        self.history.record(split, epoch, step, values)
        if at_step is None:
            self._epoch_values |= by_key
        # After the files: a listener that reads the run's directory finds the values there.
        self.emit(SplitEnded(self._clock(), split, epoch, step, values, seconds, at_step, pictures))
        return values

    def _compute(self, finished: SplitFinished) -> tuple[Values, Pictures]:
        """Return the values of a split by metric, and functions that draw the metrics with a picture."""
        return self.host_metrics.compute(finished, self.nonfinite.end_split(finished.split))

    def _finish_epoch(self, finished: EpochFinished) -> None:
        values, self._epoch_values = self._epoch_values, {}
        now = self._now()
        seconds, self._epoch_began = now - self._epoch_began, now
        self._files.journal("epoch", epoch=finished.epoch, step=finished.step, values=values)
        self.journal_end()
        self.emit(EpochEnded(self._clock(), finished.epoch, finished.step, values, seconds))

    # -- the files -----------------------------------------------------------------------------------------------------

    def journal(self, event: str, fields: Mapping[str, Any]) -> None:
        """Write a line of the journal."""
        self._files.journal(event, **fields)

    def write_model(self, model: Mapping[str, Any]) -> None:
        """Write the description of the model."""
        self._files.write_model(model)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write the summary."""
        self.summary = summary
        self._files.write_summary(summary)

    def mark_logs(self) -> None:
        """Record the log offsets before a validation, for a checkpoint if it is interrupted."""
        self._log_offsets_before_validation = self._files.position()

    def flush_logs(self, progress: Mapping[str, Any]) -> None:
        """Flush the logs that a checkpoint's progress relies on to the disk. The saver's thread may call this, as it
        changes nothing here.
        """
        self._files.to_disk(progress["log"])

    def score(self, key: str, higher_is_better: bool, step: int) -> float | None:
        """Return the score of a checkpoint of a step: the value of the monitored metric, or None unless it was measured
        at this step and is a finite number.
        """
        return finite_value(self.history.last(key), step)

    def snapshot(self, in_validation: bool, with_rows: bool) -> ReporterSnapshot:
        """Return the reporter's part of a checkpoint at the current position in the order of items.

        All of it is copied, as the saver's thread writes it while this one continues.
        """
        # None if a run resumes within a validation and stops before it begins again: the logs end there.
        before = self._log_offsets_before_validation if in_validation else None
        # This also passes the lines so far to the operating system, so that they survive if the process is killed, as
        # the checkpoint relies on them.
        log = self._files.position() if before is None else before
        rows = self.host_metrics.rows.to_store() if with_rows else {}
        states = self.host_metrics.get_states()
        values, history = dict(self._epoch_values), self.history.copy().to_json
        return ReporterSnapshot(log, values, states, rows, history, self.nonfinite.halted, self.stopped)


def finite_value(point: Point | None, step: int | None = None) -> float | None:
    """Return the value of a point, if it is a finite number; with `step`, only of this step.

    >>> finite_value(Point(1, 45, 0.5), 45), finite_value(Point(1, 45, 0.5), 90)
    (0.5, None)
    """
    if point is None or step not in (None, point.step) or isinstance(point.value, str):
        return None
    return float(point.value) if np.isfinite(point.value) else None
