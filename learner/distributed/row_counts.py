"""The rows of the batches that a process reads, and the first batch in which those of two processes differ."""

import bisect
import collections
from collections.abc import Mapping, Sequence

from learner.util.text import count, join_names

KEPT = 1000  # changes of the number of rows in a pass
Runs = Sequence[Sequence[int]]


class RowCounts:
    """The rows of the batches of a pass.

    Attributes:
      runs: `[batch, rows]`: the number of a batch, from 1, and the rows of this batch and of those up to the next run.
      batches: the number of the last batch.

    >>> counts = RowCounts()
    >>> counts.add(1, [6, 6, 6, 3])
    >>> list(counts.runs), counts.batches
    ([[1, 6], [4, 3]], 4)
    """

    def __init__(self) -> None:
        self.runs: collections.deque[list[int]] = collections.deque(maxlen=KEPT)
        self.batches = 0

    def add(self, first: int, rows: Sequence[int]) -> None:
        """Add the rows of consecutive batches. `first`: the number of the first of them."""
        for batch, number in enumerate(rows, first):
            if not self.runs or self.runs[-1][1] != number:
                self.runs.append([batch, number])
        self.batches = first + len(rows) - 1


def rows_at(runs: Runs, batch: int) -> int | None:
    """Return the rows of a batch, or None if it comes before the first run."""
    index = bisect.bisect_right(runs, batch, key=lambda run: run[0])
    return runs[index - 1][1] if index else None


def first_difference(runs: Sequence[Runs], until: int) -> tuple[int, list[int]] | None:
    """Return the first batch up to number `until` in which the processes differ, and its rows in each; else None.

    >>> first_difference([[[1, 6], [4, 3]], [[1, 6]]], until=4)
    (4, [3, 6])
    >>> first_difference([[[1, 6], [4, 3]], [[1, 6]]], until=3)
    """
    for batch in sorted({batch for of_process in runs for batch, _ in of_process if batch <= until}):
        rows = [rows_at(of_process, batch) for of_process in runs]
        known = [number for number in rows if number is not None]
        if len(known) == len(rows) and len(set(known)) > 1:
            return batch, known
    return None


def differing_rows(name: str, batch: int, rows: Mapping[int, int]) -> str:
    """Return the text of an error about a batch whose processes have other numbers of rows.

    Args:
      name: the split and the number of the pass, such as `train 1`.
      batch: the number of the batch, from 1.
      rows: the rows by process.

    >>> differing_rows("train 1", 4, {0: 3, 1: 1}).partition(":")[0]
    'batch 4 in pass 1 of the train data has 3 rows in process 0, 1 row in process 1'
    """
    split, _, of_pass = name.rpartition(" ")
    each = join_names([f"{count(number, 'row')} in process {process}" for process, number in rows.items()], 8)
    return (
        f"batch {batch} in pass {of_pass} of the {split} data has {each}: each batch must have equally many rows in "
        "all processes. Drop the rows that are left over, or pad them with weight 0"
    )
