"""Data with a length and an index: the base class, and views, which compute their items when they are read.

`Dataset` has a method for each view and views are datasets, so they share a module. A view stores the datasets it
reads, row numbers and functions, and copies no items.
"""

import abc
import bisect
import collections
import copy
import functools
import itertools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from learner.data import indices
from learner.data.batcher import ItemError, stack
from learner.data.indices import item_number
from learner.data.label_names import label_conflicts, label_names
from learner.data.streams import Streams
from learner.errors import LearnerError, near, one_error
from learner.util.number_checks import check_int
from learner.util.text import name_of

Slice = slice  # datasets have a method named `slice`
Adapter = Callable[[Any], Any]
_adapters: list[Adapter] = []
LARGEST_COPY = 2**20  # bytes of an array that a function of `map` may change in place


class Dataset(abc.ABC):
    """Items by number: `__len__` and `__getitem__(index)` for 0 ≤ index < len.

    A base class for custom datasets. Loaders accept any object with the two methods, and `learner.data.view` wraps it
    in a dataset. An item is a dict (or another pytree) of arrays and numbers, unless a batcher converts it.
    `__getitem__` is called from other threads, and from other processes if the loader has workers, so it should depend
    only on the index.

    The methods below return views, and can be chained. Views read items only when needed, and are sent to worker
    processes like the dataset (functions without an import path by value). Views of an `ArrayDataset` that select
    rows stay arrays in memory: a loader gathers each batch in one operation.

    >>> class Squares(Dataset):
    ...     def __len__(self):
    ...         return 5
    ...     def __getitem__(self, index):
    ...         return {"x": np.float32(index), "y": np.float32(index**2)}
    >>> len(Squares()), Squares()[3]["y"].item()
    (5, 9.0)
    >>> [item["x"].item() for item in Squares().slice(1, 4)]
    [1.0, 2.0, 3.0]
    >>> view(range(100)).shuffle(seed=1).slice(0, 10).map(float)
    range(100 items).shuffle(seed=1).slice(0, 10, 1).map(float): 10 items
    """

    # Derived classes have private attributes, too: `_inner`, `_window`. Those of this class have other names.
    _viewed: tuple[Any, ...] = ()  # the datasets that a view reads
    _redraws = False  # the same numbers are other rows in each epoch
    _makes_items = False  # a user's function computes the items from those that the view reads

    @abc.abstractmethod
    def __len__(self) -> int:
        """Return the number of items."""

    @abc.abstractmethod
    def __getitem__(self, index: int) -> Any:
        """Return the item with that number."""

    def item_at(self, index: int, epoch: int) -> Any:
        """Return the item in an epoch (from 1), as loaders read it. Override it if items differ between epochs."""
        return self[index]

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} items)"

    def map(self, fn: Callable[[Any], Any]) -> "Dataset":
        """Replace each item by `fn(item)`, which may change the item in place, but for arrays of more than 1 MiB.

        >>> view([1, 2]).map(str)[1]
        '2'
        """
        return Mapped(self, fn)

    def augment(self, fn: Callable[[Any, np.random.Generator], Any], seed: int = 0) -> "Dataset":
        """Replace each item by `fn(item, rng)`, where `rng` is a NumPy generator seeded with (seed, epoch, index).

        Loaders pass the epoch, so the random numbers are new in each epoch. They do not depend on the number of
        workers, and are the same when a run resumes in the middle of an epoch. `index` is the item's number in the
        dataset that `augment` is called on: sample first if repeated rows should get different numbers. Outside
        loaders, and in validation, the epoch is 1; `item_at(index, epoch)` returns the item of any epoch. `rng` is
        valid only during the call.

        >>> def jitter(item, rng):
        ...     return item + rng.integers(10)
        >>> data = view([0, 100]).augment(jitter, seed=3)
        >>> [[int(data.item_at(index, epoch)) for index in (0, 1)] for epoch in (1, 2)]
        [[0, 106], [1, 109]]
        """
        return Augmented(self, fn, check_int("the seed of augment", seed, least=0))

    def filter(self, fn: Callable[[Any], Any]) -> "Dataset":
        """Keep the items for which `fn(item)` is true. The first use of the length reads all items once, as in epoch 1.

        Raises:
          LearnerError: no item is left, once the length is needed.

        >>> list(view([3, 4, 5]).filter(lambda item: item > 3))
        [4, 5]
        """
        _refuse_redrawn(self, "filter")
        return Filtered(self, fn)

    def select(self, rows: Sequence[int] | np.ndarray) -> "Dataset":
        """Select items by number, in the given order, or by a mask.

        Args:
          rows: integers, negative ones counted from the end, repeats allowed; or a mask: bool `[len]`.

        Raises:
          LearnerError: no rows are selected, or rows do not exist.

        >>> list(view(["a", "b", "c"]).select([2, 0, -1]))
        ['c', 'a', 'c']
        """
        chosen = indices.select_indices(rows, len(self))
        return self._view_rows(chosen, f".select({len(chosen)} of {len(self)})")

    def slice(self, start: int | None = None, stop: int | None = None, step: int = 1) -> "Dataset":
        """Select the items from `start` on, before `stop`, each `step`-th; negative numbers count from the end.

        Raises:
          LearnerError: no item is left, or `step` is below 1.

        >>> list(view(range(10)).slice(-3)), list(view(range(10)).slice(stop=7, step=3))
        ([7, 8, 9], [0, 3, 6])
        """
        rows = indices.slice_indices(start, stop, step, len(self))
        return self._view_slice(rows, f".slice({rows.start}, {rows.stop}, {rows.step})")

    def shuffle(self, seed: int = 0) -> "Dataset":
        """Put all items into a random order, the same in every epoch. (A loader shuffles anew in each epoch.)

        >>> list(view(range(5)).shuffle(seed=1))
        [0, 3, 4, 1, 2]
        """
        return self._view_rows(indices.shuffle_indices(len(self), seed), f".shuffle(seed={seed})")

    def split(self, fractions: Sequence[float], seed: int | None = 0) -> "tuple[Dataset, ...]":
        """Split the items into parts, such as for training and validation. Every item is in exactly one part.

        Args:
          fractions: the fraction of items in each part; they add up to 1.
          seed: the seed of the random distribution; items keep their order within a part. `None` splits into parts of
            consecutive items.

        Raises:
          LearnerError: the fractions do not add up to 1, or leave a part without items.

        >>> train, valid = view(range(10)).split([0.7, 0.3])
        >>> list(train), list(valid)
        ([0, 1, 3, 4, 6, 7, 8], [2, 5, 9])
        """
        _refuse_redrawn(self, "split")
        parts = indices.split_indices(len(self), fractions, seed)
        call = f".split({[float(fraction) for fraction in fractions]}, seed={seed})"
        return tuple(self._view_rows(rows, f"{call}[{number}]") for number, rows in enumerate(parts))

    def part(self, which: int, fractions: Sequence[float], seed: int | None = 0) -> "Dataset":
        """Return part number `which` (from 0) of `split`, for configs.

        >>> list(view(range(10)).part(1, [0.7, 0.3]))
        [2, 5, 9]
        """
        parts = self.split(fractions, seed)
        return parts[_check_below("part", which, len(parts))]

    def k_fold(self, k: int, seed: int | None = 0) -> "list[tuple[Dataset, Dataset]]":
        """Return `k` pairs (train, valid). Every item is in one `valid`, and in the `train` of all other pairs.

        Raises:
          LearnerError: `k` is below 2, or above the number of items.

        >>> for train, valid in view(range(5)).k_fold(2, seed=None):
        ...     print(list(train), list(valid))
        [3, 4] [0, 1, 2]
        [0, 1, 2] [3, 4]
        """
        _refuse_redrawn(self, "k_fold")
        folds = indices.fold_indices(len(self), k, seed)
        call = f".k_fold({k}, seed={seed})"
        return [
            (self._view_rows(train, f"{call}[{i}].train"), self._view_rows(valid, f"{call}[{i}].valid"))
            for i, (train, valid) in enumerate(folds)
        ]

    def fold(self, which: int, k: int, part: Literal["train", "valid"], seed: int | None = 0) -> "Dataset":
        """Return one side of pair number `which` (from 0) of `k_fold`, for configs.

        >>> list(view(range(5)).fold(0, k=2, part="valid", seed=None))
        [0, 1, 2]
        """
        if part not in ("train", "valid"):
            raise LearnerError(
                f"the part of fold is {part!r}: {near(str(part), ['train', 'valid'])}", code="data-fold-part-unknown"
            )
        pairs = self.k_fold(k, seed)
        return pairs[_check_below("fold", which, len(pairs))][part == "valid"]

    def sample(
        self,
        size: int | None = None,
        replacement: bool = False,
        weights: Sequence[float] | np.ndarray | None = None,
        seed: int = 0,
    ) -> "Dataset":
        """Draw items at random, once: they are the same in every epoch.

        Args:
          size: the number of items to draw; default: the length of the dataset.
          replacement: draw with replacement, so that items may repeat.
          weights: `[len]`, relative probabilities of the items; they need not add up to 1. Default: uniform.
          seed: the seed of the draw.

        Raises:
          LearnerError: `size` exceeds the items available without replacement, or the weights do not fit.

        >>> list(view(["a", "b", "c"]).sample(5, replacement=True, weights=[1, 0, 3]))
        ['a', 'c', 'c', 'a', 'c']
        """
        rows = indices.sample_indices(len(self), size, replacement, weights, seed)
        return self._view_rows(rows, f".sample({len(rows)} of {len(self)}, seed={seed})")

    def concat(self, *others: Any) -> "Dataset":
        """Append the items of other datasets.

        Raises:
          LearnerError: an argument is not a dataset, or differs in shapes, dtypes or the numbers of label texts.

        >>> list(view([1, 2]).concat([3], range(2)))
        [1, 2, 3, 0, 1]
        """
        if not others:
            return self._view_rows(np.arange(len(self)), "")
        datasets = [self, *map(view, others)]
        if problems := label_conflicts({f"dataset {number}": each for number, each in enumerate(datasets)}):
            raise one_error(problems, "these cannot be joined", code="data-labels-conflict")
        return self._view_concat(datasets[1:])

    def windows(self, size: int, stride: int | None = None) -> "Dataset":
        """Stack `size` consecutive items, with a window every `stride` items. An incomplete window is dropped.

        Args:
          size: items per window: arrays `[...]` become `[size, ...]`.
          stride: items from the start of a window to the next; default `size`, so that windows do not overlap.

        Raises:
          LearnerError: the window is larger than the data, or a size is below 1.

        >>> [window.tolist() for window in view(range(7)).windows(3, stride=2)]
        [[0, 1, 2], [2, 3, 4], [4, 5, 6]]
        """
        return self._view_windows(*indices.window_starts(len(self), size, stride))

    # Arrays override these four methods so that their views stay arrays. `call` is the text of the call, for `repr`.

    def _view_rows(self, rows: np.ndarray, call: str) -> "Dataset":
        return Selected(self, rows, call)

    def _view_slice(self, rows: Slice, call: str) -> "Dataset":
        return self._view_rows(np.arange(rows.start, rows.stop, rows.step), call)

    def _view_concat(self, others: "list[Dataset]") -> "Dataset":
        return Concatenated([self, *others])

    def _view_windows(self, size: int, stride: int, count: int) -> "Dataset":
        return Windowed(self, size, stride, count)

    def _view_text(self) -> str:
        """Return the text with which the `repr` of a view begins."""
        return repr(self)


class WindowSpans(NamedTuple):
    """Windows that overlap, as spans of one series.

    Attributes:
      series: identifies the series.
      starts: the number, in the series, of the first value of each window: int `[windows]`.
      size: values of a window.
    """

    series: Hashable
    starts: np.ndarray
    size: int

    def take(self, rows: np.ndarray) -> "WindowSpans":
        """Return the windows with these numbers."""
        return self._replace(starts=self.starts[rows])


class View(Dataset):
    """Items of other datasets.

    Attributes:
      random: True if items depend on the epoch because of this view.
      place: the view's path in a config, for messages.
    """

    random = False
    place = ""

    def __init__(self, inner: Sequence[Any], call: str = "") -> None:
        self._viewed = tuple(inner)
        self._call = call

    # Not of `Dataset`: derived classes have attributes, or fields of a dataclass, with this name.
    @property
    def labels(self) -> Mapping[str, Sequence[str]]:
        """Return, by field, the texts of labels in the order of their numbers, as all sources of the rows have them:
        none behind a function, which may change the numbers.
        """
        return label_names(self)

    def window_spans(self) -> list[WindowSpans]:
        """Return the spans of items that are windows, or functions of one; none if the windows do not overlap."""
        return []

    def __getitem__(self, index: int) -> Any:
        return self.item_at(index, 1)

    def item_at(self, index: int, epoch: int) -> Any:
        """See `Dataset`."""
        return self._item(item_number(index, len(self), type(self).__name__), epoch)

    def __len__(self) -> int:
        return len(self._viewed[0])

    def _item(self, number: int, epoch: int) -> Any:
        return read_item(self._viewed[0], number, epoch)

    def _read(self, which: int, number: int, epoch: int) -> Any:
        """Read an item of a dataset below this view. Errors get a note with its number there, which may differ."""
        try:
            return read_item(self._viewed[which], number, epoch)
        except Exception as error:
            error.add_note(f"while reading item {number} of {type(self._viewed[which]).__name__}")
            raise

    def _apply(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Call a user's function. Errors get a note with the name of this view."""
        try:
            return fn(*args)
        except Exception as error:
            error.add_note(f"while calling {self._call.removeprefix('.')}{self._location()}")
            raise

    def _location(self) -> str:
        return f" ({self.place})" if self.place else ""

    def _view_text(self) -> str:
        return f"{chain_text(self._viewed[0])}{self._call}"

    def __repr__(self) -> str:
        return f"{self._view_text()}: {len(self)} items"


def _copied(item: Any) -> Any:
    """Return an item that a user's function may change in place: a copy of a dict, list, tuple or array, with all such
    parts. Items may be rows of the data itself, which would then differ in each epoch. Large arrays, which items may
    share, and those in files are not copied, but refuse writes.
    """
    if isinstance(item, np.ndarray):
        if type(item) is np.ndarray and item.nbytes <= LARGEST_COPY:
            return item.copy()
        view = item.view()
        view.flags.writeable = False
        return view
    if isinstance(item, dict | collections.UserDict):  # not other mappings, which may write to files
        copied = copy.copy(item)
        copied.update((key, _copied(value)) for key, value in item.items())
        return copied
    if isinstance(item, tuple) and hasattr(item, "_fields"):
        return type(item)(*map(_copied, item))
    return type(item)(map(_copied, item)) if type(item) in (list, tuple) else item


class SequenceView(View):
    """The items of any object with a length and an index."""

    def __repr__(self) -> str:
        return self._view_text()


class Mapped(View):
    """A function of each item."""

    _makes_items = True

    def __init__(self, inner: Any, fn: Callable[[Any], Any]) -> None:
        super().__init__([inner], f".map({_function_name(fn, 'map')})")
        self._fn = fn

    def window_spans(self) -> list[WindowSpans]:
        """See `View`."""
        return _spans_of(self._viewed[0])

    def _item(self, number: int, epoch: int) -> Any:
        return self._apply(self._fn, _copied(read_item(self._viewed[0], number, epoch)))


class Augmented(View):
    """A function of each item and of a random generator seeded with (seed, epoch, number of the item)."""

    random = True
    _makes_items = True

    def __init__(self, inner: Any, fn: Callable[[Any, np.random.Generator], Any], seed: int) -> None:
        super().__init__([inner], f".augment({_function_name(fn, 'augment')}, seed={seed})")
        self._fn = fn
        self._streams = Streams(seed, place=_count_augmentations(inner))

    def window_spans(self) -> list[WindowSpans]:
        """See `View`."""
        return _spans_of(self._viewed[0])

    def _item(self, number: int, epoch: int) -> Any:
        item = read_item(self._viewed[0], number, epoch)
        with self._streams.at(epoch, number) as rng:
            return self._apply(self._fn, _copied(item), rng)


class Selected(View):
    """Items selected by number, in the given order."""

    def __init__(self, inner: Any, rows: np.ndarray, call: str) -> None:
        super().__init__([inner], call)
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def window_spans(self) -> list[WindowSpans]:
        """See `View`."""
        return [spans.take(self._rows) for spans in _spans_of(self._viewed[0])]

    def _item(self, number: int, epoch: int) -> Any:
        return self._read(0, int(self._rows[number]), epoch)


class Filtered(Selected):
    """The items for which a function is true. The first use of the length reads all items once."""

    def __init__(self, inner: Any, fn: Callable[[Any], Any]) -> None:
        View.__init__(self, [inner], f".filter({_function_name(fn, 'filter')})")
        self._fn = fn

    @functools.cached_property
    def _rows(self) -> np.ndarray:  # type: ignore[override]
        kept = [n for n in range(len(self._viewed[0])) if self._apply(self._fn, self._read(0, n, 1))]
        if not kept:
            raise LearnerError(
                f"{self._view_text()}{self._location()} keeps none of {len(self._viewed[0])} items",
                code="data-filter-keeps-none",
            )
        return np.array(kept, np.intp)

    def __getstate__(self) -> dict[str, Any]:
        _ = self._rows  # compute it before pickling, so that workers need not read all items again
        return self.__dict__

    def __repr__(self) -> str:
        return f"{self._view_text()}: {len(self)} items" if "_rows" in self.__dict__ else self._view_text()


class Concatenated(View):
    """The items of several datasets, one after another."""

    def __init__(self, inner: Sequence[Any]) -> None:
        super().__init__(inner, f".concat({', '.join(map(chain_text, inner[1:]))})")
        self._ends = list(itertools.accumulate(map(len, inner)))

    def __len__(self) -> int:
        return self._ends[-1]

    def _item(self, number: int, epoch: int) -> Any:
        which = bisect.bisect_right(self._ends, number)
        return self._read(which, number - (self._ends[which - 1] if which else 0), epoch)


class Windowed(View):
    """Consecutive items, stacked."""

    def __init__(self, inner: Any, size: int, stride: int, count: int) -> None:
        super().__init__([inner], f".windows({size}, {stride})")
        self._size, self._stride, self._count = size, stride, count

    def __len__(self) -> int:
        return self._count

    def window_spans(self) -> list[WindowSpans]:
        """See `View`."""
        starts = self._stride * np.arange(self._count)
        return [WindowSpans(id(self._viewed[0]), starts, self._size)] if self._stride < self._size else []

    def _item(self, number: int, epoch: int) -> Any:
        first = number * self._stride
        items = [self._read(0, first + offset, epoch) for offset in range(self._size)]
        try:
            return stack(items)
        except ItemError as error:
            raise error.in_dataset(range(first, first + self._size)) from None


def adapter(function: Adapter) -> Adapter:
    """Register a function that converts data of some kind into a dataset, and returns everything else unchanged.

    Modules that derive datasets from `Dataset` register their adapters, so that `as_dataset` need not import them.
    """
    # In front, because a module recognizes more specific kinds than the modules that it imports.
    _adapters.insert(0, function)
    return function


def as_dataset(data: Any) -> Any:
    """Return data of other libraries as a `Dataset`, a dict or an array as an `ArrayDataset`, and any other object with
    a length and an index unchanged.

    Raises:
      LearnerError: the data is of another kind, or empty.

    >>> as_dataset({"x": np.zeros((2, 3))})
    ArrayDataset(2 rows: x float64 [3])
    >>> from sklearn.datasets import load_digits
    >>> as_dataset(load_digits())
    ArrayDataset(1797 rows: data float64 [64], images float64 [8, 8], target int64 [])
    """
    for function in _adapters:
        data = function(data)
    if isinstance(data, tuple | str | bytes) or not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise LearnerError(
            f"a loader cannot read a {type(data).__name__}: give a dict of arrays, an ArrayDataset, a list of items "
            "or an object with __len__ and __getitem__ (iterables of batches need no loader: fit takes them as they "
            "are; learner.data.stream(items).batch(32) makes them from a generator function, or another iterable, of "
            "items)",
            code="data-dataset-type",
        )
    if len(data) == 0:
        raise LearnerError(
            f"the {type(data).__name__} is empty: a loader needs at least one row", code="data-dataset-empty"
        )
    return data


def view(data: Any) -> Dataset:
    """Return any object with a length and an index as a `Dataset` with views; a dict of arrays as an `ArrayDataset`.

    Raises:
      LearnerError: the data is of another kind, or empty.

    >>> view([3, 1, 2]).map(str)[0]
    '3'
    """
    dataset = as_dataset(data)
    return dataset if isinstance(dataset, Dataset) else SequenceView([dataset])


def read_item(data: Any, index: int, epoch: int) -> Any:
    """Return item `index` of a dataset, or of any object with an index, in an epoch (from 1)."""
    return data.item_at(index, epoch) if isinstance(data, Dataset) else data[index]


def _spans_of(data: Any) -> list[WindowSpans]:
    spans: Callable[[], list[WindowSpans]] = getattr(data, "window_spans", list)
    return spans()


def is_epoch_dependent(data: Any) -> bool:
    """Return True if items may differ between epochs."""
    if isinstance(data, View):
        return data.random or any(map(is_epoch_dependent, data._viewed))
    return isinstance(data, Dataset) and type(data).item_at is not Dataset.item_at


def chain_text(data: Any) -> str:
    """Return the text for the data below a view, the beginning of the view's `repr`."""
    return data._view_text() if isinstance(data, Dataset) else f"{type(data).__name__}({len(data)} items)"


def inner_of(data: Any) -> tuple[Any, ...]:
    """Return the datasets that a view reads, or an empty tuple for data that is not a view.

    >>> inner_of(view([1, 2]).map(str))
    (list(2 items),)
    >>> inner_of(view({"x": np.arange(3)}).shuffle())
    (ArrayDataset(3 rows: x int64 []),)
    """
    return data._viewed if isinstance(data, Dataset) else ()


def roots_of(data: Any) -> list[Any]:
    """Return the datasets below all views, each once.

    >>> roots_of(view([1, 2]).map(str).shuffle())
    [[1, 2]]
    """
    roots = [data] if not (inner := inner_of(data)) else [root for each in inner for root in roots_of(each)]
    return list({id(root): root for root in roots}.values())


def _is_redrawn(data: Any) -> bool:
    return isinstance(data, Dataset) and (data._redraws or any(map(_is_redrawn, data._viewed)))


def _refuse_redrawn(data: Dataset, method: str) -> None:
    """Raise `LearnerError` for a view that needs the same rows in all epochs."""
    if _is_redrawn(data):
        raise LearnerError(
            f"{method} of a mixture, which has other rows in each epoch: call {method} of its sources",
            code="data-mixture-view-unsupported",
            method=method,
        )


def _count_augmentations(data: Any) -> int:
    if not isinstance(data, View):
        return 0
    return isinstance(data, Augmented) + max(map(_count_augmentations, data._viewed))


def _function_name(fn: Any, method: str) -> str:
    if not callable(fn):
        raise LearnerError(f"{method} got a {type(fn).__name__}: give a function of an item", code="data-function-type")
    return name_of(fn)


def _check_below(name: str, number: Any, count: int) -> int:
    index = check_int(f"the number of the {name}", number, least=0)
    if index >= count:
        raise LearnerError(
            f"{name} {index} of {count}: they count from 0, give less than {count}",
            code="data-number-outside",
            number=index,
            count=count,
        )
    return index
