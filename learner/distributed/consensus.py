"""Agreement between the processes of a run on what happens at which step.

Devices of all processes take part in every program, so that each process has to dispatch the same programs in the same
order. Local knowledge (a signal, the clock, a step that the reporter has just read) may change that order only when the
processes synchronize, which they do after as many turns (dispatches) as take about a second.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from learner.distributed.process_group import ProcessGroup

SECONDS = 1.0  # between meetings
MOST = 1000  # turns between meetings
SLOW_STEPS, FIRST_STEPS = 8, 16  # steps measured before the processes agree how many to dispatch at once


class Consensus:
    """The state that the processes have agreed on.

    Args:
      hosts: the processes.
      step: optimizer steps before this start.
      clock: in seconds.

    Attributes:
      reason: why the run has to end now, or None.
      save: whether a checkpoint was requested.
      since: seconds since the last save, by the clock of process 0.
      halted: whether a step that ends the run has been read.
    """

    def __init__(self, hosts: ProcessGroup, step: int = 0, clock: Callable[[], float] = time.monotonic):
        self._hosts, self._step, self._clock = hosts, step, clock
        self._turns, self._turned, self._next = 0, 0, 1  # so far, at the last meeting, at the next
        self._met = clock()
        self._pace: int | None = None
        self._known = threading.Event()
        self.reason: str | None = None
        self.save, self.halted, self.since = False, False, 0.0

    def sync(self, local_status: Callable[[], Mapping[str, Any]], step: int | None = None) -> None:
        """Synchronize between two dispatches, if it is time; all processes call it equally often.

        Args:
          local_status: called if the processes synchronize now; returns `reason`, `save`, `since`, `halted`,
            and `pace`, the number of steps in half a second.
          step: optimizer steps so far; None within a validation.
        """
        self._turns += 1
        if self._turns < self._next:
            return
        step_time = (self._clock() - self._met) / (self._turns - self._turned)
        status = self._hosts.all_reduce_json({**local_status(), "step_time": step_time}, _agreed, "the next step")
        self.reason = self.reason or status["reason"]
        self.save = self.save or status["save"]
        self.halted = self.halted or status["halted"]
        self.since = status["since"]
        if step is not None and self._pace is None and step >= self._step + SLOW_STEPS:
            self._pace = max(1, status["pace"])
            self._known.set()
        # All processes compute the next meeting from the same status, so they arrive at the same turn.
        self._next = self._turns + self._turns_until(status["step_time"])
        # The clock restarts after the meeting: time spent waiting for others is not part of a step.
        self._turned, self._met = self._turns, self._clock()

    def _turns_until(self, step_time: float) -> int:
        if self._pace is None:
            return 1
        return max(1, min(MOST, int(SECONDS / max(step_time, 1e-6))))

    def steps(self, step: int) -> int:
        """Return how many steps may be dispatched at `step`: one at first, then the agreed number, for which it waits.
        It is called by the thread that prepares the data.
        """
        if step < self._step + FIRST_STEPS:
            return 1
        self._known.wait()
        return self._pace or 1

    @property
    def batches(self) -> int:
        """The number of validation batches that may be dispatched at once."""
        return self._pace or 1

    def release(self) -> None:
        """Unblock all waiting threads."""
        self._known.set()


def _agreed(statuses: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the status of all processes together."""
    return {
        "reason": next((str(status["reason"]) for status in statuses if status["reason"]), None),
        "save": any(status["save"] for status in statuses),
        "halted": any(status["halted"] for status in statuses),
        "since": float(statuses[0]["since"]),
        "pace": min(int(status["pace"]) for status in statuses),
        "step_time": max(float(status["step_time"]) for status in statuses),
    }
