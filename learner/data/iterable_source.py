"""Batches of other libraries and of iterables: a position is restored from a state of the data, or by skipping."""

import abc
import contextlib
import copy
import functools
import itertools
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

import jax
import numpy as np

from learner.data.abstract_source import CHANGED, PyTree, Source
from learner.data.batch_arrays import as_array, as_dicts, digest_of
from learner.data.data_fingerprint import ADDRESS, attributes_digest, describe_iterable, fields_of
from learner.data.hugging_face import flaw_of, is_stream, restart
from learner.data.iterator_state import from_json, is_of_datasets, put_back, state_methods, to_json
from learner.data.randomness import (
    draws,
    generators_of,
    generators_of_function,
    restart_loaders,
    restore,
    set_epoch,
    states_of,
)
from learner.data.sharding import Batches, PerProcess, ProcessShard, refuse_small, rows_of, shards_itself
from learner.data.workers import allow_grain_workers, forks_workers
from learner.errors import LearnerError
from learner.util.text import join_names
from learner.util.trees import nonfinite_rows
from learner.util.user_warnings import warn

GENERATORS = "generators"  # the key of the random generators' states
FIRST = "first batch"  # the key of the checksum of the epoch's first batch
_IF_THE_SAME = ", and the rest of the epoch is right only if they are the same batches in the same order as before"


class StatefulSource(Source):
    """Data of other libraries, which may have a state."""

    _keeps = False
    _flaw = ""  # why its state is of no use
    _state_at_start: str | None = None  # before the first batch was read, as text
    _unit = "batches"
    _kind: str
    _data: Any  # which the user passed

    def fingerprint(self) -> dict[str, Any]:
        """See `Source`."""
        facts = {"kind": self._kind, **describe_iterable(self._data), "batches": self.batches, "fields": None}
        if self._first is not None:
            # In another order the first batch may have another length, as with padded texts.
            facts["fields"] = fields_of(self._first, fixed=facts["order"] == "as given")
        return self._of_all_processes(facts)

    def peek(self, epoch: int) -> PyTree:
        """See `Source`."""
        first = super().peek(epoch)
        if not self.first_part:
            refuse_small(rows_of(first), self.share, self.split)
        return first

    def keep_state(self) -> list[str]:
        """See `Source`."""
        self._keeps = True
        if self._kept is None or (where := self._kept[1].where) is None:
            return []
        if (state := where()) is None:
            return []
        if ADDRESS.search(str(from_json(state))):
            self._keeps = False
            self._flaw = (
                ": its state has the address of an object, which differs in each process, so it could not be "
                "restored (Grain's DataLoader needs a data source with a __repr__)"
            )
        elif str(state) == self._state_at_start:
            return [
                f"the state of the {self.split} data ({type(self._data).__name__}) was the same after its first batch "
                "as before it, so a resumed run would repeat a batch, or the whole epoch: change the position before "
                "the iterator yields a batch, not after"
            ]
        return []

    def _where(self, holder: Any) -> Callable[[], Any] | None:
        """Return a function that reads the state of `holder`; None if it has no state."""
        pair = state_methods(holder)
        if pair is None:
            return None
        get = pair[0]

        def where() -> Any:
            if not self._keeps:
                return None
            try:
                return to_json(get(), self.split)
            except NotImplementedError:  # an inherited method
                self._keeps = False
                return None

        return where


class CompositeStream(abc.ABC):
    """An iterable that reads other data, its parts, and whose iterators have positions in them."""

    @property
    @abc.abstractmethod
    def parts(self) -> list[Any]:
        """Return the data that it reads."""

    @abc.abstractmethod
    def end_epoch(self, state: Any) -> None:
        """Go to the end of an epoch, where an iterator had this state: parts may carry states into the next one.

        Raises:
          LearnerError: the state is that of other data.
        """


class IterableSource(StatefulSource):
    """An iterable, or a function, that returns a new iterator for each epoch.

    A position is restored from the state of the iterator (Grain) or of the iterable itself (torchdata, Hugging Face).
    Data without a state restarts its epoch, with the random generators as they were at its beginning, and batches are
    skipped. A checksum of the first batch shows if the batches differ from before.
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
        self._digests: list[int] = []  # of the first batch of the newest iterator
        self._before_call: dict[str, Any] = {}  # the states of a function's random generators before its latest call
        self._has_state = False  # True if that iterator has a position, or random generators that are restored
        # Puts data with a state of its own back to before `peek` has read a batch; None once a run has opened the data.
        self._unpeek: Callable[[Callable[[str], None]], None] | None = None

    def open(
        self, epoch: int, start: int = 0, state: Any = None, warn: Callable[[str], None] = lambda text: None
    ) -> Batches:
        """See `Source`."""
        if not self._opened and forks_workers(self._data):
            warn(
                f"the {self.split} data ({type(self._data).__name__}) forks its worker processes, and JAX's threads "
                "are not in a fork: a worker may wait forever. Give the loader multiprocessing_context='forkserver', "
                "or num_workers=0"
            )
        try:
            return super().open(epoch, start, state, warn)
        finally:
            self._unpeek = None

    def close(self) -> None:
        """See `Source`."""
        self._unpeek = None  # it references the data of the iterator
        super().close()

    def draws_itself(self) -> bool:
        """See `Source`."""
        return draws(_generators(self._data))

    def unsaved(self) -> dict[str, Hashable]:
        """See `Source`."""
        if isinstance(self._data, list | tuple):
            return {"contents": describe_iterable(self._data).get("contents")}
        saves = state_methods(self._data) is not None
        return {} if saves or self._kind == "function" else attributes_digest(self._data)

    def bad_batch(self) -> str | None:
        """See `Source`."""
        if not isinstance(self._data, list | tuple) or self.shares > 1:
            return None
        for number, batch in enumerate(self._data, 1):
            if found := nonfinite_rows(jax.tree.map(lambda x: np.asarray(as_array(x)), as_dicts(batch))):
                rows = [f"{name} (row {join_names([*map(str, bad)], 3)})" for name, bad in found.items()]
                return f"{join_names(rows, 8)} of batch {number}"
        return ""

    def _make(self, order: Any = None) -> Iterable[Any]:
        """Return the iterable of an epoch. A function's random generators are first set to the states in `order`."""
        if isinstance(self._data, Iterable):
            return self._data
        generators = generators_of_function(self._data)
        if order is not None:
            with contextlib.suppress(Exception):  # `_order` reports it
                states = from_json(order)
                restore(generators, {name: states[name] for name in generators})
        self._before_call = states_of(generators)
        return _call(self._data, self.split)

    def _open(self, epoch: int, start: int, state: Any, warn: Callable[[str], None]) -> Batches:
        order = first = None
        if is_of_datasets(state):  # the run had a loader before
            state = None
        # Not of a validation split, which may read a loader of the train split at any time.
        if self.split == "train" and epoch == 1 and state is None:
            restart_loaders(_generators(self._data))
        if _is_of_beginning(state):
            order, first, state = state.get(GENERATORS), state.get(FIRST), None
        # After the end of the iterator of `peek`, whose batch would be missing in the epoch.
        if state is None and self._opened and self._unpeek is not None:
            self._unpeek(warn)
        is_changed = isinstance(state, dict) and set(state) == {CHANGED}
        if state is not None and start == 0:
            if not is_changed:
                self.end_epoch(epoch - 1, state, warn)
            elif (batches := self._after_change(epoch, state[CHANGED], warn)) is not None:
                return batches
            state = None
        data = self._make(order)
        ordered = self._order(data, epoch, start, order, warn)
        batches, positioned = self._iterator(data, epoch, start, state)
        if start and not positioned:
            if isinstance(data, list | tuple):
                return self._sharded(itertools.islice(data, start, None))
            self._skip(batches, data, epoch, start, first, ordered, warn)
        elif self._resumed and not (ordered or positioned or self._has_state or _has_one_order(data)):
            warn(
                f"the {self.split} data ({type(data).__name__}) may have another order in epoch {epoch} than without "
                "the interruption: the checkpoint has no state of a random generator of it (an attribute such as "
                "`generator` or `rng`), and it has no method set_epoch(epoch). Give PyTorch's DataLoader a "
                "generator=torch.Generator().manual_seed(0), give a class of your own state_dict() and "
                "load_state_dict(state), or take a loader of ours (DataLoaderBuilder) or of Grain"
            )
        return batches

    def _order(self, data: Iterable[Any], epoch: int, start: int, states: Any, warn: Callable[[str], None]) -> bool:
        """Set an iterable to the beginning of an epoch. Return True if its order is known to be the epoch's order."""
        has_epoch = self.split == "train" and set_epoch(data, epoch)
        generators = generators_of(data)
        if states is None:
            return has_epoch
        try:
            restore(generators, {k: x for k, x in from_json(states).items() if k not in self._before_call})
        except Exception as error:
            problem = (
                f"the {self.split} data ({type(data).__name__}) does not take back the states of its random generators "
                f"at the beginning of epoch {epoch}: {error!r}"
            )
            if start:
                raise LearnerError(
                    f"{problem}. Pass the data that the run was trained on, or resume from the end of an epoch: "
                    "checkpoint(epoch)",
                    code="resume-data-differs",
                ) from error
            warn(f"{problem}. It may have another order than without the interruption")
        return True

    def _iterator(self, data: Iterable[Any], epoch: int, start: int, state: Any) -> tuple[Batches, bool]:
        """Return the batches, and True if they start at the position of the state."""
        if self.share is not None and not self.own and shards_itself(data, self.share, self.split):
            raise LearnerError(
                f"the function given as the {self.split} data returned a Grain DataLoader that reads a shard: pass "
                "PerProcess(function), so that no rows are lost",
                code="data-function-returns-shard",
            )
        if is_stream(data):
            self._flaw = flaw_of(data)
        restart(data)
        generators = generators_of(data)
        before = self._before_call | states_of(generators)  # making an iterator may draw the order of its epoch
        if self._before_call:
            generators |= generators_of_function(self._data)
        if _is_of_grain(data):
            allow_grain_workers()
        if not self._opened and self._unpeek is None:
            self._unpeek = _state_rewinder(data)
        iterator = iter(data)
        holder = data if state_methods(iterator) is None else iterator
        positioned = state is not None and state_methods(holder) is not None
        if positioned:
            put_back(holder, state, self.split, epoch, start)
            if holder is data:  # the data's next iterator starts there
                iterator = iter(data)
        where = self._where(holder)
        if where is not None and self.will_keep and not self._opened and state is None:
            self._state_at_start = _text_of(state_methods(holder), self.split)
        self._has_state = where is not None or bool(generators)
        if where is not None or isinstance(data, list | tuple):
            batches = self._sharded(iterator, where)
            batches.between = where if holder is data else None
            return batches, positioned
        self._digests = digests = list[int]()

        @functools.cache
        def stored() -> Any:  # one object for all batches of the epoch
            order = {GENERATORS: to_json(before, self.split)} if generators else {}
            return order | ({FIRST: digests[0]} if digests else {})

        def initial_state() -> Any:
            return (stored() or None) if self._keeps else None

        def final_state() -> Any:
            return {GENERATORS: to_json(states_of(generators), self.split)} if generators and self._keeps else None

        return self._sharded(_digesting(iterator, digests), initial_state, final_state), positioned

    def _continued(
        self, batches: Batches, epoch: int, start: int, state: Any, warn: Callable[[str], None]
    ) -> Batches | None:
        """See `Source`. Data that counts its iterators must be iterated only once per epoch."""
        if epoch != 1 or not start or isinstance(self._data, list | tuple) or batches.where is None:
            return None
        is_of_beginning = state is None or (_is_of_beginning(state) and GENERATORS not in state)
        if not is_of_beginning and not (_is_of_beginning(state) and state == batches.where()):
            return None
        self._skip(batches, self._data, epoch, start, (state or {}).get(FIRST), False, warn)
        return batches

    def _skip(
        self,
        batches: Batches,
        data: Any,
        epoch: int,
        start: int,
        first: int | None,
        ordered: bool,
        warn: Callable[[str], None],
    ) -> None:
        """Read and drop the batches before a position. `first` is the checksum of the first batch, if it is known."""
        name = f"the {self.split} data ({type(data).__name__})"
        warn(
            f"{name} cannot be put back to a position{self._flaw}. {start} {self._unit} of epoch {epoch} are read "
            "again and dropped. No steps are run for them and nothing is placed on a device, but producing them "
            f"takes its usual time{'' if ordered else _IF_THE_SAME}. A loader of ours (DataLoaderBuilder), a Grain "
            "dataset, or an iterator with get_state and set_state goes there at once"
        )
        for number in range(start):
            try:
                next(batches)
            except StopIteration:
                raise self.shorter(epoch, start, number) from None
        if first is not None and self._digests and self._digests[0] != first:
            warn(
                f"{name} begins epoch {epoch} with another batch than before the interruption: it depends on more than "
                "the epoch and its own random generators, such as on how often it was read. Unless its rows are only "
                "changed at random, the rest of the epoch has some a second time, and lacks others"
            )

    def _after_change(self, epoch: int, state: Any, warn: Callable[[str], None]) -> Batches | None:
        """Return the batches of an epoch before which the data was changed, and had this state. Return None if they end
        immediately, because the data is still at the end of the previous epoch: the epoch is then opened again.
        """
        data = self._make()
        put_back(data, state, self.split, epoch - 1, 0)
        self._order(data, epoch, 0, None, warn)  # after the state, which contains the previous epoch
        batches, _ = self._iterator(data, epoch, 0, None)
        try:
            batches.peek()
        except StopIteration:
            return None
        return batches

    def end_epoch(self, epoch: int, state: Any, warn: Callable[[str], None]) -> Callable[[], Any] | None:
        """See `Source`."""
        if _is_of_beginning(state) or is_of_datasets(state):
            return None
        data = self._make()
        if _is_of_grain(data) or is_stream(data):
            return None  # its iterators carry no state into the next; workers or a network take seconds to start
        try:
            if isinstance(data, CompositeStream):
                if self._unpeek is not None:  # for parts that had no state when the epoch ended
                    self._unpeek(lambda text: None)
                data.end_epoch(from_json(state))
                return None
            batches, positioned = self._iterator(data, epoch, self.batches or 0, state)
        except LearnerError as error:
            # No batch of an epoch is lost or repeated, and the data may differ on purpose.
            warn(
                f"the {self.split} data does not take back the state that it had at the end of epoch {epoch}: "
                f"{error.__cause__ or error!r}. Epoch {epoch + 1} starts without it, and may have another order than "
                "without the interruption"
            )
            if self._unpeek is not None:
                self._unpeek(lambda text: None)  # if it takes back no state at all, the warning above suffices
            return None
        if positioned and next(batches, None) is not None:
            # The end of the epoch is the start of the next one, whose first batch must not be lost.
            batches, positioned = self._iterator(data, epoch, self.batches or 0, state)
        return batches.between if positioned else None


def rewinder(data: Any) -> Callable[[], None]:
    """Return a function that puts data back into its present state: its random generators, and its own state if it has
    methods for that. Data of `learner` needs none. Iterators, which can be read only once, stay where they are.
    """
    data = data.data if isinstance(data, PerProcess) else data
    if isinstance(data, Iterator):
        return lambda: None
    if isinstance(data, CompositeStream):
        return _call_each([rewinder(part) for part in data.parts])
    generators = _generators(data)
    states, put_state_back = states_of(generators), _state_rewinder(data)

    def rewind() -> None:
        restore(generators, states)
        put_state_back(warn)

    return rewind


def _state_rewinder(data: Any) -> Callable[[Callable[[str], None]], None]:
    """Return a function that puts data back into the present state of its own methods, if it has them. It calls its
    argument with a warning if the data does not take the state back.
    """
    if isinstance(data, CompositeStream):
        return _call_each([_state_rewinder(part) for part in data.parts])
    # Those of PyTorch start their workers if they are asked for a state before they are read.
    is_known = type(data).__module__.partition(".")[0] in ("grain", "torch", "torchdata")
    pair = None if is_known else state_methods(data)
    state = None
    if pair is not None:
        with contextlib.suppress(Exception):  # some have a state only once they are read
            state = copy.deepcopy(pair[0]())

    def rewind(warn: Callable[[str], None]) -> None:
        if pair is not None and state is not None:
            try:
                pair[1](copy.deepcopy(state))
            except Exception as error:
                warn(
                    f"{type(data).__name__} does not take back the state that it had before it was read ({error!r}), "
                    "so it may give other data now"
                )

    return rewind


def _call_each(functions: list[Callable[..., None]]) -> Callable[..., None]:
    """Return a function that calls all functions with its arguments."""

    def call(*arguments: Any) -> None:
        for function in functions:
            function(*arguments)

    return call


def _generators(data: Any) -> dict[str, Any]:
    """Return the random generators of an iterable, or of a function that returns one."""
    return generators_of(data) if isinstance(data, Iterable) else generators_of_function(data)


def _is_of_grain(data: Any) -> bool:
    return type(data).__module__.partition(".")[0] == "grain"


def _is_of_beginning(state: Any) -> bool:
    """Return True for a state at the beginning of an epoch, rather than at a position."""
    return isinstance(state, dict) and bool(state) and state.keys() <= {GENERATORS, FIRST}


def _digesting(batches: Iterator[Any], digests: list[int]) -> Iterator[Any]:
    """Yield the batches, and append the checksum of the first batch, if it has one."""
    for batch in itertools.islice(batches, 1):
        with contextlib.suppress(Exception):  # placing it reports the error
            digests += [digest for digest in [digest_of(batch)] if digest is not None]
        yield batch
        del batch  # while the next one is made
    yield from batches


def _has_one_order(data: Iterable[Any]) -> bool:
    """Return True if each epoch has one order, or the iterable restarts in each epoch."""
    return isinstance(data, list | tuple | Iterator) or describe_iterable(data)["order"] == "as given"


class OneShotSource(StatefulSource):
    """A one-shot iterator: it has one epoch, and cannot be read again from its start."""

    # By iterator, the batch that a refused run has read of it: first of the next run. Not of `map`, `zip` and others of
    # C, to which there are no weak references.
    _unread: weakref.WeakKeyDictionary[Iterator[Any], Any] = weakref.WeakKeyDictionary()

    def __init__(self, split: str, share: ProcessShard | None, own: bool, iterator: Iterator[Any]):
        super().__init__(split, None, share, own)
        self._data = self._iterator = iterator
        self._used = False
        self._peeked: list[Any] = []

    _kind = "iterator"

    repeats = False

    def refuse_position(self, epoch: int, start: int, state: Any = None) -> None:
        """See `Source`."""
        by_state = epoch == 1 and state is not None and state_methods(self._iterator) is not None
        if (epoch, start) != (1, 0) and not by_state:
            raise LearnerError(
                f"the {self.split} data is an iterator that cannot be repeated, so it cannot be put back to batch "
                f"{start} of epoch {epoch}: pass a loader, a function that returns a new iterator, or an iterator "
                "with get_state and set_state (or state_dict and load_state_dict)",
                code="resume-data-not-repeatable",
                start=start,
                epoch=epoch,
            )

    def _open(self, epoch: int, start: int, state: Any, warn: Callable[[str], None]) -> Batches:
        if start:
            self.refuse_position(epoch, start, state)
            put_back(self._iterator, state, self.split, epoch, start)
            self._take_unread()
        elif self._used:
            again = f"epoch {epoch}" if self.split == "train" else "another validation"
            raise LearnerError(
                f"the {self.split} data is exhausted: it is an iterator (or generator) that can be read once, and it "
                f"is needed again for {again}. Pass a loader, a list, or the generator function itself rather than its "
                "result; in a config, name a function with yield, or a class with __iter__",
                code="data-exhausted",
            )
        self._used = True
        return self._sharded(self._batches(), self._where(self._iterator))

    def _take_unread(self) -> list[Any]:
        # By the source that reads: others are opened for a look at the length, and closed.
        with contextlib.suppress(KeyError, TypeError):
            return [self._unread.pop(self._iterator)]
        return []

    def _batches(self) -> Iterator[Any]:
        self._peeked = self._take_unread() or [*itertools.islice(self._iterator, 1)]
        yield from self._peeked
        self._peeked = []
        yield from self._iterator

    def close(self) -> None:
        """See `Source`."""
        if self._kept is not None:
            with contextlib.suppress(TypeError):
                self._unread[self._iterator] = self._peeked[0]
        super().close()


def _text_of(pair: tuple[Callable[[], Any], Callable[[Any], Any]] | None, split: str) -> str | None:
    """Return the state of data as text, or None if it has none that can be stored."""
    if pair is None:
        return None
    with contextlib.suppress(Exception):  # of the user's method; saving a checkpoint reports it
        return str(to_json(pair[0](), split))
    return None


def _call(make: Callable[[], Any], split: str) -> Iterable[Any]:
    data = make()
    if not isinstance(data, Iterable):
        raise LearnerError(
            f"the function given as the {split} data returned {type(data).__name__}; it needs to return an iterator of "
            "batches (or to be a generator function)",
            code="data-function-returns-no-iterator",
            split=split,
        )
    return data
