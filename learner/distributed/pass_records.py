"""The passes over data that a process makes, with their lengths and the shapes of their batches, and its last step.

Each process compares its records with those of the next one, in a ring, so that one of them finds any difference.
"""

import json
import threading
from collections.abc import Sequence
from typing import Any

from learner.distributed.batch_shapes import ShapeRuns, first_difference, shapes_error
from learner.errors import ProcessError

PASSES = 64  # ends of passes that a process stores
RECENT, CHANGES = 8, 16  # passes whose shapes a process keeps, and changes of them in each that it stores
Json = Any


class PassRecords:
    """The passes that this process has read, or is reading. Any thread may call it.

    Args:
      index: the index of this process.
      following: the index of the process to compare with.
    """

    def __init__(self, index: int, following: int) -> None:
        self._index, self._following = index, following
        self._lock = threading.Lock()  # the threads that read data write, and the loop's thread compares
        self._reading: dict[str, tuple[int, int]] = {}  # split: pass, batches so far
        self._ended: dict[str, int] = {}  # pass: its batches
        self._shapes: dict[str, ShapeRuns] = {}  # pass: the shapes of its batches
        self._step = 0  # the last one that is dispatched
        self._end: tuple[int, str] | None = None  # the last step of the run, and why it ended

    @property
    def has_begun(self) -> bool:
        """Return True if a batch has been read or a step dispatched."""
        return bool(self._reading or self._step)  # no batch is read of data that stays on the devices

    def record(self, split: str, number: int, batches: int, ended: bool, shapes: Sequence[str]) -> None:
        """See `ProcessGroup.record_read`."""
        name = f"{split} {number}"
        with self._lock:
            self._reading[split] = number, batches
            if shapes:
                self._shapes.setdefault(name, ShapeRuns()).add(batches - len(shapes) + 1, shapes)
                _keep_latest(self._shapes, RECENT)
            if ended:
                self._ended[name] = batches
                _keep_latest(self._ended, PASSES)

    def shapes(self) -> dict[str, Json]:
        """See `ProcessGroup.shapes_read`."""
        with self._lock:
            return {name: [seen.batches, list(seen.runs)] for name, seen in self._shapes.items()}

    def record_step(self, step: int, ended_by: str) -> None:
        """See `ProcessGroup.record_step`."""
        with self._lock:
            self._step = step
            if ended_by:
                self._end = step, ended_by

    def to_json(self) -> str:
        """Return the text that the process before this one compares with."""
        with self._lock:
            ended, end = dict(self._ended), self._end
        # Without the numbers of batches and steps so far: the text changes, and is sent, only where the shapes do.
        return json.dumps([ended, {name: runs[-CHANGES:] for name, (_, runs) in self.shapes().items()}, end])

    def difference(self, others: str) -> ProcessError | None:
        """Return the error about the first difference to another process, or None.

        Args:
          others: its `to_json`.
        """
        ended, shapes, end = json.loads(others)
        # First: data that ends early may also have other rows, and its length is the simpler reason.
        return self._difference_of_lengths(ended) or self._difference_of_shapes(shapes, ended) or self._step_after(end)

    def _difference_of_lengths(self, others: dict[str, int]) -> ProcessError | None:
        with self._lock:
            own, reading = dict(self._ended), dict(self._reading)
        for name, batches in others.items():
            split, _, number = name.rpartition(" ")
            so_far = reading[split][1] if reading.get(split, (0, 0))[0] == int(number) else 0
            if own.get(name, batches) != batches or so_far > batches:
                more = "" if name in own else " or more"
                return ProcessError(
                    f"the {split} data of process {self._following} ended after {batches} batches of pass {number}, "
                    f"and that of process {self._index} has {own.get(name, so_far)}{more}: the data of all processes "
                    "must have equally many batches",
                    code="process-data-ended",
                )
        return None

    def _difference_of_shapes(self, others: dict[str, Any], ended: dict[str, int]) -> ProcessError | None:
        own = self.shapes()
        for name in others:
            if name not in own:
                continue
            batches, runs = own[name]
            # Its number of batches is unknown while it reads: its last change is the last batch that it surely has.
            until = min(batches, ended.get(name, others[name][-1][0]))
            if found := first_difference([runs, others[name]], until):
                return shapes_error(name, found[0], dict(zip([self._index, self._following], found[1], strict=True)))
        return None

    def _step_after(self, end: tuple[int, str] | None) -> ProcessError | None:
        """Return an error if this process has dispatched a step after the last one of the other. It waits there for the
        devices of the other, and comes to no meeting that could compare them.
        """
        with self._lock:
            step = self._step
        if end is None or step <= end[0]:
            return None
        return ProcessError(
            f"process {self._following} ended its training after step {end[0]} ({end[1]}), and process {self._index} "
            "did not: hooks and loops must stop all processes at the same step, by values that all of them have. For "
            "a reason that one process has, use an Interrupter, which stops all",
            code="process-stop-differs",
        )


def _keep_latest(entries: dict[str, Any], count: int) -> None:
    """Remove all entries but the latest."""
    while len(entries) > count:
        del entries[next(iter(entries))]
