"""Agreement between the processes of a run on the actions at each step.

Devices of all processes take part in every program, so each process must dispatch the same programs in the same order.
Local events (a signal, the clock, a step that the reporter has just read) may change that order only when the processes
synchronize, which they do after about a second's worth of turns (dispatches). Each process has its own clock, so they
count turns, each with the time that turns of its kind took before the last meeting.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from learner.distributed.process_group import ProcessGroup, are_equal
from learner.distributed.process_records import ProcessRecords

SECONDS = 1.0  # between meetings
MOST = 1000  # turns between meetings
SLOW_STEPS = 8  # measured before the processes agree how many to dispatch at once
FIRST_STEPS = 16  # dispatched one by one: the feed is ahead of the agreement


class Consensus:
    """The state that the processes have agreed on.

    Args:
      hosts: the processes.
      step: optimizer steps before this start.
      clock: returns seconds.

    Attributes:
      reason: why the run must end now, or None.
      save: True if a checkpoint was requested.
      since: seconds since the last save, by the clock of process 0.
      halted: True if a step that ends the run has been read.
      records: what all processes must do alike, compared whenever they synchronize.
    """

    def __init__(self, hosts: ProcessGroup, step: int = 0, clock: Callable[[], float] = time.monotonic):
        self._hosts, self._step, self._clock = hosts, step, clock
        self._kind: str | None = None  # of the turn that began at the last call
        self._since = clock()  # that call
        self._seconds: dict[str, list[float]] = {}  # of each turn since the last meeting, by kind
        self._costs: dict[str, float] = {}  # the agreed seconds of a turn, by kind
        self._remaining = 0.0  # agreed seconds until the next meeting
        self._pace: int | None = None
        self._known = threading.Event()
        self.records = ProcessRecords(hosts)
        self.reason: str | None = None
        self.save, self.halted, self.since = False, False, 0.0

    def sync(self, local_status: Callable[[], Mapping[str, Any]], step: int | None = None) -> None:
        """Synchronize between two dispatches, if it is time. All processes must call it equally often.

        Args:
          local_status: called if the processes synchronize now; returns `reason`, `save`, `since`, `halted`,
            and `pace`, the number of steps in half a second.
          step: optimizer steps so far; None within a validation.
        """
        now = self._clock()
        if self._kind is not None:
            self._seconds.setdefault(self._kind, []).append(now - self._since)
            self._remaining -= self._costs.get(self._kind, SECONDS)
        self._kind, self._since = "valid" if step is None else "train", now
        is_first = self._pace is None or (step is not None and step < self._step + FIRST_STEPS)
        if self._remaining > 0 and not is_first:
            return
        turns = {kind: sum(seconds) / len(seconds) for kind, seconds in self._seconds.items()}
        # Most runs record nothing, and send no digest of it.
        records = {"records": self.records.digest} if self.records.digest else {}
        status = self._hosts.all_reduce_json({**local_status(), "turns": turns, **records}, _agreed, "the next step")
        self.records.check("differs" not in status)
        self.reason = self.reason or status["reason"]
        self.save = self.save or status["save"]
        self.halted = self.halted or status["halted"]
        self.since = status["since"]
        if step is not None and self._pace is None and step >= self._step + SLOW_STEPS:
            # Before the event, which lets the thread that prepares data read it.
            self._pace = max(1, status["pace"])
            self._known.set()
        if not is_first:  # later turns have more steps
            self._set_costs(status["turns"])
        # The clock restarts after the meeting: time spent waiting for others is not part of a turn.
        self._seconds, self._since = {}, self._clock()

    def _set_costs(self, turns: Mapping[str, float]) -> None:
        """Set the time of the next meeting from the status of all, so that all processes meet at the same turn."""
        for kind, seconds in turns.items():
            # Each meeting at most doubles the turns until the next: a dispatch returns before it is computed, so a few
            # turns may seem to take no time.
            # Without this limit, SIGTERM took 47 to 80 s with steps of a quarter of a second.
            self._costs[kind] = max(seconds, self._costs.get(kind, SECONDS) / 2, SECONDS / MOST)
        self._remaining = SECONDS - 1e-6  # the sum of many costs is a little less than a second

    def steps(self, step: int) -> int:
        """Return the number of steps to dispatch at `step`: one at first, then the agreed number, for which this waits.
        Called by the thread that prepares the data.
        """
        if step < self._step + FIRST_STEPS:
            return 1
        self._known.wait()
        return self._pace or 1

    @property
    def batches(self) -> int:
        """The number of validation batches that may be dispatched at once."""
        # Set only between training dispatches, so that a validation has one number, the same in all processes.
        return self._pace or 1

    def release(self) -> None:
        """Unblock all waiting threads."""
        self._known.set()


def _agreed(statuses: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the status of all processes together."""
    differs = {} if are_equal([status.get("records") for status in statuses]) else {"differs": True}
    # The slowest process sets the pace and the turns, as each dispatch must be short in all of them.
    return {
        "reason": next((str(status["reason"]) for status in statuses if status["reason"]), None),
        "save": any(status["save"] for status in statuses),
        "halted": any(status["halted"] for status in statuses),
        "since": float(statuses[0]["since"]),
        "pace": min(int(status["pace"]) for status in statuses),
        "turns": {kind: max(float(status["turns"][kind]) for status in statuses) for kind in statuses[0]["turns"]},
        **differs,
    }
