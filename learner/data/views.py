"""What can be made of a dataset: methods of `Dataset`, each of which gives another dataset and copies no items."""

import abc
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from learner.data import indices
from learner.data.plan import whole_number
from learner.errors import LearnerError, near

if TYPE_CHECKING:
    from learner.data.dataset import Dataset

Slice = slice  # whose name is that of a method in datasets


class Views(abc.ABC):
    """The views of a dataset: what is here can be called on any, one after another.

    Nothing is read before an item is asked for, and views travel to worker processes as the dataset does (functions by
    value where they have no import path). Views of an `ArrayDataset` that choose rows stay arrays in memory: a loader
    gathers their batches at once.

    >>> from learner.data import view
    >>> numbers = view(range(100)).shuffle(seed=1).slice(0, 10).map(float)
    >>> numbers
    range(100 items).shuffle(seed=1).slice(0, 10, 1).map(float): 10 items
    """

    @abc.abstractmethod
    def __len__(self) -> int:
        """How many items there are."""

    def map(self, fn: Callable[[Any], Any]) -> "Dataset":
        """`fn(item)` in place of each item.

        >>> from learner.data import view
        >>> view([1, 2]).map(str)[1]
        '2'
        """
        from learner.data.lazy import Mapped

        return Mapped(self, fn)

    def augment(self, fn: Callable[[Any, np.random.Generator], Any], seed: int = 0) -> "Dataset":
        """`fn(item, rng)` in place of each item, where `rng` is a NumPy generator made from (seed, epoch, index).

        Loaders say which epoch it is. So the numbers are new ones in each epoch, and the same for any number of
        workers, and when a run goes on in the middle of one. `index` is the item's number in the dataset that `augment`
        is called on: sample first where rows shall come twice with other numbers. Outside of loaders, and in
        validation, it is epoch 1; `item_at(index, epoch)` gives the item of any. `rng` is for the call only.

        >>> from learner.data import view
        >>> def jitter(item, rng):
        ...     return item + rng.integers(10)
        >>> data = view([0, 100]).augment(jitter, seed=3)
        >>> [[int(data.item_at(index, epoch)) for index in (0, 1)] for epoch in (1, 2)]
        [[0, 106], [1, 109]]
        """
        from learner.data.lazy import Augmented

        return Augmented(self, fn, whole_number("the seed of augment", seed, least=0))

    def filter(self, fn: Callable[[Any], Any]) -> "Dataset":
        """The items of which `fn(item)` is true. All are read once (as in epoch 1) when it is asked how many these are.

        Raises:
          LearnerError: when it is asked, and there are none.

        >>> from learner.data import view
        >>> list(view([3, 4, 5]).filter(lambda item: item > 3))
        [4, 5]
        """
        from learner.data.lazy import Filtered

        return Filtered(self, fn)

    def select(self, rows: Sequence[int] | np.ndarray) -> "Dataset":
        """The items with these numbers, in this order; or those for which a mask says true.

        Args:
          rows: whole numbers, negative ones from the end, a number may come twice; or `[len]` of true and false.

        Raises:
          LearnerError: none, or some that there are not.

        >>> from learner.data import view
        >>> list(view(["a", "b", "c"]).select([2, 0, -1]))
        ['c', 'a', 'c']
        """
        found = indices.select_indices(rows, len(self))
        return self._chosen(found, f".select({len(found)} of {len(self)})")

    def slice(self, start: int | None = None, stop: int | None = None, step: int = 1) -> "Dataset":
        """The items from `start` on, before `stop`, each `step`-th: as Python's slices, negative numbers too.

        Raises:
          LearnerError: there are none, or `step` is below 1.

        >>> from learner.data import view
        >>> list(view(range(10)).slice(-3)), list(view(range(10)).slice(stop=7, step=3))
        ([7, 8, 9], [0, 3, 6])
        """
        found = indices.slice_indices(start, stop, step, len(self))
        return self._sliced(found, f".slice({found.start}, {found.stop}, {found.step})")

    def shuffle(self, seed: int = 0) -> "Dataset":
        """All items in an order made from the seed, the same in every epoch. (The loader's own is another in each.)

        >>> from learner.data import view
        >>> list(view(range(5)).shuffle(seed=1))
        [0, 3, 4, 1, 2]
        """
        return self._chosen(indices.shuffle_indices(len(self), seed), f".shuffle(seed={seed})")

    def split(self, fractions: Sequence[float], seed: int | None = 0) -> "tuple[Dataset, ...]":
        """Parts, such as for training and validation: every item is in one of them.

        Args:
          fractions: of all items, for each part; they add up to 1.
          seed: items are spread at random, and keep their order within a part; `None`: the first part has the first
            ones, and so on.

        Raises:
          LearnerError: fractions that do not add up, or that leave a part without items.

        >>> from learner.data import view
        >>> train, valid = view(range(10)).split([0.7, 0.3])
        >>> list(train), list(valid)
        ([0, 1, 3, 4, 6, 7, 8], [2, 5, 9])
        """
        found = indices.split_indices(len(self), fractions, seed)
        call = f".split({[float(fraction) for fraction in fractions]}, seed={seed})"
        return tuple(self._chosen(rows, f"{call}[{number}]") for number, rows in enumerate(found))

    def part(self, which: int, fractions: Sequence[float], seed: int | None = 0) -> "Dataset":
        """One of those that `split` gives: `which` counts from 0. For configs.

        >>> from learner.data import view
        >>> list(view(range(10)).part(1, [0.7, 0.3]))
        [2, 5, 9]
        """
        parts = self.split(fractions, seed)
        return parts[_which("part", which, len(parts))]

    def k_fold(self, k: int, seed: int | None = 0) -> "Iterator[tuple[Dataset, Dataset]]":
        """Gives `k` pairs (train, valid): every item is in one `valid`, and in `train` of all other pairs.

        Raises:
          LearnerError: `k` is below 2, or above the number of items.

        >>> from learner.data import view
        >>> for train, valid in view(range(5)).k_fold(2, seed=None):
        ...     print(list(train), list(valid))
        [3, 4] [0, 1, 2]
        [0, 1, 2] [3, 4]
        """
        found = indices.fold_indices(len(self), k, seed)
        call = f".k_fold({k}, seed={seed})"
        return (
            (self._chosen(train, f"{call}[{i}].train"), self._chosen(valid, f"{call}[{i}].valid"))
            for i, (train, valid) in enumerate(found)
        )

    def fold(self, which: int, k: int, part: Literal["train", "valid"], seed: int | None = 0) -> "Dataset":
        """One side of one pair that `k_fold` gives: `which` counts from 0. For configs.

        >>> from learner.data import view
        >>> list(view(range(5)).fold(0, k=2, part="valid", seed=None))
        [0, 1, 2]
        """
        if part not in ("train", "valid"):
            raise LearnerError(
                f"the part of fold is {part!r}: {near(str(part), ['train', 'valid'])}", code="data-fold-part-unknown"
            )
        pairs = list(self.k_fold(k, seed))
        return pairs[_which("fold", which, len(pairs))][part == "valid"]

    def sample(
        self,
        size: int | None = None,
        replacement: bool = False,
        weights: Sequence[float] | np.ndarray | None = None,
        seed: int = 0,
    ) -> "Dataset":
        """Items drawn at random, once: they are the same in every epoch.

        Args:
          size: how many; default: as many as there are.
          replacement: whether an item may be drawn again.
          weights: `[len]`, how likely each is drawn; they need not add up to 1. Default: all are as likely.
          seed: the draw is made from it.

        Raises:
          LearnerError: more than there are without replacement, or weights that do not fit.

        >>> from learner.data import view
        >>> list(view(["a", "b", "c"]).sample(5, replacement=True, weights=[1, 0, 3]))
        ['a', 'c', 'c', 'a', 'c']
        """
        found = indices.sample_indices(len(self), size, replacement, weights, seed)
        return self._chosen(found, f".sample({len(found)} of {len(self)}, seed={seed})")

    def concat(self, *others: Any) -> "Dataset":
        """These items, and after them those of other datasets.

        Raises:
          LearnerError: something that is no dataset, or arrays of other shapes or dtypes.

        >>> from learner.data import view
        >>> list(view([1, 2]).concat([3], range(2)))
        [1, 2, 3, 0, 1]
        """
        from learner.data.lazy import view

        return self._joined([view(other) for other in others]) if others else self._chosen(np.arange(len(self)), "")

    def windows(self, size: int, stride: int | None = None) -> "Dataset":
        """`size` items in a row, stacked, each window `stride` items after the last. What fills no window is left out.

        Args:
          size: items per window: arrays `[...]` become `[size, ...]`.
          stride: default `size`, so that windows do not overlap.

        Raises:
          LearnerError: a window larger than the data, or sizes below 1.

        >>> from learner.data import view
        >>> [window.tolist() for window in view(range(7)).windows(3, stride=2)]
        [[0, 1, 2], [2, 3, 4], [4, 5, 6]]
        """
        return self._windowed(*indices.window_starts(len(self), size, stride))

    def _chosen(self, rows: np.ndarray, call: str) -> "Dataset":
        from learner.data.lazy import Selected

        return Selected(self, rows, call)

    def _sliced(self, rows: Slice, call: str) -> "Dataset":
        return self._chosen(np.arange(rows.start, rows.stop, rows.step), call)

    def _joined(self, others: "list[Dataset]") -> "Dataset":
        from learner.data.lazy import Concatenated

        return Concatenated(self, *others)

    def _windowed(self, size: int, stride: int, count: int) -> "Dataset":
        from learner.data.lazy import Windowed

        return Windowed(self, size, stride, count)


def _which(what: str, which: Any, count: int) -> int:
    number = whole_number(f"the number of the {what}", which, least=0)
    if number >= count:
        raise LearnerError(
            f"{what} {number} of {count}: they count from 0, give less than {count}",
            code="data-number-outside",
            number=number,
            count=count,
        )
    return number
