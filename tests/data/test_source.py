"""What users pass as data: batches, and in which order, whatever they come from."""

import itertools

import grain
import numpy as np
import pytest

from learner.data import ArrayDataset, DataLoaderBuilder, Dataset
from learner.data import source as source_module
from learner.data.source import source_of
from learner.errors import LearnerError

ROWS, SIZE = 10, 4


def batch_list(rows=ROWS, size=SIZE):
    """Batches of consecutive numbers: [0..3], [4..7], [8, 9]."""
    return [{"x": np.arange(first, min(first + size, rows))} for first in range(0, rows, size)]


class Unsized:
    """Gives its batches anew each time, and has no length."""

    def __iter__(self):
        return iter(batch_list())


class RefusesLength(Unsized):
    """As PyTorch's `DataLoader` of an iterable dataset: `__len__` is there and raises."""

    def __len__(self):
        raise TypeError("this dataset has no len()")


class Numbers(Dataset):
    """Items, not batches."""

    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        return {"x": np.int64(index)}


class Indexed:
    """Not a `Dataset`, but with its two methods."""

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


def test_repeatable_data_gives_every_epoch_whole(kind):
    source, batches = kind
    assert source.batches == batches
    assert [numbers_of(source.open(epoch)) for epoch in (1, 2, 3)] == [EPOCH] * 3


def test_what_peek_took_is_still_in_the_epoch(kind):
    source, _ = kind
    assert numbers_of([source.peek(1)]) == EPOCH[:1]
    assert numbers_of(source.open(1)) == EPOCH
    assert numbers_of(source.open(2)) == EPOCH


def test_peeking_twice_does_not_lose_anything(kind):
    source, _ = kind
    assert numbers_of([source.peek(1), source.peek(1)]) == EPOCH[:1] * 2
    assert numbers_of(source.open(1)) == EPOCH


@pytest.mark.parametrize("start", range(len(EPOCH) + 1))
def test_an_epoch_opens_at_any_batch_with_and_without_a_peek(kind, start):
    source, _ = kind
    assert numbers_of(source.open(1, start)) == EPOCH[start:]
    source.peek(1)
    assert numbers_of(source.open(1, start)) == EPOCH[start:]
    source.peek(1)
    assert numbers_of(source.open(2, start)) == EPOCH[start:]


def test_the_order_of_our_loaders_follows_the_epoch_that_is_asked_for():
    loader = DataLoaderBuilder().batch_size(SIZE).shuffle(seed=3).build({"x": np.arange(ROWS)})
    source = source_of(loader, "train")
    source.peek(1)
    for epoch in (2, 1, 5):
        assert np.concatenate([b["x"] for b in source.open(epoch)]).tolist() == loader.order(epoch).tolist()


def test_a_shuffled_dataset_has_a_new_order_in_each_epoch_and_validation_keeps_its_own():
    shuffled = source_of(Numbers(), "train", batch_size=SIZE, shuffle=0)
    orders = [np.concatenate([b["x"] for b in shuffled.open(epoch)]).tolist() for epoch in (1, 2)]
    assert orders[0] != orders[1]
    assert [sorted(order) for order in orders] == [list(range(ROWS))] * 2
    assert numbers_of(source_of(Numbers(), "valid", batch_size=SIZE).open(1)) == EPOCH


# -- iterators that can be read once -----------------------------------------------------------------------------------


def test_a_grain_dataset_that_repeats_for_ever_has_no_length():
    source = source_of(grain_map().repeat(), "train")
    assert source.batches is None
    assert numbers_of(itertools.islice(source.open(1), 4)) == EPOCH + EPOCH[:1]


@pytest.mark.parametrize("make", [generator_function, lambda: iter(batch_list())], ids=["generator", "iterator"])
def test_a_one_shot_iterator_has_one_epoch_and_peek_loses_nothing(make):
    source = source_of(make(), "train")
    assert source.batches is None
    assert numbers_of([source.peek(1)]) == EPOCH[:1]
    assert numbers_of(source.open(1)) == EPOCH
    with pytest.raises(LearnerError, match=r"train data is exhausted.*epoch 2.*generator function itself"):
        source.open(2)


def test_a_one_shot_iterator_without_a_peek():
    source = source_of(generator_function(), "train")
    assert numbers_of(source.open(1)) == EPOCH


def test_a_one_shot_iterator_cannot_be_put_back():
    source = source_of(generator_function(), "train")
    with pytest.raises(LearnerError, match=r"cannot be put back to batch 2"):
        source.open(1, 2)


def test_an_endless_iterator_is_read_no_further_than_asked():
    taken = []

    def endless():
        while True:
            taken.append(len(taken))
            yield {"x": np.zeros(1)}

    source = source_of(endless(), "train")
    source.peek(1)
    batches = source.open(1)
    next(batches), next(batches)
    assert len(taken) == 2


# -- arrays that may live on the device --------------------------------------------------------------------------------


def test_arrays_in_memory_are_given_as_rows_with_their_order():
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


# -- what is no data ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"x": np.zeros(3), "y": np.zeros(3)}, r"train data is a dict with x, y; it needs a loader.*ArrayDataset"),
        ("digits", r"train data is of type str; it needs a loader"),
        (b"digits", r"train data is of type bytes"),
        (np.zeros((4, 2)), r"train data is of type ndarray; it needs a loader"),
        (7, r"train data is of type int; it needs a loader"),
        (DataLoaderBuilder().batch_size(2), r"train data is a DataLoaderBuilder; call \.build\(dataset\)"),
        (Numbers(), r"is a dataset \(Numbers\).*no batches.*with_batch_size"),
        (Indexed(), r"is a dataset \(Indexed\).*no batches.*with_batch_size"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_what_is_no_data_is_an_error_that_says_what_is_needed(data, message):
    with pytest.raises(LearnerError, match=message):
        source_of(data, "train")


@pytest.mark.parametrize("empty", [[], (), lambda: iter([]), iter([])], ids=["list", "tuple", "function", "iterator"])
def test_an_empty_loader_is_an_error(empty):
    with pytest.raises(LearnerError, match=r"valid data has no batches: the loader is empty"):
        source_of(empty, "valid").peek(1)


def test_a_function_that_returns_no_iterator_is_an_error_that_names_the_data():
    with pytest.raises(LearnerError, match=r"the function given as the train data returned NoneType"):
        source_of(lambda: None, "train").peek(1)
