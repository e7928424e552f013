"""Sources of all data that a user may pass: `source_of`.

A `Source` yields the batches of an epoch from any position. The data may be one of our loaders, an iterable of
batches, a Grain dataset, a function that returns an iterator, a one-shot iterator, or a dataset with `with_batch_size`.
If several processes train together, each reads its share of every batch (`learner.data.sharding`).

A position is a number of batches. Our loaders skip to it at no cost. Data with `get_state` and `set_state` (or
`state_dict` and `load_state_dict`, as in torchdata) does so too: its state is stored next to the number. All other data
is read again up to the position, and an iterator that cannot be read again raises an error.
"""

import inspect
import itertools
import operator
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from learner.data.abstract_source import PyTree, Source
from learner.data.array_dataset import is_data_frame
from learner.data.batch_arrays import BATCHES_IN_CONFIG, digest_of
from learner.data.data_fingerprint import attributes_digest, fields_of
from learner.data.dataset import Dataset, roots_of
from learner.data.iterable_source import IterableSource, OneShotSource
from learner.data.iterator_state import DATASETS, is_of_datasets, put_back, state_methods, to_json
from learner.data.loader import DataLoader, DataLoaderBuilder
from learner.data.mixture import mixtures_in
from learner.data.sharding import Batches, PerProcess, ProcessShard, refuse_small, shards_itself
from learner.data.sources.foreign import ForeignDataset, adapt
from learner.data.stream_mixture import StreamMixture, StreamMixtureSource
from learner.data.workers import check_process
from learner.errors import LearnerError

# Data up to this size is kept on the device; shuffled data twice, the second time in the order of the epoch.
RESIDENT_BYTES = 256 * 2**20
ENDLESS = 2**40  # batches
BATCHING = ("datasets", "grain", "tensorflow", "webdataset")  # packages whose `batch(n)` makes batches of items
READ_TWICE = 3  # items that are compared: a random flip changes every second one
SLOW = 0.2  # seconds, after which no further items are compared


class LoaderSource(Source):
    """One of our loaders: skips to any position of any epoch at no cost. The datasets of a user that have a state keep
    it within an epoch, and hooks may change it between two epochs.
    """

    def __init__(self, split: str, loader: DataLoader, share: ProcessShard | None, own: bool):
        super().__init__(split, len(loader), share, own)
        self._loader = loader
        self._roots = [data for data in roots_of(loader.dataset) if not type(data).__module__.startswith("learner.")]
        self._stateful = [data for data in self._roots if _has_state(data)]
        self._keeps = False
        self._random: list[str] = []  # the classes of datasets whose items differ when they are read again
        self._sent: Any = None  # the state of the datasets in the worker processes
        if not own:
            refuse_small(loader.batch_size, share, split)

    def keep_state(self) -> list[str]:
        """See `Source`."""
        self._keeps = True
        return [
            f"items of the {self.split} data ({name}) differ when they are read again, so a run that resumes reads "
            "others than an uninterrupted one: move what is random to view(dataset).augment(fn, seed=0), which gives "
            "fn a generator for each item of an epoch"
            for name in self._random
        ]

    def _state(self) -> Any:
        """Return the states of the datasets, as JSON, or None if they have none."""
        pairs = [(type(data).__qualname__, state_methods(data)) for data in self._stateful]
        states = [[name, to_json(pair[0](), self.split)] for name, pair in pairs if pair is not None]
        return {DATASETS: states} if states else None

    def _current(self) -> Any:
        """Return the states, or None if they cannot be stored and nothing stores them."""
        try:
            return self._state()
        except LearnerError:
            if self._keeps or self.will_keep:
                raise
            return None

    def open(
        self, epoch: int, start: int = 0, state: Any = None, warn: Callable[[str], None] = lambda text: None
    ) -> Batches:
        """See `Source`."""
        if self._kept is not None and self._stateful and self._current() != self._sent:
            self._kept = None  # `peek` read before another split of the same dataset was restored
        return super().open(epoch, start, state, warn)

    def _put_back(self, epoch: int, start: int, state: Any) -> None:
        states = state[DATASETS] if is_of_datasets(state) else []
        # Otherwise the run warns that it resumes with other data.
        if [name for name, _ in states] == [type(data).__qualname__ for data in self._stateful]:
            for data, (_, of_data) in zip(self._stateful, states, strict=True):
                put_back(data, of_data, self.split, epoch, start)

    def _open(self, epoch: int, start: int, state: Any, warn: Callable[[str], None]) -> Batches:
        if not self._stateful:
            return self._batches(epoch, start, None)
        self._put_back(epoch if start else epoch - 1, start, state)
        keeps, current = self._keeps or self.will_keep, self._current()
        if current != self._sent:
            self._loader.close()  # workers have copies of the datasets
            self._sent = current
        batches = self._batches(epoch, start, (lambda: current) if keeps else None)
        batches.between = self._state if keeps else None
        return batches

    def _batches(self, epoch: int, start: int, where: Callable[[], Any] | None) -> Batches:
        if self.own:
            return self._sharded(self._loader.epoch(epoch, start), where)
        batches = self._loader.epoch(epoch, start, self.share)
        return Batches(batches, where, part=lambda: batches.part)

    def end_epoch(self, epoch: int, state: Any, warn: Callable[[str], None]) -> Callable[[], Any] | None:
        """See `Source`."""
        if not self._stateful:
            return None
        self._put_back(epoch, 0, state)
        return self._state

    def unsaved(self) -> dict[str, Hashable]:
        """See `Source`."""
        saved = {id(data) for data in self._stateful}
        unsaved = [attributes_digest(data) for data in self._roots if id(data) not in saved]
        digests = {f"{number}.{name}": x for number, of_data in enumerate(unsaved) for name, x in of_data.items()}
        return {"contents": self._loader.digest(), **digests}

    def is_reproducible(self) -> bool:
        """See `Source`. Items that only worker processes read may be random."""
        return not (self._stateful or self._random or self._loader.num_workers)

    def peek(self, epoch: int) -> PyTree:
        """See `Source`."""
        if self.will_keep and not self._keeps and not self._loader.num_workers:
            # Before a thread reads, as a dataset may not be safe for two. One that is sent to worker processes is not
            # read here, as it may open its files when it is first read.
            roots = roots_of(self._loader.dataset)
            self._random = [_class_name(data) for data in roots if _is_random(data)]
        first = super().peek(epoch)
        if self.share is not None and not self.differs:
            self.first_digest = self._loader.digest()  # each process may read a part of the batch
        return first

    def fingerprint(self) -> dict[str, Any]:
        """See `Source`."""
        facts = {"kind": "loader", "class": type(self._loader).__qualname__, **self._loader.fingerprint()}
        if facts["fields"] is None and self._first is not None:
            facts["fields"] = fields_of(self._first)
        return self._of_all_processes(facts)

    def describe(self, epoch: int) -> list[str]:
        """See `Source`."""
        return [f"a mixture of {mixture.describe(epoch)}" for mixture in mixtures_in(self._loader.dataset)]

    def close(self) -> None:
        """See `Source`."""
        super().close()
        self._loader.close()

    @property
    def is_uniform(self) -> bool:
        """See `Source`."""
        return self._loader.in_memory and not self.differs

    @property
    def has_rows(self) -> bool:
        """See `Source`."""
        return self.shares == 1 and self._is_small

    @property
    def rows(self) -> tuple[PyTree, Callable[..., np.ndarray], int] | None:
        """See `Source`."""
        if not self.has_rows:
            return None
        size = self._loader.batch_size
        most = None if self._most is None else self._most * size
        return self._loader.arrays, lambda epoch, seed=None: self._loader.order(epoch, seed)[:most], size

    @property
    def arrays(self) -> PyTree | None:
        """See `Source`."""
        return self._loader.arrays if self._is_small else None

    @property
    def _is_small(self) -> bool:
        return self._loader.nbytes is not None and self._loader.nbytes <= RESIDENT_BYTES


def _class_name(data: Any) -> str:
    return data.name if isinstance(data, ForeignDataset) else type(data).__name__


def _is_random(data: Any) -> bool:
    """Return True if items of a user's dataset are other ones when they are read again."""
    if isinstance(data, list) or _has_state(data):
        return False
    if type(data).__module__.startswith("learner.") and not isinstance(data, ForeignDataset):
        return False
    began = time.perf_counter()
    try:
        for index in range(min(READ_TWICE, len(data))):
            if digest_of(data[index]) != digest_of(data[index]):
                return True
            if time.perf_counter() - began > SLOW:
                break
    except Exception:  # from user code; the loader reports it
        return False
    return False


def _has_state(data: Any) -> bool:
    """Return True if a dataset has a state. Other methods may have these names, such as those of environments."""
    pair = state_methods(data)
    if pair is None:
        return False
    try:
        inspect.signature(pair[0]).bind()
        inspect.signature(pair[1]).bind(None)
    except (TypeError, ValueError):
        return False
    return True


def source_of(
    data: Any,
    split: str,
    *,
    batch_size: int | None = None,
    shuffle: int | None = None,
    share: ProcessShard | None = None,
) -> Source:
    """Return the source for data that a user passed.

    Args:
      data: see the module.
      split: the name of the split.
      batch_size: the batch size for datasets and arrays that are passed instead of a loader.
      shuffle: the seed for such a dataset's order, or `None` to keep its order.
      share: the rows of every batch that this process reads; `None` for all rows.

    >>> source = source_of([np.zeros((4, 2))] * 3, "train")
    >>> source.batches, source.peek(1).shape, sum(1 for _ in source.open(1))
    (3, (4, 2), 3)
    """
    check_process()
    own = isinstance(data, PerProcess)
    data = adapt(data.data if isinstance(data, PerProcess) else data)
    if _is_dataset(data, batch_size):
        data = _loader_of(data, split, batch_size, shuffle, share if own else None)
    if isinstance(data, DataLoader):
        return LoaderSource(split, data, share, own)
    _check_iterable(data, split)
    source: Source
    endless = _is_endless(data)
    if isinstance(data, StreamMixture):
        data = _in_batches(data, split, batch_size, share if own else None)
        source = StreamMixtureSource(split, data.num_batches, share, own, data)
    elif isinstance(data, Iterator):
        source = OneShotSource(split, share, own, data)
    else:
        own = own or (share is not None and shards_itself(data, share, split))
        source = IterableSource(split, None if endless else _length(data), share, own, data)
    source.endless = endless
    if callable(getattr(data, "batch", None)) and type(data).__module__.partition(".")[0] in BATCHING:
        source.batchable = type(data).__name__
    return source


def _is_dataset(data: Any, batch_size: int | None) -> bool:
    """Return True for data that consists of items rather than batches."""
    arrays = batch_size is not None and (isinstance(data, Mapping | np.ndarray | jax.Array) or is_data_frame(data))
    indexed = hasattr(data, "__getitem__") and hasattr(data, "__len__") and not hasattr(data, "__iter__")
    return arrays or indexed or isinstance(data, Dataset)


def _in_batches(data: StreamMixture, split: str, batch_size: int | None, share: ProcessShard | None) -> StreamMixture:
    if data.batch_size is not None:
        return data
    if batch_size is None:
        raise LearnerError(
            f"the {split} data is a stream of items, or a mixture of streams, which has no batches: pass its "
            "batch(n), or set with_batch_size(n); if its items are batches, pass stream(items, batched=True)",
            code="data-dataset-without-batches",
            split=split,
        )
    return data.batch(_own_size(batch_size, share, split))


def _loader_of(
    data: Any, split: str, batch_size: int | None, shuffle: int | None, share: ProcessShard | None
) -> DataLoader:
    """Return a loader of a dataset; `share` is given if `data` is only this process's part of it."""
    if batch_size is None:
        raise LearnerError(
            f"the {split} data is a dataset ({type(data).__name__}), which has items but no batches; pass "
            f"DataLoaderBuilder().batch_size(n).build(dataset), or set with_batch_size(n); {BATCHES_IN_CONFIG}",
            code="data-dataset-without-batches",
            split=split,
        )
    builder = DataLoaderBuilder().batch_size(_own_size(batch_size, share, split))
    try:
        return (builder if shuffle is None else builder.shuffle(shuffle)).build(data)
    except LearnerError as error:
        raise LearnerError(f"the {split} data: {error}", code=error.code, **error.fields) from error


def _check_iterable(data: Any, split: str) -> None:
    """Raise `LearnerError` unless data yields batches, or is a function that may return an iterator of batches."""
    if isinstance(data, DataLoaderBuilder):
        raise LearnerError(
            f"the {split} data is a DataLoaderBuilder; call .build(dataset) on it",
            code="data-loader-not-built",
            split=split,
        )
    no_batches = isinstance(data, Mapping | str | bytes | np.ndarray | jax.Array) or is_data_frame(data)
    if no_batches or not (isinstance(data, Iterable) or callable(data)):
        raise LearnerError(
            f"the {split} data is {_described(data)}; it needs a loader: an iterable of batches, such as "
            "DataLoaderBuilder().batch_size(32).build(ArrayDataset({...})). With with_batch_size(n) a dict of arrays "
            f"is enough; {BATCHES_IN_CONFIG}",
            code="data-type",
            split=split,
        )
    if isinstance(data, tuple) and len({np.shape(x)[1:] for x in data if isinstance(x, np.ndarray)}) > 1:
        raise LearnerError(
            f"the {split} data is a tuple of arrays of shapes {', '.join(str(list(np.shape(x))) for x in data)}, "
            "which are not batches: name them, as in DataLoaderBuilder().batch_size(32).build({'x': x, 'y': y})",
            code="data-tuple-of-arrays",
            split=split,
        )


def _own_size(batch_size: int, share: ProcessShard | None, split: str) -> int:
    if share is None:
        return batch_size
    if batch_size % share.count:
        raise LearnerError(
            f"with_batch_size is {batch_size} over all processes, and the {split} data is PerProcess: give a multiple "
            f"of {share.multiple}, so that all {share.count} processes have equally many rows",
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
    if isinstance(data, StreamMixture):
        return data.is_endless
    return (_length(data) or 0) >= ENDLESS  # of endless Grain datasets it is near `sys.maxsize`


def _length(data: Any) -> int | None:
    """Return the length of data, or None if it has none: the `__len__` of PyTorch's loaders and samplers may raise."""
    try:
        return len(data)
    except (TypeError, NotImplementedError):
        return None


def _described(data: Any) -> str:
    if isinstance(data, dict):
        return f"a dict with {', '.join(map(str, list(data)[:6]))}"
    return f"of type {type(data).__name__}"
