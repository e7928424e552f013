"""How several processes of a run do the same things at the same step.

Devices of all processes take part in every program, so that each process has to dispatch the same programs in the same
order. What one process knows alone (a signal, the clock, a step that its worker has just read) changes that order only
at a meeting. They meet after so many turns, which are dispatches, that it is some half a second.
"""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from learner.distributed.process_group import ProcessGroup

SECONDS = 0.5  # between meetings
MOST = 1000  # turns between meetings
SLOW_STEPS, FIRST_STEPS = 8, 16  # how many steps are measured before it is agreed how many may be dispatched at once


class Consensus:
    """What the processes have agreed on.

    Args:
      hosts: the processes.
      step: optimizer steps before this start.
      clock: in seconds.

    Attributes:
      reason: why the run has to end now, or `None`.
      save: whether a checkpoint was asked for.
      since: seconds since the last save, by the clock of process 0.
      halted: whether a step that ends the run was read.
    """

    def __init__(self, hosts: ProcessGroup, step: int = 0, clock: Callable[[], float] = time.monotonic):
        self._hosts, self._step, self._clock = hosts, step, clock
        self._turns, self._turned, self._next = 0, 0, 1  # so far, at the last meeting, at the next
        self._met = clock()
        self._pace: int | None = None
        self._known = threading.Event()
        self.reason: str | None = None
        self.save, self.halted, self.since = False, False, 0.0

    def turn(self, word: Callable[[], Mapping[str, Any]], step: int | None = None) -> None:
        """Between two dispatches; all processes call it equally often.

        Args:
          word: what this process has to say, if they meet now: `reason`, `save`, `since`, `halted`, and `pace`, how
            many steps take half a second.
          step: optimizer steps so far; `None` within a validation.
        """
        self._turns += 1
        if self._turns < self._next:
            return
        each = (self._clock() - self._met) / (self._turns - self._turned)
        words = self._hosts.meet({**word(), "each": each}, "turn")
        self.reason = self.reason or next((str(said["reason"]) for said in words if said["reason"]), None)
        self.save = self.save or any(said["save"] for said in words)
        self.halted = self.halted or any(said["halted"] for said in words)
        self.since = float(words[0]["since"])
        if step is not None and self._pace is None and step >= self._step + SLOW_STEPS:
            self._pace = max(1, min(int(said["pace"]) for said in words))
            self._known.set()
        self._next = self._turns + self._turns_until(max(float(said["each"]) for said in words))
        self._turned, self._met = self._turns, self._clock()

    def _turns_until(self, each: float) -> int:
        if self._pace is None:
            return 1
        return max(1, min(MOST, int(SECONDS / max(each, 1e-6))))

    def steps(self, step: int) -> int:
        """How many steps may be dispatched at `step`: one at first, then what was agreed on, which is waited for. To be
        called by the thread that prepares the data.
        """
        if step < self._step + FIRST_STEPS:
            return 1
        self._known.wait()
        return self._pace or 1

    @property
    def batches(self) -> int:
        """How many batches of a validation may be dispatched at once."""
        return self._pace or 1

    def release(self) -> None:
        """Nobody waits any more."""
        self._known.set()
