"""Tests of masks spread over rows, and of labels converted to int32."""

import types
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from learner.metrics import Accuracy, ConfusionMatrix, kept_rows
from learner.metrics.base import Info
from learner.metrics.rows import as_int32
from tests.support.codes import raises_code


def keep(mask: Any, shape: tuple[int, ...]) -> Any:
    return np.asarray(kept_rows("Mine", types.SimpleNamespace(mask=mask), shape))


@pytest.mark.parametrize("dtype", ["bool", "int32", "uint8", "float32", "bfloat16"])
def test_mask_is_spread_over_trailing_axes(dtype: str) -> None:
    mask = jnp.array([1, 0, 1]).astype(dtype)
    rows = np.array([True, False, True])
    np.testing.assert_array_equal(keep(mask, (3,)), rows)
    np.testing.assert_array_equal(keep(mask, (3, 3)), np.stack([rows] * 3, axis=1))
    np.testing.assert_array_equal(keep(mask, (3, 2, 1)), np.stack([rows] * 2, axis=1)[..., None])


def test_all_rows_count_without_a_mask() -> None:
    assert keep(None, (2, 3)).all()
    assert kept_rows("Mine", object(), (2, 3)).shape == (2, 3)


@pytest.mark.parametrize("shape", [(2,), (3, 3), (3, 1), (2, 3)])
def test_mask_of_another_shape_raises(shape: tuple[int, ...]) -> None:
    with raises_code("metric-mask-shape", name="Mine", shape="(3, 2)"):
        keep(jnp.ones(shape), (3, 2))


@pytest.mark.parametrize("dtype", [np.uint32, np.uint8, np.int16, bool])
def test_labels_outside_of_int32_do_not_wrap(dtype):
    """4294967196 wraps to -100 in 32 bits, the most frequent value of ignore_label."""
    largest = 1 if dtype is bool else np.iinfo(dtype).max
    labels = as_int32(jnp.array([0, 1, largest], dtype))
    assert labels.dtype == jnp.int32
    assert labels.tolist() == [0, 1, min(largest, 2**31 - 1)]


@pytest.mark.parametrize("metric", [Accuracy(ignore_label=-100), ConfusionMatrix(2, ignore_label=-100)], ids=type)
def test_label_that_would_wrap_is_not_ignored(metric):
    targets = jnp.array(np.array([0, 4294967196], np.uint32))
    output = types.SimpleNamespace(logits=jnp.array([[1.0, 0.0], [1.0, 0.0]]), targets=targets)
    ignoring = types.SimpleNamespace(logits=output.logits, targets=jnp.array([0, -100]))
    info = Info(jnp.int32(0), jnp.float32(2))
    wrapped, ignored = (str(metric.compute(metric.update(metric.init(), batch, info))) for batch in (output, ignoring))
    assert wrapped != ignored
