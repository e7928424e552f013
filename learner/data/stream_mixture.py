"""Mixtures of streams: rows drawn from data that can only be read in order, made by `mix` and `stream`."""

import copy
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np

from learner.data.batcher import Batcher, stack
from learner.data.data_fingerprint import LONGEST, name_of
from learner.data.dataset import Dataset, adapter, chain_text, read_item
from learner.data.iterable_source import CompositeStream, IterableSource
from learner.data.iterator_state import from_json
from learner.data.mixture_checks import check_fields, check_source_field
from learner.data.mixture_draws import MixtureDraws
from learner.data.randomness import set_epoch
from learner.data.sharding import Batches
from learner.errors import LearnerError, one_error
from learner.util.number_checks import check_int

BLOCK = 2**16  # draws made at once, among which each source has its share
EXHAUSTED = ("stop", "repeat", "drop")


class StreamMixture(CompositeStream):
    """Rows drawn from several streams, made by `mix`, or from one, made by `stream`. It yields items; `batch` returns
    the same rows in batches.

    Attributes:
      names: the names of the sources.
      batch_size: rows per batch, or None for single items.
      starts_anew: True if each epoch reads the sources from their start.
    """

    def __init__(
        self,
        sources: Mapping[str, Any],
        draws: MixtureDraws,
        *,
        size: int | None,
        exhausted: str,
        source_field: str | None,
    ) -> None:
        self.names, self.size, self.exhausted, self.source_field = tuple(sources), size, exhausted, source_field
        self.batch_size: int | None = None
        self.batcher: Batcher = stack
        self.drop_last = False
        self.starts_anew = size is None
        self.draws = draws
        streams = [
            Walks(source, draws.seed, number) if isinstance(source, Dataset) else source
            for number, source in enumerate(sources.values())
        ]
        named = zip(self.names, streams, strict=True)
        self.sources = [StreamSource(repr(name), None, None, False, stream) for name, stream in named]
        self.warn: Callable[[str], None] = logging.getLogger("learner.data").warning
        self.epoch = 1
        self.after: dict[str, Any] | None = None  # the state of the latest epoch's iterator at its end
        self.streams: list[Stream] = []  # read up to `after`

    def batch(self, batch_size: int, batcher: Batcher = stack, drop_last: bool = False) -> Self:
        """Return the same rows in batches.

        Args:
          batch_size: rows per batch.
          batcher: turns a list of items into a batch.
          drop_last: drop rows that do not fill a batch.

        >>> from learner.data import mix
        >>> mixture = mix({"a": lambda: iter([1, 2, 3]), "b": lambda: iter([10, 20, 30])})
        >>> [batch.tolist() for batch in mixture.batch(2)]
        [[10, 1], [20, 30]]
        """
        batched = copy.copy(self)
        batched.batch_size, batched.batcher = check_int("batch_size", batch_size, least=1), batcher
        batched.drop_last = drop_last
        return batched

    @property
    def is_endless(self) -> bool:
        """Return True if epochs have no end, provided that no source is empty."""
        return self.size is None and self.exhausted == "repeat"

    @property
    def num_batches(self) -> int | None:
        """Return the batches of an epoch, or None if they depend on the lengths of the sources."""
        if self.size is None or self.exhausted != "repeat" or self.batch_size is None:
            return None
        return self.size // self.batch_size if self.drop_last else -(-self.size // self.batch_size)

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the epoch that the next iterator reads, from 0."""
        self.epoch = epoch + 1

    @property
    def parts(self) -> list[Any]:
        """Return the data of the sources."""
        return [source.data for source in self.sources]

    def end_epoch(self, state: Any) -> None:
        """See `CompositeStream`."""
        _check_state(state, self.names)
        self.after, self.streams = state, []

    def describe_state(self, state: Any) -> str:
        """Return one line about the rows that were read up to a state of an iterator."""
        counts = {name: state["sources"][name]["total"] for name in self.names}
        total = sum(counts.values())
        if len(counts) == 1:
            return f"{total:,} items of the stream"
        parts = [f"{name} {n:,} ({100 * n / max(total, 1):.2f} %)" for name, n in counts.items()]
        return f"{total:,} rows of the mixture: {', '.join(parts)}"

    def __iter__(self) -> "StreamMixtureIterator":
        if self.epoch == 1:
            self.after, self.streams = None, []
        return StreamMixtureIterator(self, self.after)

    def __repr__(self) -> str:
        shares = [float(share) for share in self.draws.probabilities]
        named = zip(self.names, self.sources, shares, strict=True)
        listed = ", ".join(f"{name!r}: {source.name} {share:.3g}" for name, source, share in named)
        size = "" if self.size is None else f", size={self.size}"
        return f"mix({{{listed}}}, seed={self.draws.seed}{size}, exhausted={self.exhausted!r})"


class StreamMixtureIterator(Iterator[Any]):
    """The rows, or batches, of one epoch of a mixture of streams; its state is a position in all sources."""

    def __init__(self, mixture: StreamMixture, after: dict[str, Any] | None) -> None:
        self._mixture = mixture
        place = {"walk": mixture.epoch, "rows": 0, "total": 0, "ended": False, "state": None}
        fresh = {"epoch": mixture.epoch, "draw": 0, "sources": dict.fromkeys(mixture.names, place)}
        self.set_state({**(after or fresh), "made": 0, "over": False})
        if after is not None and mixture.streams:
            # Only one iterator continues the open streams; another one opens its own.
            self._streams, mixture.streams = mixture.streams, []
        if after is not None and after["made"] != mixture.size:
            self._restart()

    def get_state(self) -> dict[str, Any]:
        """Return the position after the batch returned last."""
        places = {name: stream.place() for name, stream in zip(self._mixture.names, self._streams, strict=True)}
        return {"epoch": self._epoch, "draw": self._draw, "made": self._count, "over": self._over, "sources": places}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go to the position that `get_state` returned. Sources are opened when their first row is drawn."""
        names = self._mixture.names
        _check_state(state, names)
        self._epoch, self._draw, self._count = state["epoch"], state["draw"], state["made"]
        self._streams = [
            Stream(name, source, state["sources"][name], self._mixture.warn)
            for name, source in zip(names, self._mixture.sources, strict=True)
        ]
        self._over = state.get("over", False)  # older states do not have it
        self._numbers = -1, np.zeros(0, np.int64)
        self._first: dict[str, Any] = {}  # rows, by source

    def _restart(self) -> None:
        """Begin all sources again."""
        self._epoch, self._draw, self._over, self._numbers = self._mixture.epoch, 0, False, (-1, np.zeros(0, np.int64))
        for stream in self._streams:
            stream.restart(self._epoch)

    def __next__(self) -> Any:
        mixture, items = self._mixture, list[Any]()
        while len(items) < (mixture.batch_size or 1) and (item := self._row()) is not None:
            items.append(item[0])
        if not items or (mixture.drop_last and len(items) < (mixture.batch_size or 1)):
            mixture.after, mixture.streams = self.get_state(), self._streams
            raise StopIteration
        return items[0] if mixture.batch_size is None else mixture.batcher(items)

    def _row(self) -> tuple[Any] | None:
        """Return the next row, in a tuple; None at the end of the epoch."""
        while not self._over and self._count != self._mixture.size:
            number = self._source_of(self._draw)
            stream = self._streams[number]
            item = None if stream.ended else stream.read(repeats=self._mixture.exhausted == "repeat")
            if item is None:
                stream.ended = self._mixture.exhausted == "drop"
                shares = zip(self._streams, self._mixture.draws.probabilities, strict=True)
                self._over = not stream.ended or all(each.ended for each, share in shares if share)
                if self._over and not self._count:
                    # The previous epoch took the last rows without reading on. Sources without rows have raised.
                    self._restart()
                    continue
            if not self._over:
                self._draw += 1  # an epoch that has ended must also be at its end after resuming
            if item is not None:
                self._count += 1
                return (self._checked(number, item[0]),)
        return None

    def _source_of(self, draw: int) -> int:
        block = draw // BLOCK
        if self._numbers[0] != block:
            self._numbers = block, self._mixture.draws.of_epoch(self._epoch).sources(block + 1)
        return int(self._numbers[1][draw % BLOCK])

    def _checked(self, number: int, item: Any) -> Any:
        """Return an item with the number of its source. The first items of all sources are compared."""
        name, field = self._mixture.names[number], self._mixture.source_field
        if name not in self._first:
            first = dict([next(iter(self._first.items()), (name, item)), (name, item)])
            problems = list(check_fields(dict.fromkeys(first), first))
            if field is not None:
                problems += check_source_field(field, {name: item})
            if problems:
                raise one_error(problems, "this cannot be mixed", code="data-mixture-unusable")
            self._first[name] = item
        return item if field is None else {**item, field: np.int32(number)}


def _check_state(state: Any, names: Sequence[str]) -> None:
    """Raise `LearnerError` if a state is not one of a mixture of streams with these names."""
    if not isinstance(state, dict) or not {"epoch", "draw", "made", "sources"} <= set(state):
        raise LearnerError("the state does not belong to a mixture of streams", code="data-mixture-state-malformed")
    if set(state["sources"]) != set(names):
        raise LearnerError(
            f"the mixture has the sources {', '.join(names)}, but its saved state has {', '.join(state['sources'])}",
            code="data-mixture-state-differs",
        )


class Stream:
    """One source of a mixture, and the position in it.

    Attributes:
      ended: True if the source has no rows left, and is not drawn any more.
    """

    def __init__(
        self, name: str, source: "StreamSource", place: Mapping[str, Any], warn: Callable[[str], None]
    ) -> None:
        self._name, self._source, self._warn = name, source, warn
        self._walk, self._rows, self._total = place["walk"], place["rows"], place["total"]
        self._state, self.ended = place["state"], place["ended"]
        self._in_place = False  # True if the source itself has the state already
        self._items: Any = None

    def place(self) -> dict[str, Any]:
        """Return the position after the row read last, as JSON."""
        if self._items is not None:
            self._state = None if self._items.where is None else self._items.where()
        place = {"walk": self._walk, "rows": self._rows, "total": self._total, "ended": self.ended}
        return {**place, "state": self._state}

    def restart(self, walk: int) -> None:
        """Go to the beginning of a pass. The source keeps its own state, such as that of a random generator."""
        self._state, self._in_place = self.place()["state"], self._in_place or self._items is not None
        self._walk, self._rows, self._total, self.ended, self._items = walk, 0, 0, False, None

    def read(self, repeats: bool) -> tuple[Any] | None:
        """Return the next row, in a tuple; None at the end. A source that `repeats` restarts instead."""
        try:
            if self._items is None:
                self._open(self._rows, None if self._in_place else self._state)
            row = next(self._items, self)
            if row is self and repeats and self._rows:
                self._walk, self._rows = self._walk + 1, 0
                self._open(0, None)
                row = next(self._items, self)
        except Exception as error:
            error.add_note(f"while reading row {self._rows} of the source {self._name!r} of a mixture")
            raise
        if row is self:
            if not self._rows:
                raise LearnerError(
                    f"the stream {self._name!r} has no rows",
                    code="data-mixture-source-empty",
                    source=self._name,
                )
            return None
        self._rows, self._total = self._rows + 1, self._total + 1
        # A stream may reuse its arrays, and several rows are read before they become a batch.
        return (_with_own_arrays(row),)

    def _open(self, rows: int, state: Any) -> None:
        self._items = self._source.open(self._walk, rows, state, self._warn)


def _with_own_arrays(row: Any) -> Any:
    if type(row) is np.ndarray:
        return row.copy()
    if type(row) is dict:
        return {name: _with_own_arrays(x) for name, x in row.items()}
    return type(row)(map(_with_own_arrays, row)) if type(row) in (list, tuple) else row


class StreamSource(IterableSource):
    """A source of a mixture. Its batches are single rows, and its epochs are the passes through it."""

    _keeps = True
    _unit = "items"

    @property
    def data(self) -> Any:
        """Return the data that the user passed."""
        return self._data

    @property
    def name(self) -> str:
        """Return the name of the stream's class or function."""
        return repr(self._data) if isinstance(self._data, Walks) else name_of(self._data)

    def open(
        self, epoch: int, start: int = 0, state: Any = None, warn: Callable[[str], None] = lambda text: None
    ) -> Batches:
        """See `Source`."""
        set_epoch(self._data, epoch)
        return super().open(epoch, start, state, warn)


class Walks:
    """A dataset as a stream, with a new shuffled order in each pass.

    >>> from learner.data import view
    >>> walks = Walks(view([1, 2, 3]), seed=0, number=0)
    >>> [item for item in walks], walks.set_epoch(1), [item for item in walks]
    ([2, 1, 3], None, [3, 2, 1])
    """

    def __init__(self, dataset: Dataset, seed: int, number: int) -> None:
        self._dataset, self._seed, self._number, self._walk = dataset, seed, number, 1

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next pass, from 0."""
        self._walk = epoch + 1

    def __iter__(self) -> "WalkIterator":
        key = np.random.SeedSequence(self._seed, spawn_key=(self._number, self._walk))
        order = np.random.Generator(np.random.Philox(key)).permutation(len(self._dataset))
        return WalkIterator(self._dataset, order, self._walk)

    def __repr__(self) -> str:
        return chain_text(self._dataset)


class WalkIterator(Iterator[Any]):
    """The items of a dataset in a given order, with a position."""

    def __init__(self, dataset: Dataset, order: np.ndarray, walk: int) -> None:
        self._dataset, self._order, self._walk, self._next = dataset, order, walk, 0

    def __next__(self) -> Any:
        if self._next == len(self._order):
            raise StopIteration
        self._next += 1
        return read_item(self._dataset, int(self._order[self._next - 1]), self._walk)

    def get_state(self) -> dict[str, int]:
        """Return the position."""
        return {"next": self._next}

    def set_state(self, state: dict[str, int]) -> None:
        """Go to a position."""
        self._next = state["next"]


class StreamMixtureSource(IterableSource):
    """A mixture of streams in batches, whose state also counts the rows of each source."""

    _keeps = True

    def fingerprint(self) -> dict[str, Any]:
        """See `Source`."""
        facts = super().fingerprint()
        return facts if self.differs else {**facts, "dataset": repr(self._data)[:LONGEST]}

    def _open(self, epoch: int, start: int, state: Any, warn: Callable[[str], None]) -> Batches:
        self._data.warn = warn  # of the run, for sources opened when a row is drawn
        return super()._open(epoch, start, state, warn)

    def describe_state(self, state: Any) -> list[str]:
        """See `Source`."""
        return [] if state is None else [self._data.describe_state(from_json(state))]


@adapter
def refuse_loader(data: Any) -> Any:
    """Raise `LearnerError` for a mixture of streams, which no loader can read; return other data unchanged."""
    if isinstance(data, StreamMixture):
        raise LearnerError(
            "a stream, or a mixture of streams, can only be read in order, and needs no loader: pass its batch(32), or "
            "the stream itself with with_batch_size(32)",
            code="data-mixture-of-streams-loader",
        )
    return data
