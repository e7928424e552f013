"""Tests of Brier scores and calibration errors against values by hand."""

import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from learner.errors import LearnerError
from learner.metrics import BrierScore, CalibrationError, Info, Metric

INFO = Info(jnp.int32(0), jnp.float32(1))
# Class 1 is right in rows 0 and 1, class 0 in rows 2 and 3. Tests mask, ignore or damage the last row.
PROBABILITIES = np.array([[0.1, 0.9], [0.2, 0.8], [0.15, 0.85], [0.7, 0.3], [0.5, 0.5]])
LOGITS, TARGETS = np.log(PROBABILITIES).astype(np.float32), np.array([1, 1, 0, 0, -1])
FOUR = np.array([1, 1, 1, 1, 0])


def value(metric: Metric, logits: Any, targets: Any, mask: Any = None) -> float:
    output = types.SimpleNamespace(logits=logits, targets=targets, mask=np.ones(5, int) if mask is None else mask)
    return float(metric.compute(metric.update(metric.init(), output, INFO)))


@pytest.mark.full
def test_brier_by_hand() -> None:
    errors = np.array([0.1, 0.2, 0.85, 0.3]) ** 2
    np.testing.assert_allclose(value(BrierScore(), LOGITS, TARGETS, FOUR), errors.mean(), rtol=3e-7)
    np.testing.assert_allclose(value(BrierScore(ignore_label=-1), LOGITS, TARGETS), errors.mean(), rtol=3e-7)
    assert np.isnan(value(BrierScore(), LOGITS, TARGETS))
    one = value(BrierScore(ignore_label=-1), LOGITS[:, 1:] - LOGITS[:, :1], TARGETS[:, None])
    np.testing.assert_allclose(one, errors.mean(), rtol=3e-7)


@pytest.mark.full
def test_calibration_by_hand() -> None:
    gaps = np.array([abs(1 - 0.7), abs(2 - 0.9 - 0.8 - 0.85)])  # bins from 0.5 to 0.75 and from 0.75 to 1
    np.testing.assert_allclose(value(CalibrationError(4), LOGITS, TARGETS, FOUR), gaps.sum() / 4, rtol=1e-6)
    largest = value(CalibrationError(4, "max"), LOGITS, TARGETS, FOUR)
    np.testing.assert_allclose(largest, max(0.3, gaps[1] / 3), rtol=1e-6)
    several = value(CalibrationError(4, ignore_label=-1), LOGITS[:, 1:] - LOGITS[:, :1], TARGETS[:, None])
    np.testing.assert_allclose(several, gaps.sum() / 4, rtol=1e-6)


@pytest.mark.full
def test_edge_belongs_to_the_bin_below() -> None:
    logits = np.log(np.array([[0.5, 0.5], [0.25, 0.75], [0.5, 0.5], [0.5, 0.5], [0.5, 0.5]])).astype(np.float32)
    # With 4 bins 0.5 is in the second and 0.75 in the third, both right in 1 of 1: gaps 0.5 and 0.25.
    mask = np.array([1, 1, 0, 0, 0])
    np.testing.assert_allclose(value(CalibrationError(4), logits, np.array([0, 1, 0, 0, 0]), mask), 0.375, rtol=1e-6)
    np.testing.assert_allclose(value(CalibrationError(4, "max"), logits, np.array([0, 1, 0, 0, 0]), mask), 0.5)
    mask = np.array([1, 0, 1, 1, 1])
    assert value(CalibrationError(4), logits, np.array([0, 1, 1, 0, 1]), mask) == 0


@pytest.mark.full
def test_masked_ignored_and_invalid_rows() -> None:
    expected, logits = value(CalibrationError(4), LOGITS, TARGETS, FOUR), LOGITS.copy()
    logits[4] = np.nan
    assert value(CalibrationError(4), logits, TARGETS, FOUR) == expected
    assert value(CalibrationError(4, ignore_label=-1), logits, TARGETS) == expected
    assert np.isnan(value(CalibrationError(4), LOGITS, TARGETS))
    assert np.isnan(value(CalibrationError(4), logits, np.zeros(5, int)))
    assert np.isnan(value(CalibrationError(4, "max"), LOGITS, TARGETS, np.zeros(5, int)))


@pytest.mark.full
def test_no_drift_over_a_billion_rows() -> None:
    metric = CalibrationError(4)
    output = types.SimpleNamespace(logits=LOGITS, targets=TARGETS, mask=FOUR)
    state, merge = metric.update(metric.init(), output, INFO), jax.jit(metric.merge)
    one = metric.compute(state)
    for _ in range(28):
        state = merge(state, state)
    np.testing.assert_allclose(metric.compute(state), one, rtol=5e-7)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"bins": 0}, "bins of CalibrationError is 0"),
        ({"norm": "l1"}, "norm of CalibrationError is 'l1'; choose from 'expected', 'max'"),
        ({"bins": 0, "norm": "mix"}, "CalibrationError cannot be made, 2 problems"),
    ],
)
def test_wrong_arguments(arguments: Any, message: str) -> None:
    with pytest.raises(LearnerError) as error:
        CalibrationError(**arguments)
    assert str(error.value).startswith(message)
