"""Tests of FieldStatistics."""

import ml_dtypes
import numpy as np
import pytest

from learner.data.statistics import MOST_KINDS, FieldStatistics


def of(*parts):
    field = FieldStatistics("x")
    for part in parts:
        field.add(np.asarray(part))
    return field


def test_non_finite_values_are_counted_apart():
    field = of(np.float32([[1, np.nan], [3, np.inf]]), np.float32([[-2, -np.inf]]))
    assert (field.low, field.high, field.mean) == (-2, 3, 2 / 3)
    assert (field.nans, field.infinities, field.rows) == (1, 2, 3)
    assert (field.shape, field.dtype, field.counts) == ((2,), "float32", None)


def test_range_without_finite_values():
    field = of([np.nan, np.nan])
    assert (field.low, field.mean, field.high, field.nans) == (None, None, None, 2)


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_non_finite_complex_values_are_counted(dtype):
    values = [[complex(1, np.nan), complex(np.nan, 0)], [complex(np.inf, 1), complex(2, 3)], [complex(0, -np.inf), 1]]
    field = of(np.array(values, dtype))
    assert (field.nans, field.infinities, field.rows) == (2, 2, 3)
    assert (field.low, field.mean, field.high, field.counts) == (None, None, None, None)


def test_means_do_not_overflow_and_do_not_drift():
    assert of(np.full(1000, 255, np.uint8), np.full(1000, 1, np.uint8)).mean == 128
    large = of(np.full(10_000, 60_000, np.float16))
    assert large.mean == np.float16(60_000)
    tenths = of(*[np.full(1000, 0.1, np.float32)] * 100)
    assert tenths.mean == pytest.approx(float(np.float32(0.1)), rel=1e-12)
    assert of(np.array([1.5, 2.5], ml_dtypes.bfloat16)).mean == 2


def test_labels_are_counted_over_all_parts():
    assert of([2, 0], [2, 2, 1]).counts == {0: 1, 1: 1, 2: 3}
    assert of([True, False, True]).counts == {False: 1, True: 2}
    assert of(["b", "a"], ["b"]).counts == {"a": 1, "b": 2}
    assert of(["b"], [3, 2], [b"a"]).counts == {2: 1, 3: 1, b"a": 1, "b": 1}
    assert of([[1, 2]]).counts is None
    assert of(np.arange(MOST_KINDS)).counts is not None
    assert of(np.arange(MOST_KINDS), [MOST_KINDS]).counts is None
    assert of([1], [0.5]).counts is None


def test_different_shapes_and_dtypes():
    assert of(np.zeros((1, 3, 4)), np.zeros((1, 5, 4)), np.zeros((1, 3, 4))).shape == (None, 4)
    assert of(np.zeros((1, 3)), np.zeros((1, 3, 4))).shape == (None,)
    assert of(np.zeros(1, np.int8), np.zeros(1, np.int16)).dtype == "int8, int16"
    assert (of(["long", "s"], ["longer"]).dtype, of([b"x"]).dtype) == ("text", "bytes")
