"""Tests of DatasetReport for every kind of data."""

import itertools

import grain
import numpy as np
import pytest
from PIL import Image

from learner.data import DataLoaderBuilder, Dataset, DatasetReport, digits, view
from learner.data.sources import csv
from tests.support.codes import raises_code


def clock(step=0.5):
    """Return a clock that advances by `step` with each reading."""
    return itertools.count(0, step).__next__


def loader(arrays, size=4):
    return DataLoaderBuilder().batch_size(size).build(arrays)


ARRAYS = {
    "x": np.float32([[0, 1], [2, 3], [4, np.nan], [6, 7], [8, 9], [np.inf, 1]]),
    "label": np.int32([0, 1, 1, 2, 1, 0]),
}


def test_report_of_a_loader():
    report = DatasetReport(loader(ARRAYS), "train", items=2, clock=clock())
    assert (report.rows, report.num_rows, report.num_batches, report.batch_rows, report.is_complete) == (
        6,
        6,
        2,
        4,
        True,
    )
    assert str(report).splitlines() == [
        "train: 6 rows of ArrayDataset, 2 batches of 4",
        "",
        "field  shape    dtype  least    mean  greatest  NaN  infinite",
        "label     []    int32      0  0.8333         2    0         0",
        "x        [2]  float32      0     4.1         9    1         1",
        "",
        "label: 0: 2, 1: 3, 2: 1",
        "",
        "item 0: label 0; x [0, 1]",
        "item 1: label 1; x [2, 3]",
        "",
        "read in 1.0 s: 4 rows per second; 0.5 s to the first batch",
    ]


def plus_one(item):
    return {**item, "kind": item["kind"] + 1}


def noisy(item, rng):
    return {**item, "a": item["a"] + rng.normal()}


NAMED = "kind: 0 (cat): 1, 1 (dog): 2"


@pytest.mark.parametrize(
    ("views", "line"),
    [
        (lambda data: data.shuffle(1), NAMED),
        (lambda data: data.slice(0, 3), NAMED),
        (lambda data: data.slice(1).select([0, 0, 1]), "kind: 0 (cat): 1, 1 (dog): 2"),
        (lambda data: data.select([2, 0, 1, 0]).filter(lambda item: item["a"] != 3), NAMED),
        (lambda data: data.concat(data.shuffle(3)), "kind: 0 (cat): 2, 1 (dog): 4"),
        (lambda data: data.map(dict).augment(noisy), NAMED),
        (lambda data: data.map(plus_one), "kind: 1: 1, 2: 2"),
        (lambda data: data.concat(view({"a": np.int32([1]), "kind": np.int32([1])})), "kind: 0: 1, 1: 3"),
    ],
)
def test_label_names_of_views(tmp_path, views, line):
    (tmp_path / "a.csv").write_text("a,kind\n1,dog\n3,dog\n4,cat\n")
    data = views(csv(tmp_path / "a.csv", labels={"kind": None}))
    for source in (data, loader(data)):
        assert line in str(DatasetReport(source)).splitlines()


class Uneven(Dataset):
    """Items of several lengths, with texts."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return {"tokens": np.arange(index + 1), "text": "\x1b[31mred\n"[: index + 4], "deep": {"n": index}}


def test_items_of_different_lengths():
    report = DatasetReport(Uneven(), clock=clock())
    lines = str(report).splitlines()
    assert lines[0] == "data: 3 rows of Uneven"
    assert [line.split()[:3] for line in lines[3:6]] == [
        ["deep/n", "[]", "int64"],
        ["text", "[]", "text"],
        ["tokens", "[?]", "int64"],
    ]
    assert lines[-3].endswith("tokens [0, 1, 2]")
    assert all(line.isprintable() for line in lines)


STREAMS = {
    "a list": lambda: [{"x": np.zeros((4, 2))}, {"x": np.ones((2, 2))}],
    "a function": lambda: lambda: iter([{"x": np.zeros((4, 2))}, {"x": np.ones((2, 2))}]),
    "Grain": lambda: grain.MapDataset.source([{"x": np.full(2, i > 3, float)} for i in range(6)]).batch(4),
    "Grain's iterator": lambda: (
        grain.MapDataset.source([{"x": np.full(2, i > 3, float)} for i in range(6)]).batch(4).to_iter_dataset()
    ),
    "a loader of items": lambda: loader([{"x": np.full(2, i > 3, float)} for i in range(6)]),
    "items": lambda: type(
        "Items", (), {"__len__": lambda s: 6, "__getitem__": lambda s, i: {"x": np.full(2, i > 3, float)}}
    )(),
    "arrays": lambda: {"x": np.repeat([[0.0], [1.0]], [4, 2], axis=0) * np.ones(2)},
}


@pytest.mark.parametrize("kind", STREAMS)
def test_data_of_every_kind(kind):
    report = DatasetReport(STREAMS[kind]())
    assert (report.rows, report.num_rows, report.is_complete) == (6, 6, True)
    assert report.fields["x"].mean == pytest.approx(1 / 3)
    assert report.fields["x"].shape == (2,)


def test_loader_is_not_changed():
    data = DataLoaderBuilder().batch_size(4).shuffle(0).build(ARRAYS)
    DatasetReport(data)
    assert next(iter(data))["label"].tolist() == ARRAYS["label"][data.order(1)[:4]].tolist()


class Shuffled:
    """Batches in an order of a random generator."""

    def __init__(self):
        self.rng = np.random.default_rng(0)

    def __iter__(self):
        for rows in np.split(self.rng.permutation(40), 5):
            yield {"x": rows}


class Position:
    """Batches of an iterable with a position of its own."""

    def __init__(self):
        self.next = 0

    def __iter__(self):
        while self.next < 5:
            self.next += 1
            yield {"x": np.arange(8) + 8 * (self.next - 1)}
        self.next = 0

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


class RandomItems(Dataset):
    def __init__(self):
        self.rng = np.random.default_rng(0)

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return {"x": self.rng.normal()}


@pytest.mark.parametrize("make", [Shuffled, Position, RandomItems])
@pytest.mark.parametrize("rows", [8, 100])
def test_data_stays_where_it_was(make, rows):
    data = make()
    DatasetReport(data, rows=rows)
    np.testing.assert_array_equal(next(iter(data))["x"], next(iter(make()))["x"])


def test_worker_processes_are_closed(monkeypatch):
    closed, data = [], loader(ARRAYS)
    monkeypatch.setattr(data, "close", lambda: closed.append(True))
    DatasetReport(data, rows=1)
    assert closed == [True]


def test_limits_of_rows_and_seconds():
    def endless():
        return ({"x": np.full((10, 1), i)} for i in itertools.count())

    report = DatasetReport(endless, rows=25)
    assert (report.rows, report.num_rows, report.is_complete) == (30, None, False)
    assert str(report).splitlines()[0] == "data: unknown length of function; what follows is of the first 30 rows"
    assert DatasetReport(endless, seconds=3, clock=clock()).rows == 60
    assert (DatasetReport(loader(ARRAYS), rows=3).rows, DatasetReport(loader(ARRAYS), rows=6).is_complete) == (4, True)


def test_few_values_are_listed_and_many_are_summarized():
    few = DatasetReport({"n": np.arange(40) % 20})
    assert "n: 0: 2, 1: 2," in str(few)
    many = DatasetReport({"n": np.repeat(np.arange(21), [1, *[3] * 20])})
    assert "n: 21 values, each 1 to 3 times" in str(many)
    assert "n: " not in str(DatasetReport({"n": np.arange(10)}))


def test_label_names(tmp_path):
    (tmp_path / "a.csv").write_text("kind\ncat\ndog\ncat\n")
    for data in (
        csv(tmp_path / "a.csv", labels={"kind": None}),
        loader(csv(tmp_path / "a.csv", labels={"kind": None})),
    ):
        assert "kind: 0 (cat): 2, 1 (dog): 1" in str(DatasetReport(data))


def test_contact_sheet(tmp_path):
    report = DatasetReport(loader(digits("valid"), 50))
    assert report.image_fields() == ["image"]
    assert report.save_images(tmp_path / "a.png") == 64
    with Image.open(tmp_path / "a.png") as read:
        sheet = np.array(read)
    first, ninth = (digits("valid")[i]["image"] for i in (0, 8))
    np.testing.assert_allclose(sheet[2:50:6, 2:50:6, 0] / 255, first, atol=0.003)
    np.testing.assert_allclose(sheet[52:100:6, 2:50:6, 0] / 255, ninth, atol=0.003)
    with raises_code("data-without-images", "data", "'label'"):
        report.save_images(tmp_path / "b.png", "label")
    with raises_code("data-without-images", "train"):
        DatasetReport(ARRAYS, "train").save_images(tmp_path / "b.png")
    with raises_code("data-number-value", name="columns", value=0):
        report.save_images(tmp_path / "b.png", columns=0)


@pytest.mark.parametrize(
    ("data", "code", "values"),
    [
        ([], "data-without-rows", ("train",)),
        (iter([{"x": np.zeros(2)}]), "data-iterator-used-up", ()),
        ({}, "data-arrays-missing", ()),
        ("data/train", "data-dataset-type", ("str",)),
        (3, "data-type", ("of type int",)),
        ([{"x": np.zeros(2), "y": np.zeros(3)}], "batch-axes-differ", ("'x'", "[2]", "'y'", "[3]")),
    ],
)
def test_wrong_data(data, code, values):
    with raises_code(code, *values):
        DatasetReport(data, "train")


def test_errors_of_the_dataset_propagate():
    class Broken(Uneven):
        def __getitem__(self, index):
            raise OSError("no such image")

    with pytest.raises(OSError, match="no such image"):
        DatasetReport(Broken())
