"""The reporter: a thread that reads the results of the device in order, and writes the run's files.

It is part of the run: an error here is raised in `fit`, and a full queue makes the loop wait. The host's state of a run
(history, log offsets, collected rows) is here, in order, so `snapshot` returns a consistent part of a checkpoint.

This module has the queue and the thread; `learner.training.reporting.delivery` handles each item.
"""

import itertools
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from learner.events import EpochStarted, Event, Message, Saved
from learner.runs.history import History
from learner.steps.finite import NonFinitePolicy
from learner.training.programs.in_flight import InFlightLimiter
from learner.training.reporting.delivery import Delivery, RunValues
from learner.training.reporting.host_metrics import Arrays, HostMetrics
from learner.training.reporting.messages import (
    Callback,
    Item,
    MemberStop,
    NonFiniteStop,
    Query,
    ReporterSnapshot,
    StepsDispatched,
)
from learner.training.reporting.nonfinite_reports import NonFiniteReports
from learner.training.reporting.population_delivery import PopulationDelivery
from learner.training.reporting.row_collector import RowCollector
from learner.training.reporting.step_reader import StepReader
from learner.training.reporting.timing import StepTimeEstimator
from learner.util.device_threads import device_thread
from learner.util.ownership import ThreadOwned

D = TypeVar("D", bound=Delivery)
POLL_SECONDS = 1
MOST_QUEUED = 256  # hand-overs of the loop; if the queue is full, the loop waits
MOST_AT_ONCE = 32  # hand-overs that are read together
SECONDS_UNSENT = 0.005  # of steps that are handed over together; at most a quarter of the limit in flight


class _LoopSide(ThreadOwned):
    """The loop's side of a reporter.

    Attributes:
      estimator: estimates the time of steps.
      unsent: items to be handed over together.
      unsent_seconds: the estimated time of their steps.
      announced: the newest announced epoch.
      dispatches: the number of dispatches so far.
      blocked: seconds of waiting for a free dispatch slot.
    """

    def __init__(self, estimator: StepTimeEstimator) -> None:
        self.estimator = estimator
        self.unsent: list[Item] = []
        self.unsent_seconds = 0.0
        self.announced: int | None = None
        self.dispatches = 0
        self.blocked = 0.0


class Reporter(ThreadOwned):
    """Deliver a run's items in order: device values to files and history, events to listeners. Its attributes belong to
    its own thread; `_loop` belongs to the loop's.

    Args:
      run: the metrics, their values so far, and the outputs.
      estimator: receives the time of steps.
      clock: seconds since 1970 (UTC), for events.
      policy: the policy for steps that are not finite; None if they are not reported.
      unreported_losses: the splits whose loss is not reported if it is not finite, such as those without one.
      log: writes to the application log.
      limiter: limits the dispatches in flight.
      check_peers: called now and then during a wait; it raises if another process has failed.
      now: the clock of steps, in seconds.
      steps_per_epoch: the steps of an epoch, or None if unknown.
      members: the members of a population; the run then has their means.
      lanes: the member of each position on the leading axis of the values.

    Attributes:
      log, steps_per_epoch, limiter: see above.
      warn: see `RunValues`.
      failure: the error of the reporter's thread, or None.
    """

    def __init__(
        self,
        run: RunValues,
        estimator: StepTimeEstimator,
        clock: Callable[[], float] = time.time,
        *,
        policy: NonFinitePolicy | None = None,
        unreported_losses: Collection[str] = (),
        log: logging.Logger | None = None,
        limiter: InFlightLimiter | None = None,
        check_peers: Callable[[], None] = lambda: None,
        now: Callable[[], float] = time.perf_counter,
        steps_per_epoch: int | None = None,
        members: Sequence[RunValues] = (),
        lanes: Sequence[int] | None = None,
    ):
        self.log, self.warn = log or logging.getLogger(__name__), run.warn
        self.steps_per_epoch = steps_per_epoch
        self.limiter = limiter or InFlightLimiter()
        self._clock, self._now, self._check_peers = clock, now, check_peers
        # Built by the loop's thread and claimed by the reporter's in `_work`; from then on only that thread writes.
        reader = StepReader(estimator, self.limiter, now)

        def delivery(kind: type[D], of: RunValues) -> D:
            rows = RowCollector(of.collected, of.row_trees)
            host_metrics = HostMetrics(of.metrics, rows, of.history, of.warn, unreported_losses)
            nonfinite = NonFiniteReports(policy, self.log, of.warn, unreported_losses)
            nonfinite.halted = of.halted
            return kind(of, reader, host_metrics, nonfinite, clock, now)

        # All members have one reader, which transfers their values together.
        self._members = [delivery(Delivery, of) for of in members]
        self._population = delivery(PopulationDelivery, run) if self._members else None
        if self._population is not None:
            self._population.members, self._population.lanes = self._members, lanes or ()
        self._delivery: Delivery = self._population or delivery(Delivery, run)
        self.failure: BaseException | None = None
        self._loop = _LoopSide(estimator)
        self._queue: queue.SimpleQueue[tuple[list[Item] | None, bool]] = queue.SimpleQueue()
        self._space = threading.Semaphore(MOST_QUEUED)
        self._thread = device_thread(self._work, "learner-reporter")
        self._thread.start()  # the last line: from here on the attributes belong to that thread

    # -- the loop's side -----------------------------------------------------------------------------------------------

    def acquire(self, kind: str, steps: int) -> None:
        """Block until a dispatch of `steps` steps (batches, for the kind `valid`) may be in flight."""
        full, began = self.limiter.full, self._now()
        if full:
            self._hand_over()  # before the wait: the slots of these dispatches are freed when they are read
        seconds = self._loop.estimator.seconds(kind, steps)
        # With a timeout: a failed peer would keep the devices waiting forever.
        while not self.limiter.acquire(math.inf if seconds is None else seconds, POLL_SECONDS):
            self._check_peers()
        self._loop.dispatches += 1
        if full:
            self._loop.blocked += self._now() - began

    def put(self, item: Item) -> None:
        """Queue an item. Blocks while the queue is full; raises the error of the reporter's thread, if any.

        Short dispatches are handed over in groups: waking a thread for each would take longer than the dispatch.
        """
        self.check()
        loop = self._loop
        loop.unsent.append(item)
        seconds = loop.estimator.seconds(item.kind, item.count) if isinstance(item, StepsDispatched) else None
        # Items other than steps count as infinitely long, so that they are handed over immediately.
        loop.unsent_seconds += math.inf if seconds is None else seconds
        is_long = loop.unsent_seconds + (seconds or 0.0) > SECONDS_UNSENT  # with one more like it
        if is_long or 4 * len(loop.unsent) >= self.limiter.most:
            self._hand_over()

    def _hand_over(self) -> None:
        if self._loop.unsent:
            # The queue itself is unbounded, since `put_nowait` must not wait: the semaphore bounds only the loop.
            self._space.acquire()
            # Replaced first: a signal between the two lines may lose items of an ending run, but sends none twice.
            items, self._loop.unsent, self._loop.unsent_seconds = self._loop.unsent, [], 0.0
            self._queue.put((items, True))

    def begin_epoch(self, epoch: int) -> None:
        """Announce an epoch before its first dispatch, once."""
        if self._loop.announced != epoch:
            self._loop.announced = epoch
            self.put(EpochStarted(self._clock(), epoch, self.steps_per_epoch))

    def mark_logs(self) -> None:
        """Record the log offsets before a validation, for a checkpoint if it is interrupted."""
        self.put(Callback(self._delivery.mark_logs))

    def newest(self, at: int | None = None, member: int | None = None) -> dict[str, float | str]:
        """Wait for the values of all steps, and return the newest value of every metric. `at`: only metrics measured at
        this step; `member`: the values of this member of a population.
        """
        self.wait()  # then the reporter is idle, and this thread may read the history
        history = self.history_of(member)
        last = {key: history.last(key) for key in history}
        return {key: point.value for key, point in last.items() if point is not None and at in (None, point.step)}

    def replace_newest(self, values: Mapping[str, float]) -> None:
        """Replace the newest values of these keys in the history, in order."""
        self.put(Callback(lambda: self._delivery.history.replace_newest(values)))

    def journal(self, event: str, member: int | None = None, **fields: Any) -> None:
        """Write a line of the journal, in order. `member`: write to the journal of this member of a population."""
        self.put(Callback(lambda: self._delivery_of(member).journal(event, fields)))

    def write_model(self, model: Mapping[str, Any], member: int | None = None) -> None:
        """Write the description of the model, in order."""
        self.put(Callback(lambda: self._delivery_of(member).write_model(model)))

    def write_summary(self, summary: Mapping[str, Any], member: int | None = None) -> None:
        """Write the summary, in order, and wait for it."""
        self.put(Callback(lambda: self._delivery_of(member).write_summary(summary)))
        self.wait()

    def emit(self, event: Event, member: int | None) -> None:
        """Send an event in order to the listeners of a member of a population, or of the run."""
        self.put(Callback(lambda: self._delivery_of(member).emit(event)))

    def _delivery_of(self, member: int | None) -> Delivery:
        return self._delivery if member is None else self._members[member]

    def idle(self, since: float) -> float:
        """Return the seconds after `since`, by the clock of steps, in which the device was idle."""
        unsent = sum(isinstance(item, StepsDispatched) for item in self._loop.unsent)
        return self.limiter.idle(since, self._now(), unsent)

    def wait(self) -> None:
        """Block until every item put so far is delivered."""
        delivered = threading.Event()
        self.put(Callback(delivered.set))
        for waits in itertools.count(1):
            if delivered.wait(0.1):
                break
            self.check()  # a failed reporter delivers nothing more
            if waits % (10 * POLL_SECONDS) == 0:
                self._check_peers()
        self.check()

    def close(self, seconds: float | None = None) -> None:
        """Deliver the queued items, and end the thread. Raises nothing. If the reporter hangs, it is abandoned after
        `seconds`.
        """
        # Without the semaphore: a reporter that hangs would also block this thread.
        # With the loop's unsent items: one may be a query whose answer the saver waits for.
        self._queue.put((self._loop.unsent, False))
        self._queue.put((None, False))
        self._thread.join(seconds)

    # -- any thread ----------------------------------------------------------------------------------------------------

    def put_nowait(self, item: Item) -> None:
        """Queue an item from another thread, without waiting."""
        # The item may overtake items that the loop has not handed over, so this is only for items without an order.
        self._queue.put(([item], False))

    def notify(self, text: str, log: bool = False) -> None:
        """Show a message to people, without waiting. `log`: also write it to the log."""
        if log:
            self.log.info("%s", text)
        self.put_nowait(Message(self._clock(), logging.INFO, text))

    def report_save(self, epoch: int, step: int, path: Path, seconds: float) -> None:
        """Report a complete checkpoint, without waiting: the reporter may wait for the saver, which calls this."""
        self.put_nowait(Callback(lambda: self._delivery.journal("save", {"step": step, "path": str(path)})))
        self.put_nowait(Saved(self._clock(), epoch, step, path, seconds))

    def flush_logs(self, progress: Mapping[str, Any]) -> None:
        """Flush the logs that a checkpoint's progress relies on to the disk, on the calling thread."""
        self._delivery.flush_logs(progress)

    def check(self) -> None:
        """Raise the error of the reporter's thread, with its own traceback."""
        if self.failure is not None:
            raise self.failure

    @property
    def history(self) -> History:
        """The value of every metric at every epoch and validation. Other threads may read it after `wait`."""
        return self._delivery.history

    @property
    def arrays(self) -> Arrays:
        """Functions by key that return the newest value of a text metric as arrays. Read them like `history`."""
        return self._delivery.host_metrics.arrays

    @property
    def undefined(self) -> Mapping[str, str]:
        """The reasons by key for the values that were reported as undefined. Read them like `history`."""
        return self._delivery.host_metrics.undefined

    def history_of(self, member: int | None) -> History:
        """Return the history of a member of a population, or of the run; see `history`."""
        return self._delivery_of(member).history

    def score(self, key: str, higher_is_better: bool, step: int) -> float | None:
        """Return the score of a checkpoint of a step, on the reporter's thread; see `Delivery.score`."""
        return self._delivery.score(key, higher_is_better, step)

    @property
    def halted(self) -> NonFiniteStop | None:
        """The step that ended the run, or None. Steps dispatched after it leave no trace."""
        return self._delivery.nonfinite.halted

    def is_active(self, member: int) -> bool:
        """Return True unless a member of a population has ended. Other threads may call it after `wait`."""
        return self._members[member].is_active()

    @property
    def has_stopped_members(self) -> bool:
        """Return True if early stopping or halving has ended a member of a population; see `is_active`."""
        return any(member.stopped is not None for member in self._members)

    def end_of(self, member: int | None) -> MemberStop | None:
        """Return the end of a member of a population while others train, or None; see `is_active`."""
        return None if member is None else self._members[member].end

    def journal_end(self, member: int) -> None:
        """Write the end of a member of a population to its journal, in order, if it has ended."""
        self.put(Callback(self._members[member].journal_end))

    def stop_member(self, member: int, stopped: MemberStop) -> None:
        """End a member of a population, in order, and wait for it."""
        self.put(Callback(lambda: self._members[member].stop(stopped)))
        self.wait()

    def set_lanes(self, lanes: Sequence[int]) -> None:
        """Set the member of each position on the leading axis, for values put from now on."""
        self.put(Callback(lambda: setattr(self._population, "lanes", lanes)))

    def summary_of(self, member: int | None) -> Mapping[str, Any]:
        """Return the summary of a member of a population, or of the run, once it has ended."""
        return self._delivery_of(member).summary

    @property
    def spent(self) -> Mapping[str, float]:
        """Seconds so far of `train` and `valid` steps, without compiling and waiting for batches."""
        return self._delivery.reader.spent

    @property
    def times(self) -> dict[str, float]:
        """Counts for a profile, on the loop's thread: `dispatches`, and the seconds in which the loop was `blocked`, as
        no dispatch slot was free, and in which the reporter was `reading` values from the device and `handling` them.
        """
        loop, delivery = self._loop, self._delivery
        reporter = {"reading": delivery.reader.reading, "handling": delivery.handling}
        return {"dispatches": loop.dispatches, "blocked": loop.blocked, **reporter}

    # -- the reporter's thread -----------------------------------------------------------------------------------------

    def snapshot(self, in_validation: bool, with_rows: bool) -> ReporterSnapshot:
        """Return the reporter's part of a checkpoint at the current position in the order. Call it from a `Query`."""
        return self._delivery.snapshot(in_validation, with_rows)

    def _work(self) -> None:
        self.claim()
        self._delivery.claim()
        while self._work_once():
            pass

    def _work_once(self) -> bool:
        """Deliver the queued items. Return False after the last item.

        A separate function, so that no reference to the items is left when the thread waits for others: they hold
        buffers of the device and results of queries, which hold copies of the state.
        """
        batches = [self._queue.get()]
        # Only this thread takes items from the queue, so `get` never blocks after `empty`.
        while len(batches) < MOST_AT_ONCE and not self._queue.empty():
            batches.append(self._queue.get())
        items = [item for batch, _ in batches for item in batch or ()]
        if self.failure is None:
            try:
                self._delivery.deliver(items)
            except BaseException as error:
                # The error first: once the limiter lets the loop through, its next `put` must find it.
                self.failure = error
                self.limiter.open()
        if self.failure is not None:
            # Also after the failure: the saver must not wait for an answer that never comes.
            for item in items:
                if isinstance(item, Query):
                    item.fail(self.failure)
        # Also after a failure, so that a loop that waits for the semaphore reaches its next check.
        for _, counted in batches:
            if counted:
                self._space.release()
        return all(batch is not None for batch, _ in batches)
