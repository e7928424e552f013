"""Whatever a user passes as data, read in one way.

A `Source` yields the batches of an epoch from any position. What is passed may be one of our loaders, any iterable of
batches, a Grain dataset, a function that returns an iterator, a one-shot iterator, or a dataset with `with_batch_size`.
"""

import abc
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np

from learner.data.dataset import Dataset
from learner.data.loader import DataLoader, DataLoaderBuilder
from learner.errors import LearnerError

PyTree = Any
# Data up to this size lives on the device; what is shuffled once more, in the order of the epoch.
RESIDENT_BYTES = 256 * 2**20
ENDLESS = 2**40  # batches


class Source(abc.ABC):
    """The batches of one split.

    Attributes:
      split: its name, for messages.
      batches: batches per epoch, or `None` where that is not known.
      repeats: whether it can be read more than once.
    """

    repeats = True

    def __init__(self, split: str, batches: int | None):
        self.split = split
        self.batches = batches
        self._kept: tuple[int, Iterator[Any]] | None = None

    @abc.abstractmethod
    def _open(self, epoch: int, start: int) -> Iterator[Any]:
        """The batches of an epoch from batch number `start` on."""

    def refuse_position(self, epoch: int, start: int) -> None:  # noqa: B027 (most can be read from anywhere)
        """Raises `LearnerError` where the batches from there on cannot be had again."""

    @property
    def rows(self) -> tuple[PyTree, Callable[[int], np.ndarray], int] | None:
        """Arrays that may live on the device, the row order of an epoch, and the batch size; `None` for streams."""
        return None

    def close(self) -> None:
        """Gives back what the data holds: worker processes."""
        return

    def open(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """The batches of an epoch from batch number `start` on. What `peek` took is not lost."""
        kept, self._kept = self._kept, None
        if kept is not None and kept[0] == epoch and start == 0:
            return kept[1]
        return self._open(epoch, start)

    def peek(self, epoch: int) -> PyTree:
        """The first batch of an epoch. It stays part of the epoch."""
        batches = iter(self._open(epoch, 0))
        try:
            first = next(batches)
        except StopIteration:
            raise LearnerError(f"the {self.split} data has no batches: the loader is empty") from None
        self._kept = epoch, itertools.chain([first], batches)
        return first


class _Loader(Source):
    """Our own loaders: any epoch from any position at no cost."""

    def __init__(self, split: str, loader: DataLoader):
        super().__init__(split, len(loader))
        self._loader = loader

    def _open(self, epoch: int, start: int) -> Iterator[Any]:
        return iter(self._loader.epoch(epoch, start))

    def close(self) -> None:
        """See `Source`."""
        self._loader.close()

    @property
    def rows(self) -> tuple[PyTree, Callable[[int], np.ndarray], int] | None:
        """See `Source`."""
        arrays = self._loader.arrays
        if arrays is None or sum(np.asarray(x).nbytes for x in jax.tree.leaves(arrays)) > RESIDENT_BYTES:
            return None
        return arrays, self._loader.order, self._loader.batch_size


class _Iterable(Source):
    """Anything that gives a new iterator each time; positions are reached by skipping."""

    def __init__(self, split: str, batches: int | None, make: Callable[[], Iterator[Any]]):
        super().__init__(split, batches)
        self._make = make

    def _open(self, epoch: int, start: int) -> Iterator[Any]:
        return itertools.islice(self._make(), start, None)


class _Once(Source):
    """A one-shot iterator: it has one epoch, and cannot be read again from its start."""

    def __init__(self, split: str, iterator: Iterator[Any]):
        super().__init__(split, None)
        self._iterator = iterator
        self._used = False

    repeats = False

    def refuse_position(self, epoch: int, start: int) -> None:
        """See `Source`."""
        if (epoch, start) != (1, 0):
            raise LearnerError(
                f"the {self.split} data is an iterator that cannot be repeated, so it cannot be put back to batch "
                f"{start} of epoch {epoch}: pass a loader, or a function that returns a new iterator"
            )

    def _open(self, epoch: int, start: int) -> Iterator[Any]:
        if start:
            self.refuse_position(epoch, start)
        if self._used:
            again = f"epoch {epoch}" if self.split == "train" else "another validation"
            raise LearnerError(
                f"the {self.split} data is exhausted: it is an iterator (or generator) that can be read once, and it "
                f"is needed again for {again}. Pass a loader, a list, or the generator function itself rather than its "
                "result"
            )
        self._used = True
        return self._iterator


def source_of(data: Any, split: str, *, batch_size: int | None = None, shuffle: int | None = None) -> Source:
    """Reads what a user passed.

    Args:
      data: see the module.
      split: its name.
      batch_size: for datasets that are passed where a loader is expected.
      shuffle: the seed for such a dataset's order, or `None` to keep its order.

    >>> source = source_of([np.zeros((4, 2))] * 3, "train")
    >>> source.batches, source.peek(1).shape, sum(1 for _ in source.open(1))
    (3, (4, 2), 3)
    """
    if isinstance(data, DataLoaderBuilder):
        raise LearnerError(f"the {split} data is a DataLoaderBuilder; call .build(dataset) on it")
    if isinstance(data, Dataset) or (
        hasattr(data, "__getitem__") and hasattr(data, "__len__") and not hasattr(data, "__iter__")
    ):
        if batch_size is None:
            raise LearnerError(
                f"the {split} data is a dataset ({type(data).__name__}), which has items but no batches; pass "
                "DataLoaderBuilder().batch_size(n).build(dataset), or set with_batch_size(n)"
            )
        builder = DataLoaderBuilder().batch_size(batch_size)
        data = (builder if shuffle is None else builder.shuffle(shuffle)).build(data)
    if isinstance(data, DataLoader):
        return _Loader(split, data)
    if isinstance(data, Iterator):
        return _Once(split, data)
    if isinstance(data, dict | str | bytes | np.ndarray | jax.Array) or not (
        isinstance(data, Iterable) or callable(data)
    ):
        raise LearnerError(
            f"the {split} data is {_described(data)}; it needs a loader: an iterable of batches, such as "
            "DataLoaderBuilder().batch_size(32).build(ArrayDataset({...}))"
        )
    if isinstance(data, Iterable):
        return _Iterable(split, _length(data), lambda: iter(data))
    return _Iterable(split, None, lambda: _called(data, split))


def _length(data: Any) -> int | None:
    """Batches per epoch, or `None`: PyTorch's loaders may have a `__len__` that raises, endless Grain datasets one that
    is near `sys.maxsize`.
    """
    try:
        length = len(data)
    except TypeError:
        return None
    return length if length < ENDLESS else None


def _called(make: Callable[[], Any], split: str) -> Iterator[Any]:
    made = make()
    if not isinstance(made, Iterable):
        raise LearnerError(
            f"the function given as the {split} data returned {type(made).__name__}; it needs to return an iterator of "
            "batches (or to be a generator function)"
        )
    return iter(made)


def _described(data: Any) -> str:
    if isinstance(data, dict):
        return f"a dict with {', '.join(map(str, list(data)[:6]))}"
    return f"of type {type(data).__name__}"
