"""Tests of DataLoader: order, positions, state, sharding, and worker processes."""

import functools
import itertools
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import learner
from learner.data import ArrayDataset, DataLoader, DataLoaderBuilder, Dataset, Pack, Pad, stack, view
from learner.data.sharding import ProcessShard
from learner.errors import LearnerError
from tests.support.codes import raises_code
from tests.support.shared import together

ROWS = [(10, 4), (12, 4), (7, 1), (5, 8), (6, 6)]
SEEDS = [None, 3]


def rows(n):
    return {"row": np.arange(n, dtype=np.int32), "image": np.arange(n * 6, dtype=np.float32).reshape(n, 2, 3)}


def items(n):
    images = [np.arange(6 * i, 6 * i + 6, dtype=np.float32).reshape(2, 3) for i in range(n)]
    return [{"row": np.int32(i), "image": image} for i, image in enumerate(images)]


BUILDERS = {
    "arrays": lambda: (DataLoaderBuilder(), lambda n: ArrayDataset(rows(n))),
    "dict": lambda: (DataLoaderBuilder(), rows),
    "list": lambda: (DataLoaderBuilder(), items),
    "batcher": lambda: (DataLoaderBuilder(stack), rows),
    "not ahead": lambda: (DataLoaderBuilder().prefetch(0), items),
    "far ahead": lambda: (DataLoaderBuilder().prefetch(5), items),
}


def make(kind, n, batch_size, seed=None, drop_last=False) -> DataLoader:
    builder, dataset = BUILDERS[kind]()
    builder.batch_size(batch_size).drop_last(drop_last)
    return (builder if seed is None else builder.shuffle(seed)).build(dataset(n))


def rows_of_batches(batches):
    return [batch["row"].tolist() for batch in batches]


def flat_rows(batches):
    return list(itertools.chain.from_iterable(rows_of_batches(batches)))


@pytest.fixture(params=BUILDERS)
def kind(request):
    return request.param


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("n", "batch_size"), ROWS)
def test_every_row_once_per_epoch(kind, n, batch_size, seed):
    loader = make(kind, n, batch_size, seed)
    for epoch in (1, 2):
        batches = list(loader.epoch(epoch))
        assert [len(batch["row"]) for batch in batches] == [len(part) for part in batched(range(n), batch_size)]
        assert sorted(flat_rows(batches)) == list(range(n))
        for batch in batches:
            assert {name: (type(x), x.dtype) for name, x in batch.items()} == {
                "row": (np.ndarray, np.int32), "image": (np.ndarray, np.float32)
            }  # fmt: skip
            np.testing.assert_array_equal(batch["image"], rows(n)["image"][batch["row"]])


def batched(values, size):
    return [values[i : i + size] for i in range(0, len(values), size)]


def test_order_without_shuffling(kind):
    loader = make(kind, 7, 3)
    assert rows_of_batches(loader.epoch(1)) == rows_of_batches(loader.epoch(2)) == [[0, 1, 2], [3, 4, 5], [6]]


def test_order_is_philox_of_seed_and_epoch(kind):
    loader = make(kind, 50, 8, seed=3)
    for epoch in (1, 2, 7):
        expected = np.random.Generator(np.random.Philox(np.random.SeedSequence([3, epoch]))).permutation(50)
        assert flat_rows(loader.epoch(epoch)) == expected.tolist()
        assert loader.order(epoch).tolist() == expected.tolist()
        assert loader.order(epoch).dtype == np.int32


def test_epochs_and_seeds_differ(kind):
    orders = [tuple(flat_rows(make(kind, 20, 4, seed).epoch(epoch))) for seed in (0, 1, 2) for epoch in (1, 2, 3)]
    assert len(set(orders)) == 9


@pytest.mark.parametrize("drop_last", [False, True])
def test_epoch_from_any_start(kind, drop_last):
    loader = make(kind, 10, 3, seed=1, drop_last=drop_last)
    whole = rows_of_batches(loader.epoch(2))
    for start in range(len(loader) + 1):
        assert rows_of_batches(loader.epoch(2, start)) == whole[start:]


@pytest.mark.parametrize("drop_last", [False, True])
def test_state_restores_every_position(kind, drop_last):
    loader = make(kind, 10, 3, seed=1, drop_last=drop_last)
    whole = rows_of_batches(loader.epoch(2))
    batches = loader.epoch(2)
    for position in range(len(loader) + 1):
        state = batches.get_state()
        assert state == {"epoch": 2, "batch": position}
        other = make(kind, 10, 3, seed=1, drop_last=drop_last).epoch(5)
        next(other)
        other.set_state(state)
        assert other.get_state() == state
        assert rows_of_batches(other) == whole[position:]
        next(batches, None)
    with pytest.raises(StopIteration):
        next(batches)


def test_iterating_counts_epochs(kind):
    loader = make(kind, 10, 4, seed=2)
    epochs = {number: rows_of_batches(loader.epoch(number)) for number in (1, 2, 3, 9, 10)}
    assert [rows_of_batches(loader), rows_of_batches(loader), rows_of_batches(loader)] == [
        epochs[1],
        epochs[2],
        epochs[3],
    ]
    resumed = iter(loader)
    resumed.set_state({"epoch": 9, "batch": 1})
    assert rows_of_batches(resumed) == epochs[9][1:]
    assert rows_of_batches(loader) == epochs[10]


@pytest.mark.parametrize("seed", SEEDS)
def test_drop_last(kind, seed):
    loader = make(kind, 10, 4, seed, drop_last=True)
    assert (len(loader), loader.num_items(), len(loader.order(1))) == (2, 8, 8)
    whole = make(kind, 10, 4, seed)
    assert (len(whole), whole.num_items(), len(whole.order(1))) == (3, 10, 10)
    for epoch in (1, 2):
        assert rows_of_batches(loader.epoch(epoch)) == rows_of_batches(whole.epoch(epoch))[:2]


def test_batches_are_copies(kind):
    loader = make(kind, 6, 3)
    for batch in loader:
        batch["image"][:] = -1
    np.testing.assert_array_equal(next(iter(loader))["image"], rows(6)["image"][:3])


def test_iterators_are_independent(kind):
    loader = make(kind, 6, 2, seed=0)
    first, second = loader.epoch(1), loader.epoch(2)
    expected = [rows_of_batches(loader.epoch(1)), rows_of_batches(loader.epoch(2))]
    pairs = list(zip(first, second, strict=True))
    assert [rows_of_batches(batches) for batches in zip(*pairs, strict=True)] == expected


def test_arrays_are_available_for_plain_rows_only():
    data = rows(6)
    builder = DataLoaderBuilder().batch_size(4)
    assert builder.build(data).arrays["image"] is data["image"]
    assert builder.build(ArrayDataset(data)).arrays["row"] is data["row"]
    assert builder.build(items(6)).arrays is None
    assert DataLoaderBuilder(stack).batch_size(4).build(data).arrays is None
    assert DataLoaderBuilder().num_workers(1).batch_size(4).build(data).arrays is None


def test_any_structure_of_arrays():
    loader = DataLoaderBuilder().batch_size(2).build(ArrayDataset((np.arange(3), {"y": np.ones((3, 2))})))
    x, rest = list(loader)[1]
    assert (x.tolist(), rest["y"].tolist()) == ([2], [[1.0, 1.0]])
    (alone,) = DataLoaderBuilder().batch_size(5).build(np.arange(3))
    assert alone.tolist() == [0, 1, 2]


class Recorded(Dataset):
    """A dataset that records which rows are read."""

    def __init__(self, n):
        self.n, self.read = n, []

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        self.read.append(index)
        return {"row": index}


def test_skipped_rows_are_not_read():
    data = Recorded(10)
    loader = DataLoaderBuilder().batch_size(3).prefetch(0).build(data)
    assert rows_of_batches(loader.epoch(1, start=2)) == [[6, 7, 8], [9]]
    assert data.read == [6, 7, 8, 9]


def test_prefetching_ends_with_the_epoch():
    data = Recorded(7)
    loader = DataLoaderBuilder().batch_size(2).prefetch(4).build(data)
    list(loader)
    assert data.read == [0, 1, 2, 3, 4, 5, 6]


def test_closing_ends_the_prefetch_thread():
    batches = DataLoaderBuilder().batch_size(1).prefetch(3).build(items(50)).epoch(1)
    next(batches)
    readers = [thread for thread in threading.enumerate() if thread.name.startswith("grain-prefetch")]
    assert readers
    batches.close()
    for thread in readers:
        thread.join(60)
    assert not any(thread.is_alive() for thread in readers)
    assert list(batches) == []


def test_errors_of_the_dataset_name_the_row():
    class Broken(Recorded):
        def __getitem__(self, index):
            if index == 4:
                raise OSError("no such file")
            return super().__getitem__(index)

    loader = DataLoaderBuilder().batch_size(3).build(Broken(6))
    batches = iter(loader)
    assert next(batches)["row"].tolist() == [0, 1, 2]
    with pytest.raises(OSError, match="no such file") as raised:
        next(batches)
    assert raised.value.__notes__[0] == "while reading row 4 of Broken"


def test_stop_iteration_inside_an_item_raises():
    answers = iter(range(5))
    loader = DataLoaderBuilder().batch_size(2).build(view(range(8)).map(lambda item: next(answers)))
    batches = iter(loader)
    assert [next(batches).tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(RuntimeError, match=r"StopIteration was raised, .* while reading row 5 of Mapped"):
        next(batches)


@pytest.mark.parametrize(
    ("batcher", "code", "values"),
    [
        (lambda items: None, "data-batcher-returns-no-arrays", ("None",)),
        (lambda items: {"x": "text"}, "data-batcher-returns-no-arrays", ("x", "str")),
    ],
)
def test_batchers_must_return_arrays(batcher, code, values):
    loader = DataLoaderBuilder(batcher).batch_size(2).shuffle(0).build(rows(4))
    with raises_code(code, *values) as raised:
        next(iter(loader))
    assert raised.value.__notes__[0] == f"while making a batch of the rows {loader.order(1)[:2].tolist()}"


def test_items_of_other_shapes_are_named_by_row():
    loader = DataLoaderBuilder().batch_size(4).shuffle(3).build([{"x": np.zeros(3 + (i == 2))} for i in range(4)])
    first, second, third = [i for i in loader.order(1).tolist() if i != 2]
    assert loader.order(1)[2] != 2  # its position in the batch is not 2
    with pytest.raises(LearnerError) as raised:
        next(iter(loader))
    assert f"[3] in items {first}, {second} and {third}" in str(raised.value)
    assert "[4] in item 2" in str(raised.value)


def test_items_of_windows_are_named_by_row():
    windows = view([np.zeros(2 + (i == 5)) for i in range(8)]).windows(2)
    with raises_code("batch-item-shapes-differ", "the array", "[2]", "4", "[3]", "5"):
        windows[2]


@pytest.mark.parametrize(
    ("batcher", "shapes"),
    [
        (lambda items: {"x": np.zeros((len(items) - 1, 3)), "y": np.zeros(len(items))}, "x [1, 3], y [2]"),
        (lambda items: {"x": np.zeros((len(items) + 1, 3))}, "x [3, 3]"),
        (lambda items: np.zeros(0), "the array [0]"),
    ],
)
def test_batcher_with_another_number_of_rows_raises(batcher, shapes):
    loader = DataLoaderBuilder(batcher).batch_size(2).build(items(4))
    with raises_code("data-batcher-row-count", "2", shapes, "any_rows"):
        next(iter(loader))


def halves(items, by=2):
    return {"row": np.array([item["row"] for item in items[::by]])}


def test_any_rows_allows_other_numbers_of_rows(monkeypatch):
    monkeypatch.setattr(halves, "any_rows", True, raising=False)
    for batcher in (halves, functools.partial(halves, by=2)):
        assert rows_of_batches(DataLoaderBuilder(batcher).batch_size(4).build(items(8))) == [[0, 2], [4, 6]]
    packed = DataLoaderBuilder(Pack(length=4)).batch_size(4).build([{"x": [i]} for i in range(4)])
    assert next(iter(packed))["x"].tolist() == [[0, 1, 2, 3]]


def test_scalars_in_a_batch():
    loader = DataLoaderBuilder(lambda items: {"x": np.zeros(len(items)), "n": np.int32(3)}).batch_size(2)
    assert next(iter(loader.build(items(2))))["n"] == 3


def test_a_batcher_may_reuse_its_array():
    """Batches are prefetched."""
    array = np.zeros((2, 1), np.float32)

    def fill(items):
        array[:, 0] = items
        return {"x": array}

    fill.__module__ = None  # as of a method written in C
    batches = list(DataLoaderBuilder(fill).batch_size(2).build(view(range(6))))
    assert [batch["x"][:, 0].tolist() for batch in batches] == [[0, 1], [2, 3], [4, 5]]


def test_custom_batcher():
    def lengths(items):
        return {"sum": np.array([sum(item) for item in items])}

    loader = DataLoaderBuilder(lengths).batch_size(2).build([[1, 2, 3], [4], [5, 6]])
    assert [batch["sum"].tolist() for batch in loader] == [[6, 4], [11]]


def test_repr():
    builder = DataLoaderBuilder().batch_size(4)
    assert repr(builder.build(rows(10))) == (
        "DataLoader(batch_size=4, 10 rows of ArrayDataset in 3 batches, not shuffled)"
    )  # fmt: skip
    assert repr(builder.shuffle(7).drop_last().build(items(10))) == (
        "DataLoader(batch_size=4, 10 rows of list (without the last 2) in 2 batches, shuffled with seed 7)"
    )


@pytest.mark.parametrize("option", ["batch_size", "num_workers", "prefetch", "shuffle"])
@pytest.mark.parametrize("value", [-1, 2.0, "3", None, True])
def test_wrong_sizes(option, value):
    with raises_code("data-number-value", option, repr(value)):
        getattr(DataLoaderBuilder(), option)(value)


def test_options_take_numpy_integers():
    assert len(DataLoaderBuilder().batch_size(np.int64(2)).shuffle(np.uint8(1)).build(rows(4))) == 2


@pytest.mark.parametrize(
    ("call", "code", "values"),
    [
        (lambda: DataLoaderBuilder().batch_size(0), "data-number-value", ("batch_size", "0", "1")),
        (lambda: DataLoaderBuilder().drop_last(1), "data-drop-last-type", ("1",)),
        (lambda: DataLoaderBuilder(3), "data-batcher-type", ("int",)),
        (lambda: DataLoaderBuilder(Pack), "data-batcher-not-instance", ("Pack",)),
        (lambda: DataLoaderBuilder().build(rows(3)), "data-batch-size-missing", ()),
        (
            lambda: DataLoaderBuilder().batch_size(4).drop_last().build(rows(3)),
            "data-drop-last-leaves-none",
            ("3", "4"),
        ),
        (lambda: DataLoaderBuilder().batch_size(4).build([]), "data-dataset-empty", ("list",)),
        (lambda: DataLoaderBuilder().batch_size(4).build((np.ones(3), np.ones(3))), "data-dataset-type", ("tuple",)),
        (lambda: DataLoaderBuilder().batch_size(4).build("digits"), "data-dataset-type", ("str",)),
        (lambda: DataLoaderBuilder().batch_size(4).build(iter([1])), "data-dataset-type", ("list_iterator",)),
        (lambda: make("list", 10, 4).epoch(0), "data-number-value", ("epoch", "0", "1")),
        (lambda: make("list", 10, 4).order(0), "data-number-value", ("epoch", "0", "1")),
        (lambda: make("list", 10, 4).epoch(1, -1), "data-number-value", ("start", "-1")),
        (lambda: make("arrays", 10, 4).epoch(1, 4), "data-start-outside", ("4", "3")),
        (lambda: make("list", 10, 4).epoch(1).set_state({"step": 3}), "data-state-malformed", ()),
        (lambda: make("list", 10, 4).epoch(1).set_state({"epoch": 1, "batch": 9}), "data-start-outside", ("3",)),
    ],
)
def test_wrong_input(call, code, values):
    with raises_code(code, *values):
        call()


def test_refused_state_does_not_move_the_iterator(kind):
    batches = make(kind, 6, 2).epoch(1)
    next(batches)
    with pytest.raises(LearnerError):
        batches.set_state({"epoch": 1, "batch": 9})
    assert rows_of_batches(batches) == [[2, 3], [4, 5]]


# -- several processes -------------------------------------------------------------------------------------------------


def shares(count, devices):
    return [ProcessShard(index, count, count * devices) for index in range(count)]


@settings(deadline=None, max_examples=60)
@given(
    name=st.sampled_from(["arrays", "list", "batcher", "not ahead"]),
    n=st.integers(1, 30),
    batch_size=st.integers(1, 12),
    seed=st.sampled_from(SEEDS),
    drop_last=st.booleans(),
    count=st.integers(1, 4),
    devices=st.integers(1, 2),
    start=st.integers(0, 3),
)
def test_processes_together_read_the_batches_of_one(name, n, batch_size, seed, drop_last, count, devices, start):
    batch_size = min(batch_size, n)
    loader = make(name, n, batch_size, seed, drop_last)
    start = min(start, len(loader))
    readers = [loader.epoch(2, start, share) for share in shares(count, devices)]
    assert together(readers, "row", count) == rows_of_batches(loader.epoch(2, start))


def test_processes_read_their_rows_and_whole_uneven_batches():
    data = [Recorded(11) for _ in range(2)]
    loaders = [DataLoaderBuilder().batch_size(4).prefetch(0).build(dataset) for dataset in data]
    for loader, share in zip(loaders, shares(2, 2), strict=True):
        list(loader.epoch(1, share=share))
    assert [dataset.read for dataset in data] == [[0, 1, 4, 5, 8, 9, 10], [2, 3, 6, 7, 8, 9, 10]]


class Sequences(Dataset):
    """Sequences of these lengths: item 2 with a length of 3 is [2, 2, 2]."""

    def __init__(self, lengths):
        self.lengths, self.read = lengths, []

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, row):
        self.read.append(row)
        return {"x": np.full(self.lengths[row], row)}


def padded(items):
    return Pad()(items)


padded.needs_all_rows = True
LENGTHS = [1, 2, 4, 3, 2, 1]
PADDED = [
    [[[0, 0, 0, 0], [1, 1, 0, 0]], [[2, 2, 2, 2], [3, 3, 3, 0]]],
    [[[4, 4]], [[5, 0]]],
]


@pytest.mark.parametrize("batcher", [Pad(), Pad(multiple=2), Pad(buckets=[2, 4]), padded, functools.partial(padded)])
@pytest.mark.parametrize("start", [0, 1])
def test_processes_share_batches_that_are_padded_to_their_longest_row(batcher, start):
    loader = DataLoaderBuilder(batcher).batch_size(4).build(Sequences(LENGTHS))
    for index, share in enumerate(shares(2, 1)):
        batches = loader.epoch(1, start, share)
        assert [(batch["x"].tolist(), batches.part) for batch in batches] == [
            (halves[index], True) for halves in PADDED[start:]
        ]


def test_processes_share_the_rows_of_a_packed_batch_or_have_all_of_them():
    loader = DataLoaderBuilder(Pack(length=4)).batch_size(4).build(Sequences(LENGTHS))
    first, second = (loader.epoch(1, share=share) for share in shares(2, 1))
    assert next(first)["x"].tolist() == next(second)["x"].tolist() == [[0, 1, 1, 0], [2, 2, 2, 2], [3, 3, 3, 0]]
    assert first.part is second.part is False  # 3 rows
    assert next(first)["x"].tolist() == next(second)["x"].tolist() == [[4, 4, 5, 0]]
    loader = DataLoaderBuilder(Pack(length=3)).batch_size(2).build(Sequences([2, 3]))
    batches = [loader.epoch(1, share=share) for share in shares(2, 1)]
    assert [next(each)["x"].tolist() for each in batches] == [[[0, 0, 0]], [[1, 1, 1]]]
    assert all(each.part for each in batches)


@pytest.mark.parametrize("batcher", [Pad(length=4), Pack(length=4, rows=2)])
def test_processes_read_only_their_rows_for_batches_of_one_shape(batcher):
    data = [Sequences(LENGTHS) for _ in range(2)]
    for dataset, share in zip(data, shares(2, 1), strict=True):
        list(DataLoaderBuilder(batcher).batch_size(4).prefetch(0).build(dataset).epoch(1, share=share))
    assert [dataset.read for dataset in data] == [[0, 1, 4], [2, 3, 5]]


def test_positions_are_valid_for_any_number_of_processes(kind):
    loader = make(kind, 20, 6, seed=1)
    two = [loader.epoch(2, share=share) for share in shares(2, 1)]
    next(two[0]), next(two[1])
    state = two[1].get_state()
    assert state == two[0].get_state() == {"epoch": 2, "batch": 1}
    three = [loader.epoch(9, share=share) for share in shares(3, 1)]
    for reader in three:
        reader.set_state(state)
    assert together(three, "row", 3) == together(two, "row", 2) == rows_of_batches(loader.epoch(2, 1))


def test_batches_are_whole_without_a_shard(kind):
    batches = make(kind, 6, 4).epoch(1)
    assert [batches.part for _ in batches] == [False, False]


def python(code):
    environment = os.environ | {"PYTHONPATH": str(Path(learner.__file__).parents[1])}
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    return process.stdout, process.stderr, process.returncode


@pytest.mark.full
def test_packages_that_are_imported_only_if_used():
    """Grain and scikit-learn take a second each, and are not needed for arrays and digits. Label names are checked
    without the sources of data, as some builds of Python have no sqlite3.
    """
    code = (
        "import sys, learner.data as d;"
        "sys.modules['sqlite3'] = None;"
        "list(d.DataLoaderBuilder().batch_size(500).build(d.digits('train'))), d.diabetes('valid');"
        "print([name for name in ('grain', 'sklearn', 'scipy.sparse') if name in sys.modules]);"
        "from learner.training.feed.inputs import label_warnings;"
        "print(label_warnings({}, []))"
    )
    assert python(code) == ("[]\n[]\n", "", 0)


def local_dataset(n):
    class Local(Dataset):  # a nested class is pickled by value, so that workers need not import this file
        def __len__(self):
            return n

        def __getitem__(self, index):
            return {"row": np.int32(index), "image": np.full((2, 3), index, np.float32), "process": os.getpid()}

    return Local()


@pytest.mark.full
def test_workers_read_the_same_and_are_reused():
    builder = DataLoaderBuilder().batch_size(3).shuffle(4)
    alone, workers = builder.build(local_dataset(10)), builder.num_workers(2).build(local_dataset(10))
    processes = set()
    for epoch in (1, 2):
        for expected, batch in zip(alone.epoch(epoch), workers.epoch(epoch), strict=True):
            assert type(batch["image"]) is np.ndarray
            np.testing.assert_array_equal(batch["row"], expected["row"])
            np.testing.assert_array_equal(batch["image"], expected["image"])
            processes |= set(batch["process"].tolist())
    assert len(processes) == 2
    assert os.getpid() not in processes
    batches = workers.epoch(5)
    expected = rows_of_batches(alone.epoch(5))
    assert next(batches)["row"].tolist() == expected[0]
    other = alone.epoch(1)
    other.set_state(batches.get_state())
    assert rows_of_batches(other) == rows_of_batches(batches) == expected[1:]
    workers.close()


@pytest.mark.full
def test_workers_of_a_shard():
    """Workers of one shard are not reused for another."""
    loader = DataLoaderBuilder().batch_size(4).shuffle(4).num_workers(1).build(local_dataset(10))
    readers = [loader.epoch(epoch, share=share) for epoch, share in enumerate(shares(2, 1), 1)]
    order = [loader.order(epoch).tolist() for epoch in (1, 2)]
    assert [rows_of_batches(reader) for reader in readers] == [
        [order[0][:2], order[0][4:6], order[0][8:9]],
        [order[1][2:4], order[1][6:8], order[1][9:]],
    ]
    loader.close()


@pytest.mark.full
def test_workers_are_reused_without_shuffling():
    loader = DataLoaderBuilder().batch_size(3).num_workers(1).build(local_dataset(4))
    batches = [batch for _ in range(3) for batch in loader.epoch(1)]
    assert rows_of_batches(batches) == [[0, 1, 2], [3]] * 3
    assert len({process for batch in batches for process in batch["process"].tolist()}) == 1
    assert rows_of_batches(loader.epoch(1, start=1)) == [[3]]
    loader.close()


@pytest.mark.full
def test_script_with_open_workers_exits_silently():
    code = (
        "from learner.data import DataLoaderBuilder;"
        "loader = DataLoaderBuilder().batch_size(2).num_workers(2).build([{'x': i} for i in range(50)]);"
        "print(len(list(loader)));"
        "batches = loader.epoch(1, 3); next(batches)"
    )
    assert python(code) == ("25\n", "", 0)


FAILS = """
import numpy as np
from learner.data import DataLoaderBuilder, view

def item(i):
    if i == 37:
        raise ValueError("bad item")
    return {"x": np.zeros(5000), "i": np.int32(i)}

loader = DataLoaderBuilder().batch_size(2).num_workers(2).prefetch(4).build(view(range(200)).map(item))
for number, batch in enumerate(loader):
    if number == 0:  # delays Grain's thread that frees memory
        import time
        from grain._src.python.ipc.shared_memory_array import SharedMemoryArray
        SharedMemoryArray._del_thread_pool.apply_async(time.sleep, (1.0,))
    print(*batch["i"].tolist())
"""


@pytest.mark.full
def test_failed_worker_leaks_no_shared_memory():
    """Python reports shared memory that was not freed when it exits."""
    out, stderr, code = python(FAILS)
    assert (out, code) == ("".join(f"{i} {i + 1}\n" for i in range(0, 36, 2)), 1)
    assert "in item" in stderr
    assert stderr.endswith("ValueError: bad item\nwhile calling map(item)\nwhile reading row 37 of Mapped\n")


def test_unpicklable_dataset_raises():
    lock = threading.Lock()
    loader = DataLoaderBuilder().batch_size(1).num_workers(1).build(view(range(4)).map(lambda item: (lock, item)[1]))
    with raises_code("worker-dataset-unpicklable", "cannot pickle '_thread.lock' object", "num_workers(0)"):
        next(iter(loader))


@pytest.mark.full
@pytest.mark.parametrize("sendable", [True, False])
def test_errors_of_workers_propagate(sendable):
    class UnpicklableError(Exception):
        def __init__(self, message):
            super().__init__(message)
            self.lock = None if sendable else threading.Lock()

    class Broken(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            if index == 2:
                raise ValueError("bad row") if sendable else UnpicklableError("bad row")
            return np.int32(index)

    batches = iter(DataLoaderBuilder().batch_size(1).num_workers(1).build(Broken()))
    assert [next(batches).tolist() for _ in range(2)] == [[0], [1]]
    with pytest.raises(ValueError if sendable else RuntimeError, match="bad row") as raised:
        next(batches)
    text = "\n".join([str(raised.value), *getattr(raised.value, "__notes__", [])])
    assert "while reading row 2 of Broken" in text
