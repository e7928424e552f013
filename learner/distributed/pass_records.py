"""The passes over data that a process makes: their lengths, and the rows of their batches.

Each process compares its passes with those of the next one, in a ring, so that one of them finds any difference.
"""

import json
import threading
from collections.abc import Sequence
from typing import Any

from learner.distributed.row_counts import RowCounts, differing_rows, first_difference
from learner.errors import ProcessError

PASSES = 64  # ends of passes that a process stores
RECENT, CHANGES = 8, 16  # passes whose rows a process keeps, and changes of their number in each that it stores
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
        self._rows: dict[str, RowCounts] = {}  # pass: the rows of its batches

    @property
    def has_begun(self) -> bool:
        """Return True if a batch has been read."""
        return bool(self._reading)

    def record(self, split: str, number: int, batches: int, ended: bool, rows: Sequence[int]) -> None:
        """See `ProcessGroup.record_read`."""
        name = f"{split} {number}"
        with self._lock:
            self._reading[split] = number, batches
            if rows:
                self._rows.setdefault(name, RowCounts()).add(batches - len(rows) + 1, rows)
                _keep_latest(self._rows, RECENT)
            if ended:
                self._ended[name] = batches
                _keep_latest(self._ended, PASSES)

    def rows(self) -> dict[str, Json]:
        """See `ProcessGroup.rows_read`."""
        with self._lock:
            return {name: [counts.batches, list(counts.runs)] for name, counts in self._rows.items()}

    def to_json(self) -> str:
        """Return the text that the process before this one compares with."""
        with self._lock:
            ended = dict(self._ended)
        # Without the number of batches so far: the text changes, and is sent, only where the rows do.
        return json.dumps([ended, {name: runs[-CHANGES:] for name, (_, runs) in self.rows().items()}])

    def difference(self, others: str) -> ProcessError | None:
        """Return the error about the first difference to another process, or None.

        Args:
          others: its `to_json`.
        """
        ended, rows = json.loads(others)
        # First: data that ends early may also have other rows, and its length is the simpler reason.
        return self._difference_of_lengths(ended) or self._difference_of_rows(rows, ended)

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

    def _difference_of_rows(self, others: dict[str, Any], ended: dict[str, int]) -> ProcessError | None:
        own = self.rows()
        for name in others:
            if name not in own:
                continue
            batches, runs = own[name]
            # Its number of batches is unknown while it reads: its last change is the last batch that it surely has.
            until = min(batches, ended.get(name, others[name][-1][0]))
            if found := first_difference([runs, others[name]], until):
                rows = dict(zip([self._index, self._following], found[1], strict=True))
                return ProcessError(differing_rows(name, found[0], rows), code="process-rows-differ")
        return None


def _keep_latest(entries: dict[str, Any], count: int) -> None:
    """Remove all entries but the latest."""
    while len(entries) > count:
        del entries[next(iter(entries))]
