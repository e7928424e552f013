"""Stopping a run: the sources of stop requests, and the one place that holds the reason."""

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from learner.distributed.consensus import Consensus
from learner.distributed.process_group import ProcessGroup
from learner.distributed.process_records import COMPARED, ProcessRecords
from learner.metrics.monitor import Monitor
from learner.util.json_values import decode
from learner.util.number_checks import check_int
from learner.util.text import count


class MetricEarlyStopping:
    """Stop when a metric has not improved for `patience` validations in a row.

    Args:
      monitor: a metric by key, such as `valid/Loss`, or `custom/NAME` for a number that a hook returns as `NAME`.
      mode: `"min"` or `"max"`. None: the metric's own direction, which a number of a hook does not have.
      patience: the number of validations (or numbers of the hook) in a row without improvement, 1 or more: with 2, the
        second one stops the run. `ReduceOnPlateau` acts at the third one.
      min_delta: the smallest change that counts as an improvement, in the metric's unit.
      warmup: the number of first validations that do not count towards `patience`. Their values count for the best.

    >>> stopping = MetricEarlyStopping("valid/Loss", patience=2)
    >>> [stopping.update({"valid/Loss": loss}) for loss in (1.0, 0.5, 0.6, 0.5)]
    [None, None, None, 'valid/Loss has not improved on 0.5 for 2 validations']
    """

    def __init__(
        self,
        monitor: str = "valid/Loss",
        mode: str | None = None,
        patience: int = 5,
        min_delta: float = 0.0,
        warmup: int = 0,
    ):
        patience, warmup = (
            check_int(name, value, least, of="MetricEarlyStopping", code="stopping-number-value")
            for name, value, least in (("patience", patience, 1), ("warmup", warmup, 0))
        )
        self._best = Monitor(monitor, mode, min_delta)
        self.patience, self.warmup = patience, warmup
        self._without, self._validations = 0, 0

    def __repr__(self) -> str:
        return f"MetricEarlyStopping({self._best.monitor!r}, patience={self.patience})"

    @property
    def monitor(self) -> Monitor:
        """Return the monitor of the metric."""
        return self._best

    def update(self, values: Mapping[str, Any]) -> str | None:
        """Return the reason to stop after a validation, or None. Without a new value of the metric nothing changes."""
        if self._best.monitor not in values:
            return self.reason
        self._validations += 1
        better = self._best.is_better(float(values[self._best.monitor]))
        if self._validations > self.warmup:
            self._without = 0 if better else self._without + 1
        return self.reason

    @property
    def reason(self) -> str | None:
        """Return the reason to stop now, or None."""
        if self._without < self.patience:
            return None
        best = "any value" if self._best.best is None else f"{self._best.best:.6g}"
        what = {"train": "epoch", "custom": "value"}.get(self._best.monitor.partition("/")[0], "validation")
        return f"{self._best.monitor} has not improved on {best} for {count(self._without, what)}"

    def get_state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, as JSON."""
        monitor = self._best.monitor
        return {"monitor": monitor, "best": self._best.best, "without": self._without, "seen": self._validations}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `get_state`."""
        self._best.best, self._without, self._validations = decode(state["best"]), state["without"], state["seen"]


@dataclasses.dataclass
class StopRequest:
    """The requests of signals for a run, from before its start to its end.

    It has no lock: a signal handler interrupts the main thread, and would wait forever for a lock that this thread
    holds. Each method sets one attribute, which needs no lock.

    Attributes:
      reason: why the run must stop, or None.
      save: True if a checkpoint is requested.
    """

    reason: str | None = None
    save: bool = False

    def to_stop(self, reason: str) -> None:
        """Request a stop after the current dispatch."""
        self.reason = reason

    def to_save(self) -> None:
        """Request a checkpoint; training continues."""
        self.save = True


class StopController:
    """Collect requests and decisions to stop a run, and hold the reason. Any thread may call it.

    A stop request (a signal, an `Interrupter`, the time limit, another process) also interrupts a validation or a wait
    for data. A decision (early stopping, a step that is not finite) takes effect between two dispatches.

    Args:
      request: the mailbox of signal handlers.
      interrupter: the user's interrupter, or None.
      time_limit: the limit of the whole run in seconds, or None.
      began: the start of the run, by `time.monotonic`.
      consensus: the consensus with the other processes, or None. With it, a request takes effect once all processes
        know it.
      reserve: returns the seconds to reserve for saving at the end.
      status: returns what this process reports to the others in addition to its reason: `since`, `halted` and `pace`.

    Attributes:
      began: see above.
      is_ending: True once the last step was dispatched. Set by the loop's thread.
      stopped_by: why the loop ended. Set by the loop's thread.
    """

    def __init__(
        self,
        request: StopRequest,
        interrupter: "Interrupter | None" = None,
        time_limit: float | None = None,
        began: float | None = None,
        consensus: Consensus | None = None,
        reserve: Callable[[], float] = lambda: 0.0,
        status: Callable[[], Mapping[str, Any]] = dict,
    ):
        self.began = time.monotonic() if began is None else began
        self._request, self._interrupter, self._time_limit = request, interrupter, time_limit
        self._consensus, self._reserve, self._status = consensus, reserve, status
        self.is_ending, self.stopped_by = False, ""
        self._lock = threading.Lock()
        self._other_reason: str | None = None  # of requests other than signals
        self._decision: str | None = None
        self._ended_by: str | None = None

    # -- requests ------------------------------------------------------------------------------------------------------

    def interrupt_once(self, reason: str) -> None:
        """Request a stop, unless one was requested before. A request by a signal takes precedence."""
        # Separate from the signals' reason: a signal between a check and a change of it would be lost, and with it the
        # exit code of SIGTERM.
        with self._lock:
            self._other_reason = self._other_reason or reason

    def request_save(self) -> None:
        """Request a checkpoint; training continues."""
        self._request.to_save()

    def take_save_request(self) -> bool:
        """Return True if a checkpoint was requested since the last call; with several processes, by any of them."""
        source: Any = self._request if self._consensus is None else self._consensus
        return _take_save(source)

    def decide(self, reason: str | None) -> None:
        """End the run between two dispatches if `reason` is not None. The first reason is kept."""
        with self._lock:
            self._decision = self._decision or reason or None

    # -- polling -------------------------------------------------------------------------------------------------------

    @property
    def stop_request(self) -> str | None:
        """Return why the run must stop now, even within a validation or a wait for data, or None."""
        return self._own_request() if self._consensus is None else self._consensus.reason

    @property
    def stop_requested(self) -> bool:
        """Return True if the run must stop now."""
        return self.stop_request is not None

    @property
    def reason(self) -> str | None:
        """Return why the run ends before the next dispatch (a request, or else a decision), or None."""
        return self.stop_request or self._decision

    @property
    def decision(self) -> str | None:
        """Return the decision that ends the run, or None."""
        return self._decision

    def _own_request(self) -> str | None:
        # No lock, as any thread polls this: a reason is one reference, and never becomes None again.
        if reason := self._request.reason or self._other_reason:
            return reason
        if self._interrupter is not None and self._interrupter.reason:
            return f"interrupter: {self._interrupter.reason}"
        if self._is_out_of_time():
            # Kept, as the seconds to reserve become fewer again: a validation that it has cut short must end the run.
            self.interrupt_once("time limit")
        return self._other_reason

    def _is_out_of_time(self) -> bool:
        """Return True if the remaining time is needed to save and end."""
        if self._time_limit is None:
            return False
        # At first no save has been measured, so reserve at least a twentieth of the limit, but no more than 30 s.
        reserve = max(self._reserve(), min(30.0, self._time_limit / 20))
        return time.monotonic() - self.began >= self._time_limit - reserve

    # -- several processes ---------------------------------------------------------------------------------------------

    def sync(self, step: int | None = None) -> None:
        """Exchange requests with the other processes, if it is time. Called by the loop's thread between dispatches."""
        if self._consensus is None:
            return
        self._consensus.sync(self._local_status, step)
        # `agree_on_end` shares the local requests, so the agreed reason becomes one.
        if self._consensus.reason is not None:
            self.interrupt_once(self._consensus.reason)

    def _local_status(self) -> dict[str, Any]:
        # Reset when sent: all processes receive it at this meeting, and save at the same step.
        return {"reason": self._own_request(), "save": _take_save(self._request), **self._status()}

    @property
    def records(self) -> ProcessRecords | None:
        """Return what all processes must do alike; None in a single process. It belongs to the loop's thread."""
        return None if self._consensus is None else self._consensus.records

    def compare_processes(self, what: str = COMPARED) -> None:
        """Raise `ProcessError` if the processes have done different things since they met last. Called by the loop's
        thread before their common state is measured or saved. `what`: the meeting's name.
        """
        if self.records is not None:
            self.records.compare(what)

    @property
    def may_have_halted(self) -> bool:
        """Return False if no process has read a step that ends the run. All processes must end at the same step."""
        return self._consensus is None or self._consensus.halted

    @property
    def is_shared(self) -> bool:
        """Return True if the run has several processes."""
        return self._consensus is not None

    def release(self) -> None:
        """Release the thread that prepares data, which may wait for the other processes."""
        if self._consensus is not None:
            self._consensus.release()

    # -- the end -------------------------------------------------------------------------------------------------------

    def agree_on_end(self, hosts: ProcessGroup, patient: bool = False) -> None:
        """Share the requests of all processes: if one could not save, all of them end. For `patient` see
        `ProcessGroup`.
        """
        # The reasons may differ: the first in the order of processes is the same for all.
        own = self._request.reason or self._other_reason
        reason = hosts.all_reduce_json(own, lambda reasons: next(filter(None, reasons), None), "end", patient)
        with self._lock:
            self._ended_by = reason

    @property
    def ended_by(self) -> str | None:
        """Return the request that ends the process, or None.

        With several processes, a signal after the last exchange is ignored, as it would end this process alone.
        """
        return self._ended_by if self.is_shared else self._request.reason or self._other_reason


def _take_save(source: Any) -> bool:
    """Return True if a checkpoint is requested, and clear the request."""
    requested = bool(source.save)
    # Reset only if it was seen: otherwise a request that a signal sets in between would be lost.
    if requested:
        source.save = False
    return requested


class Interrupter:
    """Stop a run from another thread, a hook or a web server.

    >>> interrupter = Interrupter()
    >>> interrupter.stop("that is enough")
    >>> interrupter.reason
    'that is enough'
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reason: str | None = None

    def stop(self, reason: str = "interrupted") -> None:
        """End `fit` after the current dispatch. The first reason is kept. May be called from any thread."""
        with self._lock:
            self._reason = self._reason or reason

    @property
    def reason(self) -> str | None:
        """Return the reason to stop, or None."""
        return self._reason
