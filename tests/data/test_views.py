"""Tests of views of datasets: each has the items of a list comprehension."""

import collections
import itertools
import json
import os
import subprocess
import sys
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.model_selection import KFold

import learner
from learner.data import ArrayDataset, DataLoaderBuilder, Dataset, view
from learner.errors import LearnerError
from tests.support.codes import raises_code
from tests.support.viewed import ARRAYS, ITEMS, N, Numbers, add_noise, double, is_even_half, is_odd

DATA = {
    "list": lambda: view(ITEMS),
    "dataset": Numbers,
    "arrays": lambda: ArrayDataset(ARRAYS),
    "rows of arrays": lambda: ArrayDataset({k: x[::-1] for k, x in ARRAYS.items()}).select(range(N - 1, -1, -1)),
    "arrays in parts": lambda: ArrayDataset(ARRAYS).slice(0, 3).concat(ArrayDataset(ARRAYS).select([3, *range(4, N)])),
}


def stacked(rows):
    return {name: np.stack([ITEMS[i][name] for i in rows]) for name in ("x", "n")}


def noisy(i, seed=0, epoch=1, below=0):
    key = np.random.SeedSequence(seed, spawn_key=(epoch, below)).generate_state(2, np.uint64)
    return add_noise(ITEMS[i], np.random.Generator(np.random.Philox(key=key, counter=[0, 0, i, 0])))


def philox(seed):
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed)))


ORDER = philox(3).permutation(N).tolist()
FIRST, SECOND = sorted(philox(1).permutation(N)[:7].tolist()), sorted(philox(1).permutation(N)[7:].tolist())
DRAWN = philox(2).choice(N, 6, True, np.arange(N) / 45).tolist()

# Functions that make views of the data, and the expected items.
VIEWS = {
    "map": (lambda d: d.map(double), [double(item) for item in ITEMS]),
    "filter": (lambda d: d.filter(is_odd), [item for item in ITEMS if item["n"] % 2]),
    "select": (lambda d: d.select([7, -1, 0, 7]), [ITEMS[i] for i in (7, 9, 0, 7)]),
    "select by a mask": (lambda d: d.select(np.arange(N) > 6), ITEMS[7:]),
    "select in a row": (lambda d: d.select(range(2, 6)), ITEMS[2:6]),
    "slice": (lambda d: d.slice(1, -2), ITEMS[1:-2]),
    "slice with a step": (lambda d: d.slice(step=3), ITEMS[::3]),
    "shuffle": (lambda d: d.shuffle(3), [ITEMS[i] for i in ORDER]),
    "split": (lambda d: d.split([0.7, 0.3], seed=1)[0], [ITEMS[i] for i in FIRST]),
    "the other part": (lambda d: d.part(1, [0.7, 0.3], seed=1), [ITEMS[i] for i in SECOND]),
    "split in order": (lambda d: d.split([0.25, 0.25, 0.5], seed=None)[1], ITEMS[2:5]),
    "a fold": (lambda d: d.k_fold(3, seed=None)[1][0], ITEMS[:4] + ITEMS[7:]),
    "the rest of it": (lambda d: d.fold(1, 3, "valid", seed=None), ITEMS[4:7]),
    "sample": (lambda d: d.sample(6, True, np.arange(N), seed=2), [ITEMS[i] for i in DRAWN]),
    "concat": (lambda d: d.slice(8).concat(d, d.select([0])), [*ITEMS[8:], *ITEMS, ITEMS[0]]),
    "concat of one": (lambda d: d.concat(), ITEMS),
    "windows": (lambda d: d.windows(3), [stacked(range(i, i + 3)) for i in (0, 3, 6)]),
    "windows that overlap": (lambda d: d.windows(4, 2), [stacked(range(i, i + 4)) for i in (0, 2, 4, 6)]),
    "augment": (lambda d: d.augment(add_noise), [noisy(i) for i in range(N)]),
    "several": (
        lambda d: d.map(double).shuffle(3).filter(is_even_half).slice(0, 3).concat([double(ITEMS[9])]),
        [*[double(ITEMS[i]) for i in ORDER if i % 2 == 0][:3], double(ITEMS[9])],
    ),
    "selected, then augmented": (lambda d: d.augment(add_noise, seed=5).select([4, 2]), [noisy(4, 5), noisy(2, 5)]),
}


def same(actual, expected):
    assert set(actual) == set(expected) == {"x", "n"}
    for name in actual:
        assert np.asarray(actual[name]).dtype == expected[name].dtype
        np.testing.assert_array_equal(actual[name], expected[name])


@pytest.fixture(params=VIEWS)
def case(request):
    return VIEWS[request.param]


USUAL = ("dataset", "arrays", "arrays in parts")


@pytest.fixture(params=[name if name in USUAL else pytest.param(name, marks=pytest.mark.full) for name in DATA])
def data(request):
    return DATA[request.param]()


def test_items(case, data):
    make, expected = case
    actual = make(data)
    assert isinstance(actual, Dataset)
    assert len(actual) == len(expected)
    for index in range(-len(expected), len(expected)):
        same(actual[index], expected[index])
    assert type(len(actual)) is int
    for item, other in zip(actual, expected, strict=True):
        same(item, other)


def test_indices_outside_raise(case, data):
    make, expected = case
    actual = make(data)
    for index in (len(expected), -len(expected) - 1):
        with pytest.raises(IndexError, match=rf"item {index} of .* has {len(expected)}: give 0 to"):
            actual[index]
    with pytest.raises(TypeError):
        actual[1.0]


def test_batches_of_a_loader(case, data):
    make, expected = case
    batches = list(DataLoaderBuilder().batch_size(3).build(make(data)))
    for name in ("x", "n"):
        actual = np.concatenate([batch[name] for batch in batches])
        np.testing.assert_array_equal(actual, np.stack([item[name] for item in expected]))
        assert actual.dtype == expected[0][name].dtype


def test_views_can_be_pickled(case, data):
    make, expected = case
    actual = ForkingPickler.loads(ForkingPickler.dumps(make(data)))
    same(actual[1], expected[1])
    assert len(actual) == len(expected)


def test_repr_of_views(case, data):
    text = repr(case[0](data))
    assert " at 0x" not in text
    assert len(text) < 400


NOT_GATHERED = ("map", "filter", "augment", "several", "selected, then augmented")


@pytest.mark.parametrize("name", [name for name in VIEWS if name not in NOT_GATHERED])
def test_views_of_arrays_are_in_memory(name):
    make, expected = VIEWS[name]
    loader = DataLoaderBuilder().batch_size(4).shuffle(0).build(make(ArrayDataset(ARRAYS)))
    assert loader.in_memory
    assert loader.arrays["n"].tolist() == [item["n"].tolist() for item in expected]
    assert loader.dataset.nbytes == sum(item[k].nbytes for item in expected for k in item)
    actual = np.concatenate([batch["n"] for batch in loader.epoch(2)])
    assert actual.tolist() == [expected[i]["n"].tolist() for i in loader.order(2)]


def test_views_of_arrays_are_not_copies():
    big = np.broadcast_to(np.zeros((1, 1), np.int8), (1000, 10**9))  # a terabyte, if it were copied
    data = ArrayDataset(big)
    for actual in (data.slice(3, 900), data.shuffle(), data.split([0.5, 0.5])[1], data.select(range(5, 60)).slice(2)):
        assert isinstance(actual, ArrayDataset)
        assert actual.concat(data).nbytes == (len(actual) + 1000) * 10**9
    windows = ArrayDataset(np.arange(100)).windows(50, 1)
    assert windows.arrays.shape == (51, 50)
    assert windows.arrays.strides == (8, 8)


def test_non_contiguous_array_is_not_copied():
    windows = ArrayDataset(np.lib.stride_tricks.as_strided(np.zeros(1), (10**12, 2), (0, 0)))
    assert windows.take(np.array([5, 10**11])).tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("kind", ["list", "arrays"])
def test_texts(kind):
    data, rows = DATA[kind](), {"list": "items", "arrays": "rows"}[kind]
    head = {"list": "list(10 items)", "arrays": "ArrayDataset(10 rows: n int32 [], x float32 [2])"}[kind]
    assert repr(data.shuffle(3).select([1, 0])) == f"{head}.shuffle(seed=3).select(2 of 10): 2 {rows}"
    assert repr(data.map(double).filter(is_odd)) == f"{head}.map(double).filter(is_odd)"
    assert repr(data.augment(add_noise, 4)) == f"{head}.augment(add_noise, seed=4): 10 items"
    assert repr(data.sample(3).concat(data)).startswith(f"{head}.sample(3 of 10, seed=0)")


def test_filter_is_lazy_and_reads_once():
    read = []

    def note(item):
        read.append(item)
        return item > 1

    data = view([1, 2, 3]).filter(note)
    assert repr(data) == "list(3 items).filter(note)"
    assert read == []
    assert (len(data), data[0], len(data)) == (2, 2, 2)
    assert read == [1, 2, 3]
    assert repr(data).endswith(": 2 items")


@settings(deadline=None, max_examples=60)
@given(n=st.integers(2, 60), k=st.integers(2, 9), seed=st.none() | st.integers(0, 9))
def test_folds_equal_scikit_learn(n, k, seed):
    k = min(k, n)
    data = view(range(n))
    pairs = [(list(train), list(valid)) for train, valid in data.k_fold(k, seed)]
    assert sorted(row for _, valid in pairs for row in valid) == list(range(n))
    assert all(sorted(train + valid) == list(range(n)) for train, valid in pairs)
    expected = [(train.tolist(), valid.tolist()) for train, valid in KFold(k).split(np.arange(n))]
    assert [len(valid) for _, valid in pairs] == [len(valid) for _, valid in expected]
    if seed is None:
        assert pairs == expected


@settings(deadline=None, max_examples=60)
@given(n=st.integers(3, 200), cut=st.floats(0.2, 0.6), seed=st.none() | st.integers(0, 9))
def test_parts_are_a_partition(n, cut, seed):
    parts = view(range(n)).split([cut, 0.3, 0.7 - cut], seed) if n > 20 else view(range(n)).split([0.4, 0.6], seed)
    rows = [list(part) for part in parts]
    assert sorted(itertools.chain.from_iterable(rows)) == list(range(n))
    assert all(part == sorted(part) for part in rows)
    if n > 20:
        assert abs(len(rows[0]) - cut * n) <= 0.5001


def test_weights_of_samples():
    rows = list(view(range(3)).sample(4000, replacement=True, weights=[1, 0, 3]))
    assert set(rows) == {0, 2}
    assert abs(rows.count(2) - 3000) < 5 * np.sqrt(4000 * 3 / 16)  # five standard deviations
    assert sorted(view(range(5)).sample(2, weights=[0, 1, 0, 1, 0])) == [1, 3]
    assert list(view(range(5)).sample(seed=1)) != list(view(range(5)).sample(seed=2))


@pytest.mark.full
def test_views_in_a_new_process(tmp_path):
    """A new process unpickles the views, and imports their functions by path."""
    case = {name: make(Numbers()) for name, (make, _) in VIEWS.items()}
    (tmp_path / "views").write_bytes(bytes(ForkingPickler.dumps(case)))
    code = (
        "import json, pickle\n"
        f"made = pickle.loads(open({str(tmp_path / 'views')!r}, 'rb').read())\n"
        "print(json.dumps({name: [item['x'].tolist() for item in data] for name, data in made.items()}))"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(learner.__file__).parents[1])}
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    actual = json.loads(process.stdout)
    assert actual == {name: [item["x"].tolist() for item in expected] for name, (_, expected) in VIEWS.items()}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda d: d.select([0, 10, 12]), r"select got row 10 \(2 are outside\): there are 10 items"),
        (lambda d: d.select([-11]), "select got row -11"),
        (lambda d: d.select([]), "select got no rows"),
        (lambda d: d.select([0.5]), r"select got \[0.5\]: give the indices of items, or 10 booleans"),
        (lambda d: d.select([True, False]), r"select got \[True, False\]: give the indices"),
        (lambda d: d.select(3), "select got 3: give the indices"),
        (lambda d: d.select([[1], [2, 3]]), "select got .*: give the indices"),
        (lambda d: d.slice(20), r"slice\(20, None, 1\) of 10 items has none"),
        (lambda d: d.slice(5, 2), r"slice\(5, 2, 1\) of 10 items has none"),
        (lambda d: d.slice(step=0), "the step of slice is 0: give a whole number, 1 or more"),
        (lambda d: d.slice(0.5), "slice got start=0.5: give a whole number"),
        (lambda d: d.split([0.5, 0.6]), r"the fractions of split are \[0.5, 0.6\], which add up to 1.1: give numbers"),
        (lambda d: d.split([0.5, 0.4]), "which add up to 0.9"),
        (lambda d: d.split([1.2, -0.2]), r"the fractions of split are \[1.2, -0.2\]: give numbers above 0"),
        (lambda d: d.split(0.8), "the fractions of split are 0.8: give numbers above 0 that add up to 1, such as"),
        (lambda d: d.split([]), r"the fractions of split are \[\]"),
        (lambda d: d.split([float("nan"), 1.0]), "the fractions of split are"),
        (lambda d: d.split([0.99, 0.01]), r"leaves part 1 without any: the parts would have \[10, 0\]"),
        (lambda d: d.part(2, [0.5, 0.5]), "part 2 of 2: they count from 0, give less than 2"),
        (lambda d: d.k_fold(1), "k of k_fold is 1: give a whole number, 2 or more"),
        (lambda d: d.k_fold(11), "k_fold makes 11 parts, but there are 10 items"),
        (lambda d: d.fold(3, 3, "train"), "fold 3 of 3"),
        (lambda d: d.fold(0, 3, "vald"), "the part of fold is 'vald': did you mean 'valid'"),
        (lambda d: d.shuffle(-1), "the seed of shuffle is -1"),
        (lambda d: d.augment(add_noise, 0.5), "the seed of augment is 0.5"),
        (lambda d: d.sample(0), "the size of sample is 0"),
        (lambda d: d.sample(11), "sample of 11 from 10 items: give fewer, or replacement=True"),
        (lambda d: d.sample(2, weights=[0] * 9 + [1]), "sample of 2 from 1 items with a weight above 0"),
        (lambda d: d.sample(weights=[1, 2]), r"the weights of sample are \[1, 2\]: give 10 numbers"),
        (lambda d: d.sample(weights=[-1] * 10), "the weights of sample are -1 for item 0"),
        (lambda d: d.sample(weights=[0] * 10), "the weights of sample are all 0"),
        (lambda d: d.sample(weights=[1] * 9 + [np.nan]), "the weights of sample are nan for item 9"),
        (lambda d: d.sample(3, replacement=1), "replacement is 1: give True or False"),
        (lambda d: d.windows(11), "windows of 11 items, and there are 10: give a size of 10 or less"),
        (lambda d: d.windows(0), "the size of windows is 0"),
        (lambda d: d.windows(2, -1), "the stride of windows is -1"),
        (lambda d: d.map(3), "map got a int: give a function of an item"),
        (lambda d: d.filter(None), "filter got a NoneType: give a function"),
        (lambda d: len(d.filter(lambda item: False)), r"\.filter\(<lambda>\) keeps none of 10 items"),
        (lambda d: d.concat(3), "a loader cannot read a int"),
        (lambda d: d.concat([]), "the list is empty"),
    ],
)
@pytest.mark.parametrize("kind", ["list", "arrays"])
def test_wrong_input(kind, make, message):
    with pytest.raises(LearnerError, match=message):
        make(DATA[kind]())


def test_concat_of_different_arrays():
    data = ArrayDataset({"x": np.zeros((2, 3)), "n": np.zeros(2, np.int32)})
    with raises_code("data-concat-differs", "int32", "[]", "int64", number=1):
        data.concat(ArrayDataset({"x": np.zeros((4, 3)), "n": np.zeros(4, np.int64)}))
    with raises_code("data-concat-differs", "int32", "[]", "[3]", "[4]", number=2):
        data.concat(data, ArrayDataset({"x": np.zeros((2, 4))}))


def test_failing_item_is_named_by_its_row():
    class Broken(Numbers):
        def __getitem__(self, index):
            if index == 7:
                raise OSError("no such file")
            return super().__getitem__(index)

    for data in (Broken().map(double).slice(5), view([1]).concat(Broken().slice(7)), Broken().windows(3, 3)):
        with pytest.raises(OSError, match="no such file") as raised:
            list(data)
        assert "while reading item 7 of" in "\n".join(raised.value.__notes__)


@pytest.mark.parametrize("source", ["list", "arrays"])
@pytest.mark.parametrize("call", ["map", "augment"])
def test_functions_that_change_items_in_place_do_not_change_the_data(source, call):
    """Otherwise the numbers would differ in each epoch, and in a run that resumes."""
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    data = ArrayDataset({"x": rows.copy()}) if source == "arrays" else view([{"x": row} for row in rows.copy()])

    def doubled(item, rng=None):
        item["x"] *= 2
        item["new"] = item["x"].sum()
        return item

    changed = getattr(data, call)(doubled)
    for _ in range(2):
        np.testing.assert_array_equal([item["x"] for item in changed], 2 * rows)
    assert [sorted(item) for item in data] == [["x"]] * 3
    np.testing.assert_array_equal([item["x"] for item in data], rows)


def test_parts_of_any_container_are_copied():
    rows = np.ones((2, 3), np.float32)
    pair = collections.namedtuple("pair", "a b")
    items = [pair(row, collections.OrderedDict(x=row)) for row in rows]

    def doubled(item):
        item.a[:] *= 2
        item.b["x"] *= 2
        return item

    for data in (view(items).map(doubled), view([0, 1]).map(items.__getitem__).map(doubled)):
        for item in data:
            assert (type(item), type(item.b)) == (pair, collections.OrderedDict)
            np.testing.assert_array_equal([item.a, item.b["x"]], np.full((2, 3), 2))
    np.testing.assert_array_equal(rows, np.ones((2, 3)))


def test_large_arrays_are_shared_and_refuse_writes():
    """Windows of one long series would be copies of the whole series."""
    series = np.zeros(2**18 + 1, np.float32)
    data = view([{"series": series, "start": start} for start in range(3)])
    assert np.shares_memory(data.map(lambda item: item["series"][item["start"] :])[1], series)
    with pytest.raises(ValueError, match="read-only"):
        data.map(lambda item: item["series"].fill(1))[0]


def test_bounds_of_rows():
    assert list(view(range(10)).select([-10, 9])) == [0, 9]
    assert list(view(range(200)).select(np.array([-1, 5], np.int8))) == [199, 5]
    assert len(view(range(10)).windows(10)) == 1
