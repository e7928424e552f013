import types
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from learner.errors import LearnerError
from learner.metrics import kept_rows


def keep(mask: Any, shape: tuple[int, ...]) -> Any:
    return np.asarray(kept_rows("Mine", types.SimpleNamespace(mask=mask), shape))


@pytest.mark.parametrize("dtype", ["bool", "int32", "uint8", "float32", "bfloat16"])
def test_a_mask_is_spread_over_the_axes_behind_it(dtype: str) -> None:
    mask = jnp.array([1, 0, 1]).astype(dtype)
    rows = np.array([True, False, True])
    np.testing.assert_array_equal(keep(mask, (3,)), rows)
    np.testing.assert_array_equal(keep(mask, (3, 3)), np.stack([rows] * 3, axis=1))
    np.testing.assert_array_equal(keep(mask, (3, 2, 1)), np.stack([rows] * 2, axis=1)[..., None])


def test_without_a_mask_everything_counts() -> None:
    assert keep(None, (2, 3)).all()
    assert kept_rows("Mine", object(), (2, 3)).shape == (2, 3)


@pytest.mark.parametrize("shape", [(2,), (3, 3), (3, 1), (2, 3)])
def test_a_mask_of_another_shape_is_an_error(shape: tuple[int, ...]) -> None:
    with pytest.raises(LearnerError, match=r"Mine got a mask of shape .*; it needs \(3, 2\)"):
        keep(jnp.ones(shape), (3, 2))
