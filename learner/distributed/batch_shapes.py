"""The shapes of the batches that a process reads, and the first batch in which those of two processes differ.

The shapes of a batch are a JSON text: `{"x": [6, 8], "y": [6]}`.
"""

import bisect
import collections
import json
from collections.abc import Mapping, Sequence
from typing import Any

from learner.errors import ProcessError
from learner.util.text import count, join_names

KEPT = 1000  # changes of the shapes in a pass
WHOLE_BATCHES = (
    "Or, if all processes read the same dataset, give the batcher of its loader the attribute needs_all_rows = True, "
    "as Pad and Pack have it: then each process makes whole batches, of items that must be the same in each"
)
Runs = Sequence[Sequence[Any]]


class ShapeRuns:
    """The shapes of the batches of a pass.

    Attributes:
      runs: `[batch, shapes]`: the number of a batch, from 1, and the shapes of this batch and of those up to the next
        run.
      batches: the number of the last batch.

    >>> seen = ShapeRuns()
    >>> seen.add(1, ['{"x": [6]}', '{"x": [6]}', '{"x": [3]}'])
    >>> list(seen.runs), seen.batches
    ([[1, '{"x": [6]}'], [3, '{"x": [3]}']], 3)
    """

    def __init__(self) -> None:
        self.runs: collections.deque[list[Any]] = collections.deque(maxlen=KEPT)
        self.batches = 0

    def add(self, first: int, shapes: Sequence[str]) -> None:
        """Add the shapes of consecutive batches. `first`: the number of the first of them."""
        for batch, text in enumerate(shapes, first):
            if not self.runs or self.runs[-1][1] != text:
                self.runs.append([batch, text])
        self.batches = first + len(shapes) - 1


def shapes_at(runs: Runs, batch: int) -> str | None:
    """Return the shapes of a batch, or None if it comes before the first run."""
    index = bisect.bisect_right(runs, batch, key=lambda run: run[0])
    return runs[index - 1][1] if index else None


def first_difference(runs: Sequence[Runs], until: int) -> tuple[int, list[str]] | None:
    """Return the first batch up to number `until` in which the processes differ, and its shapes in each; else None.

    >>> first_difference([[[1, "[6]"], [4, "[3]"]], [[1, "[6]"]]], until=4)
    (4, ['[3]', '[6]'])
    >>> first_difference([[[1, "[6]"], [4, "[3]"]], [[1, "[6]"]]], until=3)
    """
    for batch in sorted({batch for of_process in runs for batch, _ in of_process if batch <= until}):
        shapes = [shapes_at(of_process, batch) for of_process in runs]
        known = [text for text in shapes if text is not None]
        if len(known) == len(shapes) and len(set(known)) > 1:
            return batch, known
    return None


def shapes_error(name: str, batch: int, shapes: Mapping[int, str]) -> ProcessError:
    """Return the error for a batch that has other shapes in some processes.

    Args:
      name: the split and the number of the pass, such as `train 1`.
      batch: the number of the batch, from 1.
      shapes: its shapes by process.

    >>> str(shapes_error("train 1", 4, {0: '{"x": [3, 8]}', 1: '{"x": [1, 8]}'})).partition(":")[0]
    'batch 4 in pass 1 of the train data has 3 rows in process 0, 1 row in process 1'
    >>> str(shapes_error("train 1", 4, {0: '{"x": [3, 8]}', 1: '{"x": [3, 9]}'})).partition(":")[0]
    'batch 4 in pass 1 of the train data has x [3, 8] in process 0, x [3, 9] in process 1'
    """
    split, _, number = name.rpartition(" ")
    fields = {process: json.loads(text) for process, text in sorted(shapes.items())}
    place = f"batch {batch} in pass {number} of the {split} data has"
    for field in next(iter(fields.values())):
        if len({tuple(of_process[field][1:]) for of_process in fields.values()}) > 1:
            named = f"{field} " if field else ""
            each = [f"{named}{of_process[field]} in process {process}" for process, of_process in fields.items()]
            return ProcessError(
                f"{place} {join_names(each, 8)}: the parts of a batch form one array, so that all axes but the first "
                "must have equal lengths in all processes. Pad to one length, as Pad(length=n) and Pack(n, rows=m) "
                f"do. {WHOLE_BATCHES}",
                code="process-shapes-differ",
            )
    rows = {process: next(iter(of_process.values()))[0] for process, of_process in fields.items()}
    each = [f"{count(of_process, 'row')} in process {process}" for process, of_process in rows.items()]
    return ProcessError(
        f"{place} {join_names(each, 8)}: each batch must have equally many rows in all processes. Drop the rows that "
        f"are left over, or pad them with weight 0; Pack(n, rows=m) makes m rows. {WHOLE_BATCHES}",
        code="process-rows-differ",
    )
