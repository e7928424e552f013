"""Tests of Pad."""

from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest

from learner.data import DataLoaderBuilder, Pad, view
from tests.support.codes import raises_code


def texts(*lengths, dtype=np.int32):
    return [{"text": np.arange(1, n + 1, dtype=dtype), "label": np.int8(n)} for n in lengths]


@pytest.mark.parametrize(
    ("pad", "lengths", "expected"),
    [
        (Pad(), (2, 5, 3), 5),
        (Pad(length=8), (2, 5), 8),
        (Pad(length=5), (5, 5), 5),
        (Pad(multiple=4), (2, 5), 8),
        (Pad(multiple=4), (4, 1), 4),
        (Pad(multiple=4), (0, 0), 4),
        (Pad(buckets=[16, 4, 8]), (3, 1), 4),
        (Pad(buckets=[4, 8, 16]), (4,), 4),
        (Pad(buckets=[4, 8, 16]), (5, 2), 8),
        (Pad(buckets=[4, 8, 16]), (16,), 16),
    ],
)
def test_lengths(pad, lengths, expected):
    batch = pad(texts(*lengths))
    assert batch["text"].shape == batch["mask"].shape == (len(lengths), expected)
    assert (batch["text"].dtype, batch["mask"].dtype, batch["label"].dtype) == (np.int32, bool, np.int8)
    assert batch["label"].tolist() == list(lengths)
    for row, mask, n in zip(batch["text"], batch["mask"], lengths, strict=True):
        assert row.tolist() == [*range(1, n + 1), *[0] * (expected - n)]
        assert mask.tolist() == [True] * n + [False] * (expected - n)


def test_values_and_fields():
    items = [{"x": np.ones((n, 2), np.float32), "y": [1] * n, "image": np.zeros((3, 3))} for n in (1, 2)]
    batch = Pad(length=3, value={"x": -1, "y": -100}, fields=["x", "y"])(items)
    assert batch["x"][0].tolist() == [[1, 1], [-1, -1], [-1, -1]]
    assert batch["y"].tolist() == [[1, -100, -100], [1, 1, -100]]
    assert batch["image"].shape == (2, 3, 3)
    assert batch["mask"].tolist() == [[True, False, False], [True, True, False]]
    filled = Pad(value={"x": float("nan")}, fields=["x", "y"])(items)
    assert np.isnan(filled["x"][0, 1]).all()


def test_masks_per_field_or_none():
    items = [{"source": [1, 2, 3], "target": [4]}, {"source": [1], "target": [4, 5]}]
    batch = Pad(mask="{field}_mask")(items)
    assert batch["source_mask"].tolist() == [[True, True, True], [True, False, False]]
    assert batch["target_mask"].tolist() == [[True, False], [True, True]]
    assert set(Pad(mask=None)(items)) == {"source", "target"}
    with raises_code("data-pad-lengths-differ", "{field}", name="target"):
        Pad(length=4)(items)


def test_empty_list_does_not_change_the_dtype():
    assert Pad()([{"text": []}, {"text": [3]}])["text"].dtype == np.array([3]).dtype


def test_items_without_other_fields():
    assert Pad()([{"ids": [1, 2]}, {"ids": [3]}])["ids"].tolist() == [[1, 2], [3, 0]]


@pytest.mark.parametrize(
    ("make", "code", "values"),
    [
        (lambda: Pad(length=4, multiple=2), "data-pad-choice", ("length and multiple",)),
        (lambda: Pad(length=0), "data-number-value", ("the length of Pad", "0", "1")),
        (lambda: Pad(multiple=-1), "data-number-value", ("the multiple of Pad", "-1")),
        (lambda: Pad(buckets=[]), "data-buckets-value", ("[]",)),
        (lambda: Pad(buckets=[4, 0]), "data-number-value", ("a bucket of Pad", "0")),
        (lambda: Pad(fields="text"), "data-fields-value", ("Pad", "'text'")),
        (lambda: Pad(mask=False), "data-pad-mask-type", ("False", "None")),
        (lambda: Pad(fields=["txt"])(texts(1)), "data-field-missing", ("txt", "'text'")),
        (lambda: Pad(length=4)(texts(2, 5)), "data-pad-item-unfit", ("text", "1", "5", "length=4", "4")),
        (lambda: Pad(buckets=[2, 4])(texts(5)), "data-pad-item-unfit", ("5", "(buckets=[2, 4])", "4")),
        (lambda: Pad(value=0.5)(texts(1, 2)), "data-fill-value", ("text", "0.5", "Pad", "int32")),
        (lambda: Pad(value=-1)(texts(1, 2, dtype=np.uint8)), "data-fill-value", ("text", "-1", "Pad", "uint8")),
        (lambda: Pad()([[1, 2], [3]]), "batch-items-not-dicts", ("0",)),
        (lambda: Pad()([{"x": [1]}, {"y": [1]}]), "batch-items-differ", ("0", "['x']", "1", "['y']")),
        (lambda: Pad()([{}, {}]), "batch-items-without-fields", ()),
        (lambda: Pad(fields=["label"])(texts(1)), "data-item-field-unfit", ("label", "Pad", "0", "int8")),
        (
            lambda: Pad()([{"x": np.ones((2, 3))}, {"x": np.ones((2, 4))}]),
            "data-item-field-unfit",
            ("x", "Pad", "[2, 3]", "0", "[2, 4]", "1"),
        ),
        (
            lambda: Pad(fields=["a"])([{"a": [1], "b": [1]}, {"a": [1], "b": []}]),
            "batch-item-shapes-differ",
            ("b", "[1]", "0", "[0]"),
        ),
        (lambda: Pad(mask="label")(texts(1)), "data-pad-mask-exists", ("'label'",)),
    ],
)
def test_wrong_input(make, code, values):
    with raises_code(code, *values):
        make()


def test_pickled_batcher_in_a_loader():
    pad = ForkingPickler.loads(ForkingPickler.dumps(Pad(buckets=[2, 4])))
    loader = DataLoaderBuilder(pad).batch_size(2).build(view(texts(1, 2, 3)))
    assert [batch["text"].shape for batch in loader] == [(2, 2), (1, 4)]


def test_field_without_its_own_value_is_padded_with_0():
    batch = Pad(value={"y": 9})([{"x": [1, 2], "y": [1, 2]}, {"x": [3], "y": [4]}])
    assert (batch["x"].tolist(), batch["y"].tolist()) == ([[1, 2], [3, 0]], [[1, 2], [4, 9]])
