"""Dispatches of a split, epoch after epoch: grouped, placed on the devices and prefetched.

The cuts between dispatches depend on a limit, which may read a clock. They do not affect a bit of the results.
"""

import contextlib
import copy
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from learner.data.abstract_source import Source, changed
from learner.data.data_fingerprint import is_changed
from learner.data.iterator_state import is_of_datasets
from learner.distributed.process_group import ProcessGroup
from learner.distributed.process_records import ProcessRecords
from learner.steps.buffers import Feed, ResidentBatches
from learner.steps.tree_math import rows_of
from learner.strategies.base import Strategy
from learner.training.feed.dispatch import Dispatch, Kind
from learner.training.feed.group import (
    BUFFER_BYTES,
    DispatchGrouping,
    Grouper,
    MicroBatch,
    MicroBatchGroup,
    bytes_of,
    empty_epoch,
)
from learner.training.feed.place import Placer, ResidentRows, StreamedParts, stacked
from learner.training.feed.prefetch import DEPTH, Prefetcher
from learner.util.text import join_names
from learner.util.trees import integer_ranges, nonfinite_rows

__all__ = ["Dispatch", "Feeder"]

PyTree = Any
WATCHED_EPOCHS = 3  # in which changes of the data by hooks are noticed
MAX_RESIDENT_STEPS = 256  # of data on the device, which needs no buffer


class Feeder:
    """Make the dispatches of a split, epoch after epoch.

    The loop's thread opens and closes the iterator of streamed data. In between, only the prefetching thread uses
    source, grouper and placer.

    Args:
      source: the data of a split.
      strategy: places the data.
      grouping: the sizes of steps and dispatches.
      first: the first batch of the source.
      warn: called with the text of a warning.
      lane_seeds: see `ResidentRows`.
      changes: True if hooks may change the data at the end of an epoch: then the next epoch is not read before.
    """

    def __init__(
        self,
        source: Source,
        strategy: Strategy,
        grouping: DispatchGrouping,
        first: PyTree,
        warn: Callable[[str], None],
        lane_seeds: Callable[[], Sequence[int]] | None = None,
        changes: bool = False,
    ):
        self._source, self._grouping, self._first, self._changes = source, grouping, first, changes
        self._grouper = Grouper(source, grouping, first, warn)
        self._placer = Placer(source, strategy)
        # At least 2 steps, even if no dispatch has as many: one buffer shape for the looped program.
        self._room = max(2, grouping.buffer) * grouping.accumulate
        is_resident = strategy.resident and source.has_rows
        self._rows = ResidentRows(source, strategy, self._room, lane_seeds) if is_resident else None
        self._processes: ProcessGroup | None = None
        self._records: ProcessRecords | None = None  # of the loop's thread
        self._passes = self._epochs = 0
        self._warn = warn
        rows, devices = rows_of(first), len(strategy.devices)
        if self._placer.is_replicated(self._grouper.regular) and devices > 1:
            warn(
                f"a {source.split} batch of {rows} rows cannot be spread evenly over the devices: each of them "
                f"computes the whole batch. The numbers do not change, but {devices} devices are no faster than one: "
                "choose a batch size that is divisible by them"
            )

    def compare_reads(self, processes: ProcessGroup, records: ProcessRecords) -> None:
        """Raise `ProcessError` in the iterators of `open` if the data has another length or other shapes in another
        process. `records` gets the shapes of the batches that are dispatched.
        """
        if not self._source.is_uniform:
            self._processes, self._records = processes, records

    @property
    def resident(self) -> bool:
        """Return True if the data lives on the device."""
        return self._rows is not None

    @property
    def loop(self) -> bool:
        """Return True if steps run in a loop."""
        return self._grouping.loop

    @property
    def buffer(self) -> int:
        """Return the number of steps that fit into a buffer."""
        return self._grouping.buffer

    def describe_state(self, state: Any) -> list[str]:
        """Return lines for the log about the rows read up to a dispatch's `data_state`."""
        return self._source.describe_state(state)

    def without_loop(self) -> "Feeder":
        """Return a feeder of the same data whose steps are separate programs."""
        # Shallow: the copies share the placer and the rows on the device.
        feeder = copy.copy(self)
        feeder._grouping = dataclasses.replace(self._grouping, loop=False)
        feeder._grouper = self._grouper.with_grouping(feeder._grouping)
        return feeder

    @property
    def data(self) -> PyTree:
        """Return the data on the device, in its own order, or None if it is streamed."""
        return None if self._rows is None else self._rows.data

    def bad_rows(self) -> str | None:
        """Return the fields of data in memory that are not finite, with their rows, for messages. Return None for
        streams, and if other processes have their own data.
        """
        arrays = self._source.arrays
        if arrays is None:
            return self._source.bad_batch()
        found = nonfinite_rows(arrays)
        text = " and ".join(f"{name} (row {join_names([*map(str, bad)], 3)})" for name, bad in found.items())
        if not self._source.differs:
            return text
        return f"{text} of process {jax.process_index()}" if found else None

    def integers(self) -> str:
        """Return the ranges of the integers in data in memory, for messages; empty for streams."""
        arrays = self._source.arrays
        ranges = {} if arrays is None else integer_ranges(arrays)
        return join_names([f"{name} is from {low} to {high}" for name, (low, high) in ranges.items()], 8)

    def example(self) -> Feed:
        """Return an example feed of the looped program, for tracing."""
        # Of the first epoch, which a new run then finds already arranged.
        if self._rows is not None:
            return self._rows.batches(1)
        return self._placer.place(_zeros(self._first, self._room), self._grouper.regular)

    def example_alone(self) -> Feed:
        """Return an example feed of a program without a loop, for tracing."""
        if self._rows is not None:
            return self._rows.batches(1)
        return self._placer.place(None, None, MicroBatch(_zeros(self._first), self._grouper.regular))

    def expected(self) -> Sequence[tuple[str, Feed]]:
        """Return the known kinds of dispatch in an epoch, each with an example feed. Steps of several programs have
        none.
        """
        if not self.loop and self._grouping.accumulate > 1:
            return []
        feed = self.example() if self.loop else self.example_alone()
        if not isinstance(feed, ResidentBatches):
            return [("loop" if self.loop else "tail", feed)]
        full, ragged = divmod(feed.rows, feed.size)
        has_groups = full >= (self._grouping.accumulate if ragged else 1)
        return [("loop" if self.loop else "single", feed)] * has_groups + [("tail", feed)] * bool(ragged)

    def open(
        self,
        epoch: int,
        batch: int,
        step: int,
        last: int | None,
        stopped: Callable[[], bool] = lambda: False,
        state: Any = None,
    ) -> Iterator[Dispatch]:
        """Return dispatches from a position on, through the epoch numbered `last` (`None`: without end).

        Call `close()` on the iterator. Once `stopped()` returns True, it ends instead of waiting for data. `state` is
        the `data_state` of the dispatch that ended at the position.
        """
        if self._rows is not None:
            return self._resident(self._rows, epoch, batch, step, last)
        self._passes += 1
        # With reading ahead over the end of an epoch, changes by hooks took effect up to three epochs late.
        make = self._epoch_by_epoch if self._changes else self._prefetched
        dispatches = make(epoch, batch, step, last, stopped, state)
        if self._records is None:
            return dispatches
        return self._compared(dispatches, self._records, batch, self._passes - 1)

    def _prefetched(
        self, epoch: int, batch: int, step: int, last: int | None, stopped: Callable[[], bool], state: Any
    ) -> Iterator[Dispatch]:
        closed, accumulate = threading.Event(), self._grouping.accumulate
        depth = 1 if accumulate > 1 and accumulate * bytes_of(self._first) > BUFFER_BYTES else DEPTH
        return Prefetcher(self._streamed(epoch, batch, step, last, state, closed), depth, stopped, closed)

    def _epoch_by_epoch(
        self, epoch: int, batch: int, step: int, last: int | None, stopped: Callable[[], bool], state: Any
    ) -> Iterator[Dispatch]:
        """Yield dispatches, reading an epoch only when the loop requests it."""
        ended = True
        while ended and (last is None or epoch <= last):
            ended = False
            with contextlib.closing(self._prefetched(epoch, batch, step, epoch, stopped, state)) as dispatches:  # type: ignore[type-var]
                for dispatch in dispatches:
                    step, ended = step + dispatch.steps, dispatch.ends_epoch
                    yield dispatch
            epoch, batch, state = epoch + 1, 0, None

    def end_epoch(self, epoch: int, state: Any) -> None:
        """Set streamed data that hooks may change to the end of an epoch, with its `data_state` there."""
        if self._changes and self._rows is None and state is not None:
            self._grouper.end_epoch(epoch, state)

    def state_after(self, hooks: Callable[[], None], state: Any) -> Any:
        """Call the hooks between two epochs, which may change the data, and return the new position in it. `state`: the
        `data_state` at the end of the epoch, which is returned if they change nothing.
        """
        read = self._grouper.between if self._changes else None
        before = None if read is None else read()
        watched = self._source.unsaved() if self._watches() else None
        hooks()
        if watched is not None and is_changed(watched, self._source.unsaved()):
            self._warn_of_change()
        self._epochs += 1
        after = None if read is None else read()
        if is_of_datasets(after):
            return after  # the state of the dispatch is that at the beginning of the epoch
        return state if after == before else changed(after)

    def _watches(self) -> bool:
        """Return True if a change of the data by hooks would be lost now, or later with the checkpoint."""
        return self._changes and self._epochs < WATCHED_EPOCHS and (self.resident or self._source.will_keep)

    def _warn_of_change(self) -> None:
        split = self._source.split
        if self.resident:
            text = (
                f"a hook has changed arrays of the {split} data, which has no effect: they were copied to the devices "
                "when the run began. Pass a class with __len__, __getitem__, state_dict and load_state_dict, or an "
                "iterable"
            )
        else:
            text = (
                f"a hook has changed the {split} data, which no checkpoint contains: a run that resumes reads other "
                "data. That of a class with the methods state_dict and load_state_dict is saved. Ignore this warning "
                "if reading the data has changed a cache or a counter only"
            )
        self._warn(text)
        self._epochs = WATCHED_EPOCHS

    def _compared(
        self, dispatches: Iterator[Dispatch], records: ProcessRecords, batches: int, passes: int
    ) -> Iterator[Dispatch]:
        """Record the shapes of each dispatch, and synchronize the processes before each dispatch that ends an epoch.
        After it they run other programs. If the data of another process has not ended, its programs would exchange
        arrays with these, which ends a process from C++.
        """
        split = self._source.split
        with contextlib.closing(dispatches):  # type: ignore[type-var]
            for dispatch in dispatches:
                records.add_batches(split, dispatch.epoch + passes, batches + 1, dispatch.shapes_of_each)
                batches += dispatch.batches
                if dispatch.ends_epoch:
                    # On the loop's thread, as every meeting: processes match their meetings by the order of calls.
                    records.meet(f"the end of the {split} data after {batches} batches")
                    batches = 0
                yield dispatch

    # -- data on the device --------------------------------------------------------------------------------------------

    def _resident(
        self, resident: ResidentRows, epoch: int, batch: int, step: int, last: int | None
    ) -> Iterator[Dispatch]:
        while last is None or epoch <= last:
            feed = resident.batches(epoch)
            rows = feed.rows
            full, ragged = divmod(rows, feed.size)
            total = full + bool(ragged)
            if batch >= total:
                raise empty_epoch(self._source, epoch, batch)
            # Only the first dispatch of an epoch has a start: the program counts from there on the device.
            start: int | None = batch
            while batch < total:
                kind, count, steps = self._next_rows(full - batch, bool(ragged), step)
                # A ragged micro-batch completes the group of the last full ones.
                with_tail = bool(ragged) and count < self._grouping.accumulate
                parts: list[tuple[Feed, bool]] = [(feed, i == count) for i in range(count + with_tail)]
                end = batch + len(parts)
                yield Dispatch(
                    kind=kind,
                    epoch=epoch,
                    feed=parts if kind == "parts" else feed,
                    start=start,
                    count=count,
                    steps=steps,
                    batches=end - batch,
                    ends_epoch=end == total,
                    rows=min(end * feed.size, rows) - batch * feed.size,
                )
                batch, step, start = end, step + steps, None
            epoch, batch = epoch + 1, 0

    def _next_rows(self, left: int, ragged: bool, step: int) -> tuple[Kind, int, int]:
        """Return the kind of the next dispatch of rows on the device, and its numbers of full micro-batches and steps.
        `left`: the full micro-batches that are left in the epoch; `ragged`: True if another one follows them.
        """
        size = self._grouping.accumulate
        groups = left // size if ragged else -(-left // size)
        if not self._grouping.loop and size > 1:
            return "parts", min(size, left), 1
        if groups == 0:
            return "tail", left, 1
        if not self._grouping.loop:
            return "single", 1, 1
        steps = min(groups, self._grouping.buffer, self._grouping.most or groups, self._grouping.limit(step))
        return "loop", min(steps * size, left), steps

    # -- data that streams ---------------------------------------------------------------------------------------------

    def _streamed(
        self, epoch: int, batch: int, step: int, last: int | None, state: Any, closed: threading.Event
    ) -> Iterator[list[Dispatch]]:
        """Yield the dispatches of one buffer at a time, so that prefetching counts buffers, not dispatches."""
        pending: list[MicroBatchGroup] = []
        room = 1
        with contextlib.closing(self._grouper.groups(epoch, batch, state, last)) as groups:  # type: ignore[type-var]
            for group in groups:
                if closed.is_set():
                    return  # a buffer may have many batches, and each may take long
                if self._processes is not None:
                    # A validation is always epoch 1 of its feeder; training opens its data once.
                    batch += len(group.micro_batches)
                    number = group.epoch + self._passes - 1
                    shapes = self._grouper.shapes(group.micro_batches)
                    self._processes.record_read(self._source.split, number, batch, group.ends_epoch, shapes)
                    batch = 0 if group.ends_epoch else batch
                first, is_loop = group.micro_batches[0], self._grouper.is_loop(group.micro_batches)
                # Another shape needs another program, and steps keep their order.
                if pending and not (is_loop and pending[0].micro_batches[0].signature == first.signature):
                    yield self._loop(pending)
                    step, pending = step + len(pending), []
                if not is_loop:
                    yield [self._alone(group)]
                    step += 1
                    continue
                if not pending:
                    # Evaluated once per buffer, at its start: the limit may depend on a clock.
                    room = min(self._grouping.limit(step), self._grouper.buffer_steps(first))
                pending.append(group)
                # The end of an epoch ends a dispatch, so nothing is pending when the next one begins.
                if group.ends_epoch or len(pending) >= room:
                    yield self._loop(pending)
                    step, pending = step + len(pending), []

    def _loop(self, groups: list[MicroBatchGroup]) -> list[Dispatch]:
        first, ends_epoch = groups[0].micro_batches[0], groups[-1].ends_epoch
        batches = [micro.batch for group in groups for micro in group.micro_batches]
        # One shape per batch length, regardless of how full the buffer is: another shape is another compilation.
        buffer = max(2, self._grouper.buffer_steps(first)) * self._grouping.accumulate
        feed = self._placer.place(stacked(batches, buffer), first.signature)
        states = tuple(group.micro_batches[-1].state for group in groups)
        rows, size = self._grouper.rows_in(first.signature), self._grouping.accumulate
        # The buffer is filled and placed once, regardless of the number of steps in a dispatch.
        most, dispatches = self._grouping.most or len(groups), []
        for begin in range(0, len(groups), most):
            end = min(begin + most, len(groups))
            count = min((end - begin) * size, len(batches) - begin * size)
            # Only the first dispatch has a start: the others continue at the cursor, which stays on the device.
            dispatches.append(
                Dispatch(
                    kind="loop",
                    epoch=groups[0].epoch,
                    feed=feed,
                    start=None if begin else 0,
                    count=count,
                    steps=end - begin,
                    batches=count,
                    ends_epoch=ends_epoch and end == len(groups),
                    states=states[begin:end],
                    rows=rows * count,
                    shapes_of_each=self._grouper.shapes(groups[0].micro_batches[:1]) * count,
                )
            )
        return dispatches

    def _alone(self, group: MicroBatchGroup) -> Dispatch:
        micros, size = group.micro_batches, self._grouping.accumulate
        make = functools.partial(
            Dispatch,
            epoch=group.epoch,
            start=0,
            steps=1,
            batches=len(micros),
            ends_epoch=group.ends_epoch,
            states=(micros[-1].state,),
            rows=sum(self._grouper.rows_in(micro.signature) for micro in micros),
            shapes_of_each=self._grouper.shapes(micros),
        )
        if size == 1:
            return make("tail", feed=self._placer.place(None, None, micros[0]), count=0)
        regular = self._grouper.regular
        full = micros[:-1]
        if (
            self._grouping.loop
            and all(micro.signature == regular for micro in full)
            and self._grouper.is_ragged(micros[-1].signature)
        ):
            # Even without full micro-batches the program reads a buffer of their shape.
            batches = stacked([micro.batch for micro in full] or [self._first], size)
            return make("tail", feed=self._placer.place(batches, regular, micros[-1]), count=len(full))
        is_large, count = sum(bytes_of(micro.batch) for micro in micros) > BUFFER_BYTES, len(micros)
        parts = StreamedParts(self._placer, micros)
        return make("parts", feed=parts if is_large else list(parts), count=count)


def _zeros(batch: PyTree, *axes: int) -> PyTree:
    """Return zeros in the shapes of a batch after further axes, in JAX's dtypes for them."""
    # Not the batch itself: its values are checked when it is read, and a conversion of large ones would warn.
    return jax.tree.map(lambda x: np.zeros((*axes, *x.shape), jax.dtypes.canonicalize_dtype(x.dtype)), batch)
