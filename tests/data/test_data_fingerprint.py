"""Tests of fingerprints of data: equal in any process, and different for other rows, fields, sizes or orders."""

import contextlib
import io
import json
import subprocess
import sys
import zlib

import grain
import numpy as np
import pytest

from learner.data import ArrayDataset, DataLoaderBuilder, Dataset, Pad, PerProcess, data_fingerprint
from learner.data.data_fingerprint import describe_iterable, sampled
from learner.data.sharding import ProcessShard
from learner.data.source import source_of

ROWS, SIZE = 10, 4


def arrays(rows=ROWS, width=3, dtype=np.float32):
    return {"x": np.zeros((rows, width), dtype), "y": np.arange(rows)}


def edited(fields, row):
    """Return arrays of which one number differs."""
    fields["x"][row, 1] += 1
    return fields


def loader(data=None, size=SIZE, seed=0, drop=False, batcher=None, workers=0):
    builder = DataLoaderBuilder(batcher).batch_size(size).drop_last(drop).num_workers(workers)
    return (builder if seed is None else builder.shuffle(seed)).build(arrays() if data is None else data)


def batches(rows=ROWS):
    return [{"x": np.zeros((min(SIZE, rows - first), 3))} for first in range(0, rows, SIZE)]


def generator_function():
    yield from batches()


def fingerprint(data, **options):
    source = source_of(data, "train", **options)
    source.peek(1)
    try:
        return source.fingerprint()
    finally:
        source.close()


class Sampler:
    pass


class RandomSampler:
    pass


class SequentialSampler:
    pass


class Loader:
    """A loader with the attributes of PyTorch's `DataLoader` that describe its batches."""

    def __init__(self, sampler=SequentialSampler, rows=ROWS, shape=(3,), drop_last=False):
        self.dataset, self.batch_size, self.drop_last, self.sampler = range(rows), SIZE, drop_last, sampler()
        self.shape = shape

    def __len__(self):
        return -(-len(self.dataset) // SIZE)

    def __iter__(self):
        for first in range(0, len(self.dataset), SIZE):
            yield {"x": np.zeros((min(SIZE, len(self.dataset) - first), *self.shape), np.float32)}


def test_fingerprint_of_a_loader():
    assert fingerprint(loader()) == {
        "kind": "loader",
        "class": "DataLoader",
        "dataset": "ArrayDataset(10 rows: x float32 [3], y int64 [])",
        "rows": 10,
        "batches": 3,
        "batch_size": 4,
        "drop_last": False,
        "order": "shuffled",
        "seed": 0,
        "batcher": "stack",
        "fields": {"x": "float32 [3]", "y": "int64 []"},
        "in_memory": True,
        "contents": f"{zlib.crc32(arrays()['x'].tobytes() + arrays()['y'].tobytes()):08x}",
    }


def test_fingerprint_of_an_iterable():
    assert fingerprint(Loader(RandomSampler)) == {
        "kind": "iterable",
        "class": "Loader",
        "rows": 10,
        "batches": 3,
        "batch_size": 4,
        "drop_last": False,
        "order": "shuffled",
        "sampler": "RandomSampler",
        "fields": {"x": "float32 [?]"},
    }
    assert fingerprint(Loader())["fields"] == {"x": "float32 [3]"}
    assert fingerprint(Loader(Sampler))["order"] is None


def test_fingerprint_of_a_list():
    facts = fingerprint(batches(9))
    assert (facts["rows"], facts["batches"], facts["batch_size"], facts["order"]) == (9, 3, 4, "as given")
    assert fingerprint([np.zeros((2, 3)), np.zeros((5, 3))])["rows"] == 7


def test_fingerprints_of_functions_and_iterators():
    facts = fingerprint(generator_function)
    assert (facts["kind"], facts["class"], facts["rows"], facts["batches"]) == (
        "function",
        "generator_function",
        None,
        None,
    )
    facts = fingerprint(generator_function())
    assert (facts["kind"], facts["class"]) == ("iterator", "generator_function")
    facts = fingerprint(iter(batches()))
    assert (facts["kind"], facts["class"]) == ("iterator", "list_iterator")


class Plain(Dataset):
    """A dataset whose fields are unknown until an item is read."""

    def __init__(self, rows=ROWS):
        self.rows = rows

    def __len__(self):
        return self.rows

    def __getitem__(self, index):
        return {"text": np.arange(index + 1)}


CHANGES = {
    "a row fewer with as many batches": (loader, lambda: loader(arrays(9))),
    "a row fewer in the list": (batches, lambda: batches(9)),
    "a row fewer in another's loader": (Loader, lambda: Loader(rows=9)),
    "another seed": (loader, lambda: loader(seed=1)),
    "no shuffling": (loader, lambda: loader(seed=None)),
    "shuffling in another's loader": (Loader, lambda: Loader(RandomSampler)),
    "a list in the loader's place": (lambda: loader(seed=None), lambda: list(loader(seed=None))),
    "another dtype": (loader, lambda: loader(arrays(dtype=np.float64))),
    "another width": (loader, lambda: loader(arrays(width=4))),
    "another width in another's loader": (Loader, lambda: Loader(shape=(4,))),
    "another batch size": (loader, lambda: loader(size=5)),
    "the last batch left out": (loader, lambda: loader(drop=True)),
    "another split of the data": (
        lambda: loader(ArrayDataset(arrays()).split([0.5, 0.5], seed=0)[0]),
        lambda: loader(ArrayDataset(arrays()).split([0.5, 0.5], seed=1)[0]),
    ),
    "one other number": (loader, lambda: loader(edited(arrays(), 7))),
    "one other number in a list": (batches, lambda: [*batches()[:-1], {"x": edited(batches()[-1], 1)["x"]}]),
    "another length of padded texts": (
        lambda: loader(Plain(), batcher=Pad(length=16)),
        lambda: loader(Plain(), batcher=Pad(length=32)),
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_other_data_has_another_fingerprint(change):
    before, after = CHANGES[change]
    assert fingerprint(before()) == fingerprint(before())
    assert fingerprint(before()) != fingerprint(after())


def test_fingerprint_is_independent_of_how_a_dataset_is_passed():
    assert fingerprint(arrays_of_pairs := loader(seed=None)) == fingerprint(ArrayDataset(arrays()), batch_size=SIZE)
    assert arrays_of_pairs.fingerprint() == loader(seed=None).fingerprint()
    plain = loader(Plain(), batcher=Pad(length=16))
    assert fingerprint(plain)["fields"] == {"text": "int64 [16]", "mask": "bool [16]"}


def test_processes_have_the_fingerprint_of_the_whole():
    for make in (loader, lambda: loader(Plain(), batcher=Pad(length=16)), batches, Loader, generator_function):
        whole = fingerprint(make())
        assert [fingerprint(make(), share=ProcessShard(index, 2, 2)) for index in range(2)] == [whole, whole]


def test_fingerprints_of_per_process_data_agree():
    fingerprints = [
        fingerprint(PerProcess(loader(arrays(rows), size=2)), share=ProcessShard(index, 2, 2))
        for index, rows in enumerate((10, 9))
    ]
    assert (fingerprints[0]["rows"], fingerprints[0]["batch_size"]) == (None, 4)
    assert fingerprints[0] == fingerprints[1]


def test_fields_of_arrays_are_known_before_reading():
    assert source_of(loader(), "train").fingerprint()["fields"] == {"x": "float32 [3]", "y": "int64 []"}
    assert source_of(loader(Plain(), batcher=Pad(length=16)), "train").fingerprint()["fields"] is None
    assert source_of(batches(), "train").fingerprint()["fields"] is None


@pytest.mark.parametrize("make", [loader, Loader, batches, generator_function], ids=lambda make: make.__name__)
def test_fingerprints_are_json(make):
    facts = fingerprint(make())
    assert json.loads(json.dumps(facts)) == facts


def test_descriptions_have_no_addresses():
    class Holder(Dataset):
        def __init__(self):
            self.held = object()

        def __len__(self):
            return 3

        def __getitem__(self, index):
            return {"x": np.float32(index)}

        def __repr__(self):
            return f"Holder({self.held!r})"

    assert fingerprint(loader(Holder()))["dataset"].endswith("Holder")
    assert "0x" not in json.dumps(fingerprint(loader(Holder().map(lambda item: item))))


def test_fingerprint_of_a_grain_dataset():
    facts = fingerprint(grain.MapDataset.source([{"x": np.int64(i)} for i in range(ROWS)]).batch(SIZE))
    assert (facts["kind"], facts["batches"], facts["rows"]) == ("iterable", 3, None)


SCRIPT = """
import json, numpy as np
from learner.data import DataLoaderBuilder, Pad, view
from learner.data.source import source_of
items = view([{"text": np.arange(i + 1)} for i in range(10)]).augment(lambda item, rng: item, seed=2)
source = source_of(DataLoaderBuilder(Pad(multiple=4)).batch_size(4).shuffle(1).build(items), "train")
source.peek(1)
print(json.dumps(source.fingerprint(), sort_keys=True))
"""


@pytest.mark.full
def test_fingerprint_in_another_process():
    with contextlib.redirect_stdout(io.StringIO()) as in_process:
        exec(SCRIPT, {})
    in_another_process = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, check=True, text=True
    ).stdout
    assert in_another_process == in_process.getvalue()


class Unready:
    """An iterable whose attributes raise."""

    @property
    def dataset(self):
        raise RuntimeError("not ready")

    batch_size = sampler = drop_last = dataset

    def __iter__(self):
        return iter([{"x": np.zeros(4, np.float32)}])


def test_attributes_that_raise_are_left_out():
    facts = describe_iterable(Unready())
    assert facts["rows"] is facts["batch_size"] is None


def test_contents_of_large_data_are_a_sample(monkeypatch):
    """Rows of large arrays may be pages of a file, of which few are read; both ends are among them."""
    many = sampled(2**30, 4)
    assert (len(many), many[0], many[-1]) == (64, 0, 2**30 - 1)
    assert sampled(10, 2**30).tolist() == [0, 4, 9]
    monkeypatch.setattr(data_fingerprint, "SAMPLE_BYTES", 100)
    assert sampled(1000, 10).tolist() == np.linspace(0, 999, 10).astype(int).tolist()
    assert sampled(3, 1000).tolist() == [0, 1, 2]
