"""Tests that random numbers of a dataset are a function of seed, epoch and index, however it is loaded."""

import itertools

import numpy as np
import pytest

from learner.data import ArrayDataset, DataLoaderBuilder, Dataset, view
from learner.data.dataset import is_epoch_dependent


def noisy(n, *seeds):
    """Return augmented views. Nested functions are pickled by value, so that workers need not import this file."""

    def add(item, rng):
        return item + rng.random(2)

    data = view([np.zeros(2)] * n)
    for seed in seeds:
        data = data.augment(add, seed)
    return data


def numbers(seed, epoch, index, below=0):
    """Return the two random numbers of an item, computed with NumPy."""
    key = np.random.SeedSequence(seed, spawn_key=(epoch, below)).generate_state(2, np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=[0, 0, index, 0])).random(2).tolist()


def rows(batches):
    return [row.tolist() for batch in batches for row in batch]


def loader(n, *seeds, shuffle=None, **options):
    builder = DataLoaderBuilder().batch_size(3)
    for name, value in options.items():
        getattr(builder, name)(value)
    return (builder if shuffle is None else builder.shuffle(shuffle)).build(noisy(n, *seeds))


@pytest.mark.parametrize("prefetch", [0, 3])
def test_loader_passes_the_epoch(prefetch):
    loaded = loader(5, 7, shuffle=2, prefetch=prefetch)
    for epoch in (1, 2, 9):
        expected = [numbers(7, epoch, index) for index in loaded.order(epoch).tolist()]
        assert rows(loaded.epoch(epoch)) == expected
        assert rows(loaded.epoch(epoch, start=1)) == expected[3:]
    assert rows(loaded)[0] == numbers(7, 1, loaded.order(1)[0])
    assert rows(loaded)[0] == numbers(7, 2, loaded.order(2)[0])


def test_restored_state_gives_the_same_numbers():
    batches = loader(7, 0, shuffle=2).epoch(3)
    next(batches)
    state, expected = batches.get_state(), rows(batches)
    again = loader(7, 0, shuffle=2).epoch(1)
    again.set_state(state)
    assert rows(again) == expected


def test_numbers_differ_between_indices_epochs_seeds_and_views():
    values = [noisy(3, seed).item_at(i, epoch)[0] for seed, i, epoch in itertools.product((0, 1), range(3), (1, 2, 3))]
    first, both = noisy(3, 4), noisy(3, 4, 4)
    values.append(both.item_at(0, 1)[0] - first.item_at(0, 1)[0])
    assert len({round(number, 9) for number in values}) == len(values)
    assert (both.item_at(2, 5) - first.item_at(2, 5)).tolist() == pytest.approx(numbers(4, 5, 2, below=1))


@pytest.mark.parametrize(
    "chained",
    [
        lambda data: data.map(np.negative).map(np.negative),
        lambda data: data.select(range(6)),
        lambda data: data.filter(lambda item: True),
        lambda data: data.concat(data).slice(0, 6),
        lambda data: view([np.zeros(2)]).concat(data).slice(1),
    ],
)
def test_views_pass_the_epoch(chained):
    data = chained(noisy(6, 3))
    assert [data.item_at(i, 4).tolist() for i in range(6)] == [numbers(3, 4, i) for i in range(6)]
    assert data[-1].tolist() == numbers(3, 1, 5)


def test_windows_and_folds_pass_the_epoch():
    data = noisy(6, 3)
    assert data.windows(2).item_at(1, 8).tolist() == [numbers(3, 8, 2), numbers(3, 8, 3)]
    assert [d.item_at(0, 8).tolist() for d in data.split([0.5, 0.5], None)] == [numbers(3, 8, 0), numbers(3, 8, 3)]


class EpochItems(Dataset):
    """A dataset of a user with other items in each epoch."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return self.item_at(index, 1)

    def item_at(self, index, epoch):
        return np.array([index, epoch])


def test_users_dataset_may_depend_on_the_epoch():
    loaded = DataLoaderBuilder().batch_size(2).build(EpochItems().map(np.negative))
    assert rows(loaded.epoch(5)) == [[0, -5], [-1, -5]]


def test_is_epoch_dependent():
    plain = view([1, 2, 3])
    assert [
        is_epoch_dependent(data) for data in (plain, plain.map(str).slice(1), ArrayDataset(np.ones(3)), [1], range(3))
    ] == [False] * 5
    assert all(
        map(is_epoch_dependent, (noisy(3, 0), plain.concat(noisy(3, 0)).map(str).windows(2), EpochItems().shuffle()))
    )


@pytest.mark.full
def test_workers_give_the_same_numbers():
    alone, workers = loader(7, 6), loader(7, 6, num_workers=1)
    for epoch in (1, 2):
        assert rows(workers.epoch(epoch)) == rows(alone.epoch(epoch)) == [numbers(6, epoch, i) for i in range(7)]
    workers.close()


@pytest.mark.full
@pytest.mark.parametrize("shuffle", [None, 5])
@pytest.mark.parametrize("num_workers", [1, 3])
def test_waiting_workers_read_the_requested_epoch(num_workers, shuffle):
    alone, workers = loader(7, 6, shuffle=shuffle), loader(7, 6, shuffle=shuffle, num_workers=num_workers)
    for epoch, start in ((1, 0), (1, 0), (4, 1), (5, 0)):
        assert rows(workers.epoch(epoch, start)) == rows(alone.epoch(epoch, start))
    workers.close()
