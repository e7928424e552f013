"""Tests of warnings about numbers that are rounded on the way to the device."""

import jax
import numpy as np
import pytest

from learner.data.batch_arrays import rounding_warnings

EXACT = {
    "small": [2.0**24, 3.0],
    "representable": [2.0**24 + 2, 2.0**30],
    "measurements": [123456789.5, 1e300, np.nan, np.inf],
    "float32": np.float32([16777217]),
    "integers": np.array([16777217]),
}


@pytest.mark.parametrize("kind", EXACT)
def test_no_warning_for_exact_or_fractional_values(kind):
    assert rounding_warnings({"x": np.asarray(EXACT[kind])}, "train") == []


@pytest.mark.parametrize(("values", "shown"), [([[1.5, -16777217]], "-16777217"), ([1795797689.0, 2], "1795797689")])
def test_warning_for_rounded_whole_numbers(values, shown):
    (text,) = rounding_warnings({"x": np.array(values)}, "train")
    assert f"'x' of a train batch holds {shown} (float64), which is {np.float32(shown):.0f} as float32" in text
    with jax.enable_x64(True):
        assert rounding_warnings({"x": np.array(values)}, "train") == []
