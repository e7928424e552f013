"""Views that make their items when they are asked for. They hold the data that they look at, numbers and functions."""

import bisect
import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from learner.data.batcher import ItemError, stack
from learner.data.dataset import ArrayConcat, ArrayRows, Dataset
from learner.data.indices import item_number
from learner.data.sources.foreign import as_dataset
from learner.data.streams import Streams
from learner.errors import LearnerError


def view(data: Any) -> Dataset:
    """Return whatever has a length and an index as a `Dataset` with views; a dict of arrays as an `ArrayDataset`.

    Raises:
      LearnerError: something else, or nothing in it.

    >>> view([3, 1, 2]).map(str)[0]
    '3'
    """
    found = as_dataset(data)
    return found if isinstance(found, Dataset) else SequenceView(found)


def read(data: Any, index: int, epoch: int) -> Any:
    """Return item `index` of a dataset, or of whatever has an index, in an epoch (from 1)."""
    return data.item_at(index, epoch) if isinstance(data, Dataset) else data[index]


def is_epoch_dependent(data: Any) -> bool:
    """Return True if items may differ between epochs."""
    if isinstance(data, View):
        return data.random or any(map(is_epoch_dependent, data.inner))
    return isinstance(data, Dataset) and type(data).item_at is not Dataset.item_at


class View(Dataset):
    """Items of other datasets.

    Attributes:
      inner: these.
      random: whether items depend on the epoch because of this view.
      place: where a config says it, for messages.
    """

    random = False
    place = ""

    def __init__(self, *inner: Any, call: str = "") -> None:
        self.inner = inner
        self._call = call

    def __getitem__(self, index: int) -> Any:
        return self.item_at(index, 1)

    def item_at(self, index: int, epoch: int) -> Any:
        """See `Dataset`."""
        return self._item(item_number(index, len(self), type(self).__name__), epoch)

    def __len__(self) -> int:
        return len(self.inner[0])

    def _item(self, number: int, epoch: int) -> Any:
        return read(self.inner[0], number, epoch)

    def _read(self, which: int, number: int, epoch: int) -> Any:
        """Read an item below this view; its errors get a note with its number there, which differs from the view's."""
        try:
            return read(self.inner[which], number, epoch)
        except Exception as error:
            error.add_note(f"while reading item {number} of {type(self.inner[which]).__name__}")
            raise

    def _called(self, fn: Callable[..., Any], *given: Any) -> Any:
        """Call a function of the user; its errors get a note with the name of this view."""
        try:
            return fn(*given)
        except Exception as error:
            error.add_note(f"while calling {self._call.removeprefix('.')}{self._said()}")
            raise

    def _said(self) -> str:
        return f" ({self.place})" if self.place else ""

    def _chain(self) -> str:
        return f"{chain(self.inner[0])}{self._call}"

    def __repr__(self) -> str:
        return f"{self._chain()}: {len(self)} items"


class SequenceView(View):
    """The items of anything that has a length and an index."""

    def __repr__(self) -> str:
        return self._chain()


class Mapped(View):
    """A function of each item."""

    def __init__(self, inner: Any, fn: Callable[[Any], Any]) -> None:
        super().__init__(inner, call=f".map({_name(fn, 'map')})")
        self._fn = fn

    def _item(self, number: int, epoch: int) -> Any:
        return self._called(self._fn, read(self.inner[0], number, epoch))


class Augmented(View):
    """A function of each item and of a random generator made from (seed, epoch, number of the item)."""

    random = True

    def __init__(self, inner: Any, fn: Callable[[Any, np.random.Generator], Any], seed: int) -> None:
        super().__init__(inner, call=f".augment({_name(fn, 'augment')}, seed={seed})")
        self._fn = fn
        self._streams = Streams(seed, place=_augmentations(inner))

    def _item(self, number: int, epoch: int) -> Any:
        item = read(self.inner[0], number, epoch)
        with self._streams.at(epoch, number) as rng:
            return self._called(self._fn, item, rng)


class Selected(View):
    """Items by their numbers, in that order."""

    def __init__(self, inner: Any, rows: np.ndarray, call: str) -> None:
        super().__init__(inner, call=call)
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def _item(self, number: int, epoch: int) -> Any:
        return self._read(0, int(self._rows[number]), epoch)


class Filtered(View):
    """The items of which a function says true. All are read once when it is first asked how many there are."""

    def __init__(self, inner: Any, fn: Callable[[Any], Any]) -> None:
        super().__init__(inner, call=f".filter({_name(fn, 'filter')})")
        self._fn = fn

    @functools.cached_property
    def _rows(self) -> np.ndarray:
        kept = [n for n in range(len(self.inner[0])) if self._called(self._fn, self._read(0, n, 1))]
        if not kept:
            raise LearnerError(
                f"{self._chain()}{self._said()} keeps none of {len(self.inner[0])} items", code="data-filter-keeps-none"
            )
        return np.array(kept, np.intp)

    def __len__(self) -> int:
        return len(self._rows)

    def _item(self, number: int, epoch: int) -> Any:
        return self._read(0, int(self._rows[number]), epoch)

    def __getstate__(self) -> dict[str, Any]:
        _ = self._rows  # workers need not look for them again
        return self.__dict__

    def __repr__(self) -> str:
        return f"{self._chain()}: {len(self)} items" if "_rows" in self.__dict__ else self._chain()


class Concatenated(View):
    """The items of several datasets, one after another."""

    def __init__(self, *inner: Any) -> None:
        super().__init__(*inner, call=f".concat({', '.join(map(chain, inner[1:]))})")
        self._ends = list(itertools.accumulate(map(len, inner)))

    def __len__(self) -> int:
        return self._ends[-1]

    def _item(self, number: int, epoch: int) -> Any:
        which = bisect.bisect_right(self._ends, number)
        return self._read(which, number - (self._ends[which - 1] if which else 0), epoch)


class Windowed(View):
    """Several items in a row, stacked."""

    def __init__(self, inner: Any, size: int, stride: int, count: int) -> None:
        super().__init__(inner, call=f".windows({size}, {stride})")
        self._size, self._stride, self._count = size, stride, count

    def __len__(self) -> int:
        return self._count

    def _item(self, number: int, epoch: int) -> Any:
        first = number * self._stride
        try:
            return stack([self._read(0, first + offset, epoch) for offset in range(self._size)])
        except ItemError as error:
            raise error.in_dataset(range(first, first + self._size)) from None


def chain(data: Any) -> str:
    """How a view's `repr` calls the data below it."""
    return data._chain() if isinstance(data, Dataset) else f"{type(data).__name__}({len(data)} items)"


def inner_of(data: Any) -> tuple[Any, ...]:
    """The datasets that a view looks at, also one of arrays in memory; nothing of what is no view.

    >>> inner_of(view([1, 2]).map(str))
    (list(2 items),)
    >>> inner_of(view({"x": np.arange(3)}).shuffle())
    (ArrayDataset(3 rows: x int64 []),)
    """
    return data.inner if isinstance(data, View | ArrayRows | ArrayConcat) else ()


def _augmentations(data: Any) -> int:
    if not isinstance(data, View):
        return 0
    return isinstance(data, Augmented) + max(map(_augmentations, data.inner))


def _name(fn: Any, what: str) -> str:
    if not callable(fn):
        raise LearnerError(f"{what} got a {type(fn).__name__}: give a function of an item", code="data-function-type")
    of = fn.func if isinstance(fn, functools.partial) else fn
    return getattr(of, "__name__", type(of).__name__)
