"""Tests of the first array that differs, with values by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from learner.diagnostics.array_difference import first_difference, named_arrays


def test_largest_difference_of_the_first_array():
    a = {"same": np.zeros(2), "params/w": np.float32([[1, 2], [3, 4]]), "params/b": np.int32([1]), "rng": np.zeros(1)}
    b = {**a, "params/w": np.float32([[1, 2.5], [2.75, 4]]), "params/b": np.int32([2]), "rng": np.ones(1)}
    difference = first_difference(a, b)
    assert (difference.path, difference.kinds) == ("params/w", ("float32[2, 2]", "float32[2, 2]"))
    assert (difference.differing, difference.size, difference.largest, difference.index) == (2, 4, 0.5, (0, 1))
    assert (difference.values, difference.further) == ((2.0, 2.5), 1)  # `rng` is another part
    assert difference.ulps == 2**21  # 2 to 2.5 is a quarter of the 2**23 floats up to 4; 3 to 2.75 an eighth
    assert difference.lines() == [
        "params/w differs in 2 of 4 values, by at most 0.5 and 2,097,152 ulps",
        "at [0, 1]: 2 and 2.5",
        "1 more of params",
    ]


@pytest.mark.parametrize(
    ("dtype", "a", "b", "ulps"),
    [
        (np.float64, 1.0, np.nextafter(1.0, 2.0), 1),
        (np.float32, 0.0, -0.0, 0),  # other bits, equal numbers
        (np.float32, np.finfo(np.float32).smallest_subnormal, -np.finfo(np.float32).smallest_subnormal, 2),
        (jnp.bfloat16, 1.0, 1.0078125, 1),
        (np.float16, -1.0, -1.001953125, 2),
        (np.int32, 3, 5, None),
        (np.float32, 1.0, np.nan, None),
        (np.complex64, 1j, 2j, None),
    ],
)
def test_units_in_the_last_place(dtype, a, b, ulps):
    difference = first_difference({"x": np.asarray(a, dtype)}, {"x": np.asarray(b, dtype)})
    assert (difference.differing, difference.index, difference.ulps) == (1, (), ulps)
    assert (difference.largest is None) == bool(np.isnan(b))


def test_nan_hides_no_difference():
    difference = first_difference({"x": np.float32([np.nan, np.nan, 1])}, {"x": np.float32([np.nan, 1, 1.5])})
    assert (difference.differing, difference.largest, difference.index) == (2, 0.5, (2,))


def test_other_shapes_and_missing_arrays():
    x, y = np.zeros((2, 1), np.float32), np.zeros(2, np.float16)
    assert first_difference({"params/w": x}, {"params/w": y}).lines() == [
        "params/w is float32[2, 1] in the first run, float16[2] in the second"
    ]
    difference = first_difference({"params/w": x}, {"params/w": x, "params/b": y})
    assert (difference.path, difference.kinds) == ("params/b", (None, "float16[2]"))
    assert "not there in the first run" in difference.lines()[0]
    assert first_difference({"x": np.float32([np.nan])}, {"x": np.float32([np.nan])}) is None


def test_random_keys_are_compared_by_their_data():
    arrays = named_arrays("rng", jax.random.key(3))
    assert {name: x.tolist() for name, x in arrays.items()} == {"rng": [0, 3]}
    assert first_difference(arrays, named_arrays("rng", jax.random.key(4))).path == "rng"
