"""The first array that differs: its values by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from learner.diagnostics.array_difference import first_difference, named_arrays


def test_the_largest_difference_of_the_first_array():
    a = {"same": np.zeros(2), "params/w": np.float32([[1, 2], [3, 4]]), "params/b": np.int32([1]), "rng": np.zeros(1)}
    b = {**a, "params/w": np.float32([[1, 2.5], [2.75, 4]]), "params/b": np.int32([2]), "rng": np.ones(1)}
    found = first_difference(a, b)
    assert (found.path, found.kinds) == ("params/w", ("float32[2, 2]", "float32[2, 2]"))
    assert (found.differing, found.size, found.largest, found.index) == (2, 4, 0.5, (0, 1))
    assert (found.values, found.further) == ((2.0, 2.5), 1)  # `rng` is another part
    assert found.ulps == 2**21  # 2 to 2.5: a quarter of the 2**23 floats up to 4; 3 to 2.75: an eighth
    assert found.lines() == [
        "params/w differs in 2 of 4 values, by at most 0.5 and 2,097,152 ulps",
        "at [0, 1]: 2 and 2.5",
        "1 more of params",
    ]


@pytest.mark.parametrize(
    ("dtype", "a", "b", "ulps"),
    [
        (np.float64, 1.0, np.nextafter(1.0, 2.0), 1),
        (np.float32, 0.0, -0.0, 0),  # other bits, the same number
        (np.float32, np.finfo(np.float32).smallest_subnormal, -np.finfo(np.float32).smallest_subnormal, 2),
        (jnp.bfloat16, 1.0, 1.0078125, 1),
        (np.float16, -1.0, -1.001953125, 2),
        (np.int32, 3, 5, None),
        (np.float32, 1.0, np.nan, None),
        (np.complex64, 1j, 2j, None),
    ],
)
def test_units_in_the_last_place(dtype, a, b, ulps):
    found = first_difference({"x": np.asarray(a, dtype)}, {"x": np.asarray(b, dtype)})
    assert (found.differing, found.index, found.ulps) == (1, (), ulps)
    assert (found.largest is None) == bool(np.isnan(b))


def test_a_nan_hides_no_difference():
    found = first_difference({"x": np.float32([np.nan, np.nan, 1])}, {"x": np.float32([np.nan, 1, 1.5])})
    assert (found.differing, found.largest, found.index) == (2, 0.5, (2,))


def test_other_shapes_and_missing_arrays():
    x, y = np.zeros((2, 1), np.float32), np.zeros(2, np.float16)
    assert first_difference({"params/w": x}, {"params/w": y}).lines() == [
        "params/w is float32[2, 1] in the first run, float16[2] in the second"
    ]
    found = first_difference({"params/w": x}, {"params/w": x, "params/b": y})
    assert (found.path, found.kinds) == ("params/b", (None, "float16[2]"))
    assert "not there in the first run" in found.lines()[0]
    assert first_difference({"x": np.float32([np.nan])}, {"x": np.float32([np.nan])}) is None


def test_random_keys_are_their_numbers():
    arrays = named_arrays("rng", jax.random.key(3))
    assert {name: x.tolist() for name, x in arrays.items()} == {"rng": [0, 3]}
    assert first_difference(arrays, named_arrays("rng", jax.random.key(4))).path == "rng"
