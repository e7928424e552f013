"""Tests of resuming streamed datasets of Hugging Face: the library's, if it is installed, and one of its protocol."""

import importlib.util
import json

import numpy as np
import pytest

from learner.data.source import source_of

ROWS = 22


class Stream:
    """The protocol of `datasets.IterableDataset`: the state is the dataset's, and a loaded one stays for its epoch."""

    def __init__(self):
        self.epoch, self.read, self._state_dict, self._starting_state_dict = 0, 0, None, None

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        start = self._starting_state_dict
        begin = start["next"] if start is not None and start["epoch"] == self.epoch else 0
        order = np.random.default_rng(self.epoch).permutation(ROWS)
        for number in range(begin, ROWS, 4):
            self.read += 1
            self._state_dict = {"next": number + 4, "epoch": self.epoch}
            yield {"x": order[number : number + 4]}

    def state_dict(self):
        return None if self._state_dict is None else dict(self._state_dict)

    def load_state_dict(self, state):
        self._starting_state_dict = state


Stream.__module__ = "datasets.iterable_dataset"


def table():
    import datasets

    return datasets.Dataset.from_dict({"x": np.arange(ROWS)}).to_iterable_dataset(num_shards=3)


REAL = {
    "plain": lambda data: data,
    "map": lambda data: data.map(lambda row: {"x": row["x"] + 1}),
    "filter": lambda data: data.filter(lambda row: row["x"] % 3 != 0),
    "batched": lambda data: data.map(lambda rows: {"x": [x + 1 for x in rows["x"]]}, batched=True, batch_size=5),
    "shards": lambda data: data.shuffle(seed=1, buffer_size=1),
    "numpy": lambda data: data.with_format("numpy"),
}
needs_datasets = pytest.mark.skipif(importlib.util.find_spec("datasets") is None, reason="datasets is not installed")
MAKE = {"the protocol": Stream} | {
    name: lambda change=change: change(table()).batch(4) for name, change in REAL.items()
}


def open_with_state(data):
    source = source_of(data, "train")
    source.peek(1)
    source.keep_state()
    return source


def rows(pairs):
    return [row for row, _ in pairs]


def with_states(source, epoch, start=0, state=None):
    batches = source.open(epoch, start, json.loads(json.dumps(state)), pytest.fail)
    return [(np.asarray(batch["x"]).tolist(), batches.where()) for batch in batches]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "the protocol" else needs_datasets) for name in MAKE]
)
def test_stream_resumes_at_its_row(name):
    whole = open_with_state(MAKE[name]())
    first, second = with_states(whole, 1), with_states(whole, 2)
    for done in range(1, len(first)):
        resumed = open_with_state(MAKE[name]())
        assert rows(with_states(resumed, 1, done, first[done - 1][1])) == rows(first[done:])
        assert rows(with_states(resumed, 2)) == rows(second)  # begins at the first row, not at the loaded state
    assert rows(with_states(open_with_state(MAKE[name]()), 2, 0, first[-1][1])) == rows(second)


def test_earlier_rows_are_not_read_again():
    whole = open_with_state(Stream())
    states = [state for _, state in with_states(whole, 1)]
    data = Stream()
    resumed = source_of(data, "train")
    assert len(with_states(resumed, 1, 4, states[3])) == 2
    assert data.read == 2


@needs_datasets
def test_rows_of_a_shuffle_buffer_are_read_again():
    make = lambda: table().shuffle(seed=1, buffer_size=10).batch(4)  # noqa: E731
    expected = [np.asarray(batch["x"]).tolist() for batch in source_of(make(), "train").open(1)]
    warnings = []
    batches = source_of(make(), "train").open(1, 3, None, warnings.append)
    assert [np.asarray(batch["x"]).tolist() for batch in batches] == expected[3:]
    assert "the rows in its shuffle buffer are not in its state_dict" in warnings[0]


@needs_datasets
def test_batches_have_arrays_unless_a_format_is_set():
    import datasets

    data = datasets.Dataset.from_dict({"x": [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]}).to_iterable_dataset()
    batches = [batch["x"] for batch in source_of(data.batch(2), "train").open(1)]
    assert [batch.tolist() for batch in batches] == [[[0.0, 1.0], [2.0, 3.0]], [[4.0, 5.0]]]
    assert all(isinstance(batch, np.ndarray) for batch in batches)
    (batch,) = source_of(data.with_format("arrow").batch(3), "train").open(1)
    assert not isinstance(batch, dict)
