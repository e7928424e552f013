"""Tests of PackedStream: token sequences of any length as rows of one length."""

import functools

import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learner import Interrupter
from learner.data import ArrayDataset, PackedStream, mix, stream
from learner.data.source import source_of
from tests.support.codes import raises_code
from tests.support.runs import bits, line, quiet

LENGTHS = [3, 5, 1, 8, 2, 2, 7, 4, 6, 1, 1, 8, 3]


def texts(lengths=LENGTHS, first=1):
    """Yield sequences of consecutive numbers, each number once."""
    begin = first
    for length in lengths:
        yield {"text": np.arange(begin, begin + length, dtype=np.int32)}
        begin += length


def sequences_in(rows):
    """Return the segments of rows, and assert that each is contiguous and has the positions 0, 1, 2, ..."""
    sequences = []
    for row in rows:
        assert (row["mask"] == (row["segments"] > 0)).all()
        assert not row["text"][~row["mask"]].any()
        for segment in range(1, row["segments"].max() + 1):
            at = np.flatnonzero(row["segments"] == segment)
            assert row["positions"][at].tolist() == list(range(len(at)))
            assert np.diff(at).tolist() == [1] * (len(at) - 1)
            sequences.append(row["text"][at].tolist())
    return sequences


@settings(deadline=None, max_examples=50)
@given(lengths=st.lists(st.integers(0, 7), min_size=1, max_size=12))
def test_sequences_are_kept_whole_and_in_order(lengths):
    make = functools.partial(texts, lengths)
    if not any(lengths):
        assert list(PackedStream(make, length=7)) == []
        return
    sequences = sequences_in(PackedStream(make, length=7))
    assert sequences == [item["text"].tolist() for item in make() if len(item["text"])]


@settings(deadline=None, max_examples=50)
@given(lengths=st.lists(st.integers(0, 30), min_size=1, max_size=12).filter(any))
def test_split_fills_all_rows_but_the_last(lengths):
    rows = list(PackedStream(functools.partial(texts, lengths), length=7, split=True))
    assert all(row["mask"].all() for row in rows[:-1])
    assert len(rows) == -(-sum(lengths) // 7)
    assert [x for piece in sequences_in(rows) for x in piece] == list(range(1, 1 + sum(lengths)))


def batches_of(make, **options):
    return stream(PackedStream(make, length=8, **options)).batch(2)


def of_mixture():
    second = functools.partial(texts, [4, 9, 2, 8, 8, 1] * 3, first=1000)
    return mix({"a": functools.partial(texts, LENGTHS * 3), "b": second}, weights={"a": 2, "b": 1}, seed=1)


STREAMS = {
    "sequences": lambda: batches_of(texts),
    "split": lambda: batches_of(texts, split=True),
    "a mixture": lambda: batches_of(of_mixture(), split=True),
}


@pytest.mark.parametrize("make", STREAMS.values(), ids=STREAMS)
@pytest.mark.parametrize("epoch", [1, 2])
def test_every_state_leads_to_its_position(make, epoch):
    def read(source, start=0, state=None):
        batches = source.open(epoch, start, state)
        return [(batch["text"].tolist(), batches.where()) for batch in batches]

    def source():
        data = source_of(make(), "train", batch_size=None)
        data.keep_state()
        return data

    first = source()
    if epoch == 2:
        list(first.open(1))
    whole = read(first)
    assert len(whole) > 3
    for start in range(1, len(whole)):
        assert read(source(), start, whole[start - 1][1]) == whole[start:]


@pytest.mark.full
def test_resuming_is_exact(tmp_path):
    def step(model, batch):
        tokens = batch["text"].astype(np.float32) * batch["mask"].astype(np.float32)
        return {"loss": (tokens @ model["w"]).mean() ** 2}

    def run(directory, stop=None):
        interrupter = Interrupter()
        builder = quiet(directory, saves=True).num_epochs(2).interrupter(interrupter).resume().with_batch_size(2)
        builder.every(1, lambda info, model: interrupter.stop("x") if info.step == stop else None)
        data = stream(PackedStream(texts, length=8, split=True))
        return builder.build(line(8, bias=False, value=1e-3), optax.adam, 1e-3, train_step=step).fit(data)

    whole = run(tmp_path / "whole")
    for stop in (5, None):
        resumed = run(tmp_path / "run", stop)
    assert bits(resumed.model) == bits(whole.model)
    assert resumed.history == whole.history


@pytest.mark.parametrize(
    ("make", "code", "values"),
    [
        (lambda: PackedStream(texts, length=0), "data-number-value", ("PackedStream", "0")),
        (lambda: PackedStream(ArrayDataset({"x": np.zeros(3)}), length=4), "data-packed-stream-items", ("Pack",)),
        (lambda: PackedStream(stream(texts).batch(2), length=4), "data-packed-stream-items", ()),
        (
            lambda: PackedStream(mix({"a": texts}, size=3, exhausted="repeat"), length=4),
            "data-packed-stream-items",
            (),
        ),
        (lambda: list(PackedStream(texts, length=7)), "data-packed-stream-length", ("8", "7")),
        (lambda: list(PackedStream(lambda: iter([[1, 2]]), length=7)), "batch-items-not-dicts", ()),
        (
            lambda: list(PackedStream(lambda: iter([{"a": [1, 2], "b": [1]}]), length=7, split=True)),
            "data-pack-item-unfit",
            ("2", "1"),
        ),
    ],
)
def test_wrong_input(make, code, values):
    with raises_code(code, *values):
        make()


def test_epochs_have_their_own_draws():
    source = source_of(stream(PackedStream(of_mixture(), length=8, split=True)).batch(2), "train", batch_size=None)
    first, second = ([batch["text"].tolist() for batch in source.open(epoch)] for epoch in (1, 2))
    assert first != second


def test_padding_has_the_value():
    rows = list(PackedStream(texts, length=8, value={"text": -1}))
    padding = np.concatenate([row["text"][~row["mask"]] for row in rows])
    assert set(padding.tolist()) == {-1}


def test_other_fields_are_left_out():
    rows = list(PackedStream(lambda: iter([{"a": [1, 2], "b": [1]}]), length=3, fields=["a"]))
    assert [sorted(row) for row in rows] == [["a", "mask", "positions", "segments"]]


def test_fields_that_packing_adds_are_not_overwritten():
    rows = PackedStream(lambda: iter([{"text": [1, 2], "mask": [0, 1]}]), length=3)
    with raises_code("data-pack-field-exists", field="mask"):
        next(iter(rows))
