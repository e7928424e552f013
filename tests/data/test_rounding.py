"""Tests of warnings about numbers that change as JAX computes with 32 bits."""

import jax
import numpy as np
import pytest

from learner.data.rounding import equal_as_float32, rounding_warnings

EXACT = {
    "small": [2.0**24, 3.0],
    "representable": [2.0**24 + 2, 2.0**30],
    "measurements": [123456789.5, 1e300, np.nan, np.inf],
    "float32": np.float32([16777217]),
    "integers": np.array([16777217]),
    "few values": [1.7e9 + number + 0.25 for number in range(9)],
    "errors of float64": 1 + 2.0**-52 * np.arange(100),
    "large measurements": np.linspace(6.0e23, 7.0e23, 100),
    "seconds of hours": 1_700_000_000 + 3840.0 * np.arange(100),  # of which float32 represents each 128th
    "no rows of a field": np.zeros((3, 0)),
}


@pytest.mark.parametrize("kind", EXACT)
def test_no_warning_for_exact_or_fractional_values(kind):
    assert rounding_warnings({"x": np.asarray(EXACT[kind])}, "train") == {}


@pytest.mark.parametrize(("values", "shown"), [([[1.5, -16777217]], "-16777217"), ([1795797689.0, 2], "1795797689")])
def test_warning_for_rounded_whole_numbers(values, shown):
    text = rounding_warnings({"x": np.array(values)}, "train")["x"]
    assert f"'x' of a train batch holds {shown} (float64), which is {np.float32(shown):.0f} as float32" in text
    with jax.enable_x64(True):
        assert rounding_warnings({"x": np.array(values)}, "train") == {}


CLOSE = {
    "seconds with fractions": [1.7e9 + number + 0.25 for number in range(100)],
    "nanoseconds": 1.7e18 + 1e9 * np.arange(100),
    "days and their fractions": 2459000.5 + np.arange(100) / 86400,
    "beside missing ones": [np.nan, *(1.7e9 + np.arange(100) + 0.25)],
    "a column beside others": np.stack([np.arange(100.0), 1.7e9 + np.arange(100) + 0.25], axis=1),
    "windows": np.lib.stride_tricks.sliding_window_view(1.7e9 + np.arange(100) + 0.25, 10),
}


@pytest.mark.parametrize("kind", CLOSE)
def test_warning_for_values_that_become_equal(kind):
    values = np.asarray(CLOSE[kind])
    text = rounding_warnings({"x": values}, "valid")["x"]
    assert text.startswith("'x' of a valid batch has values that float32 cannot tell apart")
    one, other = equal_as_float32(values)
    assert one != other
    assert np.float32(one) == np.float32(other)
    assert {one, other} <= {*values.ravel().tolist()}


def test_all_rows_are_looked_at():
    ids = np.arange(3_000_000.0)
    ids[2_900_000] = 16777217
    assert "16777217" in rounding_warnings({"id": ids}, "train")["id"]
