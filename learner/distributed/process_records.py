"""Records of what all processes of a run must do alike, compared where the processes meet."""

import collections
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from learner.distributed.batch_shapes import first_difference, shapes_error
from learner.distributed.differences import named_processes
from learner.distributed.process_group import ProcessGroup, are_equal
from learner.errors import ProcessError
from learner.util.ownership import ThreadOwned

COMPARED = "the comparison of the processes"
KEPT = 1000  # updates of hooks between two meetings
Json = Any


class ProcessRecords(ThreadOwned):
    """The shapes of the batches that this process has dispatched, and the updates that its hooks have returned.

    It belongs to the loop's thread. Recording sends nothing. Meetings that take place anyway exchange the digest;
    `compare` is a meeting of its own, if something has been recorded since the last one.

    Args:
      processes: the processes of the run.

    Attributes:
      digest: a checksum of all records so far, the same in all processes unless they differ.
    """

    def __init__(self, processes: ProcessGroup) -> None:
        self._processes = processes
        self.digest = 0
        self._is_pending = False
        self._updates: collections.deque[Json] = collections.deque(maxlen=KEPT)  # since the last meeting

    def add_batches(self, split: str, number: int, first: int, shapes: Sequence[str]) -> None:
        """Record the shapes of batches that are dispatched next.

        Args:
          split: the split, such as `train`.
          number: the number of the pass, from 1.
          first: the number of the first of the batches in the pass, from 1.
          shapes: the shapes of each in this process; see `learner.distributed.batch_shapes`.
        """
        # One batch at a time: processes that cut their dispatches differently have the same digest in the end.
        for batch, text in enumerate(shapes, first):
            self._add(f"{split} {number} {batch} {text}")

    def add_step(self, step: int, ended_by: str = "") -> None:
        """Record a step; see `ProcessGroup.record_step`."""
        self._processes.record_step(step, ended_by)

    def call_hooks(self) -> None:
        """Record that hooks are called, which all processes do at the same steps."""
        # A hook that returns no updates adds no record: without this, only some processes would meet.
        self._is_pending = True

    def add_updates(self, hook: str, step: int, updates: Mapping[str, Json]) -> None:
        """Record what a hook has changed after a step: JSON values by name."""
        self._updates.append([step, hook, dict(updates)])
        self._add(json.dumps(self._updates[-1]))

    def _add(self, text: str) -> None:
        self.digest = zlib.crc32(text.encode(), self.digest)
        self._is_pending = True

    def compare(self, what: str = COMPARED) -> None:
        """Meet the other processes, unless nothing was recorded since the last meeting, and raise `ProcessError` in all
        if their records differ. All processes must call it equally often. `what`: the meeting's name.
        """
        # The shapes may differ, and the number of records does not: all of them meet, or none.
        if self._is_pending:
            self.meet(what)

    def meet(self, what: str) -> None:
        """Meet the other processes in any case; see `compare`. `what`: the meeting's name."""
        self.check(self._processes.all_reduce_json(self.digest, are_equal, what))

    def check(self, equal: bool) -> None:
        """Raise `ProcessError` unless a meeting has found equal digests. All processes must call it after a meeting."""
        self._is_pending = False
        if not equal:
            self._raise_difference()
        self._updates.clear()

    def _raise_difference(self) -> None:
        # What was read rather than dispatched: a process may have dispatched the batches in other groups.
        own = [self._processes.shapes_read(), list(self._updates)]
        reads, updates = zip(*self._processes.all_gather_json(own, "what differs"), strict=True)
        if text := _differing_updates(updates):
            raise ProcessError(text, code="process-updates-differ")
        raise _error_of_shapes(reads)


def _differing_updates(updates: Sequence[Sequence[Json]]) -> str:
    """Return the first updates of hooks that differ between the processes, as text; empty if there are none.

    >>> print(_differing_updates([[], [[20, "halve", {"lr_scale": 0.5}]]]).partition(":")[0])
    the hook halve did not return the same updates in all processes after step 20
    """
    for number in range(max(map(len, updates))):
        current: list[Json] = [of_process[number] if number < len(of_process) else None for of_process in updates]
        if all(update == current[0] for update in current):
            continue
        # A process without the updates of this hook has later ones here.
        step, hook, _ = min((update for update in current if update is not None), key=lambda update: update[0])
        processes = collections.defaultdict(list)
        for index, update in enumerate(current):
            is_of_hook = update is not None and update[:2] == [step, hook]
            processes[_shown(update[2] if is_of_hook else {})].append(index)
        each = "; ".join(f"{text} in {named_processes(indices)}" for text, indices in processes.items())
        return (
            f"the hook {hook} did not return the same updates in all processes after step {step}: {each}. Their models "
            "would no longer be equal: return the same Updates in every process, by values that all of them have"
        )
    return ""


def _shown(updates: Mapping[str, Json]) -> str:
    """Return updates as text: `lr_scale=0.5`, or `none`."""
    return ", ".join(f"{name}={value}" for name, value in updates.items()) or "none"


def _error_of_shapes(reads: Sequence[dict[str, Any]]) -> ProcessError:
    """Return the error for the first difference of what the processes have read; see `ProcessGroup.shapes_read`."""
    for name in reads[0]:
        passes = [read[name] for read in reads if name in read]
        if len(passes) < len(reads):
            continue
        until = min(batches for batches, _ in passes)
        if found := first_difference([runs for _, runs in passes], until):
            return shapes_error(name, found[0], dict(enumerate(found[1])))
    return ProcessError(
        "the batches of the processes differ in their shapes: the arrays of a batch must have equal shapes in all "
        "processes",
        code="process-shapes-differ",
    )
