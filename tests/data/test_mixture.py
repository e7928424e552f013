"""Tests of mixtures of datasets: which row comes from which source, and every way of reading them."""

import collections
import itertools
import math
from fractions import Fraction
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.data import DataLoaderBuilder, DatasetReport, Lines, Pad, mix, stack, view
from learner.data.dataset import is_epoch_dependent
from learner.data.mixture_draws import MixtureDraws
from learner.data.sharding import ProcessShard
from learner.data.source import source_of
from tests.support.codes import raises_code
from tests.support.runs import build_line, quiet
from tests.support.shared import together


def philox(seed, *key):
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=key)))


def arrays(first, count):
    """Return arrays whose values identify the source."""
    x = np.arange(first, first + count, dtype=np.float32)
    return {"x": np.stack([x, -x], axis=1), "row": np.arange(first, first + count, dtype=np.int32)}


def items(first, count):
    table = arrays(first, count)
    return [{name: column[i] for name, column in table.items()} for i in range(count)]


KINDS = {"arrays": arrays, "items": items}


def mixture(kind="arrays", **options):
    """Return a mixture of three rows of a and seven of b."""
    make = KINDS[kind]
    return mix({"a": make(0, 3), "b": make(100, 7)}, **({"weights": {"a": 0.4, "b": 0.6}, "seed": 5} | options))


def rows_of(data, epoch=1):
    return [int(data.item_at(index, epoch)["row"]) for index in range(len(data))]


# -- which rows --------------------------------------------------------------------------------------------------------


def test_rows_equal_numpy():
    """Two epochs of seven rows, of sources with two and three rows, which are read again in a new order."""
    draws = MixtureDraws([2, 3], [Fraction(1, 2), Fraction(1, 2)], size=7, seed=9)
    points = philox(9, 0, 0, 0).random(2)
    counts = [3 + (point < 0.5) for point in points]  # 3.5 rows of a
    assert [draws.counts(epoch).tolist() for epoch in (1, 2)] == [[count, 7 - count] for count in counts]
    walked = {0: [], 1: []}
    for source, length in ((0, 2), (1, 3)):
        for walk in range(5):
            order = philox(9, 2, source, walk).permutation(length)
            walked[source] += [(int(row), walk + 1) for row in order]
    for epoch, count in enumerate(counts, 1):
        sources = philox(9, 1, epoch, 0).permutation([0] * count + [1] * (7 - count)).tolist()
        rows = draws.rows(epoch)
        assert rows.source.tolist() == sources
        actual = list(zip(rows.row.tolist(), rows.walk.tolist(), strict=True))
        assert actual == [walked[source].pop(0) for source in sources]


draws = st.builds(
    lambda sources, size, seed: MixtureDraws([n for n, _ in sources], [w for _, w in sources], size, seed),
    st.lists(st.tuples(st.integers(1, 9), st.fractions(0, 5, max_denominator=50)), min_size=1, max_size=4).filter(
        lambda sources: any(weight for _, weight in sources)
    ),
    st.integers(1, 60),
    st.integers(0, 2**40),
)


@settings(max_examples=25, deadline=None)
@given(draws)
def test_shares_of_sources_and_rows(draws):
    seen = [collections.Counter() for _ in draws.lengths]
    for epoch in (1, 2, 3):
        rows, counts = draws.rows(epoch), draws.counts(epoch)
        assert len(rows.source) == draws.size
        assert counts.tolist() == np.bincount(rows.source, minlength=len(seen)).tolist()
        for count, probability in zip(counts.tolist(), draws.probabilities, strict=True):
            assert abs(count - draws.size * probability) < 1
        for source, row in zip(rows.source.tolist(), rows.row.tolist(), strict=True):
            seen[source][row] += 1
        for counter, length, total in zip(seen, draws.lengths, draws.totals(epoch).tolist(), strict=True):
            assert sum(counter.values()) == total
            assert {counter[row] - total // length for row in range(length)} <= {0, 1}
            assert set(counter) <= set(range(length))


@settings(max_examples=15, deadline=None)
@given(draws, st.integers(1, 4))
def test_epoch_is_a_function_of_seed_and_number(draws, epoch):
    alone = MixtureDraws(draws.lengths, draws.probabilities, draws.size, draws.seed).rows(epoch)
    for other in (1, 3, epoch):
        actual = draws.rows(other)
    for name in ("source", "row", "walk"):
        np.testing.assert_array_equal(getattr(actual, name), getattr(alone, name))


def test_probabilities_of_sources():
    """One row per epoch: 30 % of 500 are 150, within 5 standard deviations of the binomial distribution."""
    counts = [mix([range(3), range(9)], weights=[3, 7], size=1, seed=seed).counts(1)["0"] for seed in range(500)]
    same = MixtureDraws([3, 9], [Fraction(3), Fraction(7)], 1, seed=1).totals(500)[0]
    assert abs(sum(counts) - 150) < 5 * math.sqrt(500 * 0.3 * 0.7)
    assert abs(int(same) - 150) < 5 * math.sqrt(500 * 0.3 * 0.7)


@pytest.mark.parametrize("seed", range(5))
def test_parts_of_an_epoch_are_mixed_uniformly(seed):
    draws = MixtureDraws([50, 20, 1], [Fraction(2), Fraction(5), Fraction(3)], size=3000, seed=seed)
    source = draws.rows(1).source
    for first, last in ((0, 100), (0, 1000), (2900, 3000)):
        for number, probability in enumerate((0.2, 0.5, 0.3)):
            actual, rows = np.count_nonzero(source[first:last] == number), last - first
            assert abs(actual - rows * probability) < 5 * math.sqrt(rows * probability * (1 - probability))


def test_every_row_once_by_default():
    data = mix({"a": arrays(0, 3), "b": arrays(100, 7)}, seed=1)
    epochs = [rows_of(data, epoch) for epoch in (1, 2, 3)]
    assert [sorted(rows) for rows in epochs] == [[0, 1, 2, *range(100, 107)]] * 3
    assert len(set(map(tuple, epochs))) == 3
    assert data.counts(3) == {"a": 3, "b": 7}


def test_seeds_epochs_and_types_of_weights():
    assert rows_of(mixture(), 1) != rows_of(mixture(), 2)
    assert rows_of(mixture(), 1) != rows_of(mixture(seed=6), 1)
    expected = rows_of(mixture(weights={"a": 2, "b": 3}), 4)
    for weights in ([2, 3], (4, 6), np.array([2, 3]), np.float32([2, 3]), {"b": 3, "a": 2}):
        assert rows_of(mixture(weights=weights), 4) == expected


def test_source_of_weight_0_is_dropped():
    data = mixture(weights=[0, 1], size=20)
    assert data.counts(1) == {"a": 0, "b": 20}
    assert min(rows_of(data)) == 100


def test_repeated_source_is_in_its_next_epoch():
    """One row is drawn four times in two epochs, each time with another random number."""
    noise = view([{"x": 0}]).augment(lambda item, rng: {"x": int(rng.integers(10**9))}, seed=2)
    data = mix([noise], size=2)
    expected = [noise.item_at(0, walk) for walk in (1, 2, 3, 4)]
    assert [data.item_at(index, epoch) for epoch in (1, 2) for index in (0, 1)] == expected
    assert len({item["x"] for item in expected}) == 4


def test_mixtures_of_mixtures():
    inner = mixture(size=4)
    data = mix([inner, arrays(200, 2)], weights=[1, 0], size=4)
    for epoch in (1, 2, 3):
        assert sorted(rows_of(data, epoch)) == sorted(rows_of(inner, epoch))


# -- loaders -----------------------------------------------------------------------------------------------------------


LOADERS = {
    "arrays": lambda: DataLoaderBuilder().batch_size(4).build(mixture(size=11)),
    "shuffled arrays": lambda: DataLoaderBuilder().batch_size(4).shuffle(3).build(mixture(size=11)),
    "items": lambda: DataLoaderBuilder().batch_size(4).build(mixture("items", size=11)),
    "view": lambda: DataLoaderBuilder().batch_size(4).build(mixture(size=20).slice(2, 13)),
}


@pytest.mark.parametrize("kind", LOADERS)
def test_batches_from_any_position_in_any_epoch(kind):
    loader = LOADERS[kind]()
    assert loader.in_memory == (kind in ("arrays", "shuffled arrays"))
    for epoch in (2, 1):
        items = [loader.dataset.item_at(index, epoch) for index in range(11)]
        order = loader._plan.order(epoch)
        for start in (0, 1, 3):
            rows = np.concatenate([batch["row"] for batch in loader.epoch(epoch, start)] or [np.zeros(0, np.int32)])
            assert rows.dtype == np.int32
            assert rows.tolist() == [int(items[row]["row"]) for row in order[4 * start :]]


def test_gathered_arrays_equal_stacked_items():
    options = {"size": 23, "source_field": "source"}
    gathered = DataLoaderBuilder().batch_size(5).shuffle(2).build(mixture(**options))
    stacked = DataLoaderBuilder(stack).batch_size(5).shuffle(2).build(mixture(**options))
    assert (gathered.in_memory, stacked.in_memory) == (True, False)
    for epoch in (1, 2):
        for actual, expected in zip(gathered.epoch(epoch), stacked.epoch(epoch), strict=True):
            assert set(actual) == {"x", "row", "source"}
            for name, values in expected.items():
                assert actual[name].dtype == values.dtype
                np.testing.assert_array_equal(actual[name], values)
        rows = gathered.arrays["row"][gathered.order(epoch)]
        assert rows.tolist() == list(itertools.chain(*(batch["row"].tolist() for batch in gathered.epoch(epoch))))
    assert gathered.nbytes == 23 * 16  # of 23 rows, from 10 rows of the sources


@pytest.mark.parametrize("kind", ["arrays", "items"])
@pytest.mark.parametrize("count", [2, 4])
def test_processes_together_read_the_batches_of_one(kind, count):
    make = lambda: DataLoaderBuilder().batch_size(4).shuffle(3).build(mixture(kind, size=22))  # noqa: E731
    expected = [batch["row"].tolist() for batch in make().epoch(2, 1)]
    shares = [ProcessShard(index, count, count) for index in range(count)]
    readers = [source_of(make(), "train", share=share).open(2, 1) for share in shares]
    assert together(readers, "row", count) == expected


@pytest.mark.full
def test_workers_read_the_same_rows():
    alone = DataLoaderBuilder().batch_size(4).build(mixture("items"))
    loader = DataLoaderBuilder().batch_size(4).num_workers(1).build(mixture("items"))
    with_workers = [batch["row"].tolist() for epoch in (1, 2) for batch in loader.epoch(epoch)]
    loader.close()
    assert with_workers == [batch["row"].tolist() for epoch in (1, 2) for batch in alone.epoch(epoch)]


def test_texts_of_many_lengths_are_padded():
    data = mix([[{"text": [1, 2, 3]}], [{"text": [4]}]])
    (batch,) = DataLoaderBuilder(Pad()).batch_size(2).build(data)
    assert sorted(batch["text"].tolist()) == [[1, 2, 3], [4, 0, 0]]


def test_fingerprints_contain_weights_and_seed():
    prints = [
        DataLoaderBuilder().batch_size(2).build(data).fingerprint()["dataset"]
        for data in (
            mixture(),
            mixture(),
            mixture(weights=[2, 3]),
            mixture(weights=[0.4, 0.61]),
            mixture(seed=6),
            mixture(size=9),
            mixture(weights=None),
        )
    ]
    assert prints[0] == prints[1] == prints[2]
    assert len(set(prints)) == 5


# -- views -------------------------------------------------------------------------------------------------------------

VIEWS = {
    "map": (lambda data: data.map(lambda item: item), range(10)),
    "slice": (lambda data: data.slice(2, -1), range(2, 9)),
    "select": (lambda data: data.select([4, 4, 0]), [4, 4, 0]),
    "shuffle": (
        lambda data: data.shuffle(3),
        np.random.Generator(np.random.Philox(np.random.SeedSequence(3))).permutation(10),
    ),
    "augment": (lambda data: data.augment(lambda item, rng: item), range(10)),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_have_the_rows_of_the_epoch(name):
    make, numbers = VIEWS[name]
    for epoch in (1, 2):
        expected = rows_of(mixture(), epoch)
        assert rows_of(make(mixture()), epoch) == [expected[number] for number in numbers]


def test_views_of_several_items():
    for epoch in (1, 2):
        rows = rows_of(mixture(), epoch)
        assert rows_of(mixture().concat(arrays(50, 2)), epoch) == [*rows, 50, 51]
        windows = mixture().windows(4)
        assert [windows.item_at(i, epoch)["row"].tolist() for i in (0, 1)] == [rows[:4], rows[4:8]]
        assert set(rows_of(mixture().sample(4), epoch)) <= set(rows)


@pytest.mark.parametrize(
    ("method", "view"),
    [
        ("filter", lambda data: data.filter(bool)),
        ("filter", lambda data: data.map(dict).slice(3).filter(bool)),
        ("split", lambda data: data.split([0.5, 0.5])),
        ("split", lambda data: view([{}]).concat(data).part(0, [0.5, 0.5])),
        ("k_fold", lambda data: data.k_fold(2)),
        ("k_fold", lambda data: data.fold(0, 2, "train")),
    ],
)
def test_views_of_fixed_rows_are_refused(method, view):
    with raises_code("data-mixture-view-unsupported", method=method):
        view(mixture())


def test_sources_may_be_any_views():
    data = mix([view(arrays(0, 6)).filter(lambda item: item["row"] % 2), view(arrays(10, 4)).split([0.5, 0.5])[1]])
    assert sorted(rows_of(data)) == sorted([1, 3, 5, *rows_of(view(arrays(10, 4)).split([0.5, 0.5])[1])])


# -- what users see ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_source_field(kind):
    for item in mixture(kind, source_field="from"):
        assert item["from"] == (item["row"] >= 100)
        assert (item["from"].dtype, item["from"].shape) == (np.int32, ())
    assert "from" not in mixture(kind)[0]


def test_pickling_length_and_negative_indices():
    data = mixture()
    expected = rows_of(data, 3)
    actual = ForkingPickler.loads(ForkingPickler.dumps(data))
    assert (rows_of(actual, 3), len(actual), actual.names) == (expected, 10, ("a", "b"))
    assert actual[-1]["row"] == rows_of(data)[9]
    with pytest.raises(IndexError, match="item 10 of Mixture, which has 10"):
        data[10]


def test_texts():
    data = mix({"a": range(2), "b": range(8)}, weights={"a": 1, "b": 3}, size=12, seed=7)
    chain = "mix(size=12, seed=7, weights=[0.25, 0.75], {'a': range(2 items), 'b': range(8 items)})"
    assert repr(data) == f"{chain}: 12 items; an epoch repeats 'a' 1.5x, 'b' 1.12x"
    assert repr(data.map(str).slice(1)) == f"{chain}.map(str).slice(1, 12, 1): 11 items"
    shares = "a 3 (25.00 %; 1.50 times its 2 rows), b 9 (75.00 %; 1.12 times its 8 rows)"
    assert data.describe(epoch=2) == f"12 rows: {shares}"
    assert "repeats" not in repr(mix([range(2), range(8)]))


def test_report():
    text = str(DatasetReport(DataLoaderBuilder().batch_size(5).build(mixture(source_field="source")), "train"))
    assert text.splitlines()[:2] == [
        "train: 10 rows of Mixture, 2 batches of 5",
        "a mixture of 10 rows: a 4 (40.00 %; 1.33 times its 3 rows), b 6 (60.00 %; 0.86 times its 7 rows)",
    ]
    assert "source: 0 (a): 4, 1 (b): 6" in text


@pytest.mark.full
def test_run_logs_the_rows_of_each_source(tmp_path):
    x = np.ones((4, 3), np.float32)
    table = {"x": x, "t": x[:, :1]}
    loader = DataLoaderBuilder().batch_size(4).build(mix({"a": table, "b": table}, weights=[1, 3]).slice(0))
    build_line(quiet(tmp_path / "run")).fit(loader, DataLoaderBuilder().batch_size(4).build(table))
    log = (tmp_path / "run" / "experiment.log").read_text()
    assert log.count("a mixture of") == 1
    shares = "a 2 (25.00 %; 0.50 times its 4 rows), b 6 (75.00 %; 1.50 times its 4 rows)"
    assert f"train: epoch 1 is a mixture of 8 rows: {shares}" in log


# -- wrong input -------------------------------------------------------------------------------------------------------


def generator():
    yield {"x": 1}


A = arrays(0, 3)


@pytest.mark.parametrize(
    ("sources", "options", "code", "values"),
    [
        ({}, {}, "data-mixture-empty", []),
        ([], {"weights": [1]}, "data-mixture-empty", []),
        (3, {}, "data-mixture-sources-type", ["int"]),
        ({1: A}, {}, "data-mixture-name-type", ["1"]),
        ({"a": A, "b": generator()}, {}, "data-mixture-stream", ["'b'", "generator"]),
        ({"a": DataLoaderBuilder().batch_size(2).build(A)}, {}, "data-mixture-stream", ["'a'", "DataLoader"]),
        ({"a": []}, {}, "data-dataset-empty", ["'a'"]),
        ({"a": "text"}, {}, "data-dataset-type", ["'a'"]),
        ({"a": A}, {"weights": {"a": 1, "aa": 2}}, "data-mixture-weight-unknown", ["'aa'"]),
        ({"a": A, "b": A}, {"weights": {"a": 1}}, "data-mixture-weight-missing", ["'b'"]),
        ({"a": A, "b": A}, {"weights": [1]}, "data-mixture-weights-count", ["2", "1"]),
        ({1: A, "b": A}, {"weights": {"bb": 1}}, "data-mixture-weight-unknown", ["'bb'", "'b'"]),
        ({"a": A, "b": A}, {"weights": [[1], [2, 3]]}, "data-mixture-weight-value", ["'a'", "[1]"]),
        ({"a": A, "b": A}, {"weights": np.ones((2, 1))}, "data-mixture-weights-type", []),
        ({"a": A, "b": A}, {"weights": 0.5}, "data-mixture-weights-type", ["0.5"]),
        ({"a": A, "b": A}, {"weights": [1, -0.5]}, "data-mixture-weight-value", ["'b'", "-0.5"]),
        ({"a": A, "b": A}, {"weights": [float("nan"), 1]}, "data-mixture-weight-value", ["'a'", "nan"]),
        ({"a": A, "b": A}, {"weights": [1, float("inf")]}, "data-mixture-weight-value", ["'b'", "inf"]),
        ({"a": A, "b": A}, {"weights": [True, 1]}, "data-mixture-weight-value", ["'a'", "True"]),
        ({"a": A, "b": A}, {"weights": ["x", 1]}, "data-mixture-weight-value", ["'a'", "'x'"]),
        ({"a": A, "b": A}, {"weights": {"a": 0, "b": 0.0}}, "data-mixture-weights-zero", []),
        ({"a": A}, {"size": 0}, "data-number-value", ["size", "0"]),
        ({"a": A}, {"size": 2.0}, "data-number-value", ["size", "2.0"]),
        ({"a": A}, {"seed": -1}, "data-number-value", ["seed", "-1"]),
        ({"a": A, "b": {"row": A["row"]}}, {}, "data-mixture-fields-differ", ["x", "'b'", "not there"]),
        ({"a": A, "b": {**A, "y": A["x"]}}, {}, "data-mixture-fields-differ", ["y", "'b'", "not there"]),
        ({"a": A, "b": {**A, "x": A["row"]}}, {}, "data-mixture-fields-differ", ["float32 [2]", "int32 []"]),
        ({"a": A, "b": {**A, "x": A["x"][:, :1]}}, {}, "data-mixture-fields-differ", ["[2]", "[1]"]),
        (
            [[{"x": np.zeros((2, 3))}], [{"x": np.zeros((5, 4))}]],
            {},
            "data-mixture-fields-differ",
            ["[?, 3]", "[?, 4]"],
        ),
        ([[(1, 2)], [[1, 2]]], {}, "data-mixture-fields-differ", ["'1'"]),
        ([[(1, 2)], [{"0": 1, "1": 2}]], {}, "data-mixture-structures-differ", ["'1'"]),
        ([A], {"source_field": "row"}, "data-mixture-source-field-taken", ["'row'", "'0'"]),
        ([[1, 2]], {"source_field": "source"}, "data-mixture-source-field-taken", ["'0'"]),
        ([A], {"source_field": ""}, "data-mixture-source-field-type", []),
    ],
)
def test_wrong_input(sources, options, code, values):
    with raises_code(code, *values):
        mix(sources, **options)


def test_all_problems_in_one_error():
    with raises_code("data-mixture-unusable") as raised:
        mix(
            {"a": A, "b": {**A, "x": A["row"]}, "c": generator()},
            weights={"a": -1, "z": 1, "c": 1},
            size=0,
            seed=-1,
            source_field="row",
        )
    assert sorted(raised.value.codes) == sorted(
        [
            "data-mixture-stream",
            "data-mixture-weight-unknown",
            "data-mixture-weight-missing",
            "data-mixture-weight-value",
            "data-number-value",
            "data-number-value",
            "data-mixture-fields-differ",
            "data-mixture-source-field-taken",
            "data-mixture-source-field-taken",
        ]
    )


def test_unreadable_item_is_named(tmp_path):
    class Broken:
        def __len__(self):
            return 4

        def __getitem__(self, index):
            if index == self.bad:
                raise OSError("the disk")
            return {"x": 1}

    class Later(Broken):
        bad = 2

    class First(Broken):
        bad = 0

    with pytest.raises(OSError, match="the disk") as raised:
        list(mix({"good": [{"x": 1}], "bad": Later()}))
    assert "while reading item 2 of the source 'bad' of a mixture" in raised.value.__notes__
    with pytest.raises(OSError, match="the disk") as raised:
        mix({"bad": First()})
    assert "while reading item 0 of the source 'bad' of a mixture" in raised.value.__notes__


def test_texts_are_of_any_length(tmp_path):
    for name, text in (("a", "ab\nc\n"), ("b", "defg\n")):
        (tmp_path / name).write_text(text)
    data = mix({name: Lines(tmp_path / name) for name in ("a", "b")})
    assert sorted(data) == ["ab", "c", "defg"]


def test_more_sources_than_a_byte_counts():
    assert sorted(mix([[number] for number in range(300)])) == list(range(300))


def test_mixture_depends_on_the_epoch():
    """Otherwise workers that wait would give the rows of another epoch."""
    assert is_epoch_dependent(mix([range(3), range(4)]))
    assert is_epoch_dependent(mix([range(3), range(4)]).map(str))
