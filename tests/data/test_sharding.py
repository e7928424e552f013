"""Tests of the rows that each of several processes reads, for every kind of data."""

import grain
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from learner.data import ArrayDataset, DataLoaderBuilder, PerProcess
from learner.data.sharding import ProcessShard
from learner.data.source import source_of
from tests.support.codes import raises_code
from tests.support.shared import together

ROWS, SIZE = 14, 4


def batch_list(rows=ROWS, size=SIZE):
    """Return batches of consecutive numbers: [0..3], [4..7], [8..11], [12, 13]."""
    return [{"x": np.arange(first, min(first + size, rows))} for first in range(0, rows, size)]


def generator_function():
    yield from batch_list()


def grain_map():
    return grain.MapDataset.source([{"x": np.int64(i)} for i in range(ROWS)]).batch(SIZE)


DATA = {
    "our loader": lambda: DataLoaderBuilder().batch_size(SIZE).build({"x": np.arange(ROWS)}),
    "our loader over Grain": lambda: DataLoaderBuilder().batch_size(SIZE).build([{"x": i} for i in range(ROWS)]),
    "a dataset with a batch size": lambda: ArrayDataset({"x": np.arange(ROWS)}),
    "list": batch_list,
    "generator function": lambda: generator_function,
    "iterator": generator_function,
    "Grain MapDataset": grain_map,
    "Grain IterDataset": lambda: grain_map().to_iter_dataset(),
    "arrays of JAX": lambda: [{"x": jnp.asarray(batch["x"])} for batch in batch_list()],
}
EPOCH = [batch["x"].tolist() for batch in batch_list()]


def shares(count, devices=1):
    return [ProcessShard(index, count, count * devices) for index in range(count)]


def sources(make, count, devices=1, wrap=lambda data: data):
    return [source_of(wrap(make()), "train", batch_size=SIZE, share=share) for share in shares(count, devices)]


def numbers(batches):
    return [np.asarray(batch["x"]).tolist() for batch in batches]


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize(("count", "devices"), [(1, 1), (2, 1), (2, 2), (4, 1)])
@pytest.mark.parametrize("peek", [False, True])
def test_parts_make_the_batches(name, count, devices, peek):
    process_sources = sources(DATA[name], count, devices)
    if peek:
        assert [len(source.peek(1)["x"]) for source in process_sources] == [SIZE // count] * count
    assert together([source.open(1) for source in process_sources], "x", count) == EPOCH


@pytest.mark.parametrize("name", ["list", "generator function", "Grain IterDataset", "arrays of JAX"])
def test_digests_of_whole_batches(name):
    same = sources(DATA[name], 2)
    (other,) = sources(lambda: [{"x": batch["x"] + 1} for batch in batch_list()], 1)
    parts = sources(DATA[name], 2, wrap=PerProcess)
    for source in (*same, other, *parts):
        source.peek(1)
    assert same[0].first_digest == same[1].first_digest != other.first_digest
    assert {source.first_digest for source in parts} == {None}


@pytest.mark.parametrize("wrap", [lambda data: data, PerProcess])
def test_digests_of_data_whose_rows_are_the_same_in_all_processes(wrap):
    """As with tensor parallelism over the processes: there is one share."""
    rows, share = {"x": np.arange(12)}, ProcessShard(0, 1, 1)

    def digest(data):
        source = source_of(wrap(data), "train", share=share)
        source.peek(1)
        return source.first_digest

    loaders = [DataLoaderBuilder().batch_size(4).build({"x": rows["x"] + n}) for n in (0, 0, 1)]
    lists = [[{"x": rows["x"] + n}] for n in (0, 0, 1)]
    for first, same, other in (map(digest, loaders), map(digest, lists)):
        assert isinstance(first, int)
        assert first == same != other


def test_digests_of_arrays_in_memory():
    def of(data, share, wrap=lambda loader: loader):
        loader = DataLoaderBuilder().batch_size(4).shuffle(seed=0).build(data)
        source = source_of(wrap(loader), "train", share=share)
        source.peek(1)
        return source.first_digest

    rows = {"x": np.arange(24.0).reshape(12, 2), "y": np.arange(12)}
    last = rows | {"y": np.arange(12) + (np.arange(12) == 11)}
    first, second = ProcessShard(0, 2, 2), ProcessShard(1, 2, 2)
    assert of(rows, first) == of(rows, second) != of(last, second)
    assert of(rows, first, PerProcess) is None
    view = ArrayDataset(rows).shuffle(seed=1)
    assert of(view, first) == of(view, second) != of(rows, first)
    assert of(rows, None) is of(ArrayDataset(rows).map(lambda item: item), first) is None


def test_digests_of_arrays_of_any_library():
    class Tensor(np.ndarray):
        pass

    for x in (jnp.ones(4, jnp.bfloat16), np.ones((4, 2)).T.copy().T, np.ones(4).view(Tensor)):
        (source,) = [source_of([{"x": x}], "train", batch_size=None, share=ProcessShard(0, 2, 2))]
        source.peek(1)
        assert isinstance(source.first_digest, int)
    with raises_code("batch-random-keys", "x"):
        source_of(
            [{"x": jax.random.split(jax.random.key(0), 4)}], "train", batch_size=None, share=ProcessShard(0, 2, 2)
        ).peek(1)


@pytest.mark.parametrize("name", [name for name in DATA if name != "iterator"])
def test_positions_count_whole_batches(name):
    process_sources = sources(DATA[name], 2)
    assert {source.batches for source in process_sources} <= {4, None}
    assert together([source.open(1, 2) for source in process_sources], "x", 2) == EPOCH[2:]


def test_state_is_valid_for_another_number_of_processes():
    states = []
    for source in sources(lambda: grain_map().to_iter_dataset(), 2):
        source.keep_state()
        batches = source.open(1)
        next(batches), next(batches)
        states.append(batches.where())
        assert not source.own
    assert states[0] == states[1] is not None
    four = sources(lambda: grain_map().to_iter_dataset(), 4)
    assert together([source.open(1, 2, states[0]) for source in four], "x", 4) == EPOCH[2:]


def test_batches_are_whole_without_a_shard():
    for make in DATA.values():
        source = source_of(make(), "train", batch_size=SIZE)
        batches = source.open(1)
        assert [(numbers([batch])[0], batches.part()) for batch in batches] == [(rows, False) for rows in EPOCH]


def test_shared_data_is_not_resident():
    loader = DATA["our loader"]()
    assert source_of(loader, "train").rows is not None
    assert source_of(loader, "train", share=ProcessShard(0, 1, 8)).rows is not None
    assert source_of(loader, "train", share=ProcessShard(0, 2, 8)).rows is None


def test_batches_without_a_common_axis_are_not_split():
    for bad in ({"x": np.zeros(4), "y": np.zeros(2)}, {"x": 1.0}, [1, 2], None):
        batches = source_of([bad], "train", share=ProcessShard(0, 2, 2)).open(1)
        assert (next(batches) is bad, batches.part()) == (True, False)


# -- data of each process ----------------------------------------------------------------------------------------------


def half_batches(index):
    """Return the rows of process `index` of 2 in batches of 4: [0, 1], [4, 5], ... or [2, 3], [6, 7], ..."""
    return [{"x": batch["x"][2 * index : 2 * index + 2]} for batch in batch_list(12)]


def own_sources(wrap):
    return [source_of(wrap(half_batches(share.index)), "train", share=share) for share in shares(2, 2)]


@pytest.mark.parametrize(
    "wrap",
    [
        PerProcess,
        lambda data: PerProcess(iter(data)),
        lambda data: PerProcess(lambda: iter(data)),
        lambda data: PerProcess(DataLoaderBuilder().batch_size(2).build({"x": np.concatenate([b["x"] for b in data])})),
    ],
)
def test_per_process_data_is_not_split(wrap):
    process_sources = own_sources(wrap)
    assert [source.own for source in process_sources] == [True, True]
    assert together([source.open(1) for source in process_sources], "x", 2) == EPOCH[:3]


def test_per_process_loader():
    data = PerProcess(DataLoaderBuilder().batch_size(2).build({"x": np.arange(6)}))
    source = source_of(data, "train", share=ProcessShard(0, 2, 2))
    assert numbers(source.open(3, 2)) == [[4, 5]]
    assert source.rows is None


def test_batch_size_of_per_process_datasets_is_global():
    data = PerProcess(ArrayDataset({"x": np.arange(6)}))
    source = source_of(data, "train", batch_size=4, share=ProcessShard(0, 2, 2))
    assert numbers(source.open(1)) == [[0, 1], [2, 3], [4, 5]]
    with raises_code("data-batch-size-uneven", "2", batch_size=3):
        source_of(data, "train", batch_size=3, share=ProcessShard(0, 2, 2))
    assert numbers(source_of(data, "train", batch_size=4).open(1)) == [[0, 1, 2, 3], [4, 5]]


def test_per_process_data_of_one_process():
    source = source_of(PerProcess(batch_list()), "train")
    batches = source.open(1)
    assert [(numbers([batch])[0], batches.part()) for batch in batches] == [(rows, False) for rows in EPOCH]


def test_uneven_parts_raise():
    batches = source_of(PerProcess(batch_list(7)), "valid", share=ProcessShard(0, 2, 4)).open(1)
    next(batches)
    with raises_code("data-rows-uneven", "6", "2", rows=3) as it:
        next(batches)
    assert "the valid data" in str(it.value)


class Numbers:
    """A data source with a `__repr__` without an address, as Grain requires."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return {"x": np.int64(index)}

    def __repr__(self):
        return "Numbers()"


def grain_loader(index, count):
    shard = grain.sharding.ShardOptions(shard_index=index, shard_count=count, drop_remainder=True)
    sampler = grain.samplers.IndexSampler(12, shard, shuffle=False, num_epochs=1)
    return grain.DataLoader(
        data_source=Numbers(), sampler=sampler, operations=[grain.transforms.Batch(2)], worker_count=0
    )


def test_sharding_grain_loader_is_detected():
    process_sources = [source_of(grain_loader(share.index, 2), "train", share=share) for share in shares(2)]
    assert [source.own for source in process_sources] == [True, True]
    readers = [numbers(source.open(1)) for source in process_sources]
    assert sorted(np.ravel(readers).tolist()) == list(range(12))
    assert [[len(batch) for batch in batches] for batches in readers] == [[2, 2, 2]] * 2
    unsharded = [source_of(grain_loader(0, 1), "train", share=share) for share in shares(2)]
    assert [source.own for source in unsharded] == [False, False]
    assert together([source.open(1) for source in unsharded], "x", 2) == [[i, i + 1] for i in range(0, 12, 2)]


def test_grain_loader_with_other_shards_is_refused():
    with raises_code("data-shard-differs", "0", "3", "1", "2"):
        source_of(grain_loader(0, 3), "train", share=ProcessShard(1, 2, 2))
    source = source_of(lambda: grain_loader(0, 2), "train", share=ProcessShard(0, 2, 2))
    with raises_code("data-function-returns-shard"):
        source.open(1)
    wrapped = source_of(PerProcess(lambda: grain_loader(0, 2)), "train", share=ProcessShard(0, 2, 2))
    assert numbers(wrapped.open(1))[0] == numbers(source_of(grain_loader(0, 2), "train").open(1))[0]


# -- too few rows ------------------------------------------------------------------------------------------------------


def test_batches_with_fewer_rows_than_processes_are_refused():
    share = ProcessShard(0, 5, 10)
    expected = ("data-batch-size-uneven", "train", "4", "5", "10")
    with raises_code(*expected):
        source_of(DATA["our loader"](), "train", share=share)
    with raises_code(*expected):
        source_of(batch_list(), "train", share=share).peek(1)
    few = (
        DataLoaderBuilder().batch_size(10).build({"x": np.arange(3)})
    )  # uneven, so that each process computes the whole batch
    assert numbers([source_of(few, "train", share=share).peek(1)]) == [[0, 1, 2]]
    assert numbers([source_of(PerProcess(batch_list(8)), "train", share=share).peek(1)]) == [[0, 1, 2, 3]]


def test_grain_loader_of_another_process_is_refused():
    """Otherwise two processes would train on the same rows, and the others would be lost."""
    with raises_code("data-shard-differs", "0", "2", "1", "2"):
        source_of(grain_loader(0, 2), "train", share=ProcessShard(1, 2, 2))


def test_limited_epochs_have_all_batches():
    (source,) = sources(DATA["list"], 1)
    source.limit(2)
    assert numbers(source.open(1)) == EPOCH[:2]
    assert numbers(source.open(1, 1)) == EPOCH[1:2]
