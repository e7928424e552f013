"""A stream of token sequences as rows of one length."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from learner.data.iterable_source import CompositeStream
from learner.data.mixture import stream
from learner.data.packing import Pack, common_lengths
from learner.data.padding import arrays, check_dicts, check_fields, names_of
from learner.data.stream_mixture import StreamMixture
from learner.errors import LearnerError
from learner.util.number_checks import check_int


class PackedStream(CompositeStream):
    """Token sequences of any length, packed into rows of one length: a stream of rows, for `stream`.

    A sequence that does not fit into a row begins the next row, also across batches. With `split`, sequences are cut at
    the end of a row, and only the last row of an epoch has padding. Sequences without tokens are dropped. It resumes
    exactly, to the bit: the position is that of the sequences, with the rest of the last one.

    Args:
      items: the sequences: an iterable of dicts that can be read again, a function that returns one, or a mixture of
        streams.
      length: the length of a row, in tokens.
      split: cut sequences at the end of a row. Each piece is a separate segment, with positions from 0.
      value: the padding value, or a mapping with one for each field.
      fields: the names of the fields to pack, equally long within a sequence; default: all. Other fields are dropped.

    Raises:
      LearnerError: the length is below 1, or `stream` rejects the items. When read: a sequence is longer than a row,
        without `split`; an item is not a dict; fields are missing or differ in length.

    >>> def texts():
    ...     yield from ({"text": np.arange(n)} for n in (3, 4, 2))
    >>> [row["text"].tolist() for row in PackedStream(texts, length=5)]
    [[0, 1, 2, 0, 0], [0, 1, 2, 3, 0], [0, 1, 0, 0, 0]]
    >>> [row["text"].tolist() for row in PackedStream(texts, length=5, split=True)]
    [[0, 1, 2, 0, 1], [2, 3, 0, 1, 0]]
    >>> [batch["segments"].tolist() for batch in stream(PackedStream(texts, length=5, split=True)).batch(2)]
    [[[1, 1, 1, 2, 2], [1, 1, 2, 2, 0]]]
    """

    def __init__(
        self,
        items: Any,
        length: int,
        split: bool = False,
        value: float | Mapping[str, float] = 0,
        fields: Sequence[str] | None = None,
    ) -> None:
        self.length, self.split = check_int("the length of PackedStream", length, least=1), split
        try:
            self.items = items if isinstance(items, StreamMixture) else stream(items)
        except LearnerError as error:
            if error.code != "data-stream-indexed":
                raise
            raise LearnerError(
                f"PackedStream got a {type(items).__name__}, which has a length and an index: pass a function that "
                "returns an iterator, PackedStream(lambda: iter(items), ...), or pack it in shuffled batches with Pack",
                code="data-packed-stream-items",
            ) from None
        self.fields = None if fields is None else names_of("PackedStream", fields)
        self.pack = Pack(length, rows=1, value=value, fields=fields)
        if not self.items.starts_anew or self.items.batch_size is not None:
            raise LearnerError(
                "PackedStream got a mixture with a size or in batches: leave out size= and batch(), as it reads single "
                "sequences to the end of an epoch, and limit the run with num_steps",
                code="data-packed-stream-items",
            )

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the epoch that the next iterator reads, from 0."""
        self.items.set_epoch(epoch)

    @property
    def parts(self) -> list[Any]:
        """Return the mixture of the sequences."""
        return [self.items]

    def end_epoch(self, state: Any) -> None:
        """See `CompositeStream`."""
        self.items.end_epoch(state.get("items") if isinstance(state, dict) else state)

    def __iter__(self) -> "PackedRows":
        return PackedRows(self)

    def __repr__(self) -> str:
        split = ", split=True" if self.split else ""
        return f"PackedStream({self.items!r}, length={self.length}{split})"


class PackedRows(Iterator[dict[str, np.ndarray]]):
    """The rows of an epoch of a `PackedStream`, with a position."""

    def __init__(self, packed: PackedStream) -> None:
        self._packed, self._items = packed, iter(packed.items)
        self._rest: dict[str, np.ndarray] | None = None  # of the sequence read last; the next row begins with it

    def get_state(self) -> dict[str, Any]:
        """Return the position after the row returned last."""
        return {"items": self._items.get_state(), "rest": self._rest}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go to a position."""
        self._items.set_state(state["items"])
        self._rest = state["rest"]

    def __next__(self) -> dict[str, np.ndarray]:
        packed, pieces, used = self._packed, list[dict[str, np.ndarray]](), 0
        while used < packed.length and (item := self._sequence()) is not None:
            self._rest, size, room = None, len(next(iter(item.values()))), packed.length - used
            if size > room and packed.split:
                self._rest = {name: x[room:] for name, x in item.items()}
                item, size = {name: x[:room] for name, x in item.items()}, room
            elif size > packed.length:
                raise LearnerError(
                    f"a sequence has {size} tokens, and a row of PackedStream {packed.length}: cut it before, or pass "
                    "split=True",
                    code="data-packed-stream-length",
                    size=size,
                )
            elif size > room:
                self._rest = item
                break
            pieces.append(item)
            used += size
        if not pieces:
            raise StopIteration
        return {name: x[0] for name, x in packed.pack(pieces).items()}

    def _sequence(self) -> dict[str, np.ndarray] | None:
        """Return the fields of the next sequence that has tokens; None at the end of the epoch."""
        if self._rest is not None:
            return self._rest
        for item in self._items:
            check_dicts("PackedStream", [item])
            fields = self._packed.fields
            names = list(item) if fields is None else check_fields("PackedStream", fields, item)
            columns = {name: arrays("PackedStream", name, [item[name]]) for name in names}
            # Empty sequences are dropped here, as the rest of a cut sequence can be empty, too.
            if common_lengths(columns)[0]:
                return {name: column[0] for name, column in columns.items()}
        return None
