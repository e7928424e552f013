"""Tests of saving and restoring random generators of iterables, and of set_epoch."""

import itertools
import json
import random

import numpy as np
import pytest

from learner.data import DataLoaderBuilder
from learner.data.iterator_state import from_json, to_json
from learner.data.randomness import generators_of, generators_of_function, restore, set_epoch, states_of
from learner.data.source import source_of
from tests.support.codes import raises_code

ROWS, SIZE = 10, 4
KINDS = {
    "NumPy": lambda: np.random.default_rng(1),
    "NumPy's Mersenne Twister": lambda: np.random.Generator(np.random.MT19937(1)),
    "NumPy's older one": lambda: np.random.RandomState(1),
    "Python": lambda: random.Random(1),
}


class Shuffled:
    """Batches in an order that a generator draws in each epoch."""

    def __init__(self, generator):
        self._own = generator

    def __iter__(self):
        rows = list(range(ROWS))
        self._own.shuffle(rows)
        for first in range(0, ROWS, SIZE):
            yield {"x": np.array(rows[first : first + SIZE])}
        self._own.random()  # a draw at the end of the epoch


def numbers_of(batches):
    return [batch["x"].tolist() for batch in batches]


def open_with_state(data):
    source = source_of(data, "train")
    source.peek(1)
    source.keep_state()
    return source


def with_states(batches):
    return [(batch["x"].tolist(), batches.where()) for batch in batches]


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_generator_states_round_trip(make):
    generator = make()
    generator.random()
    stored = json.loads(json.dumps(to_json(states_of({"own": generator}), "train")))
    expected = [generator.random() for _ in range(3)]
    again = make()
    restore({"own": again}, from_json(stored))
    assert [again.random() for _ in range(3)] == expected


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_resumed_epochs_have_the_same_order(make):
    source = open_with_state(Shuffled(make()))
    whole = [source.open(epoch) for epoch in (1,)]
    first = with_states(whole[0])
    state_inside, state_after = first[0][1], whole[0].end()
    assert state_inside == first[-1][1] != state_after
    second = with_states(source.open(2))
    third = numbers_of(source.open(3))
    assert len({repr(sorted(map(repr, [n for n, _ in e]))) for e in (first, second)}) == 2

    inside = open_with_state(Shuffled(make()))
    warnings = []
    assert numbers_of(inside.open(2, 1, json.loads(json.dumps(second[0][1])), warnings.append)) == [
        numbers for numbers, _ in second[1:]
    ]
    assert numbers_of(inside.open(3)) == third
    (warning,) = warnings
    assert "1 batches of epoch 2 are read again and dropped" in warning
    assert "is right only if" not in warning

    between = open_with_state(Shuffled(make()))
    assert numbers_of(between.open(2, 0, state_after, pytest.fail)) == [numbers for numbers, _ in second]
    assert numbers_of(between.open(3)) == third


def test_no_states_without_keep_state():
    source = source_of(Shuffled(random.Random(1)), "train")
    batches = source.open(1)
    assert [state for _, state in with_states(batches)] == [None] * 3
    assert batches.end() is None


def test_missing_generator_raises_inside_an_epoch_and_warns_between_two():
    source = open_with_state(Shuffled(random.Random(1)))
    batches = source.open(1)
    state = with_states(batches)[0][1]
    batch = [{"x": np.zeros(2)}] * 3
    with raises_code("resume-data-differs", "_own"):
        source_of(batch, "train").open(1, 1, state)
    warnings = []
    list(source_of(batch, "train").open(2, 0, state, warnings.append))
    (warning,) = warnings
    assert "It may have another order" in warning


class Parts:
    """A loader with the parts of PyTorch's `DataLoader`."""

    def __init__(self):
        self.generator = np.random.default_rng(0)
        self.sampler = Shuffled(self.generator)
        self.batch_sampler = EpochRecorder()
        self.batch_sampler.sampler = EpochRecorder()
        self.dataset = Shuffled(random.Random(0))


class EpochRecorder:
    epochs = ()

    def set_epoch(self, epoch):
        self.epochs = (*self.epochs, epoch)


def test_generators_of_the_parts_of_a_loader():
    assert list(generators_of(Parts())) == ["generator", "dataset._own"]
    assert generators_of([1, 2]) == {}
    assert generators_of(np.random.default_rng) == {}


def test_set_epoch_counts_from_0_for_all_parts():
    loader = Parts()
    assert set_epoch(loader, 3)
    assert (loader.batch_sampler.epochs, loader.batch_sampler.sampler.epochs) == ((2,), (2,))
    assert not set_epoch([1, 2], 3)


@pytest.mark.parametrize(("split", "epochs"), [("train", (0, 1)), ("valid", ())])
def test_set_epoch_is_called_for_training_only(split, epochs):
    class Loader(EpochRecorder, list):
        pass

    loader = Loader([{"x": np.zeros(2)}])
    source = source_of(loader, split)
    for epoch in (1, 2):
        list(source.open(epoch, warn=pytest.fail))
    assert loader.epochs == epochs


@pytest.mark.full
@pytest.mark.parametrize("workers", [0, 2])
def test_pytorch_loader_resumes_with_its_generator(workers):
    torch = pytest.importorskip("torch")

    def loader():
        data = torch.utils.data.TensorDataset(torch.arange(ROWS))
        generator = torch.Generator().manual_seed(3)
        context = "forkserver" if workers else None
        return torch.utils.data.DataLoader(
            data, batch_size=5, shuffle=True, generator=generator, num_workers=workers, multiprocessing_context=context
        )

    def read(batches):
        return [batch[0].tolist() for batch in batches]

    source = open_with_state(loader())
    batches = source.open(1)
    first = read(batches)
    state = json.loads(json.dumps(batches.end()))
    second = source.open(2)
    inside, expected = second.where(), read(second)
    assert sorted(map(repr, first)) != sorted(map(repr, expected))
    assert read(open_with_state(loader()).open(2, 0, state, pytest.fail)) == expected
    assert read(open_with_state(loader()).open(2, 1, inside)) == expected[1:]


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_torchdata_loader_resumes_its_order():
    torch = pytest.importorskip("torch")
    loaders = pytest.importorskip("torchdata.stateful_dataloader")

    def loader(seed):
        torch.manual_seed(seed)
        data = [{"x": np.float32(number)} for number in range(ROWS)]
        return loaders.StatefulDataLoader(data, batch_size=5, shuffle=True)

    def read(batches):
        return [batch["x"].tolist() for batch in batches]

    source = open_with_state(loader(1))
    batches = source.open(1)
    first = read(batches)
    end = json.loads(json.dumps(batches.where()))
    batches = source.open(2)
    second = [next(batches)["x"].tolist()]
    inside = json.loads(json.dumps(batches.where()))
    second += read(batches)
    assert sorted(itertools.chain(*first)) == sorted(itertools.chain(*second)) == list(range(ROWS))
    assert first != second
    assert read(open_with_state(loader(2)).open(2, 0, end, pytest.fail)) == second
    assert read(open_with_state(loader(2)).open(2, 1, inside, pytest.fail)) == second[1:]


def test_object_whose_attributes_raise_is_no_generator():
    class Proxy:
        def __getattr__(self, name):
            raise RuntimeError("outside of a request")

    proxy, numbers = Proxy(), np.random.default_rng(0)
    assert list(generators_of_function(lambda: (proxy, numbers))) == ["numbers()"]


class Wrapped:
    def __init__(self, loader):
        self.parts = {"only": loader}

    def __iter__(self):
        yield from self.parts["only"]


def function_around(loader):
    def read():
        yield from loader

    return read


WRAPPERS = {
    "an iterable": Wrapped,
    "a function": function_around,
    "a mapped function": lambda loader: lambda: map(dict, loader),
    "its iterator": lambda loader: lambda: iter(loader),
}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_a_loader_inside_other_data_has_the_order_of_its_epochs(wrap):
    def loader():
        return DataLoaderBuilder().batch_size(SIZE).shuffle(seed=0).build({"x": np.arange(ROWS)})

    expected = [numbers_of(loader().epoch(epoch)) for epoch in range(1, 5)]
    data = wrap(loader())
    source, epochs, ends = open_with_state(data), [], []
    for epoch in range(1, 5):
        batches = source.open(epoch)
        epochs.append(with_states(batches))
        ends.append(epochs[-1][-1][1] if batches.end is None else batches.end())
    assert [[numbers for numbers, _ in epoch] for epoch in epochs] == expected
    resumed = open_with_state(wrap(loader()))
    assert numbers_of(resumed.open(3, 0, ends[1], pytest.fail)) == expected[2]
    assert numbers_of(resumed.open(4)) == expected[3]
    inside = open_with_state(wrap(loader()))
    assert numbers_of(inside.open(3, 1, json.loads(json.dumps(epochs[2][0][1])))) == expected[2][1:]
    again = source_of(data, "train")  # of another run in the process
    assert [numbers_of(again.open(epoch)) for epoch in (1, 2)] == expected[:2]
    assert not again.draws_itself()


def test_a_validation_does_not_restart_a_loader_of_the_train_split():
    loader = DataLoaderBuilder().batch_size(SIZE).shuffle(seed=0).build({"x": np.arange(ROWS)})
    train, valid = source_of(Wrapped(loader), "train"), source_of(Wrapped(loader), "valid")
    orders = [numbers_of((train if number % 2 == 0 else valid).open(1 + number // 2)) for number in range(6)]
    assert orders == [numbers_of(loader.epoch(epoch)) for epoch in range(1, 7)]
