"""Feeding the programs: which micro-batches go into which dispatch, prepared and placed ahead of time.

The grouping depends on the data alone. Where a dispatch is cut depends on the limit it is given, which may look at a
clock: cuts do not change a bit of the result.
"""

import collections
import contextlib
import dataclasses
import functools
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from learner.data.batch_arrays import batch_arrays, field_text, is_narrowed, refuse_wrapped
from learner.data.source import Batches, Source
from learner.errors import LearnerError
from learner.steps.program import BatchBuffer, Feed, ResidentBatches
from learner.steps.tree_math import rows_of
from learner.strategies.base import Strategy
from learner.util.trees import named_leaves

PyTree = Any
Kind = Literal["loop", "single", "tail", "parts"]
BUFFER_BYTES = 64 * 2**20
MAX_STEPS = 32
MAX_RESIDENT_STEPS = 256  # what lives on the device needs no buffer
MANY_SHAPES = 8


@dataclasses.dataclass(frozen=True)
class Dispatch:
    """What the device is handed at once.

    Attributes:
      kind: `loop`: steps over full micro-batches. `single`: one step of one full micro-batch, without a loop. `tail`:
        one step that ends with the feed's ragged micro-batch. `parts`: one step whose micro-batches are added one by
        one.
      epoch: the epoch they belong to.
      feed: where the micro-batches are, on the device; for `parts` one feed for each.
      start: the first micro-batch in the feed; `None`: where the last dispatch ended.
      count: full micro-batches.
      steps: optimizer steps (batches, in validation).
      batches: micro-batches, the ragged one included.
      ends_epoch: whether the epoch is over after it.
      states: where the data was after each of its steps, if it can say so.
      rows: of all its micro-batches, over all processes.
    """

    kind: Kind
    epoch: int
    feed: Feed | list[tuple[Feed, bool]]
    start: int | None
    count: int
    steps: int
    batches: int
    ends_epoch: bool
    states: tuple[Any, ...] = ()
    rows: int = 0

    def shapes(self) -> PyTree:
        """Of a micro-batch of it, of the ragged one where there is one; for messages."""
        feed = self.feed[-1][0] if isinstance(self.feed, list) else self.feed
        if isinstance(feed, ResidentBatches):
            return jax.tree.map(lambda x: jax.ShapeDtypeStruct((feed.size, *x.shape[1:]), x.dtype), feed.data)
        if feed.last is not None:
            return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), feed.last)
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), feed.batches)

    @property
    def data_state(self) -> Any:
        """Where the data was after the last batch of it, as JSON; `None` for data without a state."""
        return self.states[-1] if self.states else None


@dataclasses.dataclass
class Plan:
    """How micro-batches are grouped and dispatched.

    Attributes:
      accumulate: micro-batches per step.
      buffer: for how many steps a buffer has room; more are never dispatched at once.
      loop: whether steps run in a loop; otherwise each is a program of its own.
      limit: given the number of steps made so far, how many the next dispatch may have.
      most: how many any dispatch may have; `None`: as many as the buffer.
    """

    accumulate: int
    buffer: int
    loop: bool
    limit: Callable[[int], int]
    most: int | None = None


def steps_for(bytes_per_step: int) -> int:
    """The default buffer: as many steps as fit into 64 MiB, at most 32. Below 2 there is no loop.

    >>> steps_for(8_000), steps_for(16 * 2**20), steps_for(100 * 2**20)
    (32, 4, 1)
    """
    return int(np.clip(BUFFER_BYTES // max(bytes_per_step, 1), 1, MAX_STEPS))


Signature = tuple[Any, tuple[tuple[tuple[int, ...], Any], ...], bool]


def signature_of(batch: PyTree, part: bool = False) -> Signature:
    """The structure, shapes and dtypes of a batch, and whether it is only this process's part of one."""
    leaves, tree = jax.tree.flatten(batch)
    return tree, tuple((x.shape, x.dtype) for x in leaves), part


class MicroBatch(NamedTuple):
    """A micro-batch of NumPy arrays, with its signature, and where the data was after it."""

    batch: PyTree
    signature: Signature
    state: Any = None


class Feeder:
    """Makes the dispatches of a split, epoch after epoch."""

    def __init__(self, source: Source, strategy: Strategy, plan: Plan, first: PyTree, warn: Callable[[str], None]):
        self._source, self._strategy, self._plan, self._warn = source, strategy, plan, warn
        self._first = first
        self._regular = signature_of(first, source.first_part)
        self._shapes = {self._regular}
        self._narrowed = any(is_narrowed(x.dtype) for x in jax.tree.leaves(first))
        self._rows = source.rows if strategy.resident else None
        self._placed: tuple[int, ResidentBatches] | None = None
        if self._rows is not None:  # once for all epochs
            refuse_wrapped(self._rows[0], source.split)
        self._data = None if self._rows is None else strategy.place(jax.tree.map(_device_dtype, self._rows[0]))
        self._arrange = strategy.compile(_arranged)
        rows, devices = rows_of(first), len(strategy.devices)
        if self._is_whole(self._regular) and devices > 1:
            warn(
                f"a {source.split} batch of {rows} rows cannot be spread evenly over the devices: each of them "
                f"computes all of it. The numbers are the same, and {devices} devices are no faster than one: choose a "
                "batch size that divides"
            )

    @property
    def resident(self) -> bool:
        """Whether the data lives on the device."""
        return self._rows is not None

    @property
    def loop(self) -> bool:
        """Whether steps run in a loop."""
        return self._plan.loop

    @property
    def data(self) -> PyTree:
        """The data that lives on the device, in its own order; `None` where it does not."""
        return self._data

    def example(self) -> Feed:
        """A feed as the looped program gets it, to trace the program with."""
        if self._rows is not None:
            return self._rows_feed(1)
        buffer = max(2, self._plan.buffer) * self._plan.accumulate
        zeros = lambda x: np.zeros((buffer, *x.shape), _device_dtype(x).dtype)  # noqa: E731
        return self._stack(jax.tree.map(zeros, self._first), self._regular)

    def example_alone(self) -> Feed:
        """The same for a program without a loop."""
        if self._rows is not None:
            return self._rows_feed(1)
        return self._stack(None, None, MicroBatch(self._first, self._regular))

    def open(
        self,
        epoch: int,
        batch: int,
        step: int,
        last: int | None,
        stopped: Callable[[], bool] = lambda: False,
        state: Any = None,
    ) -> Iterator[Dispatch]:
        """Dispatches from a position on, through the epoch numbered `last` (`None`: without end). Call `close()` on
        what it returns. Once `stopped()`, it ends rather than wait for data. `state`: the `data_state` of the dispatch
        that ended at the position.
        """
        dispatches = self._epochs(epoch, batch, step, last, state)
        return dispatches if self.resident else Prefetcher(self._cut(dispatches), stopped=stopped)

    def _epochs(self, epoch: int, batch: int, step: int, last: int | None, state: Any) -> Iterator[Dispatch]:
        while last is None or epoch <= last:
            ended = False
            rows = self._from_rows(epoch, batch, step) if self.resident else None
            for dispatch in rows or self._from_stream(epoch, batch, step, state):
                step += dispatch.steps
                ended = dispatch.ends_epoch
                yield dispatch
            if not ended and batch:
                raise self._source.shorter(epoch, batch)
            if not ended:
                raise LearnerError(
                    f"the {self._source.split} data had no batches in epoch {epoch}: a loader must give its batches "
                    "anew in each epoch (a generator cannot; pass the generator function itself)"
                )
            epoch, batch, state = epoch + 1, 0, None

    # -- data on the device --------------------------------------------------------------------------------------------

    def _rows_feed(self, epoch: int) -> ResidentBatches:
        assert self._rows is not None
        if self._placed is None or self._placed[0] != epoch:
            arrays, order_of, size = self._rows
            order = np.asarray(order_of(epoch), np.int32)
            room = max(2, self._plan.buffer) * self._plan.accumulate
            self._placed, data = None, self._data
            # Once for the epoch: a CPU takes a gather of a few rows in the loop for one of all rows, and splits it
            # between threads, which costs more than a small step.
            if not np.array_equal(order, np.arange(len(jax.tree.leaves(arrays)[0]))):
                data = self._arrange(self._data, self._strategy.place(order))
            self._placed = epoch, ResidentBatches(data, min(size, len(order)), room)
        return self._placed[1]

    def _from_rows(self, epoch: int, batch: int, step: int) -> Iterator[Dispatch]:
        feed = self._rows_feed(epoch)
        rows = jax.tree.leaves(feed.data)[0].shape[0]
        full, ragged = divmod(rows, feed.size)
        total = full + bool(ragged)
        start: int | None = batch
        while batch < total:
            made = self._rows_dispatch(feed, epoch, batch, full, bool(ragged), step)
            ends, after = batch + made.batches == total, min((batch + made.batches) * feed.size, rows)
            dispatch = dataclasses.replace(made, start=start, ends_epoch=ends, rows=after - batch * feed.size)
            batch, step, start = batch + dispatch.batches, step + dispatch.steps, None
            yield dispatch

    def _rows_dispatch(
        self, feed: ResidentBatches, epoch: int, batch: int, full: int, ragged: bool, step: int
    ) -> Dispatch:
        size, left = self._plan.accumulate, full - batch
        make = functools.partial(Dispatch, epoch=epoch, start=None, ends_epoch=False)
        # A ragged micro-batch ends the group that what is left of the full ones begins.
        groups = left // size if ragged else -(-left // size)
        if not self._plan.loop and size > 1:
            count = min(size, left)
            with_tail = ragged and count < size
            parts: list[tuple[Feed, bool]] = [(feed, False) for _ in range(count)]
            parts += [(feed, True)] * with_tail
            return make("parts", feed=parts, count=count, steps=1, batches=count + with_tail)
        if groups == 0:
            return make("tail", feed=feed, count=left, steps=1, batches=left + 1)
        if not self._plan.loop:
            return make("single", feed=feed, count=1, steps=1, batches=1)
        steps = min(groups, self._plan.buffer, self._plan.most or groups, self._plan.limit(step))
        count = min(steps * size, left)
        return make("loop", feed=feed, count=count, steps=steps, batches=count)

    # -- data that streams ---------------------------------------------------------------------------------------------

    def _from_stream(self, epoch: int, batch: int, step: int, state: Any) -> Iterator[Dispatch]:
        pending: list[list[MicroBatch]] = []
        room = 1
        for group, last in self._groups(epoch, batch, state):
            shape = group[0].signature
            uniform = (
                self._plan.loop and all(micro.signature == shape for micro in group) and not self._is_ragged(shape)
            )
            if pending and not (uniform and pending[0][0].signature == shape):
                yield self._loop(epoch, pending, False)
                step, pending = step + len(pending), []
            if not uniform:
                yield self._alone(epoch, group, last)
                step += 1
                continue
            if not pending:
                room = min(self._plan.limit(step), self._steps(group[0]))
            pending.append(group)
            if last or len(pending) >= room:
                yield self._loop(epoch, pending, last)
                step, pending = step + len(pending), []

    def _groups(self, epoch: int, batch: int, state: Any) -> Iterator[tuple[list[MicroBatch], bool]]:
        """Groups of micro-batches, and whether each is the last of its epoch."""
        opened = self._source.open(epoch, batch, state, self._warn)
        batches = self._checked(opened)
        group: list[MicroBatch] = []
        current = next(batches, None)
        while current is not None:
            following = next(batches, None)
            if following is None and opened.end is not None:
                current = current._replace(state=opened.end())  # a sampler may draw once more when it ends
            group.append(current)
            if len(group) == self._plan.accumulate or following is None:
                yield group, following is None
                group = []
            current = following

    def _checked(self, batches: Batches) -> Iterator[MicroBatch]:
        for given in batches:
            state = None if batches.where is None else batches.where()
            # A loader may fill the same arrays again, and the next batch is asked for before this one is stacked.
            raw = jax.tree.map(lambda x: x.copy() if type(x) is np.ndarray else x, given)
            leaves, tree = jax.tree.flatten(raw)
            shapes = tuple((x.shape, x.dtype) if type(x) is np.ndarray else None for x in leaves)
            signature = tree, shapes, batches.part()
            if signature in self._shapes:  # it was looked at when the shape was new
                if self._narrowed:
                    refuse_wrapped(raw, self._source.split)
                yield MicroBatch(raw, signature, state)
                continue
            batch = batch_arrays(raw, self._source.split)
            signature = signature_of(batch, batches.part())
            if signature not in self._shapes:
                self._new_shape(batch, signature)
            if self._narrowed:
                refuse_wrapped(batch, self._source.split)
            yield MicroBatch(batch, signature, state)

    def _new_shape(self, batch: PyTree, signature: Signature) -> None:
        tree, leaves, _ = signature
        if tree != self._regular[0]:
            what = "structure"
        elif [dtype for _, dtype in leaves] != [dtype for _, dtype in self._regular[1]]:
            what = "dtypes"
        else:
            what = ""
        if what:
            raise LearnerError(
                f"the {self._source.split} batches changed their {what} from {listed(self._first)} to "
                f"{listed(batch)}{_differences(self._first, batch)}"
            )
        self._shapes.add(signature)
        if len(self._shapes) == MANY_SHAPES + 1:
            self._warn(
                f"the {self._source.split} data has more than {MANY_SHAPES} batch shapes, and each is "
                "compiled once (the last: "
                f"{listed(batch)}); pad batches to a few lengths"
            )

    def _is_ragged(self, signature: Signature) -> bool:
        pairs = zip(signature[1], self._regular[1], strict=True)
        fewer = self._rows_in(signature) < self._rows_in(self._regular)
        return fewer and all(a[0][1:] == b[0][1:] for a, b in pairs)

    def _rows_in(self, signature: Signature) -> int:
        """Rows of a batch, over all processes."""
        return signature[1][0][0][0] * (self._source.shares if signature[2] else 1)

    def _is_whole(self, signature: Signature) -> bool:
        """Whether every device gets all rows of a batch."""
        if self._source.share is not None:
            return not signature[2]
        return not self._strategy.divides(signature[1][0][0][0])

    def _steps(self, micro: MicroBatch) -> int:
        if micro.signature == self._regular:
            return self._plan.buffer
        return min(self._plan.buffer, max(2, steps_for(bytes_of(micro.batch) * self._plan.accumulate)))

    def _loop(self, epoch: int, groups: list[list[MicroBatch]], last: bool) -> Dispatch:
        batches = [micro.batch for group in groups for micro in group]
        buffer = max(2, self._steps(groups[0][0])) * self._plan.accumulate
        feed = self._stack(_stacked(batches, buffer), groups[0][0].signature)
        states = tuple(group[-1].state for group in groups)
        rows = len(batches) * self._rows_in(groups[0][0].signature)
        return Dispatch("loop", epoch, feed, 0, len(batches), len(groups), len(batches), last, states, rows)

    def _cut(self, dispatches: Iterator[Dispatch]) -> Iterator[list[Dispatch]]:
        """What each buffer is dispatched as: it is filled and handed over once, however few steps one may have."""
        size = self._plan.accumulate
        with contextlib.closing(dispatches):  # type: ignore[type-var]
            for whole in dispatches:
                most = self._plan.most or whole.steps
                if whole.kind != "loop" or whole.steps <= most:
                    yield [whole]
                    continue
                parts = []
                for first in range(0, whole.steps, most):
                    steps = min(most, whole.steps - first)
                    count = min(steps * size, whole.count - first * size)
                    start, ends = None if first else whole.start, whole.ends_epoch and first + steps == whole.steps
                    states = whole.states[first : first + steps]
                    rows = whole.rows // whole.count * count
                    many = start, count, steps, count, ends
                    parts.append(Dispatch("loop", whole.epoch, whole.feed, *many, states, rows))
                yield parts

    def _alone(self, epoch: int, group: list[MicroBatch], last: bool) -> Dispatch:
        size = self._plan.accumulate
        batches, states = [micro.batch for micro in group], (group[-1].state,)
        rows = sum(self._rows_in(micro.signature) for micro in group)
        if size == 1:
            return Dispatch("tail", epoch, self._stack(None, None, group[0]), 0, 0, 1, 1, last, states, rows)
        regular = all(micro.signature == self._regular for micro in group[:-1])
        if self._plan.loop and regular and self._is_ragged(group[-1].signature):
            full = _stacked(batches[:-1] or [self._first], size)
            feed = self._stack(full, self._regular, group[-1])
            return Dispatch("tail", epoch, feed, 0, len(group) - 1, 1, len(group), last, states, rows)
        parts: list[tuple[Feed, bool]] = [(self._stack(None, None, micro), True) for micro in group]
        return Dispatch("parts", epoch, parts, 0, len(group), 1, len(group), last, states, rows)

    def _stack(self, batches: PyTree, each: Signature | None, last: MicroBatch | None = None) -> BatchBuffer:
        """On the devices: `batches` as `_stacked` makes them of those with the signature `each`, and one by itself."""
        put, replicated = self._strategy.put, (True, True)
        if each is not None:
            replicated = self._is_whole(each), True
        if last is not None:
            replicated = replicated[0], self._is_whole(last.signature)
        last_batch = None if last is None else jax.tree.map(_device_dtype, last.batch)
        return BatchBuffer(
            None if each is None else put(batches, axis=1, replicated=replicated[0], one_off=last is not None),
            None if last is None else put(last_batch, replicated=replicated[1], one_off=True),
            replicated,
        )


def bytes_of(batch: PyTree) -> int:
    """The size of a batch in memory."""
    return sum(x.nbytes for x in jax.tree.leaves(batch))


def _stacked(batches: list[PyTree], size: int) -> PyTree:
    """A new buffer of `size` batches with the given ones at its start. It is never used again: a CPU device takes it as
    it is.
    """

    def stack(*arrays: np.ndarray) -> np.ndarray:
        buffer = np.empty((size, *arrays[0].shape), _device_dtype(arrays[0]).dtype)
        for i, array in enumerate(arrays):
            buffer[i] = array
        return buffer

    return jax.tree.map(stack, *batches)


def _device_dtype(array: Any) -> np.ndarray:
    """64-bit numbers become 32-bit ones, as JAX does it, unless it is told otherwise."""
    array = np.asarray(array)
    return np.asarray(array, jax.dtypes.canonicalize_dtype(array.dtype))


def _arranged(data: PyTree, order: Any) -> PyTree:
    """The rows in the order of an epoch."""
    return jax.tree.map(lambda x: jnp.asarray(x).at[order].get(mode="promise_in_bounds", unique_indices=True), data)


def listed(batch: PyTree) -> str:
    """What a batch has, for messages.

    >>> listed({"x": np.zeros((4, 2), np.float32), "y": np.arange(4, dtype=np.int32)})
    'x: float32[4, 2], y: int32[4]'
    """
    kinds = {name: getattr(x, "dtype", type(x).__name__) for name, x in named_leaves(batch).items()}
    shapes = {name: list(np.shape(x)) for name, x in named_leaves(batch).items()}
    return ", ".join(f"{name or 'array'}: {kind}{shapes[name]}" for name, kind in kinds.items())


def _differences(first: PyTree, batch: PyTree) -> str:
    """Which leaves are new, missing, or of another dtype."""
    before, after = named_leaves(first), named_leaves(batch)
    found = [f"{field_text(name)} is missing" for name in before if name not in after]
    found += [f"{field_text(name)} is new" for name in after if name not in before]
    both = [(name, before[name].dtype, after[name].dtype) for name in before if name in after]
    found += [f"{field_text(name)} was {was} and is {now}" for name, was, now in both if was != now]
    return f": {', '.join(found)}" if found else ""


class Prefetcher(Iterator[Any]):
    """Runs an iterator of lists in a thread, a few lists ahead, and gives what is in them. An exception in it is raised
    where the list was due.
    """

    def __init__(self, lists: Iterator[list[Any]], depth: int = 2, stopped: Callable[[], bool] = lambda: False):
        self._lists, self._stopped = lists, stopped
        self._ready: collections.deque[Any] = collections.deque()
        self._queue: queue.Queue[tuple[bool, Any]] = queue.Queue(depth)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="learner-data", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            for items in self._lists:
                if not self._put((True, items)):
                    return
            self._put((False, None))
        except BaseException as error:
            self._put((False, error))

    def _put(self, entry: tuple[bool, Any]) -> bool:
        while not self._closed.is_set():
            try:
                self._queue.put(entry, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def __next__(self) -> Any:
        while not self._ready:
            self._ready.extend(self._next_list())
        return self._ready.popleft()

    def _next_list(self) -> list[Any]:
        # A wait without an end could not be broken by a signal.
        while True:
            try:
                ok, got = self._queue.get(timeout=0.1)
            except queue.Empty:
                if self._closed.is_set() or self._stopped():
                    raise StopIteration from None
                continue
            break
        if ok:
            return got  # type: ignore[no-any-return]
        self._queue.put((False, got))  # it stays at its end
        if got is None:
            raise StopIteration
        raise got

    def close(self) -> None:
        """Ends the thread; what it prepared is dropped."""
        self._closed.set()
        close = getattr(self._lists, "close", None)
        self._thread.join(timeout=5)
        if close is not None and not self._thread.is_alive():
            close()
