"""One interface to all data that a user may pass.

A `Source` yields the batches of an epoch from any position. What is passed may be one of our loaders, any iterable of
batches, a Grain dataset, a function that returns an iterator, a one-shot iterator, or a dataset with `with_batch_size`.
Where several processes train together, each gets its share of every batch (`learner.data.parts`).

A position is a number of whole batches. Our loaders go there at once, and so does what has `get_state` and `set_state`
(or `state_dict` and `load_state_dict`, as torchdata's): its state is kept next to the number. Everything else is read
again up to there, and an iterator that cannot be read again refuses.
"""

import abc
import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from learner.data.dataset import Dataset
from learner.data.fingerprint import ADDRESS, describe_iterable, fields_of
from learner.data.loader import DataLoader, DataLoaderBuilder
from learner.data.parts import Batches, PerProcess, ShardedBatches, refuse_small, rows_of, shards_itself
from learner.data.plan import ProcessShard
from learner.data.randomness import generators_of, restore, set_epoch, states_of
from learner.data.sources.foreign import adapt
from learner.data.state import from_json, to_json
from learner.data.workers import check_process, forks_workers
from learner.errors import LearnerError

PyTree = Any
# Data up to this size lives on the device; what is shuffled once more, in the order of the epoch.
RESIDENT_BYTES = 256 * 2**20
ENDLESS = 2**40  # batches
GENERATORS = "generators"  # the one key of a state that has those of random generators
_IF_THE_SAME = ", and the rest of the epoch is right only if they are the same batches in the same order as before"


class Source(abc.ABC):
    """The batches of one split.

    Attributes:
      split: its name, for messages.
      batches: batches per epoch, or `None` where that is not known.
      repeats: whether it can be read more than once.
      share: of the rows of every batch; `None`: batches are given whole.
      own: whether every process has data of its own, so that what `Batches.where` says is another in each.
      endless: whether it is known to have no end.
      first_part: whether the batch that `peek` gave last is this process's part of one.
    """

    repeats = True

    def __init__(self, split: str, batches: int | None, share: ProcessShard | None, own: bool):
        self.split = split
        self.batches = batches
        self.share = share
        self.own = own
        self.endless = False
        self.first_part = False
        self._most: int | None = None
        self._kept: tuple[int, Batches] | None = None
        self._first: PyTree = None  # the batch that `peek` gave last
        self._opened = self._resumed = False

    @property
    def shares(self) -> int:
        """Return the number of parts of a batch."""
        return 1 if self.share is None else self.share.count

    @abc.abstractmethod
    def _open(self, epoch: int, start: int, state: Any, warn: Callable[[str], None]) -> Batches:
        """See `open`; the state is as `Batches.where` said it."""

    def limit(self, batches: int) -> None:
        """End each epoch after so many batches at most."""
        self._most, self.endless = batches, False
        self.batches = batches if self.batches is None else min(batches, self.batches)

    @abc.abstractmethod
    def fingerprint(self) -> dict[str, Any]:
        """Return JSON values that describe the data, equal for the same data in any process.

        Rows and batch size are those of all processes together. A value is `None` where the data does not tell it.

        - `kind`: `loader` (one of ours), `iterable`, `function` (that returns batches) or `iterator`
        - `class`: the name of the class, or of the function or generator
        - `rows`: per epoch, before `drop_last`; `batches`: per epoch; `batch_size`; `drop_last`
        - `fields`: dtype and shape of a row by field, as `float32 [8, 8]`; `?` for axes whose length may change with
          the order; `None` before `peek`
        - `order`: `shuffled` or `as given`; `seed`: of the order, for our loaders
        - `dataset`, `batcher` (our loaders), `sampler` (others): descriptions; `in_memory`: arrays (our loaders)
        """

    def _of_all_processes(self, facts: dict[str, Any]) -> dict[str, Any]:
        if not self.own or self.shares == 1:
            return facts
        size = facts["batch_size"]  # of this process, and no process knows the rows of the others
        size = None if size is None else size * self.shares
        return {**facts, "rows": None, "batch_size": size, **({"dataset": None} if "dataset" in facts else {})}

    def refuse_position(self, epoch: int, start: int, state: Any = None) -> None:  # noqa: B027 (most may be)
        """Raise `LearnerError` if the batches from there on cannot be had again."""

    def keep_state(self) -> None:  # noqa: B027 (ours need none)
        """From now on `Batches.where` says where the batches are, so that a checkpoint can.

        Raises:
          LearnerError: they can say it only in words that a checkpoint cannot store.
        """

    def shorter(self, epoch: int, start: int, found: int | None = None) -> LearnerError:
        """Return the error of an epoch that ended before `start` batches, or with them (`found`: after how many)."""
        ends = "at or before that one" if found is None else f"after {found}"
        return LearnerError(
            f"the {self.split} data is shorter than it was: the run goes on after batch {start} of epoch {epoch}, and "
            f"now the data ends {ends}. Pass the data that the run was trained on, or go on from the end of an epoch: "
            "checkpoint(epoch)",
            code="resume-data-shorter",
            start=start,
            epoch=epoch,
        )

    @property
    def rows(self) -> tuple[PyTree, Callable[[int], np.ndarray], int] | None:
        """Arrays that may live on the device, the row order of an epoch, and the batch size; `None` for streams, which
        all data is where several processes share it. The arrays of views are put together each time.
        """
        return None

    @property
    def has_rows(self) -> bool:
        """Return True if `rows` is not None."""
        return False

    def close(self) -> None:
        """Release what the data holds: worker processes, also those that read ahead of a first batch."""
        self._kept = None

    def _given(
        self,
        batches: Iterator[Any],
        where: Callable[[], Any] | None = None,
        end: Callable[[], Any] | None = None,
    ) -> Batches:
        """Batches of data that knows nothing of shares."""
        if self.share is None:
            return Batches(batches, where, end=end)
        return ShardedBatches(batches, self.share, self.own, self.split, where, end)

    def open(
        self, epoch: int, start: int = 0, state: Any = None, warn: Callable[[str], None] = lambda text: None
    ) -> Batches:
        """Return the batches of an epoch from batch number `start` on. What `peek` took is not lost.

        Args:
          epoch: from 1.
          start: from 0.
          state: what `Batches.where` said after the batch before that one, which is the last one of the epoch before
            where `start` is 0. Data without a state of its own does not need it.
          warn: is told when the position costs something, or may be another one.
        """
        self._resumed = not self._opened and (epoch, start) != (1, 0)
        self._opened = True
        kept, self._kept = self._kept, None
        if kept is not None and kept[0] == epoch and start == 0 and state is None:
            return self._limited(kept[1], start)
        del kept  # its threads and processes end before the next ones start
        return self._limited(self._open(epoch, start, state, warn), start)

    def _limited(self, batches: Batches, start: int) -> Batches:
        if self._most is not None:
            batches.limit(max(0, self._most - start))
        return batches

    def peek(self, epoch: int) -> PyTree:
        """Return the first batch of an epoch. It stays part of the epoch."""
        batches = self._open(epoch, 0, None, lambda text: None)
        try:
            first = batches.peek()
        except StopIteration:
            raise LearnerError(
                f"the {self.split} data has no batches: the loader is empty", code="data-without-batches"
            ) from None
        self._kept, self.first_part, self._first = (epoch, batches), batches.part(), first
        return first


class _Loader(Source):
    """Our own loaders: any epoch from any position at no cost."""

    def __init__(self, split: str, loader: DataLoader, share: ProcessShard | None, own: bool):
        super().__init__(split, len(loader), share, own)
        self._loader = loader
        if not own:
            refuse_small(loader.batch_size, share, split)

    def _open(self, epoch: int, start: int, state: Any, warn: Callable[[str], None]) -> Batches:
        if self.own:
            return self._given(self._loader.epoch(epoch, start))
        batches = self._loader.epoch(epoch, start, self.share)
        return Batches(batches, part=lambda: batches.part)

    def fingerprint(self) -> dict[str, Any]:
        """See `Source`."""
        facts = {"kind": "loader", "class": type(self._loader).__qualname__, **self._loader.fingerprint()}
        if facts["fields"] is None and self._first is not None:
            facts["fields"] = fields_of(self._first)
        return self._of_all_processes(facts)

    def close(self) -> None:
        """See `Source`."""
        super().close()
        self._loader.close()

    @property
    def has_rows(self) -> bool:
        """See `Source`."""
        shared = self.share is not None and self.share.count > 1
        return not shared and self._loader.in_memory and self._loader.dataset.nbytes <= RESIDENT_BYTES

    @property
    def rows(self) -> tuple[PyTree, Callable[[int], np.ndarray], int] | None:
        """See `Source`."""
        if not self.has_rows:
            return None
        size = self._loader.batch_size
        most = None if self._most is None else self._most * size
        return self._loader.arrays, lambda epoch: self._loader.order(epoch)[:most], size


class _StatefulIterable(Source):
    """Data of others, which may have a state."""

    _keeps = False
    _flaw = ""  # why its state is of no use
    _kind: str
    _data: Any  # as the user passed it

    def fingerprint(self) -> dict[str, Any]:
        """See `Source`."""
        facts = {"kind": self._kind, **describe_iterable(self._data), "batches": self.batches, "fields": None}
        if self._first is not None:
            # In another order the first batch may have another length, as padded texts have.
            facts["fields"] = fields_of(self._first, fixed=facts["order"] == "as given")
        return self._of_all_processes(facts)

    def peek(self, epoch: int) -> PyTree:
        """See `Source`."""
        first = super().peek(epoch)
        if not self.first_part:
            refuse_small(rows_of(first), self.share, self.split)
        return first

    def keep_state(self) -> None:
        """See `Source`."""
        self._keeps = True
        if self._kept is None or (where := self._kept[1].where) is None:
            return
        try:
            state = where()
        except NotImplementedError:  # it inherited the method
            self._keeps = False
            return
        if ADDRESS.search(str(from_json(state))):
            self._keeps = False
            self._flaw = (
                ": its state has the address of an object, which is another one in each process, so it would not be "
                "taken back (Grain's DataLoader needs a data source with a __repr__)"
            )

    def _where(self, holder: Any) -> Callable[[], Any] | None:
        """Return a function that reads the state of `holder`; None if it has no state."""
        pair = _state_methods(holder)
        if pair is None:
            return None
        get = pair[0]
        return lambda: to_json(get(), self.split) if self._keeps else None

    def _put_back(self, holder: Any, epoch: int, start: int, state: Any) -> None:
        pair = _state_methods(holder)
        assert pair is not None
        try:
            pair[1](from_json(state))
        except Exception as error:
            raise LearnerError(
                f"the {self.split} data ({type(holder).__name__}) does not take back the state that it had "
                f"{_after(epoch, start)}: {error!r}. Pass the data that the run was trained on, or go on from the end "
                "of an epoch: checkpoint(epoch)",
                code="resume-data-state-refused",
            ) from error


class _Iterable(_StatefulIterable):
    """Anything that gives a new iterator each time.

    A position is reached by the state of the iterator, as Grain's have one, or of the iterable itself, as torchdata's
    have one. Where there is none, the epoch begins again, with the random generators as they were at its beginning, and
    batches are skipped.
    """

    def __init__(
        self,
        split: str,
        batches: int | None,
        share: ProcessShard | None,
        own: bool,
        data: Iterable[Any] | Callable[[], Any],
    ):
        super().__init__(split, batches, share, own)
        self._data = data
        self._kind = "iterable" if isinstance(data, Iterable) else "function"

    def open(
        self, epoch: int, start: int = 0, state: Any = None, warn: Callable[[str], None] = lambda text: None
    ) -> Batches:
        """See `Source`."""
        if not self._opened and forks_workers(self._data):
            warn(
                f"the {self.split} data ({type(self._data).__name__}) forks its worker processes, and JAX's threads "
                "are not in a fork: a worker may wait for ever. Give the loader multiprocessing_context='forkserver', "
                "or num_workers=0"
            )
        return super().open(epoch, start, state, warn)

    def _make(self) -> Iterable[Any]:
        return self._data if isinstance(self._data, Iterable) else _called(self._data, self.split)

    def _open(self, epoch: int, start: int, state: Any, warn: Callable[[str], None]) -> Batches:
        order = None
        if isinstance(state, dict) and set(state) == {GENERATORS}:
            order, state = state[GENERATORS], None
        if state is not None and start == 0:
            self._end_epoch(epoch - 1, state, warn)
            state = None
        made = self._make()
        ordered = self._order(made, epoch, start, order, warn)
        batches, told = self._iterator(made, epoch, start, state)
        if start and not told:
            if isinstance(made, list | tuple):
                return self._given(itertools.islice(made, start, None))
            warn(
                f"the {self.split} data ({type(made).__name__}) cannot be put back to a position{self._flaw}. {start} "
                f"batches of epoch {epoch} are read again and dropped. No steps are run for them and nothing is placed "
                f"on a device, but they take the time that it takes to make them{'' if ordered else _IF_THE_SAME}. A "
                "loader of ours (DataLoaderBuilder), a Grain dataset, or an iterator with get_state and set_state goes "
                "there at once"
            )
            self._skip(batches, epoch, start)
        elif self._resumed and not (ordered or told or batches.where or _has_one_order(made)):
            warn(
                f"the {self.split} data ({type(made).__name__}) may have another order in epoch {epoch} than without "
                "the interruption: the checkpoint has no state of a random generator of it (an attribute such as "
                "`generator` or `rng`), and it has no method set_epoch(epoch). Give PyTorch's DataLoader a "
                "generator=torch.Generator().manual_seed(0), or take a loader of ours (DataLoaderBuilder) or of Grain"
            )
        return batches

    def _order(self, made: Iterable[Any], epoch: int, start: int, states: Any, warn: Callable[[str], None]) -> bool:
        """Put an iterable to the beginning of an epoch; return True if its order is that of the epoch."""
        told = self.split == "train" and set_epoch(made, epoch)
        generators = generators_of(made)
        if states is None:
            return told
        try:
            restore(generators, from_json(states))
        except Exception as error:
            problem = (
                f"the {self.split} data ({type(made).__name__}) does not take back the states of its random generators "
                f"at the beginning of epoch {epoch}: {error!r}"
            )
            if start:
                raise LearnerError(
                    f"{problem}. Pass the data that the run was trained on, or go on from the end of an epoch: "
                    "checkpoint(epoch)",
                    code="resume-data-differs",
                ) from error
            warn(f"{problem}. It may have another order than without the interruption")
        return True

    def _iterator(self, made: Iterable[Any], epoch: int, start: int, state: Any) -> tuple[Batches, bool]:
        """Return the batches, and True if they start at the position of the state."""
        if self.share is not None and not self.own and shards_itself(made, self.share, self.split):
            raise LearnerError(
                f"the function given as the {self.split} data returned a Grain DataLoader that reads a shard: pass "
                "PerProcess(function), so that no rows are lost",
                code="data-function-returns-shard",
            )
        generators = generators_of(made)
        before = states_of(generators)  # making an iterator may draw the order of its epoch
        iterator = iter(made)
        holder = made if _state_methods(iterator) is None else iterator
        told = state is not None and _state_methods(holder) is not None
        if told:
            self._put_back(holder, epoch, start, state)
            if holder is made:  # its next iterator starts there
                iterator = iter(made)
        where = self._where(holder)
        if where is not None or not generators:
            return self._given(iterator, where), told

        @functools.cache
        def stored() -> Any:  # one object for all batches of the epoch
            return {GENERATORS: to_json(before, self.split)}

        def began() -> Any:
            return stored() if self._keeps else None

        def ended() -> Any:
            return {GENERATORS: to_json(states_of(generators), self.split)} if self._keeps else None

        return self._given(iterator, began, ended), told

    def _skip(self, batches: Batches, epoch: int, start: int) -> None:
        for number in range(start):
            try:
                next(batches)
            except StopIteration:
                raise self.shorter(epoch, start, number) from None

    def _end_epoch(self, epoch: int, state: Any, warn: Callable[[str], None]) -> None:
        """Repeat the end of an epoch: an iterable may carry state into the next one, such as a shuffling order."""
        made = self._make()
        if type(made).__module__.partition(".")[0] == "grain":
            return  # nothing goes on from one of its iterators to the next, and workers take seconds to start
        try:
            batches, told = self._iterator(made, epoch, self.batches or 0, state)
        except LearnerError as error:
            # Nothing of an epoch is lost or there twice, and it may well be other data on purpose.
            warn(
                f"the {self.split} data does not take back the state that it had at the end of epoch {epoch}: "
                f"{error.__cause__!r}. Epoch {epoch + 1} starts without it, and may have another order than it would "
                "have had"
            )
            return
        if told:
            next(batches, None)


def _has_one_order(made: Iterable[Any]) -> bool:
    """Return True if each epoch has one order, or its iterable begins anew in each."""
    return isinstance(made, list | tuple | Iterator) or describe_iterable(made)["order"] == "as given"


class _OneShotIterator(_StatefulIterable):
    """A one-shot iterator: it has one epoch, and cannot be read again from its start."""

    def __init__(self, split: str, share: ProcessShard | None, own: bool, iterator: Iterator[Any]):
        super().__init__(split, None, share, own)
        self._data = self._iterator = iterator
        self._used = False

    _kind = "iterator"

    repeats = False

    def refuse_position(self, epoch: int, start: int, state: Any = None) -> None:
        """See `Source`."""
        by_state = epoch == 1 and state is not None and _state_methods(self._iterator) is not None
        if (epoch, start) != (1, 0) and not by_state:
            raise LearnerError(
                f"the {self.split} data is an iterator that cannot be repeated, so it cannot be put back to batch "
                f"{start} of epoch {epoch}: pass a loader, a function that returns a new iterator, or an iterator "
                "with get_state and set_state",
                code="resume-data-not-repeatable",
                start=start,
                epoch=epoch,
            )

    def _open(self, epoch: int, start: int, state: Any, warn: Callable[[str], None]) -> Batches:
        if start:
            self.refuse_position(epoch, start, state)
            self._put_back(self._iterator, epoch, start, state)
        elif self._used:
            again = f"epoch {epoch}" if self.split == "train" else "another validation"
            raise LearnerError(
                f"the {self.split} data is exhausted: it is an iterator (or generator) that can be read once, and it "
                f"is needed again for {again}. Pass a loader, a list, or the generator function itself rather than its "
                "result",
                code="data-exhausted",
            )
        self._used = True
        return self._given(self._iterator, self._where(self._iterator))


def _state_methods(holder: Any) -> tuple[Callable[[], Any], Callable[[Any], Any]] | None:
    """Return the two methods that get and set a position, under Grain's names or torchdata's."""
    if type(holder).__module__ == "datasets.iterable_dataset":
        return None  # Hugging Face's may start each later epoch from the state that they were given, too
    for names in (("get_state", "set_state"), ("state_dict", "load_state_dict")):
        get, put = (getattr(holder, name, None) for name in names)
        if callable(get) and callable(put):
            return get, put
    return None


def _after(epoch: int, start: int) -> str:
    return f"after batch {start} of epoch {epoch}" if start else f"at the end of epoch {epoch}"


def source_of(
    data: Any,
    split: str,
    *,
    batch_size: int | None = None,
    shuffle: int | None = None,
    share: ProcessShard | None = None,
) -> Source:
    """Return the source of what a user passed.

    Args:
      data: see the module.
      split: its name.
      batch_size: for datasets, and arrays, that are passed where a loader is expected.
      shuffle: the seed for such a dataset's order, or `None` to keep its order.
      share: what to give of every batch; `None`: all of it.

    >>> source = source_of([np.zeros((4, 2))] * 3, "train")
    >>> source.batches, source.peek(1).shape, sum(1 for _ in source.open(1))
    (3, (4, 2), 3)
    """
    check_process()
    own = isinstance(data, PerProcess)
    data = adapt(data.data if isinstance(data, PerProcess) else data)
    if isinstance(data, DataLoaderBuilder):
        raise LearnerError(
            f"the {split} data is a DataLoaderBuilder; call .build(dataset) on it",
            code="data-loader-not-built",
            split=split,
        )
    arrays = batch_size is not None and isinstance(data, Mapping | np.ndarray | jax.Array)
    indexed = hasattr(data, "__getitem__") and hasattr(data, "__len__") and not hasattr(data, "__iter__")
    if arrays or indexed or isinstance(data, Dataset):
        if batch_size is None:
            raise LearnerError(
                f"the {split} data is a dataset ({type(data).__name__}), which has items but no batches; pass "
                "DataLoaderBuilder().batch_size(n).build(dataset), or set with_batch_size(n)",
                code="data-dataset-without-batches",
                split=split,
            )
        builder = DataLoaderBuilder().batch_size(_own_size(batch_size, share, split) if own else batch_size)
        data = (builder if shuffle is None else builder.shuffle(shuffle)).build(data)
    if isinstance(data, DataLoader):
        return _Loader(split, data, share, own)
    if isinstance(data, Iterator):
        once = _OneShotIterator(split, share, own, data)
        once.endless = _is_endless(data)
        return once
    if isinstance(data, Mapping | str | bytes | np.ndarray | jax.Array) or not (
        isinstance(data, Iterable) or callable(data)
    ):
        raise LearnerError(
            f"the {split} data is {_described(data)}; it needs a loader: an iterable of batches, such as "
            "DataLoaderBuilder().batch_size(32).build(ArrayDataset({...})). With with_batch_size(n) a dict of arrays "
            "is enough",
            code="data-type",
            split=split,
        )
    if isinstance(data, tuple) and len({np.shape(each)[1:] for each in data if isinstance(each, np.ndarray)}) > 1:
        raise LearnerError(
            f"the {split} data is a tuple of arrays of shapes {', '.join(str(list(np.shape(each))) for each in data)}, "
            "which are no batches: name them, as in DataLoaderBuilder().batch_size(32).build({'x': x, 'y': y})",
            code="data-tuple-of-arrays",
            split=split,
        )
    if isinstance(data, Iterable):
        own = own or (share is not None and shards_itself(data, share, split))
        iterable = _Iterable(split, _length(data), share, own, data)
        iterable.endless = _is_endless(data)
        return iterable
    return _Iterable(split, None, share, own, data)


def _own_size(batch_size: int, share: ProcessShard | None, split: str) -> int:
    if share is None:
        return batch_size
    if batch_size % share.count:
        raise LearnerError(
            f"with_batch_size is {batch_size} over all processes, and the {split} data is PerProcess: give a multiple "
            f"of {share.multiple}, so that each of {share.count} processes has as many rows",
            code="data-batch-size-uneven",
            batch_size=batch_size,
            split=split,
        )
    return batch_size // share.count


def _is_endless(data: Any) -> bool:
    if isinstance(data, itertools.repeat):
        return operator.length_hint(data, ENDLESS) >= ENDLESS
    if isinstance(data, itertools.cycle | itertools.count):
        return True
    try:
        return len(data) >= ENDLESS
    except TypeError:
        return False


def _length(data: Any) -> int | None:
    """Return batches per epoch, or None if unknown.

    PyTorch's loaders may have a `__len__` that raises, endless Grain datasets one that is near `sys.maxsize`.
    """
    try:
        length = len(data)
    except TypeError:
        return None
    return length if length < ENDLESS else None


def _called(make: Callable[[], Any], split: str) -> Iterable[Any]:
    made = make()
    if not isinstance(made, Iterable):
        raise LearnerError(
            f"the function given as the {split} data returned {type(made).__name__}; it needs to return an iterator of "
            "batches (or to be a generator function)",
            code="data-function-returns-no-iterator",
            split=split,
        )
    return made


def _described(data: Any) -> str:
    if isinstance(data, dict):
        return f"a dict with {', '.join(map(str, list(data)[:6]))}"
    return f"of type {type(data).__name__}"
