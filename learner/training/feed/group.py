"""Micro-batches of a source, checked and grouped into optimizer steps.

The grouping depends only on the data: the cuts between dispatches do not affect the batches of a run.
"""

import copy
import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from learner.data.abstract_source import Source
from learner.data.batch_arrays import batch_arrays, field_text, is_narrowed, refuse_wrapped
from learner.data.sharding import Batches
from learner.errors import LearnerError
from learner.util.trees import named_leaves

PyTree = Any
BUFFER_BYTES = 64 * 2**20
# A call on the host takes most of the time of a small step: the digits MLP makes 11,000 steps/s one by one, and 16,800
# with 32.
MAX_STEPS = 32
MANY_SHAPES = 8


@dataclasses.dataclass(frozen=True)
class DispatchGrouping:
    """Sizes of groups and of dispatches.

    Attributes:
      accumulate: micro-batches per step.
      buffer: the number of steps that fit into a buffer, the limit of a dispatch.
      loop: True if steps run in a loop; otherwise each step is a separate program.
      limit: a function of the number of steps so far that returns the maximum number of steps of the next dispatch.
      most: the maximum number of steps of any dispatch; `None`: the size of a buffer.
    """

    accumulate: int
    buffer: int
    loop: bool
    limit: Callable[[int], int]
    most: int | None = None


def steps_for(bytes_per_step: int) -> int:
    """Return the default size of a buffer: the number of steps in 64 MiB, at most 32. Below 2 there is no loop.

    >>> steps_for(8_000), steps_for(16 * 2**20), steps_for(100 * 2**20)
    (32, 4, 1)
    """
    return int(np.clip(BUFFER_BYTES // max(bytes_per_step, 1), 1, MAX_STEPS))


Signature = tuple[Any, tuple[tuple[tuple[int, ...], Any], ...], bool]


def signature_of(batch: PyTree, part: bool = False) -> Signature:
    """Return the structure, shapes and dtypes of a batch, and True if it is only this process's part of a batch."""
    leaves, tree = jax.tree.flatten(batch)
    return tree, tuple((x.shape, x.dtype) for x in leaves), part


def shapes_of(batch: PyTree) -> str:
    """Return the shapes of the fields of a batch in this process, to compare them with those of other processes.

    >>> shapes_of({"x": np.zeros((4, 2)), "y": np.arange(4)})
    '{"x": [4, 2], "y": [4]}'
    """
    return json.dumps({name: x.shape for name, x in named_leaves(batch).items()})


class MicroBatch(NamedTuple):
    """A micro-batch of NumPy arrays, its signature, and the position in the data after it."""

    batch: PyTree
    signature: Signature
    state: Any = None


class MicroBatchGroup(NamedTuple):
    """The micro-batches of one step.

    Attributes:
      epoch: their epoch.
      micro_batches: the micro-batches, at most `accumulate`.
      ends_epoch: True if the epoch ends with them.
    """

    epoch: int
    micro_batches: list[MicroBatch]
    ends_epoch: bool


class Grouper:
    """Read the micro-batches of a source, check their shapes and group them into steps.

    Args:
      source: the data of a split.
      grouping: the number of micro-batches in a step.
      first: the first batch of the source, which sets structure, dtypes and the regular shape.
      warn: called with the text of a warning.

    Attributes:
      between: see `Batches`; that of the epoch read last.
    """

    between: Callable[[], Any] | None = None

    def __init__(self, source: Source, grouping: DispatchGrouping, first: PyTree, warn: Callable[[str], None]):
        self._source, self._grouping, self._first, self._warn = source, grouping, first, warn
        self.regular = signature_of(first, source.first_part)
        self._shapes = {self.regular: shapes_of(first)}  # of each signature
        self._has_other_length = False
        self._narrowed = any(is_narrowed(x.dtype) for x in jax.tree.leaves(first))

    def end_epoch(self, epoch: int, state: Any) -> None:
        """Set the data to the end of an epoch, with its state there."""
        self.between = self._source.end_epoch(epoch, state, self._warn)

    def with_grouping(self, grouping: DispatchGrouping) -> "Grouper":
        """Return a grouper of the same source with another grouping."""
        grouper = copy.copy(self)
        # A separate dict, as each feeder counts the shapes that it reads, and warns about them.
        grouper._grouping, grouper._shapes = grouping, dict(self._shapes)
        return grouper

    def groups(self, epoch: int, batch: int, state: Any, last: int | None) -> Iterator[MicroBatchGroup]:
        """Read groups from a position on, through the epoch numbered `last` (`None`: without end)."""
        while last is None or epoch <= last:
            batches = self._source.open(epoch, batch, state, self._warn)
            self.between = batches.between
            group: list[MicroBatch] = []
            current, count = self._read(batches), batch
            if current is None:
                del batches  # otherwise the error's traceback would keep its workers alive
                raise empty_epoch(self._source, epoch, batch)
            # One batch is read ahead: the last group of an epoch must be known before its step is dispatched.
            while current is not None:
                following, count = self._read(batches), count + 1
                if following is None and batches.end is not None:
                    current = current._replace(state=batches.end())  # a sampler may draw once more when it ends
                group.append(current)
                if len(group) == self._grouping.accumulate or following is None:
                    yield MicroBatchGroup(epoch, group, following is None)
                    group = []
                current = following
            # The iterator of this epoch must end its threads and processes before the next one starts its own.
            del batches
            self._compare_length(epoch, count)
            epoch, batch, state = epoch + 1, 0, None

    def _compare_length(self, epoch: int, count: int) -> None:
        """Warn once about data whose epochs have another length than declared."""
        claimed = self._source.claimed_batches
        if claimed is not None and count != claimed and not self._has_other_length:
            self._has_other_length = True
            split = self._source.split
            where = f"epoch {epoch}" if split == "train" else "a validation"
            self._warn(
                f"the {split} data claims {claimed} batches, but {where} had {count}: schedules and the progress rely "
                "on the claim. Either its length (__len__) is wrong, or part of it was not read"
            )

    def _read(self, batches: Batches) -> MicroBatch | None:
        """Return the next micro-batch as arrays of a known shape, or None at the end of the epoch."""
        try:
            raw = next(batches)
        except StopIteration:
            return None
        # The position belongs to the batch returned last, so it is read before the next batch.
        state = None if batches.where is None else batches.where()
        # A loader may reuse its arrays, and the next batch is read before this one is stacked.
        raw = jax.tree.map(lambda x: x.copy() if type(x) is np.ndarray else x, raw)
        leaves, tree = jax.tree.flatten(raw)
        shapes = tuple((x.shape, x.dtype) if type(x) is np.ndarray else None for x in leaves)
        signature: Any = tree, shapes, batches.part()
        if signature not in self._shapes:  # known shapes were checked when they were new
            raw = jax.tree.map(_unshared, batch_arrays(raw, self._source.split), raw)
            signature = signature_of(raw, batches.part())
            if signature not in self._shapes:
                self._add_shape(raw, signature)
        # Values are checked in every batch: 64-bit numbers may wrap in any of them.
        if self._narrowed:
            refuse_wrapped(raw, self._source.split)
        return MicroBatch(raw, signature, state)

    def _add_shape(self, batch: PyTree, signature: Signature) -> None:
        tree, leaves, _ = signature
        if tree != self.regular[0]:
            change = "structure"
        elif [dtype for _, dtype in leaves] != [dtype for _, dtype in self.regular[1]]:
            change = "dtypes"
        else:
            change = ""
        if change:
            refuse_wrapped(batch, self._source.split)  # more than 32 bits explain another dtype
            raise LearnerError(
                f"the {self._source.split} batches changed their {change} from {listed(self._first)} to "
                f"{listed(batch)}{_differences(self._first, batch)}",
                code="batch-structure-changed",
            )
        self._shapes[signature] = shapes_of(batch)
        if len(self._shapes) == MANY_SHAPES + 1:
            self._warn(
                f"the {self._source.split} data has more than {MANY_SHAPES} batch shapes, and each is compiled once "
                f"(the last: {listed(batch)}); pad batches to a few lengths"
            )

    def is_ragged(self, signature: Signature) -> bool:
        """Return True for a batch that differs from the regular one only by fewer rows."""
        pairs = zip(signature[1], self.regular[1], strict=True)
        fewer = self.rows_in(signature) < self.rows_in(self.regular)
        return fewer and all(a[0][1:] == b[0][1:] for a, b in pairs)

    def rows_in(self, signature: Signature) -> int:
        """Return the number of rows of a batch over all processes."""
        return signature[1][0][0][0] * (self._source.shares if signature[2] else 1)

    def shapes(self, micro_batches: Sequence[MicroBatch]) -> tuple[str, ...]:
        """Return the shapes of each micro-batch in this process; see `shapes_of`."""
        return tuple(self._shapes[micro.signature] for micro in micro_batches)

    def is_loop(self, group: list[MicroBatch]) -> bool:
        """Return True if the group can be a step of a loop: all of its micro-batches have the same full shape."""
        shape = group[0].signature
        uniform = all(micro.signature == shape for micro in group)
        return self._grouping.loop and uniform and not self.is_ragged(shape)

    def buffer_steps(self, micro: MicroBatch) -> int:
        """Return the number of steps that fit into a buffer of such micro-batches."""
        if micro.signature == self.regular:
            return self._grouping.buffer
        return min(self._grouping.buffer, max(2, steps_for(bytes_of(micro.batch) * self._grouping.accumulate)))


def _unshared(array: np.ndarray, given: Any) -> np.ndarray:
    """Return the array of a leaf of a batch. Those of other types may share its memory, which a loader may reuse."""
    return np.array(array) if array is not given and array.flags.writeable else array


def empty_epoch(source: Source, epoch: int, batch: int) -> LearnerError:
    """Return the error for an epoch without batches after a position."""
    if batch:
        return source.shorter(epoch, batch)
    where = f"epoch {epoch}" if source.split == "train" else "a validation"
    return LearnerError(
        f"the {source.split} data had no batches in {where}: a loader must yield its batches "
        "again in each epoch (a generator cannot; pass the generator function itself)",
        code="data-without-batches",
        epoch=epoch,
    )


def bytes_of(batch: PyTree) -> int:
    """Return the size of a batch in memory."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(batch))


def listed(batch: PyTree) -> str:
    """Describe the arrays of a batch, for messages.

    >>> listed({"x": np.zeros((4, 2), np.float32), "y": np.arange(4, dtype=np.int32)})
    'x: float32[4, 2], y: int32[4]'
    """
    kinds = {name: getattr(x, "dtype", type(x).__name__) for name, x in named_leaves(batch).items()}
    shapes = {name: list(np.shape(x)) for name, x in named_leaves(batch).items()}
    return ", ".join(f"{name or 'array'}: {kind}{shapes[name]}" for name, kind in kinds.items())


def _differences(first: PyTree, batch: PyTree) -> str:
    """Describe the leaves that are new, missing, or have another dtype."""
    before, after = named_leaves(first), named_leaves(batch)
    changes = [f"{field_text(name)} is missing" for name in before if name not in after]
    changes += [f"{field_text(name)} is new" for name in after if name not in before]
    both = [(name, before[name].dtype, after[name].dtype) for name in before if name in after]
    changes += [f"{field_text(name)} was {was} and is {now}" for name, was, now in both if was != now]
    return f": {', '.join(changes)}" if changes else ""
