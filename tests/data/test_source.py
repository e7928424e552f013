"""Tests of data of every kind that users pass: batches, their order, positions and states."""

import contextlib
import itertools
import json

import grain
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from absl import flags

from learner import LearnerBuilder
from learner.data import ArrayDataset, DataLoaderBuilder, Dataset, view
from learner.data import source as source_module
from learner.data.batch_arrays import batch_arrays
from learner.data.iterable_source import rewinder
from learner.data.source import source_of
from tests.support.codes import raises_code
from tests.support.runs import line, quiet

ROWS, SIZE = 10, 4


def batch_list(rows=ROWS, size=SIZE):
    """Return batches of consecutive numbers: [0..3], [4..7], [8, 9]."""
    return [{"x": np.arange(first, min(first + size, rows))} for first in range(0, rows, size)]


class Unsized:
    """An iterable without a length, which can be read repeatedly."""

    def __iter__(self):
        return iter(batch_list())


class RefusesLength(Unsized):
    """An iterable whose `__len__` raises, like PyTorch's `DataLoader` of an iterable dataset."""

    def __len__(self):
        raise TypeError("this dataset has no len()")


class HasNoLength(Unsized):
    """An iterable with the `__len__` of a base class, like some of PyTorch's samplers."""

    def __len__(self):
        raise NotImplementedError


class Numbers(Dataset):
    """A dataset of items, not of batches."""

    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        return {"x": np.int64(index)}


class Indexed:
    """A class that is no `Dataset`, but has its two methods."""

    __len__, __getitem__ = Numbers.__len__, Numbers.__getitem__


def generator_function():
    yield from batch_list()


def grain_map(rows=ROWS):
    return grain.MapDataset.source([{"x": np.int64(i)} for i in range(rows)]).batch(SIZE)


REPEATABLE = {
    "our loader": (lambda: DataLoaderBuilder().batch_size(SIZE).build({"x": np.arange(ROWS)}), None, 3),
    "our loader over Grain": (lambda: DataLoaderBuilder().batch_size(SIZE).build(Numbers()), None, 3),
    "list": (batch_list, None, 3),
    "tuple": (lambda: tuple(batch_list()), None, 3),
    "iterable without a length": (Unsized, None, None),
    "iterable whose length raises": (RefusesLength, None, None),
    "iterable without an implemented length": (HasNoLength, None, None),
    "generator function": (lambda: generator_function, None, None),
    "function that returns a list": (lambda: batch_list, None, None),
    "Grain MapDataset": (grain_map, None, 3),
    "Grain IterDataset": (lambda: grain_map().to_iter_dataset(), None, None),
    "dataset with a batch size": (Numbers, SIZE, 3),
    "dataset by its methods": (Indexed, SIZE, 3),
    "array dataset with a batch size": (lambda: ArrayDataset({"x": np.arange(ROWS)}), SIZE, 3),
}


def numbers_of(batches):
    return [np.asarray(batch["x"]).tolist() for batch in batches]


EPOCH = numbers_of(batch_list())


@pytest.fixture(params=REPEATABLE)
def kind(request):
    make, batch_size, batches = REPEATABLE[request.param]
    return source_of(make(), "train", batch_size=batch_size), batches


def test_repeatable_data_has_whole_epochs(kind):
    source, batches = kind
    assert source.batches == batches
    assert [numbers_of(source.open(epoch)) for epoch in (1, 2, 3)] == [EPOCH] * 3


def test_peeked_batch_is_in_the_epoch(kind):
    source, _ = kind
    assert numbers_of([source.peek(1)]) == EPOCH[:1]
    assert numbers_of(source.open(1)) == EPOCH
    assert numbers_of(source.open(2)) == EPOCH


def test_peeking_twice(kind):
    source, _ = kind
    assert numbers_of([source.peek(1), source.peek(1)]) == EPOCH[:1] * 2
    assert numbers_of(source.open(1)) == EPOCH


@pytest.mark.parametrize("start", range(len(EPOCH) + 1))
def test_epoch_from_any_batch_with_and_without_a_peek(kind, start):
    source, _ = kind
    assert numbers_of(source.open(1, start)) == EPOCH[start:]
    source.peek(1)
    assert numbers_of(source.open(1, start)) == EPOCH[start:]
    source.peek(1)
    assert numbers_of(source.open(2, start)) == EPOCH[start:]


def test_order_of_a_loader_follows_the_epoch():
    loader = DataLoaderBuilder().batch_size(SIZE).shuffle(seed=3).build({"x": np.arange(ROWS)})
    source = source_of(loader, "train")
    source.peek(1)
    for epoch in (2, 1, 5):
        assert np.concatenate([b["x"] for b in source.open(epoch)]).tolist() == loader.order(epoch).tolist()


def test_training_is_shuffled_and_validation_is_not():
    shuffled = source_of(Numbers(), "train", batch_size=SIZE, shuffle=0)
    orders = [np.concatenate([b["x"] for b in shuffled.open(epoch)]).tolist() for epoch in (1, 2)]
    assert orders[0] != orders[1]
    assert [sorted(order) for order in orders] == [list(range(ROWS))] * 2
    assert numbers_of(source_of(Numbers(), "valid", batch_size=SIZE).open(1)) == EPOCH


# -- iterators that can be read once -----------------------------------------------------------------------------------


def test_flags_of_grain_are_parsed():
    flags.FLAGS.unparse_flags()
    source_of(grain_map().to_iter_dataset(), "train").open(1)
    assert flags.FLAGS.is_parsed()


@pytest.mark.full
def test_grain_workers_start_with_unparsed_flags():
    flags.FLAGS.unparse_flags()
    workers = grain.multiprocessing.MultiprocessingOptions(num_workers=1)
    with contextlib.closing(source_of(grain_map().to_iter_dataset().mp_prefetch(workers), "train")) as source:
        assert [batch["x"].tolist() for batch in source.open(1)] == [batch["x"].tolist() for batch in grain_map()]


def test_endless_grain_dataset_has_no_length():
    source = source_of(grain_map().repeat(), "train")
    assert source.batches is None
    assert numbers_of(itertools.islice(source.open(1), 4)) == EPOCH + EPOCH[:1]


@pytest.mark.parametrize("make", [generator_function, lambda: iter(batch_list())], ids=["generator", "iterator"])
def test_one_shot_iterator_has_one_epoch(make):
    source = source_of(make(), "train")
    assert source.batches is None
    assert numbers_of([source.peek(1)]) == EPOCH[:1]
    assert numbers_of(source.open(1)) == EPOCH
    with raises_code("data-exhausted", "train", "2"):
        source.open(2)


def test_batch_read_by_a_refused_run_is_not_lost():
    data = generator_function()
    for _ in range(2):  # two runs that are refused
        refused = source_of(data, "train")
        assert numbers_of([refused.peek(1)]) == EPOCH[:1]
        refused.close()
        source_of(data, "train").close()  # reads nothing
    source = source_of(data, "train")
    source.peek(1)
    assert numbers_of(source.open(1)) == EPOCH
    source.close()
    with raises_code("data-without-batches"):
        source_of(data, "train").peek(1)


def test_states_of_an_iterator_after_a_refused_run():
    data = iter(Orders())
    open_with_state(data).close()
    assert with_states(open_with_state(data), 1) == with_states(open_with_state(iter(Orders())), 1)


def test_one_shot_iterator_without_a_peek():
    source = source_of(generator_function(), "train")
    assert numbers_of(source.open(1)) == EPOCH


def test_one_shot_iterator_cannot_be_positioned():
    source = source_of(generator_function(), "train")
    with raises_code("resume-data-not-repeatable", start=2):
        source.open(1, 2)


def test_endless_iterator_is_read_lazily():
    produced = []

    def endless():
        while True:
            produced.append(len(produced))
            yield {"x": np.zeros(1)}

    source = source_of(endless(), "train")
    source.peek(1)
    batches = source.open(1)
    next(batches), next(batches)
    assert len(produced) == 2


# -- arrays that may live on the device --------------------------------------------------------------------------------


def test_rows_of_arrays_in_memory():
    arrays, order, size = source_of(REPEATABLE["our loader"][0](), "train").rows
    assert (arrays["x"].tolist(), order(1).tolist(), size) == (list(range(ROWS)), list(range(ROWS)), SIZE)


def test_large_arrays_stream(monkeypatch):
    loader = REPEATABLE["our loader"][0]()
    monkeypatch.setattr(source_module, "RESIDENT_BYTES", loader.arrays["x"].nbytes - 1)
    assert source_of(loader, "train").rows is None
    monkeypatch.setattr(source_module, "RESIDENT_BYTES", loader.arrays["x"].nbytes)
    assert source_of(loader, "train").rows is not None


@pytest.mark.parametrize("name", [name for name in REPEATABLE if "array" not in name and name != "our loader"])
def test_everything_else_streams(name):
    make, batch_size, _ = REPEATABLE[name]
    assert source_of(make(), "train", batch_size=batch_size).rows is None


# -- what is not data --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "code", "values"),
    [
        ({"x": np.zeros(3), "y": np.zeros(3)}, "data-type", ("train", "a dict with x, y")),
        ("digits", "data-type", ("train", "of type str")),
        (b"digits", "data-type", ("train", "of type bytes")),
        (np.zeros((4, 2)), "data-type", ("train", "of type ndarray")),
        (7, "data-type", ("train", "of type int")),
        (DataLoaderBuilder().batch_size(2), "data-loader-not-built", ("train",)),
        (Numbers(), "data-dataset-without-batches", ("Numbers",)),
        (Indexed(), "data-dataset-without-batches", ("Indexed",)),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_wrong_data(data, code, values):
    with raises_code(code, *values):
        source_of(data, "train")


@pytest.mark.parametrize(
    ("arrays", "code"),
    [
        ({"x": np.zeros((0, 2))}, "data-dataset-empty"),
        ({"x": np.zeros(3), "y": np.zeros(4)}, "data-arrays-axes-differ"),
        ({}, "data-arrays-missing"),
    ],
)
def test_wrong_arrays_are_named_with_their_split(arrays, code):
    with raises_code(code, "the valid-b data: an ArrayDataset"):
        source_of(arrays, "valid-b", batch_size=2)


@pytest.mark.parametrize("empty", [[], (), lambda: iter([]), iter([])], ids=["list", "tuple", "function", "iterator"])
def test_empty_data_raises(empty):
    with raises_code("data-without-batches", "valid"):
        source_of(empty, "valid").peek(1)


def test_function_that_returns_no_iterator():
    with raises_code("data-function-returns-no-iterator", "NoneType", split="train"):
        source_of(lambda: None, "train").peek(1)


# -- positions ---------------------------------------------------------------------------------------------------------


class Orders:
    """Batches in another order in each epoch, drawn from one generator."""

    def __init__(self, seed=0):
        self.generator, self.made = np.random.default_rng(seed), 0

    def __iter__(self):
        return OrdersIterator(self)


class OrdersIterator:
    """An iterator whose state contains its position and the generator of its iterable."""

    def __init__(self, whole):
        self.whole, self.next = whole, 0
        self.before = whole.generator.bit_generator.state
        self.order = whole.generator.permutation(len(EPOCH))

    def __iter__(self):
        return self

    def __next__(self):
        if self.next == len(EPOCH):
            raise StopIteration
        self.whole.made += 1
        self.next += 1
        return batch_list()[self.order[self.next - 1]]

    def get_state(self):
        return {"before": self.before, "next": self.next}

    def set_state(self, state):
        self.whole.generator.bit_generator.state = state["before"]
        self.__init__(self.whole)
        self.next = state["next"]


class TorchdataOrders(Orders):
    """A loader like torchdata's: the state is the loader's, and its next iterator starts there, even at the end."""

    at = None

    def __iter__(self):
        self.iterator, self.at, at = OrdersIterator(self), None, self.at
        if at is not None:
            self.iterator.set_state(at)
        return map(dict, self.iterator)

    def state_dict(self):
        return self.iterator.get_state()

    def load_state_dict(self, state):
        self.at = state


class RenamedIterator(OrdersIterator):
    state_dict, load_state_dict = OrdersIterator.get_state, OrdersIterator.set_state
    get_state = set_state = None


class Renamed(Orders):
    def __iter__(self):
        return RenamedIterator(self)


class Skipped(Orders):
    """The same batches without a state."""

    def __iter__(self):
        yield from OrdersIterator(self)


STATEFUL = {"Grain's": Orders, "torchdata's": TorchdataOrders, "torchdata's, of the iterator": Renamed}


def with_states(source, epoch, start=0, state=None, warn=pytest.fail):
    """Return the numbers of each batch, with the state after it."""
    batches = source.open(epoch, start, state, warn)
    return [(np.asarray(batch["x"]).tolist(), batches.where()) for batch in batches]


def open_with_state(data):
    source = source_of(data, "train")
    source.peek(1)
    assert source.keep_state() == []
    return source


@pytest.mark.parametrize("make", STATEFUL.values(), ids=STATEFUL)
@pytest.mark.parametrize("done", range(1, 3 * len(EPOCH)))
def test_stateful_iterable_resumes_at_any_batch(make, done):
    source = open_with_state(make())
    epochs = {epoch: with_states(source, epoch) for epoch in (1, 2, 3)}
    assert len({repr([numbers for numbers, _ in epoch]) for epoch in epochs.values()}) > 1
    _, state = [batch for epoch in epochs.values() for batch in epoch][done - 1]
    state = json.loads(json.dumps(state))
    epoch, start = 1 + done // len(EPOCH), done % len(EPOCH)

    again = open_with_state(make(seed=99))
    assert with_states(again, epoch, start, state) == epochs[epoch][start:]
    for later in range(epoch + 1, 4):
        assert with_states(again, later) == epochs[later]


@pytest.mark.parametrize("make", STATEFUL.values(), ids=STATEFUL)
def test_stateful_iterable_reads_no_batch_twice(make):
    state = with_states(open_with_state(make()), 1)[1][1]
    data = make()
    source = open_with_state(data)
    assert data.made == 1  # by `peek`
    list(source.open(1, 2, state, pytest.fail))
    assert data.made == 1 + len(EPOCH) - 2


@pytest.mark.parametrize("data", [Orders(), TorchdataOrders(), iter(Orders()), Skipped(), grain_map()])
def test_states_are_read_only_if_kept(data, monkeypatch):
    monkeypatch.setattr(OrdersIterator, "get_state", lambda self: pytest.fail("asked for the state"))
    source = source_of(data, "train")
    source.peek(1)
    batches = source.open(1)
    next(batches)
    assert batches.where is None or batches.where() is None


def test_state_after_the_peeked_batch():
    data = Orders()
    source = source_of(data, "train")
    source.peek(1)
    source.keep_state()
    batches = source.open(1)
    next(batches)
    assert (data.made, batches.where()["next"]) == (1, 1)


@pytest.mark.parametrize(
    "make",
    [
        grain_map,
        lambda: grain_map().to_iter_dataset(),
        lambda: grain_map().seed(1).shuffle().to_iter_dataset().map(lambda batch: batch),
        lambda: lambda: iter(grain_map()),
    ],
    ids=["MapDataset", "IterDataset", "mapped", "function"],
)
@pytest.mark.parametrize("done", [1, 2, 3])
def test_grain_dataset_resumes(make, done):
    whole = with_states(open_with_state(make()), 1)
    again = open_with_state(make())
    epoch, start = 1 + done // len(EPOCH), done % len(EPOCH)
    assert with_states(again, epoch, start, whole[done - 1][1]) == whole[start:]


class WithName(Numbers):
    def __repr__(self):
        return "the numbers"


def grain_loader(data):
    sampler = grain.samplers.IndexSampler(ROWS, grain.sharding.NoSharding(), shuffle=True, num_epochs=1, seed=1)
    return grain.DataLoader(data_source=data, sampler=sampler, operations=[grain.transforms.Batch(SIZE)])


def test_end_of_an_epoch_is_not_restored_in_grain():
    """Restoring the end of an epoch would start Grain's worker processes for nothing."""
    read = []

    class Recorded(Numbers):
        def __getitem__(self, index):
            read.append(index)
            return super().__getitem__(index)

    few = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    data = grain.MapDataset.source(Recorded()).batch(SIZE).to_iter_dataset(few)
    batches = source_of(data, "train").open(2, 0, {"next_index": 1}, pytest.fail)
    assert read == []
    assert numbers_of(batches) == EPOCH


def test_grain_loader_resumes():
    whole = with_states(open_with_state(grain_loader(WithName())), 1)
    assert len(whole) == 3
    assert list(whole[0][1]) == ["base64"]
    assert with_states(open_with_state(grain_loader(WithName())), 1, 1, whole[0][1]) == whole[1:]


class WithAddress(Numbers):
    __repr__ = object.__repr__


def test_grain_loader_with_an_address_in_its_state_skips_batches():
    """Grain's state contains the source's `repr`; one with an address would be refused by another process."""
    warnings = []
    whole = with_states(open_with_state(grain_loader(WithAddress())), 1)
    assert [state for _, state in whole] == [None] * 3
    assert with_states(open_with_state(grain_loader(WithAddress())), 1, 1, None, warnings.append) == whole[1:]
    (warning,) = warnings
    assert "the address of an object" in warning
    assert "data source with a __repr__" in warning


def test_stateful_one_shot_iterator_can_be_positioned():
    state = with_states(open_with_state(iter(Orders())), 1)[0][1]
    expected = [numbers for numbers, _ in with_states(open_with_state(iter(Orders())), 1)[1:]]
    source = open_with_state(iter(Orders(seed=99)))
    source.refuse_position(1, 1, state)
    assert numbers_of(source.open(1, 1, state)) == expected


@pytest.mark.parametrize(
    ("data", "position"),
    [
        (lambda: iter(Orders()), (1, 1, None)),
        (lambda: iter(Orders()), (2, 0, {"next": 3})),
        (generator_function, (1, 1, {"next": 1})),
    ],
    ids=["no state", "another epoch", "no methods"],
)
def test_one_shot_iterator_refuses_other_positions(data, position):
    source = open_with_state(data())
    with raises_code("resume-data-not-repeatable"):
        source.refuse_position(*position)


@pytest.mark.parametrize("state", [None, {"next": 2}], ids=["none", "of something else"])
@pytest.mark.parametrize("make", [Unsized, RefusesLength, lambda: generator_function], ids=["a", "b", "function"])
def test_batches_are_skipped_with_one_warning_without_a_state(make, state):
    warnings = []
    assert numbers_of(source_of(make(), "train").open(5, 2, state, warnings.append)) == EPOCH[2:]
    (warning,) = warnings
    for part in (
        "2 batches of epoch 5 are read again and dropped",
        "No steps are run for them and nothing is placed on a device",
        "the same batches in the same order",
        "DataLoaderBuilder",
        "get_state and set_state",
    ):
        assert part in warning


@pytest.mark.parametrize("name", REPEATABLE)
def test_no_warning_at_the_start_of_an_epoch(name):
    make, batch_size, _ = REPEATABLE[name]
    source = source_of(make(), "train", batch_size=batch_size)
    assert [numbers_of(source.open(epoch, warn=pytest.fail)) for epoch in (1, 2, 3)] == [EPOCH] * 3


@pytest.mark.parametrize("name", REPEATABLE)
def test_resuming_warns_of_an_order_without_a_state(name):
    make, batch_size, _ = REPEATABLE[name]
    warnings = []
    source = source_of(make(), "train", batch_size=batch_size)
    assert numbers_of(source.open(3, warn=warnings.append)) == EPOCH
    list(source.open(4, warn=pytest.fail))
    assert len(warnings) == (REPEATABLE[name][0] in (Unsized, RefusesLength, HasNoLength))
    assert all("generator=torch.Generator().manual_seed(0)" in text for text in warnings)


@pytest.mark.parametrize(
    "name", ["our loader", "our loader over Grain", "list", "tuple", "function that returns a list"]
)
def test_indexed_data_needs_no_state(name):
    source = source_of(REPEATABLE[name][0](), "train")
    source.keep_state()
    batches = source.open(1, 2, {"of": "something else"}, pytest.fail)
    assert numbers_of(batches) == EPOCH[2:]
    assert batches.where is None


def test_loader_does_not_read_skipped_rows():
    read = []

    class Counted(Numbers):
        def __getitem__(self, index):
            read.append(index)
            return super().__getitem__(index)

    source = source_of(DataLoaderBuilder().batch_size(2).prefetch(0).build(Counted()), "train")
    assert numbers_of(source.open(1, 4)) == [[8, 9]]
    assert read == [8, 9]


def test_data_shorter_than_the_position():
    with raises_code("resume-data-shorter", "3", start=5, epoch=2):
        source_of(Unsized(), "train").open(2, 5)


@pytest.mark.parametrize("data", [Orders, lambda: iter(Orders())], ids=["iterable", "iterator"])
def test_refused_state_inside_an_epoch_raises(data):
    with raises_code("resume-data-state-refused", "OrdersIterator", "2", "1", "KeyError"):
        source_of(data(), "train").open(1, 2, {"other": 1})


def test_refused_state_at_the_end_of_an_epoch_warns():
    warnings = []
    batches = source_of(Orders(), "train").open(2, 0, {"other": 1}, warnings.append)
    assert sorted(numbers_of(batches)) == EPOCH
    (warning,) = warnings
    assert "at the end of epoch 1: KeyError('before'). Epoch 2 starts without it" in warning


class Counted:
    """Batches with a state of the data itself, which another iterator continues."""

    def __init__(self):
        self.read = 0

    def __iter__(self):
        while self.read < len(EPOCH):
            self.read += 1
            yield batch_list()[self.read - 1]
        self.read = 0

    def state_dict(self):
        return {"read": self.read}

    def load_state_dict(self, state):
        self.read = state["read"]


@pytest.mark.parametrize("state", [None, {"generators": {}}, {"first batch": 3}, {"datasets": []}, {"other": 1}])
@pytest.mark.parametrize("wrap", [lambda data: data, lambda data: lambda: data], ids=["iterable", "function"])
def test_no_batch_is_lost_without_a_state_at_the_end_of_an_epoch(wrap, state):
    """The batch that was read for its shape would be missing."""
    source = source_of(wrap(Counted()), "train")
    source.peek(1)
    warnings = []
    assert numbers_of(source.open(2, 0, state, warnings.append)) == EPOCH
    assert numbers_of(source.open(3, 0, None, warnings.append)) == EPOCH
    assert all("does not take back the state" in warning for warning in warnings)
    assert len(warnings) == (state == {"other": 1})


def test_data_that_has_begun_is_not_put_back():
    source = source_of(data := Counted(), "train")
    source.peek(1)
    assert numbers_of(source.open(1)) == EPOCH
    data.read = 1  # by a hook between two epochs
    assert numbers_of(source.open(2)) == EPOCH[1:]


def test_unsupported_state_raises_before_reading(monkeypatch):
    monkeypatch.setattr(OrdersIterator, "get_state", lambda self: {"self": self})
    source = source_of(Orders(), "train")
    source.peek(1)
    with raises_code("data-state-not-storable", "self", "OrdersIterator", split="train"):
        source.keep_state()


def test_state_methods_that_are_not_implemented(monkeypatch):
    def get_state(self):
        raise NotImplementedError

    monkeypatch.setattr(OrdersIterator, "get_state", get_state)
    source = open_with_state(Orders())
    assert [state for _, state in with_states(source, 1)] == [None] * 3


def test_rows_of_views_of_arrays():
    data = ArrayDataset({"x": np.arange(20)}).split([0.6, 0.4], seed=1)[0]
    source = source_of(DataLoaderBuilder().batch_size(4).shuffle(2).build(data), "train")
    assert source.has_rows
    arrays, order, size = source.rows
    batches = np.concatenate([batch["x"] for batch in source.open(3)])
    assert (arrays["x"][order(3)].tolist(), size) == (batches.tolist(), 4)
    assert sorted(batches.tolist()) == data.arrays["x"].tolist()


def test_large_data_and_items_have_no_rows():
    large = ArrayDataset(np.broadcast_to(np.zeros((1, 1), np.int8), (300, 2**20)))
    builder = DataLoaderBuilder().batch_size(4)
    data_sources = [
        source_of(builder.build(data), "train") for data in (large, large.shuffle(), Numbers(), large.slice(0, 9))
    ]
    assert [source.has_rows for source in data_sources] == [False, False, False, True]
    assert [source.rows is None for source in data_sources] == [True, True, True, False]


@pytest.mark.full
@pytest.mark.parametrize(("library", "make"), [("pandas", "DataFrame"), ("polars", "DataFrame"), ("pyarrow", "table")])
def test_data_frames(tmp_path, library, make):
    columns = {"x": [0.5, 1.5, -1.0], "y": [1.0, 3.0, -2.0], "n": [1, 2, 3]}
    frame = getattr(pytest.importorskip(library), make)(columns)
    text = "ArrayDataset(3 rows: n int64 [], x float64 [], y float64 [])"
    assert (repr(view(frame)), repr(ArrayDataset(frame))) == (text, text)
    batch = next(iter(DataLoaderBuilder().batch_size(2).build(frame)))
    np.testing.assert_array_equal(batch["y"], [1.0, 3.0])
    learner = (
        LearnerBuilder(tmp_path)
        .renderer(None)
        .with_file_checkpointer(None)
        .with_batch_size(3)
        .build(
            {"w": jnp.zeros(())},
            optax.sgd,
            0.5,
            train_step=lambda m, b: {"loss": ((m["w"] * b["x"] - b["y"]) ** 2).mean()},
        )
    )
    # The gradient at 0 is -2 * (0.5 * 1 + 1.5 * 3 + 1 * 2) / 3.
    np.testing.assert_allclose(learner.fit(frame).model["w"], 7 / 3, rtol=1e-6)


class LazyFrame:
    """A stand-in for a lazy frame of polars, with the attributes that distinguish it from a data frame."""

    columns = ("x",)

    def __getitem__(self, name):
        raise TypeError("'LazyFrame' object is not subscriptable")

    def collect(self):
        return {"x": [1.0]}

    def collect_schema(self):
        return {"x": float}


def test_lazy_frame_is_refused(tmp_path):
    learner = LearnerBuilder(tmp_path).renderer(None).with_batch_size(1)
    learner = learner.build({"w": jnp.zeros(())}, optax.sgd, 0.5, train_step=dict)
    for use in (ArrayDataset, DataLoaderBuilder().batch_size(1).build, learner.fit):
        with raises_code("data-frame-lazy", "LazyFrame", "collect()"):
            use(LazyFrame())


def test_data_frames_with_one_name_for_several_columns():
    pandas, pyarrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    frames = [
        pandas.DataFrame([[1, 2], [3, 4]], columns=[0, "0"]),
        pandas.DataFrame([[1, 2], [3, 4]], columns=["0", "0"]),
        pyarrow.Table.from_arrays([pyarrow.array([1]), pyarrow.array([2])], names=["0", "0"]),
    ]
    for frame in frames:
        with raises_code("data-columns-twice", "2 columns", type(frame).__name__, name="0"):
            ArrayDataset(frame)


def test_column_of_a_data_frame():
    column = pytest.importorskip("pandas").Series([1.0, 2.0, 3.0], index=[2, 1, 7])
    batches = DataLoaderBuilder().batch_size(2).build(column)
    assert [batch.tolist() for batch in batches] == [[1.0, 2.0], [3.0]]


@pytest.mark.parametrize("dtype", ["category", None])
def test_texts_of_a_data_frame_are_refused_with_their_conversion(dtype):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"x": [1.0, 2.0, 3.0], "kind": pandas.Series(["dog", "cat", "dog"], dtype=dtype)})
    (batch,) = DataLoaderBuilder().batch_size(3).build(frame)
    with raises_code("batch-dtype", "'kind'", "dtype object", "frame[name].astype('category').cat.codes"):
        batch_arrays(batch, "train")
    frame["kind"] = frame["kind"].astype("category").cat.codes
    (batch,) = DataLoaderBuilder().batch_size(3).build(frame)
    assert batch_arrays(batch, "train")["kind"].tolist() == [1, 0, 1]


def test_data_frame_without_a_batch_size(tmp_path):
    frame = pytest.importorskip("pandas").DataFrame({"x": [1.0]})
    learner = LearnerBuilder(tmp_path).renderer(None).build({"w": jnp.zeros(())}, optax.sgd, 0.5, train_step=dict)
    with raises_code("data-type", "DataFrame", "with_batch_size"):
        learner.fit(frame)


class Late:
    """Data whose position follows the batch: a run that resumes would train the batch again."""

    def __init__(self):
        self.position = 0

    def __iter__(self):
        while self.position < 4:
            yield {"x": np.full((2, 1), self.position, np.float32)}
            self.position += 1
        self.position = 0

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


def test_a_state_that_the_first_batch_does_not_change_is_warned_about(tmp_path):
    for name, count in (("saves", 1), ("unsaved", 0)):
        builder = quiet(tmp_path / name, saves=name == "saves").num_epochs(1)
        builder.build(line(1), optax.sgd, 0.1, train_step=lambda model, batch: {"loss": model["w"].sum()}).fit(Late())
        assert (tmp_path / name / "experiment.log").read_text().count("was the same after its first batch") == count


class Counter:
    """Data whose state is the dictionary that it changes."""

    def __init__(self):
        self.position = {"at": 0}

    def state_dict(self):
        return self.position

    def load_state_dict(self, state):
        self.position = state

    def __iter__(self):
        while self.position["at"] < 3:
            self.position["at"] += 1
            yield self.position["at"]


def test_data_whose_state_is_its_own_dictionary_is_rewound():
    data = Counter()
    rewind = rewinder(data)
    for _ in range(3):
        assert list(data) == [1, 2, 3]
        rewind()
