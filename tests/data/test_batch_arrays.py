"""Tests of batches as arrays: mappings in them."""

import collections
import types

import numpy as np
import pytest

from learner.data import DataLoaderBuilder, DatasetReport, ForeignDataset, stack, stream, view
from learner.data.sharding import ProcessShard
from learner.data.source import source_of


class Fields(dict):
    """A subclass of dict, which JAX does not know as a pytree."""


class Squares:
    """A dataset whose items are mappings."""

    def __init__(self, kind):
        self.kind = kind

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return self.kind({"x": self.kind({"square": np.float32(index**2)}), "y": index})


def squares(kind):
    """Return two batches of mappings in mappings."""
    numbers = ([0, 1], [2, 3])
    return [kind({"x": kind({"square": np.square(np.float32(rows))}), "y": np.array(rows)}) for rows in numbers]


DATA = {
    "list": squares,
    "generator function": lambda kind: lambda: iter(squares(kind)),
    "iterator": lambda kind: iter(squares(kind)),
    "dataset": Squares,
    "dataset of PyTorch": lambda kind: ForeignDataset(Squares(kind)),
    "stream": lambda kind: stream(lambda: (Squares(kind)[i] for i in range(4))),
    "batcher": lambda kind: DataLoaderBuilder(lambda rows: kind(stack(rows))).batch_size(2).build(Squares(kind)),
}


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("kind", [collections.UserDict, Fields, types.MappingProxyType])
def test_mappings_are_read_as_dicts(name, kind):
    """Hugging Face's BatchEncoding is a UserDict, and other outputs of its models are subclasses of dict."""
    source = source_of(DATA[name](kind), "train", batch_size=2)
    read = [source.peek(1), *source.open(1)]
    assert source.fingerprint()["fields"].keys() == {"x/square", "y"}
    for batch, expected in zip(read, [[0, 1], [0, 1], [4, 9]], strict=True):
        assert type(batch) is type(batch["x"]) is dict
        assert batch["x"]["square"].tolist() == expected


def test_mappings_of_a_batch_are_shared_by_processes():
    parts = [source_of(squares(collections.UserDict), "train", share=ProcessShard(i, 2, 2)).open(1) for i in range(2)]
    assert [[batch["y"].tolist() for batch in part] for part in parts] == [[[0], [2]], [[1], [3]]]


def test_contents_of_mappings_are_compared():
    facts = [source_of(squares(kind), "train").fingerprint() for kind in (dict, collections.UserDict)]
    assert facts[0] == facts[1]
    assert facts[0]["contents"] is not None


def test_functions_of_views_may_change_mappings():
    items = [collections.UserDict(x=1)]

    def double(item):
        item["x"] *= 2
        return item

    doubled = view(items).map(double)
    assert [doubled[0]["x"], doubled[0]["x"], items[0]["x"]] == [2, 2, 1]


def test_functions_of_views_get_groups_of_files_as_they_are():
    """A group of h5py is a mapping, whose copy would be a group of the file."""
    group = types.MappingProxyType({"x": 1})
    assert view([group]).map(lambda item: item is group)[0]


def test_report_names_the_fields_of_mappings():
    assert list(DatasetReport(Squares(collections.UserDict)).fields) == ["x/square", "y"]
