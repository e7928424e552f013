"""Tests of Pack."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.data import Pack
from tests.support.codes import raises_code


def items_of(*lengths):
    first = np.cumsum([1, *lengths])
    return [{"text": np.arange(a, a + n, dtype=np.int32)} for a, n in zip(first, lengths, strict=False)]


def test_items_go_into_the_first_row_with_room():
    batch = Pack(length=6, value=-1)(items_of(4, 3, 2, 3, 1))
    assert batch["text"].tolist() == [[1, 2, 3, 4, 8, 9], [5, 6, 7, 10, 11, 12], [13, -1, -1, -1, -1, -1]]
    assert batch["segments"].tolist() == [[1, 1, 1, 1, 2, 2], [1, 1, 1, 2, 2, 2], [1, 0, 0, 0, 0, 0]]
    assert batch["positions"].tolist() == [[0, 1, 2, 3, 0, 1], [0, 1, 2, 0, 1, 2], [0, 0, 0, 0, 0, 0]]
    assert batch["mask"].tolist() == [[True] * 6, [True] * 6, [True] + [False] * 5]
    assert {name: x.dtype for name, x in batch.items()} == {
        "text": np.int32, "segments": np.int32, "positions": np.int32, "mask": bool
    }  # fmt: skip


def test_rows_fix_the_shape():
    batch = Pack(length=4, rows=3)(items_of(3, 4))
    assert batch["mask"].sum(1).tolist() == [3, 4, 0]


def test_other_fields_are_dropped():
    items = [{"x": np.full((n, 2), n, np.float32), "y": [n] * n, "name": n} for n in (2, 1)]
    batch = Pack(length=4, fields=["x", "y"], value={"y": 9})(items)
    assert set(batch) == {"x", "y", "segments", "positions", "mask"}
    assert batch["y"].tolist() == [[2, 2, 1, 9]]
    assert batch["x"][0].tolist() == [[2, 2], [2, 2], [1, 1], [0, 0]]


@pytest.mark.parametrize("name", ["mask", "segments", "positions"])
def test_fields_of_the_items_are_not_overwritten(name):
    items = [{"text": [1, 2, 3], name: [0, 0, 1]}, {"text": [4, 5], name: [0, 1]}]
    with raises_code("data-pack-field-exists", name):
        Pack(6)(items)
    renamed = Pack(6)([{"text": item["text"], "loss_mask": item[name]} for item in items])
    assert renamed["loss_mask"].tolist() == [[0, 0, 1, 0, 1, 0]]
    assert Pack(6, fields=["text"])(items)["text"].tolist() == [[1, 2, 3, 4, 5, 0]]  # the other field is dropped


@settings(deadline=None, max_examples=50)
@given(lengths=st.lists(st.integers(1, 7), min_size=1, max_size=12))
def test_items_are_kept_whole(lengths):
    items = items_of(*lengths)
    batch = Pack(length=7)(items)
    sequences = []
    for text, segments, positions in zip(batch["text"], batch["segments"], batch["positions"], strict=True):
        for segment in range(1, segments.max() + 1):
            at = np.flatnonzero(segments == segment)
            assert positions[at].tolist() == list(range(len(at)))
            assert np.diff(at).tolist() == [1] * (len(at) - 1)
            sequences.append(text[at].tolist())
    assert sorted(sequences) == [item["text"].tolist() for item in items]
    assert batch["text"][~batch["mask"]].tolist() == [0] * int((~batch["mask"]).sum())


@pytest.mark.parametrize(
    ("make", "code", "values"),
    [
        (lambda: Pack(length=0), "data-number-value", ("the length of Pack", "0")),
        (lambda: Pack(length=2, rows=0), "data-number-value", ("the rows of Pack", "0")),
        (lambda: Pack(length=2)(items_of(1, 3)), "batch-items-differ", ("1", "3", "length=2", "2")),
        (lambda: Pack(length=2)(items_of(1, 0)), "batch-items-differ", ("1", "no tokens")),
        (lambda: Pack(length=2, rows=1)(items_of(1, 2)), "data-pack-rows-exceeded", ("2", "3", "rows=1", "1")),
        (lambda: Pack(length=2, fields=["txt"])(items_of(1)), "data-field-missing", ("txt", "did you mean")),
        (lambda: Pack(length=2)([{"a": [1], "b": [1, 2]}]), "data-pack-item-unfit", ("0", "1", "2")),
        (lambda: Pack(length=2)([[1]]), "batch-items-not-dicts", ("Pack",)),
        (lambda: Pack(length=2, value=0.5)(items_of(1)), "data-fill-value", ("text", "0.5", "Pack", "int32")),
    ],
)
def test_wrong_input(make, code, values):
    with raises_code(code, *values):
        make()


def test_items_may_fill_all_rows():
    assert Pack(length=4, rows=2)(items_of(3, 4))["mask"].sum(1).tolist() == [3, 4]


@pytest.mark.parametrize("item", [{"a": [1], "b": [1, 2]}, {"a": [1, 2], "b": [1]}])
def test_fields_of_other_lengths_are_refused(item):
    with raises_code("data-pack-item-unfit"):
        Pack(length=2)([item])
